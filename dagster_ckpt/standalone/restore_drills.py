"""``dagster_ckpt.restore_drill``: a restore drill of a job in this process, without Dagster's instance."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg

from dagster_ckpt.config import StateBackend, duration_of
from dagster_ckpt.orchestration import CheckpointedStreamingAsset, CheckpointStorage, SparkSessionResource
from dagster_ckpt.spark import Drilled
from dagster_ckpt.standalone.job_drive import Drive

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["restore_drill"]


def restore_drill(
    query: CheckpointedStreamingAsset | Callable[..., DataStreamWriter],
    *,
    storage: CheckpointStorage | None = None,
    spark: SparkSessionResource | None = None,
    resources: Mapping[str, Any] | dg.Definitions | None = None,
    name: str | None = None,
    state_backend: StateBackend | None = None,
    op_config: Mapping[str, Any] | None = None,
    scratch_directory: str | Path | None = None,
    timeout: str | timedelta = "30 min",
) -> Drilled:
    """Restore the newest checkpoint of a job aside, and compute one batch of its query, whose rows go nowhere.

    The job may be running, and nothing of it is touched.

    .. code-block:: python

        drilled = dagster_ckpt.restore_drill(turnover, storage=storage)
        print(drilled.recovery_seconds, drilled.age_seconds, drilled.batches_behind)

    Args:
        query: a checkpointed streaming asset, or the function of one, as of :func:`run`.
        storage: as of :func:`run`.
        spark: as of :func:`run`.
        resources: as of :func:`run`.
        name: as of :func:`run`.
        state_backend: as of :func:`run`.
        op_config: as of :func:`run`.
        scratch_directory: as of :func:`read_state`.
        timeout: how long the batch may take.

    Raises:
        InvalidConfiguration: an argument cannot be used.
        CheckpointError: the drill failed; the error is that of a restore.
    """
    longest = duration_of("timeout", timeout, "30 min")
    return Drive.of(
        query,
        storage=storage,
        spark=spark,
        resources=resources,
        name=name,
        state_backend=state_backend,
        op_config=op_config,
    ).drill(scratch_directory=scratch_directory, timeout=longest)
