"""A disk whose power is cut: a file system in a file, copied at a moment, and what a machine finds when it is up again.

The copy is what the disk would hold: what nobody has synced is in the memory of the kernel only. Mounting the copy
replays its journal, as after a real cut.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dagster_ckpt.filesystem import FileSystem, PosixFileSystem
from tests.helpers.checkpoint.driver import Ledger
from tests.helpers.mounts import mounted

_MIB = 8
_BLOCK = 64 << 10
_ZEROS = bytes(_BLOCK)
#: Of the kernel, whatever a test makes of it for the job.
_fsync = os.fsync
#: What changes a disk, or makes a change last.
_CALLS = ("fsync", "link", "mkdir", "replace", "rmdir", "unlink")


@dataclass(frozen=True)
class Cut:
    """A copy of the disk, what the job had been promised by then, and when it was made."""

    image: Path
    ledger: Ledger
    when: str


class Disk:
    """An ext4 of its own.

    Args:
        directory: for the image, its mount point and the copies.
        step: of the moments that differ each so-manieth is kept, and the last.
        flushes: whether the kernel has just written its journal when the power is cut, as it does every few seconds:
            names are there then whose bytes may not be. Else nothing is that was not synced.
    """

    def __init__(self, directory: Path, *, step: int, flushes: bool) -> None:
        self.directory = directory
        self.step = step
        self.flushes = flushes
        self.image = directory / "disk"
        self.mount = directory / "mount"
        self.moments = 0
        self.cuts: list[Cut] = []
        self._last: tuple[bytes, Ledger] | None = None

    @contextmanager
    def on(self) -> Iterator[PosixFileSystem]:
        """The disk with its power on."""
        self.mount.mkdir()
        with self.image.open("wb") as file:
            file.truncate(_MIB << 20)
        try:
            made = subprocess.run(
                ["mkfs.ext4", "-q", "-F", "-b", "1024", "-J", "size=1", str(self.image)],
                capture_output=True,
                text=True,
                check=False,
            )
        except FileNotFoundError:
            pytest.fail("this test needs `mkfs.ext4` (Linux, e2fsprogs)")
        assert made.returncode == 0, made.stderr
        # Nothing is written by a timer: the moments of a run are the same each time.
        with mounted("-o", "loop,commit=600", str(self.image), str(self.mount)):
            os.sync()
            yield PosixFileSystem(self.mount / "storage")

    @contextmanager
    def cut_at_each_call(self, monkeypatch: pytest.MonkeyPatch, ledger: Ledger) -> Iterator[None]:
        """Cut the power before and after each call of the operating system that changes a disk, or makes that last."""
        with monkeypatch.context() as patch:
            for name in _CALLS:
                self._watch(patch, name, ledger)
            yield
        self._cut("at the end", ledger, last=True)

    def _watch(self, patch: pytest.MonkeyPatch, name: str, ledger: Ledger) -> None:
        call = getattr(os, name)

        def watched(*arguments: Any, **options: Any) -> Any:
            self._cut(f"before {name}{arguments}", ledger)  # the job may have been promised something since
            try:
                return call(*arguments, **options)
            finally:
                self._cut(f"after {name}{arguments}", ledger)

        patch.setattr(os, name, watched)

    def _cut(self, when: str, ledger: Ledger, *, last: bool = False) -> None:
        if self.flushes:
            unrelated = os.open(self.mount / "unrelated", os.O_WRONLY | os.O_CREAT)
            os.write(unrelated, b"x")
            _fsync(unrelated)
            os.close(unrelated)
        content = self.image.read_bytes()
        if (content, ledger) == self._last and not last:
            return
        self._last = (content, deepcopy(ledger))
        self.moments += 1
        if self.moments % self.step == 0 or last:
            image = self.directory / f"cut-{self.moments}"
            _write_sparsely(image, content)
            self.cuts.append(Cut(image, self._last[1], when))

    def violations(self, examine: Callable[[FileSystem, Ledger], object]) -> list[str]:
        """What is wrong on the disk after each cut."""
        found = []
        where = self.directory / "after"
        where.mkdir()
        for cut in self.cuts:
            with mounted("-o", "loop", str(cut.image), str(where)):
                try:
                    examine(PosixFileSystem(where / "storage"), cut.ledger)
                except Exception as error:  # whatever it is, it should not have been
                    found.append(f"cut {cut.when}: {type(error).__name__}: {error}")
        return found

    def throw_away(self) -> None:
        """Delete the copies."""
        shutil.rmtree(self.directory)


def _write_sparsely(path: Path, content: bytes) -> None:
    """Without the blocks that are zero, which most of a small disk are."""
    with path.open("wb") as file:
        file.truncate(len(content))
        for begin in range(0, len(content), _BLOCK):
            block = content[begin : begin + _BLOCK]
            if block != _ZEROS:
                file.seek(begin)
                file.write(block)
