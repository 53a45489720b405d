"""A query of plain Spark becomes a job, and a job becomes a query of plain Spark: every row once, all the way."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dagster_ckpt.checkpoint.control.epochs import FAILING, End
from dagster_ckpt.checkpoint.control.heartbeat import Heartbeat, HeartbeatFile
from dagster_ckpt.checkpoint.processes import ProcessIdentity
from dagster_ckpt.checkpoint.taking.requests.ask_savepoint import ask_checkpoint
from dagster_ckpt.clock import SystemClock
from dagster_ckpt.config.checkpoint_config import CheckpointConfig, JobStatus
from dagster_ckpt.errors import CorruptCheckpoint, RestoreRefused, RestoreWithLoss, SinkMismatch, UnsupportedSpark
from dagster_ckpt.spark.events import CheckpointFailed
from dagster_ckpt.spark.files.checkpoint_location import CheckpointLocation
from dagster_ckpt.spark.plain import export as plain_export
from dagster_ckpt.spark.releases import minor_of
from dagster_ckpt.spark.sinks.sink import sink_to
from dagster_ckpt.spark.sinks.user_sinks import ForeachBatchSink
from tests.jobs.harness import Row, deduplicated, eventually, tree
from tests.jobs.plain.plain import after_five_batches, bench_of, export, exported

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from tests.jobs.harness import Bench

_ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.releases
@pytest.mark.parametrize(
    ("what", "backend"), [pytest.param("counted", "hdfs", marks=pytest.mark.exhaustive), ("deduplicated", "rocksdb")]
)
def test_in_and_out_and_in_again(bench: Bench, tmp_path: Path, what: str, backend: str) -> None:
    bench = bench_of(bench, what)
    plain = after_five_batches(bench, backend)
    before = plain.photograph()
    last = CheckpointLocation(plain.location).last_committed()
    launch = bench.tick(2, fork_from=str(plain.location))
    bench.assert_exact()
    restored = launch.started.restored
    assert restored is not None
    assert (restored.kind, restored.batch, restored.restored_from) == ("fork", last, str(plain.location))
    # A location does not tell its Spark; what 4.0 and 4.1 write there is the same.
    here = minor_of(bench.spark.version)
    assert minor_of(str(restored.facts.spark_version)) == ((4, 0) if here == (4, 1) else here)
    bench.tick(1, restore_from=restored.reference)
    bench.assert_exact()
    assert plain.photograph() == before

    alone = exported(bench, tmp_path / "new" / "out")
    alone.tick(2)
    bench.assert_exact()
    assert not [path for path in (tmp_path / "new").iterdir() if path != alone.location]

    refusal = bench.refused(RestoreRefused, fork_from=str(alone.location))
    assert "has checkpoints of its own" in refusal.message
    bench.name = "again"
    bench.tick(1, fork_from=f"file://{alone.location}")
    bench.assert_exact()


@pytest.mark.releases
def test_a_query_that_died_in_a_batch(bench: Bench) -> None:
    """Its batch is in the sink and not committed; the job runs the batch again as it was planned."""
    bench.files_per_trigger = 2
    plain = after_five_batches(bench, "rocksdb")
    last = CheckpointLocation(plain.location).last_committed()
    for name in (f"{last}", f".{last}.crc"):
        (plain.location / "commits" / name).unlink()
    before = plain.photograph()
    bench.files_per_trigger = 1
    bench.run_and_cancel(1, fork_from=str(plain.location))
    assert plain.photograph() == before
    # It has no checkpoint of its own yet, and nothing but the storage and the sink is left.
    shutil.rmtree(bench.working)
    shutil.rmtree(plain.location)
    assert not bench.tick(1, fork_from=str(plain.location)).of(CheckpointFailed)
    bench.assert_exact()


def test_a_query_that_writes_by_foreach_batch(bench: Bench) -> None:
    """The same function goes on under the library, and is set back to the query's last batch, not to nothing."""
    written: dict[int, list[Row]] = {}
    told: list[int] = []

    def write(rows: DataFrame, batch: int) -> None:
        written[batch] = [tuple(row) for row in rows.collect()]

    def take_back(batch: int, _: object) -> None:
        told.append(batch)
        for later in [other for other in written if other > batch]:
            del written[later]

    def alone(of: Bench, session: SparkSession) -> DataStreamWriter:
        rows = of.read(session).dropDuplicates(["id"]).select("id", "v")
        return rows.writeStream.foreachBatch(write).trigger(availableNow=True)

    def job(of: Bench, session: SparkSession) -> DataStreamWriter:
        rows = of.read(session).dropDuplicates(["id"]).select("id", "v")
        sink = ForeachBatchSink("rows", write, rollback_to=take_back, newest_batch=lambda: max(written, default=None))
        return sink_to(rows, sink).trigger(availableNow=True)

    bench.query = alone
    plain = after_five_batches(bench, "rocksdb")
    bench.query = job
    written[7] = []
    assert (
        "has batch 7, and the query has come to batch 4"
        in bench.refused(SinkMismatch, fork_from=str(plain.location)).message
    )
    del written[7]
    before = dict(written)
    written.clear()  # a new sink, by its newest_batch
    lossy = bench.refused(RestoreWithLoss, fork_from=str(plain.location))
    assert "which gets the rows of batches after 4 only" in lossy.message
    written.update(before)
    bench.tick(2, fork_from=str(plain.location))
    assert told == [4]
    first = bench.checkpoints()[0]
    bench.tick(0)
    older = export(bench, first.reference, "--to", str(bench.root / "out of it"))
    assert older.exit_code == 1
    assert "batches 5 and 6 may have been written to the query's sink" in older.stderr
    assert sorted(written) == list(range(7))
    assert Counter(row for rows in written.values() for row in rows) == bench.expected()


