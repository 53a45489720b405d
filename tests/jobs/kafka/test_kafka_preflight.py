"""What preflight finds in the topics of a checkpoint, and how many records a restore really loses then."""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from dagster_ckpt.clock import SystemClock
from dagster_ckpt.config import RestoreRequest, StartSources
from dagster_ckpt.config.restart import FixedDelayRestart
from dagster_ckpt.errors import CheckpointError, RestoreRefused, RestoreWithLoss, TopicRecreated
from dagster_ckpt.spark.kafka import BrokersAway, KafkaInputs
from dagster_ckpt.spark.moved_sources import MOVE_CHECK
from dagster_ckpt.spark.preflight import check_stored
from dagster_ckpt.spark.preflight.kafka_topics import CHECK
from dagster_ckpt.spark.proof.drill import drill_restore
from dagster_ckpt.spark.sinks.sink import sink_to
from dagster_ckpt.spark.sinks.user_sinks import ForeachBatchSink
from dagster_ckpt.spark.verdict import Verdict
from dagster_ckpt.testing.kafka import PASSWORD
from tests.jobs.harness import OFTEN, Bench, Launch, copied, eventually
from tests.jobs.kafka.topics import TopicBench

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

#: Of a topic that was created again.
_NEW = [json.dumps({"id": key, "v": key * 10}) for key in range(1000, 1024)]


@dataclass(frozen=True)
class Change:
    """What happens to a topic after a checkpoint of its first four files: 16 records of each of two partitions.

    Attributes:
        change: changes the topic; returns the ids that can still be read.
        says: what preflight says of it.
        stops: whether Spark would notice, and stop.
    """

    change: Callable[[TopicBench], Counter[int]]
    says: str
    stops: bool = True


def _expired(bench: TopicBench) -> Counter[int]:
    """Two files later; of partition 0 the first three new records are gone, of partition 1 an old one."""
    bench.land(2)
    bench.kafka.expire(bench.topic, {0: 19, 1: 1})
    return Counter(range(20 + 3, 20 + 8)) + Counter(range(25, 25 + 8))


def _shorter(bench: TopicBench) -> Counter[int]:
    bench.kafka.recreate(bench.topic, 2)
    bench.kafka.send(bench.topic, _NEW[:3])
    return Counter()


def _longer(bench: TopicBench) -> Counter[int]:
    """Nobody would notice."""
    bench.kafka.recreate(bench.topic, 2)
    bench.kafka.send(bench.topic, _NEW[:18], 0)
    bench.kafka.send(bench.topic, [_NEW[18]] * 17, 1)
    return Counter([1016, 1017, 1018])


def _fewer(bench: TopicBench) -> Counter[int]:
    bench.kafka.recreate(bench.topic, 1)
    bench.kafka.send(bench.topic, _NEW[:18])
    return Counter([1016, 1017])


def _wider(bench: TopicBench) -> Counter[int]:
    bench.kafka.widen(bench.topic, 3)
    bench.kafka.send(bench.topic, _NEW[:2], 2)
    return Counter([1000, 1001])


def _wider_and_expired(bench: TopicBench) -> Counter[int]:
    bench.kafka.widen(bench.topic, 3)
    bench.kafka.send(bench.topic, _NEW[:5], 2)
    bench.kafka.expire(bench.topic, {2: 3})
    return Counter([1003, 1004])


def _left_out(bench: TopicBench) -> Counter[int]:
    """The query reads another topic."""
    bench.land(1)
    bench.topic = f"{bench.topic}-other"
    bench.kafka.create(bench.topic)
    bench.kafka.send(bench.topic, _NEW[:2])
    return Counter([1000, 1001])


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(
            Change(_expired, "3 records after the checkpoint are gone (partition 0: 3)"),
            id="expired",
        ),
        pytest.param(
            Change(_longer, "32 records below the checkpoint's offsets", stops=False),
            id="longer",
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(Change(_fewer, "Partition 1 is not there any more"), id="fewer", marks=pytest.mark.exhaustive),
        pytest.param(
            Change(_left_out, "8 records after the checkpoint are left out"),
            id="left out",
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            Change(_shorter, "3 records below the checkpoint's offsets would be skipped"),
            id="shorter",
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            Change(_wider_and_expired, "3 records of new partitions are gone"),
            id="wider and expired",
            marks=pytest.mark.exhaustive,
        ),
    ],
)
def test_preflight_counts_the_records_that_a_restore_loses(bench: TopicBench, change: Change) -> None:
    """And refuses it, before anything is touched; a restore that is wanted nevertheless loses just these."""
    bench.query = copied
    bench.tick(4)
    before = bench.seen_by_spark()
    left = change.change(bench)
    with pytest.raises(CheckpointError, match=re.escape(change.says)):
        drill_restore(bench.job(), bench.catalog, SystemClock())
    refused = bench.refused(RestoreRefused if change.stops else RestoreWithLoss)
    assert change.says in refused.message
    assert "allow_loss: true" in refused.hint
    assert ("failOnDataLoss=false" in refused.hint) == change.stops
    bench.lenient = True
    refused = bench.refused(RestoreWithLoss)
    assert change.says in refused.message
    launch = bench.tick(0, allow_loss=True)
    assert Counter(row[0] for row in (bench.seen_by_spark() - before).elements()) == left
    assert change.says in launch.completed[-1].facts.accepted_loss[0]
    bench.tick(0)


