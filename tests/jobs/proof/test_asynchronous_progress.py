"""Asynchronous progress tracking, with which Spark writes down one batch a second, and starts that are without it."""

from __future__ import annotations

import shutil
from collections import Counter
from threading import Event as Flag
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.functions import udf

from dagster_ckpt.clock import SystemClock
from dagster_ckpt.config.checkpoint_config import JobStatus
from dagster_ckpt.errors import RestoreRefused
from dagster_ckpt.spark.files.checkpoint_location import CheckpointLocation
from dagster_ckpt.spark.proof.batch_on_copy import NEW
from dagster_ckpt.spark.proof.drill import drill_restore
from dagster_ckpt.spark.proof.rehearsal import rehearse
from tests.jobs.harness import NEW_PER_FILE, OFTEN, ROWS_PER_FILE, eventually
from tests.jobs.plain.plain import Plain

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata
    from tests.jobs.harness import Bench, Launch


def _written(bench: Bench, session: SparkSession) -> DataStreamWriter:
    """Writes down each id that it reads. The sinks that Spark allows with this option keep nothing that can be read."""
    to = str(_ids(bench))

    @udf(returnType="int", useArrow=False)
    def write_down(key: int) -> int:
        with open(to, "a", encoding="utf-8") as file:  # noqa: PTH123 - runs in Spark's workers
            file.write(f"{key}\n")
        return key

    return bench.read(session).select(write_down("id")).writeStream.format("noop")


def _asynchronous(bench: Bench, session: SparkSession) -> DataStreamWriter:
    return _written(bench, session).option("asyncProgressTrackingEnabled", "true")


def _synchronous(bench: Bench, session: SparkSession) -> DataStreamWriter:
    return _written(bench, session).trigger(availableNow=True)


def _ids(bench: Bench) -> Path:
    return bench.root / "ids"


def _read(bench: Bench) -> Counter[int]:
    return Counter(map(int, _ids(bench).read_text(encoding="utf-8").split()))


def _land_ahead(bench: Bench) -> None:
    """Keep the query busy, and not for long after it is stopped."""
    if _ids(bench).exists() and bench.landed < _read(bench).total() // ROWS_PER_FILE + 5:
        bench.land(1)


def _rows(first: int, end: int) -> Counter[int]:
    """The ids in the files from ``first`` on."""
    return Counter(number * NEW_PER_FILE + row for number in range(first, end) for row in range(ROWS_PER_FILE))


def _has_gap(metadata: CheckpointMetadata) -> bool:
    entries = {file.path for file in metadata.files}
    return metadata.batch > 1 and f"checkpoint/offsets/{metadata.batch - 1}" not in entries


@pytest.fixture
def restored(bench: Bench) -> CheckpointMetadata:
    """The newest checkpoint of a job that was canceled and has nothing else; the log of the checkpoint has a gap."""
    bench.query = _asynchronous
    bench.land(20)
    launch = bench.launch(bench.job(config=OFTEN))

    def is_taken() -> bool:
        _land_ahead(bench)
        return any(map(_has_gap, launch.completed))

    eventually("a checkpoint without the entry before its last one", is_taken, unless=launch.check)
    launch.run.cancel()
    assert launch.result().status is JobStatus.CANCELED
    shutil.rmtree(bench.working)  # so that nothing can be salvaged
    newest = bench.checkpoints()[-1]
    assert _has_gap(newest)
    bench.land(2)
    _ids(bench).unlink()
    return newest


def _files_before(restored: CheckpointMetadata) -> int:
    """How many files the batches up to the checkpoint have read, one file each."""
    return restored.batch + 1


def test_it_is_drilled_and_rehearsed(bench: Bench, restored: CheckpointMetadata, tmp_path: Path) -> None:
    drilled = drill_restore(bench.job(), bench.catalog, SystemClock(), scratch_directory=tmp_path / "scratch")
    left = bench.landed - _files_before(restored)
    assert (drilled.checkpoint, drilled.read) == (restored.reference, NEW)
    assert (drilled.batch, drilled.input_rows) == (restored.batch + 1, left * ROWS_PER_FILE)
    assert _read(bench) == _rows(_files_before(restored), bench.landed)
    assert rehearse(bench.job(), bench.catalog, Flag()).times == 3


def test_the_option_can_be_taken_out(bench: Bench, restored: CheckpointMetadata) -> None:
    launch: Launch = bench.tick(1, bench.job(query=_synchronous))
    assert launch.started.restored == restored
    assert _read(bench) == _rows(_files_before(restored), bench.landed)
    assert [metadata.batch for metadata in launch.completed] == [
        restored.batch + bench.landed - _files_before(restored)
    ]
    _ids(bench).unlink()
    bench.tick(2, bench.job(query=_synchronous))
    assert _read(bench) == _rows(bench.landed - 2, bench.landed)


def test_a_location_of_plain_spark_that_skips_batches_is_taken_over_as_the_hint_says(bench: Bench) -> None:
    """As it is left by a query that died: entries of ``offsets/`` whose batches are not committed."""
    bench.query = _asynchronous
    bench.land(20)
    plain = Plain(bench, {}, bench.root / "plain")
    location = CheckpointLocation(plain.location)
    query = plain.begin()

    def is_ahead() -> bool:
        _land_ahead(bench)
        newest = location.last_committed() or 0
        return newest - 1 > (location.previous_offsets(newest) or newest)

    try:
        eventually("Spark leaves batches out", is_ahead)
    finally:
        query.stop()
    committed = location.last_committed()
    assert committed is not None
    before = location.previous_offsets(committed)
    assert before is not None
    for later in range(before + 1, committed + 1):
        (plain.location / "commits" / f"{later}").unlink(missing_ok=True)
        (plain.location / "commits" / f".{later}.crc").unlink(missing_ok=True)
    refused = bench.refused(RestoreRefused, bench.job(query=_synchronous), fork_from=str(plain.location))
    assert "asyncProgressTrackingCheckpointIntervalMs set to 0" in refused.hint

    bench.query = lambda of, session: _asynchronous(of, session).option("asyncProgressTrackingCheckpointIntervalMs", 0)
    query = plain.begin()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    _ids(bench).unlink()
    bench.tick(2, bench.job(query=_synchronous), fork_from=str(plain.location))
    assert _read(bench) == _rows(bench.landed - 2, bench.landed)
