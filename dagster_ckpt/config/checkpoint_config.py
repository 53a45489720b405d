"""``CheckpointConfig``: what the user chooses about checkpoints. Pure data, read by the coordinator."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from dagster_ckpt.config.durations import Duration
from dagster_ckpt.config.retention import AnyOf, KeepEvery, KeepNewest, KeepYounger, RetentionPolicy
from dagster_ckpt.errors import InvalidConfiguration

__all__ = ["CheckpointConfig", "CheckpointingMode", "ExternalizedCheckpointCleanup", "JobStatus"]

_MINIMUM = timedelta(milliseconds=10)


class CheckpointingMode(StrEnum):
    """What a restore promises: ``EXACTLY_ONCE`` is exact or refused, ``AT_LEAST_ONCE`` may double, never lose."""

    EXACTLY_ONCE = "EXACTLY_ONCE"
    AT_LEAST_ONCE = "AT_LEAST_ONCE"


class ExternalizedCheckpointCleanup(StrEnum):
    """What becomes of the checkpoints when the job ends, as in Flink.

    ``RETAIN_ON_CANCELLATION`` keeps them when the job is canceled or fails, ``DELETE_ON_CANCELLATION`` keeps
    them only when it fails, ``NO_EXTERNALIZED_CHECKPOINTS`` deletes them in both cases. A suspended job deletes
    nothing, and what becomes of them when the job finishes is said by ``CheckpointConfig.retain_on_success``.
    """

    DELETE_ON_CANCELLATION = "DELETE_ON_CANCELLATION"
    RETAIN_ON_CANCELLATION = "RETAIN_ON_CANCELLATION"
    NO_EXTERNALIZED_CHECKPOINTS = "NO_EXTERNALIZED_CHECKPOINTS"


class JobStatus(StrEnum):
    """How a job ended, in Flink's words. A single failed attempt is none of these: it deletes nothing."""

    FINISHED = "FINISHED"
    CANCELED = "CANCELED"
    FAILED = "FAILED"
    SUSPENDED = "SUSPENDED"


def _at_least_10_ms(value: timedelta) -> timedelta:
    if value < _MINIMUM:
        raise ValueError("must be larger than or equal to 10 ms")
    return value


def _not_negative(value: timedelta) -> timedelta:
    if value < timedelta():
        raise ValueError("must be zero or positive")
    return value


def _positive(value: timedelta) -> timedelta:
    if value <= timedelta():
        raise ValueError("must be positive")
    return value


class CheckpointConfig(BaseModel):
    """When checkpoints are taken, how many are kept, and what happens when one fails.

    The defaults are safe rather than Flink's: a click on *Terminate* must not delete a month of state.
    Durations are ``timedelta``, milliseconds (``int``) or text such as ``"10 s"``.

    Raises:
        InvalidConfiguration: a value is out of range, or two values exclude each other.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    interval: Annotated[Duration, AfterValidator(_at_least_10_ms)] = Field(
        default=timedelta(minutes=1),
        description="Time between the starts of two checkpoints; at least 10 ms.",
    )
    mode: CheckpointingMode = Field(default=CheckpointingMode.EXACTLY_ONCE, description="What a restore promises.")
    timeout: Annotated[Duration, AfterValidator(_at_least_10_ms)] = Field(
        default=timedelta(minutes=10),
        description="An attempt older than this, counted from its pin, is discarded.",
    )
    min_pause: Annotated[Duration, AfterValidator(_not_negative)] = Field(
        default=timedelta(),
        description="Least time between the end of one checkpoint and the start of the next.",
    )
    max_concurrent_checkpoints: int = Field(default=1, ge=1, description="Attempts that may be in progress at once.")
    tolerable_failed_checkpoints: int = Field(
        default=3, ge=0, description="Consecutive failed checkpoints after which the job fails over."
    )
    unaligned: bool = Field(
        default=False,
        description="Do not wait for the batch in flight: capture the last committed batch and the planned one.",
    )
    aligned_checkpoint_timeout: Annotated[Duration, AfterValidator(_not_negative)] = Field(
        default=timedelta(),
        description="An aligned attempt that waited longer than this for its batch becomes unaligned; 0 waits.",
    )
    cleanup: ExternalizedCheckpointCleanup = Field(
        default=ExternalizedCheckpointCleanup.RETAIN_ON_CANCELLATION,
        description="What becomes of the checkpoints when the job is canceled or fails.",
    )
    retain_on_success: bool = Field(
        default=True,
        description="Keep the checkpoints when the job finishes, for the next scheduled run to go on from.",
    )
    num_retained: int = Field(default=10, ge=1, description="Completed checkpoints kept; older ones are subsumed.")
    retain_for: Annotated[Duration, AfterValidator(_positive)] | None = Field(
        default=None, description="Every checkpoint younger than this is kept as well."
    )
    retain_every: int | None = Field(
        default=None, ge=1, description="Every checkpoint whose id is a multiple of this is kept as well, for good."
    )

    def __init__(self, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            problems = "; ".join(
                f"{'.'.join(map(str, problem['loc'])) or 'CheckpointConfig'}: {problem['msg']}"
                for problem in error.errors()
            )
            raise InvalidConfiguration(
                f"The checkpoint configuration cannot be used: {problems}.",
                hint="Durations are written like '10 s' or '10 min'; see CheckpointConfig for each option.",
            ) from error

    @model_validator(mode="after")
    def _check_combination(self) -> CheckpointConfig:
        if self.unaligned and self.max_concurrent_checkpoints > 1:
            raise ValueError("max_concurrent_checkpoints can't be > 1 if unaligned checkpoints are enabled")
        return self

    @property
    def effective_interval(self) -> timedelta:
        """The interval the coordinator uses: never shorter than ``min_pause``, as in Flink."""
        return max(self.interval, self.min_pause)

    @property
    def retention(self) -> RetentionPolicy:
        """Which completed checkpoints stay while the job runs."""
        policies: list[RetentionPolicy] = [KeepNewest(self.num_retained)]
        if self.retain_for is not None:
            policies.append(KeepYounger(self.retain_for))
        if self.retain_every is not None:
            policies.append(KeepEvery(self.retain_every))
        return AnyOf(tuple(policies))

    def discards(self, status: JobStatus) -> bool:
        """Whether checkpoints are deleted when the job ends with ``status``."""
        match status:
            case JobStatus.SUSPENDED:
                return False
            case JobStatus.FINISHED:
                return not self.retain_on_success
            case JobStatus.CANCELED:
                return self.cleanup is not ExternalizedCheckpointCleanup.RETAIN_ON_CANCELLATION
            case JobStatus.FAILED:
                return self.cleanup is ExternalizedCheckpointCleanup.NO_EXTERNALIZED_CHECKPOINTS
