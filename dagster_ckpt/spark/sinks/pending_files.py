"""Data files of batches that no completed checkpoint covers yet, and those that a rollback is removing.

::

    {root}/pending/{start}/{batch}/       data files of one batch
    {root}/pending/{start}/{batch}.json   their list, written when they are durable
    {root}/dropped/{start}.{unique}/      what was pending of a start of the query, moved aside
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from dagster_ckpt.errors import CaptureIncomplete, SinkMismatch
from dagster_ckpt.filesystem import PosixFileSystem
from dagster_ckpt.spark.sinks.transactions import DataFile, decode_files, encode_files

__all__ = ["PendingFiles", "data_files", "directories_of", "pinned_files", "read_list", "size_of"]

_PENDING = "pending"
_DROPPED = "dropped"
_LIST = ".json"
_HIDDEN = ("_", ".")
_BATCH = re.compile(r"0|[1-9][0-9]{0,18}")


class PendingFiles:
    """What is pending in one sink.

    Args:
        root: the directory it is in.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._files = PosixFileSystem(root)

    def target(self, start: str, batch: int) -> Path:
        """Where a batch writes its files."""
        return self._root / _PENDING / start / str(batch)

    def staged(self, file: DataFile) -> Path:
        """Where a file is until it is made visible."""
        return self.target(file.start, file.batch) / file.path

    def list_of(self, start: str, batch: int) -> Path:
        """The file that lists what a batch has written."""
        return self.target(start, batch).with_name(f"{batch}{_LIST}")

    def complete(self, start: str, batch: int) -> None:
        """All that a batch has written is there: make it durable, and list it."""
        target = self.target(start, batch)
        files = [
            DataFile(file.relative_to(target).as_posix(), _sync_file(file), batch, start) for file in data_files(target)
        ]
        where = f"{_PENDING}/{start}/{batch}"
        self._files.sync_directories(
            f"{where}/{directory}" for directory in directories_of(file.path for file in files)
        )
        self._files.create(f"{where}{_LIST}", encode_files(files))

    def batches(self, start: str) -> list[int]:
        """The batches that are pending whole, ascending."""
        return _batches(self._root / _PENDING / start)

    def of(self, start: str, batch: int) -> list[DataFile]:
        """What a batch has written.

        Raises:
            CaptureIncomplete: it has no list (any more).
        """
        return read_list(self.list_of(start, batch))

    def forget(self, start: str, batch: int) -> None:
        """All that a batch has written is visible and listed: it is not pending any more."""
        self.list_of(start, batch).unlink(missing_ok=True)
        shutil.rmtree(self.target(start, batch), ignore_errors=True)

    def starts(self) -> list[str]:
        """The starts of the query that have something pending."""
        return self._names(_PENDING)

    def dropped(self) -> set[str]:
        """The starts of the query of which something is being removed."""
        return {name.partition(".")[0] for name in self._names(_DROPPED)}

    def drop(self, starts: Collection[str], is_void: Callable[[DataFile], bool]) -> list[DataFile]:
        """Move aside what is pending of some starts, and remove what of it is void.

        Returns:
            All that is void. Whoever was about to make some of it visible has done so now, or can do so no more.
        """
        for start in set(self.starts()) & set(starts):
            aside = self._root / _DROPPED / f"{start}.{os.urandom(4).hex()}"
            aside.parent.mkdir(exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                (self._root / _PENDING / start).rename(aside)
        void = []
        for directory in self._aside(starts):
            for batch in _batches(directory):
                with contextlib.suppress(CaptureIncomplete):  # somebody else removes it, too, and is further on
                    for file in filter(is_void, read_list(directory / f"{batch}{_LIST}")):
                        (directory / str(batch) / file.path).unlink(missing_ok=True)
                        void.append(file)
        return void

    def purge(self, starts: Collection[str]) -> None:
        """Remove what was moved aside."""
        for directory in self._aside(starts):
            shutil.rmtree(directory, ignore_errors=True)

    def _aside(self, starts: Collection[str]) -> list[Path]:
        return [self._root / _DROPPED / name for name in self._names(_DROPPED) if name.partition(".")[0] in starts]

    def _names(self, directory: str) -> list[str]:
        return sorted(entry.name for entry in self._files.list(directory) if entry.is_directory)


def pinned_files(directory: Path) -> list[DataFile]:
    """What lists hold that were pinned with a checkpoint, from the directory they are in now."""
    if not directory.is_dir():
        return []
    return [file for pinned in sorted(directory.iterdir()) for file in read_list(pinned)]


def data_files(directory: Path) -> Iterable[Path]:
    """The files that readers see, in order."""
    for place, children, names in os.walk(directory):
        children[:] = sorted(child for child in children if not child.startswith(_HIDDEN))
        yield from (Path(place, name) for name in sorted(names) if not name.startswith(_HIDDEN))


def directories_of(paths: Iterable[str]) -> set[str]:
    """Every directory from the one that ``paths`` are relative to, ``.``, down to them."""
    return {parent.as_posix() for path in paths for parent in Path(path).parents} | {"."}


def size_of(file: Path) -> int | None:
    """Bytes of a file, ``None`` when it is not there."""
    try:
        return file.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        return None


def _batches(directory: Path) -> list[int]:
    try:
        stems = [path.stem for path in directory.iterdir() if path.suffix == _LIST]
    except FileNotFoundError:
        return []
    return sorted(int(stem) for stem in stems if _BATCH.fullmatch(stem))


def read_list(file: Path) -> list[DataFile]:
    """What a list holds.

    Raises:
        CaptureIncomplete: it is not there.
        SinkMismatch: it is no list.
    """
    try:
        return decode_files(file.read_bytes(), str(file))
    except FileNotFoundError:
        raise CaptureIncomplete(
            f"{file} is not there (any more)", hint="The next committed batch can be captured."
        ) from None
    except IsADirectoryError:
        raise SinkMismatch(
            f"{file} is a directory, and no list of data files.", hint="Restore another checkpoint."
        ) from None


def _sync_file(file: Path) -> int:
    """Make a file durable; returns its bytes."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)
