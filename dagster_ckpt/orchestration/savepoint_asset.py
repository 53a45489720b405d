"""``<job>/savepoints``: an asset whose materialization takes a savepoint of the job."""

# No `from __future__ import annotations`: Dagster must find real types on the nested op function.

import time

import dagster as dg
from pydantic import Field

from dagster_ckpt.clock import SystemClock
from dagster_ckpt.orchestration.storages import CheckpointStorage

__all__ = ["SavepointConfig", "savepoints_asset"]


class SavepointConfig(dg.Config):
    """Run configuration of a savepoints asset."""

    to: str | None = Field(
        default=None, description="Directory for the savepoint; savepoint_path of the storage by default."
    )
    stop: bool = Field(
        default=False, description="Stop the running job with it: its run ends successfully and nothing resumes it."
    )
    timeout: str = Field(default="10 min", description="How long to wait for a running job, such as '10 min'.")


def savepoints_asset(
    key: dg.AssetKey,
    output: dg.AssetKey,
    job_name: str,
    storage_key: str,
    group_name: str | None,
    deleted_when: str,
) -> dg.AssetsDefinition:
    """The asset: it asks a running job for a savepoint; for a stopped job it copies the newest completed checkpoint.

    The asset's runs lack the job's tags: they do not wait for the job's run to end, and the resume sensor ignores them.

    Args:
        key: of the asset.
        output: the job's output asset; when both are materialized together, the savepoint is taken after the output.
        job_name: the job's stable name.
        storage_key: resource key of the checkpoint storage.
        group_name: as of any asset.
        deleted_when: shown with the asset.
    """

    @dg.asset(
        key=key,
        deps=[output],
        group_name=group_name,
        kinds={"spark"},
        description=f"Materialize it to take a savepoint of {output.to_user_string()}: a checkpoint that stands alone, "
        "can be moved, and is never deleted by retention or cleanup.",
        metadata={"deleted_when": deleted_when},
        required_resource_keys={storage_key},
        config_schema=SavepointConfig.to_fields_dict(),
    )
    def savepoints(context: dg.AssetExecutionContext) -> dg.MaterializeResult[None]:
        from dagster_ckpt.checkpoint import take_savepoint  # noqa: PLC0415 - only for runs

        storage: CheckpointStorage = getattr(context.resources, storage_key)
        asked = context.op_execution_context.op_config
        taken = take_savepoint(
            storage.catalog(job_name),
            asked.get("to"),
            default=storage.savepoint_path,
            stop=asked["stop"],
            timeout=asked["timeout"],
            clock=SystemClock(),
            wait=time.sleep,
            report=context.log.info,
        )
        return dg.MaterializeResult(
            metadata={
                "pointer": dg.MetadataValue.path(taken.pointer),
                "checkpoint_id": taken.checkpoint_id,
                "batch": taken.batch,
                "files": taken.files,
                "bytes": taken.size,
                "duration_ms": round(taken.seconds * 1000, 3),
            }
        )

    return savepoints
