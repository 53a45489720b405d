"""Whether ending the job for a rollback would delete the checkpoint that the job is to go back to."""

from __future__ import annotations

from collections.abc import Sequence

import dagster as dg

from dagster_ckpt.checkpoint import CheckpointCatalog, CheckpointMetadata
from dagster_ckpt.config import LATEST, NOW, CheckpointConfig, JobStatus
from dagster_ckpt.errors import RestoreRefused
from dagster_ckpt.paths import is_same_place
from dagster_ckpt.spark import Finding

__all__ = ["DELETING_END", "deleting_end"]

#: The name of the check.
DELETING_END = "cleanup"
#: What the end of a job deletes beside what the job goes back to.
_OTHERS = "the job's other checkpoints, but for the pinned ones, and a savepoint that the job owns"


def deleting_end(
    catalog: CheckpointCatalog,
    config: CheckpointConfig,
    to: str,
    target: CheckpointMetadata | None,
    runs: Sequence[dg.DagsterRun],
) -> list[Finding]:
    """A finding if the rollback ends the job and that end deletes something.

    ``now`` stops a running job with a savepoint: the job is FINISHED, and goes on from the savepoint, which no end
    deletes. Every other rollback terminates the run, so the job is CANCELED.

    A job without an active run is not over before its end is on record: the resume sensor resumes the job, and the
    rollback terminates the resumed run.

    Args:
        catalog: the job's checkpoints.
        config: of the job's last run.
        to: where the job goes back to, as the user wrote it.
        target: the checkpoint or savepoint, ``None`` for a start from nothing.
        runs: the active runs of the job.

    Raises:
        CorruptRecord: nobody can tell how the job ended.
    """
    name = catalog.job_name
    if to == NOW and runs:
        return _stopping_end(name, config, runs[0].run_id)
    deletes = config.discards(JobStatus.CANCELED) and (bool(runs) or _is_unended(catalog))
    if target is not None and _owns(catalog, target) and (deletes or catalog.given_up() is not None):
        error = RestoreRefused(
            f"Job {name!r} was started with claim_mode CLAIM and owns {target.reference}: the end of the job deletes "
            f"that savepoint with the job's checkpoints ({config.cleanup}).",
            hint=f"Copy the directory {target.reference} to another place, and go back to the copy.",
        )
        return [Finding.of_error(DELETING_END, error)]
    if not deletes:
        return []
    if runs:
        why = f"Run {runs[0].run_id} would have to be terminated"
    else:
        why = f"Job {name!r} is not over: the resume sensor resumes it, and a resumed run would have to be terminated"
    kept = target is None or target.location is not None or target.reference in catalog.records.pins.pinned()
    if target is None or (kept and to != LATEST):
        return [Finding.fine(DELETING_END, f"{why}, and under {config.cleanup} that deletes {_OTHERS}.")]
    by_name = f"go back to {target.reference} by that name"
    if kept:
        gone = f"the job's checkpoints: {LATEST!r} would then be a start from nothing"
        hint = f"Instead, {by_name}: the end of the job leaves it alone."
    else:
        gone = target.reference
        pin = f"dagster-ckpt pin {name} {target.reference} {catalog.filesystem.path_option}"
        hint = f"Keep it with `{pin}`, and {by_name}{'; or take a savepoint, and go back to that.' if runs else '.'}"
    error = RestoreRefused(f"{why}, and under {config.cleanup} that deletes {gone}.", hint=hint)
    return [Finding.of_error(DELETING_END, error)]


def _stopping_end(name: str, config: CheckpointConfig, run: str) -> list[Finding]:
    if not config.discards(JobStatus.FINISHED):
        return []
    why = f"Run {run} would be stopped with a savepoint, and without retain_on_success that deletes {_OTHERS}"
    return [Finding.fine(DELETING_END, f"{why}: job {name!r} goes on from the new savepoint.")]


def _is_unended(catalog: CheckpointCatalog) -> bool:
    epochs = catalog.records.epochs
    epoch = epochs.highest()
    end = epochs.read_end(epoch)
    return epoch > 0 and (end is None or not end.is_final)


def _owns(catalog: CheckpointCatalog, target: CheckpointMetadata) -> bool:
    """Whether the target is the savepoint that the job's newest start may delete."""
    chosen = None if target.location is None else catalog.choice()
    claimed = None if chosen is None else chosen[1].claimed
    return claimed is not None and is_same_place(claimed, target.reference)