def test_a_batch_that_was_under_way_may_be_in_the_sink(bench: Bench) -> None:
    """The checkpoint has the plan of the batch, and its sink has the rows: Spark alone would write them again."""
    written: list[Row] = []
    has_rows, goes_on = threading.Event(), threading.Event()

    def write(rows: DataFrame, batch: int) -> None:
        written.extend(tuple(row) for row in rows.collect())
        if batch == 1:
            has_rows.set()
            goes_on.wait(600)
            raise ZeroDivisionError("dead before the commit of batch 1")

    def job(of: Bench, session: SparkSession) -> DataStreamWriter:
        sink = ForeachBatchSink("rows", write, rollback_to=lambda *_: None)
        return sink_to(of.read(session).dropDuplicates(["id"]).select("id", "v"), sink)

    bench.query = job
    bench.land(2)
    unaligned = CheckpointConfig(interval="1 h", min_pause="1 h", unaligned=True)
    launch = bench.launch(bench.job(config=unaligned))
    eventually("batch 1 is in the sink", has_rows.is_set, unless=launch.check)
    wait = threading.Event().wait
    taken = ask_checkpoint(bench.catalog, timeout="4 min", clock=SystemClock(), wait=wait, report=lambda _: None)
    assert taken is not None
    covered = bench.catalog.resolve(taken.pointer)
    assert (covered.batch, covered.facts.planned_batch) == (0, 1)
    launch.run.cancel()
    goes_on.set()
    assert launch.result().status is JobStatus.CANCELED
    assert Counter(written) == bench.expected()
    refused = export(bench, "--to", str(bench.root / "out of it"))
    assert refused.exit_code == 1
    assert "double rows" in refused.stderr
    assert "batch 1 may have been written to the query's sink" in refused.stderr
    assert "stop it when it has read all its input" in refused.stderr
    newer = replace(covered, facts=covered.facts.model_copy(update={"spark_version": "9.9.0"}))
    with pytest.raises(UnsupportedSpark, match=r"chk-1 was taken with Spark 9\.9\.0"):
        plain_export.export_checkpoint(
            bench.catalog, newer, str(bench.root / "out of it"), clock=SystemClock(), wait=wait, allow_loss=True
        )
    assert not (bench.root / "out of it").exists()


@pytest.mark.exhaustive
@pytest.mark.timeout(1500)
def test_a_query_that_was_killed_in_a_batch(bench: Bench) -> None:
    """Really killed, with a task in the middle of the third file's rows."""
    driver = [sys.executable, "-m", "tests.jobs.plain.driver", str(bench.root)]
    process = subprocess.Popen(driver, cwd=_ROOT, start_new_session=True)
    try:
        location = CheckpointLocation(bench.root / "plain")
        eventually("the batch is under way", lambda: location.planned() == 2, unless=lambda: _running(process))
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    bench.landed = 3
    assert location.how_far() == (1, 2)
    before = tree(location.path)
    bench.tick(1, fork_from=str(location.path))
    bench.assert_exact()
    assert tree(location.path) == before


def _running(process: subprocess.Popen[bytes]) -> None:
    assert process.poll() is None, "the query ended by itself"


