from __future__ import annotations

import ast
import inspect
from datetime import timedelta
from typing import Any

import pytest

from dagster_ckpt.checkpoint.lease import Lease
from dagster_ckpt.config import checkpoint_config
from dagster_ckpt.config.checkpoint_config import (
    CheckpointConfig,
    CheckpointingMode,
    ExternalizedCheckpointCleanup,
    JobStatus,
)
from dagster_ckpt.errors import InvalidConfiguration


def test_defaults_are_safe() -> None:
    config = CheckpointConfig()
    assert config.interval == timedelta(minutes=1)
    assert config.mode is CheckpointingMode.EXACTLY_ONCE
    assert config.timeout == timedelta(minutes=10)
    assert config.min_pause == timedelta()
    assert config.max_concurrent_checkpoints == 1
    assert config.tolerable_failed_checkpoints == 3
    assert config.num_retained == 10
    assert not any(config.discards(status) for status in JobStatus)


def test_durations_in_every_spelling() -> None:
    config = CheckpointConfig(interval="10 s", timeout="5000 ms", min_pause=timedelta(seconds=1))
    assert (config.interval, config.timeout) == (timedelta(seconds=10), timedelta(seconds=5))
    assert config.model_dump(mode="json")["interval"] == "10 s"
    assert CheckpointConfig(**config.model_dump(mode="json")) == config


def test_a_number_and_a_misspelt_option_are_refused_by_a_type_checker_and_at_run_time() -> None:
    with pytest.raises(InvalidConfiguration, match=r"timeout: 5000 has no unit: .* '5000 s'"):
        CheckpointConfig(timeout=5000)  # type: ignore[arg-type]
    with pytest.raises(InvalidConfiguration, match="intervall"):
        CheckpointConfig(intervall="10 s")  # type: ignore[call-arg]


