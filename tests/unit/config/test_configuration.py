from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_ckpt.config.checkpoint_config import CheckpointConfig, CheckpointingMode, ExternalizedCheckpointCleanup
from dagster_ckpt.config.configuration import CONFIGURATION_OPTIONS, Configuration
from dagster_ckpt.config.option_types import Place
from dagster_ckpt.config.recovery import RecoveryClaimMode
from dagster_ckpt.config.restart import (
    ExponentialDelayRestart,
    FailureRateRestart,
    FixedDelayRestart,
    NoRestart,
    RestartStrategy,
)
from dagster_ckpt.errors import InvalidConfiguration

C, R, S = "execution.checkpointing.", "execution.state-recovery.", "restart-strategy."
SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)


def config_of(base: CheckpointConfig | None = None, /, **settings: Any) -> CheckpointConfig:
    keys = {C + name.replace("__", ".").replace("_", "-"): value for name, value in settings.items()}
    return Configuration(keys).checkpoint_config(base or CheckpointConfig())


class TestCheckpointConfig:
    @pytest.mark.parametrize(
        ("key", "text", "field", "value"),
        [
            ("interval", "10 s", "interval", 10 * SECOND),
            ("interval", "10000", "interval", 10 * SECOND),
            ("interval", 10000, "interval", 10 * SECOND),
            ("interval", timedelta(seconds=10), "interval", 10 * SECOND),
            ("mode", "at_least_once", "mode", CheckpointingMode.AT_LEAST_ONCE),
            ("timeout", "2min", "timeout", 2 * MINUTE),
            ("min-pause", "500ms", "min_pause", SECOND / 2),
            ("max-concurrent-checkpoints", "3", "max_concurrent_checkpoints", 3),
            ("tolerable-failed-checkpoints", "0", "tolerable_failed_checkpoints", 0),
            ("unaligned.enabled", "TRUE", "unaligned", True),
            ("unaligned.enabled", True, "unaligned", True),
            ("unaligned", "true", "unaligned", True),
            ("aligned-checkpoint-timeout", "30 s", "aligned_checkpoint_timeout", 30 * SECOND),
            ("alignment-timeout", "30 s", "aligned_checkpoint_timeout", 30 * SECOND),
            (
                "externalized-checkpoint-retention",
                "Delete_On_Cancellation",
                "cleanup",
                ExternalizedCheckpointCleanup.DELETE_ON_CANCELLATION,
            ),
            ("num-retained", "7", "num_retained", 7),
        ],
    )
    def test_what_is_set_goes_over_the_base_and_nothing_else(
        self, key: str, text: object, field: str, value: object
    ) -> None:
        base = CheckpointConfig(retain_for="3 d", timeout="7 min", num_retained=5)
        found = Configuration({C + key: text})
        assert found.checkpoint_config(base) == CheckpointConfig(**{**dict(base), field: value})
        assert found.warnings == ()

    def test_flinks_keys_of_the_lease(self) -> None:
        found = Configuration({"heartbeat.interval": "10000", "heartbeat.timeout": "50 s"})
        config = found.checkpoint_config(CheckpointConfig())
        assert (config.heartbeat_interval, config.heartbeat_timeout) == (10 * SECOND, 50 * SECOND)
        with pytest.raises(InvalidConfiguration, match=r"heartbeat.timeout = '5 s'.*at least 3 times"):
            Configuration({"heartbeat.timeout": "5 s"}).checkpoint_config(CheckpointConfig())

    def test_nothing_set_changes_nothing(self) -> None:
        base = CheckpointConfig(interval="3 s")
        assert Configuration().checkpoint_config(base) == base
        assert Configuration().restart_strategy() is None

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({f"{C}interval": "9 ms"}, f"{C}interval = '9 ms': must be larger than or equal to 10 ms."),
            ({f"{C}unaligned": "true", f"{C}max-concurrent-checkpoints": 2}, "can't be > 1 if unaligned"),
            ({f"{C}max-concurrent-checkpoints": "0"}, f"{C}max-concurrent-checkpoints = '0': Input should be greater"),
            ({f"{C}tolerable-failed-checkpoints": "-1"}, f"{C}tolerable-failed-checkpoints = '-1': "),
        ],
    )
    def test_the_rules_of_the_config_hold_and_the_key_is_named(self, settings: dict[str, Any], message: str) -> None:
        with pytest.raises(InvalidConfiguration) as raised:
            Configuration(settings).checkpoint_config(CheckpointConfig())
        assert message in raised.value.message
        assert all(key in raised.value.message for key in settings)
        assert raised.value.hint

    def test_a_value_that_excludes_one_of_the_base_is_refused(self) -> None:
        with pytest.raises(InvalidConfiguration, match=f"{C}unaligned.enabled = 'true'.*can't be > 1 if unaligned"):
            config_of(CheckpointConfig(max_concurrent_checkpoints=2), unaligned__enabled=True)

    def test_failures_without_limit_and_a_pause_that_is_cut(self) -> None:
        config = config_of(tolerable_failed_checkpoints=2_147_483_647, min_pause="400 d")
        assert config.tolerable_failures is None
        assert config.effective_min_pause == timedelta(days=365)

    @pytest.mark.parametrize("retained", ["0", "-3"])
    def test_fewer_than_one_retained_is_one_with_a_warning(self, retained: str) -> None:
        found = Configuration({f"{C}num-retained": retained})
        assert found.num_retained == 1
        assert found.checkpoint_config(CheckpointConfig()).num_retained == 1
        (warning,) = found.warnings
        assert f"{C}num-retained = '{retained}' is out of range, and 1 is used" in warning


