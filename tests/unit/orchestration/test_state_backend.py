# No `from __future__ import annotations`: Dagster must find real types on nested asset functions.

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from dagster_ckpt import (
    EmbeddedRocksDBStateBackend,
    FileSystemCheckpointStorage,
    RestartStrategies,
    SparkSessionResource,
    build_checkpoint_definitions,
    checkpointed_streaming_asset,
)
from tests.jobs.harness import Bench, deduplicated

pytestmark = pytest.mark.slow


def test_the_assets_backend_reaches_spark_and_its_warnings_the_log_of_the_run(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(spark, tmp_path, name="unique")
    bench.land(2)
    started: list[Mapping[str, str]] = []

    def start(_app: str, _master: str, conf: Mapping[str, str], **_: bool) -> SparkSession:
        started.append(conf)
        return spark

    monkeypatch.setattr("dagster_ckpt.spark.start_session", start)

    @checkpointed_streaming_asset(
        restart=RestartStrategies.no_restart(),
        state_backend=EmbeddedRocksDBStateBackend(
            enable_incremental_checkpointing=False,
            db_storage_paths=[str(tmp_path / "ssd")],
            number_of_transfer_threads=4,
        ),
    )
    def unique(context: dg.AssetExecutionContext, spark: SparkSession) -> DataStreamWriter:
        return deduplicated(bench, spark)

    storage = FileSystemCheckpointStorage(checkpoint_path=str(bench.storage), working_directory=str(bench.working))
    given: Mapping[str, Any] = {
        "checkpoint_storage": storage,
        "spark": SparkSessionResource(conf={"spark.local.dir": "/theirs", "a.b": "c"}),
    }
    job = build_checkpoint_definitions([unique], given).resolve_job_def(unique.job_name)
    with dg.DagsterInstance.ephemeral() as instance:
        run = job.execute_in_process(instance=instance)
        warnings = [entry.user_message for entry in instance.all_logs(run.run_id) if entry.level == 30]
    assert run.success
    bench.assert_exact()
    assert started == [{"spark.local.dir": str(tmp_path / "ssd"), "a.b": "c"}]
    state = {Path(file.path).suffix for file in bench.checkpoints()[-1].files if "/state/0/0/" in file.path}
    assert ".zip" in state
    assert ".changelog" not in state
    told = [warning for warning in warnings if "A setting of the state backend" in warning]
    assert len(told) == 2, warnings
    assert "number_of_transfer_threads=4" in told[0]
    assert f"db_storage_paths={tmp_path / 'ssd'}" in told[1]
