"""PyFlink's getters and setters over the configuration that a job takes."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from dagster_ckpt.config import checkpoint_config as ours
from dagster_ckpt.config.checkpoint_config import JobStatus
from dagster_ckpt.datastream import (
    CheckpointConfig,
    CheckpointingMode,
    Configuration,
    ExternalizedCheckpointCleanup,
    ExternalizedCheckpointRetention,
    FileSystemCheckpointStorage,
    FlinkDifference,
    JobManagerCheckpointStorage,
)
from dagster_ckpt.errors import InvalidConfiguration


@pytest.fixture
def config() -> CheckpointConfig:
    return CheckpointConfig()


def test_defaults_are_flinks(config: CheckpointConfig) -> None:
    assert not config.is_checkpointing_enabled()
    assert config.get_checkpoint_interval() == -1
    assert config.get_checkpointing_mode() is CheckpointingMode.EXACTLY_ONCE is CheckpointConfig.DEFAULT_MODE
    assert config.get_checkpoint_timeout() == 600_000 == CheckpointConfig.DEFAULT_TIMEOUT
    assert config.get_min_pause_between_checkpoints() == 0 == CheckpointConfig.DEFAULT_MIN_PAUSE_BETWEEN_CHECKPOINTS
    assert config.get_max_concurrent_checkpoints() == 1 == CheckpointConfig.DEFAULT_MAX_CONCURRENT_CHECKPOINTS
    assert config.get_tolerable_checkpoint_failure_number() == 0
    assert config.is_fail_on_checkpointing_errors()
    assert not config.is_externalized_checkpoints_enabled()
    assert config.get_externalized_checkpoint_cleanup() is None
    assert not config.is_unaligned_checkpoints_enabled()
    assert not config.is_force_unaligned_checkpoints()
    assert config.get_aligned_checkpoint_timeout() == timedelta()
    assert config.get_checkpoint_storage() is None


def test_the_job_gets_flinks_defaults_too(config: CheckpointConfig) -> None:
    job = config.to_config()
    assert job.interval is None
    assert job.num_retained == 1
    assert job.tolerable_failed_checkpoints == 0
    assert all(job.discards(status) for status in (JobStatus.FINISHED, JobStatus.CANCELED, JobStatus.FAILED))


def test_numbers_are_flinks() -> None:
    assert [mode.value for mode in CheckpointingMode] == [0, 1]
    assert list(CheckpointingMode) == [0, 1], "PyFlink 1.10's are plain numbers"
    assert [(cleanup.name, cleanup.value) for cleanup in ExternalizedCheckpointRetention] == [
        ("DELETE_ON_CANCELLATION", 0),
        ("RETAIN_ON_CANCELLATION", 1),
        ("NO_EXTERNALIZED_CHECKPOINTS", 2),
    ]


def test_each_setter_is_read_by_its_getter_and_by_the_job(config: CheckpointConfig) -> None:
    config.set_checkpoint_interval(1_000).set_checkpoint_timeout(60_000).set_min_pause_between_checkpoints(500)
    config.set_checkpointing_mode(CheckpointingMode.AT_LEAST_ONCE).set_max_concurrent_checkpoints(2)
    config.set_tolerable_checkpoint_failure_number(3)
    assert config.is_checkpointing_enabled()
    assert config.get_checkpoint_interval() == 1_000
    assert config.get_checkpoint_timeout() == 60_000
    assert config.get_min_pause_between_checkpoints() == 500
    assert config.get_checkpointing_mode() is CheckpointingMode.AT_LEAST_ONCE
    assert config.get_max_concurrent_checkpoints() == 2
    assert config.get_tolerable_checkpoint_failure_number() == 3
    assert not config.is_fail_on_checkpointing_errors()
    assert config.to_config() == ours.CheckpointConfig(
        interval="1 s",
        timeout="1 min",
        min_pause="500 ms",
        mode=ours.CheckpointingMode.AT_LEAST_ONCE,
        max_concurrent_checkpoints=2,
        tolerable_failed_checkpoints=3,
        cleanup=ours.ExternalizedCheckpointCleanup.NO_EXTERNALIZED_CHECKPOINTS,
        retain_on_success=False,
        num_retained=1,
    )


def test_a_mode_may_be_flinks_number_or_our_own_member(config: CheckpointConfig) -> None:
    config.set_checkpointing_mode(1)  # type: ignore[arg-type]  # PyFlink 1.10's constants
    assert config.get_checkpointing_mode() is CheckpointingMode.AT_LEAST_ONCE
    config.set_checkpointing_mode(ours.CheckpointingMode.EXACTLY_ONCE)  # type: ignore[arg-type]
    assert config.get_checkpointing_mode() is CheckpointingMode.EXACTLY_ONCE
    for wrong in (2, None, "twice", False):
        with pytest.raises(InvalidConfiguration, match=r"CheckpointingMode\.AT_LEAST_ONCE"):
            config.set_checkpointing_mode(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("setter", "value", "said"),
    [
        ("set_checkpoint_interval", 9, "interval: .*10 ms"),
        ("set_checkpoint_interval", -1, "interval: .*10 ms"),
        ("set_checkpoint_interval", -(10**30), "interval: .*10 ms"),
        ("set_checkpoint_interval", 10**30, "interval: .* is longer than 36500 d"),
        ("set_checkpoint_timeout", 9, "timeout: .*10 ms"),
        ("set_min_pause_between_checkpoints", -1, "min_pause: .*zero or positive"),
        ("set_max_concurrent_checkpoints", 0, "max_concurrent_checkpoints: .*greater than or equal to 1"),
        ("set_tolerable_checkpoint_failure_number", -1, "tolerable_failed_checkpoints: .*greater than or equal to 0"),
        ("set_aligned_checkpoint_timeout", -1, "aligned_checkpoint_timeout: .*zero or positive"),
        ("enable_externalized_checkpoints", None, "ExternalizedCheckpointRetention"),
    ],
)
def test_a_value_out_of_range_is_refused_at_once(
    config: CheckpointConfig, setter: str, value: object, said: str
) -> None:
    before = config.to_config()
    with pytest.raises(InvalidConfiguration, match=said):
        getattr(config, setter)(value)
    assert config.to_config() == before


def test_values_that_exclude_each_other_are_found_when_the_job_is_built(config: CheckpointConfig) -> None:
    config.set_max_concurrent_checkpoints(2).enable_unaligned_checkpoints()
    assert config.is_unaligned_checkpoints_enabled()
    with pytest.raises(InvalidConfiguration, match="unaligned"):
        config.to_config()
    config.disable_unaligned_checkpoints()
    assert not config.is_unaligned_checkpoints_enabled()
    assert config.to_config().max_concurrent_checkpoints == 2


class TestFailOnCheckpointingErrors:
    def test_false_bears_any_number_and_true_none(self, config: CheckpointConfig) -> None:
        config.set_fail_on_checkpointing_errors(False)
        assert not config.is_fail_on_checkpointing_errors()
        assert config.get_tolerable_checkpoint_failure_number() == 2_147_483_647
        assert config.to_config().tolerable_failures is None
        config.set_fail_on_checkpointing_errors(True)
        assert config.is_fail_on_checkpointing_errors()
        assert config.to_config().tolerable_failures == 0

    def test_a_tolerable_number_wins_over_it(self, config: CheckpointConfig) -> None:
        config.set_tolerable_checkpoint_failure_number(2)
        with pytest.warns(FlinkDifference, match="set to 2 already"):
            config.set_fail_on_checkpointing_errors(True)
        assert config.get_tolerable_checkpoint_failure_number() == 2


class TestAlignment:
    @pytest.mark.parametrize("value", [timedelta(seconds=2), 2_000])
    def test_both_names_of_the_timeout(self, config: CheckpointConfig, value: timedelta | int) -> None:
        config.set_alignment_timeout(value)
        assert config.get_alignment_timeout() == timedelta(seconds=2)
        assert config.get_aligned_checkpoint_timeout() == timedelta(seconds=2)
        assert config.to_config().aligned_checkpoint_timeout == timedelta(seconds=2)

    def test_there_is_nothing_to_force(self, config: CheckpointConfig) -> None:
        with pytest.warns(FlinkDifference, match="iterations"):
            config.set_force_unaligned_checkpoints()
        assert config.is_force_unaligned_checkpoints()
        config.set_force_unaligned_checkpoints(force_unaligned_checkpoints=False)
        assert not config.is_force_unaligned_checkpoints()


@pytest.mark.parametrize(
    ("cleanup", "externalized", "deleted"),
    [
        (ExternalizedCheckpointRetention.DELETE_ON_CANCELLATION, True, {JobStatus.CANCELED}),
        (ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION, True, set()),
        (ExternalizedCheckpointRetention.NO_EXTERNALIZED_CHECKPOINTS, False, {JobStatus.CANCELED, JobStatus.FAILED}),
    ],
)
def test_externalized_checkpoints(
    config: CheckpointConfig, cleanup: ExternalizedCheckpointRetention, externalized: bool, deleted: set[JobStatus]
) -> None:
    assert config.get_externalized_checkpoint_retention() is None
    assert config.set_externalized_checkpoint_retention(cleanup) is config
    assert config.get_externalized_checkpoint_retention() is cleanup
    assert config.is_externalized_checkpoints_enabled() is externalized
    job = config.to_config()
    assert {status for status in (JobStatus.CANCELED, JobStatus.FAILED) if job.discards(status)} == deleted
    assert job.discards(JobStatus.FINISHED), "Flink keeps nothing of a job that finishes"
    for older in ("enable_externalized_checkpoints", "set_externalized_checkpoint_cleanup"):
        same = getattr(CheckpointConfig(), older)(getattr(ExternalizedCheckpointCleanup, cleanup.name))
        assert same.to_config() == job
        assert same.get_externalized_checkpoint_cleanup() is cleanup


def test_a_recovery_is_from_checkpoints_unless_savepoints_are_to_count(config: CheckpointConfig) -> None:
    assert config.is_prefer_checkpoint_for_recovery()
    assert config.to_config().prefer_checkpoint_for_recovery
    assert config.set_prefer_checkpoint_for_recovery(False) is config
    assert not config.is_prefer_checkpoint_for_recovery()
    assert not config.to_config().prefer_checkpoint_for_recovery
    assert config.set_prefer_checkpoint_for_recovery(True).is_prefer_checkpoint_for_recovery()
    config.configure(Configuration({"execution.checkpointing.prefer-checkpoint-for-recovery": "false"}))
    assert not config.is_prefer_checkpoint_for_recovery()


def test_a_warning_points_at_the_users_line(config: CheckpointConfig) -> None:
    with pytest.warns(FlinkDifference) as told:
        config.set_force_unaligned_checkpoints(True)
    assert [warning.filename for warning in told] == [__file__]


class TestStorage:
    def test_it_is_returned_as_it_was_set(self, config: CheckpointConfig) -> None:
        storage = JobManagerCheckpointStorage()
        assert config.set_checkpoint_storage(storage).get_checkpoint_storage() is storage

    def test_a_directory_is_short_for_files(self, config: CheckpointConfig, tmp_path: Path) -> None:
        storage = config.set_checkpoint_storage_dir(f"file://{tmp_path}/").get_checkpoint_storage()
        assert isinstance(storage, FileSystemCheckpointStorage)
        assert storage.get_checkpoint_path() == f"file://{tmp_path}"

    def test_anything_else_is_refused(self, config: CheckpointConfig) -> None:
        for wrong in (None, "/checkpoints", JobManagerCheckpointStorage().resource):
            with pytest.raises(TypeError, match=r"CustomCheckpointStorage.*set_checkpoint_storage_dir"):
                config.set_checkpoint_storage(wrong)  # type: ignore[arg-type]


class TestStringKeys:
    def test_they_come_first_and_setters_win(self, config: CheckpointConfig) -> None:
        config.configure(
            Configuration(
                {
                    "execution.checkpointing.interval": "10 s",
                    "execution.checkpointing.timeout": "1 min",
                    "execution.checkpointing.num-retained": 4,
                    "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
                }
            )
        )
        assert config.get_checkpoint_interval() == 10_000
        assert config.get_externalized_checkpoint_cleanup() is ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION
        assert config.to_config().num_retained == 4
        config.set_checkpoint_interval(20_000)
        assert (config.get_checkpoint_interval(), config.get_checkpoint_timeout()) == (20_000, 60_000)

    def test_without_them_checkpointing_stays_off(self, config: CheckpointConfig) -> None:
        config.configure(Configuration({}))
        assert config.get_checkpoint_interval() == -1