class TestRestartStrategy:
    @pytest.mark.parametrize(
        ("name", "strategy"),
        [
            ("none", NoRestart()),
            ("off", NoRestart()),
            ("disable", NoRestart()),
            (False, NoRestart()),  # what YAML makes of off
            ("fixed-delay", FixedDelayRestart(1, SECOND)),
            ("fixeddelay", FixedDelayRestart(1, SECOND)),
            ("FixedDelay", FixedDelayRestart(1, SECOND)),
            ("failure-rate", FailureRateRestart(1, MINUTE, SECOND)),
            ("failurerate", FailureRateRestart(1, MINUTE, SECOND)),
            ("exponential-delay", ExponentialDelayRestart(SECOND, MINUTE, 1.5, 60 * MINUTE, 0.1, None)),
            ("exponentialdelay", ExponentialDelayRestart(SECOND, MINUTE, 1.5, 60 * MINUTE, 0.1, None)),
        ],
    )
    @pytest.mark.parametrize("key", [f"{S}type", "restart-strategy"])
    def test_by_every_name_with_flinks_defaults(self, key: str, name: object, strategy: RestartStrategy) -> None:
        assert Configuration({key: name}).restart_strategy() == strategy

    @pytest.mark.parametrize(
        ("name", "parameters", "strategy"),
        [
            ("fixed-delay", {"attempts": "5", "delay": "10 s"}, FixedDelayRestart(5, 10 * SECOND)),
            (
                "failure-rate",
                {"max-failures-per-interval": 3, "failure-rate-interval": "5 min", "delay": 2000},
                FailureRateRestart(3, 5 * MINUTE, 2 * SECOND),
            ),
            (
                "exponential-delay",
                {
                    "initial-backoff": "2 s",
                    "max-backoff": "3 min",
                    "backoff-multiplier": "2.5",
                    "reset-backoff-threshold": "10 min",
                    "jitter-factor": "0",
                    "attempts-before-reset-backoff": "8",
                },
                ExponentialDelayRestart(2 * SECOND, 3 * MINUTE, 2.5, 10 * MINUTE, 0.0, 8),
            ),
            (
                "exponential-delay",
                {"attempts-before-reset-backoff": "2147483647"},
                ExponentialDelayRestart(attempts_before_reset_backoff=None),
            ),
        ],
    )
    def test_with_parameters(self, name: str, parameters: dict[str, Any], strategy: RestartStrategy) -> None:
        found = Configuration({f"{S}type": name, **{f"{S}{name}.{key}": value for key, value in parameters.items()}})
        assert found.restart_strategy() == strategy
        assert found.warnings == ()
        assert found.checkpoint_config(CheckpointConfig()) == CheckpointConfig(), "both have an interval"

    def test_an_unknown_name_is_refused_with_those_that_are_known(self) -> None:
        with pytest.raises(InvalidConfiguration, match=f"{S}type = 'sometimes' cannot be read.*fixed-delay") as raised:
            Configuration({f"{S}type": "sometimes"})
        assert "exponentialdelay" in raised.value.message

    @pytest.mark.parametrize(
        ("name", "key", "value", "rule"),
        [
            ("fixed-delay", "attempts", "-1", "must be zero or positive"),
            ("failure-rate", "max-failures-per-interval", "0", "must be at least 1"),
            ("exponential-delay", "backoff-multiplier", "1", "must be greater than 1"),
            ("exponential-delay", "jitter-factor", "1.5", "must be between 0 and 1"),
            ("exponential-delay", "initial-backoff", "2 min", "must not exceed max backoff"),
        ],
    )
    def test_a_parameter_out_of_range_is_refused_at_once(self, name: str, key: str, value: str, rule: str) -> None:
        with pytest.raises(InvalidConfiguration, match=rule) as raised:
            Configuration({f"{S}type": name, f"{S}{name}.{key}": value})
        assert f"{S}{name}.{key} = '{value}'" in raised.value.message

    def test_parameters_of_another_strategy_have_no_effect_and_are_named(self) -> None:
        found = Configuration({f"{S}type": "none", f"{S}fixed-delay.attempts": 3})
        assert found.restart_strategy() == NoRestart()
        assert found.warnings == (f"{S}fixed-delay.attempts has no effect: {S}type is none.",)
        assert Configuration({f"{S}fixed-delay.attempts": 3}).warnings == (
            f"{S}fixed-delay.attempts has no effect: {S}type is not set.",
        )


