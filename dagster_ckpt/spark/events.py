"""The events of a job's run, and their text for people, wherever it is shown."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from dagster_ckpt.checkpoint import (
    CheckpointInProgress,
    CheckpointMetadata,
    Discarded,
    FellBack,
    Quarantined,
    RequestState,
    RestoreInProgress,
    SavepointRequest,
    StartTrace,
)
from dagster_ckpt.config import format_size
from dagster_ckpt.errors import CorruptCheckpoint
from dagster_ckpt.shown_text import counted, in_one_line, printable, redacted
from dagster_ckpt.spark.verdict import Preflight

__all__ = [
    "CheckpointCompleted",
    "CheckpointDue",
    "CheckpointFailed",
    "CheckpointQuarantined",
    "CheckpointReplaced",
    "CheckpointsDiscarded",
    "CheckpointsSubsumed",
    "CheckpointsUnreadable",
    "EpochClaimed",
    "Event",
    "LiveLocationChosen",
    "Replaying",
    "RequestTold",
    "Restarting",
    "SavepointCompleted",
    "SettingsIgnored",
    "SparkStarted",
    "StartTraced",
    "Started",
    "describe",
]


@dataclass(frozen=True, slots=True)
class SparkStarted:
    """Spark has started, and took this many seconds."""

    seconds: float
    web_url: str | None


@dataclass(frozen=True, slots=True)
class EpochClaimed:
    """The run has claimed an epoch: its first act, repeated before each restart within the run."""

    epoch: int


@dataclass(frozen=True, slots=True)
class LiveLocationChosen:
    """Where the live location of a start lies, and why there."""

    url: str
    reason: str


@dataclass(frozen=True, slots=True)
class Started:
    """The query started.

    Attributes:
        epoch: the epoch of the start.
        job_id: the lineage.
        restored: the checkpoint that the query resumed from, ``None`` for a start from nothing.
        retained: the completed checkpoints that exist.
        reason: why this checkpoint was chosen.
        sink: what the rollback of the sink removed, for people; empty for nothing.
        restore_seconds: the time for reading, verifying and rolling back.
        preflight: the checks that were made before anything was touched.
        is_bounded: whether the query ends by itself, when it has read what is there.
        fell_back: which newer checkpoints are broken, and what resuming from an older one costs.
    """

    epoch: int
    job_id: str
    restored: CheckpointMetadata | None
    retained: Sequence[CheckpointMetadata]
    reason: str
    sink: str
    restore_seconds: float
    preflight: Preflight
    is_bounded: bool
    fell_back: FellBack | None = None


@dataclass(frozen=True, slots=True)
class StartTraced:
    """Where the seconds of a start went: told when its first batch is committed, or when it has failed before."""

    trace: StartTrace


@dataclass(frozen=True, slots=True)
class CheckpointCompleted:
    """A checkpoint completed; ``retained`` lists the checkpoints that now exist, the newest last."""

    metadata: CheckpointMetadata
    retained: Sequence[CheckpointMetadata]


@dataclass(frozen=True, slots=True)
class CheckpointsSubsumed:
    """Checkpoints that newer ones replace were deleted; ``retained`` lists the checkpoints that exist then."""

    discarded: Sequence[Discarded]
    retained: Sequence[CheckpointMetadata]


@dataclass(frozen=True, slots=True)
class CheckpointsDiscarded:
    """The job is over, and the cleanup policy has discarded these checkpoints; ``retained`` are those that stay."""

    discarded: Sequence[Discarded]
    retained: Sequence[CheckpointMetadata]


@dataclass(frozen=True, slots=True)
class CheckpointDue:
    """A checkpoint is due, and none has completed since: the query has a batch that no checkpoint has."""


@dataclass(frozen=True, slots=True)
class CheckpointFailed:
    """A checkpoint attempt failed; the query goes on."""

    number: int
    reason: str
    consecutive: int


@dataclass(frozen=True, slots=True)
class RequestTold:
    """A request for a savepoint or a checkpoint has changed its state, for this reason."""

    request: SavepointRequest
    state: RequestState
    reason: str
    next_step: str


@dataclass(frozen=True, slots=True)
class SavepointCompleted:
    """A requested savepoint completed."""

    metadata: CheckpointMetadata


@dataclass(frozen=True, slots=True)
class SettingsIgnored:
    """Settings of the state backend that cannot take effect, one sentence each; told once in a run."""

    reasons: Sequence[str]


@dataclass(frozen=True, slots=True)
class CheckpointQuarantined:
    """The newest checkpoint is broken and was put into quarantine."""

    record: Quarantined


@dataclass(frozen=True, slots=True)
class CheckpointReplaced:
    """The newest checkpoint is broken, and the live location of the run before has everything: nothing runs again.

    Attributes:
        checkpoint: ``{job id}/chk-N``.
        reason: what is wrong with the checkpoint.
    """

    checkpoint: str
    reason: str


@dataclass(frozen=True, slots=True)
class CheckpointsUnreadable:
    """Manifests in the job's ``directory`` cannot be read; told at each start."""

    errors: Sequence[CorruptCheckpoint]
    directory: str


@dataclass(frozen=True, slots=True)
class Replaying:
    """Batches run again with their earlier boundaries: ``next`` is the next batch, and ``last`` the last."""

    next: int
    last: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Restarting:
    """The query failed and will be restarted within this run."""

    error: str
    reason: str
    delay: float


