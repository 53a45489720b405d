"""What ``pyflink.common`` has: configurations that are set key by key, durations, and execution configs as values."""

from __future__ import annotations

import copy
import pickle
from datetime import timedelta

import pytest

from dagster_ckpt import config
from dagster_ckpt.datastream import CheckpointConfig, Configuration, Duration, ExecutionConfig
from dagster_ckpt.errors import InvalidConfiguration

INTERVAL = "execution.checkpointing.interval"
RETAINED = "execution.checkpointing.num-retained"
OLD_RETAINED = "state.checkpoints.num-retained"
FACTOR = "restart-strategy.exponential-delay.jitter-factor"
UNALIGNED = "execution.checkpointing.unaligned.enabled"


class TestConfiguration:
    def test_what_is_set_key_by_key_is_what_a_job_gets(self) -> None:
        found = Configuration()
        assert found.set_string(INTERVAL, "3 s").set_integer(RETAINED, 4).set_boolean(UNALIGNED, True) is found
        found.set_string("restart-strategy.type", "exponential-delay").set_float(FACTOR, 0.5)
        assert (found.get_string(INTERVAL, "none"), found.get_integer(RETAINED, 1)) == ("3 s", 4)
        assert (found.get_boolean(UNALIGNED, False), found.get_float(FACTOR, 0.1)) == (True, 0.5)
        given = {INTERVAL: "3 s", RETAINED: "4", UNALIGNED: "true"}
        given |= {"restart-strategy.type": "exponential-delay", FACTOR: "0.5"}
        assert found.to_dict() == given
        assert found.key_set() == set(given)
        assert found == config.Configuration(given), "and the one of the Dagster API is equal"
        taken = CheckpointConfig()
        taken.configure(found)
        assert (taken.get_checkpoint_interval(), taken.to_config().num_retained) == (3000, 4)

    def test_what_is_not_set_is_the_default(self) -> None:
        found = Configuration()
        assert found.get_string(INTERVAL, "none") == "none"
        assert found.get_integer(RETAINED, 7) == 7
        assert found.get_float(FACTOR, 2) == 2.0
        assert found.get_boolean(UNALIGNED, True)
        assert not found.contains_key(INTERVAL)
        assert found.to_dict() == {}

    def test_a_key_has_one_value_whatever_its_spelling(self) -> None:
        found = Configuration({OLD_RETAINED: "2"})
        assert found.get_integer(RETAINED, 1) == 2
        found.set_integer(RETAINED, 3)
        assert found.to_dict() == {RETAINED: "3"}
        assert found.get_integer(OLD_RETAINED, 1) == 3
        assert found.contains_key(OLD_RETAINED)

    @pytest.mark.parametrize(("key", "value"), [("exection.checkpointing.interval", "3 s"), (INTERVAL, "soon")])
    def test_what_cannot_be_used_is_refused_and_changes_nothing(self, key: str, value: str) -> None:
        found = Configuration({INTERVAL: "1 s"})
        with pytest.raises(InvalidConfiguration, match=key):
            found.set_string(key, value)
        assert found.to_dict() == {INTERVAL: "1 s"}

    def test_a_value_of_another_kind_is_refused_by_its_key(self) -> None:
        found = Configuration({INTERVAL: "3 s"})
        with pytest.raises(InvalidConfiguration, match=f"{INTERVAL} = '3 s' is not a whole number"):
            found.get_integer(INTERVAL, 1)
        with pytest.raises(InvalidConfiguration, match="is not true or false"):
            found.get_boolean(INTERVAL, False)

    def test_all_of_another_go_over_it(self) -> None:
        found, target = Configuration({INTERVAL: "1 s", OLD_RETAINED: "2"}), {"mine": "stays"}
        found.add_all(Configuration({RETAINED: "5"}))
        found.add_all_to_dict(target)
        assert target == {"mine": "stays", INTERVAL: "1 s", RETAINED: "5"}
        assert found.remove_config(INTERVAL)
        assert not found.remove_config(INTERVAL)
        assert found.to_dict() == {RETAINED: "5"}

    def test_a_copy_is_its_own(self) -> None:
        first = Configuration({INTERVAL: "1 s"})
        for other in (Configuration(first), copy.deepcopy(first), pickle.loads(pickle.dumps(first))):
            assert other == first
            assert hash(other) == hash(first)
            assert other.set_string(INTERVAL, "2 s") != first
        assert first.to_dict() == {INTERVAL: "1 s"}


class TestDuration:
    @pytest.mark.parametrize(
        ("found", "expected"),
        [
            (Duration.of_days(2), timedelta(days=2)),
            (Duration.of_hours(3), timedelta(hours=3)),
            (Duration.of_minutes(4), timedelta(minutes=4)),
            (Duration.of_seconds(5), timedelta(seconds=5)),
            (Duration.of_millis(6), timedelta(milliseconds=6)),
            (Duration.of_nanos(7000), timedelta(microseconds=7)),
        ],
        ids=str,
    )
    def test_it_is_a_length_of_time(self, found: Duration, expected: timedelta) -> None:
        assert found == expected
        assert pickle.loads(pickle.dumps(found)) == found

    def test_less_than_a_microsecond_is_refused(self) -> None:
        with pytest.raises(InvalidConfiguration, match="1500 ns"):
            Duration.of_nanos(1500)

    @pytest.mark.parametrize("unit", ["days", "hours", "minutes", "seconds", "millis"])
    def test_more_than_python_can_count_is_refused(self, unit: str) -> None:
        with pytest.raises(InvalidConfiguration, match=f"{10**20} {unit}"):
            getattr(Duration, f"of_{unit}")(10**20)

    def test_a_setter_takes_one_and_the_getter_returns_one(self) -> None:
        found = CheckpointConfig().set_aligned_checkpoint_timeout(Duration.of_seconds(90))
        assert found.get_aligned_checkpoint_timeout() == Duration.of_minutes(1) + timedelta(seconds=30)
        assert isinstance(found.get_alignment_timeout(), Duration)
        assert found.to_config().aligned_checkpoint_timeout == timedelta(seconds=90)


class TestExecutionConfig:
    def test_equal_ones_are_equal(self) -> None:
        one, other = ExecutionConfig().set_parallelism(4), ExecutionConfig().set_parallelism(4)
        assert one == other
        assert hash(one) == hash(other)

    @pytest.mark.filterwarnings("ignore:set_auto_watermark_interval")
    def test_each_setting_counts(self) -> None:
        made = [
            ExecutionConfig(),
            ExecutionConfig().set_parallelism(4),
            ExecutionConfig().set_max_parallelism(4),
            ExecutionConfig().set_auto_watermark_interval(4),
        ]
        assert len(set(made)) == len(made)
        assert made[0] != "an ExecutionConfig"

    @pytest.mark.parametrize("parallelism", [0, -2, 2**31])
    def test_a_parallelism_that_spark_cannot_have_is_refused(self, parallelism: int) -> None:
        assert ExecutionConfig().set_parallelism(2**31 - 1).partitions == 2**31 - 1
        with pytest.raises(InvalidConfiguration, match=f"not {parallelism}"):
            ExecutionConfig().set_parallelism(parallelism)
