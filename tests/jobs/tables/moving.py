"""A stopped job that moves from files into a table, and out of it again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from dagster_ckpt.errors import QueryFailed, RestoreWithLoss, SinkMismatch
from dagster_ckpt.spark.sinks.sink import BatchSink
from tests.jobs.harness import Bench, Query, Row, remove_tree
from tests.jobs.tables.common import dying, into, unique

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["move_there_and_back", "to_files"]


def to_files(name: str) -> Query:
    def query(bench: Bench, session: SparkSession) -> DataStreamWriter:
        writer = unique(bench, session).writeStream.format("parquet").option("path", str(bench.root / name))
        return writer.trigger(availableNow=True)

    return query


def move_there_and_back(
    bench: Bench, make: Callable[[Bench, SparkSession], BatchSink], seen: Callable[[], Counter[Row]]
) -> None:
    """The table is exact from the first batch on: also if the first run there dies with that batch in the table.

    Args:
        bench: the job.
        make: the table's sink, for a session of the query.
        seen: what a reader finds in the table.
    """

    def to_table(bench: Bench, session: SparkSession) -> DataStreamWriter:
        return into(make(bench, session), bench, session)

    def to_table_and_dying(bench: Bench, session: SparkSession) -> DataStreamWriter:
        return into(dying(make(bench, session)), bench, session)

    bench.query = to_files("before")
    bench.tick(2)
    left = bench.expected()
    bench.land(1)
    bench.query = to_table_and_dying
    with pytest.raises(RestoreWithLoss, match="gets the rows of batches after 1 only"):
        bench.launch().result()
    with pytest.raises(QueryFailed, match="dead after the commit of batch 2"):
        bench.launch(allow_loss=True).result()
    of_batch_2 = bench.expected() - left
    assert seen() == of_batch_2

    # Nothing but the storage is left, and the next starts are not asked again. Each takes back what the dead one wrote.
    remove_tree(bench.working)
    bench.land(1)
    with pytest.raises(QueryFailed, match="dead after the commit of batch 2"):
        bench.launch().result()
    assert seen() == of_batch_2, "run again as planned"
    remove_tree(bench.working)
    bench.query = to_table
    bench.files_per_trigger = 2
    went_on = bench.tick(1, replay_to="none")
    assert seen() == bench.expected() - left
    newest = went_on.completed[-1]
    (note,) = newest.facts.accepted_loss
    assert f"those before stay in the file sink {bench.root / 'before'}. (accepted" in note
    bench.tick(1)
    bench.tick(1, restore_from=newest.reference)
    assert seen() == bench.expected() - left
    assert bench.checkpoints()[-1].facts.accepted_loss == [note]

    there = bench.expected()
    bench.query = to_files("after")
    bench.land(1)
    with pytest.raises(
        RestoreWithLoss, match=r"another sink: .* those before stay in the .* sink .*; if it has batches"
    ):
        bench.launch().result()
    back = bench.tick(allow_loss=True)
    assert seen() == there - left
    files = bench.spark.read.parquet(str(bench.root / "after")).select("id", "v").collect()
    assert Counter(map(tuple, files)) == bench.expected() - there
    assert len(back.completed[-1].facts.accepted_loss) == 2

    bench.query = to_table
    refusal = bench.refused(SinkMismatch, allow_loss=True)
    assert ", which has " in refusal.message
    assert "or restore a checkpoint that was taken with " in refusal.hint
