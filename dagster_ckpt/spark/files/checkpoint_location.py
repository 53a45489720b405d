"""Reading Spark's live checkpointLocation of a streaming query, without a JVM and without touching it.

::

    metadata                                      the query id
    offsets/N                                     write-ahead log: what batch N reads, watermark, confs
    commits/N                                     batch N is done
    sources/<source>/...                          a source's own log (files seen, initial offsets)
    state/<operator>/_metadata/...                what state the operator keeps
    state/<operator>/<partition>[/<store>]/...    that state; batch N commits version N + 1

Every file appears under its name complete (Spark renames it there), and may vanish again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from dagster_ckpt.config.state_backend import LAYOUTS, StateLayout
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
#: More than the resolution of modification times on any file system in use.
_CLOCK_TICK_NS = 50_000_000
#: Seconds after which a log is read again whatever its modification time says: clocks of file servers differ.
_UNREAD_AT_MOST = 1.0


@dataclass(frozen=True, slots=True)
class _Log:
    """What a log's directory listed when it had last changed at ``changed``."""

    changed: int
    good_until: float
    batches: Sequence[int]


class CheckpointLocation:
    """Spark's live checkpointLocation at a local path.

    Keep one object for the life of a query: it remembers what it parsed of immutable files.

    Args:
        path: of the location.
        providers: the state store providers whose files are known, by class.
    """

    #: Seconds between two looks at how far the query is, for who looks all the time: the shortest pause, and the
    #: longest one, while nothing changes.
    pauses = (0.0, 0.0)

    def __init__(self, path: Path, providers: Mapping[str, StateLayout] = LAYOUTS) -> None:
        self.path = Path(path)
        self.providers = providers
        self._parsed: dict[tuple[int, ...], Any] = {}
        self._logs: dict[str, _Log] = {}

    @property
    def shown(self) -> str:
        """Where it is, for people."""
        return str(self.path)

    def last_committed(self) -> int | None:
        """The greatest committed batch, ``None`` before the first commit."""
        return max(self._batches("commits"), default=None)

    def planned(self) -> int | None:
        """The newest batch of the write-ahead log if it is not committed yet, else ``None``."""
        return self.how_far()[1]

    def how_far(self) -> tuple[int | None, int | None]:
        """The greatest committed batch and the one that is planned, as above; each log is looked at once."""
        # In this order a batch that commits in between is not reported as planned any more.
        planned = max(self._batches("offsets"), default=-1)
        committed = max(self._batches("commits"), default=-1)
        return None if committed < 0 else committed, planned if planned > committed else None

    def newest(self) -> int:
        """The newest batch of either log, planned or committed; -1 before the first."""
        return max(-1 if batch is None else batch for batch in self.how_far())

    def query_id(self) -> str | None:
        """The id of the query, ``None`` before it first started."""
        try:
            return parse_query_id(decoded((self.path / "metadata").read_bytes(), "metadata"))
        except FileNotFoundError:
            return None

    def offsets(self, batch: int) -> OffsetEntry:
        """The write-ahead log entry of ``batch``; raises as :func:`parse_offsets`, or if it is not there."""
        where = f"offsets/{batch}"
        return parse_offsets(self.text(where), where)

    def commit(self, batch: int) -> CommitEntry:
        """The commit log entry of ``batch``; raises as :func:`parse_commit`, or if it is not there."""
        where = f"commits/{batch}"
        return parse_commit(self.text(where), where)

    def previous_offsets(self, batch: int) -> int | None:
        """The newest entry of the write-ahead log before ``batch`` (async progress tracking leaves gaps)."""
        return max((other for other in self._batches("offsets") if other < batch), default=None)

    def sources(self) -> list[str]:
        """The sources that keep a log of their own, in order of their names."""
        return sorted(name for name in self.names("sources") if not name.startswith("."))

    def operators(self, batch: int) -> list[tuple[str, str]]:
        """(operator id, path of its metadata as ``batch`` used it) of every stateful operator.

        Raises:
            CaptureIncomplete: an operator has no metadata, or none old enough.
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
        """What a directory of the location lists; empty when it is not there."""
        try:
            return frozenset(os.listdir(self.path / directory))  # noqa: PTH208 - names only, and fast
        except (FileNotFoundError, NotADirectoryError):
            return frozenset()

    def size(self, where: str) -> int:
        """Bytes of a file of the location."""
        return (self.path / where).stat().st_size

    def parsed(self, file: Path, parse: Callable[[Path], _T]) -> _T:
        """``parse(file)``, remembered for as long as the file keeps its identity (pins share an inode)."""
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
            CaptureIncomplete: it is not there, or no text.
        """
        try:
            return decoded((self.path / where).read_bytes(), where)
        except FileNotFoundError as error:
            raise self.purged(where) from error
        except (IsADirectoryError, NotADirectoryError) as error:
            raise damaged(where, error) from error

    def purged(self, where: str) -> CaptureIncomplete:
        """That a file of the location is not there."""
        return CaptureIncomplete(
            f"{self.shown}/{where} is not there (not written yet, or purged already)",
            hint="Take a later batch, or raise spark.sql.streaming.minBatchesToRetain.",
        )

    def _batches(self, directory: str) -> Sequence[int]:
        """The batches a log has entries of. Asked every few milliseconds, so an unchanged directory is not read again.

        Its modification time tells only changes that are further apart than the file system's clock ticks; what was
        read while that time was fresh is read again.
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
