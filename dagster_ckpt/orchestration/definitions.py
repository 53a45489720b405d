"""``build_checkpoint_definitions``: everything Dagster needs for a set of checkpointed jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

from dagster_ckpt.errors import InvalidConfiguration
from dagster_ckpt.orchestration.checkpointed_asset import CheckpointedStreamingAsset, only_streams
from dagster_ckpt.orchestration.sensors import build_resume_sensor

__all__ = ["build_checkpoint_definitions"]


def build_checkpoint_definitions(
    assets: Sequence[CheckpointedStreamingAsset],
    resources: Mapping[str, Any] | None = None,
    *,
    sensor_name: str | None = None,
) -> dg.Definitions:
    """Definitions for checkpointed jobs, to be merged with the project's other definitions.

    Each job has the output asset, ``<name>_checkpoints``, ``<name>_savepoints``, the asset checks ``healthy``,
    ``restorable`` and ``fresh``, and three Dagster jobs: ``<name>_job`` runs it, ``<name>_rollback`` takes it back to a
    checkpoint, ``<name>_checkpoint`` has it take a checkpoint at once. With ``standby=True`` there is a fourth,
    ``<name>_standby``. All jobs share one resume sensor.

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
        sensor_name: of the resume sensor, ``{first job}_resume_sensor`` by default. Dagster keeps by the name whether
            somebody has switched the sensor off: a sensor with another name runs.

    Raises:
        InvalidConfiguration: two assets have the same job name, or something else than a stream is among them.
    """
    assets = only_streams(assets, "build_checkpoint_definitions")
    by_name: dict[str, CheckpointedStreamingAsset] = {}
    for asset in assets:
        if (other := by_name.setdefault(asset.name, asset)) is not asset:
            raise InvalidConfiguration(
                f"The assets {other.key.to_user_string()} and {asset.key.to_user_string()} have the same job name "
                f"{asset.name!r}, so each would go on from the checkpoints of the other.",
                hint="Give each asset a job_name of its own.",
            )
    jobs = [job for asset in assets for job in (asset.job, asset.standby) if job is not None]
    return dg.Definitions(
        assets=[item for asset in assets for item in (asset, asset.checkpoints, asset.savepoints)],
        asset_checks=[check for asset in assets for check in (asset.healthy, asset.restorable, asset.fresh)],
        jobs=[*jobs, *(job for asset in assets for job in (asset.rollback, asset.checkpoint_now))],
        sensors=[build_resume_sensor(assets, jobs, name=sensor_name, resources=resources)],
        resources=dict(resources or {}),
    )