def test_a_type_checker_knows_every_option() -> None:
    tree = ast.parse(inspect.getsource(checkpoint_config))
    declared = next(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "__init__")
    assert [argument.arg for argument in declared.args.kwonlyargs] == list(CheckpointConfig.model_fields)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("interval", "9 ms"),
        ("interval", "often"),
        ("timeout", "9 ms"),
        ("min_pause", timedelta(milliseconds=-1)),
        ("aligned_checkpoint_timeout", timedelta(milliseconds=-1)),
        ("max_concurrent_checkpoints", 0),
        ("tolerable_failed_checkpoints", -1),
        ("num_retained", 0),
        ("retain_for", "0 s"),
        ("retain_every", 0),
        ("mode", "MAYBE_ONCE"),
        ("cleanup", "SOMETIMES"),
        ("intervall", "10 s"),
        ("heartbeat_interval", "11 s"),
        ("heartbeat_interval", "0 s"),
        ("heartbeat_timeout", "2.9 s"),
        ("heartbeat_timeout", "61 min"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(option: str, value: Any) -> None:
    with pytest.raises(InvalidConfiguration, match=option) as raised:
        CheckpointConfig(**{option: value})
    assert "'10 s'" in raised.value.hint


def test_ten_milliseconds_is_the_shortest_interval() -> None:
    assert CheckpointConfig(interval="10 ms").interval == timedelta(milliseconds=10)
    with pytest.raises(InvalidConfiguration, match="larger than or equal to 10 ms"):
        CheckpointConfig(interval="9.9 ms")


def test_a_lease_of_less_than_three_heartbeats_is_refused_with_what_to_set() -> None:
    with pytest.raises(InvalidConfiguration, match="set heartbeat_interval to at most 1666 ms"):
        CheckpointConfig(heartbeat_timeout="5 s")
    config = CheckpointConfig(heartbeat_timeout="5 s", heartbeat_interval="1666 ms")
    assert Lease.of(config) == Lease(1.666, 5.0)
    assert Lease.of(CheckpointConfig()) == Lease() == Lease(2.0, 30.0)


def test_unaligned_excludes_concurrency() -> None:
    options: dict[str, Any] = {"unaligned": True, "max_concurrent_checkpoints": 2}
    with pytest.raises(InvalidConfiguration, match="can't be > 1 if unaligned"):
        CheckpointConfig(**options)
    assert CheckpointConfig(unaligned=True).unaligned


def test_a_config_is_a_value() -> None:
    with pytest.raises(ValueError, match="frozen"):
        CheckpointConfig().num_retained = 3  # type: ignore[misc]


def test_the_interval_is_never_shorter_than_the_pause() -> None:
    for interval, pause in (("10 ms", "50 ms"), ("50 ms", "10 ms")):
        assert CheckpointConfig(interval=interval, min_pause=pause).effective_interval == timedelta(milliseconds=50)


def test_a_pause_is_cut_to_365_days_and_raises_the_interval_no_further() -> None:
    config = CheckpointConfig(min_pause="366 d")
    assert config.min_pause == timedelta(days=366), "what was set can be read again"
    assert config.effective_min_pause == config.effective_interval == timedelta(days=365)
    assert config.warnings == ("min_pause is cut from 366 to 365 days.",)
    assert CheckpointConfig(min_pause="365 d").warnings == ()


@pytest.mark.parametrize(
    ("mode", "unaligned", "timeout", "waits"),
    [
        ("EXACTLY_ONCE", False, 0, None),
        ("EXACTLY_ONCE", False, 30, timedelta(milliseconds=30)),
        ("EXACTLY_ONCE", True, 0, timedelta()),
        ("EXACTLY_ONCE", True, 30, timedelta(milliseconds=30)),
        ("AT_LEAST_ONCE", False, 0, None),
        ("AT_LEAST_ONCE", False, 30, None),
        ("AT_LEAST_ONCE", True, 0, None),
        ("AT_LEAST_ONCE", True, 30, None),
    ],
)
def test_unaligned_is_effective_under_exactly_once_only(
    mode: CheckpointingMode, unaligned: bool, timeout: int, waits: timedelta | None
) -> None:
    config = CheckpointConfig(mode=mode, unaligned=unaligned, aligned_checkpoint_timeout=f"{timeout} ms")
    assert config.unaligned is unaligned, "it is not refused, and can be read again"
    assert config.effective_unaligned is (unaligned and mode == "EXACTLY_ONCE")
    assert config.longest_alignment == waits
    ignored = mode == "AT_LEAST_ONCE" and (unaligned or timeout > 0)
    assert [("unaligned" if unaligned else "aligned_checkpoint_timeout") in text for text in config.warnings] == (
        [True] if ignored else []
    )


@pytest.mark.parametrize(("given", "borne"), [(0, 0), (7, 7), (2_147_483_647, None), (None, None)])
def test_failures_may_be_tolerated_without_limit(given: int | None, borne: int | None) -> None:
    config = CheckpointConfig(tolerable_failed_checkpoints=given)
    assert config.tolerable_failed_checkpoints == given
    assert config.tolerable_failures == borne


_CLEANUP = ExternalizedCheckpointCleanup
#: What is deleted when, in Flink (reference §1.4); SUSPENDED as with high availability, where it deletes nothing.
_FLINK = {
    _CLEANUP.NO_EXTERNALIZED_CHECKPOINTS: {"FINISHED", "CANCELED", "FAILED"},
    _CLEANUP.DELETE_ON_CANCELLATION: {"FINISHED", "CANCELED"},
    _CLEANUP.RETAIN_ON_CANCELLATION: {"FINISHED"},
}


@pytest.mark.parametrize("cleanup", _CLEANUP)
@pytest.mark.parametrize("retain_on_success", [True, False])
def test_what_is_deleted_when(cleanup: ExternalizedCheckpointCleanup, retain_on_success: bool) -> None:
    config = CheckpointConfig(cleanup=cleanup, retain_on_success=retain_on_success)
    expected = _FLINK[cleanup] - ({"FINISHED"} if retain_on_success else set())
    assert {status.value for status in JobStatus if config.discards(status)} == expected
    assert set(config.discarded_when().split(", ")) == {"SUBSUMED", *expected}
