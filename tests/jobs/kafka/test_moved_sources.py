"""A restore whose topics are read from elsewhere: forward, backward, by time, and at both ends."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from dagster_ckpt.cli import main
from dagster_ckpt.errors import CheckpointFailure, RestoreRefused, RestoreWithLoss, StorageError
from dagster_ckpt.spark.moved_sources.places import MOVE_CHECK
from dagster_ckpt.spark.sinks.sink import sink_to
from dagster_ckpt.spark.sinks.user_sinks import ForeachBatchSink
from tests.jobs.fails_once import FailsOnce
from tests.jobs.harness import NEVER, Bench, Launch, Row, copied
from tests.jobs.kafka.topics import TopicBench, rows_of, topic_of

if TYPE_CHECKING:
    from confluent_kafka import Message
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from tests.jobs.savepoints import Take


@pytest.fixture
def job(bench: TopicBench) -> TopicBench:
    """A checkpoint of two files: 8 records of each of two partitions."""
    bench.query = copied
    bench.tick(2)
    return bench


def _ids(rows: Iterable[Row]) -> Counter[int]:
    return Counter(row[0] for row in rows)


def _seen(job: TopicBench) -> Counter[int]:
    return _ids(job.seen_by_spark().elements())


def _of(*files: int) -> Counter[int]:
    """The ids of whole files."""
    return sum((Counter(range(5 * file, 5 * file + 8)) for file in files), Counter[int]())


def _offsets(launch: Launch, topic: str) -> dict[str, int]:
    """Where the restored checkpoint of a run has a topic."""
    restored = launch.started.restored
    assert restored is not None
    return dict((restored.facts.sources[0].offsets or {})[topic])


def _place(message: Message) -> tuple[int, int]:
    """The partition and the offset of a record."""
    partition, offset = message.partition(), message.offset()
    assert partition is not None
    assert offset is not None
    return partition, offset


def _told(launch: Launch) -> list[str]:
    return [item.reason for item in launch.started.preflight.findings if item.check == MOVE_CHECK]


@pytest.mark.exhaustive
def test_forward_skips_records_and_backward_reads_them_twice(job: TopicBench) -> None:
    """A partition that is not named stays. What was accepted is told by every later checkpoint."""
    job.land(2)  # offsets 8 to 15 of both partitions
    asked = {job.topic: {"0": 11}}
    refused = job.refused(RestoreWithLoss, start_sources=asked)
    assert "it skips 3 records after the checkpoint (partition 0: 3)." in refused.message
    launch = job.tick(0, start_sources=asked, allow_loss=True)
    assert launch.started.restored is not None
    assert launch.started.restored.kind == "moved"
    assert _offsets(launch, job.topic) == {"0": 11, "1": 8}
    seen = _of(0, 1, 3) + Counter(range(13, 18))
    assert _seen(job) == seen

    asked = {f"0/{job.topic}": {"1": 14}}
    refused = job.refused(RestoreWithLoss, start_sources=asked)
    assert "would double rows" in refused.message
    assert "it reads 2 records before the checkpoint twice (partition 1: 2)." in refused.message
    again = job.tick(1, start_sources=asked, allow_loss=True)
    assert _offsets(again, job.topic) == {"0": 16, "1": 14}
    assert _seen(job) == seen + Counter([21, 22]) + _of(4)
    later = job.tick(1)
    accepted = later.completed[-1].facts.accepted_loss
    assert ["it skips" in accepted[0], "it reads" in accepted[1]] == [True, True]


@pytest.mark.exhaustive
def test_what_was_accepted_once_is_no_consent_to_the_same_again(job: TopicBench) -> None:
    """The job has come back to the same offset, and the same words would double the records once more."""
    asked: dict[str, Any] = {"start_sources": {job.topic: {"0": 0}}}
    job.tick(0, **asked, allow_loss=True)
    assert _seen(job) == _of(0, 0, 1)
    last = job.checkpoints()[-1]
    assert "would double rows" in job.refused(RestoreWithLoss, restore_from=last.reference, **asked).message


@pytest.mark.exhaustive
def test_from_a_time_on(job: TopicBench) -> None:
    """The first record that is as old or younger; where all are older, the end of the partition."""
    job.land(1)
    records = [(*_place(message), message.timestamp()[1]) for message in job.kafka.records(job.topic)]
    (since,) = [at for partition, offset, at in records if (partition, offset) == (0, 9)]
    of_zero = min(offset for partition, offset, at in records if partition == 0 and at >= since)
    text = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=since)).isoformat()
    launch = job.tick(0, start_sources={job.topic: text}, allow_loss=True)
    assert of_zero in {8, 9}, "records of one millisecond are alike"
    assert _offsets(launch, job.topic) == {"0": of_zero, "1": 8}
    assert _seen(job) == _of(0, 1) + Counter(range(10 + of_zero - 8, 18))


@pytest.mark.exhaustive
def test_from_both_ends(job: TopicBench) -> None:
    job.land(1)
    launch = job.tick(0, start_sources={job.topic: "latest"}, allow_loss=True)
    assert _offsets(launch, job.topic) == {"0": 16, "1": 8}
    assert _seen(job) == _of(0, 1)
    job.kafka.expire(job.topic, {0: 3})
    launch = job.tick(0, start_sources={job.topic: "earliest"}, allow_loss=True)
    assert _offsets(launch, job.topic) == {"0": 3, "1": 0}
    assert "it reads 21 records before the checkpoint twice (partition 0: 13, partition 1: 8)" in _told(launch)[0]
    assert _seen(job) == _of(0, 1) + Counter(range(3, 8)) + _of(1, 2)


@pytest.mark.exhaustive
def test_an_earlier_checkpoint_goes_on_elsewhere(job: TopicBench) -> None:
    """Batches that ran after it are taken out of the sink, and are not replayed."""
    first = job.checkpoints()[-1]
    job.tick(2)
    launch = job.tick(0, restore_from=first.reference, start_sources={job.topic: {"0": 12, "1": 8}}, allow_loss=True)
    restored = launch.started.restored
    assert restored is not None
    assert (restored.kind, restored.restored_from) == ("moved", first.reference)
    assert _seen(job) == _of(0, 1, 3) + Counter(range(14, 18))
    assert job.tick(0).started.restored == launch.completed[-1]


@pytest.mark.exhaustive
def test_state_has_what_is_read_twice(bench: TopicBench) -> None:
    bench.tick(2)
    asked = {bench.topic: "earliest"}
    refused = bench.refused(RestoreWithLoss, start_sources=asked)
    assert "it reads 16 records before the checkpoint twice" in refused.message
    assert "an aggregation counts them again" in refused.message
    bench.tick(1, start_sources=asked, allow_loss=True)
    bench.assert_exact()  # its state drops what it has seen


@pytest.mark.exhaustive
@pytest.mark.parametrize("restore_from", ["latest", "chk"])
def test_a_request_that_was_done_is_not_done_again(job: TopicBench, restore_from: str) -> None:
    """As of a driver that is always started with the same words; also where the checkpoint that it names is gone."""
    asked: dict[str, Any] = {"start_sources": {job.topic: "earliest"}, "allow_loss": True}
    if restore_from == "chk":
        asked["restore_from"] = job.checkpoints()[-1].name
    first = job.tick(0, **asked)
    assert _seen(job) == _of(0, 1, 0, 1)
    again = job.tick(1, **asked)
    assert again.started.restored == first.completed[-1]
    assert _told(again) == []
    assert f"the sources were moved before, as asked, by {first.started.restored.reference}" in again.started.reason  # type: ignore[union-attr]
    job.tick(0)
    third = job.tick(1, **asked)
    assert again.completed[-1].key <= third.started.restored.key  # type: ignore[union-attr]
    assert _seen(job) == _of(0, 1, 0, 1, 2, 3)
    if restore_from == "latest":
        return
    job.tick(0, start_sources={job.topic: "latest"}, allow_loss=True)  # another request
    job.kafka.send(job.topic, rows_of(100), 1)
    job.tick(0)
    assert _seen(job) == _of(0, 1, 0, 1, 2, 3, 100)


@pytest.mark.exhaustive
def test_a_moved_copy_that_is_broken_is_made_again(job: TopicBench) -> None:
    opted_in = NEVER.model_copy(update={"fallback_to_older": True})
    asked: dict[str, Any] = {"start_sources": {job.topic: "earliest"}, "allow_loss": True}
    before = job.checkpoints()[-1]
    job.tick(0, **asked)
    for broken in job.checkpoints():
        if broken.key > before.key:
            (job.storage / job.name / broken.job_id / broken.name / "_metadata").write_text("{")
    launch = job.tick(0, job.job(config=opted_in), **asked)
    assert launch.started.restored is not None
    assert (launch.started.restored.kind, launch.started.restored.restored_from) == ("moved", before.reference)
    assert _seen(job) == _of(0, 1, 0, 1)


@pytest.mark.exhaustive
def test_a_start_that_dies_before_its_choice_leaves_the_copy(job: TopicBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever starts next goes on from it, with the same request or with none."""
    monkeypatch.setattr(FailsOnce, "ends", ".choice")
    asked: dict[str, Any] = {"start_sources": {job.topic: "earliest"}, "allow_loss": True}
    with pytest.raises(StorageError, match="full"):
        job.launch(job.job(filesystem=FailsOnce(job.storage)), **asked).result()
    launch = job.tick(1, **asked)
    assert launch.started.restored is not None
    assert (launch.started.restored.kind, _told(launch)) == ("moved", [])
    assert _seen(job) == _of(0, 1, 0, 1, 2)
    assert "it reads 16 records" in launch.completed[-1].facts.accepted_loss[0]


