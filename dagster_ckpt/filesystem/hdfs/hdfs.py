"""Checkpoints in HDFS, through Spark's own Hadoop client."""

from __future__ import annotations

import contextlib
import hashlib
import re
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from dagster_ckpt.errors import InvalidConfiguration, PublishConflict, PublishUnknown, StorageError
from dagster_ckpt.filesystem.hdfs.hadoop_jvm import THREADS, Hadoop, JavaFailure, hadoop_of_this_process
from dagster_ckpt.filesystem.hdfs.hdfs_errors import explained
from dagster_ckpt.filesystem.port import FileSystem
from dagster_ckpt.filesystem.values import Entry, Part, Stopped, Written
from dagster_ckpt.shown_text import redacted, shown_cause

__all__ = ["HdfsFileSystem"]

#: Bytes that the JVM copies between two checks of ``stop``.
CHUNK = 8 << 20
#: Up to this many bytes go through py4j, which writes them as text; more bytes go through a local file.
_MOST_BY_PY4J = 1 << 20
#: How often a create is tried when its temporary file is deleted with its directory.
_ATTEMPTS = 3
_AUTHORITY = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?(:[0-9]{1,5})?")
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{32}\.tmp")
_PREFIXES = ("dfs.", "fs.", "hadoop.", "io.", "ipc.")

_Result = TypeVar("_Result")


