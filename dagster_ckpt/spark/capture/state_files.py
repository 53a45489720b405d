"""Which files a restart needs to load one version of one state store.

A state store is one operator x partition x store name: one directory below ``state/``. Batch ``N`` commits version
``N + 1`` of every state store of the query, and a restart after batch ``N`` loads exactly that version. The planner
works on the listing of the directory and on pinned copies of the files that name other files; the planner changes
nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

from dagster_ckpt.checkpoint import NEXT_BATCH
from dagster_ckpt.config import StateLayout
from dagster_ckpt.errors import CaptureIncomplete
from dagster_ckpt.spark.capture.rocksdb_files import LineageItem, SnapshotMember

__all__ = ["StateFile", "StateStore", "StoreReader", "plan_store", "unplanned"]


#: All names that may appear in a state store's directory; Spark's own hidden files (``.``) are ignored.
_NAMES = {
    StateLayout.HDFS: re.compile(r"\..*|_metadata|\d+\.(delta|snapshot)(\.crc)?"),
    StateLayout.ROCKSDB: re.compile(r"\..*|_metadata|SSTs|logs|\d+(_[^.]+)?\.(zip|changelog)(\.crc)?"),
}


@dataclass(frozen=True, slots=True)
class StateStore:
    """One state store at the version to plan.

    Attributes:
        path: its directory, relative to the checkpointLocation, for example ``state/0/1``.
        names: the names in its directory.
        version: the version to load; ``0`` is the empty store.
        unique_id: the id of that version under state format v2, ``None`` under v1.
    """

    path: str
    names: Collection[str]
    version: int
    unique_id: str | None = None


@dataclass(frozen=True, slots=True)
class StateFile:
    """One file that a version needs.

    Attributes:
        name: relative to the directory of the state store.
        size: the size in bytes that the state requires, if it says so.
        optional: whether Spark can load the version without the file (a checksum file).
    """

    name: str
    size: int | None = None
    optional: bool = False


@dataclass(frozen=True, slots=True)
class StoreReader:
    """How the planner reads the files that name other files.

    Attributes:
        pin: pins a file of the state store by name and returns the path where its bytes stay unchanged. Files that name
            other files are read from that path, because Spark may replace the file under the original name.
        snapshot_members: the files that a pinned RocksDB zip needs besides itself.
        lineage: the versions that a pinned changelog of format v2 builds on.
    """

    pin: Callable[[str], Path]
    snapshot_members: Callable[[Path], Iterable[SnapshotMember]]
    lineage: Callable[[Path], Iterable[LineageItem]]


def plan_store(store: StateStore, layout: StateLayout, reader: StoreReader) -> list[StateFile]:
    """Every file that Spark reads to load ``store`` at its version.

    Raises:
        CaptureIncomplete: the directory does not hold the whole version (not yet, or no longer).
        UnreadableStateFile: the ``reader`` could not read a file that names other files.
    """
    if store.version == 0:
        return []
    match layout:
        case StateLayout.HDFS:
            return _plan_hdfs(store)
        case StateLayout.ROCKSDB if store.unique_id is None:
            return _plan_rocksdb_v1(store, reader)
        case StateLayout.ROCKSDB:
            return _plan_rocksdb_v2(store, store.unique_id, reader)
        case _:
            assert_never(layout)


def unplanned(store: StateStore, layout: StateLayout) -> list[str]:
    """The names in the directory of ``store`` that ``layout`` would not write; the planner ignores them."""
    return sorted(name for name in store.names if _NAMES[layout].fullmatch(name) is None)


def _plan_hdfs(store: StateStore) -> list[StateFile]:
    base = _newest(store.names, ".snapshot", store.version)
    deltas = [f"{version}.delta" for version in range(base + 1, store.version + 1)]
    base_name = f"{base}.snapshot" if base else None
    return [StateFile(name) for name in _chain(store, base_name, deltas)]


def _plan_rocksdb_v1(store: StateStore, reader: StoreReader) -> list[StateFile]:
    base = _newest(store.names, ".zip", store.version)
    changelogs = [f"{version}.changelog" for version in range(base + 1, store.version + 1)]
    base_name = f"{base}.zip" if base else None
    chain = _chain(store, base_name, changelogs)
    # A checksum file is left out: it may belong to an overwritten file of the same v1 name.
    return [*_snapshot(base_name, reader), *(StateFile(name) for name in chain if name != base_name)]


def _plan_rocksdb_v2(store: StateStore, unique_id: str, reader: StoreReader) -> list[StateFile]:
    newest = f"{store.version}_{unique_id}"
    if f"{newest}.zip" in store.names:
        base_name: str | None = f"{newest}.zip"
        changelogs: list[str] = []
    else:
        head = f"{newest}.changelog"
        _present(store, head, "no snapshot of this version either")
        lineage = dict(reader.lineage(reader.pin(head)))
        lineage[store.version] = unique_id
        base = max((v for v, uid in lineage.items() if f"{v}_{uid}.zip" in store.names), default=0)
        base_name = f"{base}_{lineage[base]}.zip" if base else None
        changelogs = []
        for version in range(base + 1, store.version + 1):
            if version not in lineage:
                raise CaptureIncomplete(
                    f"{store.path}/{head} builds on version {version}, which its lineage does not name and "
                    "no snapshot covers",
                    hint=NEXT_BATCH,
                )
            changelogs.append(f"{version}_{lineage[version]}.changelog")
    chain = _chain(store, base_name, changelogs)
    files = _snapshot(base_name, reader)
    files += [StateFile(name) for name in chain if name != base_name]
    files += [StateFile(f"{name}.crc", optional=True) for name in chain if f"{name}.crc" in store.names]
    return files


def _snapshot(archive: str | None, reader: StoreReader) -> list[StateFile]:
    if archive is None:
        return []
    members = reader.snapshot_members(reader.pin(archive))
    return [StateFile(archive), *(StateFile(member.path, member.size) for member in members)]


def _chain(store: StateStore, base: str | None, increments: list[str]) -> list[str]:
    for name in increments:
        _present(store, name, f"base {base}" if base else "no base snapshot")
    return [base, *increments] if base else increments


def _present(store: StateStore, name: str, why: str) -> None:
    if name not in store.names:
        raise CaptureIncomplete(
            f"{store.path}/{name} is missing, so version {store.version} cannot be loaded ({why})",
            hint=NEXT_BATCH,
        )


def _newest(names: Collection[str], suffix: str, limit: int) -> int:
    """The greatest ``<version><suffix>`` up to ``limit``, 0 when there is none."""
    versions = (name.removesuffix(suffix) for name in names if name.endswith(suffix))
    return max((int(text) for text in versions if text.isdigit() and int(text) <= limit), default=0)
