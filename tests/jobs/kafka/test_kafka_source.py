"""A job that reads Kafka: exact through crashes and rollbacks; what the brokers tell is in its checkpoints."""

from __future__ import annotations

import json
import logging
import shutil
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dagster_ckpt.config.checkpoint_config import CheckpointingMode
from dagster_ckpt.config.restart import FixedDelayRestart
from dagster_ckpt.errors import CheckpointError
from dagster_ckpt.orchestration.reporting import checkpoint_metadata
from dagster_ckpt.spark.preflight.kafka_topics import CHECK
from dagster_ckpt.testing.kafka import PASSWORD
from tests.jobs.harness import NEVER, OFTEN, Bench, copied, tree
from tests.jobs.kafka.topics import TopicBench, rows_of, topic_of
from tests.jobs.plain.plain import BACKENDS, Plain, exported

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter


@pytest.mark.releases
def test_a_job_is_exact_after_a_crash_and_after_a_rollback(bench: TopicBench) -> None:
    """Spark's connector to Kafka 4.1.1 fails after each batch that runs again, and the job starts once more."""
    job = bench.job(restart=FixedDelayRestart(3, timedelta(0)))
    first = bench.tick(3, job)
    bench.assert_exact()
    bench.run_and_cancel(2, job)
    shutil.rmtree(bench.working)
    crashed = bench.tick(1, job)
    assert crashed.started.restored == first.completed[-1]
    bench.assert_exact()
    back = bench.tick(1, job, restore_from=first.completed[-1].name)
    assert back.started.restored == first.completed[-1]
    bench.assert_exact()
    assert sum(bench.expected().values()) == 3 + 7 * 5


@pytest.mark.exhaustive
def test_kafkas_own_writer_is_at_least_once_and_says_so(bench: TopicBench) -> None:
    """A rollback loses nothing, and repeats what was written after the checkpoint."""
    copy, address = f"{bench.topic}-copy", bench.kafka.address
    bench.kafka.create(copy)

    def into_kafka(bench: Bench, session: SparkSession) -> DataStreamWriter:
        records = bench.read(session).selectExpr("to_json(struct(id, v)) AS value").writeStream.format("kafka")
        records = records.option("kafka.bootstrap.servers", address).option("topic", copy)
        return records.trigger(availableNow=True)

    job = bench.job(config=NEVER.model_copy(update={"mode": CheckpointingMode.AT_LEAST_ONCE}), query=into_kafka)
    first = bench.tick(1, job)
    bench.tick(1, job)
    back = bench.tick(0, job, restore_from=first.completed[-1].name)
    for launch in (first, back):
        (found,) = [item for item in launch.started.preflight.findings if item.check == "Kafka sink"]
        assert found.reason.startswith("at least once: ")
    written = Counter(json.loads(message.value() or b"")["id"] for message in bench.kafka.records(copy))
    assert written == Counter([*range(8), *range(5, 13), *range(5, 13)])


def test_a_checkpoint_tells_the_ids_of_its_topics_and_how_far_it_is_behind(bench: TopicBench) -> None:
    """The job stops in the middle of its topic, and the brokers know how much is left."""
    bench.land(6)
    stopped = bench.launch(bench.job(config=OFTEN))
    stopped.result()
    for metadata in stopped.completed:
        (source,) = metadata.facts.sources
        read = sum(source.offset[bench.topic].values())
        lag = source.lag[bench.topic]
        assert sum(lag.values()) == 48 - read
        assert {partition: 24 - at for partition, at in source.offset[bench.topic].items()} == lag
    assert sum(stopped.completed[-1].facts.sources[0].lag[bench.topic].values()) == 0
    assert len({item.facts.sources[0].topics[bench.topic].id for item in stopped.completed}) == 1
    first = stopped.completed[0]
    shown = checkpoint_metadata(first, bench.catalog)
    rows = [record.data for record in shown["lag_by_partition"].records]
    assert [row["partition"] for row in rows] == [0, 1]
    assert sum(row["lag"] for row in rows) == shown["lag"] > 0
    assert max(row["lag"] for row in rows) == shown["source_0_most_lag"]
    assert all(row["offset"] + row["lag"] == 24 for row in rows)


def test_each_source_is_asked_for_its_own_topics(bench: TopicBench) -> None:
    """Also where a query uses a source twice, which has two offsets in a checkpoint then."""
    topics = {"left": 1, "right": 2}
    for topic, records in topics.items():
        bench.kafka.create(f"{bench.topic}-{topic}")
        bench.kafka.send(f"{bench.topic}-{topic}", rows_of(0)[:records])

    def union(bench: Bench, session: SparkSession) -> DataStreamWriter:
        assert isinstance(bench, TopicBench)
        left, right = (topic_of(session, bench.kafka.address, subscribe=f"{bench.topic}-{topic}") for topic in topics)
        return bench.write(left.union(left).union(right).select("id", "v"))

    job = bench.job(query=union)
    first = bench.tick(0, job)
    sources = first.completed[-1].facts.sources
    assert [source.lag for source in sources] == [
        {f"{bench.topic}-{topic}": {"0": 0}} for topic in ("left", "left", "right")
    ]
    again = bench.tick(0, job, restore_from=first.completed[-1].name)
    found = [item.reason for item in again.started.preflight.findings if item.check == CHECK]
    assert len(found) == 3
    assert all("has all 0 offsets" in reason for reason in found)


@pytest.mark.exhaustive
def test_partitions_that_a_source_does_not_read_do_not_count(bench: TopicBench) -> None:
    """Neither as lag nor as loss."""
    bench.query, bench.partitions = copied, 1
    bench.subscribe = {"assign": json.dumps({bench.topic: [0]})}
    bench.kafka.send(bench.topic, rows_of(100), 1)
    first = bench.tick(2)
    bench.kafka.expire(bench.topic, {1: 5})
    assert first.completed[-1].facts.sources[0].lag == {bench.topic: {"0": 0}}
    bench.tick(1)
    bench.assert_exact()


@pytest.mark.exhaustive
def test_a_query_of_plain_spark_moves_in_and_out_again(bench: TopicBench, tmp_path: Path) -> None:
    """Its offsets go with it, both ways."""
    plain = Plain(bench, BACKENDS["rocksdb"], bench.root / "plain")
    plain.tick(3)
    bench.tick(2, fork_from=str(plain.location))
    bench.assert_exact()
    bench.tick(1, restore_from=bench.checkpoints()[0].reference)
    bench.assert_exact()
    exported(bench, tmp_path / "out").tick(2)
    bench.assert_exact()


@pytest.mark.exhaustive
def test_brokers_are_asked_with_the_login_of_the_source_which_nobody_is_told(
    bench: TopicBench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    bench.options = bench.kafka.login(PASSWORD)
    launches = [bench.tick(2), bench.tick(1)]
    assert launches[0].completed[-1].facts.sources[0].lag[bench.topic]
    wrong = f"{PASSWORD}-no-more"
    bench.options = bench.kafka.login(wrong)
    refused = bench.launch()
    with pytest.raises(CheckpointError) as caught:
        refused.result()
    launches.append(refused)
    found = [
        item.reason for launch in launches[1:] for item in launch.started.preflight.findings if item.check == CHECK
    ]
    assert "has all 8 offsets after the checkpoint" in found[0]
    assert "SaslAuthenticationException" in found[1]
    told = [repr(launch.events) for launch in launches] + [caplog.text, str(caught.value), repr(tree(bench.root))]
    assert not [text for text in told if PASSWORD in text]
