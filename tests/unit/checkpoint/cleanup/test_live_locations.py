"""Which directories are the live locations of earlier starts, by their names."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from dagster_ckpt.checkpoint.cleanup.live_locations import (
    epoch_of_start,
    forget_live_locations,
    forget_stored,
    remove_live_directories,
    stored_before,
)
from dagster_ckpt.config.checkpoint_config import JobStatus
from dagster_ckpt.errors import StorageError
from dagster_ckpt.filesystem import scratch_directory
from tests.helpers.checkpoint.driver import JOB, Ledger, Pins, Run
from tests.helpers.checkpoint.memory import CopyingMemory, MemoryFileSystem


@pytest.mark.parametrize(
    ("name", "epoch"),
    [
        ("000012-0123abcd", 12),
        ("1234567-0123abcd", 1_234_567),
        ("000012-0123abcd.salvage", 12),
        ("12-0123abcd", None),
        ("000012-0123abc", None),
        ("000012-0123abcd.backup", None),
        ("notes", None),
    ],
)
def test_the_name_of_a_start_tells_its_epoch(name: str, epoch: int | None) -> None:
    assert epoch_of_start(name) == epoch


def test_those_of_earlier_starts_are_found_and_nothing_else(memory: MemoryFileSystem) -> None:
    for name in ("000003-00000000", "000001-00000000", "000002-00000000", "notes"):
        memory.create(f"job/taskowned/{name}/offsets/0", b"v1")
    memory.create("job/taskowned/000001-11111111", b"a file")
    found = stored_before(memory, "job", 3)
    assert found == ["job/taskowned/000001-00000000", "job/taskowned/000002-00000000"]


@pytest.mark.parametrize(("status", "stays"), [(None, True), (JobStatus.FAILED, True), (JobStatus.FINISHED, False)])
def test_the_newest_start_keeps_its_live_location_until_its_job_is_over(
    tmp_path: Path, status: JobStatus | None, stays: bool
) -> None:
    """The next start salvages from it."""
    bucket = CopyingMemory()
    ledger, pins = Ledger(), Pins(tmp_path)
    starts = [Run(bucket, ledger, pins) for _ in range(2)]
    for number, run in enumerate(starts, start=1):
        run.start()
        bucket.create(f"{JOB}/taskowned/{number:06}-00000000/offsets/0", b"v1")
    if status is not None:
        starts[-1].finish(status.value)
    remove_live_directories(starts[-1].catalog, 2)
    assert stored_before(bucket, JOB, 3) == ([f"{JOB}/taskowned/000002-00000000"] if stays else [])


def test_a_host_without_room_for_a_thread_leaves_them_in_the_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The start goes on: whatever stays harms nobody."""

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    bucket = CopyingMemory()
    (tmp_path / "000001-00000000").mkdir()
    bucket.create(f"{JOB}/taskowned/000001-00000000/offsets/0", b"v1")
    monkeypatch.setattr(threading.Thread, "start", start)
    with caplog.at_level("INFO"):
        forget_live_locations(tmp_path, bucket, JOB, 3)
    assert "are still there, until a later start: can't start new thread" in caplog.text
    assert list(tmp_path.iterdir()) == []
    assert stored_before(bucket, JOB, 3) != []
    monkeypatch.undo()
    forget_live_locations(tmp_path, bucket, JOB, 3)
    _join()
    assert stored_before(bucket, JOB, 3) == []


def test_what_earlier_starts_have_left_is_forgotten_on_disk_and_in_the_bucket(tmp_path: Path) -> None:
    bucket = CopyingMemory()
    for name in ("000001-00000000", "000002-00000000.salvage", "000003-00000000", "notes"):
        (tmp_path / name).mkdir()
        bucket.create(f"{JOB}/taskowned/{name}/offsets/0", b"v1")
    forget_live_locations(tmp_path, bucket, JOB, 3)
    _join()
    left = ["000003-00000000", "notes"]
    assert sorted(entry.name for entry in tmp_path.iterdir()) == left
    assert sorted(entry.name for entry in bucket.list(f"{JOB}/taskowned")) == left


def test_before_a_start_has_a_checkpoint_what_it_may_go_on_from_is_kept(tmp_path: Path) -> None:
    """A salvage reads the live location of the newest choice, and a start takes what its standby has fetched."""
    bucket = CopyingMemory()
    starts = [f"{epoch:06}-00000000" for epoch in range(1, 6)]
    for name in (*starts, "000001-00000000.salvage", "notes"):
        (tmp_path / name).mkdir()
        bucket.create(f"{JOB}/taskowned/{name}/offsets/0", b"v1")
    with scratch_directory(tmp_path) as fetched:
        forget_live_locations(tmp_path, bucket, JOB, 4, 2)
        _join()
        kept = [starts[1], starts[3], starts[4], "notes"]
        assert {entry.name for entry in tmp_path.iterdir()} == {fetched.name, *kept}
    assert sorted(entry.name for entry in bucket.list(f"{JOB}/taskowned")) == kept


def test_without_copies_nothing_in_the_storage_is_forgotten(memory: MemoryFileSystem, tmp_path: Path) -> None:
    memory.create(f"{JOB}/taskowned/000001-00000000/offsets/0", b"v1")
    forget_stored(memory, JOB, 3)
    forget_live_locations(tmp_path, memory, JOB, 3)
    assert stored_before(memory, JOB, 3) == [f"{JOB}/taskowned/000001-00000000"]


def test_a_storage_that_does_not_let_go_harms_nobody(tmp_path: Path) -> None:
    class Refusing(CopyingMemory):
        def remove_below(self, path: str) -> int:
            raise StorageError(f"{path} stays")

    bucket = Refusing()
    bucket.create(f"{JOB}/taskowned/000001-00000000/offsets/0", b"v1")
    forget_stored(bucket, JOB, 3)
    forget_live_locations(tmp_path / "gone", bucket, JOB, 3)


def _join() -> None:
    for thread in threading.enumerate():
        if thread.name == "dagster-ckpt-forget":
            thread.join()
