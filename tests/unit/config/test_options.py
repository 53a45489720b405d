"""The table of keys: complete, without contradictions, and each row means what it says."""

from __future__ import annotations

from collections import Counter

import pytest

from dagster_ckpt.checkpoint.taking.data_files import MAX_PACK_BYTES
from dagster_ckpt.checkpoint.taking.shared_files import DEFAULT_INLINE_THRESHOLD, MAX_INLINE_BYTES
from dagster_ckpt.config.checkpoint_config import CheckpointConfig
from dagster_ckpt.config.configuration import CONFIGURATION_OPTIONS, Configuration
from dagster_ckpt.config.option_types import ConfigurationOption, Handling
from dagster_ckpt.errors import InvalidConfiguration

#: Flink's settings of checkpoints, and its restart strategies (reference §1.1 and §4.1), with their old spellings.
FLINK = {
    "execution.checkpointing.interval": "",
    "execution.checkpointing.interval-during-backlog": "",
    "execution.checkpointing.mode": "",
    "execution.checkpointing.timeout": "",
    "execution.checkpointing.min-pause": "",
    "execution.checkpointing.max-concurrent-checkpoints": "",
    "execution.checkpointing.tolerable-failed-checkpoints": "",
    "execution.checkpointing.externalized-checkpoint-retention": "",
    "execution.checkpointing.unaligned.enabled": "execution.checkpointing.unaligned",
    "execution.checkpointing.aligned-checkpoint-timeout": "execution.checkpointing.alignment-timeout",
    "execution.checkpointing.unaligned.forced": "",
    "execution.checkpointing.unaligned.max-subtasks-per-channel-state-file": "",
    "execution.checkpointing.unaligned.interruptible-timers.enabled": "",
    "execution.checkpointing.checkpoints-after-tasks-finish": "",
    "pipeline.sources.pause-until-first-checkpoint": "",
    "execution.state-recovery.without-channel-state.checkpoint-id": "",
    "execution.state-recovery.approximate-local-recovery": "",
    "execution.checkpointing.storage": "state.checkpoint-storage",
    "execution.checkpointing.dir": "state.checkpoints.dir",
    "execution.checkpointing.savepoint-dir": "state.savepoints.dir",
    "execution.checkpointing.create-subdir": "",
    "execution.checkpointing.num-retained": "state.checkpoints.num-retained",
    "execution.checkpointing.cleaner.parallel-mode": "",
    "execution.checkpointing.incremental": "state.backend.incremental",
    "execution.checkpointing.data-inline-threshold": (
        "state.storage.fs.memory-threshold state.backend.fs.memory-threshold"
    ),
    "execution.checkpointing.write-buffer-size": "state.storage.fs.write-buffer-size",
    "execution.checkpointing.local-backup.enabled": "",
    "execution.checkpointing.local-backup.dirs": "",
    "execution.checkpointing.file-merging.enabled": "",
    "execution.checkpointing.file-merging.across-checkpoint-boundary": "",
    "execution.checkpointing.file-merging.max-file-size": "",
    "execution.checkpointing.file-merging.pool-blocking": "",
    "execution.checkpointing.file-merging.max-subtasks-per-file": "",
    "execution.checkpointing.file-merging.max-space-amplification": "",
    "execution.checkpointing.unaligned.recover-output-on-downstream.enabled": "",
    "execution.checkpointing.unaligned.during-recovery.enabled": "",
    "execution.state-recovery.path": "",
    "execution.state-recovery.claim-mode": "",
    "execution.state-recovery.ignore-unclaimed-state": "",
    "state.backend.type": "state.backend",
    "heartbeat.interval": "",
    "heartbeat.timeout": "",
    "heartbeat.rpc-failure-threshold": "",
    "restart-strategy.type": "restart-strategy",
    "restart-strategy.fixed-delay.attempts": "",
    "restart-strategy.fixed-delay.delay": "",
    "restart-strategy.failure-rate.max-failures-per-interval": "",
    "restart-strategy.failure-rate.failure-rate-interval": "",
    "restart-strategy.failure-rate.delay": "",
    "restart-strategy.exponential-delay.initial-backoff": "",
    "restart-strategy.exponential-delay.max-backoff": "",
    "restart-strategy.exponential-delay.backoff-multiplier": "",
    "restart-strategy.exponential-delay.reset-backoff-threshold": "",
    "restart-strategy.exponential-delay.jitter-factor": "",
    "restart-strategy.exponential-delay.attempts-before-reset-backoff": "",
}
BY_KEY = {option.key: option for option in CONFIGURATION_OPTIONS}
#: A value of each type that no option takes for what is done anyway.
UNUSUAL = {
    "duration": "7 s",
    "size": "7 kb",
    "integer": "7",
    "number": "7.5",
    "path": "/somewhere",
}


