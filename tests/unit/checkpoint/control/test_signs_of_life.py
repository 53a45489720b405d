"""What a heart tells its own process: that it beats, whether the storage takes the beats or not."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from dagster_ckpt.checkpoint.control.heartbeat import Completed, Heart, HeartbeatFile
from dagster_ckpt.checkpoint.lease import Lease
from dagster_ckpt.clock import SystemClock
from dagster_ckpt.errors import StorageError
from dagster_ckpt.filesystem import PosixFileSystem

_DEADLINE = 60


class Refusing(PosixFileSystem):
    def replace(self, path: str, data: bytes) -> None:
        raise StorageError(f"{path} is not written today")


class Failing(PosixFileSystem):
    def replace(self, path: str, data: bytes) -> None:
        raise ZeroDivisionError(path)


@pytest.mark.parametrize("storage", [PosixFileSystem, Refusing, Failing])
def test_each_beat_is_told_even_if_whoever_is_told_fails(storage: type[PosixFileSystem], tmp_path: Path) -> None:
    told, often = 0, threading.Event()

    def on_beat() -> None:
        nonlocal told
        told += 1
        if told == 3:
            often.set()
        raise ZeroDivisionError

    lease = Lease(0.01)
    heart = Heart(HeartbeatFile(storage(tmp_path), "job"), SystemClock(), epoch=1, run_id="run", lease=lease)
    heart.on_beat = on_beat
    heart.start()
    try:
        assert often.wait(_DEADLINE)
    finally:
        heart.stop()


def test_what_is_complete_is_told_at_once(tmp_path: Path) -> None:
    """A process that is killed seconds after a checkpoint has told of it."""
    file = HeartbeatFile(PosixFileSystem(tmp_path), "job")
    seldom = Lease(10 * _DEADLINE, 30 * _DEADLINE)
    heart, beats = Heart(file, SystemClock(), epoch=1, run_id="run", lease=seldom), threading.Semaphore(0)
    heart.start()
    heart.on_beat = beats.release
    try:
        heart.completed(f"{'0' * 32}/chk-1", 1)
        assert beats.acquire(timeout=_DEADLINE)
    finally:
        heart.stop()
    beat = file.read()
    assert beat is not None
    assert beat.completed == Completed(f"{'0' * 32}/chk-1", 1)
