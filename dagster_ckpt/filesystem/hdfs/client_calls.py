"""Requests to Hadoop's client, as functions for the threads of its JVM (:class:`~hadoop_jvm.Hadoop`).

All paths are whole URLs. They raise Java's exceptions, which ``Hadoop.call`` turns into a ``JavaFailure``.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dagster_ckpt.filesystem.hdfs.hadoop_jvm import Hadoop
from dagster_ckpt.filesystem.values import Entry, Part, Stopped, Written

#: Bytes that the JVM copies between two checks of ``stop``.
CHUNK = 8 << 20
#: Up to this many bytes go through py4j, which writes them as text; more bytes go through a local file.
MOST_BY_PY4J = 1 << 20


def _path(client: Hadoop, url: str) -> Any:
    return client.jvm.org.apache.hadoop.fs.Path(url)


def create(client: Hadoop, target: str) -> Any:
    """Create a file and its directories; each full block is synced to the disks of its DataNodes."""
    return client.filesystem.createFile(_path(client, target)).overwrite(False).recursive().syncBlock().build()


def write_small(client: Hadoop, target: str, data: bytes) -> None:
    """Write a new file of few bytes."""
    with complete_or_deleted(client, target) as stream:
        stream.write(data)


def write_file(client: Hadoop, target: str, source: Path, stop: Callable[[], bool]) -> Written:
    """Write a new file from a local one; raises ``Stopped`` when ``stop()`` became true."""
    jvm, size = client.jvm, 0
    digest = jvm.java.security.MessageDigest.getInstance("SHA-256")
    reader = jvm.java.io.FileInputStream(str(source))
    try:
        with complete_or_deleted(client, target) as stream:
            writer = jvm.java.security.DigestOutputStream(stream, digest)
            while copied := jvm.org.apache.commons.io.IOUtils.copyLarge(reader, writer, 0, CHUNK):
                size += copied
                if stop():
                    raise Stopped
    finally:
        reader.close()
    return Written(size, bytes(digest.digest()).hex())


@contextlib.contextmanager
def complete_or_deleted(client: Hadoop, target: str) -> Iterator[Any]:
    """A stream to a new file; the file is closed, or deleted on failure: a file is visible from its first byte."""
    stream = create(client, target)
    try:
        yield stream
        stream.close()
    except BaseException:
        with contextlib.suppress(Exception):
            delete(client, target)
        with contextlib.suppress(Exception):  # the file cannot be completed; closing ends its thread and its lease
            stream.close()
        raise


def read_small(client: Hadoop, target: str, part: Part | None = None) -> bytes | None:
    """All bytes of a file, or a part of them; ``None`` if that is too much for py4j."""
    stream = client.filesystem.open(_path(client, target))
    try:
        length = int(stream.getVisibleLength())
        begin = 0 if part is None else min(part.offset, length)
        size = length - begin if part is None else min(part.size, length - begin)
        if size > MOST_BY_PY4J:
            return None
        stream.seek(begin)
        return bytes(stream.readNBytes(size))
    finally:
        stream.close()


def receive(client: Hadoop, source: str, part: Part | None, target: Path | None) -> Written:
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


@dataclass(frozen=True, slots=True)
class Inode:
    """A file of HDFS.

    Attributes:
        path: without the cluster.
        number: the NameNode never gives it to another file, and keeps it when the file is renamed.
        size: bytes.
        is_encrypted: whether its DataNodes have encrypted bytes.
    """

    path: str
    number: int
    size: int
    is_encrypted: bool


def inode(client: Hadoop, target: str) -> Inode:
    """The file at a path; raises ``FileNotFoundError`` for a directory."""
    status = client.filesystem.getFileStatus(_path(client, target))
    if status.isDirectory():
        raise FileNotFoundError(target)
    return _inode_of(status)


def inodes_below(client: Hadoop, directory: str) -> list[Inode]:
    """Every file below a directory, however deep."""
    listed, found = client.filesystem.listFiles(_path(client, directory), True), []
    while listed.hasNext():
        found.append(_inode_of(listed.next()))
    return found


def _inode_of(status: Any) -> Inode:
    path = str(status.getPath().toUri().getPath())
    return Inode(path, int(status.getFileId()), int(status.getLen()), bool(status.isEncrypted()))


def crc32c(client: Hadoop, target: str, file: Inode) -> str:
    """The CRC32C of a file, in base64: from its DataNodes if they keep it, else all of the file is read."""
    path = _path(client, target)
    if not file.is_encrypted:
        checksum = client.filesystem.getFileChecksum(path)
        if checksum is not None and str(checksum.getAlgorithmName()) == "COMPOSITE-CRC32C":
            return base64.b64encode(bytes(checksum.getBytes())).decode("ascii")
    nowhere = client.jvm.java.io.OutputStream.nullOutputStream()
    return _pass_on(client, client.filesystem.open(path), nowhere)[1]


def copy(client: Hadoop, source: str, target: str) -> tuple[int, str]:
    """Copy a file through the JVM to a new file; the size and the CRC32C, in base64, of the bytes that passed."""
    with complete_or_deleted(client, target) as writer:
        return _pass_on(client, client.filesystem.open(_path(client, source)), writer)


def _pass_on(client: Hadoop, stream: Any, writer: Any) -> tuple[int, str]:
    """Copy a stream to its end, and close it."""
    jvm = client.jvm
    try:
        checksum = jvm.java.util.zip.CRC32C()
        reader = jvm.java.util.zip.CheckedInputStream(stream, checksum)
        size = int(jvm.org.apache.commons.io.IOUtils.copyLarge(reader, writer))
        return size, base64.b64encode(int(checksum.getValue()).to_bytes(4, "big")).decode("ascii")
    finally:
        stream.close()


def status(client: Hadoop, target: str) -> tuple[bool, int]:
    """Whether a path is a directory, and the size of a file in bytes."""
    status = client.filesystem.getFileStatus(_path(client, target))
    return bool(status.isDirectory()), int(status.getLen())


def list_directory(client: Hadoop, directory: str) -> list[Entry]:
    """What is in a directory; nothing for a file."""
    found = client.filesystem.listStatus(_path(client, directory))
    entries = [Entry(str(status.getPath().getName()), bool(status.isDirectory())) for status in found]
    if len(entries) == 1 and not entries[0].is_directory and not status(client, directory)[0]:
        return []  # the listing of a file is the file itself
    return entries


def rename(client: Hadoop, source: str, target: str, how: str) -> None:
    """Rename in one step of the NameNode; ``NONE`` refuses an existing destination."""
    rename = client.jvm.org.apache.hadoop.fs.Options.Rename
    options = client.jvm.java.lang.reflect.Array.newInstance(rename.NONE.getDeclaringClass(), 1)
    options[0] = rename.valueOf(how)
    client.filesystem.rename(_path(client, source), _path(client, target), options)


def delete(client: Hadoop, target: str, *, all_below: bool = False) -> bool:
    """Delete a file, or a directory that is empty or with ``all_below``; return whether it existed."""
    return bool(client.filesystem.delete(_path(client, target), all_below))
