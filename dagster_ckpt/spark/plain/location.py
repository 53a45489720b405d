"""A checkpointLocation of plain Spark, as what a job begins with. The location is read, and never written to.

Plain Spark locks nothing, so nobody can know that its query is stopped. What can be seen is that the logs of the
location do not change, neither while it is copied nor for twice the time between its last two batches (at most a
minute).
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from dagster_ckpt.checkpoint import FORK, CheckpointMetadata, FileEntry, Snapshot
from dagster_ckpt.clock import Clock, iso
from dagster_ckpt.config import StateLayout
from dagster_ckpt.errors import (
    CaptureIncomplete,
    CorruptCheckpoint,
    InvalidConfiguration,
    RestoreRefused,
    SinkMismatch,
    SinkNotEmpty,
    StorageError,
)
from dagster_ckpt.filesystem import FileSystem, open_filesystem
from dagster_ckpt.paths import local_path, split_location
from dagster_ckpt.shown_text import shortened
from dagster_ckpt.spark.capture import StreamingSource
from dagster_ckpt.spark.files import CheckpointLocation, StoredCheckpointLocation
from dagster_ckpt.spark.live import BEGUN, LOCATION
from dagster_ckpt.spark.plain.hadoop_checksums import differs_from_checksum
from dagster_ckpt.spark.releases import oldest_writer
from dagster_ckpt.spark.sinks import PlainQuery, Sink
from dagster_ckpt.stored_json import Json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Beginning", "PlainLocation", "plain_location", "plain_url", "read_location"]

_log = logging.getLogger(__name__)

_SINK = "sink"
_LOGS = ("offsets", "commits", "sources")
#: Seconds, at most, for which the logs must not have changed.
_QUIET = 60.0
_LOOK = 1.0
_ALL_ZERO = "0" * 32
#: What the logs hold, by path: the size, and what tells a file from another of the same name.
_Look: TypeAlias = "Mapping[str, tuple[int, int | str]]"
_BEFORE = "the sink that the query wrote to before"
_PUT_BACK = "Let plain Spark go on from it once and stop the query again; or put the location back from a backup."


@dataclass(frozen=True, slots=True)
class Beginning:
    """What a job begins with besides the files of its fork point.

    Attributes:
        query_id: the id of the job's query.
        position: of the job's sink, ``None`` if checkpoints do not cover the sink.
        elsewhere: where the rows up to the fork point are, if the user may expect them in the sink.
        removes: files in the sink that the first start removes and that may not be the query's.
    """

    query_id: str
    position: Mapping[str, Json] | None
    elsewhere: str = ""
    removes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class PlainLocation:
    """A plain checkpointLocation that was read whole and laid out in the directory of a start.

    Attributes:
        pointer: its path or URL.
        metadata: what would stand in the manifest of a checkpoint.
        query: its query, as far as a sink has to know.
    """

    pointer: str
    metadata: CheckpointMetadata
    query: PlainQuery

    def __str__(self) -> str:
        return f"the checkpointLocation {self.pointer} after batch {self.metadata.batch}"

    def lay_out(self, directory: Path, sink: Sink | None, session: SparkSession) -> Beginning:
        """What the job begins with.

        The query goes on under its own id, unless it begins with a new sink.

        Raises:
            SinkMismatch: the sink does not hold what this query has written; or the sink is a table, and the query has
                a batch in flight.
            SinkNotEmpty: the sink has data, and not those of a query of plain Spark.
        """
        own = self.metadata.facts.query_id
        if sink is None:
            return Beginning(own, None)
        taken_over = sink.take_over(self.query, directory / _SINK)
        if taken_over is not None:
            return Beginning(own, taken_over.position, removes=taken_over.removes)
        if not sink.seeds_alike and self.query.planned_ms is not None:
            raise SinkMismatch(
                f"The query of {self.pointer} has planned batch {self.query.newest} and not committed the batch. If "
                f"the query writes to the {sink.kind} sink {sink.path}, the rows of that batch may be there, and the "
                "job would write them a second time.",
                hint="Nothing was touched. Let plain Spark finish the batch: start the query once more with "
                "trigger(availableNow=True), which ends by itself; then launch again.",
            )
        if (present := sink.first_data()) is not None:
            raise SinkNotEmpty(
                f"{sink.path} has data, {present} for example, and no log of Spark's file sink, so it is not known "
                f"which of these data the query of {self.pointer} has written.",
                hint="Write to the directory that the query wrote to, or to an empty one.",
            )
        return Beginning(str(uuid.uuid4()), sink.seed(self.metadata.batch, directory / _SINK, session), _BEFORE)


def plain_url(pointer: str) -> str:
    """How a plain checkpointLocation is recorded, whether or not it is (still) there."""
    with contextlib.suppress(InvalidConfiguration):  # what cannot be a path is no other's name either
        if split_location(pointer).is_local:
            return str(local_path(pointer))
    return pointer.rstrip("/")


def plain_location(
    pointer: str,
    directory: Path,
    *,
    like: FileSystem,
    providers: Mapping[str, StateLayout],
    clock: Clock,
    wait: Callable[[float], object] = time.sleep,
) -> PlainLocation | None:
    """Read a plain checkpointLocation, and lay it out in ``directory``; ``None`` if there is none.

    Args:
        pointer: its path or URL.
        directory: the directory of the start, which does not exist yet.
        like: the storage whose options are used for a location in the same bucket.
        providers: the state store providers with known files, by class.
        clock: wall time.
        wait: sleeps for this many seconds.

    Raises:
        RestoreRefused: the location is in use, has no committed batch, or is of a kind that cannot be taken over.
        CorruptCheckpoint: the location is damaged.
        StorageError: the location cannot be read.
    """
    try:
        location = _open(pointer, like, providers)
    except InvalidConfiguration:  # it names no place at all
        return None
    except StorageError:
        raise
    except OSError as error:
        raise _unreadable(pointer, error) from error
    return None if location is None else read_location(location, plain_url(pointer), directory, clock, wait)


def read_location(
    location: CheckpointLocation, url: str, directory: Path, clock: Clock, wait: Callable[[float], object]
) -> PlainLocation:
    """Read a plain checkpointLocation, and lay it out in ``directory``; arguments and errors as above."""
    try:
        return _read(location, url, directory, clock, wait)
    except CaptureIncomplete as error:
        raise CorruptCheckpoint(f"{url} cannot be taken over: {error.message}", hint=_PUT_BACK) from error
    except StorageError:
        raise
    except OSError as error:
        raise _unreadable(url, error) from error


def _unreadable(url: str, error: OSError) -> StorageError:
    return StorageError(f"{url} cannot be read: {error}", hint="Make it readable for the job's user.")


def _open(pointer: str, like: FileSystem, providers: Mapping[str, StateLayout]) -> CheckpointLocation | None:
    if split_location(pointer).is_local:
        path = local_path(pointer)
        if not ((path / "metadata").is_file() and (path / "offsets").is_dir()):
            return None
        _refuse_own((path.parent / BEGUN).exists() and path.name == LOCATION, pointer)
        return CheckpointLocation(path, providers)
    above, _, name = pointer.rstrip("/").rpartition("/")
    filesystem = open_filesystem(above, like=like)
    inside = {entry.name for entry in filesystem.list(name)}
    if not {"metadata", "offsets"} <= inside:
        return None
    beside = {entry.name for entry in filesystem.list("")} if name == LOCATION else set()
    _refuse_own(BEGUN in beside, pointer)
    if filesystem.copies is None:
        raise RestoreRefused(
            f"{pointer} is in a storage of which a checkpointLocation cannot be taken over.",
            hint="Copy it to a local directory while its query is stopped, and name the copy.",
        )
    return StoredCheckpointLocation(filesystem, filesystem.copies, name, providers)


def _refuse_own(is_live: bool, pointer: str) -> None:
    if is_live:
        raise RestoreRefused(
            f"{pointer} is the live location of a job of this library.",
            hint="Name a checkpoint or a savepoint of that job: `dagster-ckpt list` shows them.",
        )


def _looked(location: CheckpointLocation) -> _Look:
    if isinstance(location, StoredCheckpointLocation):
        there = location.store.stored_below(location.directory)
        return {path: (found.size, found.version) for path, found in there.items() if path.startswith(_LOGS)}
    found: dict[str, tuple[int, int | str]] = {}
    for log in _LOGS:
        for above, _, names in os.walk(location.path / log):
            for name in names:
                status = Path(above, name).lstat()
                found[f"{above}/{name}"] = (status.st_size, status.st_mtime_ns)
    return found


def _read(
    location: CheckpointLocation, url: str, directory: Path, clock: Clock, wait: Callable[[float], object]
) -> PlainLocation:
    before, began = _looked(location), clock.time()
    batch = _last_batch(location, url)
    pins = directory.with_suffix(".taken-over")
    shutil.rmtree(pins, ignore_errors=True)
    try:
        snapshot = _pinned(location, batch, url, pins, clock)
        planned = snapshot.facts.planned_batch
        offsets = location.offsets(batch if planned is None else planned)
        earlier = location.previous_offsets(batch)
        pace = offsets.timestamp_ms - (offsets if earlier is None else location.offsets(earlier)).timestamp_ms
        _copy(snapshot, location, url, directory)
        _await_quiet(location, url, before, 2 * pace / 1000 - (began - offsets.timestamp_ms / 1000), wait)
    finally:
        shutil.rmtree(pins, ignore_errors=True)
    writer = oldest_writer(snapshot.facts.sql_confs, snapshot.facts.commit_log, snapshot.facts.state_format)
    now = iso(clock.time())
    metadata = CheckpointMetadata(
        job_name="",
        job_id=_ALL_ZERO,
        checkpoint_id=0,
        epoch=0,
        batch=batch,
        mode="",
        kind=FORK,
        restored_from=None,
        writer={},
        triggered_at=now,
        written_at=now,
        timings_ms={},
        new_bytes=0,
        facts=snapshot.facts.model_copy(update={"spark_version": writer}),
        sink=None,
        files=tuple(FileEntry(file.path, file.size, None) for file in snapshot.files),
        location=url,
    )
    planned_ms = None if planned is None else offsets.timestamp_ms
    return PlainLocation(url, metadata, PlainQuery(batch, planned_ms, snapshot.facts.query_id))


def _pinned(location: CheckpointLocation, batch: int, url: str, pins: Path, clock: Clock) -> Snapshot:
    try:
        snapshot = StreamingSource(location, pins, None, None, lambda: None, clock).pin(batch)
    except RestoreRefused as error:
        raise RestoreRefused(f"{url} cannot be taken over: {error.message}", hint=error.hint) from error
    if snapshot.facts.planned_batch is None and location.planned() is not None:
        raise RestoreRefused(
            f"{url} has planned batch {batch + 1} with another number of partitions than batch {batch}.",
            hint="Let Spark finish the repartition that was begun; then launch again.",
        )
    return snapshot


def _last_batch(location: CheckpointLocation, url: str) -> int:
    committed, planned = location.how_far()
    if committed is None:
        raise RestoreRefused(
            f"{url} has no committed batch, so there is nothing to go on from.",
            hint="Let plain Spark finish the batch and stop the query again; or start the job from nothing, with an "
            "empty sink.",
        )
    if planned is not None and planned > committed + 1:
        raise RestoreRefused(
            f"{url} has planned batch {planned} and committed batch {committed} only: Spark would go on from batch "
            f"{planned} and skip what is between them.",
            hint="Under asynchronous progress tracking, start the query once more with "
            "asyncProgressTrackingCheckpointIntervalMs set to 0, let it read to the end and stop it. Else the location "
            "is damaged: put it back from a backup.",
        )
    return committed


def _copy(snapshot: Snapshot, location: CheckpointLocation, url: str, directory: Path) -> None:
    """Copy what was pinned, so that the query never shares a file with the plain location, and compare checksums."""
    directory.mkdir(mode=0o700, parents=True)
    broken: list[str] = []
    for file in snapshot.files:
        target = directory / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        if file.source is not None:
            file.source.fetch(target)
            continue
        shutil.copyfile(file.local, target)
        path = file.path.removeprefix(f"{LOCATION}/")
        stored = isinstance(location, StoredCheckpointLocation)
        if not stored and differs_from_checksum(location.path / path, target):
            broken.append(path)
    if broken:
        raise CorruptCheckpoint(
            f"{', '.join(shortened(broken, 1))} of {url} was changed: its checksum is another.", hint=_PUT_BACK
        )


def _await_quiet(
    location: CheckpointLocation, url: str, before: _Look, seconds: float, wait: Callable[[float], object]
) -> None:
    left = min(seconds, _QUIET)
    if left > 0:
        _log.info("Watching for %.0f s whether a query still writes to %s", left, url)
    while True:
        now = _looked(location)
        if changed := sorted(path for path in {*before, *now} if before.get(path) != now.get(path)):
            raise RestoreRefused(
                f"{url} is in use: {', '.join(shortened(changed, 1))} has changed while it was read.",
                hint="Stop the query that writes to it, and see to it that nothing starts it again; then launch again.",
            )
        if left <= 0:
            return
        wait(min(left, _LOOK))
        left -= _LOOK
