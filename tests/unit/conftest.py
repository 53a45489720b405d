"""Storages that most rooms begin with."""

from __future__ import annotations

from pathlib import Path

import pytest

from dagster_ckpt.filesystem import PosixFileSystem
from tests.helpers.checkpoint.memory import MemoryFileSystem


@pytest.fixture
def memory() -> MemoryFileSystem:
    return MemoryFileSystem()


@pytest.fixture
def disk(tmp_path: Path) -> PosixFileSystem:
    return PosixFileSystem(tmp_path / "storage")
