"""Pinning everything that a restart after one committed batch needs, while the query runs.

A pin is a hard link (a copy if on another disk): it costs no bytes and takes microseconds, and Spark may then delete or
replace the original name. A missing or short file fails the whole checkpoint attempt; no partial result is returned.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dagster_ckpt.checkpoint import NEXT_BATCH, Facts, Operator, PinnedFile, Snapshot, Source
from dagster_ckpt.config import LAYOUTS, StateLayout
from dagster_ckpt.errors import CaptureIncomplete, RestoreRefused
from dagster_ckpt.spark.capture.rocksdb_files import changelog_lineage, snapshot_members
from dagster_ckpt.spark.capture.state_files import (
    StateFile,
    StateStore,
    StoreReader,
    plan_store,
    unplanned,
)
from dagster_ckpt.spark.files import (
    CheckpointLocation,
    CommitEntry,
    OffsetEntry,
    OperatorEntry,
    UnreadableStateFile,
    decoded,
    is_file_entry,
    log_files,
    log_id,
    parse_commit,
    parse_offsets,
    parse_operator,
    parse_query_id,
)
from dagster_ckpt.spark.sinks import PositionReader
from dagster_ckpt.stored_json import believed

__all__ = ["CHECKPOINT", "ONE_BATCH", "Capture", "Vanished", "capture"]

_CANNOT_LINK = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS})
CHECKPOINT = "checkpoint"
_SINK = "sink"
_DEFAULT_STORE = "default"
#: Useless to any later checkpoint: every batch has its own.
ONE_BATCH = (f"{CHECKPOINT}/offsets/", f"{CHECKPOINT}/commits/")


def capture(location: CheckpointLocation, batch: int, pins: Path, *, sink: PositionReader | None = None) -> Snapshot:
    """Pin everything that a restart after ``batch`` needs into the fresh directory ``pins``.

    These are the write-ahead log around the batch (with the next batch if planned, so that it replays with the same
    boundaries), the sources' logs up to the batch, version ``batch + 1`` of every state store of every stateful
    operator, and the position of the ``sink`` after the batch.

    Args:
        location: the live location; pass the same object every time, because the object caches what it parsed.
        batch: a committed batch, normally the last.
        pins: a directory that does not exist yet, on the disk of the location if possible. The directory holds the
            snapshot's files, flat; ``Snapshot.release`` removes the directory.
        sink: tells the position of the query's sink, if checkpoints cover that sink.

    Raises:
        CaptureIncomplete: something is missing or has the wrong size; ``pins`` has been removed again.
        RestoreRefused: a query of this kind cannot be checkpointed (continuous processing, an unknown state store
            provider, a newer log format); ``pins`` has been removed again.
        FileExistsError: ``pins`` exists.
    """
    pins.mkdir(mode=0o700, parents=True)
    return Capture(location, batch, pins).take(sink)


@dataclass(frozen=True, slots=True)
class _Operator:
    entry: OperatorEntry
    partitions: int


class Capture:
    """One capture, see :func:`capture`; the new directory ``pins`` exists already."""

    def __init__(self, location: CheckpointLocation, batch: int, pins: Path) -> None:
        self._location = location
        self._batch = batch
        self._pins = pins
        self._live, self._target = str(location.path), str(pins)
        self._files: dict[str, PinnedFile] = {}

    def take(self, sink: PositionReader | None) -> Snapshot:
        """Pin everything; raises as :func:`capture`, and then removes the pins."""
        try:
            return self._take(sink)
        except BaseException:
            shutil.rmtree(self._pins, ignore_errors=True)
            raise

    def _take(self, sink: PositionReader | None) -> Snapshot:
        query_id = parse_query_id(self._text("metadata"))
        where = f"commits/{self._batch}"
        commit = parse_commit(self._text(where), where)
        offsets = self._offsets(self._batch)
        # Spark restarts from the newest entry and the entry before it.
        previous = self._location.previous_offsets(self._batch)
        if previous is not None:
            self._pin(f"offsets/{previous}")
        elif self._batch > 0:
            raise CaptureIncomplete(f"no entry of offsets/ before {self._batch} is left", hint=NEXT_BATCH)
        planned = self._planned(offsets)
        self._sources([offsets, *([planned] if planned else [])])
        operators = self._state(offsets, commit)
        if operators and previous not in (None, self._batch - 1):
            # Only asynchronous progress tracking leaves gaps, and only stateless queries can use it.
            raise CaptureIncomplete(f"offsets/{self._batch - 1} is gone", hint=NEXT_BATCH)
        position = None if sink is None else sink.pin_position(self._batch, self._pin_of_sink)
        with believed(f"What Spark says of batch {self._batch}", NEXT_BATCH, CaptureIncomplete):
            facts = Facts(
                query_id=query_id,
                batch=self._batch,
                planned_batch=self._batch + 1 if planned else None,
                watermark_ms=offsets.watermark_ms,
                timestamp_ms=offsets.timestamp_ms,
                state_store_provider=offsets.provider_class if operators else None,
                state_format=(2 if commit.unique_ids else 1) if operators else None,
                commit_log=commit.version,
                partitions=max((operator.partitions for operator in operators), default=None),
                operators=[_recorded(operator) for operator in operators],
                sources=[Source(id=source, offset=offsets.offset(source)) for source, _ in offsets.sources],
                sql_confs=dict(offsets.conf),
            )
        return Snapshot(
            batch=self._batch,
            files=tuple(self._files.values()),
            facts=facts,
            sink=position,
            release=partial(shutil.rmtree, self._pins, ignore_errors=True),
        )

    def _offsets(self, batch: int) -> OffsetEntry:
        where = f"offsets/{batch}"
        return parse_offsets(self._text(where), where)

    def _planned(self, offsets: OffsetEntry) -> OffsetEntry | None:
        try:
            planned = self._offsets(self._batch + 1)
        except Vanished:  # not planned yet
            return None
        if planned.partitions == offsets.partitions:
            return planned
        # The next batch is an offline repartition, which reads no data. Spark does not start on half a repartition.
        os.unlink(self._files.pop(f"{CHECKPOINT}/offsets/{self._batch + 1}").local)  # noqa: PTH108
        return None

    def _sources(self, entries: list[OffsetEntry]) -> None:
        for source in self._location.sources():
            directory = f"sources/{source}"
            # Later entries belong to a batch that the snapshot does not know. If these entries stayed, Spark would read
            # all their files as one batch.
            if offsets := [offset for entry in entries if (offset := entry.file_source_offset(source)) is not None]:
                for name in log_files(self._location.names(directory), max(offsets), directory):
                    self._pin(f"{directory}/{name}")
            else:
                # What another source keeps here (where it began) is written once and read at each start. A source that
                # no entry lists is one that the query has left out: when it comes back, Spark wants its whole log.
                told = [entry.offset(source) for entry in entries if source in dict(entry.sources)]
                has_no_data = bool(told) and all(offset is None for offset in told)
                self._pin_tree(directory, but=self._lists_files if has_no_data else None)

    def _lists_files(self, path: str) -> bool:
        """Whether this is an entry of a file source, which had no data yet at the cut."""
        try:
            return log_id(path.rpartition("/")[2]) is not None and is_file_entry(self._location.text(path))
        except CaptureIncomplete:  # not text, so of another source
            return False

    def _state(self, offsets: OffsetEntry, commit: CommitEntry) -> list[_Operator]:
        operators: list[_Operator] = []
        for operator, metadata in self._location.operators(self._batch):
            pinned = self._pin(metadata)
            entry = self._location.parsed(Path(pinned), partial(_read_operator, metadata))
            for schema in entry.schemas:
                self._pin(f"state/{operator}/{schema}")
            unique_ids = (commit.unique_ids or {}).get(operator)
            if commit.unique_ids is not None and unique_ids is None:
                raise CaptureIncomplete(
                    f"commits/{self._batch} has no state ids of operator {operator}", hint=NEXT_BATCH
                )
            partitions = self._partitions(entry, offsets, unique_ids)
            self._pin_stores(self._stores(entry, partitions, unique_ids), offsets, entry)
            operators.append(_Operator(entry, partitions))
        missing = (commit.unique_ids or {}).keys() - {operator.entry.id for operator in operators}
        if missing:
            raise CaptureIncomplete(f"state/{min(missing)} is gone from {self._location.shown}", hint=NEXT_BATCH)
        return operators

    def _partitions(
        self, entry: OperatorEntry, offsets: OffsetEntry, unique_ids: tuple[tuple[str, ...], ...] | None
    ) -> int:
        """How many partitions really hold state.

        Format v2 names every partition in the commit. For v1 the write-ahead log has the number, because an offline
        repartition does not rewrite the operator's metadata. Operators that Spark runs in one partition (an aggregation
        without keys, a limit) only have partition 0, whatever log and metadata say.
        """
        if unique_ids is not None:
            if any(len(stores) != len(entry.stores) for stores in unique_ids):
                raise CaptureIncomplete(
                    f"commits/{self._batch} does not name every store of operator {entry.id}",
                    hint=NEXT_BATCH,
                )
            return len(unique_ids)
        present = {name for name in self._location.names(f"state/{entry.id}") if name.isdigit()}
        return 1 if present == {"0"} else offsets.partitions or entry.partitions

    def _stores(
        self, operator: OperatorEntry, partitions: int, unique_ids: tuple[tuple[str, ...], ...] | None
    ) -> Iterator[StateStore]:
        """Each state store, listed as late as possible, because listed files may soon be deleted."""
        for partition in range(partitions):
            for index, store in enumerate(operator.stores):
                path = f"state/{operator.id}/{partition}"
                if store != _DEFAULT_STORE:
                    path = f"{path}/{store}"
                unique_id = unique_ids[partition][index] if unique_ids else None
                yield StateStore(path, self._location.names(path), self._batch + 1, unique_id)

    def _pin_stores(self, stores: Iterable[StateStore], offsets: OffsetEntry, operator: OperatorEntry) -> None:
        for store in stores:
            self._pin_store(store, self._plan(store, offsets, operator))

    def _plan(self, store: StateStore, offsets: OffsetEntry, operator: OperatorEntry) -> list[StateFile]:
        """The files that the version of a store needs; files that name other files are pinned already."""
        layout = offsets.provider(self._location.providers)
        if offsets.provider_class not in LAYOUTS:
            _check_layout(store, offsets.provider_class, layout, operator)
        try:
            return plan_store(store, layout, self._reader(store.path))
        except UnreadableStateFile as error:
            raise CaptureIncomplete(
                f"{store.path}: {error}",
                hint="The next batch may be readable. State format v2 with changelogs needs "
                "spark.sql.streaming.stateStore.compression.codec = lz4.",
            ) from error

    def _reader(self, path: str) -> StoreReader:
        return StoreReader(
            pin=lambda name: Path(self._pin(f"{path}/{name}")),
            snapshot_members=lambda file: self._location.parsed(file, snapshot_members),
            lineage=lambda file: self._location.parsed(file, changelog_lineage),
        )

    def _pin_store(self, store: StateStore, files: Sequence[StateFile]) -> None:
        if "_metadata" in store.names:
            self._pin_tree(f"{store.path}/_metadata")
        for file in files:
            try:
                self._pin(f"{store.path}/{file.name}", size=file.size)
            except Vanished:
                if not file.optional:
                    raise

    def _pin_of_sink(self, source: Path, name: str) -> Path:
        return Path(self._pin_file(str(source), f"{_SINK}/{name}"))

    def _pin_tree(self, directory: str, *, but: Callable[[str], bool] | None = None) -> None:
        for name in sorted(self._location.names(directory)):
            if not name.startswith("."):
                path = f"{directory}/{name}"
                if self._is_directory(path):
                    self._pin_tree(path)
                elif but is None or not but(path):
                    self._pin(path)

    def _is_directory(self, path: str) -> bool:
        return (self._location.path / path).is_dir()

    def _text(self, path: str) -> str:
        return decoded(Path(self._pin(path)).read_bytes(), path)

    def _pin(self, path: str, *, size: int | None = None) -> str:
        return self._pin_file(f"{self._live}/{path}", f"{CHECKPOINT}/{path}", size=size)

    def _pin_file(self, source: str, path: str, *, size: int | None = None) -> str:
        # Strings rather than `Path`, for speed: this runs for every file, while Spark may delete the next one.
        known = self._files.get(path)
        if known is None:
            target = f"{self._target}/{len(self._files)}-{path.rpartition('/')[2]}"
            try:
                status = _link_or_copy(source, target)
            except FileNotFoundError as error:
                raise Vanished(f"{source} is not there (yet, or any more)", hint=NEXT_BATCH) from error
            identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
            recurs = not path.startswith(ONE_BATCH)
            known = self._files[path] = PinnedFile(path, target, status.st_size, identity, recurs)
        if size is not None and known.size != size:
            raise CaptureIncomplete(f"{source} has {known.size} bytes, its snapshot says {size}", hint=NEXT_BATCH)
        return known.local


def _recorded(operator: _Operator) -> Operator:
    entry = operator.entry
    return Operator(id=entry.id, name=entry.name, partitions=operator.partitions, stores=list(entry.stores))


def _read_operator(path: str, pinned: Path) -> OperatorEntry:
    return parse_operator(decoded(pinned.read_bytes(), path), path)


def _check_layout(store: StateStore, provider_class: str, layout: StateLayout, operator: OperatorEntry) -> None:
    """Refuse files that ``layout`` would not write: the user has declared ``layout`` for this provider class."""
    for name in unplanned(store, layout):
        if name not in operator.stores:
            own = next(spark for spark, known in LAYOUTS.items() if known is layout)
            raise RestoreRefused(
                f"{provider_class} keeps {name} in {store.path}, which {own} does not, so its layout is "
                "another and no checkpoint of it could be restored",
                hint="Correct the layout of the CustomStateBackend, or begin anew with another state backend.",
            )


class Vanished(CaptureIncomplete):
    """A file was missing when it was to be pinned."""


def _link_or_copy(source: str, target: str) -> os.stat_result:
    """Pin ``source`` as ``target``; returns the status of the file whose bytes were pinned."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _CANNOT_LINK:
            raise
        return _copy(Path(source), Path(target))
    return os.stat(target)  # noqa: PTH116


def _copy(source: Path, target: Path) -> os.stat_result:
    with source.open("rb") as reading, target.open("xb") as writing:
        before = os.fstat(reading.fileno())
        shutil.copyfileobj(reading, writing, 1 << 20)
        after = os.fstat(reading.fileno())
        written = writing.tell()
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns) or written != after.st_size:
        raise CaptureIncomplete(f"{source} was being written while it was copied", hint=NEXT_BATCH)
    os.utime(target, ns=(after.st_atime_ns, after.st_mtime_ns))  # a sink tells by it when the file was written
    return after
