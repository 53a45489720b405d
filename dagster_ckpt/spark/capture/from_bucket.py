"""Pinning what a restart after one committed batch needs, from a live location in the storage.

The location is listed once, with the version of every object. Small logs are copied to this machine. The files of state
stores are pinned by version and stay in the storage; only files that name other files are read. So is a long log of a
source, which lists each file that the source has ever read. Spark may delete a pinned object before the object is
copied: the checkpoint attempt then fails, as for any missing object.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from dagster_ckpt.checkpoint import NEXT_BATCH, PinnedFile, Snapshot
from dagster_ckpt.errors import CaptureIncomplete
from dagster_ckpt.spark.capture.from_disk import CHECKPOINT, ONE_BATCH, Capture, Vanished
from dagster_ckpt.spark.capture.rocksdb_files import changelog_lineage, snapshot_members
from dagster_ckpt.spark.capture.state_files import StateStore, StoreReader
from dagster_ckpt.spark.files import (
    ListedLocation,
    OffsetEntry,
    OperatorEntry,
    StoredCheckpointLocation,
    is_state_data,
    stored_identity,
)
from dagster_ckpt.spark.sinks import PositionReader
from dagster_ckpt.threads import Threads

__all__ = ["capture_stored"]

_SOURCES = "sources/"


def capture_stored(
    location: StoredCheckpointLocation, batch: int, pins: Path, *, sink: PositionReader | None = None
) -> Snapshot:
    """Pin everything that a restart after ``batch`` needs; as :func:`~dagster_ckpt.spark.capture.from_disk.capture`.

    Args:
        location: the live location; pass the same object every time, because the object remembers what it read.
        batch: a committed batch, normally the last.
        pins: a directory for logs on this machine; it must not exist yet.
        sink: tells the position of the query's sink, if checkpoints cover that sink.

    Raises:
        CaptureIncomplete: something is missing or has the wrong size; ``pins`` has been removed again.
        RestoreRefused: a query of this kind cannot be checkpointed; ``pins`` has been removed again.
        StorageError: the storage failed; ``pins`` has been removed again.
    """
    listed = location.listed()
    pins.mkdir(mode=0o700, parents=True)
    return _StoredCapture(listed, batch, pins, location.store.concurrency).take(sink)


class _StoredCapture(Capture):
    def __init__(self, listed: ListedLocation, batch: int, pins: Path, concurrency: int) -> None:
        super().__init__(listed, batch, pins)
        self._listed = listed
        self._concurrency = concurrency

    def _pin(self, path: str, *, size: int | None = None) -> str:
        key = f"{CHECKPOINT}/{path}"
        known = self._files.get(key)
        if known is None:
            if path not in self._listed.objects:
                raise Vanished(f"{self._listed.shown}/{path} is not there (yet, or any more)", hint=NEXT_BATCH)
            known = self._files[key] = self._pinned(path, key)
        if size is not None and known.size != size:
            raise CaptureIncomplete(
                f"{self._listed.shown}/{path} has {known.size} bytes, its snapshot says {size}", hint=NEXT_BATCH
            )
        return known.local

    def _pinned(self, path: str, key: str) -> PinnedFile:
        source = self._listed.source(path)
        identity = stored_identity(source.of)
        if is_state_data(path) or (path.startswith(_SOURCES) and not self._listed.is_small(path)):
            return PinnedFile(key, "", source.of.size, identity, source=source)
        local = Path(self._target) / f"{len(self._files)}-{path.rpartition('/')[2]}"
        local.write_bytes(self._listed.read(path))
        return PinnedFile(key, str(local), source.of.size, identity, not key.startswith(ONE_BATCH))

    def _reader(self, path: str) -> StoreReader:
        # The object's version keeps the bytes unchanged, so nothing is copied to this machine.
        return StoreReader(
            pin=Path,
            snapshot_members=lambda name: self._listed.parsed_head(f"{path}/{name}", snapshot_members),
            lineage=lambda name: self._listed.parsed_head(f"{path}/{name}", changelog_lineage),
        )

    def _pin_stores(self, stores: Iterable[StateStore], offsets: OffsetEntry, operator: OperatorEntry) -> None:
        # One or two files are read per state store, and each read waits for the network: read in parallel.
        listed = list(stores)
        if not listed:
            return
        with Threads(min(self._concurrency, len(listed)), "dagster-ckpt-plan") as pool:
            plans = list(pool.map(lambda store: self._plan(store, offsets, operator), listed))
        for store, files in zip(listed, plans, strict=True):
            self._pin_store(store, files)

    def _is_directory(self, path: str) -> bool:
        return path not in self._listed.objects
