"""What went wrong with a job, from the records in its storage: also what happened while nobody told of it."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from dagster_ckpt.checkpoint import CheckpointCatalog, Claim, End, Failure
from dagster_ckpt.clock import seconds_of
from dagster_ckpt.config import JobStatus
from dagster_ckpt.errors import (
    CheckpointError,
    CheckpointNotFound,
    CorruptCheckpoint,
    ForeignCheckpoint,
    InvalidConfiguration,
    JobAlreadyRunning,
    RestoreRefused,
    StorageUnusable,
)
from dagster_ckpt.orchestration.events.occurrence import Happened, Occurrence

__all__ = ["next_step", "recorded"]

#: Series of starts that are looked at, and epochs whose choices are: what happened before is old.
_SERIES = 5
_CHOICES = 10
_REFUSALS = (
    CheckpointNotFound,
    CorruptCheckpoint,
    ForeignCheckpoint,
    InvalidConfiguration,
    JobAlreadyRunning,
    RestoreRefused,
    StorageUnusable,
)


def next_step(event: Happened, catalog: CheckpointCatalog) -> str:
    """What a person does after an event of a job, where the event's own reason does not say more."""
    name, path = catalog.job_name, catalog.filesystem.path_option
    match event:
        case Happened.FAILED_CHECKPOINT:
            return (
                "The query goes on, and the next checkpoint is tried in its turn. See whether the checkpoint storage "
                "has space, answers, and can be written to."
            )
        case Happened.RESTART:
            return (
                "Nothing is to be done: the job goes on from its newest checkpoint. If the reason comes back, mend its "
                "cause before the restart strategy ends the job."
            )
        case Happened.FALLBACK:
            return (
                f"See what is broken with `dagster-ckpt verify {name} {path}`. A checkpoint in quarantine "
                "stays until `dagster-ckpt dispose` deletes it."
            )
        case Happened.REFUSED_START:
            return (
                "Nothing was changed. Mend what the reason names and launch the job again; `dagster-ckpt preflight "
                f"{name} {path}` says what can be restored."
            )
        case Happened.FAILED:
            return "Mend the cause, and launch the job with restore_from: latest."


def recorded(
    catalog: CheckpointCatalog, told: Collection[str], *, goes_on: bool, way_on: str = ""
) -> Iterator[Occurrence]:
    """What went wrong in the last starts of a job, in any order.

    Args:
        catalog: the job's checkpoints.
        told: the ids of what was told; a series of starts that was told of is read again only if it is the last.
        goes_on: the latest failure is followed by a restart, which is not on record yet.
        way_on: the next step after the latest failure, if its error says more than this module knows.

    Raises:
        StorageError: the storage failed.
        CorruptCheckpoint: a record cannot be read.
    """
    records, names_of = catalog.records, catalog.records.failures.names
    epochs = records.epochs.names()
    epoch = last = max(epochs, default=0)
    for _ in range(_SERIES):
        claim = records.epochs.read_claim(epoch) if epoch else None
        if claim is None:
            break
        end = records.epochs.read_end(epoch)
        # Of a series that has failed, the end is told last.
        id_of = _end_of if _has_failed(end) else str
        if epoch != last and any(id_of(name) in told for name in names_of(claim.series)):
            break
        yield from _failures(catalog, claim, end, goes_on=goes_on or epoch != last, way_on=way_on)
        epoch, way_on = claim.series - 1, ""
    for chosen in sorted((epoch for epoch, kinds in epochs.items() if "choice" in kinds), reverse=True)[:_CHOICES]:
        choice = records.epochs.read_choice(chosen)
        if choice is not None and choice.fell_back and (claim := records.epochs.read_claim(chosen)) is not None:
            step = next_step(Happened.FALLBACK, catalog)
            at = seconds_of(claim.claimed_at)
            yield Occurrence(Happened.FALLBACK, f"fallback-{chosen}", at, choice.fell_back, step)


def _failures(
    catalog: CheckpointCatalog, claim: Claim, end: End | None, *, goes_on: bool, way_on: str
) -> Iterator[Occurrence]:
    """The failures of one series of starts, of which ``claim`` is the last start."""
    failures = catalog.records.failures.of(claim.series)
    for failure in failures[:-1]:
        yield _occurrence(catalog, failure, Happened.RESTART)
    if not failures:
        return
    last = failures[-1]
    if end is not None and _has_failed(end):
        refused = not last.recoverable and last.kind in _names_of(_REFUSALS)
        yield _occurrence(catalog, last, Happened.REFUSED_START if refused else Happened.FAILED, end.reason, way_on)
    elif goes_on:
        yield _occurrence(catalog, last, Happened.RESTART, way_on=way_on)


def _occurrence(
    catalog: CheckpointCatalog, failure: Failure, event: Happened, reason: str = "", way_on: str = ""
) -> Occurrence:
    name = catalog.records.failures.name(failure)
    # What was told as a restart may turn out to be the end of the job.
    name = name if event is Happened.RESTART else _end_of(name)
    return Occurrence(event, name, failure.at, reason or failure.reason, way_on or next_step(event, catalog))


def _has_failed(end: End | None) -> bool:
    return end is not None and end.status == JobStatus.FAILED.value


def _end_of(name: str) -> str:
    """The event id of this failure when the failure ended the job."""
    return f"{name}-end"


def _names_of(kinds: tuple[type[CheckpointError], ...]) -> set[str]:
    return {name for kind in kinds for name in {kind.__name__, *_names_of(tuple(kind.__subclasses__()))}}
