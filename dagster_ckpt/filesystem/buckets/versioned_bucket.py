"""What the buckets of all clouds do alike: objects pinned to versions, server-side copies, and errors explained."""

from __future__ import annotations

import asyncio
import json
import os
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Protocol, TypeVar

from fsspec.asyn import AsyncFileSystem

from dagster_ckpt.errors import InvalidConfiguration, StorageError
from dagster_ckpt.filesystem.buckets.bucket import ObjectFileSystem
from dagster_ckpt.filesystem.server_side import Copy, ServerSide, Stored
from dagster_ckpt.filesystem.values import Entry, Part
from dagster_ckpt.shown_text import first_line
from dagster_ckpt.threads import Threads

__all__ = ["Found", "Reason", "VersionedBucket", "VersionedClient", "byte_range", "check_options"]

_Result = TypeVar("_Result")
#: Small requests that are under way at once.
_TOGETHER = 96


@dataclass(frozen=True, slots=True)
class Found:
    """What a listing found below a directory.

    Attributes:
        key: the name of the object in the bucket.
        stored: what the object is; ``None`` if the object is not a whole file.
        is_directory: whether the object stands for a directory that can be deleted only while the directory is empty.
    """

    key: str
    stored: Stored | None
    is_directory: bool = False


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason why requests fail, as the user reads it.

    Attributes:
        applies: whether an error has this reason.
        text: the message. ``{bucket}``, ``{root}`` and ``{said}`` stand for the name of the bucket, the bucket with
            the prefix, and the words of the error.
        hint: what to do, with the same placeholders.
        kind: the class of the error that the user gets.
    """

    applies: Callable[[BaseException], bool]
    text: str
    hint: str
    kind: type[StorageError] = StorageError


class VersionedClient(Protocol):
    """What the client of a cloud does with objects that are pinned to versions."""

    async def look(self, bucket: str, key: str) -> Stored:
        """What the bucket says about an object; raises ``FileNotFoundError`` when there is none."""

    async def read_version(self, bucket: str, key: str, version: str, part: Part | None) -> bytes:
        """The bytes of this version, or a part of them; raises ``FileNotFoundError`` when the version is gone."""

    async def found_below(self, bucket: str, prefix: str) -> list[Found]:
        """Every object whose name begins with ``prefix``."""

    async def delete_object(self, bucket: str, key: str) -> None:
        """Delete an object; no error when the object is missing."""


class VersionedBucket(ObjectFileSystem, ServerSide):
    """The objects of one bucket below one prefix, in a service that copies objects by itself.

    Args:
        url: as for :class:`ObjectFileSystem`.
        made_of: the arguments of the subclass, used to unpickle it; the third argument is the storage options.
        root: as for :class:`ObjectFileSystem`.
    """

    #: Why requests fail; the user reads the first reason that applies.
    reasons: Sequence[Reason]

    def __init__(self, url: str, made_of: tuple[Any, ...], root: str | None = None) -> None:
        super().__init__(url, root)
        self._made_of = made_of

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return (type(self), self._made_of)

    @staticmethod
    @abstractmethod
    def _client_of(process: int, options: str) -> AsyncFileSystem:
        """The client of a process for these options, a JSON object: it reuses connections and tokens."""

    @abstractmethod
    def _copied(self, copy: Copy) -> Stored:
        """Make a copy.

        Raises:
            FileExistsError: the target exists.
            FileNotFoundError: the source is gone, or is not the pinned object.
        """

    def read_many(self, paths: Sequence[str]) -> Sequence[bytes | None]:
        found = self._asked_together(lambda client, target: client._cat_file(target), map(self._object, paths))  # noqa: SLF001
        return [
            self.read_if_there(path) if isinstance(data, Exception) else data if data is None else bytes(data)
            for path, data in zip(paths, found, strict=True)
        ]

    def list_many(self, paths: Sequence[str]) -> Sequence[Sequence[Entry]]:
        directories = list(map(self._object, paths))
        found = self._asked_together(lambda client, target: client._ls(target, detail=True), directories)  # noqa: SLF001
        return [
            self.list(path) if isinstance(items, Exception) else self._entries(directory, items or ())
            for path, directory, items in zip(paths, directories, found, strict=True)
        ]

    def _asked_together(
        self, ask: Callable[[AsyncFileSystem, str], Awaitable[Any]], targets: Iterable[str]
    ) -> Sequence[Any | Exception | None]:
        """The answers about many objects, ``None`` for a missing one.

        All of them are asked for on the client's own thread: a thread for each would take twice the processor time. An
        error is returned, for the caller to ask once more, by itself, and to explain.
        """

        async def asked(client: AsyncFileSystem) -> Sequence[Any | Exception | None]:
            gate = asyncio.Semaphore(_TOGETHER)

            async def one(target: str) -> Any | Exception | None:
                async with gate:
                    try:
                        return await ask(client, target)
                    except FileNotFoundError:
                        return None
                    except Exception as error:
                        return error

            return await asyncio.gather(*map(one, targets))

        return self._await(asked)

    @property
    def storage_options(self) -> Mapping[str, Any]:
        options: Mapping[str, Any] = self._made_of[2]
        return options

    @property
    def copies(self) -> ServerSide:
        return self

    def stored(self, path: str) -> Stored:
        with self._errors(f"look at {self._shown(path)}"):
            return self._look(path)

    def stored_below(self, path: str) -> Mapping[str, Stored]:
        prefix = f"{self._key(path)}/"
        return {
            item.key.removeprefix(prefix): item.stored for item in self._found_below(path) if item.stored is not None
        }

    def read_stored(self, path: str, version: str, part: Part | None = None) -> bytes:
        key = self._key(path)
        with self._errors(f"read {self._shown(path)}"):
            return self._ask(lambda client: client.read_version(self.bucket, key, version, part))

    def copy(self, copy: Copy) -> Stored:
        with self._errors(self._copy_of(copy)):
            try:
                made = self._copied(copy)
            except (FileExistsError, FileNotFoundError) as error:
                made = self._settled(copy, error)
            return self._proved(copy, made)

    def remove_below(self, path: str) -> int:
        found = self._found_below(path)
        with self._errors(f"delete {self._shown(path)}"):
            found += self._own_markers(path)
            if not found:
                return 0

            def remove(item: Found) -> None:
                self._ask(lambda client: client.delete_object(self.bucket, item.key))

            with Threads(min(self.concurrency, len(found)), "dagster-ckpt-remove") as pool:
                for _, items in groupby(sorted(found, key=_turn), key=_turn):
                    list(pool.map(remove, items))
        return len(found)

    def _found_below(self, path: str) -> list[Found]:
        # The directory's own marker, which Hadoop's connectors make, is named like the directory, with a slash.
        prefix, what = f"{self._key(path)}/", f"list {self._shown(path)}"
        with self._errors(what), self._bucket_is_there(what):
            return self._ask(lambda client: client.found_below(self.bucket, prefix))

    def _own_markers(self, path: str) -> list[Found]:
        """Markers of the directory itself whose names do not end with a slash."""
        del path
        return []

    def _look(self, path: str) -> Stored:
        key = self._key(path)
        return self._ask(lambda client: client.look(self.bucket, key))

    def _settled(self, copy: Copy, error: OSError) -> Stored:
        """What lies at the target of a refused copy.

        The target exists, or the source is gone or was replaced. The same answer comes when a request was carried out,
        its reply was lost, and Spark deleted the source before the client repeated the request. So the target's content
        decides.
        """
        try:
            made = self._look(copy.target)
            is_copy = self._is_copy(made, copy)
        except FileNotFoundError:
            raise FileNotFoundError(f"{self._shown(copy.source)} is gone, or is not what it was.") from error
        if not is_copy:
            raise StorageError(f"{self._shown(copy.target)} exists already and holds something else.") from error
        return made

    def _is_copy(self, made: Stored, copy: Copy) -> bool:
        """Whether the object at the target is this copy; ``FileNotFoundError`` where nothing can prove it."""
        if copy.of is None:
            raise FileNotFoundError(copy.source)
        return made.is_copy_of(copy.of)

    def _proved(self, copy: Copy, made: Stored) -> Stored:
        if copy.of is not None and not made.is_copy_of(copy.of):
            raise StorageError(
                f"Could not {self._copy_of(copy)}: it came out with other bytes than it was copied from."
            )
        return made

    def _copy_of(self, copy: Copy) -> str:
        return f"copy {self._shown(copy.source)} to {self._shown(copy.target)}"

    def _ask(self, call: Callable[[VersionedClient], Awaitable[_Result]]) -> _Result:
        return self._await(call)

    def _key(self, path: str) -> str:
        return self._object(path).partition("/")[2]

    def _connect(self) -> AsyncFileSystem:
        try:
            return self._client_of(os.getpid(), json.dumps(self.storage_options, sort_keys=True))
        except Exception as error:
            raise self._told("connect", error) from self._cause(error)

    def _explained(self, what: str, error: BaseException) -> StorageError:
        about = {"bucket": self.bucket, "root": self._root, "said": self._said(error)}
        for reason in self.reasons:
            if reason.applies(error):
                text = f"Could not {what}: {reason.text.format(**about)}"
                return reason.kind(text, hint=reason.hint.format(**about))
        return StorageError(f"Could not {what}: {type(error).__name__}: {about['said']}")

    def _said(self, error: BaseException) -> str:
        return first_line(error)


def check_options(scheme: str, options: Mapping[str, Any], known: frozenset[str], more: str = "") -> None:
    """Refuse unknown storage options.

    Args:
        scheme: of the URLs.
        options: the user's.
        known: the allowed names.
        more: the end of the hint.

    Raises:
        InvalidConfiguration: an option is unknown.
    """
    if unknown := sorted(set(options) - known):
        raise InvalidConfiguration(
            f"Storage options for {scheme}:// that are not known: {', '.join(unknown)}.",
            hint=f"Known are {', '.join(sorted(known))}{more}.",
        )


def byte_range(part: Part | None) -> dict[str, str]:
    """The header that asks for a part of an object; none for the whole."""
    return {} if part is None else {"Range": f"bytes={part.offset}-{part.offset + part.size - 1}"}


def _turn(item: Found) -> tuple[bool, int]:
    """Sort key for deletion: files first, then directories from the deepest up, so that each directory is empty."""
    return item.is_directory, -item.key.count("/") if item.is_directory else 0
