"""Beginning a job from a checkpoint or savepoint of another job, which stays untouched and may continue meanwhile.

The fork point is copied into the job's own storage as its first checkpoint, with a new query id and the position of the
job's own, empty sink. From then on the jobs are independent: the other job may delete its checkpoints.

A job also begins so from a checkpointLocation of plain Spark. The query that is taken over may keep its sink.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_ckpt.checkpoint import (
    FORK,
    SAVEPOINT,
    CheckpointCatalog,
    CheckpointMetadata,
    CompletedCheckpointStore,
    PinnedFile,
    PlannedBatch,
    Snapshot,
    layout,
    materialize_checkpoint,
    resolve_checkpoint_pointer,
)
from dagster_ckpt.errors import (
    CheckpointNotFound,
    CorruptCheckpoint,
    RestoreRefused,
    SinkMismatch,
    SinkNotEmpty,
)
from dagster_ckpt.filesystem import PosixFileSystem, open_filesystem
from dagster_ckpt.paths import is_same_place
from dagster_ckpt.spark.plain import Beginning, PlainLocation, plain_url
from dagster_ckpt.spark.sinks import Sink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ForkPoint", "fork_point", "lay_out_fork", "publish_fork"]

_INSIDE = re.compile(r"([^/]+)/([0-9a-f]{32}/chk-[1-9][0-9]*)")
_CHECKPOINT = "checkpoint"
_SINK = "sink"


@dataclass(frozen=True, slots=True)
class ForkPoint:
    """The checkpoint or savepoint that a job is forked from.

    Attributes:
        catalog: the checkpoints of the job that took it.
        metadata: its manifest.
    """

    catalog: CheckpointCatalog
    metadata: CheckpointMetadata

    @property
    def pointer(self) -> str:
        """The directory of the fork point."""
        return self.catalog.pointer(self.metadata)

    def plans(self) -> list[PlannedBatch]:
        """The batches that the first job has planned after the fork point, in order."""
        return self.catalog.records.plans(self.metadata.job_id).after(self.metadata)

    def __str__(self) -> str:
        return f"{self.metadata.name} of job {self.metadata.job_name!r} ({self.pointer})"

    def lay_out(self, directory: Path, sink: Sink | None, session: SparkSession) -> Beginning:
        """The new query id, and the position of the new sink; raises as :func:`lay_out_fork`."""
        if sink is not None:
            _check(self, sink)
        with _explained(self):
            materialize_checkpoint(self.catalog, self.metadata, directory)
        shutil.rmtree(directory / _SINK, ignore_errors=True)  # the position of the first job's sink
        position = None if sink is None else sink.seed(self.metadata.batch, directory / _SINK, session)
        return Beginning(str(uuid.uuid4()), position)


def fork_point(
    catalog: CheckpointCatalog, pointer: str, plain: Callable[[], PlainLocation | None] = lambda: None
) -> ForkPoint | PlainLocation | None:
    """What ``pointer`` names, in any storage; ``None`` when the job has already been forked from it.

    Args:
        catalog: the checkpoints of the job that begins.
        pointer: the path of a checkpoint or savepoint of any job, or of a plain checkpointLocation.
        plain: reads the checkpointLocation at ``pointer``, if there is one.

    Raises:
        CheckpointNotFound: the pointer names nothing.
        CorruptCheckpoint: the checkpointLocation is damaged.
        CorruptMetadata: the manifest cannot be trusted.
        ForeignCheckpoint: the pointer's directory is no place for a checkpoint.
        RestoreRefused: the job has checkpoints of its own.
    """
    try:
        point = _resolved(catalog, pointer)
    except CheckpointNotFound:
        # The fork point may have been deleted since; the job has its copy.
        directory = pointer.removesuffix(f"/{layout.METADATA_FILE_NAME}").rstrip("/")
        if _is_forked_from(catalog, directory) or _is_forked_from(catalog, plain_url(pointer)):
            return None
        if (location := plain()) is not None:
            return location
        raise
    return None if _is_forked_from(catalog, point.pointer) else point


def _resolved(catalog: CheckpointCatalog, pointer: str) -> ForkPoint:
    filesystem = catalog.filesystem
    own = pointer.removeprefix(f"{filesystem.url}/").removesuffix(f"/{layout.METADATA_FILE_NAME}").strip("/")
    if (inside := _INSIDE.fullmatch(own)) is not None:
        # The pointer is in the job's own storage, which may be of any kind, and not only a local file system.
        of_job = CheckpointCatalog(filesystem, inside[1])
        return ForkPoint(of_job, of_job.resolve(inside[2]))
    location = resolve_checkpoint_pointer(pointer, like=filesystem)
    metadata = location.metadata()
    if metadata.kind != SAVEPOINT:
        # The pointer is three directories below its storage: job, lineage and checkpoint.
        above = (
            str(Path(location.external_pointer, "../../..").resolve())
            if isinstance(location.storage, PosixFileSystem)
            else location.external_pointer.rsplit("/", 3)[0]
        )
        filesystem = open_filesystem(above, like=location.storage)
    of_job = CheckpointCatalog(filesystem, metadata.job_name)
    return ForkPoint(of_job, of_job.resolve(location.external_pointer))


def _is_forked_from(catalog: CheckpointCatalog, pointer: str) -> bool:
    """Whether the job began with this very fork, and has no checkpoints of its own yet.

    Raises:
        RestoreRefused: the job has checkpoints of its own.
    """
    chosen = catalog.choice()
    if chosen is None or catalog.given_up() is not None:
        return False
    completed, broken = catalog.completed(chosen[1].job_id)
    own = [item for item in completed if item.kind != FORK]
    if own or broken:
        newest = own[-1].reference if own else "one that cannot be read"
        raise RestoreRefused(
            f"Job {catalog.job_name!r} cannot begin with {pointer}: it has checkpoints of its own, such as {newest}.",
            hint="Launch it without fork_from to go on from them. To fork, give the new job a name of its own, or an "
            "empty checkpoint_path.",
        )
    return any(item.restored_from == pointer for item in completed)


def lay_out_fork(
    point: ForkPoint | PlainLocation,
    directory: Path,
    sink: Sink | None,
    session: SparkSession,
    job_name: str,
    job_id: str,
) -> tuple[CheckpointMetadata, Beginning]:
    """Lay the fork point out as a checkpoint of the new job, ready for a start. Nothing else is touched.

    Args:
        point: the fork point.
        directory: the directory of the start; it does not exist yet, unless a plain location is laid out there.
        sink: the query's sink, ``None`` if checkpoints do not cover it.
        session: the session of the query.
        job_name: the name of the new job.
        job_id: the id of the new job's lineage.

    Returns:
        The manifest that :func:`publish_fork` will publish, except for its id and the places of its files; and what
        the job begins with.

    Raises:
        SinkMismatch: the first job writes to this sink; or the sink does not hold what a plain query has written.
        SinkNotEmpty: the sink has data.
        CheckpointNotFound: the first job deleted the fork point during the read.
        CorruptCheckpoint: the fork point is not what was written.
        StorageError: the storage of the fork point failed.
    """
    beginning = point.lay_out(directory, sink, session)
    (directory / _CHECKPOINT / "metadata").write_text(json.dumps({"id": beginning.query_id}), encoding="utf-8")
    laid_out = replace(
        point.metadata,
        job_name=job_name,
        job_id=job_id,
        kind=FORK,
        restored_from=point.pointer,
        facts=point.metadata.facts.model_copy(update={"query_id": beginning.query_id}),
        sink=beginning.position,
        # Until it is published, a copy of a plain location has no name in the job.
        location=point.pointer if isinstance(point, PlainLocation) else None,
    )
    return laid_out, beginning


def publish_fork(laid_out: CheckpointMetadata, directory: Path, store: CompletedCheckpointStore) -> CheckpointMetadata:
    """Publish what was laid out as the first checkpoint of the new lineage.

    Raises:
        Fenced: a newer run has taken the job over.
        StorageError: the storage failed.
    """
    files = tuple(_files(directory))
    snapshot = Snapshot(laid_out.batch, files, laid_out.facts, laid_out.sink, lambda: None)
    return store.write(store.begin(), snapshot, kind=FORK)


def _check(point: ForkPoint, sink: Sink) -> None:
    recorded = point.metadata.sink
    if recorded is not None and is_same_place(str(recorded.get("path")), sink.path):
        raise SinkMismatch(
            f"The query writes to {sink.path}, which is the sink of {point}: the two jobs would write over each other.",
            hint="Give the forked job a sink of its own.",
        )
    if sink.can_roll_back and not sink.tells_data:
        raise SinkNotEmpty(
            f"The fork of {point} would write to {sink.path}, which is not known to be empty, and a fork puts its sink "
            "back to nothing: what the sink has now would be removed.",
            hint="Give the sink a newest_batch, which tells None for an empty sink, and launch again.",
        )
    if (present := sink.first_data()) is not None:
        raise SinkNotEmpty(
            f"The fork of {point} would write to {sink.path}, which has data, {present} for example: its batches have "
            "the same numbers as those of another job.",
            hint=f"To begin there, {sink.to_empty} or write elsewhere. If this job was forked before and has written "
            "that, launch it without fork_from to go on.",
        )


@contextlib.contextmanager
def _explained(point: ForkPoint) -> Iterator[None]:
    try:
        yield
    except CheckpointNotFound as error:
        raise CheckpointNotFound(
            f"{point} was deleted while it was read, by the retention of its job for example. Nothing was begun.",
            hint=f"Keep one with `dagster-ckpt pin {point.metadata.job_name} latest "
            f"{point.catalog.filesystem.path_option}`, or take a savepoint, and fork from that.",
        ) from error
    except CorruptCheckpoint as error:
        error.hint = (
            f"Fork from another one; `dagster-ckpt verify {point.metadata.job_name} "
            f"{point.catalog.filesystem.path_option}` tells which are whole."
        )
        raise


def _files(directory: Path) -> Iterator[PinnedFile]:
    for file in sorted(file for part in (_CHECKPOINT, _SINK) for file in (directory / part).rglob("*")):
        if file.is_file():
            path = file.relative_to(directory).as_posix()
            yield PinnedFile(path, str(file), file.stat().st_size, recurs="/state/" in path)
