"""Processes that are of no job, and processes that are gone."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from dagster_ckpt.checkpoint.processes import ProcessIdentity
from tests.unit.checkpoint.control.bystanders import running


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[str]]:
    """A live process of this user that does nothing, and is of no job."""
    with running() as process:
        yield process


@pytest.fixture
def gone() -> ProcessIdentity:
    """A process that has ended."""
    with running() as process:
        return ProcessIdentity.of(process.pid)