_SOON = {"segment.ms": "1000", "min.cleanable.dirty.ratio": "0.0001", "max.compaction.lag.ms": "1000"}


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="never cleaned", marks=pytest.mark.exhaustive),
        pytest.param({"min.compaction.lag.ms": "3600000"}, id="kept"),
        pytest.param(_SOON, id="cleaned", marks=pytest.mark.exhaustive),
    ],
)
def test_a_compacted_topic_may_have_lost_what_is_read_again(bench: TopicBench, settings: dict[str, str]) -> None:
    """Brokers do not tell whether the cleaner has run. Records that are too young for it are surely there."""
    bench.query, bench.topic, bench.partitions = copied, f"{bench.topic}-compacted", 1
    bench.kafka.create(bench.topic, 1, **{"cleanup.policy": "compact,delete", **settings})
    bench.land(2, key="same")
    first = bench.tick(0).completed[-1].name
    bench.land(1, key="same")
    (finding,) = [item for item in bench.tick(0).started.preflight.findings if item.check == CHECK]
    assert "has all 8 offsets" in finding.reason
    assert "may be gone" not in finding.reason
    if settings is _SOON:
        pause = threading.Event()
        for _ in range(100):
            bench.kafka.send(bench.topic, _NEW[:1], key="another")  # makes a new segment
            if len(list(bench.kafka.records(bench.topic))) < 24:
                break
            pause.wait(2)
        else:
            pytest.fail("the cleaner has not run")
    if "min.compaction.lag.ms" in settings:
        bench.tick(0, restore_from=first)
        bench.assert_exact()
        return
    before = bench.seen_by_spark()
    refused = bench.refused(RestoreWithLoss, restore_from=first)
    assert "up to 8 records that a newer checkpoint covers may be gone (partition 0: 8)" in refused.message
    if settings is _SOON:
        launch = bench.tick(0, restore_from=first, allow_loss=True)
        assert "the topic is compacted" in launch.completed[-1].facts.accepted_loss[0]
        assert 0 < sum((before - bench.seen_by_spark()).values()) <= 8


def test_what_can_be_read_again_is_counted_and_new_partitions_are_named(bench: TopicBench) -> None:
    bench.tick(4)
    _wider(bench)
    bench.land(1)
    (finding,) = [item for item in bench.tick(0).started.preflight.findings if item.check == CHECK]
    assert "has all 10 offsets after the checkpoint. Partitions that are new since" in finding.reason
    assert {1000, 1001} <= {row[0] for row in bench.seen_by_spark()}


@pytest.mark.exhaustive
def test_topics_come_and_go_under_a_pattern(bench: TopicBench) -> None:
    """A new topic is read from its beginning, if that is there. What the pattern matches no more is a loss."""
    bench.query = copied
    bench.subscribe = {"subscribePattern": bench.topic}  # Spark looks for it anywhere in a name
    bench.tick(2)
    other = f"{bench.topic}-other"
    bench.kafka.create(other)
    bench.kafka.send(other, _NEW[:5])
    bench.kafka.expire(other, {0: 2})
    refused = bench.refused(RestoreRefused)
    assert f"the new topic {other} of source 0: 2 records of new partitions are gone" in refused.message
    bench.kafka.recreate(other)
    bench.kafka.send(other, _NEW[:3])
    told = [item.reason for item in bench.tick(0).started.preflight.findings if item.check == CHECK]
    assert [f"the new topic {other} of source 0 has all 3 offsets" in each for each in told] == [False, True]
    new = Counter(range(1000, 1003))
    assert Counter(row[0] for row in (bench.seen_by_spark() - bench.expected()).elements()) == new

    bench.kafka.send(other, _NEW[3:5])
    bench.subscribe = {"subscribePattern": f"{bench.topic}$"}
    says = f"topic {other} of source 0 any more (partition 0: 3): 2 records after the checkpoint are left out"
    assert says in bench.refused(RestoreRefused).message
    bench.lenient = True
    assert says in bench.refused(RestoreWithLoss).message
    bench.tick(1, allow_loss=True)
    seen = Counter(row[0] for row in bench.seen_by_spark().elements())
    assert seen == Counter(row[0] for row in bench.expected().elements()) + new


