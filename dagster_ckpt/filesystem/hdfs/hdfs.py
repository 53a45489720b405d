"""Checkpoints in HDFS, through Spark's own Hadoop client."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dagster_ckpt.errors import PublishConflict, PublishUnknown, StorageError
from dagster_ckpt.filesystem.hdfs import client_calls
from dagster_ckpt.filesystem.hdfs.copies import HdfsCopies
from dagster_ckpt.filesystem.hdfs.directory import HdfsDirectory
from dagster_ckpt.filesystem.hdfs.hadoop_jvm import THREADS, JavaFailure
from dagster_ckpt.filesystem.hdfs.hdfs_errors import explained
from dagster_ckpt.filesystem.port import FileSystem
from dagster_ckpt.filesystem.scratch import scratch_directory
from dagster_ckpt.filesystem.server_side import ServerSide
from dagster_ckpt.filesystem.values import Entry, Part, Stopped, Written

__all__ = ["HdfsFileSystem"]

#: How often a create is tried when its temporary file is deleted with its directory.
_ATTEMPTS = 3
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{32}\.tmp")


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
        self._directory = HdfsDirectory(authority, directory, options or {})
        self._copies = HdfsCopies(self._directory)

    def __reduce__(self) -> tuple[type[HdfsFileSystem], tuple[str, str, dict[str, str]]]:
        return (HdfsFileSystem, self._directory.made_of)

    def __repr__(self) -> str:
        return f"HdfsFileSystem({self.url!r})"

    @property
    def storage_options(self) -> Mapping[str, Any]:
        return self._directory.made_of[2]

    @property
    def copies(self) -> ServerSide:
        return self._copies

    @property
    def url(self) -> str:
        return self._directory.url

    def create(self, path: str, data: bytes) -> None:
        if not any(self._created(path, data) for _ in range(_ATTEMPTS)):
            raise StorageError(
                f"Could not create {self._directory.file(path)}: its directory is deleted again and again."
            )

    def _created(self, path: str, data: bytes) -> bool:
        """Try to create once; ``False`` to try again."""
        target, temporary = self._directory.file(path), self._directory.temporary(path)
        with self._directory.errors(f"create {target}", a_new_file=True):
            self._send(temporary, data, lambda: False)
        try:
            self._directory.call_once(lambda client: client_calls.rename(client, temporary, target, "NONE"))
        except JavaFailure as failure:
            return self._settled(path, temporary, data, failure)
        return True

    def replace(self, path: str, data: bytes) -> None:
        target, temporary = self._directory.file(path), self._directory.temporary(path)
        with self._directory.errors(f"write {target}", a_new_file=True):
            self._send(temporary, data, lambda: False)
            try:
                self._directory.call(lambda client: client_calls.rename(client, temporary, target, "OVERWRITE"))
            except JavaFailure:
                with contextlib.suppress(JavaFailure):
                    self._directory.call(lambda client: client_calls.delete(client, temporary))
                raise

    def write(self, path: str, source: Path | bytes, stop: Callable[[], bool]) -> Written:
        target = self._directory.file(path)
        with self._directory.errors(f"write {target}", a_new_file=True):
            return self._send(target, source, stop)

    def sync_directories(self, paths: Iterable[str]) -> None:
        """Do nothing: the NameNode answers a change after writing it to its journal."""
        for path in paths:
            self._directory.below(path)

    def read(self, path: str) -> bytes:
        target = self._directory.file(path)
        with self._directory.errors(f"read {target}"):
            data = self._directory.call(lambda client: client_calls.read_small(client, target))
            if data is not None:
                return data
            with scratch_directory() as scratch:
                file = scratch / "file"
                self._directory.call(lambda client: client_calls.receive(client, target, None, file), moves_bytes=True)
                return file.read_bytes()

    def fetch(self, path: str, target: Path, part: Part | None = None) -> Written:
        source = self._directory.file(path)
        with self._directory.errors(f"read {source}"):
            target.open("xb").close()
            return self._directory.call(
                lambda client: client_calls.receive(client, source, part, target), moves_bytes=True
            )

    def checksum(self, path: str, part: Part | None = None) -> Written:
        source = self._directory.file(path)
        with self._directory.errors(f"read {source}"):
            return self._directory.call(
                lambda client: client_calls.receive(client, source, part, None), moves_bytes=True
            )

    def size(self, path: str) -> int:
        target = self._directory.file(path)
        with self._directory.errors(f"read {target}"):
            is_directory, size = self._directory.call(lambda client: client_calls.status(client, target))
            if is_directory:
                raise FileNotFoundError(target)
            return size

    def list(self, path: str) -> Sequence[Entry]:
        directory = self._directory.below(path)
        try:
            with self._directory.errors(f"list {directory}"):
                found = self._directory.call(lambda client: client_calls.list_directory(client, directory))
        except FileNotFoundError:
            return []
        return [entry for entry in found if not _TEMPORARY.fullmatch(entry.name)]

    def remove(self, path: str) -> None:
        target = self._directory.file(path)
        with self._directory.errors(f"delete {target}"), contextlib.suppress(FileNotFoundError):
            try:
                self._directory.call(lambda client: client_calls.delete(client, target))
            except JavaFailure as failure:
                if "PathIsNotEmptyDirectoryException" not in failure.names:
                    raise

    def remove_directory(self, path: str) -> None:
        """Delete one directory if it contains at most temporary files of dead writers.

        A live writer whose temporary file is deleted tries again under another name.
        """
        directory = self._directory.file(path)
        with contextlib.suppress(FileNotFoundError), self._directory.errors(f"delete {directory}"):
            is_directory, _ = self._directory.call(lambda client: client_calls.status(client, directory))
            if not is_directory:
                raise StorageError(f"Could not delete {directory}: it is a file.")
            found = self._directory.call(lambda client: client_calls.list_directory(client, directory))
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
            PublishConflict: the name holds other bytes, or was taken and is gone again.
            PublishUnknown: the outcome is unknown.
            StorageError: the name was not created, and never will be.
        """
        target = self._directory.file(path)
        reason = explained(f"create {target}", failure)
        held: bytes | None
        try:
            withdrawn = self._directory.call(lambda client: client_calls.delete(client, temporary))
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
        if isinstance(source, bytes) and len(source) <= client_calls.MOST_BY_PY4J:
            self._directory.call(lambda client: client_calls.write_small(client, target, source))
            return Written.of(source)
        if isinstance(source, bytes):
            with scratch_directory() as scratch:
                file = scratch / "file"
                file.write_bytes(source)
                return self._send(target, file, stop)
        source.stat()  # raises Python's FileNotFoundError for a missing local file
        return self._directory.call(
            lambda client: client_calls.write_file(client, target, source, stop), moves_bytes=True
        )
