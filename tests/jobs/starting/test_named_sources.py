"""Sources with names come and go between two starts of a query: Spark keeps each at its own place."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from dagster_ckpt.errors import QueryMismatch, RestoreRefused, RestoreWithLoss
from dagster_ckpt.spark.releases import release_of
from dagster_ckpt.spark.sinks.sink import sink_to
from dagster_ckpt.spark.sinks.transactional_file_sink import TransactionalFileSink
from tests.helpers.spark.streaming import confs
from tests.jobs.harness import SCHEMA, Bench

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

NAMED = {
    "spark.sql.streaming.queryEvolution.enableSourceEvolution": "true",
    "spark.sql.streaming.offsetLog.formatVersion": "2",
}


class NamedJob:
    """Reads a directory of files for each source that it has now."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.sources: list[str] = []
        self.named = True
        self.landed: Counter[int] = Counter()
        self.bench = Bench(spark, root / "job", query=self._query)
        self.root = root

    def land(self, source: str, ids: Iterable[int]) -> None:
        rows = [json.dumps({"id": id_}) for id_ in ids]
        directory = self.root / source
        directory.mkdir(exist_ok=True)
        (directory / f"{len(list(directory.iterdir()))}.json").write_text("\n".join(rows))

    def read(self, source: str, reader: DataStreamReader) -> DataFrame:
        return reader.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(self.root / source))

    def seen(self) -> list[int]:
        files = sorted(self.bench.sink.glob("*.parquet"))
        return sorted(row["id"] for file in files for row in pq.read_table(file).to_pylist())

    def _query(self, bench: Bench, session: SparkSession) -> DataStreamWriter:
        streams = [
            self.read(name, session.readStream.name(name) if self.named else session.readStream)
            for name in self.sources
        ]
        rows = streams[0]
        for stream in streams[1:]:
            rows = rows.union(stream)
        return sink_to(rows.select("id"), TransactionalFileSink(bench.sink)).trigger(availableNow=True)


@pytest.mark.slow
@pytest.mark.releases
def test_a_source_is_added_and_another_one_dropped(spark: SparkSession, tmp_path: Path) -> None:
    if not release_of(spark.version).named_sources:
        pytest.skip("this Spark has no named sources")
    job = NamedJob(spark, tmp_path)
    with confs(spark, NAMED):
        job.sources = ["a", "b"]
        job.land("a", [1, 2])
        job.land("b", [101])
        job.bench.tick()
        first = job.bench.checkpoints()[-1]

        job.sources = ["c", "b", "a"]  # in another order, too
        job.land("a", [3])
        job.land("c", [201, 202])
        shutil.rmtree(job.bench.working)
        job.bench.tick()
        assert job.seen() == [1, 2, 3, 101, 201, 202]

        second = job.bench.checkpoints()[-1]

        job.sources = ["a", "c"]
        for source, id_ in (("a", 4), ("b", 102), ("c", 203)):
            job.land(source, [id_])
        refused = job.bench.refused(RestoreWithLoss)
        assert (
            'the query does not read b any more: all that comes after the checkpoint, from {"logOffset": 0} on'
            in refused.message
        )
        shutil.rmtree(job.bench.working)
        launch = job.bench.tick(allow_loss=True)
        assert job.seen() == [1, 2, 3, 4, 101, 201, 202, 203]
        assert "does not read b any more" in launch.completed[-1].facts.accepted_loss[0]

        job.sources = ["a", "b"]  # as many as before, and not the same
        assert "the query does not read c any more" in job.bench.refused(RestoreWithLoss).message
        job.sources = ["a", "b", "c"]
        job.land("b", [103])
        shutil.rmtree(job.bench.working)
        job.bench.tick()
        assert job.seen() == [1, 2, 3, 4, 101, 102, 103, 201, 202, 203], "it goes on where it was left"

        # The same loss from another place is another loss.
        job.sources = ["a", "c"]
        assert "does not read b any more" in job.bench.refused(RestoreWithLoss).message
        job.sources = ["a", "b", "c"]

        # Batches of other sources than the query has do not run again as they were.
        told = job.bench.refused(RestoreRefused, restore_from=second.reference, replay_to="latest").message
        assert "with the sources a, c, and the query has a, b, c" in told
        job.bench.tick(restore_from=first.reference)
        assert job.seen() == [1, 2, 3, 4, 101, 102, 103, 201, 202, 203]
    job.named = False
    told = job.bench.refused(QueryMismatch, restore_from=first.reference).message
    assert "chk-1 names its sources, and the query does not" in told


@pytest.mark.slow
@pytest.mark.releases
def test_a_source_left_out_for_longer_is_read_again_by_consent_only(spark: SparkSession, tmp_path: Path) -> None:
    """Its name is a number, which is a name as any other."""
    if not release_of(spark.version).named_sources:
        pytest.skip("this Spark has no named sources")
    job = NamedJob(spark, tmp_path)
    with confs(spark, NAMED):
        job.sources = ["a", "2024"]
        for source, id_ in (("a", 1), ("2024", 101), ("2024", 102)):
            job.land(source, [id_])
        job.bench.tick()

        job.sources = ["a"]
        for id_ in (2, 3, 4):  # a batch each: the last two do not tell how far the other source has read
            job.land("a", [id_])
        shutil.rmtree(job.bench.working)
        job.bench.tick(allow_loss=True)

        job.sources = ["a", "2024"]
        shutil.rmtree(job.bench.working)
        refused = job.bench.refused(RestoreWithLoss)
        assert "it has read 2024 before, and after batch 4 Spark does not know how far" in refused.message
        assert job.seen() == [1, 2, 3, 4, 101, 102]
        job.land("2024", [103])
        job.bench.tick(allow_loss=True)
        assert job.seen() == [1, 2, 3, 4, 101, 101, 102, 102, 103]


@pytest.mark.slow
@pytest.mark.exhaustive
def test_names_that_come_later(spark: SparkSession, tmp_path: Path) -> None:
    if not release_of(spark.version).named_sources:
        pytest.skip("this Spark has no named sources")
    job = NamedJob(spark, tmp_path)
    job.sources, job.named = ["a"], False
    job.land("a", [1])
    job.bench.tick()
    job.named = True
    with confs(spark, NAMED):
        assert "The query names its sources, and chk-1 does not" in job.bench.refused(QueryMismatch).message
