"""Directories and temporary files that another process sweeps away between any two lines of a write."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from dagster_ckpt.errors import StorageError
from dagster_ckpt.filesystem import PosixFileSystem
from tests.helpers.stepping import at_every_line

WRITES: dict[str, Callable[[PosixFileSystem], object]] = {
    "create": lambda disk: disk.create("job/control/pins/record", b"data"),
    "replace": lambda disk: disk.replace("job/control/pins/record", b"data"),
    "write": lambda disk: disk.write("job/control/pins/record", b"data", lambda: False),
}


def sweep(root: Path) -> None:
    """As a newer start sweeps: temporary files, and every directory that is empty then."""
    for path in sorted(root.rglob("*"), reverse=True):
        if path.name.endswith(".tmp"):
            path.unlink()
        elif path.is_dir():
            with contextlib.suppress(OSError):
                path.rmdir()


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("known", [False, True], ids=["new directory", "known directory"])
def test_a_write_is_repeated_where_a_sweep_took_its_directory(
    tmp_path: Path, name: str, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # no power cut here

    def fresh(number: int) -> tuple[PosixFileSystem, Path]:
        root = tmp_path / str(number)
        disk = PosixFileSystem(root)
        if known:
            disk.create("job/control/pins/before", b"data")
            disk.remove("job/control/pins/before")
        return disk, root

    steps = 0
    for line in at_every_line("dagster_ckpt/filesystem/posix.py"):
        disk, root = fresh(line.index)
        with line.then(partial(sweep, root)):
            WRITES[name](disk)
        assert disk.read("job/control/pins/record") == b"data"
        steps = line.index
    assert steps > 10


@pytest.mark.parametrize("name", WRITES)
def test_a_directory_that_vanishes_each_time_is_an_error_of_the_storage(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PosixFileSystem, "_make_directory", lambda self, directory: None)
    with pytest.raises(StorageError, match="is removed again and again") as refusal:
        WRITES[name](PosixFileSystem(tmp_path))
    assert refusal.value.hint
