"""A writer whose files a newer owner sweeps between any two lines of a write says that it is fenced."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from dagster_ckpt.checkpoint.format.layout import METADATA_FILE_NAME
from dagster_ckpt.errors import Fenced, StorageError
from dagster_ckpt.filesystem import PosixFileSystem
from dagster_ckpt.testing import Action, Fail, FaultInjectingFileSystem, Operation
from tests.helpers.checkpoint.driver import Ledger, Pins, Run, once, state
from tests.helpers.checkpoint.memory import MemoryFileSystem
from tests.helpers.stepping import Line, at_every_line

POSIX = "dagster_ckpt/filesystem/posix.py"
EVERYTHING = ""


class Zombie(PosixFileSystem):
    """A disk at which a newer start takes the job over, and sweeps, before one line of a create."""

    def __init__(self, root: Path, line: Line, ending: str, take_over: Callable[[], object]) -> None:
        super().__init__(root)
        self._line, self._ending, self._take_over = line, ending, take_over
        self.armed = False

    def create(self, path: str, data: bytes) -> None:
        with self._then(path):
            super().create(path, data)

    def remove(self, path: str) -> None:
        with self._then(path):
            super().remove(path)

    def _then(self, path: str) -> contextlib.AbstractContextManager[None]:
        is_due = self.armed and not self._line.reached and path.endswith(self._ending)
        return self._line.then(self._take_over) if is_due else contextlib.nullcontext()


def checkpoint(run: Run) -> None:
    run.checkpoint(state(3), 3)


def savepoint(run: Run) -> None:
    run.store.write_savepoint(run.begin(), run.pins.snapshot(3, state(3)), run.filesystem)


def subsume(run: Run) -> None:
    run.subsume(1)


EVERYWHERE = [pytest.mark.exhaustive, pytest.mark.timeout(3600)]


@pytest.mark.parametrize(
    ("act", "ending"),
    [
        (checkpoint, METADATA_FILE_NAME),
        (subsume, METADATA_FILE_NAME),
        *(pytest.param(act, EVERYTHING, marks=EVERYWHERE) for act in (checkpoint, savepoint, subsume)),
    ],
)
def test_it_is_fenced(
    tmp_path: Path, pins: Pins, act: Callable[[Run], None], ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # no power cut here, and hundreds of storages
    root = tmp_path / "storage"
    points = 0
    for line in at_every_line(POSIX):
        shutil.rmtree(root, ignore_errors=True)
        ledger = Ledger()
        disk = Zombie(root, line, ending, Run(PosixFileSystem(root), ledger, pins).start)
        run = Run(disk, ledger, pins).start()
        for step in range(2):
            run.checkpoint(state(step), step)
        disk.armed = True
        with contextlib.suppress(Fenced):
            act(run)
        if line.reached:
            with pytest.raises(Fenced):
                run.store.begin()
            points += 1
        ledger.examine(PosixFileSystem(root))
    assert points > 5


@pytest.mark.parametrize("act", [checkpoint, savepoint, subsume])
def test_whatever_fails_for_a_fenced_writer_is_fenced(pins: Pins, act: Callable[[Run], None]) -> None:
    """Such as an object that the newer owner has deleted: the error of the storage tells nobody what to do."""
    for number in itertools.count():
        memory, ledger = MemoryFileSystem(), Ledger()
        disk = FaultInjectingFileSystem(memory)
        run = Run(disk, ledger, pins).start()
        for step in range(2):
            run.checkpoint(state(step), step)
        begun = len(disk.log)

        def fail(
            operation: Operation, memory: MemoryFileSystem = memory, ledger: Ledger = ledger, at: int = begun + number
        ) -> Action | None:
            if operation.sequence == at:
                Run(memory, ledger, pins).start()
            return Fail() if operation.sequence == at and operation.path.count("/epochs") == 0 else None

        disk.plan = fail
        with contextlib.suppress(Fenced):
            act(run)
        ledger.examine(memory)
        if len(disk.log) <= begun + number:
            assert number > 5
            return


def test_a_failure_of_the_storage_is_not_taken_for_a_fence(pins: Pins) -> None:
    disk = FaultInjectingFileSystem(MemoryFileSystem())
    run = Run(disk, Ledger(), pins).start()
    disk.plan = once("create", METADATA_FILE_NAME, Fail())
    with pytest.raises(StorageError, match="injected"):
        run.checkpoint(state(1))
    assert run.checkpoint(state(2)).checkpoint_id == 2
