"""What HDFS is asked to do with the files of a live location: pin, read and copy exactly these bytes.

A file is pinned by its path and the number of its inode, which the NameNode never gives to another file. HDFS can
neither link nor copy files by itself, and its snapshots need an administrator. So the JVM of Hadoop's client on this
machine copies the bytes, and the DataNodes tell the checksum of what they stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from dagster_ckpt.errors import StorageError
from dagster_ckpt.filesystem.hdfs import client_calls
from dagster_ckpt.filesystem.hdfs.client_calls import Inode
from dagster_ckpt.filesystem.hdfs.directory import HdfsDirectory
from dagster_ckpt.filesystem.hdfs.hadoop_jvm import THREADS, Hadoop, JavaFailure
from dagster_ckpt.filesystem.scratch import scratch_directory
from dagster_ckpt.filesystem.server_side import Copy, ServerSide, Stored
from dagster_ckpt.filesystem.values import Part, Stopped

__all__ = ["HdfsCopies"]

#: How often a directory is listed when others delete what is in it.
_LISTINGS = 5


class HdfsCopies(ServerSide):
    """The files below a directory of HDFS.

    Args:
        directory: the directory.
    """

    concurrency = THREADS

    def __init__(self, directory: HdfsDirectory) -> None:
        self._directory = directory

    def stored(self, path: str) -> Stored:
        target = self._directory.file(path)
        with self._directory.errors(f"look at {target}"):
            return self._directory.call(lambda client: _stored(client, target))

    def stored_below(self, path: str) -> Mapping[str, Stored]:
        directory = self._directory.below(path)
        above = f"{directory.removeprefix(self._directory.cluster)}/"
        for _ in range(_LISTINGS):
            try:
                with self._directory.errors(f"list {directory}"):
                    found = self._directory.call(lambda client: client_calls.inodes_below(client, directory))
                return {file.path.removeprefix(above): Stored(file.size, str(file.number)) for file in found}
            except FileNotFoundError:  # of the directory, or of one below that went while this looked
                if not self._is_there(directory):
                    return {}
        raise StorageError(f"Could not list {directory}: directories below it are deleted again and again.")

    def read_stored(self, path: str, version: str, part: Part | None = None) -> bytes:
        source = self._directory.file(path)
        with self._directory.errors(f"read {source}"):

            def read(client: Hadoop) -> bytes:
                pinned = self._pinned(client, source, version)
                data = client_calls.read_small(client, self._by_number(pinned), part)
                if data is not None:
                    return data
                with scratch_directory() as scratch:
                    file = scratch / "file"
                    client_calls.receive(client, self._by_number(pinned), part, file)
                    return file.read_bytes()

            return self._directory.call(read, moves_bytes=True)

    def fetch_stored(self, path: str, of: Stored, target: Path, stop: Callable[[], bool] = lambda: False) -> bool:
        if stop():
            raise Stopped
        source = self._directory.file(path)
        target.open("xb").close()
        with self._directory.errors(f"read {source}"):

            def fetch(client: Hadoop) -> None:
                client_calls.receive(client, self._by_number(self._pinned(client, source, of.version)), None, target)

            self._directory.call(fetch, moves_bytes=True)
        return of.is_of(target)

    def copy(self, copy: Copy) -> Stored:
        source, target = self._directory.file(copy.source), self._directory.file(copy.target)
        what = f"copy {source} to {target}"
        pinned = self._find(source, copy)
        with self._directory.errors(what, a_new_file=True):
            try:
                made = self._directory.call(lambda client: self._send(client, pinned, target), moves_bytes=True)
            except JavaFailure as failure:
                if "FileAlreadyExistsException" not in failure.names:
                    self._find(source, copy)  # which raises if the source is what was missing
                    raise
                made = self._directory.call(lambda client: _stored(client, target))
                if not made.is_same_content(self._directory.call(lambda client: _stored(client, source))):
                    raise StorageError(f"{target} exists already and holds something else.") from failure
            if copy.of is not None and not made.is_copy_of(copy.of):
                self._directory.call(lambda client: client_calls.delete(client, target))
                raise StorageError(f"Could not {what}: it came out with other bytes than it was copied from.")
            return made

    def remove_below(self, path: str) -> int:
        directory = self._directory.file(path)
        found = self.stored_below(path)
        with self._directory.errors(f"delete {directory}"):
            self._directory.call(lambda client: client_calls.delete(client, directory, all_below=True))
        return len(found)

    def _send(self, client: Hadoop, pinned: Inode, target: str) -> Stored:
        """Write a copy, and compare what the DataNodes have stored; a failed copy is deleted."""
        size, crc32c = client_calls.copy(client, self._by_number(pinned), target)
        try:
            made = _stored(client, target)
            if (made.size, made.crc32c) != (size, crc32c):
                raise StorageError(f"The DataNodes have stored other bytes in {target} than were copied.")
        except BaseException:
            client_calls.delete(client, target)
            raise
        return made

    def _find(self, source: str, copy: Copy) -> Inode:
        """The file to be copied; raises ``FileNotFoundError`` if it is gone or is not the pinned one."""
        with self._directory.errors(f"look at {source}"):
            version = copy.of.version if copy.of else None
            return self._directory.call(lambda client: self._pinned(client, source, version))

    def _is_there(self, directory: str) -> bool:
        try:
            with self._directory.errors(f"look at {directory}"):
                self._directory.call(lambda client: client_calls.status(client, directory))
        except FileNotFoundError:
            return False
        return True

    def _pinned(self, client: Hadoop, source: str, version: str | None) -> Inode:
        """The file at a path; raises ``FileNotFoundError`` if it is not the pinned one."""
        found = client_calls.inode(client, source)
        if version is not None and str(found.number) != version:
            raise FileNotFoundError(f"{source} is gone, or is not what it was.")
        return found

    def _by_number(self, file: Inode) -> str:
        """The URL that finds this file alone, or nothing."""
        return f"{self._directory.cluster}/.reserved/.inodes/{file.number}"


def _stored(client: Hadoop, target: str) -> Stored:
    file = client_calls.inode(client, target)
    return Stored(file.size, str(file.number), client_calls.crc32c(client, target, file))
