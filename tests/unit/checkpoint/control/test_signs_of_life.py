"""What a heart tells its own process: that it beats, whether the storage takes the beats or not."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from dagster_ckpt.checkpoint.control import heart as heart_module
from dagster_ckpt.checkpoint.control.heart import Heart
from dagster_ckpt.checkpoint.control.heartbeat import Completed, HeartbeatFile
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
def test_each_beat_is_told_even_if_whoever_is_told_fails(
    storage: type[PosixFileSystem], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heart_module, "INTERVAL", 0.01)
    told, often = 0, threading.Event()

    def on_beat() -> None:
        nonlocal told
        told += 1
        if told == 3:
            often.set()
        raise ZeroDivisionError

    heart = Heart(HeartbeatFile(storage(tmp_path), "job"), SystemClock(), epoch=1, run_id="run")
    heart.on_beat = on_beat
    heart.start()
    try:
        assert often.wait(_DEADLINE)
    finally:
        heart.stop()


def test_what_is_complete_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is killed seconds after a checkpoint has told of it."""
    monkeypatch.setattr(heart_module, "INTERVAL", 10 * _DEADLINE)
    file = HeartbeatFile(PosixFileSystem(tmp_path), "job")
    heart, beats = Heart(file, SystemClock(), epoch=1, run_id="run"), threading.Semaphore(0)
    heart.on_beat = beats.release
    heart.start()
    try:
        heart.completed(f"{'0' * 32}/chk-1", 1)
        assert beats.acquire(timeout=_DEADLINE)
    finally:
        heart.stop()
    beat = file.read()
    assert beat is not None
    assert beat.completed == Completed(f"{'0' * 32}/chk-1", 1)