class TestProperties:
    @pytest.mark.parametrize(
        ("key", "text", "name", "value"),
        [
            (f"{C}dir", "file:///data/checkpoints", "checkpoints_directory", "file:///data/checkpoints"),
            ("state.checkpoints.dir", "/data", "checkpoints_directory", "/data"),
            (f"{C}savepoint-dir", "/savepoints", "savepoints_directory", "/savepoints"),
            ("state.savepoints.dir", "/savepoints", "savepoints_directory", "/savepoints"),
            (f"{C}storage", "FileSystem", "checkpoint_storage", "filesystem"),
            (f"{C}storage", "jobmanager", "checkpoint_storage", "jobmanager"),
            ("state.checkpoint-storage", "my_package.Storage", "checkpoint_storage", "my_package.Storage"),
            (f"{C}storage", "my_package.storages:Vault", "checkpoint_storage", "my_package.storages:Vault"),
            (f"{C}data-inline-threshold", "20 kb", "inline_threshold", 20480),
            ("state.backend.fs.memory-threshold", "1024", "inline_threshold", 1024),
            (f"{C}write-buffer-size", "4096", "write_buffer_size", 4096),
            (f"{C}incremental", "true", "incremental", True),
            ("state.backend.incremental", "false", "incremental", False),
            ("state.checkpoints.num-retained", "4", "num_retained", 4),
            ("state.backend.type", "RocksDB", "state_backend", "rocksdb"),
            ("state.backend", "hashmap", "state_backend", "hashmap"),
            ("state.backend.type", "my_package.Backend", "state_backend", "my_package.Backend"),
            (f"{R}path", "/savepoints/savepoint-7d02f4-0b63c1a2f9d8", "restore_path", None),
            ("execution.savepoint.path", "/savepoints/savepoint-7d02f4-0b63c1a2f9d8", "restore_path", None),
            (f"{R}claim-mode", "no_claim", "claim_mode", RecoveryClaimMode.NO_CLAIM),
            (f"{R}claim-mode", "CLAIM", "claim_mode", RecoveryClaimMode.CLAIM),
        ],
    )
    def test_what_other_layers_take(self, key: str, text: str, name: str, value: object) -> None:
        assert getattr(Configuration({key: text}), name) == (text if value is None else value)
        assert getattr(Configuration(), name) is None

    def test_an_inline_threshold_beyond_its_limit_is_the_default_with_a_warning(self) -> None:
        assert Configuration({f"{C}data-inline-threshold": "1 mb"}).inline_threshold == 1 << 20
        found = Configuration({f"{C}data-inline-threshold": "1048577"})
        assert found.inline_threshold == 20480
        assert "is out of range, and 20480 is used" in found.warnings[0]