@pytest.mark.parametrize("key", FLINK)
def test_every_key_of_flink_is_known_with_its_old_spellings(key: str) -> None:
    assert set(FLINK[key].split()) <= set(BY_KEY[key].old)


def test_every_spelling_means_one_key() -> None:
    spellings = Counter(spelling for option in CONFIGURATION_OPTIONS for spelling in (option.key, *option.old))
    assert [spelling for spelling, count in spellings.items() if count > 1] == []


def test_every_field_that_is_set_is_one() -> None:
    for option in CONFIGURATION_OPTIONS:
        if option.sets is not None and not option.key.startswith("restart-strategy."):
            assert option.sets in CheckpointConfig.model_fields
        if option.sets is not None:
            assert option.handling is Handling.TAKEN


def test_every_key_says_what_it_does_here() -> None:
    for option in CONFIGURATION_OPTIONS:
        assert option.effect.endswith("."), option.key
        assert option.effect[0].isupper(), option.key


def test_the_figures_in_it_are_those_of_the_code() -> None:
    bounds = BY_KEY["execution.checkpointing.data-inline-threshold"].bounds
    assert bounds is not None
    assert (bounds.most, bounds.otherwise) == (MAX_INLINE_BYTES, DEFAULT_INLINE_THRESHOLD)
    assert BY_KEY["execution.checkpointing.file-merging.max-file-size"].as_here == MAX_PACK_BYTES


def not_done(option: ConfigurationOption) -> str:
    """A value of the option that asks for something else than what is done anyway."""
    if option.type.name == "boolean":
        return "false" if option.as_here is True else "true"
    return UNUSUAL[option.type.name]


@pytest.mark.parametrize("key", [option.key for option in CONFIGURATION_OPTIONS if option.handling is Handling.WARNED])
def test_what_has_no_effect_is_warned_about_once(key: str) -> None:
    configuration = Configuration({key: not_done(BY_KEY[key])})
    (warning,) = configuration.warnings
    assert warning == f"{key} = {not_done(BY_KEY[key])!r} has no effect. {BY_KEY[key].effect}"
    assert configuration.checkpoint_config(CheckpointConfig()) == CheckpointConfig()
    assert configuration.restart_strategy() is None


@pytest.mark.parametrize("key", [option.key for option in CONFIGURATION_OPTIONS if option.handling is Handling.REFUSED])
def test_what_would_be_misunderstood_is_refused(key: str) -> None:
    with pytest.raises(InvalidConfiguration) as raised:
        Configuration({key: not_done(BY_KEY[key])})
    assert f"{key} = {not_done(BY_KEY[key])!r} is refused. {BY_KEY[key].effect}" in raised.value.message


@pytest.mark.parametrize("key", [option.key for option in CONFIGURATION_OPTIONS if option.as_here is not None])
def test_who_asks_for_what_is_done_anyway_hears_nothing(key: str) -> None:
    value = BY_KEY[key].as_here
    assert Configuration({key: value}).warnings == ()
