"""The end of the thread that archives plans, where a run ends because of something else."""

from __future__ import annotations

import errno
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from dagster_ckpt.checkpoint import PlanArchiveWriter, PlannedBatch
from dagster_ckpt.clock import SystemClock
from dagster_ckpt.errors import StorageError
from dagster_ckpt.filesystem import MemoryFileSystem
from dagster_ckpt.spark.batches import Archiver, PlannedBatches
from dagster_ckpt.spark.files import CheckpointLocation


class _Plans(PlannedBatches):
    """One plan that is not archived yet."""

    def new(self, until: int | None = None) -> list[PlannedBatch]:
        del until
        return [PlannedBatch(0, {"offsets/0": "v1\n{}\n{}"})]


class _Writer(PlanArchiveWriter):
    """Keeps the plans, or fails as a storage does."""

    def __init__(self, error: Exception | None) -> None:
        super().__init__(MemoryFileSystem(), "job", "lineage", 1, lambda: None)
        self.kept: list[int] = []
        self._error = error

    def append(self, plans: Sequence[PlannedBatch]) -> None:
        if self._error is not None:
            raise self._error
        self.kept += [plan.batch for plan in plans]


def _archiver(writer: PlanArchiveWriter, path: Path) -> Archiver:
    return Archiver(_Plans(CheckpointLocation(path), -1), writer, list, SystemClock(), 1.0)


def test_the_last_plans_are_archived_at_the_end(tmp_path: Path) -> None:
    writer = _Writer(None)
    _archiver(writer, tmp_path).close()
    assert writer.kept == [0]


@pytest.mark.parametrize(
    "full",
    [RuntimeError("can't start new thread"), OSError(errno.EAGAIN, "no room for a thread")],
    ids=["RuntimeError", "OSError"],
)
def test_a_host_without_room_for_a_thread_hides_no_error_of_the_query(
    full: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise full

    def end() -> None:
        try:
            raise ZeroDivisionError  # the error of the query
        finally:
            archiver.close()

    writer = _Writer(None)
    archiver = _archiver(writer, tmp_path)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(ZeroDivisionError):
        end()
    assert writer.kept == []


def test_a_storage_that_is_away_hides_no_error_of_the_query(tmp_path: Path) -> None:
    _archiver(_Writer(StorageError("away")), tmp_path).close()
