"""``<job>_savepoints``: an asset whose materialization takes a savepoint of the job."""

# No `from __future__ import annotations`: Dagster must find real types on the nested op function.

import logging
import time
from functools import partial

import dagster as dg
from pydantic import Field

from dagster_ckpt.clock import SystemClock
from dagster_ckpt.config import format_size
from dagster_ckpt.errors import InvalidConfiguration
from dagster_ckpt.orchestration.events import say
from dagster_ckpt.orchestration.rollback import Launchpad
from dagster_ckpt.orchestration.storages import CheckpointStorage

__all__ = ["SavepointConfig", "savepoints_asset"]


class SavepointConfig(dg.Config):
    """Run configuration of a savepoints asset."""

    to: str | None = Field(
        default=None, description="Directory for the savepoint; savepoint_path of the storage by default."
    )
    name: str | None = Field(
        default=None, description="Of the savepoint, unique in the job: savepoint:NAME is a restore_from."
    )
    note: str = Field(default="", description="A line about the savepoint, for whoever looks at it later.")
    series: str | None = Field(
        default=None,
        description="The savepoints of which this is the next one, called SERIES-DATE-TIME without a name.",
    )
    keep: int | None = Field(
        default=None, description="At most so many savepoints of the series stay. By default none is ever deleted."
    )
    max_age: str | None = Field(
        default=None, description="Older savepoints of the series are deleted, except the newest one, such as '30 d'."
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
) -> dg.AssetsDefinition:
    """The asset: it asks a running job for a savepoint; for a stopped job it copies the newest completed checkpoint.

    The asset's runs lack the job's tags: they do not wait for the job's run to end, and the resume sensor ignores them.

    Args:
        key: of the asset.
        output: the job's output asset; when both are materialized together, the savepoint is taken after the output.
        job_name: the job's stable name.
        storage_key: resource key of the checkpoint storage.
        group_name: as of any asset.
    """

    @dg.asset(
        key=key,
        deps=[output],
        group_name=group_name,
        kinds={"spark"},
        description=f"Materialize it to take a savepoint of {output.to_user_string()}: a checkpoint that stands alone, "
        "can be moved, and is never deleted by retention or cleanup. Its observations tell of each savepoint that is "
        "asked for, from Dagster or a terminal: pending, in progress, completed, failed or abandoned. Where "
        "Dagster asks whether you are sure, the output does not count as materialized yet: confirm.",
        metadata={"deleted_when": "never"},
        required_resource_keys={storage_key},
        config_schema=SavepointConfig.to_fields_dict(),
    )
    def savepoints(context: dg.AssetExecutionContext) -> dg.MaterializeResult[None]:
        from dagster_ckpt.checkpoint import (  # noqa: PLC0415 - only for runs
            Label,
            SavepointHistory,
            delete_surplus_savepoints,
            take_savepoint,
        )

        storage: CheckpointStorage = getattr(context.resources, storage_key)
        asked = context.op_execution_context.op_config
        label = Label(asked.get("name"), asked["note"], asked.get("series"))
        history = SavepointHistory.of(asked.get("keep"), asked.get("max_age"))
        if history is not None and label.series is None:
            raise InvalidConfiguration(
                "The savepoint has keep or max_age, and no series.",
                hint="Name the series: only savepoints of a series are ever deleted.",
            )
        catalog, clock = storage.catalog(job_name), SystemClock()
        report = partial(say, context.log, logging.INFO)
        taken = take_savepoint(
            catalog,
            asked.get("to"),
            default=storage.savepoint_path,
            stop=asked["stop"],
            timeout=asked["timeout"],
            clock=clock,
            wait=time.sleep,
            report=report,
            label=label,
        )
        if history is not None and label.series is not None:
            delete_surplus_savepoints(catalog, label.series, history, clock, report, taken=taken.pointer)
        pad = Launchpad.of_run(context.run, job_name)
        return dg.MaterializeResult(
            metadata={
                **({} if pad is None else {"ways_back": pad.ways_back(taken.pointer, "this savepoint")}),
                **{key: value for key, value in (("name", taken.name), ("note", taken.note)) if value},
                "pointer": dg.MetadataValue.path(taken.pointer),
                "checkpoint_id": taken.checkpoint_id,
                "batch": taken.batch,
                "files": taken.files,
                "bytes": taken.size,
                "size": format_size(taken.size),
                "duration_ms": round(taken.seconds * 1000, 3),
            }
        )

    return savepoints
