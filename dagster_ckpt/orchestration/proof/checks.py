"""The asset checks ``restorable`` and ``fresh`` of a job's newest checkpoint."""

# No `from __future__ import annotations`: Dagster must find a real type on the nested functions.

from collections.abc import Mapping
from functools import partial
from typing import Any

import dagster as dg

from dagster_ckpt.checkpoint import CheckpointCatalog, job_state, read_newest, spot_check
from dagster_ckpt.clock import SystemClock, seconds_of
from dagster_ckpt.errors import CheckpointError
from dagster_ckpt.orchestration.run_settings import JobSettings
from dagster_ckpt.shown_text import printable, redacted

__all__ = ["FRESH", "RESTORABLE", "failed", "fresh_check", "restorable_check"]

#: The names of the checks.
RESTORABLE, FRESH = "restorable", "fresh"
#: What one evaluation reads at most. The next evaluation reads the next files.
_MOST_FILES, _MOST_BYTES = 1000, 256 << 20
_UNTIL = "read_until"


def restorable_check(key: dg.AssetKey, job_name: str, storage_key: str) -> dg.AssetChecksDefinition:
    """The check of a job's newest checkpoint: every file is there, and those that are read are what was written.

    Args:
        key: of the output asset.
        job_name: the job's stable name.
        storage_key: resource key of the checkpoint storage.
    """

    def restorable(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        catalog: CheckpointCatalog = getattr(context.resources, storage_key).catalog(job_name)
        after = _read_until(context.instance, dg.AssetCheckKey(key, RESTORABLE))
        try:
            return _looked_at(catalog, after)
        except CheckpointError as error:
            return failed(error, {_UNTIL: after})  # the next evaluation reads the same files again

    decorate = dg.asset_check(
        asset=key,
        name=RESTORABLE,
        description="Red when the newest checkpoint cannot be read, lacks a file, or has a changed one. An evaluation "
        f"looks for every file and reads {_MOST_FILES:,} files or {_MOST_BYTES >> 20} MiB at most; the next one goes "
        "on after these.",
        required_resource_keys={storage_key},
    )
    return decorate(restorable)


def fresh_check(
    key: dg.AssetKey, job_name: str, storage_key: str, settings: JobSettings, op_name: str
) -> dg.AssetChecksDefinition:
    """The check that no batch waits too long for a checkpoint.

    Args:
        key: of the output asset.
        job_name: the job's stable name.
        storage_key: resource key of the checkpoint storage.
        settings: of the job: how long a batch may wait, unless the job's run says otherwise.
        op_name: of the query.
    """

    def fresh(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        from dagster_ckpt.spark import freshness_of  # noqa: PLC0415 - only for runs

        catalog: CheckpointCatalog = getattr(context.resources, storage_key).catalog(job_name)
        clock = SystemClock()
        try:
            job = job_state(catalog, clock)
            allowed = settings.config_now(context.instance, op_name, job.run_id).longest_without_checkpoint
            found = freshness_of(job, catalog, clock, allowed)
        except CheckpointError as error:
            return failed(error)
        metadata: dict[str, Any] = {
            "behind_seconds": found.behind_seconds,
            "batches_behind": found.batches_behind,
            "allowed_seconds": None if allowed is None else allowed.total_seconds(),
            "checkpoint_age_seconds": job.age(clock.time()),
            "checkpoint": None if job.newest is None else job.newest.reference,
        }
        return dg.AssetCheckResult(
            passed=found.is_fresh,
            metadata={name: value for name, value in metadata.items() if value is not None},
            description=printable(redacted(found.reason)),
        )

    decorate = dg.asset_check(
        asset=key,
        name=FRESH,
        description="Red when a batch waits for a checkpoint longer than tolerable failures may take, or when the job "
        "neither runs nor is over for as long. A stream without input is fresh.",
        required_resource_keys={storage_key},
    )
    return decorate(fresh)


def failed(error: CheckpointError, metadata: Mapping[str, Any] | None = None) -> dg.AssetCheckResult:
    """A red result that tells the error and the next step."""
    told = f"{error.message} {error.hint}".strip()
    return dg.AssetCheckResult(
        passed=False,
        severity=dg.AssetCheckSeverity.ERROR,
        metadata={"error": type(error).__name__, **(metadata or {})},
        description=printable(redacted(told)),
    )


def _looked_at(catalog: CheckpointCatalog, after: str) -> dg.AssetCheckResult:
    newest, found = read_newest(
        catalog,
        partial(spot_check, catalog, after=after, most_files=_MOST_FILES, most_bytes=_MOST_BYTES),
    )
    checkpoint = newest.metadata
    if checkpoint is None or found is None:
        return dg.AssetCheckResult(passed=True, description=f"There is nothing to restore: {newest.reason}.")
    return dg.AssetCheckResult(
        passed=True,
        metadata={
            "checkpoint": checkpoint.reference,
            "checkpoint_age_seconds": round(max(SystemClock().time() - seconds_of(checkpoint.written_at), 0.0), 1),
            "files": len(checkpoint.files),
            "bytes": checkpoint.size,
            "files_read": found.files,
            "bytes_read": found.bytes,
            _UNTIL: found.until,
        },
        description=f"All {len(checkpoint.files)} files of {checkpoint.name} are there, and the {found.files} that "
        f"were read ({found.share:.0%} of the bytes) are what was written.",
    )


def _read_until(instance: dg.DagsterInstance, key: dg.AssetCheckKey) -> str:
    """The last file that the evaluation before has read; empty for the first evaluation."""
    # The newest record is of the evaluation that asks.
    for record in instance.event_log_storage.get_asset_check_execution_history(key, limit=2):
        event = None if record.event is None else record.event.dagster_event
        if event is not None and event.event_type is dg.DagsterEventType.ASSET_CHECK_EVALUATION:
            until = event.asset_check_evaluation_data.metadata.get(_UNTIL)
            return "" if until is None else str(until.value)
    return ""