class TestKeys:
    def test_the_new_spelling_wins_with_a_warning(self) -> None:
        for keys in ([f"{C}dir", "state.checkpoints.dir"], ["state.checkpoints.dir", f"{C}dir"]):
            found = Configuration({key: f"/{key}" for key in keys})
            assert found.checkpoints_directory == f"/{C}dir"
            assert found.warnings == (f"state.checkpoints.dir has no effect: {C}dir is set as well.",)

    @pytest.mark.parametrize(
        ("key", "nearest"),
        [
            (f"{C}intervall", f"{C}interval"),
            (f"{C}unaligned.enable", f"{C}unaligned.enabled"),
            (f"{S}fixed-delay.attempt", f"{S}fixed-delay.attempts"),
            (f"{R}claimmode", f"{R}claim-mode"),
            ("state.backend.typ", "state.backend.type"),
        ],
    )
    def test_an_unknown_key_is_refused_with_the_nearest(self, key: str, nearest: str) -> None:
        with pytest.raises(InvalidConfiguration, match=f"{key} is not known here; .* is {nearest}[.]"):
            Configuration({key: "1"})

    @pytest.mark.parametrize("key", ["taskmanager.numberOfTaskSlots", "spark.driver.memory", "interval", "1"])
    def test_a_key_of_something_else_is_refused(self, key: str) -> None:
        with pytest.raises(InvalidConfiguration, match=f"{key} is no key of checkpoints") as raised:
            Configuration({key: "1"})
        assert "restart-strategy." in raised.value.message
        assert "SparkSessionResource" in raised.value.hint

    @pytest.mark.parametrize(
        ("key", "value", "allowed"),
        [
            (f"{C}interval", "often", "a duration such as '10 s'"),
            (f"{C}interval", "", "a duration"),
            (f"{C}interval", "1.5", "a duration"),
            (f"{C}mode", "maybe_once", "one of EXACTLY_ONCE, AT_LEAST_ONCE"),
            (f"{R}claim-mode", "LEGACY", "one of CLAIM, NO_CLAIM"),
            (f"{C}unaligned.enabled", "yes", "true or false"),
            (f"{C}num-retained", "3.0", "a whole number"),
            (f"{C}data-inline-threshold", "-1", "a size such as '20 kb'"),
            (f"{C}storage", "s3 bucket", "one of jobmanager, filesystem, or an import path"),
            (f"{C}dir", "  ", "a path or URL"),
            (f"{S}exponential-delay.jitter-factor", "nan", "a number"),
            (f"{S}exponential-delay.jitter-factor", "much", "a number"),
        ],
    )
    def test_a_value_that_cannot_be_read_is_named_with_its_key_and_what_is_allowed(
        self, key: str, value: str, allowed: str
    ) -> None:
        with pytest.raises(InvalidConfiguration) as raised:
            Configuration({key: value})
        assert f"{key} = {value!r} cannot be read: it must be {allowed}" in raised.value.message

    @pytest.mark.parametrize("value", [None, ["10 s"], object()])
    def test_a_value_that_is_no_scalar_is_refused(self, value: object) -> None:
        with pytest.raises(InvalidConfiguration, match=f"{C}interval = .* is no value"):
            Configuration({f"{C}interval": value})

    def test_everything_that_is_wrong_is_told_at_once(self) -> None:
        with pytest.raises(InvalidConfiguration) as raised:
            Configuration({f"{C}intervall": 1, f"{C}mode": "never", f"{C}create-subdir": False, "a.b": 1})
        for part in ("intervall is not known", "mode = 'never'", "create-subdir = 'false' is refused", "a.b is no key"):
            assert part in raised.value.message

    def test_keys_may_be_nested(self) -> None:
        nested = {"execution": {"checkpointing": {"interval": "3 s", "unaligned": {"enabled": True}}}}
        flat = Configuration({f"{C}interval": "3 s", f"{C}unaligned.enabled": "true"})
        assert Configuration(nested) == flat
        assert dict(Configuration(nested).settings) == {f"{C}interval": "3 s", f"{C}unaligned.enabled": "true"}

    def test_a_key_given_twice_is_refused(self) -> None:
        with pytest.raises(InvalidConfiguration, match=f"{C}interval is given twice"):
            Configuration({f"{C}interval": "1 s", "execution": {"checkpointing": {"interval": "2 s"}}})

    def test_a_configuration_is_a_value(self) -> None:
        found = Configuration({f"{C}interval": "3 s"})
        with pytest.raises(AttributeError):
            found.settings = {}  # type: ignore[misc]
        with pytest.raises(TypeError):
            found.settings[f"{C}interval"] = "4 s"  # type: ignore[index]

    @given(st.dictionaries(st.sampled_from([option.key for option in CONFIGURATION_OPTIONS]), st.text(max_size=8)))
    def test_any_text_is_read_or_refused_by_its_key(self, given: dict[str, str]) -> None:
        try:
            found = Configuration(given)
        except InvalidConfiguration as error:
            assert any(key in error.message for key in given)  # noqa: PT017 - either outcome is right
        else:
            assert dict(found.settings) == given


