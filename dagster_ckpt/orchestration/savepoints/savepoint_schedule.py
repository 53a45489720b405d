"""``build_savepoint_schedule``: savepoints of a job at fixed times, with a history that is kept."""

from __future__ import annotations

from datetime import timedelta

import dagster as dg

from dagster_ckpt.checkpoint import Label, SavepointHistory, check_label
from dagster_ckpt.config import duration_of, format_duration
from dagster_ckpt.orchestration.checkpointed_asset import CheckpointedStreamingAsset, only_stream

__all__ = ["build_savepoint_schedule"]


def build_savepoint_schedule(
    asset: CheckpointedStreamingAsset,
    cron_schedule: str,
    *,
    name: str,
    keep: int | None = None,
    max_age: str | timedelta | None = None,
    to: str | None = None,
    note: str = "",
    execution_timezone: str | None = None,
    default_status: dg.DefaultScheduleStatus = dg.DefaultScheduleStatus.RUNNING,
) -> dg.ScheduleDefinition:
    """A schedule that takes savepoints of a job, and deletes those of its own series that are too many or too old.

    The savepoints are called ``<name>-<date>-<time>``. Without ``keep`` and ``max_age`` no savepoint is ever
    deleted. With them, those that are too many or too old are deleted once the next savepoint is complete, but never
    the one with the newest state, and never one that the job may still go back to by itself. Savepoints of other
    series, and those without a series, are left alone.

    .. code-block:: python

        nightly = build_savepoint_schedule(delays, "0 3 * * *", name="nightly", keep=14, max_age="30 d")

    Args:
        asset: whose job is saved.
        cron_schedule: when, such as ``"0 3 * * *"``.
        name: of the series; the schedule is called ``<job>_<name>_savepoints``.
        keep: at most so many savepoints of the series stay; ``None`` for any number.
        max_age: savepoints of the series that are older are deleted, such as ``"30 d"``; ``None`` for any age.
        to: the directory for them; ``savepoint_path`` of the storage by default.
        note: one line about each of them.
        execution_timezone: of ``cron_schedule``; UTC by default.
        default_status: whether the schedule runs as soon as Dagster knows it.

    Raises:
        InvalidConfiguration: the name, the note or a limit cannot be used, or the asset is not a stream.
    """
    only_stream(asset, "build_savepoint_schedule")
    check_label(Label(note=note, series=name))
    oldest = None if max_age is None else format_duration(duration_of("max_age", max_age, "30 d"))
    SavepointHistory.of(keep, oldest)
    given = {"series": name, "note": note, "keep": keep, "max_age": oldest, "to": to}
    config = {key: value for key, value in given.items() if value is not None}
    return dg.ScheduleDefinition(
        name=f"{asset.name}_{name.replace('-', '_').replace('.', '_')}_savepoints",
        target=dg.AssetSelection.assets(asset.savepoints_key),
        cron_schedule=cron_schedule,
        run_config={"ops": {asset.savepoints.op.name: {"config": config}}},
        execution_timezone=execution_timezone,
        default_status=default_status,
        description=f"Takes savepoints of {asset.name}, called {name}-<date>-<time>.",
    )
