"""Which checkpoint a job restores by itself: the newest that is not in quarantine.

Savepoints count too when checkpoints are not preferred (``prefer_checkpoint_for_recovery=False``, as in Flink). Only
savepoints of the job's newest start count, because the job is on their line. Savepoints of an older start were
considered when the newer start chose; if it chose an earlier checkpoint, they are abandoned.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.catalog.lineage import line_before
from dagster_ckpt.checkpoint.control import NOTHING, Choice, Completed, RecordedSavepoint
from dagster_ckpt.checkpoint.format import CHANGED, FORK, SAVEPOINT, CheckpointMetadata, checkpoint_id
from dagster_ckpt.errors import (
    CheckpointError,
    CheckpointFileMissing,
    CheckpointNotFound,
    CorruptCheckpoint,
    CorruptRecord,
    StorageError,
)
from dagster_ckpt.shown_text import first_line

__all__ = ["Newest", "fallback_of", "find_newest", "read_newest"]

_Read = TypeVar("_Read")

_log = logging.getLogger(__name__)

#: How often in a row the job may change during the search for the newest checkpoint. A search takes a few requests,
#: which is less than the time between two checkpoints.
_MOST_LOOKS = 50
#: How often in a row the newest checkpoint may be deleted while it is read.
_MOST_READS = 10


@dataclass(frozen=True, slots=True)
class Newest:
    """The checkpoint to restore.

    Attributes:
        metadata: the checkpoint; ``None`` means a start from nothing, which is right for this job.
        job_id: the lineage to continue; ``None`` to begin a lineage, from nothing or from a savepoint.
        reason: why this checkpoint.
        otherwise: set when ``metadata`` is a savepoint that was preferred to a checkpoint: finds what to restore
            instead if the user has damaged the savepoint.
        passed_over: quarantined checkpoints that would have been chosen, each as ``{job id}/chk-N``, the newest first.
    """

    metadata: CheckpointMetadata | None
    job_id: str | None
    reason: str
    otherwise: Callable[[], Newest] | None = None
    passed_over: tuple[str, ...] = ()


def find_newest(catalog: CheckpointCatalog, *, prefer_checkpoint: bool = True) -> Newest:
    """The checkpoint that an automatic recovery restores.

    It is the newest complete checkpoint since the newest choice, else the checkpoint of that choice. Quarantined
    checkpoints are passed over, and named in ``passed_over``.

    Args:
        catalog: the job's checkpoints.
        prefer_checkpoint: whether savepoints do not count. If they count, the newest readable savepoint is chosen when
            it is newer than every completed checkpoint. The user still owns the savepoint, and the lineage stays the
            same.

    Raises:
        CorruptMetadata: the newest checkpoint cannot be read; an older one is never taken silently.
        CorruptCheckpoint: every existing checkpoint is in quarantine.
        CorruptRecord: a record that is needed to find the newest checkpoint cannot be read.
        CheckpointNotFound: the checkpoint of the newest choice is gone although nothing discarded it.
        StorageError: the storage failed, or its listings keep changing.
    """
    chosen = None if prefer_checkpoint else catalog.choice()
    if chosen is None or catalog.given_up() is not None:
        return _newest_checkpoint(catalog)
    epoch, choice = chosen
    known = catalog.records.taken_savepoints.taken_in(epoch)
    taken = [savepoint for savepoint in known if savepoint.job_id == choice.job_id]
    last = max(catalog.last_completed(choice.job_id), _last_known(catalog, epoch, choice)) if taken else 0
    return _newest_of(catalog, [savepoint for savepoint in taken if savepoint.checkpoint_id > last])


def read_newest(
    catalog: CheckpointCatalog, read: Callable[[CheckpointMetadata], _Read], *, prefer_checkpoint: bool = True
) -> tuple[Newest, _Read | None]:
    """Read the checkpoint that an automatic recovery restores, beside a job that may replace and delete it meanwhile.

    Args:
        catalog: the job's checkpoints.
        read: reads the checkpoint; ``CheckpointNotFound`` says that the checkpoint was deleted meanwhile.
        prefer_checkpoint: as of :func:`find_newest`.

    Returns:
        the checkpoint, and what ``read`` has returned; ``None`` without a checkpoint.

    Raises:
        CheckpointNotFound: each newest checkpoint was deleted while it was read.
        CheckpointError: as of :func:`find_newest` and of ``read``.
    """
    for left in reversed(range(_MOST_READS)):
        newest = find_newest(catalog, prefer_checkpoint=prefer_checkpoint)
        if newest.metadata is None:
            break
        try:
            return newest, read(newest.metadata)
        except CheckpointNotFound:
            if not left:
                raise
    return newest, None


def fallback_of(newest: Newest) -> str | None:
    """The ``fallback`` to record in a choice; ``None`` where there is none."""
    otherwise = newest.otherwise
    if otherwise is None:
        return None
    try:
        while otherwise is not None:
            newest = otherwise()
            otherwise = newest.otherwise
    except (CheckpointError, OSError) as error:
        _log.warning("There is no checkpoint to fall back to if the savepoint is removed: %s", first_line(error))
        return None
    return NOTHING if newest.metadata is None else newest.metadata.reference


def _newest_of(catalog: CheckpointCatalog, newer: Sequence[RecordedSavepoint], *, certain: bool = True) -> Newest:
    """The first of ``newer`` that can be read, else the newest checkpoint.

    A fallback need not be the newest: for it, a savepoint whose storage does not answer is passed over, too.
    """
    for position, savepoint in enumerate(newer, start=1):
        try:
            metadata = _read_savepoint(catalog, savepoint)
        except (CheckpointError, OSError) as error:
            if certain and isinstance(error, StorageError):
                raise  # a storage that is down proves nothing about the savepoint
            _log.warning(
                "Savepoint %s, which is newer than every checkpoint, is passed over: %s",
                savepoint.reference,
                first_line(error),
            )
            continue
        return Newest(
            metadata,
            savepoint.job_id,
            f"{metadata.name} is newer than every complete checkpoint (epoch {savepoint.epoch}), and no checkpoint is "
            "preferred",
            lambda: _newest_of(catalog, newer[position:], certain=False),  # noqa: B023 - this iteration returns
        )
    return _newest_checkpoint(catalog)


def _read_savepoint(catalog: CheckpointCatalog, savepoint: RecordedSavepoint) -> CheckpointMetadata:
    metadata = catalog.resolve(savepoint.reference)
    if (metadata.kind, metadata.job_id, metadata.key) != (SAVEPOINT, savepoint.job_id, savepoint.key):
        raise CheckpointNotFound(f"{metadata.reference} of epoch {metadata.epoch} is in its place now.")
    return metadata


def _newest_checkpoint(catalog: CheckpointCatalog) -> Newest:
    """What :func:`_select` selects, repeated until nothing changes during the search."""
    before: object = None
    for _ in range(_MOST_LOOKS):
        try:
            newest = _select(catalog)
        except (CheckpointNotFound, CorruptCheckpoint):
            found = _listing(catalog)
            if found == before:
                raise
        else:
            if newest.metadata is not None:
                return newest
            found = _listing(catalog)
            if found == before:
                return newest
        # A missing checkpoint may have been published or subsumed during the search. So search again; the result
        # counts when nothing changed meanwhile.
        before = found
    raise StorageError(
        f"The newest checkpoint of {catalog.job_name!r} cannot be told: {_MOST_LOOKS} times in a row the listing of "
        f"{catalog.filesystem.url}/{catalog.job_name} changed during the search.",
        hint="If a run takes checkpoints faster than this machine can list them, try again with a greater "
        "interval, or nearer to the storage. Otherwise the storage's listings are not consistent, and no job is safe "
        "on it.",
    )


def _listing(catalog: CheckpointCatalog) -> object:
    chosen = catalog.choice()
    return catalog.records.epochs.names(), chosen, catalog.numbers(chosen[1].job_id) if chosen else []


def _select(catalog: CheckpointCatalog) -> Newest:
    """The newest complete checkpoint since the newest choice, else the checkpoint of that choice.

    Past quarantined checkpoints, the search follows the line of descent, so it never selects an abandoned checkpoint.

    Raises:
        CorruptCheckpoint: the newest checkpoint cannot be read, or every existing checkpoint is in quarantine.
        CheckpointNotFound: the checkpoint of the newest choice is gone although nothing discarded it.
        StorageError: a listing does not show an existing checkpoint.
    """
    known = _known_complete(catalog)  # read before the listing, so that no newer checkpoint counts as gone
    # The epochs are listed once for all questions: in a bucket a listing costs as much as a read.
    epochs = catalog.records.epochs.names()
    chosen = catalog.choice_among(epochs)
    if chosen is None:
        return Newest(None, None, "this job has no checkpoint yet")
    epoch, choice = chosen
    if (end := catalog.given_up_since(epoch, epochs)) is not None:
        return Newest(None, None, f"the last run ended {end.status} and discarded its checkpoints: {end.reason}")
    quarantined = catalog.records.quarantine.names()
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
        except StorageError:
            raise  # as above: whether the savepoint is still there is not known
        except (CheckpointError, OSError) as error:
            if fallback is None:
                raise
            told = first_line(error)
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


def _last_known(catalog: CheckpointCatalog, epoch: int, choice: Choice) -> int:
    """The greatest id of the lineage that a run since ``epoch`` has reported as complete, 0 if there is none."""
    known = _known_complete(catalog)
    if known is None or known.epoch < epoch or not known.checkpoint.startswith(f"{choice.job_id}/"):
        return 0
    return checkpoint_id(known.checkpoint.rpartition("/")[2]) or 0


def _known_complete(catalog: CheckpointCatalog) -> Completed | None:
    """The newest checkpoint that a heartbeat reports as complete; ``None`` also when the heartbeat is unreadable."""
    try:
        heartbeat = catalog.records.heartbeat.read()
    except CorruptRecord:
        return None
    return None if heartbeat is None else heartbeat.completed


def _is_gone(checkpoint: str, choice: Choice, newest: CheckpointMetadata | None) -> bool:
    """Whether neither ``checkpoint`` nor a newer one is there: retention never deletes the newest checkpoint."""
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
        f"{known.checkpoint} is gone: epoch {known.epoch} completed it, no newer checkpoint is complete, and "
        f"{where}/{known.checkpoint} has no _metadata that counts. Somebody has deleted it, or it was lost.",
        hint=f"Put the directory back from a backup, and launch the job again. Or go back: launch the job with {back}.",
    )
    error.checkpoint = known.checkpoint
    return error


def _without_savepoint(catalog: CheckpointCatalog, choice: Choice, fallback: str, passed: list[str]) -> Newest:
    """The checkpoint that a savepoint was preferred to, now that the savepoint cannot be used."""
    reason = f"the fallback for savepoint {choice.restored}, which cannot be used"
    if fallback == NOTHING:
        return Newest(None, choice.job_id, f"a start from nothing is {reason}: the lineage has no checkpoint")
    if fallback in catalog.records.quarantine.names():
        return _on_line(catalog, choice.job_id, fallback, list(passed))
    metadata = catalog.resolve(fallback)
    return Newest(metadata, choice.job_id, f"{metadata.name} is {reason}", passed_over=tuple(passed))


def _on_line(catalog: CheckpointCatalog, job_id: str, quarantined: str, passed: list[str]) -> Newest:
    """The newest ancestor of a quarantined checkpoint that is not in quarantine itself."""
    names = catalog.records.quarantine.names()
    passed.append(quarantined)
    for reference in line_before(catalog, quarantined):
        if reference in names:
            passed.append(reference)
            continue
        metadata = catalog.resolve(reference)
        reason = f"{metadata.name} is the newest checkpoint on the line of descent"
        return Newest(metadata, job_id, f"{reason}{_past(passed)}", passed_over=tuple(passed))
    raise _none_left(catalog, passed)


def _own(
    catalog: CheckpointCatalog, epoch: int, highest: int, choice: Choice, quarantined: frozenset[str]
) -> tuple[CheckpointMetadata | None, list[str]]:
    """The newest checkpoint that was taken since ``choice``, and the quarantined checkpoints after it.

    Args:
        catalog: the job's.
        epoch: the epoch that recorded ``choice``.
        highest: the highest epoch claimed when ``choice`` was read.
        choice: the newest choice.
        quarantined: the checkpoints to pass over.
    """
    best: CheckpointMetadata | None = None
    copies: list[CheckpointMetadata] = []
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
            continue  # a newer checkpoint is good, so this one would not be restored
        if metadata.kind in CHANGED:  # its start has recorded no choice; that may have been a rollback
            copies.append(metadata)
            continue
        if metadata.epoch >= epoch and (best is None or metadata.key > best.key):
            best = metadata
        if epoch <= metadata.epoch < highest and issuing is None:
            # A run claims its epoch before it chooses a checkpoint; an epoch that issued no id has no checkpoint here.
            issuing = catalog.records.issued(choice.job_id).epochs()
            highest = max((later for later in issuing if later >= metadata.epoch), default=highest)
        if metadata.epoch >= highest:
            break  # no later epoch has a checkpoint, and within an epoch ids rise
    for copy in reversed(copies):
        if copy.restored_from == (choice.restored if best is None else best.reference):
            best = copy
    return best, passed


def _past(passed: list[str]) -> str:
    names = ", ".join(name.rpartition("/")[2] for name in passed)
    return f", past {names} in quarantine" if passed else ""


def _none_left(catalog: CheckpointCatalog, passed: list[str]) -> CorruptCheckpoint:
    records = catalog.records.quarantine.records()
    reasons = " ".join(records[name].reason for name in passed if name in records)
    error = CorruptCheckpoint(
        f"Job {catalog.job_name!r} has no checkpoint left that it could go on from: {', '.join(passed)} "
        f"{'is' if len(passed) == 1 else 'are'} in quarantine. {reasons}",
        hint=f"Put the files back from a backup and launch with restore_from: {passed[0]}, which verifies it and takes "
        "it out of quarantine; or empty the sink and start over with restore_from: none.",
    )
    error.checkpoint = passed[-1]
    return error
