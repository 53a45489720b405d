from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dagster_ckpt.checkpoint.lease import Lease
from dagster_ckpt.testing import FaultInjectingFileSystem
from tests.helpers.checkpoint.coordinating import Job
from tests.helpers.checkpoint.driver import Ledger, ManualClock, Pins, Run
from tests.helpers.checkpoint.memory import MemoryFileSystem
from tests.helpers.checkpoint.serving import Served


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


@pytest.fixture
def make(memory: MemoryFileSystem, pins: Pins, tmp_path: Path) -> Callable[..., Served]:
    def served(*, default: bool = True, timeout: float = 600.0, lease: Lease | None = None, **options: Any) -> Served:
        directory, job = tmp_path / "savepoints", Job(memory, pins, **options)
        memory.is_distant = job.disk.is_distant = lease is not None
        return Served(job, directory, str(directory) if default else None, timeout, lease or Lease())

    return served


@pytest.fixture
def disturbed(memory: MemoryFileSystem) -> FaultInjectingFileSystem:
    return FaultInjectingFileSystem(memory)


@pytest.fixture
def run(disturbed: FaultInjectingFileSystem, ledger: Ledger, pins: Pins) -> Run:
    return Run(disturbed, ledger, pins).start()
