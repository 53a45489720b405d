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
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from dagster_ckpt.checkpoint.format.snapshot import Json
from dagster_ckpt.checkpoint.format.values import SIGNED_64, component, parsed
from dagster_ckpt.config.state_backend import HDFS_PROVIDER, PROVIDER_CONF
from dagster_ckpt.errors import CaptureIncomplete, RestoreRefused
from dagster_ckpt.filesystem.names import inside
from dagster_ckpt.spark.capture.state_files import PROVIDERS, Provider

__all__ = [
    "CheckpointLocation",
    "CommitEntry",
    "OffsetEntry",
    "OperatorEntry",
    "decoded",
    "parse_commit",
    "parse_offsets",
    "parse_operator",
    "parse_query_id",
    "schema_path",
]

_T = TypeVar("_T")
_CACHED_PARSES = 8192  # a few hundred bytes each; zips of several retained versions of 10^3 stores
#: More than the resolution of modification times on any file system in use.
_CLOCK_TICK_NS = 50_000_000
#: Seconds after which a log is read again whatever its modification time says: clocks of file servers differ.
_UNREAD_AT_MOST = 1.0
_PARTITIONS_CONF = "spark.sql.shuffle.partitions"
_SCHEMAS = "_stateSchema"
_WATERMARK_KEY = "batchWatermarkMs"
_FILE_SOURCE_KEYS = frozenset({"logOffset"})
_OFFSET_VERSIONS = frozenset({1, 2})
_COMMIT_VERSIONS = frozenset({1, 2, 3})
_VERSION = re.compile(r"v([0-9]{1,9})")


@dataclass(frozen=True, slots=True)
class OffsetEntry:
    """One entry of the write-ahead log, ``offsets/<batch>``.

    Attributes:
        version: of the log's format (1 or 2).
        watermark_ms: the watermark the batch runs with, milliseconds since the epoch.
        timestamp_ms: the batch's processing time, milliseconds since the epoch.
        conf: the SQL confs Spark fixes for the life of the query.
        sources: (source id, its end offset as JSON text or ``None`` while it has no data), in order.
    """

    version: int
    watermark_ms: int
    timestamp_ms: int
    conf: Mapping[str, str]
    sources: tuple[tuple[str, str | None], ...]

    @property
    def provider_class(self) -> str:
        """The class of the state store provider, as Spark fixed it."""
        return self.conf.get(PROVIDER_CONF, HDFS_PROVIDER)

    def provider(self, known: Mapping[str, Provider] = PROVIDERS) -> Provider:
        """The one of ``known`` (by class) whose files the query's state store provider keeps.

        Raises:
            RestoreRefused: it is a class whose files are not known here.
        """
        provider = known.get(self.provider_class)
        if provider is None:
            raise RestoreRefused(
                f"the query keeps its state with {self.provider_class}, whose files this release does not know; no "
                "checkpoint of it could be restored",
                hint=f"Start a new query with {PROVIDER_CONF} set to {' or '.join(PROVIDERS)}. If the class keeps "
                "exactly the files of one of these, say so by state_backend=CustomStateBackend(..., layout=...).",
            )
        return provider

    @property
    def partitions(self) -> int | None:
        """The number of partitions of the state, as Spark fixed it (or an offline repartition changed it).

        Raises:
            CaptureIncomplete: it is no number.
        """
        text = self.conf.get(_PARTITIONS_CONF)
        try:
            return int(text) if text is not None else None
        except ValueError as error:
            raise _damaged("the offset log", f"{_PARTITIONS_CONF}: {error}") from error

    def offset(self, source: str) -> Json:
        """The end offset of a source, as its text where that is no JSON; ``None`` while it has no data."""
        text = dict(self.sources).get(source)
        if text is None:
            return None
        try:
            value: Json = parsed(text)
        except ValueError:
            return text
        return value

    def file_source_offset(self, source: str) -> int | None:
        """The last entry of a file source's log that the batch reads; ``None`` if it is no file source."""
        offset = self.offset(source)
        if isinstance(offset, dict) and offset.keys() == _FILE_SOURCE_KEYS:
            entry = offset["logOffset"]
            return entry if type(entry) is int and -1 <= entry <= SIGNED_64 else None
        return None


@dataclass(frozen=True, slots=True)
class CommitEntry:
    """One entry of the commit log, ``commits/<batch>``.

    Attributes:
        version: of the log's format (1 to 3).
        unique_ids: of the state the batch committed, by operator id, then partition, then store; ``None``
            under state format v1, which has none.
    """

    version: int
    unique_ids: Mapping[str, tuple[tuple[str, ...], ...]] | None


@dataclass(frozen=True, slots=True)
class OperatorEntry:
    """What one stateful operator says about its state.

    Attributes:
        id: of the operator, the directory below ``state/``.
        name: Spark's name of it, for example ``stateStoreSave``.
        partitions: the number of partitions it was first planned with.
        stores: the names of its stores; ``default`` lies directly in the directory of the partition.
        schemas: the state schemas it names, relative to its directory (transformWithState only).
    """

    id: str
    name: str
    partitions: int
    stores: tuple[str, ...]
    schemas: tuple[str, ...] = ()


