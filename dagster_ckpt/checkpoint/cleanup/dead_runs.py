"""Succeeds a run that is dead: closes its epoch, ends its job if that is due, and does the cleanup of its end."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from dagster_ckpt.checkpoint.catalog import CheckpointCatalog, pending_upgrade, shared_in_use
from dagster_ckpt.checkpoint.control import FAILING, ROUNDS, Choice, Claim, End
from dagster_ckpt.checkpoint.format import checkpoint_id, shared_directory, written_by
from dagster_ckpt.checkpoint.processes import ProcessIdentity
from dagster_ckpt.checkpoint.taking import CompletedCheckpointStore, Discarded, claimed_savepoint, give_up_claimed
from dagster_ckpt.clock import Clock, SystemClock, iso
from dagster_ckpt.config import CheckpointConfig, JobStatus
from dagster_ckpt.errors import CorruptRecord, Fenced
from dagster_ckpt.hosts import this_host

__all__ = [
    "close_earlier",
    "end_dead_epoch",
    "finish_deletions",
    "finish_end",
    "finish_giving_up",
    "finish_recorded_deletions",
    "given_up_numbers",
    "is_unfinished",
    "store_that_ends",
]

_log = logging.getLogger(__name__)


def close_earlier(catalog: CheckpointCatalog, claim: Claim, clock: Clock, *, ends_job: bool = False) -> End | None:
    """Close the epochs before ``claim``: from then on no end that arrives late discards what the job goes on from.

    A run that was declared dead may be about to record its end. The end that is recorded first counts.

    Args:
        catalog: of the job.
        claim: of the caller.
        clock: wall time.
        ends_job: the caller ends the job, and may use the reserve for that.

    Returns:
        the end with which the series of ``claim`` was over before, which is then that of the claim's epoch, too: its
        holder starts nothing. ``None`` if the series goes on.

    Raises:
        StorageError: the storage failed.
        Fenced: a newer run has taken the job over.
    """
    epochs = catalog.records.epochs
    earlier = {epoch: kinds for epoch, kinds in epochs.names().items() if epoch < claim.epoch}
    chooser = max((epoch for epoch, kinds in earlier.items() if "choice" in kinds), default=0)
    reason = f"epoch {claim.epoch} was claimed before this start had recorded its end"
    closing, over = End(FAILING, reason, discarded=False, ended_at=iso(clock.time())), None
    for epoch, kinds in earlier.items():
        if epoch < chooser or ("end" not in kinds and epochs.record_end(epoch, closing, ends_job=ends_job)):
            continue
        with suppress(CorruptRecord):  # whoever needs to know whether the lineage was discarded raises that
            if epoch >= claim.series and (end := epochs.read_end(epoch)) is not None and end.is_final:
                over = end
    if over is not None:
        epochs.record_own_end(claim.epoch, over)
    return over


def finish_deletions(catalog: CheckpointCatalog, epoch: int) -> None:
    """Finish, as the holder of ``epoch``, deletions of earlier epochs; pinned and quarantined checkpoints stay."""
    in_use = partial(shared_in_use, catalog)
    finish_recorded_deletions(catalog, epoch, in_use)
    finish_giving_up(catalog, epoch, in_use)


def finish_recorded_deletions(
    catalog: CheckpointCatalog, epoch: int, in_use: Callable[[str], frozenset[str] | None]
) -> None:
    """Finish the recorded deletions of epochs before ``epoch``.

    Args:
        catalog: of the job.
        epoch: the caller's epoch.
        in_use: names in ``shared/`` of a lineage that must stay, as for :meth:`DeletionLog.recover`.
    """
    catalog.records.deletions.recover(epoch, in_use)
    for reference in catalog.records.quarantine.names():
        lineage, _, name = reference.partition("/")
        if checkpoint_id(name) not in catalog.numbers(lineage):
            catalog.records.quarantine.lift(reference)  # a user has asked for its deletion
    catalog.records.quarantine.lift_overruled()


def finish_giving_up(catalog: CheckpointCatalog, epoch: int, in_use: Callable[[str], frozenset[str] | None]) -> None:
    """Delete, as the holder of ``epoch``, what is left of a discarded lineage; arguments as above."""
    try:
        chosen, end = catalog.choice(), catalog.given_up()
    except CorruptRecord as error:  # a launch that names a checkpoint still works; one from the newest is refused
        _log.warning("Nobody can tell whether the job was discarded, so nothing of it is deleted: %s", error.message)
        return
    if chosen is None or end is None:
        return
    # Either the run died after its end was recorded and before the deletion was, or a checkpoint was unpinned since.
    if (claimed := claimed_savepoint(catalog, chosen[1])) is not None:
        give_up_claimed(catalog, claimed, epoch, SystemClock())
    job_id = chosen[1].job_id
    log = catalog.records.deletions
    for _ in range(ROUNDS):
        numbers = given_up_numbers(catalog, job_id)
        if not numbers:
            return
        entries = catalog.filesystem.list(shared_directory(catalog.job_name, job_id))
        shared = [entry.name for entry in entries if not entry.is_directory and written_by(entry.name) is not None]
        # When the other checkpoints are deleted, only files that pinned checkpoints need are in use.
        if log.delete(epoch, job_id, numbers, shared, end.reason, partial(in_use, job_id)):
            log.tell_foreign(job_id)
            return
    _log.warning(
        "A discarded lineage is not deleted: %d times in a row a checkpoint of it was found pinned meanwhile. Once "
        "nobody needs the lineage, `dagster-ckpt sweep %s %s` deletes it.",
        ROUNDS,
        catalog.job_name,
        catalog.filesystem.path_option,
    )


def given_up_numbers(catalog: CheckpointCatalog, job_id: str) -> list[int]:
    """The checkpoints, complete or not, of a discarded lineage, without the pinned and quarantined ones."""
    pinned = catalog.records.pins.numbers(job_id)
    return sorted({*catalog.numbers(job_id)} - pinned - catalog.records.quarantine.numbers(job_id))


def is_unfinished(catalog: CheckpointCatalog) -> bool:
    """Whether a deletion that is recorded, or that a recorded end asks for, has not been carried out."""
    if catalog.records.deletions.pending():
        return True
    chosen = catalog.choice()
    return chosen is not None and catalog.given_up() is not None and bool(given_up_numbers(catalog, chosen[1].job_id))


def finish_end(catalog: CheckpointCatalog, dead: Claim, end: End, clock: Clock) -> Claim:
    """Carry out the deletions that the recorded ``end`` of a dead run still asks for.

    Args:
        catalog: of the job.
        dead: the job's highest claim.
        end: the recorded end of that claim's epoch.
        clock: wall time.

    Returns:
        the new claim; the deletions were carried out and the same end was recorded under it.

    Raises:
        Fenced: a run has taken the job over meanwhile, and nothing was changed.
        StorageError: the storage failed; call again.
    """
    claim = _claim_after(catalog, dead, clock)
    if close_earlier(catalog, claim, clock, ends_job=True) is None:
        catalog.records.epochs.record_own_end(claim.epoch, end)
    finish_deletions(catalog, claim.epoch)
    return claim


def end_dead_epoch(
    catalog: CheckpointCatalog,
    dead: Claim,
    config: CheckpointConfig,
    status: JobStatus,
    reason: str,
    clock: Clock,
) -> Sequence[Discarded]:
    """End the job of a dead run for good.

    A new epoch is claimed first, so that the dead run, should it wake up, can neither go on nor publish while its
    checkpoints are deleted. The end is recorded before the checkpoints are deleted. Pinned checkpoints stay.

    Returns:
        the deleted checkpoints.

    Raises:
        Fenced: a run has taken the job over meanwhile, or the run that was declared dead has ended the job itself: its
            end counts. Nothing else was changed.
        StorageError: the storage failed; if the end is recorded, :func:`finish_end` does the rest.
    """
    chosen = catalog.choice()
    upgrade = None if chosen is None or status is not JobStatus.FAILED else pending_upgrade(catalog, *chosen)
    back: tuple[str | None, str | None] = (None, None)
    if chosen is not None and upgrade is not None and _is_restarted(catalog, chosen[0], dead):
        back = chosen[1].code.version, upgrade.before
    discards = config.discards(status) and chosen is not None and upgrade is None
    claim = _claim_after(catalog, dead, clock)
    if (over := close_earlier(catalog, claim, clock, ends_job=True)) is not None:
        raise Fenced(
            f"Run {dead.run_id} of job {catalog.job_name!r} was declared dead, and has ended the job itself: "
            f"{over.status}: {over.reason}.",
            hint="Nothing is to be done: that end counts.",
        )
    finish_deletions(catalog, claim.epoch)
    end = End(status.value, reason, discards, iso(clock.time()), *back)
    catalog.records.epochs.record_own_end(claim.epoch, end)
    if not discards or chosen is None:
        return ()
    store = store_that_ends(catalog, claim, chosen[1], config, clock)
    return store.discard_all(f"{status.value}: {reason}, and the cleanup policy deletes")


def store_that_ends(
    catalog: CheckpointCatalog, claim: Claim, choice: Choice, config: CheckpointConfig, clock: Clock
) -> CompletedCheckpointStore:
    """The checkpoints of the lineage of ``choice``, for the holder of ``claim``, which ends the job and adds none."""
    return CompletedCheckpointStore(
        catalog,
        claim,
        job_id=choice.job_id,
        first_id=catalog.next_id(choice.job_id),
        restored_from=None,
        mode=config.mode.value,
        clock=clock,
        claimed=claimed_savepoint(catalog, choice),
    )


def _is_restarted(catalog: CheckpointCatalog, chooser: int, dead: Claim) -> bool:
    """Whether a dead run only restarts what the epoch ``chooser`` began, and so runs the same code."""
    claim = catalog.records.epochs.read_claim(chooser)
    return claim is not None and claim.series == dead.series


def _claim_after(catalog: CheckpointCatalog, dead: Claim, clock: Clock) -> Claim:
    """Claim exactly the epoch after the dead run's epoch, so that only the dead run is fenced."""
    return catalog.records.epochs.claim(
        token=uuid.uuid4().hex,
        series=dead.series,
        run_id=dead.run_id,
        host=this_host(),
        pid=ProcessIdentity.current().pid,
        now=iso(clock.time()),
        after=dead.epoch,
    )
