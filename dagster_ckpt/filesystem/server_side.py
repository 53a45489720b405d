"""What a storage can do with its objects: describe, pin and copy them.

A bucket does so by itself, without moving bytes to this machine; HDFS copies through this machine. An object is pinned
by its path *and its version*: a request for both gets exactly these bytes or an error, whatever is written or deleted
under the path meanwhile.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import google_crc32c

from dagster_ckpt.filesystem.values import Part, Stopped, unheard
from dagster_ckpt.threads import Threads

__all__ = ["Copy", "ServerSide", "Stored", "crc32c_of", "md5_of"]

_CHUNK = 8 << 20


@dataclass(frozen=True, slots=True)
class Stored:
    """What a bucket says about an object.

    Attributes:
        size: bytes.
        version: the bucket's name for these bytes under this path; other bytes under the path have another version:
            the generation in Google Cloud Storage, the ETag in S3 and Azure, in HDFS the number of the inode, as
            long as nobody appends to the file.
        crc32c: of its bytes, in base64; ``None`` where the bucket does not report it.
        md5: of its bytes, in base64; ``None`` where the bucket does not report it.
    """

    size: int
    version: str
    crc32c: str | None = None
    md5: str | None = None

    @property
    def has_checksum(self) -> bool:
        """Whether a checksum is known, to recognise the bytes under another name or version."""
        return self.crc32c is not None or self.md5 is not None

    def is_same_content(self, other: Stored) -> bool:
        """Whether these are the same bytes, as far as checksums tell."""
        pairs = [(self.crc32c, other.crc32c), (self.md5, other.md5)]
        known = [mine == its for mine, its in pairs if mine is not None and its is not None]
        return self.size == other.size and bool(known) and all(known)

    def is_copy_of(self, pinned: Stored) -> bool:
        """Whether this is a copy of ``pinned``, as far as the bucket reports: a listing may have no checksums."""
        return self.is_same_content(pinned) if pinned.has_checksum else self.size == pinned.size

    def is_still(self, pinned: Stored) -> bool:
        """Whether an object still has the pinned bytes, by its checksums; without checksums, by its version."""
        if pinned.has_checksum:
            return self.is_same_content(pinned)
        return (self.size, self.version) == (pinned.size, pinned.version)

    def is_of(self, data: Path | bytes) -> bool:
        """Whether the object has the bytes of a local file, or these bytes, as far as the bucket reports."""
        size = len(data) if isinstance(data, bytes) else data.stat().st_size
        if size != self.size:
            return False
        if self.crc32c is not None:
            return crc32c_of(data) == self.crc32c
        return self.md5 is None or md5_of(data) == self.md5


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy that the bucket is to make.

    Attributes:
        source: path of the object.
        of: the object as it was pinned; ``None`` for any object at ``source``.
        target: an unused path.
    """

    source: str
    of: Stored | None
    target: str


class ServerSide(ABC):
    """The operations of a bucket on its own objects. Errors and paths are those of the bucket's file system."""

    #: How many requests are worth having under way at once.
    concurrency: int
    #: Whether the bucket reports a checksum of a copy. Without checksums only versions identify files.
    tells_checksums: bool = True

    @abstractmethod
    def stored(self, path: str) -> Stored:
        """The object at ``path``; raises ``FileNotFoundError`` when there is none."""

    @abstractmethod
    def stored_below(self, path: str) -> Mapping[str, Stored]:
        """Every object below a directory, however deep, by its path relative to the directory."""

    @abstractmethod
    def read_stored(self, path: str, version: str, part: Part | None = None) -> bytes:
        """The bytes of this version, or a part of them; raises ``FileNotFoundError`` when the version is gone."""

    @abstractmethod
    def copy(self, copy: Copy) -> Stored:
        """Make a copy under a new name, durable and compared with its source on return; return what was stored.

        Raises:
            FileNotFoundError: the source is gone, or is not the pinned object.
            StorageError: the target holds something else, as far as the bucket checks, or the storage failed.
        """

    @abstractmethod
    def remove_below(self, path: str) -> int:
        """Delete every object below a directory, markers of directories included; return how many there were."""

    def copy_many(
        self,
        copies: Sequence[Copy],
        stop: Callable[[], bool] = lambda: False,
        told: Callable[[int], None] = unheard,
    ) -> Sequence[Stored]:
        """Make many copies side by side; several threads call ``told`` with the size of each. Raises as :meth:`copy`.

        Raises:
            Stopped: ``stop()`` became true.
        """

        def make(item: Copy) -> Stored:
            if stop():
                raise Stopped
            made = self.copy(item)
            told(made.size)
            return made

        if not copies:
            return ()
        with Threads(min(self.concurrency, len(copies)), "dagster-ckpt-copy") as pool:
            return list(pool.map(make, copies))

    def fetch_stored(self, path: str, of: Stored, target: Path, stop: Callable[[], bool] = lambda: False) -> bool:
        """Fetch exactly these bytes into the new local file ``target``; ``False`` if other bytes arrived.

        Raises:
            FileNotFoundError: the object is gone or was replaced.
            Stopped: ``stop()`` became true.
        """
        with target.open("xb") as writer:
            for offset in range(0, of.size, _CHUNK):
                if stop():
                    raise Stopped
                part = Part(offset, min(_CHUNK, of.size - offset))
                with self.held_in_memory(part.size, stop):
                    writer.write(self.read_stored(path, of.version, part))
        return of.is_of(target)

    def held_in_memory(self, size: int, stop: Callable[[], bool]) -> AbstractContextManager[None]:
        """Wait until a transfer may hold ``size`` bytes in memory, and reserve them. By default there is no bound.

        Raises:
            Stopped: ``stop()`` became true first.
        """
        del size, stop
        return contextlib.nullcontext()


def crc32c_of(data: Path | bytes) -> str:
    """The CRC32C of a local file or of bytes, in base64 as buckets report it."""
    checksum = 0
    for chunk in _chunks(data):
        checksum = google_crc32c.extend(checksum, chunk)
    return base64.b64encode(checksum.to_bytes(4, "big")).decode("ascii")


def md5_of(data: Path | bytes) -> str:
    """The MD5 of a local file or of bytes, in base64 as buckets report it."""
    digest = hashlib.md5(usedforsecurity=False)
    for chunk in _chunks(data):
        digest.update(chunk)
    return base64.b64encode(digest.digest()).decode("ascii")


def _chunks(data: Path | bytes) -> Iterator[bytes]:
    if isinstance(data, bytes):
        yield data
        return
    with data.open("rb") as reader:
        while chunk := reader.read(_CHUNK):
            yield chunk
