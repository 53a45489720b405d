"""Checkpoints in a directory of a local or POSIX network file system."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import stat
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import TypeVar

from dagster_ckpt.errors import PublishConflict, PublishUnknown, StorageError, StorageUnusable
from dagster_ckpt.filesystem.local_disk import make_durable
from dagster_ckpt.filesystem.port import IS_WRITABLE, FileSystem
from dagster_ckpt.filesystem.values import Entry, Part, Stopped, Written

__all__ = ["PosixFileSystem"]

_Result = TypeVar("_Result")

#: Bytes read at once by default.
CHUNK = 1 << 20
#: Bytes read at once of what is read whole, such as a manifest.
_SMALL = 1 << 16
#: How often a file is placed at most, when each time its directory was removed meanwhile.
_ATTEMPTS = 10
_MAY_NOT = "Let this user read and write there, or do this as the user that runs the job."
_IF_READ = "It is complete if it can be read; nothing that belongs to it was deleted."
_WAY_ON = "Look at the disk or the mount, and at that path."
_CANNOT_LINK = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK})


class PosixFileSystem(FileSystem):
    """A directory on a local or POSIX network file system that supports hard links and ``fsync``.

    Args:
        root: the directory; created with the first write.
        write_buffer_size: bytes that are copied at a time when a data file is written.
    """

    probe_hint = IS_WRITABLE  # says more than the error of one operation

    def __init__(self, root: Path, write_buffer_size: int = CHUNK) -> None:
        self._root = root
        self._write_buffer_size = write_buffer_size
        self._durable_directories: set[Path] = set()
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[PosixFileSystem], tuple[Path, int]]:
        return (PosixFileSystem, (self._root, self._write_buffer_size))

    def __repr__(self) -> str:
        return f"PosixFileSystem({str(self._root)!r})"

    @property
    def url(self) -> str:
        return str(self._root)

    def local(self, path: str) -> Path:
        """Where ``path`` lies on this machine."""
        return self._root / self._inside(path)

    def _inside(self, path: str) -> str:
        if path.startswith("/") or ".." in path.split("/"):
            raise StorageError(f"{path!r} is not a path below {self._root}.")
        return path

    def create(self, path: str, data: bytes) -> None:
        target = self.local(path)
        with _storage_errors(f"create {target}"):
            self._placed(target, lambda: self._publish(target, data))
            try:
                make_durable(target.parent)
            except OSError as error:
                raise PublishUnknown(
                    f"{target} was created, but its directory could not be synced: {error}",
                    hint=_IF_READ,
                ) from error

    def _publish(self, target: Path, data: bytes) -> None:
        temporary = _beside(target)
        try:
            _write_durably(temporary, data)
            try:
                self._link(temporary, target)
            except OSError as error:
                self._settle(target, temporary, data, error)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)

    def _settle(self, target: Path, temporary: Path, data: bytes, error: OSError) -> None:
        """Return if a link that failed is there all the same, as on a network file system whose reply was lost.

        The temporary file is deleted first: then a link that is still on its way has nothing to link.
        """
        held: bytes | None
        try:
            temporary.unlink(missing_ok=True)
            with _reader(target) as file:
                held = file.read()
        except FileNotFoundError:
            held = None
        except OSError as unknown:
            raise PublishUnknown(f"Nobody can say whether {target} was created: {unknown}", hint=_IF_READ) from unknown
        if held == data:
            return
        if held is not None:
            raise PublishConflict(f"{target} already exists and holds something else.") from error
        if isinstance(error, FileExistsError):
            raise PublishConflict(f"{target} was created by somebody else, and is gone again.") from error
        if error.errno in _CANNOT_LINK:
            raise StorageUnusable(
                f"{self._root} does not support hard links, so a file cannot be published exclusively.",
                hint="Use a file system with hard links (ext4, xfs, NFS, ...) for checkpoints.",
            ) from error
        raise error

    def replace(self, path: str, data: bytes) -> None:
        target = self.local(path)

        def exchange() -> None:
            temporary = _beside(target)
            try:
                _write_durably(temporary, data)
                temporary.replace(target)
            finally:
                with contextlib.suppress(OSError):
                    temporary.unlink(missing_ok=True)

        with _storage_errors(f"write {target}"):
            self._placed(target, exchange)

    def write(self, path: str, source: Path | bytes, stop: Callable[[], bool]) -> Written:
        target = self.local(path)
        with _storage_errors(f"write {target}"):
            with io.BytesIO(source) if isinstance(source, bytes) else source.open("rb", buffering=0) as reader:
                writer = self._placed(target, lambda: target.open("xb", buffering=0))
                try:
                    with writer:
                        written = _copy(reader, writer, None, stop, self._write_buffer_size)
                        os.fsync(writer.fileno())
                except BaseException:
                    target.unlink(missing_ok=True)
                    raise
            return written

    def sync_directories(self, paths: Iterable[str]) -> None:
        for path in paths:
            with contextlib.suppress(FileNotFoundError), _storage_errors(f"sync {path}"):
                make_durable(self.local(path))

    def read(self, path: str) -> bytes:
        source = f"{self._root}/{self._inside(path)}"  # a job has thousands of manifests, and a `Path` takes long
        with _storage_errors(f"read {source}", reading=True):
            file = _open_file(source, os.O_RDONLY | os.O_CLOEXEC)  # half the time of an `io.FileIO`
            try:
                return b"".join(iter(lambda: os.read(file, _SMALL), b""))
            finally:
                os.close(file)

    def fetch(self, path: str, target: Path, part: Part | None = None) -> Written:
        with (
            _storage_errors(f"read {self.local(path)}", reading=True),
            _reader(self.local(path)) as reader,
            target.open("xb", buffering=0) as writer,
        ):
            return _copy(reader, writer, part, lambda: False)

    def checksum(self, path: str, part: Part | None = None) -> Written:
        with (
            _storage_errors(f"read {self.local(path)}", reading=True),
            _reader(self.local(path)) as reader,
        ):
            return _copy(reader, None, part, lambda: False)

    def size(self, path: str) -> int:
        source = self.local(path)
        with _storage_errors(f"read {source}", reading=True):
            status = source.stat()
            if stat.S_ISDIR(status.st_mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(source))
            return status.st_size

    def list(self, path: str) -> Sequence[Entry]:
        try:
            with _storage_errors(f"list {self.local(path)}", reading=True), os.scandir(self.local(path)) as entries:
                return [Entry(entry.name, _is_directory(entry)) for entry in entries]
        except FileNotFoundError:
            return []

    def remove(self, path: str) -> None:
        target = self.local(path)
        with _storage_errors(f"delete {target}"):
            try:
                target.unlink(missing_ok=True)
            except OSError:
                if not target.is_dir():  # a directory is not a file: macOS and Linux raise different errors for it
                    raise

    def remove_directory(self, path: str) -> None:
        target = self.local(path)
        with _storage_errors(f"delete {target}"):
            try:
                target.rmdir()
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
                    raise
            else:
                with self._lock:
                    self._durable_directories.discard(target)

    def _placed(self, target: Path, place: Callable[[], _Result]) -> _Result:
        """What ``place`` returns, which puts a file into the directory of ``target``.

        A sweep by another process removes empty directories and temporary files. So when one of them is gone, the
        directory is made and the file is placed again.
        """
        has_directory = False
        for _ in range(_ATTEMPTS):
            with contextlib.suppress(FileNotFoundError):
                has_directory = False
                self._make_directory(target.parent)
                has_directory = True
                return place()
        if not has_directory:
            raise StorageError(
                f"Could not write {target}: its directory cannot be made.",
                hint="Name a directory on a disk that takes new directories.",
            )
        raise StorageError(
            f"Could not write {target}: its directory, or a temporary file in it, is removed again and again.",
            hint=f"Find out which program removes files in {target.parent}, and stop that program.",
        )

    def _link(self, temporary: Path, target: Path) -> None:
        os.link(temporary, target)

    def _make_directory(self, directory: Path) -> None:
        """Create ``directory`` so that it survives a power cut: its name is synced in its parent, and so on up.

        An existing directory is synced too: its maker may have died before syncing its name.
        """
        with self._lock:
            if directory in self._durable_directories and directory.is_dir():
                return
        known = directory
        while not known.is_dir():
            known = known.parent
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except FileExistsError as error:
            if directory.exists():
                raise
            raise FileNotFoundError(str(error)) from error  # removed between two steps of mkdir
        root_was_there = known.is_relative_to(self._root)
        for current in (directory, *directory.parents):
            try:
                make_durable(current.parent)
            except PermissionError as error:
                # Who made the root also gave it its name, in a directory that this user may only pass through.
                if current == self._root and root_was_there:
                    break
                with contextlib.suppress(OSError):  # or the next run takes the directory for one that was there
                    for made in takewhile(lambda path: path != known, (directory, *directory.parents)):
                        made.rmdir()
                raise StorageError(
                    f"A power cut could take {current} away: {current.parent} may not be opened to make it durable.",
                    hint=f"Let this user read {current.parent}, or make {current} yourself; then launch the run again.",
                ) from error
            # Sync up to the root's own name, and further where the root's ancestors are new as well.
            if self._root.is_relative_to(current) and known.is_relative_to(current.parent):
                break
        with self._lock:
            self._durable_directories.add(directory)


def _beside(target: Path) -> Path:
    """A temporary name in the directory of ``target``."""
    return target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")


def _copy(
    source: io.RawIOBase | io.BytesIO,
    target: io.RawIOBase | None,
    part: Part | None,
    stop: Callable[[], bool],
    buffer: int = CHUNK,
) -> Written:
    digest = hashlib.sha256()
    size = 0
    if part is not None:
        source.seek(part.offset)
    while chunk := source.read(buffer if part is None else min(buffer, part.size - size)):
        if stop():
            raise Stopped
        digest.update(chunk)
        size += len(chunk)
        view = memoryview(chunk)
        while target is not None and view:
            view = view[target.write(view) or 0 :]
    return Written(size, digest.hexdigest())


def _is_directory(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a directory, or a link to a directory. A link in a circle, or to nothing, leads to none.

    A link that this user may not follow counts as a directory: whoever asks for what is there hears why not.
    """
    try:
        return entry.is_dir()
    except PermissionError:
        return True
    except OSError as error:
        if error.errno == errno.ELOOP:
            return False
        raise


