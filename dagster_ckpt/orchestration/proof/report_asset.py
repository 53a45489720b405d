"""``<job>_report``: an asset whose materialization shows how the job's checkpoints, starts and failures went."""

# No `from __future__ import annotations`: Dagster must find real types on the nested op function.

import base64
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import dagster as dg

from dagster_ckpt.clock import SystemClock
from dagster_ckpt.orchestration.checkpointed_asset import CheckpointedStreamingAsset, only_stream
from dagster_ckpt.orchestration.events import EVENT, Happened
from dagster_ckpt.report import JobHistory, Trouble, charts_of, draw_chart, moment, read_history

__all__ = ["build_job_report"]

#: Observations of the job's asset that are looked through for failed checkpoints, and rows of a table.
_MOST_OBSERVATIONS, _MOST_ROWS = 500, 50


def build_job_report(asset: CheckpointedStreamingAsset, *, cron_schedule: str | None = None) -> dg.Definitions:
    """An asset that shows the job over time, to be merged with the definitions of the job.

    Materializing ``<name>_report`` reads the storage and draws charts: durations and bytes of checkpoints, rows in the
    state, lag, and seconds of starts. They are in its metadata, with tables of the last starts and of what went wrong.
    Neither Spark nor the running job is needed.

    .. code-block:: python

        defs = dg.Definitions.merge(
            build_checkpoint_definitions([turnover], resources=resources),
            build_job_report(turnover, cron_schedule="0 6 * * *"),
        )

    Args:
        asset: of the job. Its definitions, with the storage as a resource, are in the same code location.
        cron_schedule: when reports are made, such as ``0 6 * * *``; ``None`` leaves that to you.

    Raises:
        InvalidConfiguration: the asset is not a stream.
    """
    only_stream(asset, "build_job_report")
    key = dg.AssetKey([*asset.key.path[:-1], f"{asset.key.path[-1]}_report"])

    @dg.asset(
        key=key,
        deps=[asset.checkpoints_key],
        group_name=next(iter(asset.group_names_by_key.values())),
        description=f"Materialize it for charts of {asset.key.to_user_string()}: its checkpoints, starts and failures "
        "over time, as far as the storage tells.",
        required_resource_keys={asset.storage_key},
    )
    def report(context: dg.AssetExecutionContext) -> dg.MaterializeResult[None]:
        catalog = getattr(context.resources, asset.storage_key).catalog(asset.name)
        known = _failed_checkpoints(context.instance, asset.key)
        return dg.MaterializeResult(metadata=_metadata(read_history(catalog, SystemClock(), known)))

    job = dg.define_asset_job(
        f"{asset.name}_report_job",
        selection=dg.AssetSelection.assets(key),
        description=f"A report of {asset.name}.",
        executor_def=dg.in_process_executor,
    )
    schedules = []
    if cron_schedule is not None:
        running = dg.DefaultScheduleStatus.RUNNING
        schedules.append(dg.ScheduleDefinition(job=job, cron_schedule=cron_schedule, default_status=running))
    return dg.Definitions(assets=[report], jobs=[job], schedules=schedules)


def _failed_checkpoints(instance: dg.DagsterInstance, key: dg.AssetKey) -> Iterator[Trouble]:
    """The failed checkpoints that Dagster was told of; the storage has only those since the last good one."""
    for record in instance.fetch_observations(key, limit=_MOST_OBSERVATIONS).records:
        observation = record.event_log_entry.asset_observation
        if observation is not None and observation.tags.get(EVENT) == Happened.FAILED_CHECKPOINT.value:
            told = {name: str(value.value) for name, value in observation.metadata.items()}
            often = f" ({told['times']} times)" if told.get("times", "1") != "1" else ""
            yield Trouble(record.timestamp, "failed checkpoint", record.run_id, f"{told.get('reason', '?')}{often}")


def _metadata(history: JobHistory) -> dict[str, Any]:
    rows = history.checkpoints
    numbers = {
        "checkpoints": len(rows),
        "lineages": len({row.lineage for row in rows}),
        "longest_checkpoint_seconds": round(max((row.seconds for row in rows), default=0.0), 3),
        "restarts": sum(start.is_restart for start in history.starts),
        "troubles": len(history.troubles),
    }
    return {
        "charts": dg.MetadataValue.md(_pictures(history)),
        "state": f"{history.state}{history.reason and f': {history.reason}'}",
        "newest": history.newest or "none",
        "what_went_wrong": _table(
            ("at", "what", "where", "reason"),
            ((moment(each.at), each.what, each.where, each.reason) for each in _last(history.troubles)),
        ),
        "starts": _table(
            ("epoch", "at", "how", "seconds", "began_with", "ended", "run"),
            (
                (
                    str(each.epoch),
                    moment(each.at),
                    "restart" if each.is_restart else "launched",
                    "" if each.seconds is None else f"{each.seconds:.1f}",
                    each.restored,
                    each.end,
                    each.run_id,
                )
                for each in _last(history.starts)
            ),
        ),
        **numbers,
    }


def _pictures(history: JobHistory) -> str:
    """The charts as pictures: text of the storage is within a picture, and never part of the Markdown."""
    drawn = [draw_chart(chart, tooltips=False) for chart in charts_of(history)]
    coded = (base64.b64encode(picture.encode()).decode("ascii") for picture in drawn)
    pictures = [f"![a chart](data:image/svg+xml;base64,{picture})" for picture in coded]
    return "\n\n".join(pictures) or "There is nothing to draw yet."


def _last(items: Sequence[Any]) -> Iterable[Any]:
    """The last items, the newest first."""
    return items[: -_MOST_ROWS - 1 : -1]


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> dg.TableMetadataValue:
    schema = dg.TableSchema(columns=[dg.TableColumn(column, "string") for column in columns])
    records = [dg.TableRecord(dict(zip(columns, row, strict=True))) for row in rows]
    return dg.MetadataValue.table(records, schema=schema)
