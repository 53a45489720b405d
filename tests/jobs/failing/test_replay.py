"""Batches after a checkpoint come out again as they were, whatever the batch size is now."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

import pytest

from dagster_ckpt.config.checkpoint_config import CheckpointConfig, JobStatus
from dagster_ckpt.errors import RestoreWithLoss
from dagster_ckpt.spark.events import Replaying, Started
from dagster_ckpt.spark.sinks.sink import sink_to
from dagster_ckpt.spark.sinks.user_sinks import ForeachBatchSink
from tests.jobs.harness import Bench, Launch, Row, eventually
from tests.jobs.savepoints import Take

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter


def replaced(bench: Bench, session: SparkSession, *, tells: bool = True) -> DataStreamWriter:
    """Every batch replaces the file of its id, and leaves a note each time it is written."""
    directory = bench.root / "batches"

    def write(rows: DataFrame, batch: int) -> None:
        directory.mkdir(exist_ok=True)
        (directory / f"{batch}.json").write_text(json.dumps(sorted(list(row) for row in rows.collect())))
        with (bench.root / "written.jsonl").open("a") as log:
            log.write(json.dumps({"batch": batch, "rows": (directory / f"{batch}.json").read_text()}) + "\n")

    def newest_batch() -> int | None:
        return max((int(file.stem) for file in directory.glob("*.json")), default=None)

    rows = bench.read(session).dropDuplicates(["id"]).select("id", "v")
    writer = sink_to(rows, ForeachBatchSink("batches", write, newest_batch=newest_batch if tells else None))
    return writer.trigger(availableNow=True) if bench.until_done else writer


def in_batches(bench: Bench) -> Counter[Row]:
    files = (bench.root / "batches").glob("*.json")
    return Counter(tuple(row) for file in files for row in json.loads(file.read_text()))


def written(bench: Bench) -> list[tuple[int, str]]:
    lines = (bench.root / "written.jsonl").read_text().splitlines()
    return [(line["batch"], line["rows"]) for line in map(json.loads, lines)]


def run_until(bench: Bench, files: int, batch: int) -> Launch:
    """Land files one by one, let each be a batch, and cancel: no checkpoint of them."""
    bench.until_done = False
    launch = bench.launch()
    eventually("the query starts", lambda: bool(launch.of(Started)), unless=launch.check)
    bench.land(files)
    eventually(
        f"batch {batch} is written",
        lambda: bool(written(bench)) and written(bench)[-1][0] == batch,
        unless=launch.check,
    )
    bench.await_committed(launch)
    launch.run.cancel()
    assert launch.result().status is JobStatus.CANCELED
    bench.until_done = True
    return launch


@pytest.mark.exhaustive
def test_a_sink_that_replaces_by_batch_sees_every_batch_again_with_the_same_rows(bench: Bench) -> None:
    bench.query = replaced
    bench.tick(2)
    run_until(bench, 12, 13)  # over a compaction of the source's log
    before = written(bench)
    shutil.rmtree(bench.working)

    bench.files_per_trigger = 100
    launch = bench.tick(3)
    restored = launch.started.restored
    assert restored is not None
    assert restored.batch == 1
    assert launch.of(Replaying)[0].last == 13
    again = written(bench)[len(before) :]
    assert again[:-1] == before[2:]
    assert again[-1][0] == 14  # and then the three new files, in one batch
    assert in_batches(bench) == bench.expected()


@pytest.mark.exhaustive
def test_batches_that_a_sink_has_and_that_are_not_to_be_replayed_are_a_refusal(bench: Bench) -> None:
    """It cannot go back, and other rows under the same numbers would take the place of what it has."""
    bench.query = replaced
    bench.tick(2)
    run_until(bench, 3, 4)
    shutil.rmtree(bench.working)
    before = in_batches(bench)
    refusal = bench.refused(RestoreWithLoss, replay_to="none")
    assert "how batches 2 to 4 were bounded is not known or not to be heeded" in refusal.message
    archive = bench.storage / bench.name / "control" / "wal"
    archive.rename(bench.root / "wal")
    assert "how batches 2 to 4 were" in bench.refused(RestoreWithLoss).message
    shutil.rmtree(archive, ignore_errors=True)
    (bench.root / "wal").rename(archive)
    assert in_batches(bench) == before
    bench.tick(1)
    assert in_batches(bench) == bench.expected()


@pytest.mark.slow
def test_an_older_savepoint_gives_no_other_rows_to_a_sink_that_tells_nothing(bench: Bench, take: Take) -> None:
    """Nobody keeps the plans of the batches after it any more, and the newest checkpoint tells that they were there."""
    bench.query = partial(replaced, tells=False)
    bench.root.mkdir(parents=True, exist_ok=True)
    (bench.root / "written.jsonl").touch()
    bench.until_done = False
    launch = bench.launch(bench.job(config=CheckpointConfig(interval="50 ms", num_retained=1)))
    eventually("the query starts", lambda: bool(launch.of(Started)), unless=launch.check)
    savepoint = ""
    for batch in range(4):
        bench.land(1)
        eventually(
            f"batch {batch} is captured",
            lambda batch=batch: bool(launch.completed) and launch.completed[-1].batch == batch,  # type: ignore[misc]
            unless=launch.check,
        )
        savepoint = savepoint or take(bench).pointer
    launch.run.cancel()
    launch.result()
    bench.until_done = True
    before = in_batches(bench)
    refusal = bench.refused(RestoreWithLoss, restore_from=savepoint)
    assert "may have batches up to 3, and how batches 1 to 3 were bounded is not known" in refusal.message
    assert in_batches(bench) == before
    bench.tick(1)
    assert in_batches(bench) == bench.expected()


def test_before_the_first_checkpoint_too_a_sink_that_cannot_go_back_gets_no_other_batches(bench: Bench) -> None:
    bench.query = replaced
    bench.root.mkdir(parents=True)
    (bench.root / "written.jsonl").touch()
    run_until(bench, 3, 2)
    assert not bench.checkpoints()
    shutil.rmtree(bench.working)
    before = in_batches(bench)
    bench.files_per_trigger = 2
    refusal = bench.refused(RestoreWithLoss, replay_to="none")
    assert "how batches 0 to 2 were bounded is not known or not to be heeded" in refusal.message
    assert in_batches(bench) == before
    bench.tick(1)
    assert in_batches(bench) == bench.expected()


@pytest.mark.exhaustive
def test_boundaries_are_chosen_anew_when_that_is_asked_for(bench: Bench) -> None:
    """A file sink can be rolled back, so it need not see the same batches."""
    bench.tick(2)
    bench.run_and_cancel(4)
    shutil.rmtree(bench.working)
    bench.files_per_trigger = 100
    launch = bench.tick(1, replay_to="none")
    assert not launch.of(Replaying)
    assert launch.completed[-1].batch == 2
    bench.assert_exact()


def test_a_rollback_replays_up_to_a_batch(bench: Bench) -> None:
    for _ in range(4):
        bench.tick(1)
    assert [metadata.batch for metadata in bench.checkpoints()] == [0, 1, 2, 3]
    bench.files_per_trigger = 100
    launch = bench.tick(2, restore_from="chk-1", replay_to=2)
    assert launch.started.restored is not None
    assert [event.last for event in launch.of(Replaying)] == [2]
    assert launch.completed[-1].batch == 3  # 1 and 2 as they were; then the files of 3 and of this tick, together
    bench.assert_exact()
