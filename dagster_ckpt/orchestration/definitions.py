"""``build_checkpoint_definitions``: everything Dagster needs for a set of checkpointed jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

from dagster_ckpt.orchestration import names
from dagster_ckpt.orchestration.resume_sensor import build_resume_sensor
from dagster_ckpt.orchestration.streaming_asset import CheckpointedStreamingAsset

__all__ = ["build_checkpoint_definitions"]


def build_checkpoint_definitions(
    assets: Sequence[CheckpointedStreamingAsset],
    resources: Mapping[str, Any] | None = None,
) -> dg.Definitions:
    """Definitions for checkpointed jobs, to be merged with the project's other definitions.

    Each job has the output asset, ``<name>/checkpoints``, ``<name>/savepoints`` and the Dagster job ``<name>_job``. All
    jobs share one resume sensor.

    .. code-block:: python

        defs = dg.Definitions.merge(
            build_checkpoint_definitions(
                [delays],
                resources={
                    "checkpoint_storage": FileSystemCheckpointStorage(checkpoint_path="/mnt/checkpoints"),
                    "spark": SparkSessionResource(master="local[4]"),
                },
            ),
            dg.Definitions(assets=[landed, report]),
        )

    Args:
        assets: made by :func:`checkpointed_streaming_asset`.
        resources: the storage and Spark under the keys that the assets name, and any other resources.
    """
    jobs = [_job(asset) for asset in assets]
    return dg.Definitions(
        assets=[item for asset in assets for item in (asset.definition, asset.checkpoints, asset.savepoints)],
        jobs=jobs,
        sensors=[build_resume_sensor(assets, jobs)],
        resources=dict(resources or {}),
    )


def _job(asset: CheckpointedStreamingAsset) -> Any:
    return dg.define_asset_job(
        asset.job_name,
        selection=[asset.key],
        description=f"Runs {asset.key.to_user_string()}, going on from its newest checkpoint.",
        # One process: a dying run worker then leaves no step process behind. Dagster's own retries are off,
        # because they know neither the restart strategy nor its budget.
        executor_def=dg.in_process_executor,
        tags={names.JOB_TAG: asset.name, names.MAX_RETRIES_TAG: "0"},
    )
