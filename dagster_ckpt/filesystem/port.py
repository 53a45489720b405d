"""Storage as the checkpoint protocol needs it: fsspec's verbs plus exclusive, durable publish.

fsspec is not enough for the commit step: its local file system neither creates exclusively nor calls
``fsync``, so a power cut can leave a visible, empty ``_metadata``. The port below is small on purpose: every
operation the protocol uses is listed here, and a wrapper that injects faults sees all of them.

Every path is a relative POSIX path below the root of the file system, so nothing outside the root can be touched.
"""

from __future__ import annotations

import contextlib
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from dagster_ckpt.errors import PublishConflict, StorageUnusable
from dagster_ckpt.filesystem.server_side import ServerSide
from dagster_ckpt.filesystem.values import Entry, Part, Written, unheard
from dagster_ckpt.shown_text import path_option
from dagster_ckpt.threads import Threads

__all__ = ["IS_WRITABLE", "FileSystem"]

_Answer = TypeVar("_Answer")
_Name = TypeVar("_Name")
#: The next step where a directory cannot be written.
IS_WRITABLE = "Check that the directory exists, is writable by this user and has space left; then launch the run again."
#: How often a directory is listed at most, when each time files vanished before they were read.
_MOST_LOOKS = 50


class FileSystem(ABC):
    """The operations the checkpoint protocol is built from.

    Errors: every method raises :class:`StorageError` (an ``OSError``) when the storage fails, and
    ``FileNotFoundError`` when it is to read a single named file that does not exist.
    """

    #: Whether stored files outlive the process that stored them.
    is_durable: bool = True

    #: Whether each request takes so long that even small files are worth reading side by side.
    is_distant: bool = False

    #: How many requests are worth having under way at once: on local disks 16 ``fsync`` at once take a third of the
    #: time of 16 in a row.
    concurrency: int = 16

    #: The next step where :meth:`probe` fails; empty if the error of each operation has its own.
    probe_hint: str = ""
    #: Whether many requests are worth sharing among forked processes: each request is work for the processor, and a
    #: forked process connects by itself at little cost.
    is_worth_forking: bool = False

    @property
    def storage_options(self) -> Mapping[str, Any]:
        """How to connect to this storage, for another location of the same kind. May hold secrets."""
        return {}

    @property
    def copies(self) -> ServerSide | None:
        """The storage's own operations on its files; ``None`` where the bytes have to pass through this machine."""
        return None

    @property
    @abstractmethod
    def url(self) -> str:
        """The root, as shown to people; never contains credentials."""

    @property
    def path_option(self) -> str:
        """What names this storage in a command of ``dagster-ckpt``, as a shell takes it."""
        return path_option(self.url)

    @property
    def hadoop_url(self) -> str:
        """The root as Hadoop and Spark name it."""
        return self.url

    @abstractmethod
    def create(self, path: str, data: bytes) -> None:
        """Create ``path`` with ``data``: whole or not at all, never over other bytes, durable on return.

        A create that finds its own bytes already there has succeeded (an earlier reply was lost).

        Raises:
            PublishConflict: the name holds other bytes, or was taken and is gone again; this create never takes effect.
            PublishUnknown: the create failed, and the name could not be read back.
        """

    @abstractmethod
    def replace(self, path: str, data: bytes) -> None:
        """Make ``data`` the content of ``path``, atomically. For files that may be lost: hints and heartbeats."""

    @abstractmethod
    def write(self, path: str, source: Path | bytes, stop: Callable[[], bool]) -> Written:
        """Copy a local file, or bytes, to the new name ``path``; durable on return except for its directory entry.

        Raises:
            Stopped: ``stop()`` became true; nothing is left behind.
        """

    @abstractmethod
    def sync_directories(self, paths: Iterable[str]) -> None:
        """Make additions to and removals from these directories durable; a missing directory is skipped."""

    @abstractmethod
    def read(self, path: str) -> bytes:
        """All bytes of one file."""

    @abstractmethod
    def fetch(self, path: str, target: Path, part: Part | None = None) -> Written:
        """Copy one file, or a part of it, to the new local file ``target``.

        A part may reach beyond the end of the file: it ends there.
        """

    @abstractmethod
    def checksum(self, path: str, part: Part | None = None) -> Written:
        """Size and SHA-256 of one stored file, or of a part of it, which ends as that of :meth:`fetch`."""

    @abstractmethod
    def size(self, path: str) -> int:
        """Bytes of one file."""

    @abstractmethod
    def list(self, path: str) -> Sequence[Entry]:
        """The names in one directory, unordered; empty when ``path`` does not exist, or is a file."""

    @abstractmethod
    def remove(self, path: str) -> None:
        """Delete one file; no error when the file is missing. A directory of that name keeps its content."""

    @abstractmethod
    def remove_directory(self, path: str) -> None:
        """Delete one empty directory; no error when the directory is missing or not empty."""

    def write_many(
        self,
        items: Sequence[tuple[str, Path | bytes]],
        stop: Callable[[], bool],
        told: Callable[[int], None] = unheard,
    ) -> Sequence[Written]:
        """Write many new files and make them, and their names, durable.

        Several threads call ``told`` with the size of each file once the file is written.
        """

        def write(item: tuple[str, Path | bytes]) -> Written:
            result = self.write(item[0], item[1], stop)
            told(result.size)
            return result

        if not items:
            return ()
        with Threads(min(self.concurrency, len(items)), "dagster-ckpt-write") as pool:
            written = list(pool.map(write, items))
        self.sync_directories({str(PurePosixPath(path).parent) for path, _ in items})
        return written

    def _write_in_turn(
        self,
        items: Sequence[tuple[str, Path | bytes]],
        stop: Callable[[], bool],
        told: Callable[[int], None],
    ) -> Sequence[Written]:
        """Write the files one after the other, without making their names durable."""
        written = []
        for path, source in items:
            written.append(self.write(path, source, stop))
            told(written[-1].size)
        return written

    def read_many(self, paths: Sequence[str]) -> Sequence[bytes | None]:
        """All bytes of each of many small files, ``None`` for a missing file."""
        return self._ask_many(self.read, paths)

    def read_if_there(self, path: str) -> bytes | None:
        """All bytes of one file, ``None`` for a missing file."""
        return self._if_there(self.read, path)

    def read_listed(
        self, names: Callable[[], Sequence[_Name]], path_of: Callable[[_Name], str]
    ) -> dict[_Name, bytes | None]:
        """All bytes of the files that a listing names, while other processes create and delete such files.

        A listed file that is missing may have been replaced by a file that the listing lacks. So the names are listed
        again, until no file is missing or the names stay the same.

        Args:
            names: lists the names; a name is never used again for other bytes.
            path_of: the path of a name.

        Returns:
            the bytes by name, in the order of the names; ``None`` for a missing file.
        """
        found: dict[_Name, bytes] = {}
        listed = names()
        for _ in range(_MOST_LOOKS):
            new = [name for name in listed if name not in found]
            contents = zip(new, self.read_many([path_of(name) for name in new]), strict=True)
            found |= {name: data for name, data in contents if data is not None}
            if all(name in found for name in listed) or (now := names()) == listed:
                break
            listed = now
        return {name: found.get(name) for name in listed}

    def list_many(self, paths: Sequence[str]) -> Sequence[Sequence[Entry]]:
        """The names in each of many directories, as :meth:`list`."""
        return [found or () for found in self._ask_many(self.list, paths)]

    def size_many(self, paths: Sequence[str]) -> Sequence[int | None]:
        """The size in bytes of each of many files, ``None`` for a missing file."""
        return self._ask_many(self.size, paths)

    def _ask_many(self, ask: Callable[[str], _Answer], paths: Sequence[str]) -> Sequence[_Answer | None]:
        if not self.is_distant or not paths:
            return [self._if_there(ask, path) for path in paths]
        with Threads(min(self.concurrency, len(paths)), "dagster-ckpt-read") as pool:
            return list(pool.map(partial(self._if_there, ask), paths))

    @staticmethod
    def _if_there(ask: Callable[[str], _Answer], path: str) -> _Answer | None:
        try:
            return ask(path)
        except FileNotFoundError:
            return None

    def probe(self) -> None:
        """Check, once and before any job data is at stake, that exclusive create works here.

        Raises:
            StorageUnusable: exclusive create does not work, or the storage cannot be written, read or listed.
        """
        name = f".probe-{uuid.uuid4().hex}"
        try:
            # List first: without permission to list, the user gets that plain error, not PublishUnknown of a create.
            self.list(name)
            self.create(name, b"first")
            try:
                self.create(name, b"second")
            except PublishConflict:
                pass
            else:
                raise StorageUnusable(
                    f"{self.url} let one file be created twice, so two runs could overwrite each other's checkpoints.",
                    hint="Use a storage with exclusive create.",
                )
            if self.read(name) != b"first" or name not in {entry.name for entry in self.list("")}:
                raise StorageUnusable(f"{self.url} does not give back what was written to it.")
        except StorageUnusable:
            raise
        except OSError as error:
            raise StorageUnusable(
                f"Checkpoints cannot be written to {self.url}: {getattr(error, 'message', error)}",
                hint=self.probe_hint or getattr(error, "hint", "") or IS_WRITABLE,
            ) from error
        finally:
            with contextlib.suppress(OSError):
                self.remove(name)