Event: TypeAlias = (
    EpochClaimed
    | SparkStarted
    | CheckpointInProgress
    | RestoreInProgress
    | LiveLocationChosen
    | Started
    | StartTraced
    | CheckpointCompleted
    | CheckpointDue
    | CheckpointsDiscarded
    | CheckpointsSubsumed
    | CheckpointFailed
    | RequestTold
    | SavepointCompleted
    | SettingsIgnored
    | CheckpointQuarantined
    | CheckpointReplaced
    | CheckpointsUnreadable
    | Replaying
    | Restarting
)


def describe(event: Event) -> Iterator[tuple[int, str]]:
    """The lines that tell of an event, each with its level (of :mod:`logging`); none if another event tells the same.

    Text from records is shown without secrets and without terminal control characters.
    """
    for level, text in _described(event):
        # The hint of an error keeps its own line; all other text becomes one line.
        yield level, (printable if isinstance(event, Restarting) else in_one_line)(redacted(text))


def _described(event: Event) -> Iterator[tuple[int, str]]:
    match event:
        case EpochClaimed() | CheckpointDue():
            pass
        case SparkStarted(seconds, web_url):
            yield logging.INFO, f"Spark started in {seconds:.1f} s{f', UI at {web_url}' if web_url else ''}"
        case LiveLocationChosen(url, reason):
            yield logging.INFO, f"The live checkpointLocation is {url}: {reason}."
        case Started():
            restored = event.restored
            origin = f"from {restored.reference} (batch {restored.batch})" if restored else "from nothing"
            took = f" Restored in {event.restore_seconds:.2f} s." if restored else ""
            yield (
                logging.INFO,
                f"Epoch {event.epoch} of lineage {event.job_id} starts {origin}: {event.reason}."
                f"{took}{f' Sink: {event.sink}.' if event.sink else ''}",
            )
            checks = len(event.preflight.findings)
            later = "; whether the state fits the query, Spark says with the first batch" if restored else ""
            yield logging.INFO, f"Preflight: {event.preflight.verdict} by {checks} checks{later}"
            for finding in event.preflight.bad:
                yield logging.WARNING, f"Preflight: {finding.check}: {finding.verdict}, {finding.reason}"
            if event.fell_back is not None:
                yield logging.WARNING, f"What this start costs: {event.fell_back}."
        case StartTraced(trace):
            what = "First batch committed" if trace.committed else "No batch committed"
            steps = ", ".join(f"{name} {seconds:.1f}" for name, seconds in trace.by_name.items())
            yield logging.INFO, f"{what} after {trace.seconds:.1f} s: {steps}"
        case CheckpointQuarantined(record):
            yield logging.WARNING, f"{record.checkpoint} is broken and was put into quarantine: {record.reason}"
        case CheckpointReplaced(checkpoint, reason):
            yield (
                logging.WARNING,
                f"{checkpoint} is broken, and a checkpoint salvaged from the run before replaces it: {reason}",
            )
        case CheckpointsUnreadable(errors, directory):
            for error in errors:
                yield (
                    logging.WARNING,
                    f"{error.message} While it is there, no shared file of its lineage is deleted. Put it back from a "
                    "backup, or give it up with `dagster-ckpt dispose "
                    f"{shlex.quote(f'{directory}/{error.checkpoint}')}`.",
                )
        case CheckpointCompleted(metadata):
            yield (
                logging.INFO,
                f"{metadata.name} completed at batch {metadata.batch}: {counted(len(metadata.files), 'file')}, "
                f"{format_size(metadata.size)}, {format_size(metadata.new_bytes)} of it new",
            )
        case CheckpointsSubsumed(discarded):
            for item in discarded:
                if item.metadata.location is not None:
                    yield logging.INFO, f"Deleted the claimed savepoint {item.metadata.reference}: {item.reason}"
        case RequestTold(request, state, reason, _):
            what = f"{request.kind}{f' {request.name}' if request.name else ''}"
            match state:
                case RequestState.PENDING:
                    yield logging.INFO, f"A {what} is asked for, and waits: {reason}"
                case RequestState.IN_PROGRESS:
                    yield logging.INFO, f"A {what} is asked for"
                case RequestState.COMPLETED:
                    yield logging.INFO, f"The {what} that was asked for is taken: {reason}"
                case RequestState.FAILED:
                    yield logging.WARNING, f"The {what} that was asked for was not taken: {reason}"
                case RequestState.ABANDONED:
                    yield logging.INFO, f"Nobody waits any more for the {what} that was asked for: {reason}"
        case SavepointCompleted(metadata):
            name = f" {metadata.given_name}" if metadata.given_name else ""
            yield logging.INFO, f"Savepoint{name} of batch {metadata.batch} completed: {metadata.reference}"
        case CheckpointInProgress() | RestoreInProgress():
            yield logging.INFO, str(event)
        case CheckpointFailed(number, reason, consecutive):
            yield logging.WARNING, f"Checkpoint {number} failed ({consecutive} in a row): {reason}"
        case SettingsIgnored(reasons):
            for reason in reasons:
                yield logging.WARNING, f"A setting of the state backend has no effect. {reason}"
        case CheckpointsDiscarded(discarded, retained):
            yield logging.INFO, f"The job is over: {len(discarded)} checkpoints are deleted, and {len(retained)} stay"
        case Replaying(batch, last, seconds):
            yield (
                logging.INFO,
                f"Running batches {batch} to {last} again with the boundaries they had; {seconds:.0f} s so far",
            )
        case Restarting(error, reason, delay):
            yield logging.WARNING, f"{error} {reason}, in {delay:.1f} s"
