"""The checks that need neither a query nor Spark: each finds what it is for, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.control.heartbeat import Heartbeat
from dagster_ckpt.checkpoint.control.plan_archive import PlannedBatch
from dagster_ckpt.checkpoint.format.facts import Facts
from dagster_ckpt.checkpoint.processes import ProcessIdentity
from dagster_ckpt.errors import CorruptCheckpoint, JobAlreadyRunning, RestoreRefused, UnsupportedSpark
from dagster_ckpt.filesystem import MemoryFileSystem
from dagster_ckpt.spark.batches.plans import forget_plan
from dagster_ckpt.spark.files.checkpoint_location import CheckpointLocation
from dagster_ckpt.spark.files.prepare import prepare_location
from dagster_ckpt.spark.preflight.checkpoint_checks import (
    in_flight,
    log_finding,
    log_gap,
    others_finding,
    replay_finding,
    version_finding,
)
from dagster_ckpt.spark.preflight.source_files import batches, rows_of, source_finding
from dagster_ckpt.spark.sinks.user_sinks import ForeachBatchSink
from dagster_ckpt.spark.verdict import Verdict
from tests.helpers.checkpoint.manifests import MANIFEST
from tests.helpers.spark.streaming import tree

_CHECKPOINT = replace(MANIFEST, job_name="tiny", checkpoint_id=3, batch=3)
_FILE_SOURCE = {"id": "0", "offset": {"logOffset": 3}}
_FILES_ONLY = Facts.model_validate({"sources": [_FILE_SOURCE]})

# --- the write-ahead log ---------------------------------------------------------------------------------------------


def _next_batch(offsets: frozenset[int], commits: frozenset[int], *, every: bool) -> int | None:
    """The batch that Spark runs next from such a log, ``None`` when it does not start: MicroBatchExecution in short."""
    if not offsets:
        return 0
    newest = max(offsets)
    before = [batch for batch in offsets if batch < newest]
    if newest > 0 and (newest - 1 not in offsets if every else not before):
        return None
    return newest + 1 if commits and max(commits) == newest else newest


_BATCHES = st.frozensets(st.integers(0, 7))


@given(batch=st.integers(0, 5), offsets=_BATCHES, commits=_BATCHES, stateful=st.booleans())
def test_a_log_is_fine_only_if_spark_goes_on_with_the_next_batch(
    batch: int, offsets: frozenset[int], commits: frozenset[int], *, stateful: bool
) -> None:
    gap = log_gap(batch, offsets, commits, stateful=stateful)
    goes_on = _next_batch(offsets, commits, every=stateful) == batch + 1
    if gap is None:
        assert goes_on
        assert max(commits) == batch
    minimal = {batch} | ({batch - 1} if batch else set())
    if goes_on and minimal <= offsets and commits and max(commits) == batch:
        assert gap is None


@given(batch=st.integers(0, 5), offsets=_BATCHES, commits=_BATCHES)
@example(batch=5, offsets=frozenset({1, 3, 5}), commits=frozenset({5}))
@example(batch=5, offsets=frozenset({3, 6}), commits=frozenset({5}))
def test_asynchronous_progress_is_prepared_for_a_start_without_it(
    batch: int, offsets: frozenset[int], commits: frozenset[int]
) -> None:
    """No log becomes a better one by that: a gap is closed only where Spark plans nothing from it."""
    with TemporaryDirectory() as directory:
        location = _log(Path(directory), offsets, commits)
        before = tree(location)
        prepare_location(location)
        made = {path: data for path, data in tree(location).items() if path not in before}
        assert tree(location).items() >= before.items()
        after = frozenset(int(path.rpartition("/")[2]) for path in tree(location) if path.startswith("offsets/"))
        gap = log_gap(batch, after, commits, stateful=False)
        assert gap == log_gap(batch, offsets, commits, stateful=False)
        if gap is None:
            assert _next_batch(after, commits, every=True) == batch + 1
        if made:
            newest = max(offsets)
            assert newest == max(commits)
            assert made == {f"offsets/{newest - 1}": before[f"offsets/{max(offsets - {newest})}"]}
        prepare_location(location)
        assert tree(location) == before | made


def test_a_gap_in_the_log_of_a_query_with_state_stays_one(tmp_path: Path) -> None:
    location = _log(tmp_path, (1, 3), (1, 3))
    (location / "state" / "0" / "_metadata").mkdir(parents=True)
    before = tree(location)
    prepare_location(location)
    assert tree(location) == before


def test_the_gap_that_a_naive_copy_leaves_names_the_batches_that_would_be_skipped() -> None:
    gap = log_gap(5, range(10), range(6), stateful=False)
    assert gap is not None
    assert "go on from batch 9 and skip batches 6 to 8" in gap


def _log(location: Path, offsets: Collection[int], commits: Collection[int]) -> Path:
    head = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 1, "conf": {}})
    for batch in offsets:
        (location / "offsets").mkdir(parents=True, exist_ok=True)
        (location / "offsets" / str(batch)).write_text(f'v1\n{head}\n{{"logOffset":{batch}}}')
    for batch in commits:
        (location / "commits").mkdir(parents=True, exist_ok=True)
        (location / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    return location


def test_the_log_of_a_checkpoint(tmp_path: Path) -> None:
    location = _log(tmp_path, range(2, 5), range(3, 4))
    found = log_finding(_CHECKPOINT, location)
    assert found.verdict is Verdict.RESTORABLE
    assert "batch 4 as it was planned" in found.reason
    (location / "offsets" / "4").write_text("v9\n{}\n")
    assert type(log_finding(_CHECKPOINT, location).error) is RestoreRefused  # of a newer Spark
    head = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 1, "conf": {}})
    (location / "offsets" / "4").write_text(f'v2\n{head}\n0:{{"logOffset":4}}')
    assert log_finding(_CHECKPOINT, location, "4.2.0").verdict is Verdict.RESTORABLE
    assert "Spark 4.1 reads up to 1" in log_finding(_CHECKPOINT, location, "4.1.3").reason
    assert type(log_finding(_CHECKPOINT, location, "3.5.0").error) is UnsupportedSpark
    (location / "offsets" / "4").write_text("v1\n{")
    assert type(log_finding(_CHECKPOINT, location).error) is CorruptCheckpoint
    (location / "offsets" / "4").rename(location / "offsets" / "6")
    error = log_finding(_CHECKPOINT, location).error
    assert type(error) is CorruptCheckpoint
    assert "chk-3: offsets/6 is there and commits end with 3" in error.message


# --- what is read again ----------------------------------------------------------------------------------------------


def _plan(batch: int, *uris: str) -> PlannedBatch:
    lines = [json.dumps({"path": uri, "timestamp": 1, "batchId": batch}) for uri in uris]
    return PlannedBatch(batch, {f"offsets/{batch}": "v1\n{}", f"sources/0/{batch}": "\n".join(["v1", *lines])})


def test_files_that_are_all_there_are_counted_and_parquet_tells_its_rows(tmp_path: Path) -> None:
    for number in (4, 5):
        pq.write_table(pa.table({"id": range(number)}), tmp_path / f"a b {number}.parquet")
    plans = [_plan(number, (tmp_path / f"a b {number}.parquet").as_uri()) for number in (4, 5)]
    found = source_finding(plans, _FILES_ONLY)
    assert found.verdict is Verdict.RESTORABLE
    assert "batches 4 and 5 are read again from 2 files with 9 rows" in found.reason
    empty = [_plan(4, (tmp_path / "a b 4.parquet").as_uri()), _plan(5)]
    assert "batches 4 and 5 are read again from 1 file" in source_finding(empty, _FILES_ONLY).reason
    assert "batch 5 is read again from 1 file" in source_finding(plans[1:], _FILES_ONLY).reason
    assert (rows_of(plans, _FILES_ONLY), rows_of(plans[:1], _FILES_ONLY), rows_of([], Facts())) == (9, 4, 0)
    assert rows_of(plans, Facts()) is None, "the checkpoint does not tell its sources"
    assert rows_of([*plans, _plan(6, (tmp_path / "gone.parquet").as_uri())], _FILES_ONLY) is None
    (tmp_path / "a b 5.parquet").write_bytes(b"not Parquet")
    assert "from 2 files, all there" in source_finding(plans, _FILES_ONLY).reason


def test_files_that_are_gone_are_named_with_their_batches(tmp_path: Path) -> None:
    for number in range(4, 8):
        (tmp_path / f"{number}.json").touch()
    plans = [_plan(number, f"file://{tmp_path}/{number}.json") for number in range(4, 8)]
    assert source_finding(plans, _FILES_ONLY).verdict is Verdict.RESTORABLE
    for number in (5, 7):
        (tmp_path / f"{number}.json").unlink()
    found = source_finding(plans, _FILES_ONLY)
    assert found.verdict is Verdict.WITH_LOSS
    assert not found.only_doubles
    assert "2 files of batches 5 and 7 are gone" in found.reason
    assert f"{tmp_path}/5.json (batch 5), {tmp_path}/7.json (batch 7)" in found.reason
    assert "2 files of batches 4 to 7 are there" in found.reason


@pytest.mark.parametrize(
    ("sources", "says"),
    [
        ([{"id": "0", "offset": {"shard": 3}}, _FILE_SOURCE], "source 0 is no file source"),
        ([{"id": "0", "offset": {"topic": {"0": 3}}}, _FILE_SOURCE], "source 0 has offsets like Kafka's"),
        (
            [{"id": "0", "offset": {"reservoirId": "a", "reservoirVersion": 3}}],
            "source 0 has offsets like those of a t",
        ),
        (
            [{"id": "0", "offset": {"version": 1, "snapshot_id": 3, "position": 0}}],
            "source 0 has offsets like those of",
        ),
        ([{"id": "1", "offset": None}], "source 1 had no data yet"),
        (None, "the checkpoint does not tell its sources"),
    ],
)
def test_what_is_not_checked_is_said(sources: list[Any] | None, says: str) -> None:
    found = source_finding([], Facts() if sources is None else Facts.model_validate({"sources": sources}))
    assert found.verdict is Verdict.RESTORABLE
    assert f"Not checked: {says}" in found.reason


def test_a_start_does_not_say_that_only_a_start_looks() -> None:
    """Its query has no source of Kafka and no table there."""
    facts = Facts.model_validate({"sources": [{"id": "0", "offset": {"topic": {"0": 3}}}]})
    assert "only its own system knows" in source_finding([], facts, ()).reason
    assert "only a start" in source_finding([], facts).reason


def test_files_that_are_not_on_a_disk_here_are_not_checked() -> None:
    found = source_finding([_plan(4, "hdfs://host/in/4.json")], _FILES_ONLY)
    assert found.verdict is Verdict.RESTORABLE
    assert "Not checked: 1 files that are on no local disk, hdfs://host/in/4.json" in found.reason


@given(st.frozensets(st.integers(0, 12), min_size=1))
def test_batches_are_told_without_leaving_one_out(numbers: frozenset[int]) -> None:
    told = batches(numbers)
    inside = [int(word) for word in told.replace(",", "").split() if word.isdigit()]
    assert (set(range(inside[0], inside[-1] + 1)) if " to " in told else set(inside)) == numbers


# --- the plan of a batch that is given up ----------------------------------------------------------------------------


def test_a_plan_that_is_given_up_takes_its_entries_of_the_source_log_with_it(tmp_path: Path) -> None:
    location = _log(tmp_path, range(2, 5), range(3, 4))
    (location / "sources" / "0").mkdir(parents=True)
    for entry in range(5):
        (location / "sources" / "0" / str(entry)).write_text(f'v1\n{{"path":"file:///{entry}","batchId":{entry}}}')
    planned = in_flight(location, 3)
    assert planned is not None
    assert planned.batch == 4
    forget_plan(location, 4)
    assert sorted(path.name for path in (location / "sources" / "0").iterdir()) == ["0", "1", "2", "3"]
    assert in_flight(location, 3) is None
    assert log_gap(3, [2, 3], [3], stateful=True) is None
    assert CheckpointLocation(location).planned() is None


# --- sinks that cannot go back ---------------------------------------------------------------------------------------


def test_batches_that_a_sink_has_and_nobody_knows_the_bounds_of() -> None:
    sink = ForeachBatchSink("orders", lambda rows, batch: None, newest_batch=lambda: 6)
    found = replay_finding(_CHECKPOINT, sink, "foreachBatch", [4], [4])
    assert found.verdict is Verdict.WITH_LOSS
    assert not found.only_doubles
    assert "how batches 5 and 6 were bounded" in found.reason
    assert replay_finding(_CHECKPOINT, sink, "foreachBatch", [4, 5, 6], []).verdict is Verdict.RESTORABLE
    silent = ForeachBatchSink("orders", lambda rows, batch: None)
    assert "does not tell its newest batch" in replay_finding(_CHECKPOINT, silent, "foreachBatch", [4], []).reason
    for sink_of in (silent, ForeachBatchSink("orders", lambda rows, batch: None, newest_batch=lambda: 4)):
        # The sink has told of no later batch, and whoever wrote it may not be done.
        for again, lost in (([], "batches 4 to 6"), ([4], "batches 5 and 6")):
            found = replay_finding(_CHECKPOINT, sink_of, "foreachBatch", again, [4, 5, 6])
            assert found.verdict is Verdict.WITH_LOSS
            assert f"may have batches up to 6, and how {lost}" in found.reason
        exact = replay_finding(_CHECKPOINT, sink_of, "foreachBatch", [4, 5, 6], [4, 5, 6])
        assert exact.verdict is Verdict.RESTORABLE
    unbegun = replay_finding(None, silent, "foreachBatch", [], [0, 1])
    assert (unbegun.verdict, replay_finding(None, silent, "foreachBatch", [0, 1], [0, 1]).verdict) == (
        Verdict.WITH_LOSS,
        Verdict.RESTORABLE,
    )
    back = ForeachBatchSink("orders", lambda rows, batch: None, rollback_to=lambda *_: None, newest_batch=lambda: 6)
    assert replay_finding(_CHECKPOINT, back, "foreachBatch", [], []).verdict is Verdict.RESTORABLE


def test_a_sink_that_checkpoints_do_not_cover_sees_batches_twice() -> None:
    found = replay_finding(_CHECKPOINT, None, "kafka", [4, 5], [4, 5])
    assert (found.verdict, found.only_doubles) == (Verdict.WITH_LOSS, True)
    assert "batches 4 and 5 may have been written to the kafka sink" in found.reason
    assert replay_finding(_CHECKPOINT, None, "kafka", [], []).verdict is Verdict.RESTORABLE
    assert replay_finding(_CHECKPOINT, None, None, [4], [4]).verdict is Verdict.RESTORABLE  # it keeps nothing


# --- Spark, and others -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recorded", "running", "restorable"),
    [
        ("4.3.0", "4.3.0", True),
        ("4.3.9", "4.3.0", True),
        ("4.2.1", "4.3.0", True),
        ("3.5.1", "4.3.0", True),
        ("4.10.0", "4.9.3", False),
        ("4.3.0", "4.2.5", False),
        ("5.0.0", "4.3.0", False),
        (None, "4.3.0", True),
        ("4.3.0", None, True),
        ("main", "4.3.0", True),
    ],
)
def test_a_checkpoint_of_a_newer_spark(recorded: str | None, running: str | None, *, restorable: bool) -> None:
    found = version_finding(recorded, running)
    assert (found.verdict is Verdict.RESTORABLE) == restorable
    if not restorable:
        assert type(found.error) is RestoreRefused
        assert f"Run the job with Spark {recorded}" in found.hint
    assert ("not checked" in found.reason) == (recorded in {None, "main"} or running is None)


@pytest.mark.parametrize(("recorded", "ran_last"), [("4.2.0", "4.3.0"), (None, "4.3.0")])
def test_batches_that_a_newer_spark_planned(recorded: str | None, ran_last: str) -> None:
    """A start of a newer Spark that took no checkpoint, and whose batches go on."""
    found = version_finding(recorded, "4.2.0", ran_last)
    assert type(found.error) is RestoreRefused
    assert "The job ran last with Spark 4.3.0, and this is Spark 4.2.0" in found.reason
    assert version_finding(recorded, "4.3.1", ran_last).verdict is Verdict.RESTORABLE


def test_who_else_runs() -> None:
    alive = Heartbeat(4, "the-other-run", (ProcessIdentity.current(),), 7, 1000.0)
    catalog = CheckpointCatalog(MemoryFileSystem(), "tiny")
    found = others_finding(catalog, alive, None)
    assert type(found.error) is JobAlreadyRunning
    assert "Run the-other-run drives job 'tiny' now" in found.reason
    assert "Terminate run the-other-run" in found.hint
    assert f"`dagster-ckpt cancel tiny --path {catalog.filesystem.url}`" in found.hint
    assert others_finding(catalog, alive, None, own_epoch=3).verdict is Verdict.NOT_RESTORABLE
    for heartbeat, dead, own in [(None, None, None), (alive, None, 4), (alive, "it ended", None)]:
        assert others_finding(catalog, heartbeat, dead, own_epoch=own).verdict is Verdict.RESTORABLE
