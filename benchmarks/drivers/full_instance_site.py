"""The code location of ``full_instance.py``: one job, whose storage the environment names."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NoReturn

import dagster as dg

from dagster_ckpt import (
    CheckpointedStreamingAsset,
    FileSystemCheckpointStorage,
    RestartStrategies,
    SparkSessionResource,
    build_checkpoint_definitions,
    checkpointed_streaming_asset,
)

#: The environment variable with the directory of the checkpoints.
STORAGE = "FULL_INSTANCE_STORAGE"


def definitions(jobs: Sequence[str], storage: str) -> tuple[dg.Definitions, list[CheckpointedStreamingAsset]]:
    """Jobs of which none ever starts Spark, and their assets.

    Args:
        jobs: their names.
        storage: the directory of their checkpoints.
    """

    def never_run(context: dg.AssetExecutionContext, spark: object) -> NoReturn:
        raise AssertionError((context, spark))

    restart = RestartStrategies.fixed_delay_restart(1_000_000, "1 ms")
    assets = [checkpointed_streaming_asset(name=name, restart=restart)(never_run) for name in jobs]
    resources = {
        "checkpoint_storage": FileSystemCheckpointStorage(checkpoint_path=storage),
        "spark": SparkSessionResource(),
    }
    return build_checkpoint_definitions(assets, resources), assets


if STORAGE in os.environ:
    defs = definitions(["old"], os.environ[STORAGE])[0]
