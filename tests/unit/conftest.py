"""Storages that most rooms begin with."""

from __future__ import annotations

from pathlib import Path

import pytest

from dagster_ckpt.checkpoint import seen
from dagster_ckpt.filesystem import PosixFileSystem
from tests.helpers.checkpoint.memory import MemoryFileSystem


@pytest.fixture
def memory() -> MemoryFileSystem:
    return MemoryFileSystem()


@pytest.fixture
def disk(tmp_path: Path) -> PosixFileSystem:
    return PosixFileSystem(tmp_path / "storage")


@pytest.fixture(autouse=True)
def _nothing_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock of a test may begin again, and the clock by which a process remembers what it has seen never does."""
    monkeypatch.setattr(seen, "_seen", {})
