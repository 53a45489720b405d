"""A stopped job that goes on in another sink: accepted, on record, and exact in both."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dagster_ckpt.cli.spark_files import stored_verdict
from dagster_ckpt.config.checkpoint_config import CheckpointingMode
from dagster_ckpt.config.recovery import RestoreRequest
from dagster_ckpt.errors import CheckpointError, RestoreWithLoss, SinkMismatch
from dagster_ckpt.spark.sinks.sink import sink_to
from dagster_ckpt.spark.sinks.transactional_file_sink import TransactionalFileSink
from tests.jobs.harness import NEVER, NEW_PER_FILE, ROWS_PER_FILE, Bench, Query, Row, remove_tree, tree

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_BEFORE = 6
_EXACT, _AT_LEAST = CheckpointingMode.EXACTLY_ONCE, CheckpointingMode.AT_LEAST_ONCE


class Moved(Bench):
    """The job, with another sink from its seventh file on."""

    @property
    def sink(self) -> Path:
        return self.root / "elsewhere"

    def expected(self) -> Counter[Row]:
        ids = range(_BEFORE * NEW_PER_FILE + ROWS_PER_FILE - NEW_PER_FILE, (self.landed - 1) * NEW_PER_FILE + 8)
        return Counter({(key, key * 10): 1 for key in ids})


def transactional(bench: Bench, session: SparkSession) -> DataStreamWriter:
    """Another kind of sink."""
    rows = bench.read(session).dropDuplicates(["id"]).select("id", "v")
    writer = sink_to(rows, TransactionalFileSink(bench.sink))
    return writer.trigger(availableNow=True) if bench.until_done else writer


@pytest.mark.quick
@pytest.mark.parametrize("kind", ["file", "transactional"])
def test_it_goes_on_there(ticked: Bench, kind: str) -> None:
    moved = Moved(ticked.spark, ticked.root, landed=ticked.landed)
    if kind == "transactional":
        moved.query = transactional
    old = tree(ticked.sink)
    # It ends without a checkpoint, and nothing but the storage is left; the restart is not asked again.
    moved.run_and_cancel(1, allow_loss=True) if kind == "file" else moved.tick(1, allow_loss=True)
    shutil.rmtree(moved.working)
    went_on = moved.tick(1)
    assert moved.in_raw_directory() == moved.expected()
    assert tree(ticked.sink) == old
    newest = went_on.completed[-1]
    assert newest.sink is not None
    assert newest.sink["path"] == str(moved.sink)
    (note,) = newest.facts.accepted_loss
    assert f"those before stay in the file sink {ticked.sink}. (accepted" in note
    moved.tick(1, restore_from=newest.reference)
    assert moved.in_raw_directory() == moved.expected()
    assert moved.checkpoints()[-1].facts.accepted_loss == [note]


@pytest.mark.quick
def test_a_sink_with_data_is_refused(ticked: Bench) -> None:
    moved = Moved(ticked.spark, ticked.root, landed=ticked.landed)
    moved.sink.mkdir()
    (moved.sink / "part-of-something.parquet").touch()
    refusal = moved.refused(SinkMismatch, allow_loss=True)
    assert f"now writes to the file sink {moved.sink}, which has " in refusal.message
    assert f"Write to {ticked.sink} again" in refusal.hint


def files(bench: Bench, session: SparkSession) -> DataStreamWriter:
    writer = bench.read(session).dropDuplicates(["id"]).select("id", "v").writeStream.format("parquet")
    return writer.option("path", str(bench.root / "files")).trigger(availableNow=True)


def other_files(bench: Bench, session: SparkSession) -> DataStreamWriter:
    return files(bench, session).option("path", str(bench.root / "other-files"))


def commits(bench: Bench, session: SparkSession) -> DataStreamWriter:
    rows = bench.read(session).dropDuplicates(["id"]).select("id", "v")
    return sink_to(rows, TransactionalFileSink(bench.root / "commits")).trigger(availableNow=True)


def uncovered(bench: Bench, session: SparkSession) -> DataStreamWriter:
    """A function that checkpoints do not cover."""

    def append(rows: DataFrame, batch: int) -> None:
        with (bench.root / "seen.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps([batch, [list(row) for row in rows.collect()]]) + "\n")

    rows = bench.read(session).dropDuplicates(["id"]).select("id", "v")
    return rows.writeStream.foreachBatch(append).trigger(availableNow=True)


def told_and_done(bench: Bench, mode: CheckpointingMode, asked: str) -> tuple[str, str]:
    """How preflight without the query refuses a restore, and how the start does; empty where they do not."""
    found = stored_verdict(bench.catalog, RestoreRequest(asked)).refusal(mode)
    done = ""
    try:
        bench.launch(bench.job(config=NEVER.model_copy(update={"mode": mode})), restore_from=asked).result()
    except CheckpointError as error:
        done = type(error).__name__
    return "" if found is None else type(found).__name__, done


@pytest.mark.parametrize(
    ("mode", "before", "after"),
    [
        (_EXACT, files, None),
        (_EXACT, files, other_files),
        (_AT_LEAST, files, uncovered),
        pytest.param(_EXACT, files, commits, marks=pytest.mark.exhaustive),
        pytest.param(_AT_LEAST, files, None, marks=pytest.mark.exhaustive),
        pytest.param(_AT_LEAST, uncovered, None, marks=pytest.mark.exhaustive),
        pytest.param(_AT_LEAST, files, other_files, marks=pytest.mark.exhaustive),
        pytest.param(_AT_LEAST, uncovered, files, marks=pytest.mark.exhaustive),
    ],
)
def test_preflight_tells_what_the_start_does(
    bench: Bench, mode: CheckpointingMode, before: Query, after: Query | None
) -> None:
    config = NEVER.model_copy(update={"mode": mode})
    bench.query = before
    for _ in range(2):
        bench.tick(1, bench.job(config=config))
    older, last = bench.checkpoints()
    bench.query = after or before
    bench.tick(1, bench.job(config=config), allow_loss=after is not None)
    newest = bench.checkpoints()[-1]

    if after is not None:
        # What a covered sink has since the move is of no checkpoint before. Another sink is not looked at.
        worse = RestoreWithLoss if after is uncovered else SinkMismatch
        assert told_and_done(bench, mode, older.reference) == (worse.__name__,) * 2
        assert told_and_done(bench, mode, last.reference) == (RestoreWithLoss.__name__,) * 2
        if before is files:
            remove_tree(bench.root / "files")
            assert told_and_done(bench, mode, last.reference) == (RestoreWithLoss.__name__,) * 2
    for asked in (newest.reference, "latest", *([] if after else [last.reference])):
        assert told_and_done(bench, mode, asked) == ("", "")


def test_a_restart_before_the_first_checkpoint_is_not_asked_again(ticked: Bench) -> None:
    """Not even after the sink before has got batches: they are another query's, for example."""
    moved = Moved(ticked.spark, ticked.root, landed=ticked.landed)
    ticked.run_and_cancel(1)
    remove_tree(ticked.working)
    moved.run_and_cancel(1, allow_loss=True)
    remove_tree(moved.working)
    (entry,) = ticked.sink.glob("_spark_metadata/6")
    entry.with_name("7").write_bytes(entry.read_bytes())
    assert stored_verdict(moved.catalog, RestoreRequest()).refusal(_EXACT) is None
    (note,) = moved.tick(1).completed[-1].facts.accepted_loss
    assert "which has batches up to 6" in note


def test_a_second_move_names_both_sinks(ticked: Bench) -> None:
    moved = Moved(ticked.spark, ticked.root, landed=ticked.landed)
    moved.run_and_cancel(1, allow_loss=True)
    remove_tree(moved.working)
    moved.query = other_files
    refusal = moved.refused(RestoreWithLoss)
    assert f"those before stay in the file sink {ticked.sink}; since then the job has" in refusal.message
    assert f"written to the file sink {moved.sink}, which has batches up to 6" in refusal.message