@pytest.mark.quick
def test_what_does_not_fit_is_refused(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By name, and with nothing touched: an output of another moment, files that nobody lists, an older checkpoint."""
    plain = after_five_batches(bench, "rocksdb")
    before, pointer = plain.photograph(), str(plain.location)
    newest = max((bench.sink / "_spark_metadata").glob("[0-9]*"), key=lambda path: int(path.name))
    content = newest.read_bytes()
    newest.unlink()
    refusal = bench.refused(SinkMismatch, fork_from=pointer)
    assert "ends with batch 3, and the query has come to batch 4" in refusal.message
    commit = plain.location / "commits" / "4"
    committed = commit.read_bytes()
    commit.unlink()
    lossy = bench.refused(RestoreWithLoss, fork_from=pointer)
    assert "files that the log of the sink does not list would be removed" in lossy.message
    of_the_batch = [json.loads(line)["path"] for line in content.decode().splitlines()[1:]]
    assert of_the_batch
    assert all(Path(path).name in lossy.message for path in of_the_batch)
    commit.write_bytes(committed)
    newest.write_bytes(content)
    stray = bench.sink / "part-00000-00000000-0000-4000-8000-000000000000-c000.snappy.parquet"
    stray.write_bytes(b"of an attempt that failed")
    refusal = bench.refused(SinkMismatch, fork_from=pointer)
    assert str(stray) in refusal.message
    stray.unlink()
    state = max((plain.location / "state").rglob("*.changelog"), key=lambda path: int(path.stem.partition("_")[0]))
    good = state.read_bytes()
    state.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    assert (
        f"{state.name} of {plain.location} was changed" in bench.refused(CorruptCheckpoint, fork_from=pointer).message
    )
    state.write_bytes(good)
    assert plain.photograph() == before

    def elsewhere(of: Bench, session: SparkSession) -> DataStreamWriter:
        return deduplicated(of, session).option("path", str(of.root / "elsewhere"))

    lossy = bench.refused(RestoreWithLoss, bench.job(query=elsewhere), fork_from=pointer)
    told = "which gets the rows of batches after 4 only; those before stay in the sink that the query wrote to before."
    assert f"the file sink {bench.root / 'elsewhere'}, {told}" in lossy.message

    bench.tick(1, fork_from=pointer)
    bench.tick(1)
    older = export(bench, "chk-1", "--to", str(tmp_path / "out"))
    assert older.exit_code == 1
    assert "skip those numbers and lose rows" in older.stderr
    assert "restore_from" in older.stderr
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    full = export(bench, "--to", str(tmp_path / "full"))
    assert full.exit_code == 1
    assert "is not empty" in full.stderr
    _a_job_that_is_not_over(bench, tmp_path / "out", monkeypatch)
    alive = Heartbeat(
        9, "the-other-run", (ProcessIdentity.current(),), 1, SystemClock().time(), uptime=SystemClock().monotonic()
    )
    HeartbeatFile(bench.filesystem, bench.name).write(alive)
    running = export(bench, "--to", str(tmp_path / "out"))
    assert running.exit_code == 1
    assert "Run the-other-run drives job 'tiny' now" in running.stderr
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".*.export"))


def _a_job_that_is_not_over(bench: Bench, to: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its newest epoch has no final end, so a sensor goes on with the job; or it is launched during the export."""
    epochs = bench.catalog.records.epochs
    newest = epochs.highest()
    end = bench.storage / f"{epochs.claim_path(newest)}.end"
    final = end.read_bytes()
    for ended, told in ((None, "died without an end"), (FAILING, "failed and is to be restarted")):
        end.unlink(missing_ok=True)
        if ended is not None:
            epochs.record_end(newest, End(ended, "for a test", discarded=False, ended_at="2026-01-01T00:00:00Z"))
        refused = export(bench, "--to", str(to))
        assert refused.exit_code == 1
        assert "Job 'tiny' is not over: run" in refused.stderr
        assert told in refused.stderr
        assert "dagster-ckpt sweep tiny --older-than" in refused.stderr
        assert not to.exists()
    end.write_bytes(final)

    def launched_meanwhile(complete: Path, directory: Path) -> None:
        publish(complete, directory)
        epochs.claim(token="t", series=None, run_id="another-run", host="h", pid=1, now="2026-01-01T00:00:00Z")

    publish = plain_export._publish
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(plain_export, "_publish", launched_meanwhile)
        launched = export(bench, "--to", str(to))
    assert launched.exit_code == 1
    assert "was launched while it was exported" in launched.stderr
    assert f"{to} was removed again" in launched.stderr
    assert not to.exists()
