"""A code location with one version of a job, and a process for each run of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
from pyspark.sql import SparkSession, functions
from pyspark.sql.streaming.readwriter import DataStreamWriter

from dagster_ckpt import (
    CheckpointConfig,
    CheckpointedStreamingAsset,
    FileSystemCheckpointStorage,
    RestartStrategies,
    SparkSessionResource,
    build_checkpoint_definitions,
    checkpointed_streaming_asset,
)
from tests.helpers.local_spark import SMALL_DRIVER
from tests.jobs.harness import Bench

_ROOT = Path(__file__).resolve().parents[3]
_CONF = {
    **SMALL_DRIVER,
    "spark.sql.execution.pythonUDF.arrow.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
}


def _trouble(version: str) -> Callable[[int], int]:
    """What a version does with a number."""
    driver = os.getpid()

    def trouble(number: int) -> int:
        if version == "failing":
            raise ValueError("this version is broken")
        if version == "hanging":
            time.sleep(600)
        if version == "deadly":
            os.kill(driver, signal.SIGKILL)
            time.sleep(600)
        return number

    return trouble


@dataclass(frozen=True)
class Location:
    """A deployment of the job ``tiny``.

    Version 1 gives each id once. The other versions are called by what they do.
    """

    root: Path
    version: str
    has_previous: bool = False

    @property
    def bench(self) -> Bench:
        no_session: Any = None  # each process has its own
        return Bench(no_session, self.root)

    @property
    def asset(self) -> CheckpointedStreamingAsset:
        bench, version = self.bench, self.version

        def one(context: dg.AssetExecutionContext, spark: SparkSession) -> DataStreamWriter:
            return bench.write(bench.read(spark).dropDuplicates(["id"]).select("id", "v"))

        def other(context: dg.AssetExecutionContext, spark: SparkSession) -> DataStreamWriter:
            trouble = functions.udf(_trouble(version), "int")
            return bench.write(bench.read(spark).dropDuplicates(["id"]).select("id", trouble("v").alias("v")))

        return checkpointed_streaming_asset(
            name="tiny",
            code_version=version,
            config=CheckpointConfig(interval="200 ms"),
            restart=RestartStrategies.no_restart(),
            upgrade_timeout="3 s" if version == "hanging" else "10 min",
            previous={"1": one} if self.has_previous else None,
        )(one if version == "1" else other)

    @property
    def resources(self) -> dict[str, Any]:
        return {
            "checkpoint_storage": FileSystemCheckpointStorage(
                checkpoint_path=str(self.bench.storage), working_directory=str(self.bench.working)
            ),
            "spark": SparkSessionResource(master="local[1]", conf=_CONF, class_archive=False),
        }

    def launch(self, instance: dg.DagsterInstance, request: dg.RunRequest | None = None) -> dg.DagsterRunStatus:
        """How a run in a process of its own has ended, for Dagster."""
        given = [str(self.root), self.version, self.has_previous]
        asked = [request.run_config, dict(request.tags)] if request else [{}, {}]
        command = [sys.executable, "-m", "tests.jobs.starting.upgraded", instance.root_directory]
        subprocess.run([*command, json.dumps([given, *asked])], check=False, capture_output=True, cwd=_ROOT)
        return instance.get_runs(limit=1)[0].status

    def sensor(self, instance: dg.DagsterInstance) -> Callable[[], tuple[list[dg.RunRequest], str]]:
        """The ticks of the sensor: what each requests, and what it says."""
        resources = self.resources
        definitions = build_checkpoint_definitions([self.asset], resources)
        (sensor,) = definitions.get_repository_def().sensor_defs
        cursor: str | None = None

        def tick() -> tuple[list[dg.RunRequest], str]:
            nonlocal cursor
            context = dg.build_sensor_context(
                instance=instance,
                cursor=cursor,
                resources={"checkpoint_storage": resources["checkpoint_storage"]},
                definitions=definitions,
            )
            data = sensor.evaluate_tick(context)
            cursor = data.cursor
            return list(data.run_requests or ()), data.skip_message or ""

        return tick


def _run(home: str, asked: str) -> None:
    (root, version, has_previous), config, tags = json.loads(asked)
    location = Location(Path(root), version, has_previous)
    asset = location.asset
    job = build_checkpoint_definitions([asset], location.resources).resolve_job_def(asset.job_name)
    with dg.DagsterInstance.from_config(home) as instance:
        job.execute_in_process(run_config=config, tags=tags, instance=instance, raise_on_error=False)


if __name__ == "__main__":
    _run(*sys.argv[1:])