@pytest.mark.exhaustive
@pytest.mark.parametrize("repeated", [True, False])
def test_the_copy_of_a_start_that_died_is_gone_on_from_past_later_batches(
    job: TopicBench, monkeypatch: pytest.MonkeyPatch, repeated: bool
) -> None:
    """The run before has left batches that no checkpoint has: the job has gone back, and does not salvage them."""
    asked: dict[str, Any] = {"start_sources": {job.topic: "earliest"}, "allow_loss": True}
    asked["restore_from"] = job.checkpoints()[-1].name
    job.run_and_cancel(2)
    monkeypatch.setattr(FailsOnce, "ends", ".choice")
    with pytest.raises(StorageError, match="full"):
        job.launch(job.job(filesystem=FailsOnce(job.storage)), **asked).result()
    launch = job.tick(0, **(asked if repeated else {}))
    assert launch.started.restored is not None
    assert (launch.started.restored.kind, _told(launch)) == ("moved", [])
    assert _seen(job) == _of(0, 1, 0, 1, 2, 3)


@pytest.mark.exhaustive
@pytest.mark.parametrize("which", ["0", "1"])
def test_a_stream_that_the_query_uses_twice_is_moved_as_one(bench: TopicBench, which: str) -> None:
    """Spark keeps the place of the last use alone."""

    def twice(bench: Bench, session: SparkSession) -> DataStreamWriter:
        rows = bench.read(session).select("id", "v")
        return bench.write(rows.union(rows))

    bench.query = twice
    bench.tick(1)
    place = {f"{which}/{bench.topic}": {"0": 3}}
    refused = bench.refused(RestoreWithLoss, start_sources=place)
    assert [f"of source {number} starts at offset" in refused.message for number in "01"] == [True, True]
    both = {f"{number}/{bench.topic}": {"0": at} for number, at in (("0", 3), ("1", 4))}
    assert "sources 0 and 1 are one stream" in bench.refused(RestoreRefused, start_sources=both).message
    bench.tick(0, start_sources=place, allow_loss=True)
    assert _seen(bench) == _of(0, 0) + Counter([*range(3, 8)] * 2)


