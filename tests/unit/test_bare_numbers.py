"""Every duration of every public name: none takes a number whose unit the reader would have to guess, and each ends."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

import dagster_ckpt
from dagster_ckpt import (
    CheckpointConfig,
    CheckpointedStreamComponent,
    Configuration,
    RestartStrategies,
    build_restore_drill,
    build_savepoint_schedule,
    checkpointed_streaming_asset,
    restore_drill,
)
from dagster_ckpt.errors import InvalidConfiguration
from dagster_ckpt.orchestration.component import attributes
from tests.helpers.orchestration.stored_job import make_asset

#: A parameter that is called so is a time; one that ends with its unit leaves nothing to guess.
_IS_TIME = re.compile(r"(interval|timeout|pause|retain_for|max_age|delay|patience|attempts|backoff|threshold)")
_NAMES_ITS_UNIT = re.compile(r"_(seconds|ms|per_hour)$")
#: Called so, and no time.
_COUNTS = {
    *("restart_attempts", "poison_batch_attempts", "attempts_before_reset_backoff", "backoff_multiplier"),
    *("file_state_size_threshold", "max_state_size"),
}


def _fixed_delay(**given: Any) -> object:
    return RestartStrategies.fixed_delay_restart(3, **given)


def _failure_rate(**given: Any) -> object:
    return RestartStrategies.failure_rate_restart(3, **{"failure_interval": "1 s", "delay_interval": "1 s", **given})


def _asset(**given: Any) -> object:
    versions: dict[str, Any] = {"code_version": "1"} if "upgrade_timeout" in given else {}
    return checkpointed_streaming_asset(**versions, **given)


def _drill(**given: Any) -> object:
    return build_restore_drill(make_asset(), **given)


def _schedule(**given: Any) -> object:
    return build_savepoint_schedule(make_asset(), "0 3 * * *", name="nightly", **given)


def _restore_drill(**given: Any) -> object:
    return restore_drill(make_asset(), resources={}, **given)


#: Who calls a public function with one of its options.
_CALLS: dict[str, Callable[..., object]] = {
    "CheckpointConfig": CheckpointConfig,
    "RestartStrategies.fixed_delay_restart": _fixed_delay,
    "RestartStrategies.failure_rate_restart": _failure_rate,
    "RestartStrategies.exponential_delay_restart": RestartStrategies.exponential_delay_restart,
    "checkpointed_streaming_asset": _asset,
    "build_restore_drill": _drill,
    "build_savepoint_schedule": _schedule,
    "restore_drill": _restore_drill,
}


def _public() -> Iterator[tuple[str, Any]]:
    for name in dagster_ckpt.__all__:
        found = getattr(dagster_ckpt, name)
        yield name, found
        if inspect.isclass(found) and not hasattr(found, "model_fields"):
            for member, value in vars(found).items():
                if not member.startswith("_") and isinstance(value, staticmethod):
                    yield f"{name}.{member}", value.__func__


def _parameters(found: Any) -> list[str]:
    if found is CheckpointedStreamComponent:
        return []  # of text in YAML, below
    if hasattr(found, "model_fields"):
        return list(found.model_fields)
    try:
        return list(inspect.signature(found).parameters)
    except (TypeError, ValueError):
        return []


_TIMES = [
    (name, option)
    for name, found in _public()
    for option in _parameters(found)
    if _IS_TIME.search(option) and not _NAMES_ITS_UNIT.search(option) and option not in _COUNTS
]


def test_the_times_are_found() -> None:
    assert len(_TIMES) >= 18
    assert {name for name, _ in _TIMES} == set(_CALLS)


@pytest.mark.parametrize(("name", "option"), _TIMES)
@given(number=st.integers(0, 10**9) | st.floats(0, 1e9, allow_nan=False))
@settings(max_examples=15, deadline=None)
def test_a_bare_number_is_refused_and_what_is_right_is_told(name: str, option: str, number: float) -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        _CALLS[name](**{option: number})
    told = caught.value.message
    assert option in told
    assert f"{number!r} has no unit" in told
    assert f"'{number} s'" in told
    assert "timedelta" in told


@pytest.mark.parametrize(("name", "option"), [time for time in _TIMES if time[0] != "restore_drill"])
def test_a_text_and_a_timedelta_are_taken(name: str, option: str) -> None:
    needs = {"timeout": "1 min", "heartbeat_timeout": "1 min", "upgrade_timeout": "1 h"}
    text = needs.get(option, "2 s" if "heartbeat" in option or "backoff" in option else "20 s")
    _CALLS[name](**{option: text})
    seconds = {"1 min": 60, "1 h": 3600, "2 s": 2, "20 s": 20}[text]
    _CALLS[name](**{option: timedelta(seconds=seconds)})


@pytest.mark.parametrize(("name", "option"), _TIMES)
@given(days=st.integers(36_501, 999_999_999), as_text=st.booleans())
@settings(max_examples=15, deadline=None)
def test_a_time_that_nobody_can_wait_for_is_refused_and_the_longest_is_told(
    name: str, option: str, days: int, *, as_text: bool
) -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        _CALLS[name](**{option: f"{days} d" if as_text else timedelta(days=days)})
    assert option in caught.value.message
    assert "is longer than 36500 d, the longest duration" in caught.value.message


_YAML = [
    (model, option)
    for model in (
        attributes.CheckpointAttributes,
        attributes.RestartAttributes,
        attributes.SavepointScheduleAttributes,
    )
    for option in model.model_fields
    if _IS_TIME.search(option) and option not in _COUNTS
]


@pytest.mark.parametrize(("model", "option"), _YAML)
@pytest.mark.parametrize("number", [30, 1.5, 0])
def test_yaml_refuses_a_bare_number(model: Any, option: str, number: float) -> None:
    needed = {"type": "none"} if model is attributes.RestartAttributes else {"cron_schedule": "* * * * *", "name": "n"}
    needed = {} if model is attributes.CheckpointAttributes else needed
    with pytest.raises(ValidationError, match=option):
        model(**needed, **{option: number})


def test_flinks_keys_keep_flinks_milliseconds() -> None:
    flink = Configuration({"execution.checkpointing.interval": 30_000, "execution.checkpointing.timeout": "60000"})
    config = flink.checkpoint_config(CheckpointConfig())
    assert (config.interval, config.timeout) == (timedelta(seconds=30), timedelta(minutes=1))
    written = config.model_dump(mode="json")
    assert (written["interval"], written["timeout"]) == ("30 s", "1 min"), "what is stored has its unit"


@pytest.mark.parametrize("number", [-1, -10])
def test_fewer_restarts_than_none_are_refused(number: int) -> None:
    with pytest.raises(InvalidConfiguration, match="most_restarts_per_hour"):
        checkpointed_streaming_asset(most_restarts_per_hour=number)
    checkpointed_streaming_asset(most_restarts_per_hour=0)