class TestLayers:
    def test_a_later_one_wins_key_by_key_whatever_the_spelling(self) -> None:
        first = Configuration({f"{S}type": "fixed-delay", f"{S}fixed-delay.delay": "7 s", f"{C}unaligned": "true"})
        second = Configuration({f"{S}fixed-delay.attempts": 4, f"{C}unaligned.enabled": "false"})
        both = first.updated(second)
        assert both.restart_strategy() == FixedDelayRestart(4, 7 * SECOND)
        assert not both.checkpoint_config(CheckpointConfig(unaligned=True)).unaligned
        assert both.warnings == ()
        older = Configuration({f"{C}unaligned": "true"})
        assert both.updated(older).checkpoint_config(CheckpointConfig()).unaligned

    def test_a_warning_goes_with_what_it_is_about(self) -> None:
        first = Configuration({f"{C}unaligned.forced": "true"})
        assert len(first.warnings) == 1
        assert first.updated(Configuration({f"{C}unaligned.forced": "false"})).warnings == ()

    def test_what_concerns_the_job_in_a_file_that_has_all(self) -> None:
        file = Configuration(
            {f"{C}interval": "3 s", f"{C}dir": "/data", "state.backend": "rocksdb", f"{R}path": "/savepoints/x"}
        )
        assert dict(file.for_job.settings) == {f"{C}interval": "3 s", "state.backend": "rocksdb"}

    @pytest.mark.parametrize(
        ("key", "value", "belongs"),
        [
            (f"{C}dir", "/data", "the checkpoint storage. Directory for checkpoints: `checkpoint_path`"),
            ("state.savepoints.dir", "/data", "the checkpoint storage. Directory for savepoints"),
            (f"{C}storage", "filesystem", "the checkpoint storage."),
            (f"{C}data-inline-threshold", "1 kb", "the checkpoint storage."),
            (f"{C}write-buffer-size", "1 kb", "the checkpoint storage."),
            ("state.backend.type", "rocksdb", "a job for good, with its state."),
            (f"{C}incremental", "true", "a job for good, with its state."),
            ("parallelism.default", "8", "the environment of a program of dagster_ckpt.datastream. How many"),
            (
                "execution.buffer-timeout.interval",
                "1 s",
                "the environment of a program of dagster_ckpt.datastream. Time",
            ),
            (f"{R}path", "/savepoints/x", "one run of a job. What one run begins with: `restore_from`"),
            (f"{R}claim-mode", "CLAIM", "one run of a job. Whose what a run begins with becomes: `claim_mode`"),
        ],
    )
    def test_what_belongs_elsewhere_is_refused_with_a_sentence_that_says_where(
        self, key: str, value: str, belongs: str
    ) -> None:
        found = Configuration({key: value, f"{C}interval": "3 s"})
        with pytest.raises(InvalidConfiguration) as raised:
            found.require([Place.JOB], "the configuration of an asset")
        assert raised.value.message.startswith("Not all of it can be in the configuration of an asset: ")
        assert f"{key} belongs to {belongs}" in raised.value.message
        assert f"{C}interval" not in raised.value.message
        assert "for_job" in raised.value.hint
        found.require(Place, "a file")


