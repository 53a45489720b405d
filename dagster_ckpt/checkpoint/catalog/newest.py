"""Which checkpoint a job goes on from by itself: the newest, past those that are in quarantine."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster_ckpt.checkpoint.catalog.lineage import Unreadable, line_of_descent, unreadable
from dagster_ckpt.checkpoint.control.epochs import NOTHING, Choice
from dagster_ckpt.checkpoint.control.heartbeat import Completed, HeartbeatFile
from dagster_ckpt.checkpoint.control.issued_ids import issuing_epochs
from dagster_ckpt.checkpoint.control.taken_savepoints import RecordedSavepoints
from dagster_ckpt.checkpoint.format.layout import checkpoint_id, is_job_id
from dagster_ckpt.checkpoint.format.manifest import FORK, CheckpointMetadata
from dagster_ckpt.errors import (
    CheckpointError,
    CheckpointFileMissing,
    CheckpointNotFound,
    CorruptCheckpoint,
    CorruptRecord,
    StorageError,
)

if TYPE_CHECKING:
    from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog

__all__ = ["Newest", "last_known", "line_before", "older_than", "select"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Newest:
    """The checkpoint to go on from.

    Attributes:
        metadata: the checkpoint; ``None`` means there is nothing to go on from, and that this is as it should be.
        job_id: the lineage to go on with; ``None`` to begin one, from nothing or from a savepoint.
        reason: why this one.
        otherwise: where ``metadata`` is a savepoint that was preferred to a checkpoint: what to go on from if the user
            has damaged it.
        passed_over: quarantined checkpoints that would have been it, each as ``{job id}/chk-N``, the newest first.
    """

    metadata: CheckpointMetadata | None
    job_id: str | None
    reason: str
    otherwise: Callable[[], Newest] | None = None
    passed_over: tuple[str, ...] = ()


def select(catalog: CheckpointCatalog) -> Newest:
    """The newest complete checkpoint of the highest epoch that has one, else that epoch's choice.

    Past those that are in quarantine it goes along the line of descent, never to what a rollback has abandoned.

    Raises:
        CorruptCheckpoint: what must be the newest cannot be read, or every one there is is in quarantine.
        CheckpointNotFound: the recorded choice is gone although nothing gave it up.
        StorageError: a listing does not show a checkpoint that is there.
    """
    known = _known_complete(catalog)  # before the checkpoints are listed, so that none is taken for gone that is new
    # One listing for all that is asked of the epochs here: in a bucket each costs what a read costs.
    epochs = catalog.epochs.names()
    chosen = catalog.choice_among(epochs)
    if chosen is None:
        return Newest(None, None, "this job has no checkpoint yet")
    epoch, choice = chosen
    if (end := catalog.given_up_since(epoch, epochs)) is not None:
        return Newest(None, None, f"the last run ended {end.status} and gave its checkpoints up: {end.reason}")
    quarantined = catalog.quarantine.names()
    best, passed = _own(catalog, epoch, max(epochs), choice, quarantined)
    if known is not None and known.epoch >= epoch and _is_gone(known.checkpoint, choice, best):
        if known.checkpoint not in quarantined:
            raise _gone(catalog, known, choice.restored if best is None else best.reference)
        passed = passed if known.checkpoint in passed else [known.checkpoint, *passed]
    if best is not None:
        reason = f"{best.name} is the newest complete checkpoint (epoch {best.epoch})"
        return Newest(best, choice.job_id, f"{reason}{_past(passed)}", passed_over=tuple(passed))
    if choice.restored is None:
        if passed:
            raise _none_left(catalog, passed)
        return Newest(None, choice.job_id, "the job began from nothing and has no complete checkpoint yet")
    restored, fallback = choice.restored, choice.fallback
    if restored not in quarantined:
        try:
            metadata = catalog.resolve(restored)
        except (CheckpointError, OSError) as error:
            if fallback is None:
                raise
            told = str(error).partition("\n")[0]
            _log.warning("Savepoint %s, which epoch %d began with, is passed over: %s", restored, epoch, told)
            return _without_savepoint(catalog, choice, fallback, passed)
        what = f", the fork of {metadata.restored_from}," if metadata.kind == FORK else ""
        reason = f"{metadata.name}{what} is what epoch {epoch} began with, and it completed no checkpoint of its own"
        return Newest(
            metadata,
            choice.job_id,
            f"{reason}{_past(passed)}",
            None if fallback is None else lambda: _without_savepoint(catalog, choice, fallback, passed),
            tuple(passed),
        )
    return _on_line(catalog, choice.job_id, restored, passed)


def last_known(catalog: CheckpointCatalog, epoch: int, choice: Choice) -> int:
    """The greatest id of a lineage that a run since ``epoch`` has said to be complete, 0 where none has."""
    known = _known_complete(catalog)
    if known is None or known.epoch < epoch or not known.checkpoint.startswith(f"{choice.job_id}/"):
        return 0
    return checkpoint_id(known.checkpoint.rpartition("/")[2]) or 0


def _known_complete(catalog: CheckpointCatalog) -> Completed | None:
    """The newest checkpoint that a run has said to be complete; where its heartbeat cannot be read nobody can tell."""
    try:
        heartbeat = HeartbeatFile(catalog.filesystem, catalog.job_name).read()
    except CorruptRecord:
        return None
    return None if heartbeat is None else heartbeat.completed


def _is_gone(checkpoint: str, choice: Choice, newest: CheckpointMetadata | None) -> bool:
    """Whether a checkpoint that was complete is not there, nor any newer one: retention never does that."""
    job_id, _, name = checkpoint.partition("/")
    number = checkpoint_id(name) or 0
    return job_id == choice.job_id and (newest is None or newest.checkpoint_id < number)


def _gone(catalog: CheckpointCatalog, known: Completed, older: str | None) -> CheckpointFileMissing | StorageError:
    job_id, _, name = known.checkpoint.partition("/")
    with contextlib.suppress(CheckpointNotFound):
        return catalog.unlisted(catalog.load(job_id, checkpoint_id(name) or 0))
    where = f"{catalog.filesystem.url}/{catalog.job_name}"
    back = "empty the sink and start over with restore_from: none" if older is None else f"restore_from: {older}"
    error = CheckpointFileMissing(
        f"{known.checkpoint} is gone: epoch {known.epoch} completed it, no newer one is complete, and "
        f"{where}/{known.checkpoint} has no _metadata that counts. Somebody has deleted it, or it was lost.",
        hint=f"Put the directory back from a backup, and launch the job again. Or go back: launch the job with {back}.",
    )
    error.checkpoint = known.checkpoint
    return error


def _without_savepoint(catalog: CheckpointCatalog, choice: Choice, fallback: str, passed: list[str]) -> Newest:
    """What a savepoint was preferred to that is not there any more."""
    reason = f"what is gone on from without savepoint {choice.restored}, which cannot be used"
    if fallback == NOTHING:
        return Newest(None, choice.job_id, f"nothing is {reason}: the lineage has no checkpoint")
    if fallback in catalog.quarantine.names():
        return _on_line(catalog, choice.job_id, fallback, list(passed))
    metadata = catalog.resolve(fallback)
    return Newest(metadata, choice.job_id, f"{metadata.name} is {reason}", passed_over=tuple(passed))


def _on_line(catalog: CheckpointCatalog, job_id: str, quarantined: str, passed: list[str]) -> Newest:
    """The newest that one in quarantine descends from and that is not in it as well."""
    names = catalog.quarantine.names()
    passed.append(quarantined)
    for reference in line_before(catalog, quarantined):
        if reference in names:
            passed.append(reference)
            continue
        metadata = catalog.resolve(reference)
        reason = f"{metadata.name} is the newest checkpoint on the line of descent"
        return Newest(metadata, job_id, f"{reason}{_past(passed)}", passed_over=tuple(passed))
    raise _none_left(catalog, passed)


def line_before(catalog: CheckpointCatalog, checkpoint: CheckpointMetadata | str) -> list[str]:
    """What a checkpoint descends from in its lineage, the newest first, whether it can be read or not.

    Args:
        catalog: the job's.
        checkpoint: it, or where it cannot be read ``{job id}/chk-N``.
    """
    start: CheckpointMetadata | Unreadable | None = None
    if isinstance(checkpoint, CheckpointMetadata):
        job_id, start = checkpoint.job_id, checkpoint
    else:
        job_id, _, name = checkpoint.partition("/")
        if not is_job_id(job_id) or checkpoint_id(name) is None:
            return []
    completed, broken = catalog.completed(job_id)
    nodes: dict[str, CheckpointMetadata | Unreadable] = {item.reference: item for item in completed}
    missing = {error.checkpoint for error in broken if error.checkpoint is not None}
    if isinstance(checkpoint, str) and checkpoint not in nodes:
        missing.add(checkpoint)
    if missing:
        choices = catalog.choices()
        for reference in missing:
            number = checkpoint_id(reference.rpartition("/")[2]) or 0
            nodes[reference] = unreadable(job_id, number, choices)
    start = start or nodes[str(checkpoint)]
    savepoints = RecordedSavepoints(catalog.filesystem, catalog.job_name).known()
    line = line_of_descent(start, list(nodes.values()), savepoints)
    return [item.reference for item in reversed(line) if item.reference != start.reference]


def older_than(catalog: CheckpointCatalog, checkpoint: CheckpointMetadata | str) -> Iterator[CheckpointMetadata]:
    """What of :func:`line_before` can be read and is not in quarantine, the newest first."""
    quarantined = catalog.quarantine.names()
    for older in line_before(catalog, checkpoint):
        if older not in quarantined:
            try:
                yield catalog.resolve(older)
            except (CheckpointNotFound, CorruptCheckpoint):
                continue


def _own(
    catalog: CheckpointCatalog, epoch: int, highest: int, choice: Choice, quarantined: frozenset[str]
) -> tuple[CheckpointMetadata | None, list[str]]:
    """The newest checkpoint that was taken since ``choice``, and those in quarantine after it.

    Args:
        catalog: the job's.
        epoch: that chose.
        highest: the highest epoch claimed when ``choice`` was read.
        choice: what it chose.
        quarantined: passed over.
    """
    best: CheckpointMetadata | None = None
    passed: list[str] = []
    issuing: frozenset[int] | None = None
    for number in reversed(catalog.numbers(choice.job_id)):
        if number < choice.first_id:
            break
        reference = f"{choice.job_id}/chk-{number}"
        if reference in quarantined:
            passed += [reference] if best is None else []
            continue
        try:
            metadata = catalog.load(choice.job_id, number)
        except CheckpointNotFound:
            continue
        except CorruptCheckpoint:
            if best is None:
                raise
            continue  # older than a good one: it is not what would be restored
        if metadata.epoch >= epoch and (best is None or metadata.key > best.key):
            best = metadata
        if epoch <= metadata.epoch < highest and issuing is None:
            # A run claims its epoch before it looks for what it goes on from: one that issued no id has nothing here.
            issuing = issuing_epochs(catalog.filesystem, catalog.job_name, choice.job_id)
            highest = max((later for later in issuing if later >= metadata.epoch), default=highest)
        if metadata.epoch >= highest:
            break  # no later epoch has a checkpoint, and within an epoch ids rise
    return best, passed


def _past(passed: list[str]) -> str:
    names = ", ".join(name.rpartition("/")[2] for name in passed)
    return f", past {names} in quarantine" if passed else ""


def _none_left(catalog: CheckpointCatalog, passed: list[str]) -> CorruptCheckpoint:
    records = catalog.quarantine.records()
    reasons = " ".join(records[name].reason for name in passed if name in records)
    error = CorruptCheckpoint(
        f"Job {catalog.job_name!r} has no checkpoint left that it could go on from: {', '.join(passed)} "
        f"{'is' if len(passed) == 1 else 'are'} in quarantine. {reasons}",
        hint=f"Put the files back from a backup and launch with restore_from: {passed[0]}, which verifies it and takes "
        "it out of quarantine; or empty the sink and start over with restore_from: none.",
    )
    error.checkpoint = passed[-1]
    return error
