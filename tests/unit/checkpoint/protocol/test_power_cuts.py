"""What is acknowledged survives a power cut at any moment: on a real ext4 whose image is copied then."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dagster_ckpt.filesystem import posix
from dagster_ckpt.testing import FaultInjectingFileSystem
from tests.helpers.checkpoint.driver import Ledger, Pins
from tests.unit.checkpoint.protocol.lives import Life
from tests.unit.checkpoint.protocol.power_cuts import Disk

pytestmark = [pytest.mark.integration, pytest.mark.timeout(2400)]

STEP = 8


def cut(
    directory: Path, pins: Pins, monkeypatch: pytest.MonkeyPatch, scenario: str, *, flushes: bool, step: int
) -> tuple[int, list[str]]:
    """How many moments there were in a life, and what was found wrong on the disk."""
    directory.mkdir()
    disk, life, ledger = Disk(directory, step=step, flushes=flushes), Life(pins), Ledger()
    with disk.on() as storage, disk.cut_at_each_call(monkeypatch, ledger):
        # One file after the other: the moments of a run are the same each time.
        getattr(life, scenario)(FaultInjectingFileSystem(storage), ledger)
    assert ledger.acknowledged
    found = disk.violations(life.examine)
    disk.throw_away()
    return disk.moments, found


@pytest.mark.parametrize(
    ("scenario", "flushes"),
    [
        ("first_life", False),
        pytest.param("first_life", True, marks=pytest.mark.exhaustive),
        pytest.param("rollback", False, marks=pytest.mark.exhaustive),
        pytest.param("rollback", True, marks=pytest.mark.exhaustive),
    ],
)
def test_what_is_acknowledged_survives_a_power_cut(
    tmp_path: Path, pins: Pins, monkeypatch: pytest.MonkeyPatch, scenario: str, flushes: bool
) -> None:
    moments, found = cut(tmp_path / "disk", pins, monkeypatch, scenario, flushes=flushes, step=STEP)
    assert moments > 50
    assert not found, f"{len(found)} of {moments // STEP}: {found[:5]}"


def no_sync_of_files(descriptor: int, fsync: Callable[[int], None] = os.fsync) -> None:
    if Path(f"/proc/self/fd/{descriptor}").is_dir():
        fsync(descriptor)


def no_sync(descriptor: int) -> None:
    """As a disk that has lost its cache."""


def no_sync_of_directories(path: Path) -> None:
    """What is linked is not there yet."""


@pytest.mark.parametrize("flushes", [False, True])
def test_without_fsync_it_does_not(tmp_path: Path, pins: Pins, monkeypatch: pytest.MonkeyPatch, flushes: bool) -> None:
    """The proof that the test above can find anything: empty files where the journal was written, no files else."""
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_sync_of_files if flushes else no_sync)
        _, found = cut(tmp_path / "disk", pins, monkeypatch, "first_life", flushes=flushes, step=25)
    assert found


def test_without_fsync_of_directories_it_does_not(tmp_path: Path, pins: Pins, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is synced next takes the journal with it: so this is about a checkpoint that nothing follows."""
    with monkeypatch.context() as patch:
        patch.setattr(posix, "make_durable", no_sync_of_directories)
        _, found = cut(tmp_path / "disk", pins, monkeypatch, "restored", flushes=False, step=25)
    assert found
