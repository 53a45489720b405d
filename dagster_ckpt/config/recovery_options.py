"""Flink's keys for recovery and restarts, and what each key does here: the end of the table in ``options``."""

from __future__ import annotations

from dagster_ckpt.config.option_types import (
    BOOLEAN,
    DURATION,
    NUMBER,
    PATH,
    STRATEGY,
    WHOLE,
    ConfigurationOption,
    Handling,
    Place,
    enumeration,
)
from dagster_ckpt.config.recovery import RecoveryClaimMode

__all__ = ["RECOVERY_OPTIONS"]

_C = "execution.checkpointing."
_R = "execution.state-recovery."
_S = "restart-strategy."
_TAKEN, _WARNED, _REFUSED = Handling.TAKEN, Handling.WARNED, Handling.REFUSED

#: What a run begins with, and what happens after a failure.
RECOVERY_OPTIONS: tuple[ConfigurationOption, ...] = (
    # Recovery.
    ConfigurationOption(
        f"{_R}path",
        PATH,
        _TAKEN,
        "What one run begins with: `restore_from` of its run configuration.",
        old=("execution.savepoint.path",),
        place=Place.RUN,
    ),
    ConfigurationOption(
        f"{_R}claim-mode",
        enumeration(RecoveryClaimMode),
        _TAKEN,
        "Whose what a run begins with becomes: `claim_mode` of its run configuration. Without it a checkpoint of the "
        "job's own storage is claimed and a savepoint is not; in Flink neither is.",
        old=("execution.savepoint-restore-mode",),
        place=Place.RUN,
    ),
    ConfigurationOption(
        f"{_C}prefer-checkpoint-for-recovery",
        BOOLEAN,
        _TAKEN,
        "Whether a recovery goes on from checkpoints only; true by default. If false, from the newest savepoint that "
        "the job took, where that is newer than every checkpoint. In Flink before 1.15, false by default.",
        sets="prefer_checkpoint_for_recovery",
    ),
    ConfigurationOption(
        f"{_R}ignore-unclaimed-state",
        BOOLEAN,
        _REFUSED,
        "Spark restores the state of every operator or of none, so that no operator's state can be left out.",
        old=("execution.savepoint.ignore-unclaimed-state",),
        as_here=False,
    ),
    ConfigurationOption(
        f"{_R}without-channel-state.checkpoint-id",
        WHOLE,
        _REFUSED,
        "The plan of the batch in flight is restored with its checkpoint: without it the input could be cut into "
        "other batches, with other results. Name an earlier checkpoint in `restore_from` instead.",
        old=(f"{_C}recover-without-channel-state.checkpoint-id",),
        as_here=-1,
    ),
    ConfigurationOption(
        f"{_R}approximate-local-recovery",
        BOOLEAN,
        _WARNED,
        "Spark restarts a query as a whole, and what is restored is exact or refused.",
        old=(f"{_C}approximate-local-recovery",),
        as_here=False,
    ),
    ConfigurationOption(
        f"{_R}from-local",
        BOOLEAN,
        _WARNED,
        "What a dead run left on its host is captured from its live checkpointLocation (salvage) whenever it is still "
        "there.",
        as_here=False,
    ),
    # Restarts.
    ConfigurationOption(
        f"{_S}type",
        STRATEGY,
        _TAKEN,
        "What happens after a failure. Without it the job's own strategy is used, exponential delay by default.",
        old=("restart-strategy",),
    ),
    ConfigurationOption(
        f"{_S}fixed-delay.attempts", WHOLE, _TAKEN, "Restarts before the job fails; 1 by default.", sets="attempts"
    ),
    ConfigurationOption(
        f"{_S}fixed-delay.delay", DURATION, _TAKEN, "Time from a failure to its restart; 1 s by default.", sets="delay"
    ),
    ConfigurationOption(
        f"{_S}failure-rate.max-failures-per-interval",
        WHOLE,
        _TAKEN,
        "Failures within the interval that are borne; 1 by default.",
        sets="max_failures_per_interval",
    ),
    ConfigurationOption(
        f"{_S}failure-rate.failure-rate-interval",
        DURATION,
        _TAKEN,
        "The interval over which failures are counted; 1 min by default.",
        sets="interval",
    ),
    ConfigurationOption(
        f"{_S}failure-rate.delay",
        DURATION,
        _TAKEN,
        "Time from a failure to its restart; 1 s by default.",
        sets="delay",
    ),
    ConfigurationOption(
        f"{_S}exponential-delay.initial-backoff",
        DURATION,
        _TAKEN,
        "The first delay; 1 s by default.",
        sets="initial_backoff",
    ),
    ConfigurationOption(
        f"{_S}exponential-delay.max-backoff",
        DURATION,
        _TAKEN,
        "The longest delay; 1 min by default.",
        sets="max_backoff",
    ),
    ConfigurationOption(
        f"{_S}exponential-delay.backoff-multiplier",
        NUMBER,
        _TAKEN,
        "What a delay is multiplied by after each failure; 1.5 by default.",
        sets="backoff_multiplier",
    ),
    ConfigurationOption(
        f"{_S}exponential-delay.reset-backoff-threshold",
        DURATION,
        _TAKEN,
        "Time without failure after which the delays begin anew; 1 h by default.",
        sets="reset_backoff_threshold",
    ),
    ConfigurationOption(
        f"{_S}exponential-delay.jitter-factor",
        NUMBER,
        _TAKEN,
        "The part of a delay that is drawn at random; 0.1 by default. Unlike in Flink the longest delay has it too.",
        sets="jitter_factor",
    ),
    ConfigurationOption(
        f"{_S}exponential-delay.attempts-before-reset-backoff",
        WHOLE,
        _TAKEN,
        "Restarts before the job fails, counted since the delays began anew; without it, or 2147483647, no limit.",
        sets="attempts_before_reset_backoff",
    ),
)
