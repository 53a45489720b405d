"""The example's stream on each storage and each state backend, killed or failing: exact either way."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from assets.batch_answer import batch_answer, compare, read_delays
from assets.flights import CLOSING_FILES, _write, land, landing_plan
from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.catalog.file_reader import verify_checkpoint
from dagster_ckpt.checkpoint.catalog.newest import find_newest
from dagster_ckpt.spark.sinks.spark_sink_log import FileSink
from tests.helpers.driving import driving
from tests.jobs.harness import Bench
from tests.jobs.storage.test_memory_storage import restarted_from_memory
from tests.system.cluster.layout import JOB, Shared
from tests.system.storages.kinds import BACKENDS, storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DAYS = 16
#: Each storage that outlives its driver. The backends take turns; each of them is restored from memory below.
_PAIRS = [("filesystem", "rocksdb-full"), ("jobmanager", "hashmap"), ("custom", "custom")]
#: One of each provider; the others are restored from memory as `slow`.
_BY_DEFAULT = {"hashmap", "rocksdb-incremental"}


@pytest.mark.exhaustive
@pytest.mark.timeout(2400)
@pytest.mark.parametrize(("kind", "backend"), _PAIRS)
def test_where_the_storage_outlives_the_driver_it_is_killed_and_resumes_exact(
    tmp_path: Path, kind: str, backend: str
) -> None:
    shared = Shared(tmp_path)
    land(shared.landed, days=_DAYS)
    for file in landing_plan()[-CLOSING_FILES:]:
        _write(shared.landed, file)
    command = ("tests.system.storages.driver", kind, backend, str(tmp_path))

    with driving(*command) as driver:
        driver.await_("two checkpoints", lambda: len(driver.of("Completed")) >= 2)
        driver.kill()
        assert not driver.of("Ended"), "the job had ended before it was killed: there was nothing to show"
        completed = [said["checkpoint"] for said in driver.of("Completed")]
    shutil.rmtree(shared.live)

    with driving(*command) as driver:
        assert driver.ended() == "FINISHED"
        (started,) = driver.of("Started")
        assert started["kind"] == "checkpoint"
        assert int(started["restored"].rpartition("-")[2]) >= int(completed[-1].rpartition("-")[2])

    assert compare(batch_answer(shared.landed), read_delays(FileSink(shared.output).committed_files())).identical
    assert compare(batch_answer(shared.landed), read_delays(shared.output.rglob("part-*.parquet"))).identical
    catalog = CheckpointCatalog(storage(kind, shared).filesystem(), JOB)
    newest = find_newest(catalog).metadata
    assert newest is not None
    verify_checkpoint(catalog, newest)
    assert newest.facts.state_store_provider == BACKENDS[backend].provider
    whole = all(file.inline is not None for file in newest.files)
    assert whole == (kind == "jobmanager")


@pytest.mark.parametrize(
    "backend",
    [pytest.param(name, marks=() if name in _BY_DEFAULT else pytest.mark.exhaustive) for name in sorted(BACKENDS)],
)
def test_where_it_does_not_a_failing_query_restarts_inside_the_run_exact(
    spark: SparkSession, tmp_path: Path, backend: str
) -> None:
    restored = restarted_from_memory(Bench(spark, tmp_path / "job"), state_backend=BACKENDS[backend])
    assert restored.facts.state_store_provider == BACKENDS[backend].provider