class HdfsFileSystem(FileSystem):
    """A directory of HDFS.

    A name is published as on a disk: first a temporary file in the same directory, synced to the disks of its
    DataNodes; then a rename, which refuses an existing destination and which the NameNode carries out whole or not at
    all. Temporary files are never listed, and are deleted with their directory.

    Args:
        authority: ``host:port`` of the NameNode, a nameservice, or nothing for the default file system of Hadoop's
            configuration.
        directory: the directory, absolute.
        options: keys of Hadoop's configuration, which override its files.

    Raises:
        InvalidConfiguration: the authority is impossible, the directory is the root, or an option is not Hadoop's.
    """

    #: Each file takes a request to the NameNode and a connection to a DataNode.
    is_distant = True
    concurrency = THREADS

    def __init__(self, authority: str, directory: str, options: Mapping[str, Any] | None = None) -> None:
        if authority and not _AUTHORITY.fullmatch(authority):
            raise InvalidConfiguration(
                f"{authority!r} is neither host:port of a NameNode nor a nameservice.",
                hint="Write the checkpoint path as hdfs://namenode:8020/directory.",
            )
        if not PurePosixPath(directory).is_absolute() or directory == "/":
            raise InvalidConfiguration(
                f"hdfs://{authority} names no directory"
                + (f", and takes {authority!r} for a NameNode." if authority else "."),
                hint="Write the checkpoint path as hdfs://namenode:8020/directory.",
            )
        self._made_of = (authority, str(PurePosixPath(directory)), _checked(options or {}))
        self._cluster = f"hdfs://{authority}"
        self._url = f"{self._cluster}{self._made_of[1]}"

    def __reduce__(self) -> tuple[type[HdfsFileSystem], tuple[str, str, dict[str, str]]]:
        return (HdfsFileSystem, self._made_of)

    def __repr__(self) -> str:
        return f"HdfsFileSystem({self._url!r})"

    @property
    def storage_options(self) -> Mapping[str, Any]:
        return self._made_of[2]

    @property
    def url(self) -> str:
        return self._url

    def create(self, path: str, data: bytes) -> None:
        if not any(self._created(path, data) for _ in range(_ATTEMPTS)):
            raise StorageError(f"Could not create {self._file(path)}: its directory is deleted again and again.")

    def _created(self, path: str, data: bytes) -> bool:
        """Try to create once; ``False`` to try again."""
        target, temporary = self._file(path), self._temporary(path)
        with self._errors(f"create {target}", a_new_file=True):
            self._send(temporary, data, _never)
        try:
            self._call_once(lambda client: _rename(client, temporary, target, "NONE"))
        except JavaFailure as failure:
            return self._settled(path, temporary, data, failure)
        return True

    def replace(self, path: str, data: bytes) -> None:
        target, temporary = self._file(path), self._temporary(path)
        with self._errors(f"write {target}", a_new_file=True):
            self._send(temporary, data, _never)
            try:
                self._call(lambda client: _rename(client, temporary, target, "OVERWRITE"))
            except JavaFailure:
                with contextlib.suppress(JavaFailure):
                    self._call(lambda client: _delete(client, temporary))
                raise

    def write(self, path: str, source: Path | bytes, stop: Callable[[], bool]) -> Written:
        target = self._file(path)
        with self._errors(f"write {target}", a_new_file=True):
            return self._send(target, source, stop)

    def sync_directories(self, paths: Iterable[str]) -> None:
        """Do nothing: the NameNode answers a change after writing it to its journal."""
        for path in paths:
            self._directory(path)

    def read(self, path: str) -> bytes:
        target = self._file(path)
        with self._errors(f"read {target}"):
            data = self._call(lambda client: _read_small(client, target))
            if data is not None:
                return data
            with tempfile.TemporaryDirectory(prefix="dagster-ckpt-") as scratch:
                file = Path(scratch, "file")
                self._call(lambda client: _receive(client, target, None, file))
                return file.read_bytes()

    def fetch(self, path: str, target: Path, part: Part | None = None) -> Written:
        source = self._file(path)
        with self._errors(f"read {source}"):
            target.open("xb").close()
            return self._call(lambda client: _receive(client, source, part, target))

    def checksum(self, path: str, part: Part | None = None) -> Written:
        source = self._file(path)
        with self._errors(f"read {source}"):
            return self._call(lambda client: _receive(client, source, part, None))

    def size(self, path: str) -> int:
        target = self._file(path)
        with self._errors(f"read {target}"):
            is_directory, size = self._call(lambda client: _status(client, target))
            if is_directory:
                raise FileNotFoundError(target)
            return size

    def list(self, path: str) -> Sequence[Entry]:
        directory = self._directory(path)
        try:
            with self._errors(f"list {directory}"):
                found = self._call(lambda client: _list(client, directory))
        except FileNotFoundError:
            return []
        return [entry for entry in found if not _TEMPORARY.fullmatch(entry.name)]

    def remove(self, path: str) -> None:
        target = self._file(path)
        with self._errors(f"delete {target}"), contextlib.suppress(FileNotFoundError):
            try:
                self._call(lambda client: _delete(client, target))
            except JavaFailure as failure:
                if "PathIsNotEmptyDirectoryException" not in failure.names:
                    raise

    def remove_directory(self, path: str) -> None:
        """Delete one directory if it contains at most temporary files of dead writers.

        A live writer whose temporary file is deleted tries again under another name.
        """
        directory = self._file(path)
        with contextlib.suppress(FileNotFoundError), self._errors(f"delete {directory}"):
            is_directory, _ = self._call(lambda client: _status(client, directory))
            if not is_directory:
                raise StorageError(f"Could not delete {directory}: it is a file.")
            found = self._call(lambda client: _list(client, directory))
            if not all(_TEMPORARY.fullmatch(entry.name) for entry in found):
                return
            for entry in found:
                self.remove(f"{path}/{entry.name}")
            self.remove(path)  # keeps the directory if a file has been added meanwhile

    def _settled(self, path: str, temporary: str, data: bytes, failure: JavaFailure) -> bool:
        """Whether a create whose rename failed has succeeded; ``False`` to try again.

        The temporary file is deleted first. If the file existed, the rename can no longer take effect, even if the
        request is still on its way; if the file was gone, the rename may have been carried out.

        Raises:
            PublishConflict: the name holds other bytes.
            PublishUnknown: the outcome is unknown.
            StorageError: the name was not created, and never will be.
        """
        target = self._file(path)
        reason = explained(f"create {target}", failure)
        held: bytes | None
        try:
            withdrawn = self._call(lambda client: _delete(client, temporary))
            try:
                held = self.read(path)
            except FileNotFoundError:
                held = None
        except (JavaFailure, StorageError) as error:
            raise PublishUnknown(
                f"Nobody can say whether {target} was created. {reason.message}",
                hint=f"It is complete if it can be read; nothing that belongs to it was deleted. {reason.hint}",
            ) from error
        if held == data:
            return True
        if held is not None:
            raise PublishConflict(f"{target} already exists and holds something else.") from failure
        if "FileAlreadyExistsException" in failure.names:
            raise PublishConflict(f"{target} was created by somebody else, and is gone again.") from failure
        if withdrawn:
            raise reason from failure
        if "FileNotFoundException" in failure.names:
            return False
        raise PublishUnknown(reason.message, hint=reason.hint) from failure

    def _send(self, target: str, source: Path | bytes, stop: Callable[[], bool]) -> Written:
        if stop():
            raise Stopped
        if isinstance(source, bytes) and len(source) <= _MOST_BY_PY4J:
            self._call(lambda client: _write_small(client, target, source))
            return Written(len(source), hashlib.sha256(source).hexdigest())
        if isinstance(source, bytes):
            with tempfile.NamedTemporaryFile(prefix="dagster-ckpt-") as scratch:
                scratch.write(source)
                scratch.flush()
                return self._send(target, Path(scratch.name), stop)
        source.stat()  # raises Python's FileNotFoundError for a missing local file
        return self._call(lambda client: _write_file(client, target, source, stop))

    def _call(self, work: Callable[[Hadoop], _Result]) -> _Result:
        """Do work that may be done twice: the first request after a NameNode's restart fails on the old connection."""
        try:
            return self._call_once(work)
        except JavaFailure as failure:
            if "EOFException" not in failure.names:
                raise
            return self._call_once(work)

    def _call_once(self, work: Callable[[Hadoop], _Result]) -> _Result:
        client = hadoop_of_this_process(self._cluster, self._made_of[2])
        return client.call(lambda: work(client))

    def _file(self, path: str) -> str:
        if not path or path == ".":
            raise StorageError(f"{path!r} is not a path below {self._url}.")
        return self._directory(path)

    def _directory(self, path: str) -> str:
        relative = PurePosixPath(path)
        if relative.is_absolute() or ".." in relative.parts:
            raise StorageError(f"{path!r} is not a path below {self._url}.")
        return f"{self._url}/{relative}" if relative.parts else self._url

    def _temporary(self, path: str) -> str:
        above, _, name = self._file(path).rpartition("/")
        return f"{above}/.{name}.{uuid.uuid4().hex}.tmp"

    @contextlib.contextmanager
    def _errors(self, what: str, *, a_new_file: bool = False) -> Iterator[None]:
        """Add the operation and a hint to Java's errors; a missing file stays ``FileNotFoundError``."""
        try:
            yield
        except JavaFailure as failure:
            # A file that is missing during its own write was deleted meanwhile.
            if "FileNotFoundException" in failure.names and not a_new_file:
                raise FileNotFoundError(redacted(failure.message)) from shown_cause(failure)
            raise explained(what, failure) from shown_cause(failure)
        except (FileNotFoundError, StorageError):
            raise
        except OSError as error:  # of a local file
            raise StorageError(f"Could not {what}: {error.strerror or error}") from error


