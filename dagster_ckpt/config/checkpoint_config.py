"""``CheckpointConfig``: the user's choices about checkpoints. Pure data, read by the coordinator."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from dagster_ckpt.config.quantities import Duration, format_duration
from dagster_ckpt.config.retention import Retention
from dagster_ckpt.errors import InvalidConfiguration

__all__ = [
    "HEARTBEAT_INTERVAL",
    "HEARTBEAT_TIMEOUT",
    "INTERVALS_PER_TIMEOUT",
    "LONGEST_HEARTBEAT_TIMEOUT",
    "UNLIMITED",
    "CheckpointConfig",
    "CheckpointingMode",
    "ExternalizedCheckpointCleanup",
    "JobStatus",
]

_MILLISECOND = timedelta(milliseconds=1)
_MINIMUM = 10 * _MILLISECOND
#: A pause longer than this is cut to it, as in Flink.
_LONGEST_PAUSE = timedelta(days=365)
#: Defaults in seconds; Flink's are 10 s and 50 s.
HEARTBEAT_INTERVAL, HEARTBEAT_TIMEOUT = 2.0, 30.0
#: So that one late heartbeat does not count as death.
INTERVALS_PER_TIMEOUT = 3
#: Below this a pause of Python or of a network would often count as death; above it nobody would wait.
_SHORTEST_HEARTBEAT_TIMEOUT, LONGEST_HEARTBEAT_TIMEOUT = 3.0, 3600.0
#: The number of tolerable failures that means "any number" in Flink.
UNLIMITED = 2_147_483_647

#: A duration as a user gives it.
_Time: TypeAlias = timedelta | str


class CheckpointingMode(StrEnum):
    """What a restore promises: ``EXACTLY_ONCE`` is exact or refused; ``AT_LEAST_ONCE`` may double rows, never lose."""

    EXACTLY_ONCE = "EXACTLY_ONCE"
    AT_LEAST_ONCE = "AT_LEAST_ONCE"


class ExternalizedCheckpointCleanup(StrEnum):
    """Which checkpoints stay when the job ends, as in Flink.

    ``RETAIN_ON_CANCELLATION`` keeps the checkpoints when the job is canceled or fails, ``DELETE_ON_CANCELLATION`` keeps
    them only when the job fails, ``NO_EXTERNALIZED_CHECKPOINTS`` deletes them in both cases. A suspended job deletes
    nothing. When the job finishes, ``CheckpointConfig.retain_on_success`` decides.
    """

    DELETE_ON_CANCELLATION = "DELETE_ON_CANCELLATION"
    RETAIN_ON_CANCELLATION = "RETAIN_ON_CANCELLATION"
    NO_EXTERNALIZED_CHECKPOINTS = "NO_EXTERNALIZED_CHECKPOINTS"


class JobStatus(StrEnum):
    """How a job ended, in Flink's words. A single failed start is not an end of the job: it deletes nothing."""

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
    """When checkpoints are taken, how many are kept, and what happens when a checkpoint attempt fails.

    The defaults are safe rather than Flink's: a click on *Terminate* must not delete a month of state.
    Durations are ``timedelta`` or text such as ``"10 s"``; a bare number is refused.

    Raises:
        InvalidConfiguration: a value is out of range, or two values exclude each other.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    interval: Annotated[Duration, AfterValidator(_at_least_10_ms)] | None = Field(
        default=timedelta(minutes=1),
        description="Time between the starts of two checkpoints; at least 10 ms. None takes no periodic ones: only "
        "savepoints, and a last checkpoint when the query ends.",
    )
    mode: CheckpointingMode = Field(default=CheckpointingMode.EXACTLY_ONCE, description="What a restore promises.")
    timeout: Annotated[Duration, AfterValidator(_at_least_10_ms)] = Field(
        default=timedelta(minutes=10),
        description="A checkpoint attempt older than this, counted from its pin, is discarded and counts as failed.",
    )
    min_pause: Annotated[Duration, AfterValidator(_not_negative)] = Field(
        default=timedelta(),
        description="Least time between the end of one checkpoint or savepoint and the start of the next checkpoint; "
        "at most 365 days.",
    )
    max_concurrent_checkpoints: int = Field(
        default=1, ge=1, description="Checkpoint attempts that may be in progress at once."
    )
    tolerable_failed_checkpoints: int | None = Field(
        default=3,
        ge=0,
        description="Consecutive failed checkpoints that are borne; one more fails the job over. "
        "None or 2147483647: any number is borne.",
    )
    unaligned: bool = Field(
        default=False,
        description="Do not wait for the batch in flight: capture the last committed batch and the planned one. "
        "Under EXACTLY_ONCE only, as in Flink.",
    )
    aligned_checkpoint_timeout: Annotated[Duration, AfterValidator(_not_negative)] = Field(
        default=timedelta(),
        description="A checkpoint attempt begins aligned and becomes unaligned when it has waited this long for its "
        "batch. 0: at once if unaligned, else never.",
    )
    cleanup: ExternalizedCheckpointCleanup = Field(
        default=ExternalizedCheckpointCleanup.RETAIN_ON_CANCELLATION,
        description="What becomes of the checkpoints when the job is canceled or fails.",
    )
    retain_on_success: bool = Field(
        default=True,
        description="Keep the checkpoints when the job finishes, for the next scheduled run to go on from.",
    )
    prefer_checkpoint_for_recovery: bool = Field(
        default=True,
        description="Go on from checkpoints only, because a savepoint is the user's, who may move or delete it. If "
        "off, from the newest savepoint that the job took, where it is newer than every checkpoint.",
    )
    num_retained: int = Field(default=10, ge=1, description="Completed checkpoints kept; older ones are subsumed.")
    retain_for: Annotated[Duration, AfterValidator(_positive)] | None = Field(
        default=None, description="Every checkpoint younger than this is kept as well."
    )
    retain_every: int | None = Field(
        default=None, ge=1, description="Every checkpoint whose id is a multiple of this is kept as well, for good."
    )
    fallback_to_older: bool = Field(
        default=False,
        description="When the newest checkpoint is broken (a file is missing or changed), put it into quarantine, go "
        "on from the next older one that is whole, and say what that costs. By default the job fails then. Flink has "
        "no such option.",
    )
    heartbeat_interval: Annotated[Duration, AfterValidator(_at_least_10_ms)] = Field(
        default=timedelta(seconds=HEARTBEAT_INTERVAL),
        description="Time between two heartbeats of a run; at most a third of heartbeat_timeout. Flink's default is "
        "10 s.",
    )
    heartbeat_timeout: Duration = Field(
        default=timedelta(seconds=HEARTBEAT_TIMEOUT),
        ge=timedelta(seconds=_SHORTEST_HEARTBEAT_TIMEOUT),
        le=timedelta(seconds=LONGEST_HEARTBEAT_TIMEOUT),
        description="The lease: after so long without a heartbeat the run counts as dead on other hosts, 3 s to 1 h. "
        "The query pauses before that, until a heartbeat is taken. Flink's default is 50 s.",
    )

    if TYPE_CHECKING:  # a type checker finds a misspelt option, and a number without a unit

        def __init__(
            self,
            *,
            interval: _Time | None = ...,
            mode: CheckpointingMode | str = ...,
            timeout: _Time = ...,
            min_pause: _Time = ...,
            max_concurrent_checkpoints: int = ...,
            tolerable_failed_checkpoints: int | None = ...,
            unaligned: bool = ...,
            aligned_checkpoint_timeout: _Time = ...,
            cleanup: ExternalizedCheckpointCleanup | str = ...,
            retain_on_success: bool = ...,
            prefer_checkpoint_for_recovery: bool = ...,
            num_retained: int = ...,
            retain_for: _Time | None = ...,
            retain_every: int | None = ...,
            fallback_to_older: bool = ...,
            heartbeat_interval: _Time = ...,
            heartbeat_timeout: _Time = ...,
        ) -> None: ...

    else:

        def __init__(self, **data: Any) -> None:
            try:
                super().__init__(**data)
            except ValidationError as error:
                problems = "; ".join(
                    f"{'.'.join(map(str, problem['loc'])) or 'CheckpointConfig'}: "
                    f"{problem['msg'].removeprefix('Value error, ')}"
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
        if self.heartbeat_timeout < INTERVALS_PER_TIMEOUT * self.heartbeat_interval:
            raise ValueError(
                f"heartbeat_timeout ({format_duration(self.heartbeat_timeout)}) must be at least "
                f"{INTERVALS_PER_TIMEOUT} times heartbeat_interval ({format_duration(self.heartbeat_interval)}), so "
                f"that one late heartbeat does not count as death: set heartbeat_interval to at most "
                f"{format_duration(self.heartbeat_timeout // INTERVALS_PER_TIMEOUT // _MILLISECOND * _MILLISECOND)}"
            )
        return self

    @property
    def effective_min_pause(self) -> timedelta:
        """The pause the coordinator keeps: at most 365 days, as in Flink."""
        return min(self.min_pause, _LONGEST_PAUSE)

    @property
    def effective_interval(self) -> timedelta | None:
        """The interval the coordinator uses: never shorter than the pause, as in Flink."""
        return None if self.interval is None else max(self.interval, self.effective_min_pause)

    @property
    def longest_without_checkpoint(self) -> timedelta | None:
        """How long a checkpoint may be due without completing, as Flink's operator bounds it; ``None``: for ever.

        The longer of interval and timeout, times the number of tolerated failures plus two. A job that tolerates any
        number of failures counts as one that tolerates none.
        """
        interval = self.effective_interval
        try:
            return None if interval is None else max(interval, self.timeout) * ((self.tolerable_failures or 0) + 2)
        except OverflowError:  # longer than anything lasts
            return None

    @property
    def effective_unaligned(self) -> bool:
        """Whether checkpoint attempts may be unaligned: only under ``EXACTLY_ONCE``, as in Flink; otherwise aligned."""
        return self.unaligned and self.mode is CheckpointingMode.EXACTLY_ONCE

    @property
    def longest_alignment(self) -> timedelta | None:
        """How long a checkpoint attempt waits for the running batch until it becomes unaligned; ``None``: for ever."""
        if self.effective_unaligned:
            return self.aligned_checkpoint_timeout
        if self.mode is not CheckpointingMode.EXACTLY_ONCE:
            return None
        return self.aligned_checkpoint_timeout or None

    @property
    def tolerable_failures(self) -> int | None:
        """Consecutive failures that the job tolerates; ``None`` when such failures never fail the job over."""
        return None if self.tolerable_failed_checkpoints == UNLIMITED else self.tolerable_failed_checkpoints

    @property
    def warnings(self) -> tuple[str, ...]:
        """A sentence for each value that is not followed, with what is done instead."""
        found = []
        if self.mode is not CheckpointingMode.EXACTLY_ONCE and (self.unaligned or self.aligned_checkpoint_timeout):
            option = "unaligned" if self.unaligned else "aligned_checkpoint_timeout"
            found.append(f"{option} has no effect: checkpoints are aligned under {self.mode.value}.")
        if self.min_pause > _LONGEST_PAUSE:
            found.append(f"min_pause is cut from {self.min_pause.days} to {_LONGEST_PAUSE.days} days.")
        return tuple(found)

    @property
    def retention(self) -> Retention:
        """Which completed checkpoints stay while the job runs."""
        return Retention(self.num_retained, self.retain_for, self.retain_every)

    def discards(self, status: JobStatus) -> bool:
        """Whether a job that ends with ``status`` deletes its checkpoints: Flink's table.

        Two rows differ: ``FINISHED`` always deletes in Flink, but here only without ``retain_on_success``; a
        ``SUSPENDED`` job deletes nothing, as in Flink with high availability. Pinned checkpoints always stay. A
        savepoint that a job has claimed is deleted like its checkpoints.
        """
        match status:
            case JobStatus.SUSPENDED:
                return False
            case JobStatus.FINISHED:
                return not self.retain_on_success
            case JobStatus.CANCELED:
                return self.cleanup is not ExternalizedCheckpointCleanup.RETAIN_ON_CANCELLATION
            case JobStatus.FAILED:
                return self.cleanup is ExternalizedCheckpointCleanup.NO_EXTERNALIZED_CHECKPOINTS

    def discarded_when(self) -> str:
        """The occasions on which checkpoints are deleted, for people: ``SUBSUMED, CANCELED``.

        A checkpoint is subsumed when a newer one completes and the retention does not keep it.
        """
        return ", ".join(["SUBSUMED", *(status for status in JobStatus if self.discards(status))])
