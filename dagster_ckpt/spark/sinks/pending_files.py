"""Data files of batches that no completed checkpoint covers yet, and data files that a rollback is removing.

::

    {root}/pending/{start}/{batch}/       data files of one batch
    {root}/pending/{start}/{batch}.json   list of these files, written when they are durable
    {root}/dropped/{start}.{unique}/      pending files of one start, moved aside
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from dagster_ckpt.errors import CaptureIncomplete, SinkMismatch
from dagster_ckpt.filesystem import PosixFileSystem, make_durable
from dagster_ckpt.spark.sinks.transactions import DataFile, decode_files, encode_files

__all__ = ["PendingFiles", "data_files", "directories_of", "pinned_files", "read_list", "remove_file", "size_of"]

_PENDING = "pending"
_DROPPED = "dropped"
_LIST = ".json"
_HIDDEN = ("_", ".")
_BATCH = re.compile(r"0|[1-9][0-9]{0,18}")


class PendingFiles:
    """The pending files of one sink.

    Args:
        root: the directory of the pending files.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._files = PosixFileSystem(root)

    def target(self, start: str, batch: int) -> Path:
        """Where a batch writes its files."""
        return self._root / _PENDING / start / str(batch)

    def staged(self, file: DataFile) -> Path:
        """Where a file lies until it becomes visible."""
        return self.target(file.start, file.batch) / file.path

    def show(self, file: DataFile, target: Path) -> bool:
        """Make one file visible by a move; ``False`` if the file is visible already.

        Raises:
            SinkMismatch: the file is neither pending nor visible.
        """
        try:
            self.staged(file).rename(target)
        except FileNotFoundError:
            if size_of(target) == file.size:
                return False
            raise SinkMismatch(
                f"{target} was written by batch {file.batch} and is neither there nor pending.",
                hint="Put the file back, or restore a checkpoint whose data is still there.",
            ) from None
        return True

    def list_of(self, start: str, batch: int) -> Path:
        """The file that lists what a batch has written."""
        return self.target(start, batch).with_name(f"{batch}{_LIST}")

    def complete(self, start: str, batch: int) -> None:
        """Make the files of a completely written batch durable, and list them."""
        target = self.target(start, batch)
        files = [
            DataFile(file.relative_to(target).as_posix(), make_durable(file), batch, start)
            for file in data_files(target)
        ]
        where = f"{_PENDING}/{start}/{batch}"
        self._files.sync_directories(
            f"{where}/{directory}" for directory in directories_of(file.path for file in files)
        )
        self._files.create(f"{where}{_LIST}", encode_files(files))

    def batches(self, start: str) -> list[int]:
        """The completely written pending batches, ascending."""
        return _batches(self._root / _PENDING / start)

    def of(self, start: str, batch: int) -> list[DataFile]:
        """The files that a batch has written.

        Raises:
            CaptureIncomplete: the batch has no list (or no longer).
        """
        return read_list(self.list_of(start, batch))

    def forget(self, start: str, batch: int) -> None:
        """Forget a batch whose files are all visible and listed."""
        self.list_of(start, batch).unlink(missing_ok=True)
        shutil.rmtree(self.target(start, batch), ignore_errors=True)

    def starts(self) -> list[str]:
        """The starts that have pending files."""
        return self._names(_PENDING)

    def dropped(self) -> set[str]:
        """The starts whose files are being removed."""
        return {name.partition(".")[0] for name in self._names(_DROPPED)}

    def drop(self, starts: Collection[str], is_void: Callable[[DataFile], bool]) -> list[DataFile]:
        """Move the pending files of some starts aside, and remove the void ones.

        Returns:
            All void files. A process that was making some of them visible has finished with them, or no longer can.
        """
        for start in set(self.starts()) & set(starts):
            aside = self._root / _DROPPED / f"{start}.{os.urandom(4).hex()}"
            aside.parent.mkdir(exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                (self._root / _PENDING / start).rename(aside)
        void = []
        for directory in self._aside(starts):
            for batch in _batches(directory):
                with contextlib.suppress(CaptureIncomplete):  # another process removes them too, and is ahead
                    for file in filter(is_void, read_list(directory / f"{batch}{_LIST}")):
                        (directory / str(batch) / file.path).unlink(missing_ok=True)
                        void.append(file)
        return void

    def purge(self, starts: Collection[str]) -> None:
        """Remove the files that were moved aside."""
        for directory in self._aside(starts):
            shutil.rmtree(directory, ignore_errors=True)

    def _aside(self, starts: Collection[str]) -> list[Path]:
        return [self._root / _DROPPED / name for name in self._names(_DROPPED) if name.partition(".")[0] in starts]

    def _names(self, directory: str) -> list[str]:
        return sorted(entry.name for entry in self._files.list(directory) if entry.is_directory)


def pinned_files(directory: Path) -> list[DataFile]:
    """The files in the lists that were pinned with a checkpoint, from the lists' current directory."""
    if not directory.is_dir():
        return []
    return [file for pinned in sorted(directory.iterdir()) for file in read_list(pinned)]


def data_files(directory: Path) -> Iterable[Path]:
    """The files that readers see, in order."""
    for place, children, names in os.walk(directory):
        children[:] = sorted(child for child in children if not child.startswith(_HIDDEN))
        yield from (Path(place, name) for name in sorted(names) if not name.startswith(_HIDDEN))


def directories_of(paths: Iterable[str]) -> set[str]:
    """All directories of ``paths``, from ``.``, which the paths are relative to, down."""
    return {parent.as_posix() for path in paths for parent in Path(path).parents} | {"."}


def size_of(file: Path) -> int | None:
    """The size of a file in bytes, ``None`` when the file does not exist."""
    try:
        return file.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        return None


def remove_file(file: Path) -> int | None:
    """Remove a file; returns the bytes that it had, ``None`` when it does not exist."""
    size = size_of(file)
    if size is not None:
        file.unlink(missing_ok=True)
    return size


def _batches(directory: Path) -> list[int]:
    try:
        stems = [path.stem for path in directory.iterdir() if path.suffix == _LIST]
    except FileNotFoundError:
        return []
    return sorted(int(stem) for stem in stems if _BATCH.fullmatch(stem))


def read_list(file: Path) -> list[DataFile]:
    """The files in a list.

    Raises:
        CaptureIncomplete: the list does not exist.
        SinkMismatch: the file is not a list.
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