def _checked(options: Mapping[str, Any]) -> dict[str, str]:
    for key, value in options.items():
        if not key.startswith(_PREFIXES) or not isinstance(value, str | int):
            raise InvalidConfiguration(
                f"The storage option {key!r} is none for hdfs://, which takes keys of Hadoop's configuration.",
                hint=f'Keys begin with {", ".join(_PREFIXES)}; for example {{"dfs.replication": "2"}}.',
            )
    return {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in options.items()}


def _never() -> bool:
    return False


# The functions below run on the JVM's threads.


def _path(client: Hadoop, url: str) -> Any:
    return client.jvm.org.apache.hadoop.fs.Path(url)


def _create(client: Hadoop, target: str) -> Any:
    """Create a file and its directories; each full block is synced to the disks of its DataNodes."""
    return client.filesystem.createFile(_path(client, target)).overwrite(False).recursive().syncBlock().build()


def _write_small(client: Hadoop, target: str, data: bytes) -> None:
    with _complete_or_deleted(client, target) as stream:
        stream.write(data)


def _write_file(client: Hadoop, target: str, source: Path, stop: Callable[[], bool]) -> Written:
    jvm, size = client.jvm, 0
    digest = jvm.java.security.MessageDigest.getInstance("SHA-256")
    reader = jvm.java.io.FileInputStream(str(source))
    try:
        with _complete_or_deleted(client, target) as stream:
            writer = jvm.java.security.DigestOutputStream(stream, digest)
            while copied := jvm.org.apache.commons.io.IOUtils.copyLarge(reader, writer, 0, CHUNK):
                size += copied
                if stop():
                    raise Stopped
    finally:
        reader.close()
    return Written(size, bytes(digest.digest()).hex())


