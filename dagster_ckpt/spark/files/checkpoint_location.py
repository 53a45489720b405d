"""Reading the live location of a streaming query, without a JVM and without changing it.

::

    metadata                                      the query id
    offsets/N                                     write-ahead log: what batch N reads, watermark, confs
    commits/N                                     batch N is done
    sources/<source>/...                          the source's own log (files seen, initial offsets)
    state/<operator>/_metadata/...                what state the operator keeps
    state/<operator>/<partition>[/<store>]/...    that state; batch N commits version N + 1

Every file appears complete under its name (Spark renames it), and may vanish later.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from dagster_ckpt.config import LAYOUTS, StateLayout
from dagster_ckpt.errors import CaptureIncomplete
from dagster_ckpt.spark.files.log_entries import (
    CommitEntry,
    OffsetEntry,
    damaged,
    decoded,
    parse_commit,
    parse_offsets,
    parse_query_id,
)

__all__ = ["CheckpointLocation"]

_T = TypeVar("_T")
_CACHED_PARSES = 8192  # a few hundred bytes each; zips of several retained versions of 10^3 stores
#: Above the resolution of modification times on any file system in use.
_CLOCK_TICK_NS = 50_000_000
#: Seconds after which a log's directory is read again even if its modification time is the same: server clocks differ.
_UNREAD_AT_MOST = 1.0


@dataclass(frozen=True, slots=True)
class _Log:
    """The batches listed in a log's directory when its modification time was ``changed``."""

    changed: int
    good_until: float
    batches: Sequence[int]


class CheckpointLocation:
    """Spark's live location at a local path.

    Keep one object for the life of a query: the object remembers what it parsed of immutable files.

    Args:
        path: the path of the location.
        providers: the state store providers with known files, by class.
    """

    #: The shortest and the longest pause in seconds between two polls of the query's progress; the pause grows while
    #: nothing changes.
    pauses = (0.0, 0.0)

    def __init__(self, path: Path, providers: Mapping[str, StateLayout] = LAYOUTS) -> None:
        self.path = Path(path)
        self.providers = providers
        self._parsed: dict[tuple[int, ...], Any] = {}
        self._logs: dict[str, _Log] = {}

    @property
    def shown(self) -> str:
        """The location's path or URL, for people."""
        return str(self.path)

    def last_committed(self) -> int | None:
        """The greatest committed batch, ``None`` before the first commit."""
        return max(self._batches("commits"), default=None)

    def planned(self) -> int | None:
        """The newest batch of the write-ahead log if it is not yet committed, else ``None``."""
        return self.how_far()[1]

    def how_far(self) -> tuple[int | None, int | None]:
        """The results of :meth:`last_committed` and :meth:`planned`; each log is read once."""
        # In this order, a batch that commits between the two reads is not reported as planned.
        planned = max(self._batches("offsets"), default=-1)
        committed = max(self._batches("commits"), default=-1)
        return None if committed < 0 else committed, planned if planned > committed else None

    def newest(self) -> int:
        """The newest batch in either log, planned or committed; -1 before the first."""
        return max(-1 if batch is None else batch for batch in self.how_far())

    def query_id(self) -> str | None:
        """The id of the query, ``None`` before it first started."""
        try:
            return parse_query_id(decoded((self.path / "metadata").read_bytes(), "metadata"))
        except FileNotFoundError:
            return None

    def offsets(self, batch: int) -> OffsetEntry:
        """The write-ahead log entry of ``batch``; raises as :func:`parse_offsets`, or if the entry is missing."""
        where = f"offsets/{batch}"
        return parse_offsets(self.text(where), where)

    def commit(self, batch: int) -> CommitEntry:
        """The commit log entry of ``batch``; raises as :func:`parse_commit`, or if the entry is missing."""
        where = f"commits/{batch}"
        return parse_commit(self.text(where), where)

    def previous_offsets(self, batch: int) -> int | None:
        """The newest entry of the write-ahead log before ``batch`` (async progress tracking leaves gaps)."""
        return max((other for other in self._batches("offsets") if other < batch), default=None)

    def sources(self) -> list[str]:
        """The sources that keep a log of their own, sorted by name."""
        return sorted(name for name in self.names("sources") if not name.startswith("."))

    def operators(self, batch: int) -> list[tuple[str, str]]:
        """(operator id, path of the metadata that ``batch`` used) of every stateful operator.

        Raises:
            CaptureIncomplete: an operator has no metadata, or none as old as ``batch``.
        """
        found: list[tuple[str, str]] = []
        for operator in sorted((name for name in self.names("state") if name.isdigit()), key=int):
            directory = f"state/{operator}/_metadata"
            names = self.names(directory)
            if "metadata" in names:
                found.append((operator, f"{directory}/metadata"))
                continue
            usable = [number for number in self._batches(f"{directory}/v2") if number <= batch]
            if not usable:
                raise CaptureIncomplete(
                    f"state/{operator} has no metadata for batch {batch}, so its stores are not known",
                    hint="Take the next committed batch. Spark before 3.5 wrote none; run it with 4.x.",
                )
            found.append((operator, f"{directory}/v2/{max(usable)}"))
        return found

    def names(self, directory: str) -> frozenset[str]:
        """The names in a directory of the location; empty when the directory does not exist."""
        try:
            return frozenset(os.listdir(self.path / directory))  # noqa: PTH208 - names only, and fast
        except (FileNotFoundError, NotADirectoryError):
            return frozenset()

    def size(self, where: str) -> int:
        """The size of a file of the location, in bytes."""
        return (self.path / where).stat().st_size

    def parsed(self, file: Path, parse: Callable[[Path], _T]) -> _T:
        """``parse(file)``, remembered by the file's identity (pins share an inode)."""
        stat = file.stat()
        key = (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns)
        if key not in self._parsed:
            value = parse(file)
            if len(self._parsed) >= _CACHED_PARSES:
                del self._parsed[next(iter(self._parsed))]
            self._parsed[key] = value
        found: _T = self._parsed[key]
        return found

    def text(self, where: str) -> str:
        """The text of a file of the location.

        Raises:
            CaptureIncomplete: the file is missing or is not text.
        """
        try:
            return decoded((self.path / where).read_bytes(), where)
        except FileNotFoundError as error:
            raise self.purged(where) from error
        except (IsADirectoryError, NotADirectoryError) as error:
            raise damaged(where, error) from error

    def purged(self, where: str) -> CaptureIncomplete:
        """The error for a missing file of the location."""
        return CaptureIncomplete(
            f"{self.shown}/{where} is not there (not written yet, or purged already)",
            hint="Take a later batch, or raise spark.sql.streaming.minBatchesToRetain.",
        )

    def _batches(self, directory: str) -> Sequence[int]:
        """The batches in a log. Called every few milliseconds, so an unchanged directory is not read again.

        A directory's modification time can miss a second change within one tick of the file system's clock. So a
        listing that was made within a tick of the modification time is read again.
        """
        try:
            changed = os.stat(f"{self.path}/{directory}").st_mtime_ns  # noqa: PTH116 - half the time of Path.stat
        except (FileNotFoundError, NotADirectoryError):
            return ()
        known = self._logs.get(directory)
        if known is not None and known.changed == changed and time.monotonic() < known.good_until:
            return known.batches
        settled = changed < time.time_ns() - _CLOCK_TICK_NS
        good_until = time.monotonic() + _UNREAD_AT_MOST if settled else 0.0
        batches = tuple(int(name) for name in self.names(directory) if name.isdigit())
        self._logs[directory] = _Log(changed, good_until, batches)
        return batches