def _write_durably(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _reader(path: Path) -> io.FileIO:
    return io.FileIO(path, opener=_open_file)


def _open_file(path: str, flags: int) -> int:
    """Open a file to be read. A pipe would have its reader wait for ever, and a device may never end."""
    try:
        file = os.open(path, flags | os.O_NONBLOCK)
    except BlockingIOError:  # another process has a lease on it, which the kernel asks for while this one waits
        if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 - as above
            raise
        file = os.open(path, flags)
    mode = os.fstat(file).st_mode
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):  # to read a directory is an error of the operating system
        return file
    os.close(file)
    raise StorageError(
        f"{path} is a pipe or a device, where a file must be.",
        hint="Something else has put it there. Put the file back from a backup, or delete what is there.",
    )


@contextlib.contextmanager
def _storage_errors(what: str, *, reading: bool = False) -> Iterator[None]:
    """Name the operation in errors of the operating system; a missing file stays ``FileNotFoundError``.

    A directory in place of a file to be read, or a file in place of a directory, counts as a missing file.
    """
    try:
        yield
    except (IsADirectoryError, NotADirectoryError) as error:
        if not reading:
            raise StorageError(f"Could not {what}: {error.strerror or error}.", hint=_WAY_ON) from error
        raise FileNotFoundError(error.errno, error.strerror, error.filename) from error
    except (FileNotFoundError, StorageError):
        raise
    except OSError as error:
        hint = _MAY_NOT if isinstance(error, PermissionError) else _WAY_ON
        raise StorageError(f"Could not {what}: {error.strerror or error}.", hint=hint) from error
