"""Topics of named sources: they come and go, start elsewhere, and are read anew when they come back."""

from __future__ import annotations

import shutil
from collections import Counter
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from dagster_ckpt.errors import RestoreWithLoss
from dagster_ckpt.spark.releases import release_of
from dagster_ckpt.spark.sinks.sink import sink_to
from dagster_ckpt.spark.sinks.transactional_file_sink import TransactionalFileSink
from tests.helpers.spark.streaming import confs
from tests.jobs.kafka.topics import TopicBench
from tests.jobs.starting.test_named_sources import NAMED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from tests.jobs.harness import Bench


@pytest.mark.exhaustive
def test_a_topic_is_left_out_and_comes_back(bench: TopicBench, spark: SparkSession) -> None:
    if not release_of(spark.version).named_sources:
        pytest.skip("this Spark has no named sources")
    sources = ["a", "b"]
    topics = {name: f"{bench.topic}-{name}" for name in sources}
    for topic in topics.values():
        bench.kafka.create(topic)

    def send(*values: str) -> None:
        for value in values:
            bench.kafka.send(topics[value[0]], [value])

    def query(bench: Bench, session: SparkSession) -> DataStreamWriter:
        assert isinstance(bench, TopicBench)
        streams = [
            session.readStream.name(name)
            .format("kafka")
            .option("kafka.bootstrap.servers", bench.kafka.address)
            .option("subscribe", topics[name])
            .option("startingOffsets", "earliest")
            .load()
            for name in sources
        ]
        rows = streams[0]
        for stream in streams[1:]:
            rows = rows.union(stream)
        rows = rows.selectExpr("CAST(value AS STRING) AS v")
        return sink_to(rows, TransactionalFileSink(bench.sink)).trigger(availableNow=True)

    def seen() -> Counter[str]:
        files = sorted(bench.sink.glob("*.parquet"))
        return Counter(row["v"] for file in files for row in pq.read_table(file).to_pylist())

    bench.query = query
    with confs(spark, NAMED):
        send("a1", "a2", "b1")
        bench.tick()
        bench.tick(start_sources={f"a/{topics['a']}": {"0": 1}}, allow_loss=True)
        assert seen() == Counter(["a1", "a2", "a2", "b1"])

        sources.remove("b")
        send("a3", "b2")
        assert "does not read b any more" in bench.refused(RestoreWithLoss).message
        bench.tick(allow_loss=True)
        sources.append("b")
        bench.tick()
        assert seen() == Counter(["a1", "a2", "a2", "a3", "b1", "b2"]), "it goes on where it was before that batch"

        sources.remove("b")
        for value in ("a4", "a5"):  # Spark looks for the place of a source in the last batches only
            send(value)
            bench.tick(allow_loss=True)
        shutil.rmtree(bench.working)
        sources.append("b")
        refused = bench.refused(RestoreWithLoss)
        assert "all that was read there may come again, and rows may be doubled" in refused.message
        bench.tick(allow_loss=True)
        assert seen() == Counter(["a1", "a2", "a2", "a3", "a4", "a5", "b1", "b1", "b2", "b2"])