@pytest.mark.exhaustive
def test_what_the_newest_checkpoint_tells_is_refused_before_a_job_is_stopped(bench: TopicBench) -> None:
    """By the check of `restore`, of the rollback job and of `preflight`, none of which has a query or a broker."""
    bench.query = copied
    bench.tick(2)
    first = bench.checkpoints()[-1]

    def told(places: StartSources | None = None) -> list[str]:
        request = RestoreRequest(first.reference, start_sources=places)
        checked = check_stored(bench.catalog, first, request, clock=SystemClock(), wait=lambda _: None)
        return [f"{item.verdict}: {item.reason}" for item in checked.findings if item.check in {CHECK, MOVE_CHECK}]

    assert "has all 0 offsets after the checkpoint" in told()[0]
    bench.tick(1)
    bench.kafka.expire(bench.topic, {0: 10})
    bench.tick(1)
    newest = bench.checkpoints()[-1]
    (found,) = told()
    assert found.startswith(Verdict.WITH_LOSS)
    assert f"2 records after the checkpoint are gone (partition 0: 2): retention. So {newest.name} tells" in found
    (found,) = told({bench.topic: {"0": 9}})
    assert found.startswith(Verdict.NOT_RESTORABLE)
    assert "has no offset 9" in found
    (found,) = told({bench.topic: "earliest"})
    assert "it skips 2 records after the checkpoint (partition 0: 2)" in found


def _read(running: Launch, bench: TopicBench) -> int:
    """How many records the newest checkpoint of a run covers."""
    completed = running.completed
    offsets = completed[-1].facts.sources[0].offsets if completed else None
    return sum((offsets or {}).get(bench.topic, {}).values())


def test_a_topic_that_is_gone_is_refused_with_what_it_held(bench: TopicBench) -> None:
    bench.tick(4)
    bench.kafka.delete(bench.topic)
    refused = bench.refused(RestoreRefused)
    assert "is gone, and with it 0 records that were yet to be read" in refused.message
    assert "restore_from: none" in refused.hint


@pytest.mark.exhaustive
def test_a_topic_that_is_created_again_under_a_running_query_ends_the_job(bench: TopicBench) -> None:
    """A quick writer has written more than Spark had read before Spark looks again, so Spark would not notice."""
    is_read, may_end = threading.Event(), threading.Event()

    def write(rows: DataFrame, _: int) -> None:
        rows.collect()
        is_read.set()
        assert may_end.wait(240)

    def query(bench: Bench, session: SparkSession) -> DataStreamWriter:
        return sink_to(bench.read(session).select("id", "v"), ForeachBatchSink("rows", write))

    may_end.set()
    bench.land(2)
    running = bench.launch(bench.job(config=OFTEN, query=query))
    eventually("a checkpoint of all", lambda: _read(running, bench) == 16, unless=running.check)
    is_read.clear()
    may_end.clear()
    bench.land(1)
    eventually("the next batch", is_read.is_set, unless=running.check)
    bench.kafka.recreate(bench.topic, 2)
    for partition in (0, 1):
        bench.kafka.send(bench.topic, _NEW, partition)
    may_end.set()
    with pytest.raises(TopicRecreated, match="its id was"):
        running.result()
    assert _read(running, bench) == 16
    with pytest.raises(RestoreWithLoss, match="was deleted and created again"):
        bench.launch(bench.job(query=query)).result()


def test_a_topic_that_is_created_again_before_the_first_checkpoint_is_refused(bench: TopicBench) -> None:
    """The run dies before a checkpoint, and the next one makes a checkpoint of what it has left."""
    bench.run_and_cancel(2)
    assert not bench.checkpoints()
    bench.kafka.recreate(bench.topic, 2)
    for partition in (0, 1):
        bench.kafka.send(bench.topic, _NEW, partition)
    with pytest.raises(RestoreWithLoss, match="was deleted and created again: its id was"):
        bench.launch(bench.job()).result()
    (salvaged,) = bench.checkpoints()
    assert (salvaged.kind, salvaged.facts.sources[0].topics[bench.topic].latest) == ("salvage", {})


