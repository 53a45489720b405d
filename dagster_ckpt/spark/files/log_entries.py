"""The entries of Spark's own logs in a checkpointLocation, and the operators' metadata of their state."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from dagster_ckpt.config import HDFS_PROVIDER, LAYOUTS, PROVIDER_CONF, StateLayout
from dagster_ckpt.errors import CaptureIncomplete, RestoreRefused
from dagster_ckpt.filesystem import inside
from dagster_ckpt.spark.releases import EVERY_FORMAT
from dagster_ckpt.stored_json import SIGNED_64, Json, component, parsed

__all__ = [
    "PARTITIONS_CONF",
    "CommitEntry",
    "OffsetEntry",
    "OperatorEntry",
    "damaged",
    "decoded",
    "parse_commit",
    "parse_offsets",
    "parse_operator",
    "parse_query_id",
    "schema_path",
]

PARTITIONS_CONF = "spark.sql.shuffle.partitions"
_SCHEMAS = "_stateSchema"
_WATERMARK_KEY = "batchWatermarkMs"
_FILE_SOURCE_KEYS = frozenset({"logOffset"})
_VERSION = re.compile(r"v([0-9]{1,9})")


@dataclass(frozen=True, slots=True)
class OffsetEntry:
    """One entry of the write-ahead log, ``offsets/<batch>``.

    Attributes:
        version: the version of the log's format (1 or 2).
        watermark_ms: the watermark the batch runs with, milliseconds since the epoch.
        timestamp_ms: the batch's processing time, milliseconds since the epoch.
        conf: the SQL confs that Spark fixes for the life of the query.
        sources: (source id, end offset as JSON text, or ``None`` while the source has no data), in order.
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

    def provider(self, known: Mapping[str, StateLayout] = LAYOUTS) -> StateLayout:
        """The layout in ``known`` (by class) of the query's state store provider.

        Raises:
            RestoreRefused: the provider's class is not in ``known``.
        """
        provider = known.get(self.provider_class)
        if provider is None:
            raise RestoreRefused(
                f"the query keeps its state with {self.provider_class}, whose files this release does not know; no "
                "checkpoint of it could be restored",
                hint=f"Start a new query with {PROVIDER_CONF} set to {' or '.join(LAYOUTS)}. If the class keeps "
                "exactly the files of one of these, say so by state_backend=CustomStateBackend(..., layout=...).",
            )
        return provider

    @property
    def partitions(self) -> int | None:
        """The number of partitions of the state that Spark fixed, or that an offline repartition set.

        Raises:
            CaptureIncomplete: the value is not a number.
        """
        text = self.conf.get(PARTITIONS_CONF)
        try:
            return int(text) if text is not None else None
        except ValueError as error:
            raise damaged("the offset log", f"{PARTITIONS_CONF}: {error}") from error

    def offset(self, source: str) -> Json:
        """The end offset of a source, as plain text if it is not JSON; ``None`` while the source has no data."""
        text = dict(self.sources).get(source)
        if text is None:
            return None
        try:
            value: Json = parsed(text)
        except ValueError:
            return text
        return value

    def file_source_offset(self, source: str) -> int | None:
        """The last entry of a file source's log that the batch reads; ``None`` for any other source."""
        offset = self.offset(source)
        if isinstance(offset, dict) and offset.keys() == _FILE_SOURCE_KEYS:
            entry = offset["logOffset"]
            return entry if type(entry) is int and -1 <= entry <= SIGNED_64 else None
        return None


@dataclass(frozen=True, slots=True)
class CommitEntry:
    """One entry of the commit log, ``commits/<batch>``.

    Attributes:
        version: the version of the log's format (1 to 3).
        unique_ids: the ids of the state that the batch committed, by operator id, then partition, then store; ``None``
            under state format v1, which has no ids.
    """

    version: int
    unique_ids: Mapping[str, tuple[tuple[str, ...], ...]] | None


