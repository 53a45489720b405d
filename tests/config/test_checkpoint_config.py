from __future__ import annotations

from datetime import timedelta
from itertools import product
from typing import Any

import pytest

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
    config = CheckpointConfig(interval="10 s", timeout=5000, min_pause=timedelta(seconds=1))
    assert (config.interval, config.timeout) == (timedelta(seconds=10), timedelta(seconds=5))
    assert config.model_dump(mode="json")["interval"] == "10 s"
    assert CheckpointConfig(**config.model_dump(mode="json")) == config


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("interval", 9),
        ("interval", "9 ms"),
        ("interval", "often"),
        ("timeout", 9),
        ("min_pause", timedelta(milliseconds=-1)),
        ("aligned_checkpoint_timeout", timedelta(milliseconds=-1)),
        ("max_concurrent_checkpoints", 0),
        ("tolerable_failed_checkpoints", -1),
        ("num_retained", 0),
        ("retain_for", 0),
        ("retain_every", 0),
        ("mode", "MAYBE_ONCE"),
        ("cleanup", "SOMETIMES"),
        ("intervall", "10 s"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(option: str, value: object) -> None:
    with pytest.raises(InvalidConfiguration, match=option) as raised:
        CheckpointConfig(**{option: value})
    assert "'10 s'" in raised.value.hint


def test_ten_milliseconds_is_the_shortest_interval() -> None:
    assert CheckpointConfig(interval=10).interval == timedelta(milliseconds=10)
    with pytest.raises(InvalidConfiguration, match="larger than or equal to 10 ms"):
        CheckpointConfig(interval="9.9 ms")


def test_unaligned_excludes_concurrency() -> None:
    options: dict[str, Any] = {"unaligned": True, "max_concurrent_checkpoints": 2}
    with pytest.raises(InvalidConfiguration, match="can't be > 1 if unaligned"):
        CheckpointConfig(**options)
    assert CheckpointConfig(unaligned=True).unaligned


def test_a_config_is_a_value() -> None:
    with pytest.raises(ValueError, match="frozen"):
        CheckpointConfig().num_retained = 3  # type: ignore[misc]


def test_the_interval_is_never_shorter_than_the_pause() -> None:
    for options in ({"interval": 10, "min_pause": 50}, {"interval": 50, "min_pause": 10}):
        assert CheckpointConfig(**options).effective_interval == timedelta(milliseconds=50)


def test_every_end_of_a_job_under_every_policy() -> None:
    """The table of Flink (reference §1.4); success is the user's own choice here, suspension never deletes."""
    discards = {
        (ExternalizedCheckpointCleanup.NO_EXTERNALIZED_CHECKPOINTS, JobStatus.CANCELED): True,
        (ExternalizedCheckpointCleanup.NO_EXTERNALIZED_CHECKPOINTS, JobStatus.FAILED): True,
        (ExternalizedCheckpointCleanup.DELETE_ON_CANCELLATION, JobStatus.CANCELED): True,
        (ExternalizedCheckpointCleanup.DELETE_ON_CANCELLATION, JobStatus.FAILED): False,
        (ExternalizedCheckpointCleanup.RETAIN_ON_CANCELLATION, JobStatus.CANCELED): False,
        (ExternalizedCheckpointCleanup.RETAIN_ON_CANCELLATION, JobStatus.FAILED): False,
    }
    for cleanup, keep in product(ExternalizedCheckpointCleanup, (True, False)):
        config = CheckpointConfig(cleanup=cleanup, retain_on_success=keep)
        assert config.discards(JobStatus.FINISHED) is not keep
        assert config.discards(JobStatus.SUSPENDED) is False
        for status in (JobStatus.CANCELED, JobStatus.FAILED):
            assert config.discards(status) is discards[cleanup, status]
