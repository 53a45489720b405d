"""A code location of tiny checkpointed pipelines, one per scenario, for tests with a real ``dagster dev``."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
from dagster_pipes import PipesContext
from pyspark.sql import SparkSession, functions
from pyspark.sql.streaming.readwriter import DataStreamWriter

from dagster_ckpt import (
    CheckpointConfig,
    CheckpointedStreamingAsset,
    ExternalizedCheckpointCleanup,
    FileSystemCheckpointStorage,
    JobFailed,
    RestartStrategies,
    SparkSessionResource,
    SparkSubmitResource,
    build_checkpoint_definitions,
    checkpointed_streaming_asset,
    on_job_failed,
)
from tests.system.orchestration.pipeline import POISON, Pipeline

_QUICK = RestartStrategies.fixed_delay_restart(10, "100 ms")
_RETAIN = ExternalizedCheckpointCleanup.RETAIN_ON_CANCELLATION


def _guarded(pipeline: Pipeline) -> Callable[..., Any]:
    hold, poison = str(pipeline.hold), str(pipeline.poison)
    driver, deadly = os.getpid(), str(pipeline.deadly)

    # Nested, so that it travels to the worker by value: a worker cannot import this module.
    def held_from() -> float:
        try:
            return int(Path(hold).read_text())
        except FileNotFoundError:
            return float("inf")

    def guard(k: str, id_: int) -> str:
        while id_ >= held_from():
            time.sleep(0.05)
        left = int(Path(poison).read_text()) if k == POISON and Path(poison).exists() else 0
        if left > 0:
            Path(poison).write_text(str(left - 1))
            if Path(deadly).exists():
                os.kill(driver, signal.SIGKILL)
                time.sleep(60)
            raise ValueError("a poison row")
        return k

    return functions.udf(guard, "string")


def _pipeline(
    name: str,
    *,
    cleanup: ExternalizedCheckpointCleanup = _RETAIN,
    restart: Any = _QUICK,
    num_retained: int = 3,
    poison_batch_attempts: int | None = 5,
    spark_key: str = "spark",
    group_name: str | None = None,
    standby: bool = False,
) -> CheckpointedStreamingAsset:
    # Read by each run anew, because each is a process that loads this module.
    interval, pause = ("1 h", "1 h") if Pipeline.from_environment(name).unhurried.exists() else ("200 ms", "0 s")

    @checkpointed_streaming_asset(
        name=name,
        config=CheckpointConfig(interval=interval, min_pause=pause, num_retained=num_retained, cleanup=cleanup),
        restart=restart,
        poison_batch_attempts=poison_batch_attempts,
        report_interval="0 s",
        spark_key=spark_key,
        group_name=group_name,
        standby=standby,
    )
    def unique_rows(context: dg.AssetExecutionContext, spark: SparkSession) -> DataStreamWriter:
        context.log.info("The function of %s makes its query.", name)
        if spark_key == "spark_submit":
            PipesContext.get().report_asset_check("of_the_function", passed=True)
        pipeline = Pipeline.from_environment(name)
        rows = spark.readStream.schema("k string, id long").option("maxFilesPerTrigger", 1).json(str(pipeline.landing))
        unique = rows.select(_guarded(pipeline)("k", "id").alias("k"), "id").dropDuplicates(["id"])
        writer = unique.writeStream.format("parquet").option("path", str(pipeline.output))
        if pipeline.until_caught_up.exists():
            return writer.trigger(availableNow=True)
        return writer.trigger(processingTime="50 milliseconds")

    return unique_rows


def _second_version(pipeline: Pipeline) -> Callable[..., DataStreamWriter]:
    """It gives each row the wrong letter."""

    def two(context: dg.AssetExecutionContext, spark: SparkSession) -> DataStreamWriter:
        del context
        rows = spark.readStream.schema("k string, id long").option("maxFilesPerTrigger", 1).json(str(pipeline.landing))
        unique = rows.select(functions.lit("wrong").alias("k"), "id").dropDuplicates(["id"])
        return unique.writeStream.format("parquet").option("path", str(pipeline.output))

    return two


def _cut_over() -> CheckpointedStreamingAsset:
    """Version 1 is that of the other pipelines."""
    return checkpointed_streaming_asset(
        name="cut_over",
        config=CheckpointConfig(interval="200 ms", min_pause="0 s", num_retained=10),
        report_interval="0 s",
        code_version="1",
        green={"2": _second_version(Pipeline.from_environment("cut_over"))},
    )(_pipeline("cut_over").function)


def _upgraded() -> CheckpointedStreamingAsset:
    """Version 1 is that of the other pipelines."""
    pipeline = Pipeline.from_environment("upgraded")
    one, two = _pipeline("upgraded").function, _second_version(pipeline)
    version = pipeline.version.read_text() if pipeline.version.exists() else "1"

    return checkpointed_streaming_asset(
        name="upgraded",
        config=CheckpointConfig(
            interval="200 ms", min_pause="0 s", cleanup=ExternalizedCheckpointCleanup.NO_EXTERNALIZED_CHECKPOINTS
        ),
        restart=RestartStrategies.no_restart(),
        report_interval="0 s",
        code_version=version,
        upgrade_timeout="15 s",
        previous={"1": one},
    )(one if version == "1" else two)


def _alert(failed: JobFailed) -> None:
    with Pipeline.from_environment(failed.job_name).alerts.open("a") as alerts:
        print(failed.job_name, failed.state, failed.reason, file=alerts)


killed = _pipeline("killed")
lost_jvm = _pipeline("lost_jvm")
host_crash = _pipeline("host_crash")
retained = _pipeline("retained")
deleted = _pipeline("deleted", cleanup=ExternalizedCheckpointCleanup.DELETE_ON_CANCELLATION)
unexternalized = _pipeline("unexternalized", cleanup=ExternalizedCheckpointCleanup.NO_EXTERNALIZED_CHECKPOINTS)
forced = _pipeline("forced", cleanup=ExternalizedCheckpointCleanup.DELETE_ON_CANCELLATION)
interrupted = _pipeline("interrupted", cleanup=ExternalizedCheckpointCleanup.DELETE_ON_CANCELLATION)
poisoned = _pipeline("poisoned", restart=RestartStrategies.fixed_delay_restart(2, "100 ms"))
deadly = _pipeline("deadly", poison_batch_attempts=2)
hiccups = _pipeline("hiccups", restart=RestartStrategies.fixed_delay_restart(2, "100 ms"))
ticking = _pipeline("ticking")
rolled_back = _pipeline("rolled_back", num_retained=10)
clicked = _pipeline("clicked", num_retained=10)
materialized = _pipeline("materialized")
saved = _pipeline("saved")
warm = _pipeline("warm", spark_key="warm_spark")
stood_by = _pipeline("stood_by", standby=True)
two_standbys = _pipeline("two_standbys", standby=True)
lost_standby = _pipeline("lost_standby", standby=True)
reloaded = _pipeline("reloaded", standby=True)
configured = _pipeline("configured", restart=RestartStrategies.no_restart())
doomed = _pipeline("doomed", restart=RestartStrategies.no_restart(), group_name="doomed")
upgraded = _upgraded()
cut_over = _cut_over()
submitted = _pipeline(
    "submitted", cleanup=ExternalizedCheckpointCleanup.DELETE_ON_CANCELLATION, spark_key="spark_submit"
)

_CONF = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "512m",
    # Python workers need not import pyarrow for a handful of rows.
    "spark.sql.execution.pythonUDF.arrow.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.ui.enabled": "false",
}
_shared = Pipeline.from_environment("")
sys.path.append(str(_shared.root))
with contextlib.suppress(ImportError):  # a test has edited the code of this location
    importlib.import_module("edited_code")

defs = dg.Definitions.merge(
    build_checkpoint_definitions(
        [
            killed,
            lost_jvm,
            host_crash,
            retained,
            deleted,
            unexternalized,
            forced,
            interrupted,
            poisoned,
            deadly,
            hiccups,
            ticking,
            rolled_back,
            clicked,
            materialized,
            saved,
            warm,
            stood_by,
            two_standbys,
            lost_standby,
            reloaded,
            configured,
            submitted,
            upgraded,
            cut_over,
            doomed,
        ],
        resources={
            "checkpoint_storage": FileSystemCheckpointStorage(
                checkpoint_path=str(_shared.checkpoint_path),
                working_directory=str(_shared.working_directory),
                savepoint_path=f"{_shared.checkpoint_path}-savepoints",
            ),
            "spark": SparkSessionResource(master="local[1]", conf=_CONF),
            "warm_spark": SparkSessionResource(master="local[1]", conf=_CONF, standby=1),
            "spark_submit": SparkSubmitResource(
                definitions="tests.system.orchestration.location.definitions:defs", master="local[1]", conf=_CONF
            ),
        },
    ),
    dg.Definitions(
        sensors=[on_job_failed([doomed], _alert, minimum_interval_seconds=5)],
        schedules=[
            dg.ScheduleDefinition(name="ticking_schedule", job_name=ticking.job_name, cron_schedule="0 6 * * *"),
        ],
    ),
)