@dataclass(frozen=True, slots=True)
class OperatorEntry:
    """What one stateful operator records about its state.

    Attributes:
        id: the operator's id, which is its directory below ``state/``.
        name: Spark's name for the operator, for example ``stateStoreSave``.
        partitions: the number of partitions in the operator's first plan.
        stores: the names of its state stores; ``default`` lies directly in the directory of the partition.
        schemas: paths of its state schemas, relative to its directory (transformWithState only).
    """

    id: str
    name: str
    partitions: int
    stores: tuple[str, ...]
    schemas: tuple[str, ...] = ()


def decoded(data: bytes, where: str) -> str:
    """The text of a file of a location; ``where`` names the file in errors.

    Raises:
        CaptureIncomplete: the file is not text.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise damaged(where, error) from error


def parse_offsets(text: str, where: str) -> OffsetEntry:
    """Parse ``offsets/<batch>``; ``where`` names the entry in errors.

    Raises:
        RestoreRefused: unknown version, or the log of continuous processing, which has no micro-batches.
        CaptureIncomplete: the entry is not whole.
    """
    lines = text.split("\n")
    version = _version(lines[0], EVERY_FORMAT.offset_log, where)
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
        raise damaged(where, error) from error
    sources: list[tuple[str, str | None]] = []
    for index, line in enumerate(lines[2:]):
        source, offset = str(index), line
        if version >= 2:
            source, colon, offset = line.partition(":")
            if not colon:
                raise damaged(where, f"no source id in {line!r}")
        try:
            component(source)  # the source id becomes the name of a directory
        except ValueError as error:
            raise damaged(where, error) from error
        sources.append((source, None if offset == "-" else offset))
    return OffsetEntry(version, watermark, timestamp, conf, tuple(sources))


def parse_commit(text: str, where: str) -> CommitEntry:
    """Parse ``commits/<batch>``; raises as :func:`parse_offsets`."""
    header, _, body = text.partition("\n")
    version = _version(header, EVERY_FORMAT.commit_log, where)
    unique_ids = _json_object(body, where).get("stateUniqueIds")
    if not unique_ids:
        return CommitEntry(version, None)
    try:
        ids = {
            str(operator): tuple(tuple(str(uid) for uid in stores) for stores in partitions)
            for operator, partitions in unique_ids.items()
        }
    except (TypeError, AttributeError) as error:
        raise damaged(where, error) from error
    return CommitEntry(version, ids)


def parse_query_id(text: str) -> str:
    """The query id of the location's ``metadata``; raises as :func:`parse_offsets`."""
    query_id = _json_object(text, "metadata").get("id")
    if not isinstance(query_id, str):
        raise damaged("metadata", "no query id")
    return query_id


def parse_operator(text: str, where: str) -> OperatorEntry:
    """Parse an operator's metadata (``metadata`` or ``v2/<batch>``); raises as :func:`parse_offsets`."""
    header, _, body = text.partition("\n")
    _version(header, EVERY_FORMAT.operator, where)
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
        raise damaged(where, error) from error


def schema_path(recorded: str) -> str:
    """A state schema's path relative to the operator's directory; Spark records an absolute URI.

    Raises:
        ValueError: the path is not in an operator's ``_stateSchema``.
    """
    _, found, tail = recorded.rpartition(f"/{_SCHEMAS}/")
    if not found or not tail:
        raise ValueError(f"state schema at {recorded}")
    return f"{_SCHEMAS}/{inside(tail)}"


def _version(header: str, known: Collection[int], where: str) -> int:
    match = _VERSION.fullmatch(header.strip())
    if match is None:
        raise damaged(where, f"it begins with {header[:20]!r}, not with a version")
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
        raise damaged(where, error) from error
    if not isinstance(value, dict):
        raise damaged(where, "not a JSON object")
    return value


def damaged(where: str, why: object) -> CaptureIncomplete:
    """The error for an entry that Spark would not write."""
    return CaptureIncomplete(
        f"{where} is not a whole entry ({why})",
        hint="If it stays so the file is damaged; go back to a retained checkpoint.",
    )
