from __future__ import annotations

from pathlib import Path

import pytest

from dagster_ckpt.filesystem import PosixFileSystem
from tests.checkpoint.driver import Ledger, ManualClock, Pins
from tests.checkpoint.memory import MemoryFileSystem


@pytest.fixture
def memory() -> MemoryFileSystem:
    return MemoryFileSystem()


@pytest.fixture
def disk(tmp_path: Path) -> PosixFileSystem:
    return PosixFileSystem(tmp_path / "storage")


@pytest.fixture
def pins(tmp_path: Path) -> Pins:
    directory = tmp_path / "pins"
    directory.mkdir()
    return Pins(directory)


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()