def test_what_is_impossible_is_refused_by_name(job: TopicBench) -> None:
    def refused(place: object, name: str = job.topic) -> str:
        return job.refused(RestoreRefused, start_sources={name: place}, allow_loss=True).message

    job.kafka.widen(job.topic, 3)
    job.kafka.send(job.topic, rows_of(7), 2)
    job.kafka.expire(job.topic, {2: 5})
    added = job.refused(RestoreWithLoss, start_sources={job.topic: {"2": 6}}).message
    assert "it skips 6 records after the checkpoint (partition 2: 6)" in added, "5 of a new partition are gone"
    assert "no partition 7" in refused({"7": 0})
    assert "has no offset 9" in refused({"0": 9})
    job.kafka.expire(job.topic, {0: 2})
    assert "has no offset 1" in refused({"0": 1})
    assert "reads nowhere" in refused("latest", "nowhere")
    assert f"reads 1/{job.topic}" in refused("latest", f"1/{job.topic}")
    both = {job.topic: "latest", f"0/{job.topic}": "earliest"}
    assert "named twice" in job.refused(RestoreRefused, start_sources=both, allow_loss=True).message


@pytest.mark.exhaustive
def test_a_move_waits_for_brokers_that_are_away(job: TopicBench, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {"start_sources": {job.topic: "latest"}, "allow_loss": True}
    monkeypatch.setattr("dagster_ckpt.spark.kafka.inputs._PATIENCE", 1.0)
    job.kafka.stop()
    try:
        assert "its brokers did not tell" in job.refused(CheckpointFailure, **asked).message
    finally:
        job.kafka.start()


@pytest.mark.exhaustive
def test_a_sink_that_cannot_go_back_has_a_batch_already(bench: TopicBench) -> None:
    """The batch would come again with other rows."""

    def replacing(bench: Bench, session: SparkSession) -> DataStreamWriter:
        rows = sink_to(bench.read(session).select("id"), ForeachBatchSink("rows", lambda rows, _: rows.collect()))
        return rows.trigger(availableNow=True)

    bench.query = replacing
    bench.tick(1)
    first = bench.checkpoints()[-1]
    bench.tick(1)
    asked = {bench.topic: "earliest"}
    refused = bench.refused(RestoreRefused, restore_from=first.reference, start_sources=asked, allow_loss=True)
    assert "cannot go back" in refused.message
    bench.tick(0, start_sources=asked, allow_loss=True)


@pytest.mark.exhaustive
def test_a_savepoint_and_a_topic_that_was_created_again(job: TopicBench, take: Take) -> None:
    """Of a new topic nothing was read; what lies before the place is skipped. The savepoint begins a lineage."""
    savepoint = take(job)
    job.kafka.recreate(job.topic, 2)
    job.kafka.send(job.topic, rows_of(100), 0)
    job.lenient = True
    asked = {job.topic: "earliest"}
    refused = job.refused(RestoreWithLoss, restore_from=savepoint.pointer, start_sources=asked)
    assert "0 records below the checkpoint's offsets would be skipped" in refused.message
    launch = job.tick(0, restore_from=savepoint.pointer, start_sources=asked, allow_loss=True)
    assert "nothing is skipped or read twice" in _told(launch)[0]
    restored = launch.started.restored
    assert restored is not None
    assert (restored.kind, restored.job_id) == ("moved", launch.started.job_id)
    assert restored.facts.sources[0].topics[job.topic].id == launch.completed[-1].facts.sources[0].topics[job.topic].id
    assert _seen(job) == _of(0, 1, 100)


@pytest.mark.exhaustive
def test_a_topic_of_two_sources_is_named_with_its_source(bench: TopicBench) -> None:
    """And a query that never ran has nothing to start elsewhere."""

    def union(bench: Bench, session: SparkSession) -> DataStreamWriter:
        assert isinstance(bench, TopicBench)
        one, other = (
            topic_of(session, bench.kafka.address, subscribe=bench.topic, kafkaConsumer=name) for name in "ab"
        )
        return bench.write(one.union(other).select("id", "v"))

    bench.query = union
    assert "no checkpoint" in bench.refused(RestoreRefused, start_sources={bench.topic: "latest"}).message
    bench.tick(1)
    refused = bench.refused(RestoreRefused, start_sources={bench.topic: "earliest"})
    assert f"Name one: 0/{bench.topic} or 1/{bench.topic}." in refused.hint
    bench.tick(0, start_sources={f"1/{bench.topic}": "earliest"}, allow_loss=True)
    assert _seen(bench) == _of(0, 0, 0)


def test_the_command_line_counts_what_a_checkpoint_tells(job: TopicBench) -> None:
    def told(place: object, status: int) -> str:
        arguments = [job.name, "latest", "--start-sources", json.dumps({job.topic: place}), "--path", str(job.storage)]
        checked = CliRunner().invoke(main, ["preflight", *arguments])
        assert checked.exit_code == status, checked.output
        return checked.stdout

    assert "it reads 3 records before the checkpoint twice (partition 0: 3)" in told({"0": 5}, 3)
    assert "it reads 16 records before the checkpoint twice" in told("earliest", 3)
    assert "only its brokers know" in told("2026-01-01T00:00:00+00:00", 3)
    assert "nothing is skipped" in told({"0": 8, "1": 8}, 0)
    twice = ["preflight", job.name, "--start-sources", '{"a": "latest", "a": "earliest"}', "--path", str(job.storage)]
    assert "a name comes twice" in CliRunner().invoke(main, twice).output
