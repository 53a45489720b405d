"""The state of a checkpoint as a table, compared with what the query must have kept."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dagster_ckpt import read_state, read_state_metadata
from dagster_ckpt.checkpoint import materialize_checkpoint
from dagster_ckpt.errors import (
    CheckpointFileMissing,
    CheckpointNotFound,
    InvalidConfiguration,
    RestoreRefused,
    WorkingDirectoryFailed,
)
from dagster_ckpt.filesystem import scratch_directory
from dagster_ckpt.spark.proof import scratch_copy
from tests.jobs.harness import Bench, copied, tree

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog

pytestmark = pytest.mark.quick


@dataclass
class _Storage:
    """The storage of a bench, as Dagster's resources are one."""

    bench: Bench

    def catalog(self, job_name: str) -> CheckpointCatalog:
        assert job_name == self.bench.name
        return self.bench.catalog


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    """Where the copies lie; nothing is left there."""
    place = tmp_path / "scratch"
    yield place
    assert not place.exists() or not list(place.iterdir())


def _joined_and_counted(bench: Bench, session: SparkSession) -> DataStreamWriter:
    one = bench.read(session).withWatermark("ts", "1 day").selectExpr("id", "ts")
    other = bench.read(session).withWatermark("ts", "1 day").selectExpr("id AS other", "ts AS at")
    joined = one.join(other, (one.id == other.other) & (one.ts == other.at))
    counted = joined.groupBy("id", "ts").count()
    return counted.writeStream.format("noop").outputMode("append").trigger(availableNow=True)


def _read(bench: Bench, scratch: Path, checkpoint: str = "latest", **asked: object) -> list[tuple[object, ...]]:
    with read_state(bench.spark, _Storage(bench), bench.name, checkpoint, scratch_directory=scratch, **asked) as state:  # type: ignore[arg-type]
        return sorted(tuple(row) for row in state.selectExpr("key.id", "partition_id").collect())


def test_the_state_of_each_checkpoint_is_what_the_query_has_kept(ticked: Bench, scratch: Path) -> None:
    before = tree(ticked.root)
    for metadata, files in zip(ticked.checkpoints(), (2, 4, 6), strict=True):
        found = _read(ticked, scratch, metadata.name)
        assert [key for key, _ in found] == list(range(5 * files + 3))
        assert {partition for _, partition in found} == {0, 1}
    assert _read(ticked, scratch) == found
    assert tree(ticked.root) == before


def test_sql_over_the_state(ticked: Bench, scratch: Path) -> None:
    with read_state(ticked.spark, _Storage(ticked), "tiny", scratch_directory=scratch) as state:
        state.createOrReplaceTempView("kept")
        (found,) = state.sparkSession.sql("SELECT count(*) AS n FROM kept WHERE key.id >= 30").collect()
    assert found.n == 3


def test_the_operators_and_each_of_their_stores(bench: Bench, scratch: Path) -> None:
    bench.query = _joined_and_counted
    bench.tick(1)
    storage = _Storage(bench)
    with read_state_metadata(bench.spark, storage, bench.name, scratch_directory=scratch) as operators:
        rows = {(row.operatorId, row.operatorName) for row in operators.collect()}
    assert rows == {(0, "stateStoreSave"), (1, "symmetricHashJoin")}
    with pytest.raises(InvalidConfiguration, match="needs a store") as caught:
        _read(bench, scratch, operator=1)
    assert "joinSide" in caught.value.hint
    left = {"joinSide": "left"}
    with read_state(bench.spark, storage, bench.name, operator=1, options=left, scratch_directory=scratch) as state:
        assert state.count() == 8
    with pytest.raises(InvalidConfiguration, match="no state store 'middle'"):
        _read(bench, scratch, operator=1, store="middle")
    with pytest.raises(InvalidConfiguration, match="Spark's statestore reader"):
        _read(bench, scratch, operator=0, options={"snapshotStartBatchId": "99"})
    with pytest.raises(InvalidConfiguration, match="no stateful operator 7") as caught:
        _read(bench, scratch, operator=7)
    assert caught.value.hint == "It has 0 (stateStoreSave), 1 (symmetricHashJoin)."


def test_what_cannot_be_read_is_refused_before_anything_is_copied(
    ticked: Bench, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CheckpointNotFound, match="chk-77"):
        _read(ticked, scratch, "chk-77")
    newest = ticked.checkpoints()[-1]
    newer = replace(newest, facts=newest.facts.model_copy(update={"spark_version": "9.1.0"}))
    monkeypatch.setattr(type(ticked.catalog), "resolve", lambda *_: newer)
    with pytest.raises(RestoreRefused, match=r"Spark 9\.1\.0"):
        _read(ticked, scratch, newest.name)


def test_a_stateless_job_has_no_state(bench: Bench, scratch: Path) -> None:
    bench.query = copied
    bench.tick(1)
    with pytest.raises(InvalidConfiguration, match="has no state"):
        _read(bench, scratch)


def test_a_file_that_is_gone_is_an_error_and_not_fewer_rows(ticked: Bench, scratch: Path) -> None:
    """Spark's reader reads the partitions that it finds, and says nothing of others."""
    newest = ticked.checkpoints()[-1]
    state = next(file for file in newest.files if file.path.startswith("checkpoint/state/0/1/") and file.reference)
    (ticked.storage / ticked.catalog.stored_path(newest, state.reference or "")).unlink()
    with pytest.raises(CheckpointFileMissing, match="is gone"):
        _read(ticked, scratch)


def test_the_newest_checkpoint_may_be_replaced_while_it_is_copied(
    ticked: Bench, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a running job does: it takes a newer checkpoint and deletes the one that is being copied."""
    copy, calls = materialize_checkpoint, []

    def deleted_meanwhile(*given: object) -> None:
        calls.append(given)
        if len(calls) == 1:
            ticked.tick(1)
            raise CheckpointNotFound("chk-3 was deleted while its files were read.")
        copy(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(scratch_copy, "materialize_checkpoint", deleted_meanwhile)
    assert len(_read(ticked, scratch)) == 38


def test_a_place_for_copies_that_is_no_directory_is_told_by_name(ticked: Bench, tmp_path: Path) -> None:
    (tmp_path / "place").touch()
    with pytest.raises(WorkingDirectoryFailed, match="No copy of the checkpoint can be made in"):
        _read(ticked, tmp_path / "place")


def test_copies_that_dead_processes_have_left_are_removed(ticked: Bench, scratch: Path) -> None:
    with scratch_directory(scratch) as own:
        with subprocess.Popen([sys.executable, "-c", ""]) as process:
            process.wait()
        dead = scratch / own.name.replace(f"-{os.getpid()}-", f"-{process.pid}-")
        foreign = scratch / "of-somebody-else"
        for directory in (dead, foreign):
            directory.mkdir()
        _read(ticked, scratch)
        assert sorted(scratch.iterdir()) == sorted([own, foreign])
    foreign.rmdir()