def test_brokers_that_are_away_are_named_and_waited_for(bench: TopicBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """At a start and in a running query: nothing is lost, and checkpoints keep the ids of the topics."""
    monkeypatch.setattr("dagster_ckpt.spark.kafka.inputs._PATIENCE", 1.0)
    first = bench.tick(2)
    bench.kafka.stop()
    try:
        launch = bench.launch(replace(bench, until_done=False).job(config=OFTEN))
        eventually(
            "it starts", lambda: any(launch.events) and bool(launch.of(type(first.started))), unless=launch.check
        )
        (finding,) = [item for item in launch.started.preflight.findings if item.check == CHECK]
        assert (
            f"not checked: the brokers of source 0 did not tell ({bench.kafka.address}: TimeoutException"
            in finding.reason
        )
    finally:
        bench.kafka.start()
    bench.land(1)
    bench.await_in_sink(launch)
    eventually("a checkpoint", lambda: bool(launch.completed), unless=launch.check)
    launch.run.cancel()
    launch.result()
    assert (
        launch.completed[-1].facts.sources[0].topics[bench.topic].id
        == first.completed[-1].facts.sources[0].topics[bench.topic].id
    )
    bench.assert_exact()


def _read_on_and_cancel(launch: Launch, bench: TopicBench) -> None:
    """Of a launch whose checkpoints cover the first two files."""
    bench.land(2)
    bench.await_in_sink(launch)
    eventually("a checkpoint of all", lambda: _read(launch, bench) == 32, unless=launch.check)
    launch.run.cancel()
    launch.result()


@pytest.mark.exhaustive
def test_a_query_waits_for_brokers_that_are_away_for_a_minute(bench: TopicBench) -> None:
    """With the timeouts that Spark and Kafka have by default, the same start goes on."""
    bench.land(2)
    launch = bench.launch(replace(bench, until_done=False).job(config=OFTEN))
    eventually("a checkpoint of all", lambda: _read(launch, bench) == 16, unless=launch.check)
    bench.kafka.stop()
    try:
        threading.Event().wait(60)
    finally:
        bench.kafka.start()
    _read_on_and_cancel(launch, bench)
    assert not launch.restarts
    bench.assert_exact()


@pytest.mark.exhaustive
def test_a_query_that_gave_up_on_its_brokers_is_started_again(
    bench: TopicBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Past the timeouts of Spark's connector, and as often as it takes."""
    monkeypatch.setattr("dagster_ckpt.spark.kafka.inputs._PATIENCE", 1.0)
    bench.options = {"kafka.default.api.timeout.ms": "2000", "kafka.request.timeout.ms": "1000"}
    bench.land(2)
    job = replace(bench, until_done=False).job(
        config=OFTEN, restart=FixedDelayRestart(attempts=1000, delay=timedelta(milliseconds=100))
    )
    launch = bench.launch(job)
    eventually("a checkpoint of all", lambda: _read(launch, bench) == 16, unless=launch.check)
    bench.kafka.stop()
    try:
        eventually("it is started again", lambda: len(launch.restarts) >= 2, unless=launch.check)
    finally:
        bench.kafka.start()
    _read_on_and_cancel(launch, bench)
    assert re.search("Time(d )?out", launch.restarts[0].error), launch.restarts
    bench.assert_exact()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"kafka.isolation.level": "none"}, "IsolationLevel.NONE"),
        ({"kafka.bootstrap.servers": "brokers.invalid:9092"}, "brokers.invalid:9092: ConfigException"),
        ({"kafka.security.protocol": "PLAIN"}, "ConfigException"),
        ({"kafka.sasl.jaas.config": f'Module required password="{PASSWORD}"'}, "not terminated by semi-colon"),
    ],
)
def test_options_that_the_client_refuses_are_told(bench: TopicBench, options: dict[str, str], says: str) -> None:
    """A start goes on then, and Spark refuses them itself."""
    bench.options = {**bench.kafka.login(PASSWORD), **options}
    writer = copied(bench, bench.spark)
    with closing(KafkaInputs(writer, SystemClock())) as inputs, pytest.raises(BrokersAway) as caught:
        inputs.look("0", [bench.topic])
    assert says in str(caught.value)
    assert PASSWORD not in str(caught.value)
