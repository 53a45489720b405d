"""What a heart tells its own process: that it beats, whether the storage takes the beats or not."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from dagster_ckpt.checkpoint import liveness
from dagster_ckpt.checkpoint.clock import SystemClock
from dagster_ckpt.checkpoint.liveness import Heart, HeartbeatFile
from dagster_ckpt.errors import StorageError
from dagster_ckpt.filesystem import PosixFileSystem

_DEADLINE = 60


class Refusing(PosixFileSystem):
    def replace(self, path: str, data: bytes) -> None:
        raise StorageError(f"{path} is not written today")


@pytest.mark.parametrize("storage", [PosixFileSystem, Refusing])
def test_each_beat_is_told_even_if_whoever_is_told_fails(
    storage: type[PosixFileSystem], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liveness, "INTERVAL", 0.01)
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
