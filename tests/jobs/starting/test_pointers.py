"""Pointers that cannot be followed: refused by name, with a way on, and nothing lost."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

import pytest

from dagster_ckpt.errors import CheckpointError, CheckpointNotFound, CorruptMetadata, ForeignCheckpoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.jobs.harness import Bench

Pointer: TypeAlias = "Callable[[Bench], tuple[str, str]]"  # what is asked for, and what the error must name


def _never_taken(bench: Bench) -> tuple[str, str]:
    (job_id,) = bench.catalog.job_ids()
    return "chk-99", f"{bench.storage}/tiny/{job_id}/chk-99"


def _other_lineage(bench: Bench) -> tuple[str, str]:
    return f"{'0' * 32}/chk-1", f"{bench.storage}/tiny/{'0' * 32}/chk-1"


def _no_such_path(bench: Bench) -> tuple[str, str]:
    path = f"{bench.storage}/tiny/chk-1"
    return path, path


def _no_metadata(bench: Bench) -> tuple[str, str]:
    path = f"{bench.storage}/tiny"
    return path, path


def _url_without_metadata(bench: Bench) -> tuple[str, str]:
    path = f"file://{bench.storage}/tiny"
    return path, path


def _foreign_job(bench: Bench) -> tuple[str, str]:
    metadata = bench.checkpoints()[-1]
    path = bench.storage / "other" / metadata.job_id / "chk-3"
    path.mkdir(parents=True)
    (path / "_metadata").write_bytes(replace(metadata, job_name="other").encode())
    return str(path), f"{path}/_metadata belongs to job 'other', not to 'tiny'"


def _outside(bench: Bench) -> tuple[str, str]:
    copy = bench.root / "backup of the storage"
    shutil.copytree(bench.storage, copy)
    path = copy / "tiny" / bench.checkpoints()[-1].job_id / "chk-3" / "_metadata"
    return str(path), f"{path} is not in this job's storage {bench.storage}"


def _some_file(bench: Bench) -> tuple[str, str]:
    path = next(bench.sink.glob("part-*.parquet"))
    return str(path), str(path)


_LIST = "dagster-ckpt list"


@pytest.mark.parametrize(
    ("point", "error", "way_on"),
    [
        (_never_taken, CheckpointNotFound, f"{_LIST} tiny"),
        (_other_lineage, CheckpointNotFound, f"{_LIST} tiny"),
        (_no_such_path, CheckpointNotFound, f"{_LIST} tiny"),
        (_no_metadata, CheckpointNotFound, f"{_LIST} tiny"),
        (_url_without_metadata, CheckpointNotFound, f"{_LIST} tiny"),
        (_foreign_job, ForeignCheckpoint, f"{_LIST} tiny"),
        (_outside, ForeignCheckpoint, "Set checkpoint_path"),
        (_some_file, CorruptMetadata, f"`{_LIST}`, and name another checkpoint in restore_from"),
    ],
)
def test_a_wrong_pointer(ticked: Bench, point: Pointer, error: type[CheckpointError], way_on: str) -> None:
    pointer, named = point(ticked)
    refusal = ticked.refused(error, restore_from=pointer)
    assert named in refusal.message
    assert way_on in refusal.hint
    went_on = ticked.tick(1)  # and a correct launch afterwards goes on as if nothing had been
    assert went_on.started.restored is not None
    assert went_on.started.restored.name == "chk-3"
    assert went_on.completed[-1].name == "chk-4"
    ticked.assert_exact()


def test_a_wrong_pointer_is_told_before_spark_starts_and_leaves_no_start_behind(ticked: Bench) -> None:
    starts: list[None] = []

    def session() -> SparkSession:
        starts.append(None)
        return ticked.spark

    before = ticked.catalog.records.epochs.highest()
    ticked.refused(CheckpointNotFound, replace(ticked.job(), session=session), restore_from="chk-99")
    assert starts == []
    assert ticked.catalog.records.epochs.highest() == before
    ticked.tick(1, replace(ticked.job(), session=session), restore_from="chk-2")
    assert len(starts) == 1


def test_a_checkpoint_by_name_where_there_is_none(bench: Bench) -> None:
    bench.land(1)
    refusal = bench.refused(CheckpointNotFound, restore_from="chk-1")
    assert "chk-1" in refusal.message
    assert "'tiny'" in refusal.message
    assert str(bench.storage) in refusal.message
    assert "restore_from" in refusal.hint
    bench.tick()
    bench.assert_exact()