@contextlib.contextmanager
def _complete_or_deleted(client: Hadoop, target: str) -> Iterator[Any]:
    """A stream to a new file; the file is closed, or deleted on failure: a file is visible from its first byte."""
    stream = _create(client, target)
    try:
        yield stream
        stream.close()
    except BaseException:
        with contextlib.suppress(Exception):
            _delete(client, target)
        with contextlib.suppress(Exception):  # the file cannot be completed; closing ends its thread and its lease
            stream.close()
        raise


def _read_small(client: Hadoop, target: str) -> bytes | None:
    """All bytes of a file; ``None`` if the file is too large for py4j."""
    stream = client.filesystem.open(_path(client, target))
    try:
        return None if stream.getVisibleLength() > _MOST_BY_PY4J else bytes(stream.readAllBytes())
    finally:
        stream.close()


def _receive(client: Hadoop, source: str, part: Part | None, target: Path | None) -> Written:
    """Copy a file, or a part of it, to a local file or to nowhere; a part may reach beyond the end of the file."""
    jvm = client.jvm
    digest = jvm.java.security.MessageDigest.getInstance("SHA-256")
    stream = client.filesystem.open(_path(client, source))
    try:
        if part is not None:
            stream.seek(min(part.offset, stream.getVisibleLength()))
        nowhere = jvm.java.io.OutputStream.nullOutputStream
        writer = jvm.java.security.DigestOutputStream(
            nowhere() if target is None else jvm.java.io.FileOutputStream(str(target)), digest
        )
        try:
            size = jvm.org.apache.commons.io.IOUtils.copyLarge(stream, writer, 0, -1 if part is None else part.size)
        finally:
            writer.close()
    finally:
        stream.close()
    return Written(int(size), bytes(digest.digest()).hex())


def _status(client: Hadoop, target: str) -> tuple[bool, int]:
    status = client.filesystem.getFileStatus(_path(client, target))
    return bool(status.isDirectory()), int(status.getLen())


def _list(client: Hadoop, directory: str) -> list[Entry]:
    found = client.filesystem.listStatus(_path(client, directory))
    entries = [Entry(str(status.getPath().getName()), bool(status.isDirectory())) for status in found]
    if len(entries) == 1 and not entries[0].is_directory and not _status(client, directory)[0]:
        return []  # the listing of a file is the file itself
    return entries


def _rename(client: Hadoop, source: str, target: str, how: str) -> None:
    """Rename in one step of the NameNode; ``NONE`` refuses an existing destination."""
    rename = client.jvm.org.apache.hadoop.fs.Options.Rename
    options = client.jvm.java.lang.reflect.Array.newInstance(rename.NONE.getDeclaringClass(), 1)
    options[0] = rename.valueOf(how)
    client.filesystem.rename(_path(client, source), _path(client, target), options)


def _delete(client: Hadoop, target: str) -> bool:
    """Delete a file, or an empty directory; return whether it existed."""
    return bool(client.filesystem.delete(_path(client, target), False))
