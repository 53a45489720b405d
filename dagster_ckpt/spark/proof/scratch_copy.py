"""A disposable copy of a checkpoint. The checkpoint's own files are read and never changed."""

from __future__ import annotations

import json
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from dagster_ckpt.checkpoint import (
    CheckpointCatalog,
    CheckpointMetadata,
    FileEntry,
    Take,
    materialize_checkpoint,
    read_newest,
)
from dagster_ckpt.config import LATEST
from dagster_ckpt.errors import CheckpointNotFound, InvalidConfiguration, WorkingDirectoryFailed
from dagster_ckpt.filesystem import scratch_directory, unheard
from dagster_ckpt.spark.files import prepare_location
from dagster_ckpt.spark.jvm import IN_THIS_PROCESS
from dagster_ckpt.spark.live import LOCATION

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Bar", "copied", "no_bar", "nothing_to_copy", "scratch_place"]

Bar: TypeAlias = "Callable[[str, int], AbstractContextManager[Callable[[int], object]]]"
"""Shows how far a copy is: opened with what is under way and all its bytes, and told the bytes of each part."""


def no_bar(_what: str, _size: int) -> AbstractContextManager[Callable[[int], object]]:
    """Shows nothing."""
    return nullcontext(unheard)


def scratch_place(spark: SparkSession, named: str | Path | None) -> Path:
    """Where copies lie: the directory that the caller has named, or the temporary directory of this machine.

    Raises:
        InvalidConfiguration: no directory is named, and Spark's executors are on other machines.
    """
    master = str(spark.sparkContext.master)
    if named is None and not IN_THIS_PROCESS.match(master):
        raise InvalidConfiguration(
            f"A copy of the checkpoint must lie where every executor of {master} reaches it, and no such directory is "
            "named.",
            hint="Name it as scratch_directory, or use a Spark with the master local[*].",
        )
    return Path(tempfile.gettempdir() if named is None else named)


@contextmanager
def copied(
    catalog: CheckpointCatalog,
    checkpoint: str,
    place: Path,
    *,
    check: Callable[[CheckpointMetadata], object],
    wanted: Callable[[FileEntry], bool] = lambda _: True,
    prefer_checkpoint: bool = True,
    bar: Bar = no_bar,
    take: Take | None = None,
) -> Iterator[tuple[CheckpointMetadata, Path]]:
    """Copy a checkpoint into a new directory, verified on the way; the directory is removed at the end.

    Spark takes the copy for another query: it has a query id of its own, so a start of it stops no running query.

    Args:
        catalog: the job's checkpoints.
        checkpoint: ``latest``, or a checkpoint as ``restore_from`` names it.
        place: the directory to make the copy's directory in; left-overs of dead processes in it are removed.
        check: raises if the checkpoint cannot be used; called before anything is copied.
        wanted: which files are copied.
        prefer_checkpoint: as of :func:`~dagster_ckpt.checkpoint.find_newest`.
        bar: shows how far the copy is.
        take: as of :func:`~dagster_ckpt.checkpoint.materialize_checkpoint`; what it gives is not changed in its place.

    Returns:
        the checkpoint, and the directory; the checkpointLocation is the directory ``checkpoint`` in it.

    Raises:
        CheckpointNotFound: there is no such checkpoint.
        CorruptCheckpoint: the checkpoint is not what was written.
        StorageError: the storage failed.
        WorkingDirectoryFailed: the copy cannot be written.
    """
    with ExitStack() as left:
        try:
            directory = left.enter_context(scratch_directory(place))
        except OSError as error:
            raise WorkingDirectoryFailed(
                f"No copy of the checkpoint can be made in {place}: {error}.",
                hint="Name another directory as scratch_directory.",
            ) from error
        copy = directory / "copy"

        def make(metadata: CheckpointMetadata) -> None:
            check(metadata)
            shutil.rmtree(copy, ignore_errors=True)
            part = replace(metadata, files=tuple(filter(wanted, metadata.files)))
            with bar(f"Copying {metadata.name}", part.size) as told:
                materialize_checkpoint(catalog, part, copy, told, take)

        metadata = _made(catalog, checkpoint, make, prefer_checkpoint=prefer_checkpoint)
        own = copy / LOCATION / "metadata"
        own.unlink(missing_ok=True)
        own.write_text(json.dumps({"id": str(uuid.uuid4())}), encoding="utf-8")
        prepare_location(copy / LOCATION)
        yield metadata, copy


def _made(
    catalog: CheckpointCatalog,
    checkpoint: str,
    make: Callable[[CheckpointMetadata], None],
    *,
    prefer_checkpoint: bool,
) -> CheckpointMetadata:
    if checkpoint != LATEST:
        make(metadata := catalog.resolve(checkpoint))
        return metadata
    newest, _ = read_newest(catalog, make, prefer_checkpoint=prefer_checkpoint)
    if newest.metadata is None:
        raise nothing_to_copy(catalog, newest.reason)
    return newest.metadata


def nothing_to_copy(catalog: CheckpointCatalog, reason: str) -> CheckpointNotFound:
    """The error for a job that has no checkpoint."""
    return CheckpointNotFound(
        f"Job {catalog.job_name!r} has no checkpoint in {catalog.filesystem.url}: {reason}.",
        hint=f"See what there is with `dagster-ckpt list {catalog.filesystem.path_option}`.",
    )
