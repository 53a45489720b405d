"""What a store can do with its objects by itself: tell what they are, and copy them, without their bytes coming here.

An object is pinned by its path *and its version*: whoever asks for both gets these very bytes or an error, whatever is
written or deleted under the path meanwhile.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import google_crc32c

from dagster_ckpt.filesystem.values import Part, Stopped, unheard

__all__ = ["Copy", "ServerSide", "Stored", "crc32c_of", "md5_of"]

_CHUNK = 8 << 20


@dataclass(frozen=True, slots=True)
class Stored:
    """What a store says about an object.

    Attributes:
        size: bytes.
        version: the store's name for these bytes under this path, that other bytes there do not have: the generation
            in Google Cloud Storage, the ETag in S3 and Azure.
        crc32c: of its bytes, in base64; ``None`` where the store does not tell it.
        md5: of its bytes, in base64; ``None`` where the store does not tell it.
    """

    size: int
    version: str
    crc32c: str | None = None
    md5: str | None = None

    @property
    def has_checksum(self) -> bool:
        """Whether it says enough to know its bytes again under another name or version."""
        return self.crc32c is not None or self.md5 is not None

    def is_same_content(self, other: Stored) -> bool:
        """Whether these are the same bytes, as far as checksums tell."""
        pairs = [(self.crc32c, other.crc32c), (self.md5, other.md5)]
        known = [mine == its for mine, its in pairs if mine is not None and its is not None]
        return self.size == other.size and bool(known) and all(known)

    def is_copy_of(self, pinned: Stored) -> bool:
        """Whether a copy of what was pinned is that, as far as the store tells: a listing may have no checksums."""
        return self.is_same_content(pinned) if pinned.has_checksum else self.size == pinned.size

    def is_still(self, pinned: Stored) -> bool:
        """Whether an object is what it was: by its checksums or, where there were none, as nobody wrote to it since."""
        if pinned.has_checksum:
            return self.is_same_content(pinned)
        return (self.size, self.version) == (pinned.size, pinned.version)

    def is_of(self, data: Path | bytes) -> bool:
        """Whether a local file, or bytes, are what the store says it holds, as far as it tells."""
        size = len(data) if isinstance(data, bytes) else data.stat().st_size
        if size != self.size:
            return False
        if self.crc32c is not None:
            return crc32c_of(data) == self.crc32c
        return self.md5 is None or md5_of(data) == self.md5


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy that the store is to make.

    Attributes:
        source: path of the object.
        of: what it was when it was pinned; ``None`` for whatever lies there.
        target: a path that nothing has.
    """

    source: str
    of: Stored | None
    target: str


class ServerSide(ABC):
    """The operations of a store on its own objects. Errors and paths are those of the file system it belongs to."""

    #: How many requests are worth having under way at once.
    concurrency: int
    #: Whether it tells a checksum of what it copied. One that does not has nothing but versions to know files by.
    tells_checksums: bool = True

    @abstractmethod
    def stored(self, path: str) -> Stored:
        """What lies at ``path``; raises ``FileNotFoundError`` where nothing does."""

    @abstractmethod
    def stored_below(self, path: str) -> Mapping[str, Stored]:
        """Every object below a directory, however deep, by its path relative to that."""

    @abstractmethod
    def read_stored(self, path: str, version: str, part: Part | None = None) -> bytes:
        """The bytes of this version, or of a part; raises ``FileNotFoundError`` when it is gone or another one."""

    @abstractmethod
    def copy(self, copy: Copy) -> Stored:
        """Make a copy under a new name, durable and compared with its source on return; what it is.

        Raises:
            FileNotFoundError: the source is gone, or is not what it was when it was pinned.
            StorageError: the target is something else, as far as the store looks at it, or the storage failed.
        """

    @abstractmethod
    def remove_below(self, path: str) -> int:
        """Delete every object below a directory, markers of directories included; how many there were."""

    def copy_many(
        self,
        copies: Sequence[Copy],
        stop: Callable[[], bool] = lambda: False,
        told: Callable[[int], None] = unheard,
    ) -> Sequence[Stored]:
        """Make many copies side by side; ``told`` is told the size of each, on several threads. Raises as :meth:`copy`.

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
        with ThreadPoolExecutor(min(self.concurrency, len(copies)), "dagster-ckpt-copy") as pool:
            return list(pool.map(make, copies))

    def fetch_stored(self, path: str, of: Stored, target: Path, stop: Callable[[], bool] = lambda: False) -> bool:
        """Bring these very bytes into the new local file ``target``; ``False`` if they came out as others.

        Raises:
            FileNotFoundError: the object is gone or another one.
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
        """Wait until a transfer may hold so many bytes; for as long as it does. Where nothing bounds them, at once.

        Raises:
            Stopped: ``stop()`` became true before.
        """
        del size, stop
        return contextlib.nullcontext()


def crc32c_of(data: Path | bytes) -> str:
    """The CRC32C of a local file or of bytes, in base64 as stores tell it."""
    checksum = 0
    for chunk in _chunks(data):
        checksum = google_crc32c.extend(checksum, chunk)
    return base64.b64encode(checksum.to_bytes(4, "big")).decode("ascii")


def md5_of(data: Path | bytes) -> str:
    """The MD5 of a local file or of bytes, in base64 as stores tell it."""
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
