"""A stopped job that goes on in another sink: accepted, on record, and exact in both."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dagster_ckpt.errors import SinkMismatch
from dagster_ckpt.spark.sinks.sink import sink_to
from dagster_ckpt.spark.sinks.transactional_file_sink import TransactionalFileSink
from tests.jobs.harness import NEW_PER_FILE, ROWS_PER_FILE, Bench, Row, tree

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_BEFORE = 6


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