def decoded(data: bytes, where: str) -> str:
    """The text of a file of a location; ``where`` names it in errors.

    Raises:
        CaptureIncomplete: it is no text.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _damaged(where, error) from error


def parse_offsets(text: str, where: str) -> OffsetEntry:
    """Parse ``offsets/<batch>``; ``where`` names it in errors.

    Raises:
        RestoreRefused: unknown version, or the log of continuous processing, which has no micro-batches.
        CaptureIncomplete: not a whole entry.
    """
    lines = text.split("\n")
    version = _version(lines[0], _OFFSET_VERSIONS, where)
    if len(lines) > 1 and not lines[1].strip():
        raise RestoreRefused(
            f"{where} is of a query under continuous processing, which keeps no batch metadata; it has no "
            "micro-batch boundaries to checkpoint at",
            hint="Use trigger(processingTime=...) or trigger(availableNow=True).",
        )
    metadata = _json_object(lines[1] if len(lines) > 1 else "", where)
    try:
        watermark, timestamp = int(metadata[_WATERMARK_KEY]), int(metadata["batchTimestampMs"])
        conf = {str(key): str(value) for key, value in metadata.get("conf", {}).items()}
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise _damaged(where, error) from error
    sources: list[tuple[str, str | None]] = []
    for index, line in enumerate(lines[2:]):
        source, offset = str(index), line
        if version >= 2:
            source, colon, offset = line.partition(":")
            if not colon:
                raise _damaged(where, f"no source id in {line!r}")
        try:
            component(source)  # it is the name of a directory
        except ValueError as error:
            raise _damaged(where, error) from error
        sources.append((source, None if offset == "-" else offset))
    return OffsetEntry(version, watermark, timestamp, conf, tuple(sources))


def parse_commit(text: str, where: str) -> CommitEntry:
    """Parse ``commits/<batch>``; raises as :func:`parse_offsets`."""
    header, _, body = text.partition("\n")
    version = _version(header, _COMMIT_VERSIONS, where)
    unique_ids = _json_object(body, where).get("stateUniqueIds")
    if not unique_ids:
        return CommitEntry(version, None)
    try:
        ids = {
            str(operator): tuple(tuple(str(uid) for uid in stores) for stores in partitions)
            for operator, partitions in unique_ids.items()
        }
    except (TypeError, AttributeError) as error:
        raise _damaged(where, error) from error
    return CommitEntry(version, ids)


def parse_query_id(text: str) -> str:
    """The query id of the location's ``metadata``; raises as :func:`parse_offsets`."""
    query_id = _json_object(text, "metadata").get("id")
    if not isinstance(query_id, str):
        raise _damaged("metadata", "no query id")
    return query_id


def parse_operator(text: str, where: str) -> OperatorEntry:
    """Parse an operator's metadata (``metadata`` or ``v2/<batch>``); raises as :func:`parse_offsets`."""
    header, _, body = text.partition("\n")
    _version(header, frozenset({1, 2}), where)
    metadata = _json_object(body, where)
    try:
        info, stores = metadata["operatorInfo"], metadata["stateStoreInfo"]
        return OperatorEntry(
            id=component(str(info["operatorId"])),
            name=str(info["operatorName"]),
            partitions=int(stores[0]["numPartitions"]),
            stores=tuple(component(str(store["storeName"])) for store in stores),
            schemas=tuple(schema_path(str(path)) for store in stores for path in store.get("stateSchemaFilePaths", [])),
        )
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise _damaged(where, error) from error


def schema_path(recorded: str) -> str:
    """A state schema's path relative to the operator's directory; Spark records it as an absolute URI.

    Raises:
        ValueError: it does not lie in an operator's ``_stateSchema``.
    """
    _, found, tail = recorded.rpartition(f"/{_SCHEMAS}/")
    if not found or not tail:
        raise ValueError(f"state schema at {recorded}")
    return f"{_SCHEMAS}/{inside(tail)}"


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

    def __init__(self, path: Path, providers: Mapping[str, Provider] = PROVIDERS) -> None:
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
            raise _damaged(where, error) from error

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


def _version(header: str, known: frozenset[int], where: str) -> int:
    match = _VERSION.fullmatch(header.strip())
    if match is None:
        raise _damaged(where, f"it begins with {header[:20]!r}, not with a version")
    version = int(match[1])
    if version not in known:
        raise RestoreRefused(
            f"{where} is of version {version}; this release reads up to v{max(known)}",
            hint="It was written by a newer Spark; upgrade dagster-ckpt.",
        )
    return version


def _json_object(text: str, where: str) -> dict[str, Any]:
    try:
        value = parsed(text)
    except ValueError as error:
        raise _damaged(where, error) from error
    if not isinstance(value, dict):
        raise _damaged(where, "not a JSON object")
    return value


def _damaged(where: str, why: object) -> CaptureIncomplete:
    return CaptureIncomplete(
        f"{where} is not a whole entry ({why})",
        hint="If it stays so the file is damaged; go back to a retained checkpoint.",
    )