class TestYaml:
    FLAT = f"{C}interval: 10 s\n{S}type: off\n{C}num-retained: 3\n{C}unaligned.enabled: true\n"
    NESTED = (
        "execution:\n  checkpointing:\n    interval: 10 s\n    num-retained: 3\n    unaligned: {enabled: true}\n"
        "restart-strategy: {type: off}\n"
    )
    MIXED = f"execution.checkpointing: {{interval: 10 s, num-retained: 3}}\n{C}unaligned: true\nrestart-strategy: off\n"

    @pytest.mark.parametrize("text", [FLAT, NESTED, MIXED])
    def test_flat_and_nested(self, text: str, tmp_path: Path) -> None:
        file = tmp_path / "flink.yaml"
        file.write_text(text)
        for found in (Configuration.from_yaml(file), Configuration.from_yaml(str(file))):
            config = found.checkpoint_config(CheckpointConfig())
            assert (config.interval, config.num_retained, config.unaligned) == (10 * SECOND, 3, True)
            assert found.restart_strategy() == NoRestart(), "off is a name, not a boolean"

    @pytest.mark.parametrize("text", ["", "# nothing yet\n"])
    def test_an_empty_file_sets_nothing(self, text: str) -> None:
        assert Configuration.from_yaml_text(text) == Configuration()

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            (f"{C}interval: 1 s\n{C}interval: 2 s\n", "interval is given twice"),
            (f"{C}interval: 1 s\nexecution: {{checkpointing: {{interval: 2 s}}}}\n", "interval is given twice"),
            (f"{C}interval:\n", "interval = None is no value"),
            (f"{C}dir: ~\n", "dir = None is no value"),
            (f"{C}interval: [1 s]\n", "interval in line 1 has a list of values"),
            ("- a\n- b\n", "there is no key in line 1"),
            ("just text", "there is no key in line 1"),
            ("a: {b: 1", "is not YAML"),
            ("a: 1\n---\nb: 1\n", "is not YAML"),
        ],
    )
    def test_what_cannot_be_used_is_told(self, text: str, message: str) -> None:
        with pytest.raises(InvalidConfiguration) as raised:
            Configuration.from_yaml_text(text)
        assert message in raised.value.message

    def test_a_file_that_cannot_be_read_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidConfiguration, match=f"{tmp_path}/nowhere.yaml cannot be read"):
            Configuration.from_yaml(tmp_path / "nowhere.yaml")
        (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
        with pytest.raises(InvalidConfiguration, match="binary cannot be read"):
            Configuration.from_yaml(tmp_path / "binary")


class TestAsAValue:
    SETTINGS: ClassVar = {f"{C}interval": "3 s", "restart-strategy.type": "none"}

    def test_equal_settings_are_equal_and_hash_alike_in_any_order(self) -> None:
        one, other = Configuration(self.SETTINGS), Configuration(dict(reversed(self.SETTINGS.items())))
        assert one == other
        assert hash(one) == hash(other)
        assert one != Configuration({f"{C}interval": "4 s"})
        assert one != self.SETTINGS

    @pytest.mark.parametrize(
        "copied",
        [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))],
        ids=["copy", "deep", "pickle"],
    )
    def test_a_copy_is_a_whole_one(self, copied: Callable[[Configuration], Configuration]) -> None:
        one = Configuration({**self.SETTINGS, "state.backend.async": "false"})
        other = copied(one)
        assert other == one
        assert other.warnings == one.warnings
        assert other.checkpoint_config(CheckpointConfig()) == one.checkpoint_config(CheckpointConfig())
