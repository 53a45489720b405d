from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_ckpt import CheckpointConfig
from dagster_ckpt.clock import SystemClock, iso
from dagster_ckpt.config.configuration import Configuration
from dagster_ckpt.config.quantities import LONGEST_DURATION, format_duration, milliseconds, parse_duration
from dagster_ckpt.errors import InvalidConfiguration

whole_milliseconds = st.integers(0, 10**12).map(lambda value: timedelta(milliseconds=value))


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("10 s", 10),
        ("10s", 10),
        ("500 ms", 0.5),
        ("1 min 30 s", 90),
        ("1min30s", 90),
        (" 2 h ", 7200),
        ("1.5 h", 5400),
        ("1 D", 86400),
        ("3 MINUTES", 180),
        ("0 ms", 0),
        (timedelta(seconds=3), 3),
    ],
)
def test_what_people_write(written: object, seconds: float) -> None:
    assert parse_duration(written).total_seconds() == seconds


@pytest.mark.parametrize(
    "written", ["", " ", "10", "s", "10 parsecs", "10 s and more", "-1 s", "1,5 h", "10 s 5", True, None, b"1 s"]
)
def test_what_is_no_duration_is_named(written: object) -> None:
    with pytest.raises(ValueError, match="is not a duration") as raised:
        parse_duration(written)
    assert repr(written) in str(raised.value)
    assert "'10 s'" in str(raised.value)


@pytest.mark.parametrize("written", ["36501 d", "999999999999 d", "9" * 400 + " s", timedelta.min])
def test_a_duration_too_long_is_refused(written: object) -> None:
    with pytest.raises(ValueError, match="longer than 36500 d, the longest duration"):
        parse_duration(written)


def test_without_end_is_the_longest() -> None:
    assert parse_duration(timedelta.max) == LONGEST_DURATION
    assert CheckpointConfig(retain_for=timedelta.max).retain_for == LONGEST_DURATION


@pytest.mark.parametrize("given", ["40000 d", "9223372036854775807", 10**18])
def test_a_key_of_flink_tells_the_longest(given: object) -> None:
    with pytest.raises(InvalidConfiguration, match="longer than 36500 d, the longest duration"):
        Configuration({"execution.checkpointing.interval": given})


@pytest.mark.parametrize("number", [10**18, -(10**18)])
def test_milliseconds_of_flink_may_be_too_many(number: int) -> None:
    assert milliseconds(250) == timedelta(seconds=0.25)
    with pytest.raises(ValueError, match="longer than 36500 d, the longest duration"):
        milliseconds(number)


@given(st.timedeltas() | st.timedeltas(-2 * LONGEST_DURATION, 2 * LONGEST_DURATION))
def test_every_duration_can_be_waited_for_and_has_an_end(value: timedelta) -> None:
    try:
        parse_duration(value)
    except ValueError:
        assert abs(value) > LONGEST_DURATION
        return
    # A delay may have so much jitter again. The lock is free, and refuses what it could not wait for.
    assert threading.Lock().acquire(timeout=2 * abs(value.total_seconds()))
    assert iso(SystemClock().time() + value.total_seconds())


def test_a_job_that_may_fail_for_longer_than_any_calendar_lasts_is_never_late() -> None:
    config = CheckpointConfig(interval=LONGEST_DURATION, tolerable_failed_checkpoints=10**9)
    assert config.longest_without_checkpoint is None


@given(whole_milliseconds)
def test_formatted_text_is_read_back(value: timedelta) -> None:
    assert parse_duration(format_duration(value)) == value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (timedelta(), "0 ms"),
        (timedelta(milliseconds=1500), "1500 ms"),
        (timedelta(seconds=90), "90 s"),
        (timedelta(minutes=10), "10 min"),
        (timedelta(hours=48), "2 d"),
    ],
)
def test_formatted_text_is_short(value: timedelta, text: str) -> None:
    assert format_duration(value) == text


@given(st.text(max_size=12))
def test_any_text_is_a_duration_or_a_value_error(text: str) -> None:
    try:
        assert parse_duration(text) >= timedelta()
    except ValueError as error:
        assert "is not a duration" in str(error)  # noqa: PT017 - either outcome is right
