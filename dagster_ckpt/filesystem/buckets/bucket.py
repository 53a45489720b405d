"""Checkpoints in a bucket, through an asynchronous fsspec file system that creates exclusively.

An object appears whole or not at all, so nothing needs a temporary name or ``fsync``. A bucket gives no certainty,
however: a request whose reply is lost may have been carried out, and the library that repeats the request then reports
that the object already exists. So every create is settled by reading the object back.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import threading
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from fsspec.asyn import AsyncFileSystem

from dagster_ckpt.errors import PublishConflict, PublishUnknown, StorageError
from dagster_ckpt.filesystem.buckets.transfers import StopBetweenChunks
from dagster_ckpt.filesystem.port import FileSystem
from dagster_ckpt.filesystem.scratch import Budget
from dagster_ckpt.filesystem.values import Entry, Part, Stopped, Written
from dagster_ckpt.shown_text import redacted, secrets_of, shown_cause

__all__ = ["PASSING", "REPEATED", "SET_THE_CLOCK", "ObjectFileSystem"]

#: Statuses under 500 that are no refusal: an earlier or a later request may have another answer.
PASSING = frozenset({408, 409, 429})
#: The note on an error that answers only the last of several requests.
REPEATED = "The request had been sent before. Nobody knows what became of that; it may still be carried out."

#: What to do where a service refuses the time of a request's signature.
SET_THE_CLOCK = (
    "Set this machine's clock, for example with `timedatectl set-ntp true`, and compare it with `date -u`. Nothing was "
    "changed; what was acknowledged before is safe, and the next checkpoint tries again."
)

#: Bytes of one request; larger files take several requests, up and down.
CHUNK = 8 << 20
#: A large file takes fewer requests in a row: each request has up to this many chunks.
_MOST_CHUNKS = 3
#: From this many chunks on, each request of a file has two chunks, and so on.
_LARGE = 16
#: Bytes that all transfers under way hold in memory.
_MOST_IN_FLIGHT = 96 << 20
#: How often an upload holds each of its bytes in memory: a request's body is built from a copy.
_COPIES = 2

_Result = TypeVar("_Result")


class ObjectFileSystem(FileSystem):
    """The objects of one bucket below one prefix.

    Directories are only common prefixes of names: nothing makes, syncs or deletes them.

    Args:
        url: ``scheme://bucket/prefix``, without credentials and without a trailing slash.
        root: the client's name for the URL, ``bucket/prefix``, where the URL contains more.
    """

    #: At 30 ms a request, 32 requests side by side take a twenty-fifth of the time of 32 in a row.
    concurrency = 32
    is_distant = True
    is_worth_forking = True

    def __init__(self, url: str, root: str | None = None) -> None:
        self._url = url
        self._root = url.partition("://")[2] if root is None else root
        self._lock = threading.Lock()
        self._connected: tuple[int, AsyncFileSystem] | None = None
        self._in_flight = Budget(_MOST_IN_FLIGHT)

    @abstractmethod
    def _connect(self) -> AsyncFileSystem:
        """A new client of the bucket, without a cache of listings, whose ``mode="create"`` is exclusive."""

    @abstractmethod
    def _explained(self, what: str, error: BaseException) -> StorageError:
        """The user's error when ``what`` failed with ``error``."""

    @property
    def url(self) -> str:
        return self._url

    @property
    def bucket(self) -> str:
        """The bucket's name."""
        return self._root.partition("/")[0]

    def held_in_memory(self, size: int, stop: Callable[[], bool]) -> AbstractContextManager[None]:
        """Wait until a transfer may hold ``size`` bytes in memory, and reserve them.

        Raises:
            Stopped: ``stop()`` became true first.
        """
        return self._in_flight.taken(size, stop)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._url!r})"

    def create(self, path: str, data: bytes) -> None:
        target = self._object(path)
        self._client()  # fails here without a connection: then nothing was created
        try:
            self._await(lambda client: client._pipe_file(target, data, mode="create"))  # noqa: SLF001
        except Exception as error:  # also a lost reply: some libraries repeat the request and report "exists"
            explained, cause = self._told(f"create {self._shown(path)}", error), self._cause(error)
            held = self._held(path, explained)
            if held == data:
                return
            if held is not None:
                raise PublishConflict(f"{self._shown(path)} already exists and holds something else.") from cause
            if isinstance(error, FileExistsError):
                raise PublishConflict(
                    f"{self._shown(path)} was created by somebody else, and is gone again."
                ) from cause
            if self._is_settled(error):
                raise explained from cause
            # The object is missing now, but the abandoned request may still arrive.
            raise PublishUnknown(explained.message, hint=explained.hint) from cause

    def replace(self, path: str, data: bytes) -> None:
        target = self._object(path)
        what = f"write {self._shown(path)}"
        with self._errors(what), self._bucket_is_there(what):
            self._await(lambda client: client._pipe_file(target, data, mode="overwrite"))  # noqa: SLF001

    def write(self, path: str, source: Path | bytes, stop: Callable[[], bool]) -> Written:
        target = self._object(path)
        size = len(source) if isinstance(source, bytes) else source.stat().st_size
        chunk = _chunk_of(size)
        with self._errors(f"write {self._shown(path)}"), self._in_flight.taken(_COPIES * min(size, chunk), stop):
            if isinstance(source, bytes) or size <= chunk:
                data = source if isinstance(source, bytes) else source.read_bytes()
                written = Written.of(data)
                with self._own_name(path, written):
                    self._await(lambda client: client._pipe_file(target, data, mode="create"))  # noqa: SLF001
                return written
            before = _identity(source)
            with source.open("rb") as reader:
                written = Written(size, hashlib.file_digest(reader, "sha256").hexdigest())
            progress = StopBetweenChunks(stop)
            with self._own_name(path, written):
                self._await(
                    lambda client: client._put_file(  # noqa: SLF001
                        str(source), target, mode="create", chunksize=chunk, callback=progress
                    )
                )
            if _identity(source) != before:
                raise StorageError(f"{source} changed while it was written to {self._shown(path)}.")
            return written

    def sync_directories(self, paths: Iterable[str]) -> None:
        """Do nothing: an object is durable when its upload returns."""
        for path in paths:
            self._object(path)

    def read(self, path: str) -> bytes:
        with self._errors(f"read {self._shown(path)}"):
            return self._cat(self._object(path), None, None)

    def fetch(self, path: str, target: Path, part: Part | None = None) -> Written:
        with self._errors(f"read {self._shown(path)}"), target.open("xb") as writer:
            return self._digest(path, part, writer.write, self._in_flight.taken)

    def checksum(self, path: str, part: Part | None = None) -> Written:
        with self._errors(f"read {self._shown(path)}"):
            return self._digest(path, part, _ignore, self._in_flight.taken)

    def size(self, path: str) -> int:
        with self._errors(f"read {self._shown(path)}"):
            return self._size(path)

    def list(self, path: str) -> Sequence[Entry]:
        directory = self._object(path) if path else self._root
        try:
            with self._errors(f"list {self._shown(path)}"):
                found = self._await(lambda client: client._ls(directory, detail=True))  # noqa: SLF001
        except FileNotFoundError:
            return []
        return self._entries(directory, found)

    @staticmethod
    def _entries(directory: str, found: Iterable[dict[str, Any]]) -> Sequence[Entry]:
        inside = f"{directory}/"
        entries = ((item["name"].rstrip("/"), item["type"] == "directory") for item in found)
        # An object with the directory's own name is not in the directory.
        return [Entry(name.removeprefix(inside), kind) for name, kind in entries if name.startswith(inside)]

    def remove(self, path: str) -> None:
        target = self._object(path)
        # The object is missing, or the first request was carried out and this is the repeated one.
        with contextlib.suppress(FileNotFoundError), self._errors(f"delete {self._shown(path)}"):
            self._await(lambda client: client._rm_file(target))  # noqa: SLF001

    def remove_directory(self, path: str) -> None:
        """Do nothing: a directory is gone with its last object."""
        self._object(path)

    def _object(self, path: str) -> str:
        relative = PurePosixPath(path)
        if not path or relative.is_absolute() or ".." in relative.parts:
            raise StorageError(f"{path!r} is not a path below {self._url}.")
        return f"{self._root}/{relative}"

    def _shown(self, path: str) -> str:
        return f"{self._url}/{path}" if path else self._url

    def _digest(
        self,
        path: str,
        part: Part | None,
        use: Callable[[bytes], object],
        taking: Callable[[int], AbstractContextManager[object]],
    ) -> Written:
        """Read an object, or a part of it, in chunks, ``taking`` the memory for each chunk."""
        wanted = part or Part(0, self._size(path))
        digest, size, most = hashlib.sha256(), 0, _chunk_of(wanted.size)
        while size < wanted.size:
            begin, count = wanted.offset + size, min(most, wanted.size - size)
            with taking(count):
                chunk = self._cat_until_end(path, begin, begin + count)
                use(chunk)
                digest.update(chunk)
                size += len(chunk)
            if len(chunk) < count:
                break  # the object ends here: the caller compares
        return Written(size, digest.hexdigest())

    def _cat_until_end(self, path: str, begin: int, end: int) -> bytes:
        """Some bytes of an object, none where they would begin behind its end: buckets refuse a request for these."""
        try:
            return self._cat(self._object(path), begin, end)
        except FileNotFoundError:
            raise
        except Exception:
            if self._size(path) > begin:
                raise
            return b""

    def _cat(self, target: str, begin: int | None, end: int | None) -> bytes:
        return bytes(self._await(lambda client: client._cat_file(target, start=begin, end=end)))  # noqa: SLF001

    def _size(self, path: str) -> int:
        target = self._object(path)
        found = self._await(lambda client: client._info(target))  # noqa: SLF001
        if found["type"] == "directory":
            raise FileNotFoundError(self._shown(path))
        return int(found["size"])

    @contextlib.contextmanager
    def _own_name(self, path: str, written: Written) -> Iterator[None]:
        """Settle a failed write of a new name by the object's content: the reply to a successful write may be lost.

        A library that repeats the request then reports that the name exists, or that the upload does not; a library
        that does not repeat reports the failed connection.
        """
        what = f"write {self._shown(path)}"
        try:
            with self._bucket_is_there(what):
                yield
        except (StorageError, Stopped):
            raise
        except FileExistsError as error:
            try:
                is_ours = self._holds(path, written)
            except FileNotFoundError:
                raise StorageError(f"{self._shown(path)} was taken, and is gone again.") from self._cause(error)
            if not is_ours:
                raise StorageError(f"{self._shown(path)} exists already and holds something else.") from self._cause(
                    error
                )
        except Exception as error:
            if self._is_settled(error) or not self._is_stored(path, written):
                raise self._told(what, error) from self._cause(error)

    def _is_stored(self, path: str, written: Written) -> bool:
        """Whether an object exists and holds ``written``; ``False`` also when it cannot be read."""
        try:
            return self._holds(path, written)
        except Exception:  # the caller reports the error of the write
            return False

    def _holds(self, path: str, written: Written) -> bool:
        """Whether an object holds ``written``.

        The read uses the memory that the upload still holds. Otherwise uploads that hold all the memory, and lose their
        replies at once, would wait for each other.
        """
        return self._size(path) == written.size and self._digest(path, None, _ignore, nullcontext) == written

    @contextlib.contextmanager
    def _bucket_is_there(self, what: str) -> Iterator[None]:
        """Explain "not found" for a write: only the bucket can be missing."""
        try:
            yield
        except FileNotFoundError as error:
            raise self._told(what, error) from self._cause(error)

    def _held(self, path: str, cause: StorageError) -> bytes | None:
        """The content of an object whose create failed; ``None`` when the object is missing.

        Raises:
            PublishUnknown: the object cannot be read.
        """
        try:
            return self._cat(self._object(path), None, None)
        except FileNotFoundError:
            return None
        except Exception as error:
            raise PublishUnknown(
                f"Nobody can say whether {self._shown(path)} was created. {cause.message}",
                hint=f"It is complete if it can be read; nothing that belongs to it was deleted. {cause.hint}".rstrip(),
            ) from self._cause(error)

    def _is_settled(self, error: BaseException) -> bool:
        """Whether the only request was refused, so that no earlier request can still take effect."""
        return self._was_refused(error) and REPEATED not in getattr(error, "__notes__", ())

    def _was_refused(self, error: BaseException) -> bool:
        """Whether the bucket refused the request."""
        del error
        return False

    def _await(self, call: Callable[[AsyncFileSystem], Awaitable[_Result]]) -> _Result:
        """Run a call of the client on fsspec's own thread, and wait for the result.

        fsspec's synchronous methods are avoided: for a cancelled call they return ``None``, as if all were well.
        """
        client = self._client()

        async def performed() -> _Result:
            return await call(client)

        future = asyncio.run_coroutine_threadsafe(performed(), client.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # the caller is interrupted and will not read the reply
            raise

    def _client(self) -> AsyncFileSystem:
        # A client belongs to one process: after a fork its thread is gone.
        with self._lock:
            if self._connected is None or self._connected[0] != os.getpid():
                self._connected = (os.getpid(), self._connect())
            return self._connected[1]

    @contextlib.contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        """Add the operation and a hint to the client's errors; a missing object stays ``FileNotFoundError``."""
        try:
            yield
        except Stopped:
            raise
        except StorageError as error:
            if error.__cause__ is not None:
                error.__cause__ = self._cause(error.__cause__)
            raise
        except FileNotFoundError as error:
            if (cause := self._cause(error)) is error:
                raise
            raise FileNotFoundError(redacted(str(error), self._secrets())) from cause
        except Exception as error:
            raise self._told(what, error) from self._cause(error)

    def _told(self, what: str, error: BaseException) -> StorageError:
        """The user's error when ``what`` failed with ``error``, without the secrets that ``error`` may quote."""
        explained = self._explained(what, error)
        return type(explained)(redacted(explained.message, self._secrets()), hint=explained.hint)

    def _cause(self, error: BaseException) -> BaseException:
        """``error`` without secrets, as the cause of the user's error: causes are shown, too."""
        return shown_cause(error, self._secrets())

    def _secrets(self) -> Sequence[str]:
        return [value for _, value in secrets_of(self.storage_options)]


def _chunk_of(size: int) -> int:
    """Bytes of each request for a file of this size. Two of the largest uploads fit into memory at once."""
    return CHUNK * min(_MOST_CHUNKS, max(1, size // (_LARGE * CHUNK)))


def _ignore(chunk: bytes) -> None:
    """Consume a chunk when only the digest is needed."""
    del chunk


def _identity(file: Path) -> tuple[Any, ...]:
    status = file.stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
