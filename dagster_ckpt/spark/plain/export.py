"""Writing a checkpoint as a plain checkpointLocation, with which Spark alone goes on.

The directory appears whole or not at all. The sink is not touched, so it must stand where the checkpoint does: Spark's
file sink skips a batch whose number is in its log, and says nothing, and other sinks get the batch a second time.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dagster_ckpt.checkpoint import CheckpointCatalog, CheckpointMetadata, materialize_checkpoint
from dagster_ckpt.clock import Clock
from dagster_ckpt.config import STATE_FORMAT_CONF, CheckpointingMode
from dagster_ckpt.errors import (
    CheckpointError,
    InvalidConfiguration,
    JobAlreadyRunning,
    RestoreWithLoss,
    StorageError,
    UnsupportedSpark,
)
from dagster_ckpt.filesystem import make_durable, unheard
from dagster_ckpt.paths import hadoop_path, local_path, split_location
from dagster_ckpt.spark.files import prepare_location
from dagster_ckpt.spark.live import LOCATION
from dagster_ckpt.spark.preflight import check_exported
from dagster_ckpt.spark.query import TIME_ZONE_CONF
from dagster_ckpt.spark.releases import RELEASES, Release, release_of
from dagster_ckpt.spark.sinks import SparkFileSink, recorded_sink
from dagster_ckpt.spark.verdict import Finding, Preflight, Verdict

__all__ = ["Exported", "export_checkpoint"]


@dataclass(frozen=True, slots=True)
class Exported:
    """A checkpointLocation that was written.

    Attributes:
        location: its directory.
        checkpoint: the checkpoint, ``{job id}/chk-N``.
        batch: the last batch that the checkpoint covers.
        planned_batch: the batch after that, if Spark will run it as it was planned.
        files: the number of files.
        size: their bytes.
        spark_version: the Spark that wrote the state; an older one may not read it.
        settings: what the session of the query must set.
        sink: kind and path of the sink, ``None`` if checkpoints do not cover it.
        accepted_loss: lost or doubled rows that the user has accepted.
    """

    location: str
    checkpoint: str
    batch: int
    planned_batch: int | None
    files: int
    size: int
    spark_version: str | None
    settings: Mapping[str, str]
    sink: Mapping[str, str] | None
    accepted_loss: Sequence[str]

    @property
    def code(self) -> Iterator[str]:
        """The lines of a program that let Spark alone go on."""
        for key, value in self.settings.items():
            yield f"spark.conf.set({_quoted(key)}, {_quoted(value)})"
        path = ""
        if self.sink is not None and self.sink["kind"] == SparkFileSink.kind:
            path = f'.option("path", {_quoted(self.sink["path"])})'
        yield f'rows.writeStream{path}.option("checkpointLocation", {_quoted(hadoop_path(Path(self.location)))})'


def export_checkpoint(
    catalog: CheckpointCatalog,
    metadata: CheckpointMetadata,
    to: str,
    *,
    clock: Clock,
    wait: Callable[[float], object],
    allow_loss: bool = False,
    told: Callable[[int], object] = unheard,
) -> Exported:
    """Write a checkpoint as a plain checkpointLocation into the directory ``to``; nothing else is changed.

    Args:
        catalog: the job's checkpoints.
        metadata: the checkpoint.
        to: a directory that does not exist, or is empty.
        clock: wall and monotonic time.
        wait: sleeps for this many seconds, while it is watched whether a run on another host is alive.
        allow_loss: export even if rows would be lost or doubled.
        told: is called with the size of each file, on several threads.

    Raises:
        InvalidConfiguration: ``to`` is no directory of this machine, or has files.
        CheckpointNotFound: the checkpoint was deleted meanwhile.
        CorruptCheckpoint: the checkpoint is not what was written.
        JobAlreadyRunning: a run may drive the job, or the job is to be restarted, or was launched meanwhile.
        SinkMismatch: the sink does not hold what the checkpoint says.
        RestoreWithLoss: rows would be lost or doubled, and ``allow_loss`` was not given.
        UnsupportedSpark: this package does not know the Spark of the checkpoint.
        StorageError: the directory cannot be written.
    """
    release = _release(metadata)
    directory = _new_directory(to)
    heartbeat, dead = catalog.records.heartbeat.watched(clock, wait)
    epoch = catalog.records.epochs.highest()
    scratch = directory.with_name(f".{directory.name}.{uuid.uuid4().hex[:8]}.export")
    try:
        materialize_checkpoint(catalog, metadata, scratch, told)
        prepare_location(scratch / LOCATION, hadoop_path(directory))
        found = [*check_exported(catalog, metadata, scratch, heartbeat, dead, epoch), *_sink_findings(metadata)]
        preflight = Preflight(metadata.reference, tuple(found))
        if (impossible := preflight.refusal(CheckpointingMode.EXACTLY_ONCE, accepted=None)) is not None:
            raise impossible
        if preflight.losses and not allow_loss:
            raise _lossy(metadata, preflight.losses)
        _publish(scratch / LOCATION, directory)
        if catalog.records.epochs.highest() != epoch:
            raise _launched(catalog, directory)
    except CheckpointError:
        raise
    except OSError as error:
        raise StorageError(f"{directory} cannot be written: {error}", hint="Name another directory.") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    facts, sink = metadata.facts, metadata.sink
    kept = release.session_format(facts.state_format, facts.commit_log)
    settings = {STATE_FORMAT_CONF: str(kept) if kept > 1 else None, TIME_ZONE_CONF: facts.time_zone}
    files = [file for file in metadata.files if file.path.startswith(f"{LOCATION}/")]
    return Exported(
        location=str(directory),
        checkpoint=metadata.reference,
        batch=metadata.batch,
        planned_batch=facts.planned_batch,
        files=len(files),
        size=sum(file.size for file in files),
        spark_version=facts.spark_version,
        settings={key: value for key, value in settings.items() if value is not None},
        sink=None if sink is None else {"kind": str(sink.get("kind")), "path": str(sink.get("path"))},
        accepted_loss=[item.reason for item in preflight.losses],
    )


def _release(metadata: CheckpointMetadata) -> Release:
    """The Spark that the checkpoint was taken with, the newest for a checkpoint that does not tell."""
    version = metadata.facts.spark_version
    try:
        return RELEASES[-1] if version is None else release_of(version)
    except UnsupportedSpark as error:
        raise UnsupportedSpark(
            f"{metadata.name} was taken with Spark {version}, which this release of dagster_ckpt does not know.",
            hint="Upgrade dagster_ckpt, and export again.",
        ) from error


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _new_directory(to: str) -> Path:
    if not split_location(to).is_local:
        raise InvalidConfiguration(
            f"A checkpoint is exported to a directory of this machine, and {to} is none.",
            hint="Name a local or mounted directory.",
        )
    directory = local_path(to)
    if directory == directory.parent:
        raise InvalidConfiguration("Nothing can be exported to the root directory.", hint="Name a directory below it.")
    try:
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise InvalidConfiguration(f"{directory} is not empty.", hint="Name a directory that is not there yet.")
        directory.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{directory} cannot be made: {error}", hint="Name another directory.") from error
    return directory


def _sink_findings(metadata: CheckpointMetadata) -> Iterator[Finding]:
    """What plain Spark would do with batches that the sink has and the checkpoint does not cover."""
    check = "later batches"
    sink = None if metadata.sink is None else recorded_sink(metadata.sink)
    if sink is None:
        return
    try:
        newest = sink.newest_batch()
    except CheckpointError as error:
        yield Finding.of_error(check, error)
        return
    if newest is None or newest <= metadata.batch:
        yield Finding.fine(check, f"the {sink.kind} sink {sink.path} has none.")
        return
    is_logged = isinstance(sink, SparkFileSink)
    yield Finding(
        check,
        Verdict.WITH_LOSS,
        f"the {sink.kind} sink {sink.path} has batches up to {newest}, and {metadata.name} covers them up to "
        f"{metadata.batch}: Spark alone would "
        + ("skip those numbers and lose rows." if is_logged else "write those rows a second time."),
        f"Export latest. Or take the later batches back first: launch the job with restore_from: {metadata.reference} "
        "and stop it; then export latest.",
        only_doubles=not is_logged,
    )


def _lossy(metadata: CheckpointMetadata, losses: Sequence[Finding]) -> RestoreWithLoss:
    what = "double rows" if all(item.only_doubles for item in losses) else "lose rows"
    told = " ".join(f"{item.check}: {item.reason}" for item in losses)
    return RestoreWithLoss(
        f"Spark alone would {what} if it went on from {metadata.name}. {told}",
        hint=" ".join([*(item.hint for item in losses if item.hint), "To export nevertheless, add --allow-loss."]),
    )


def _launched(catalog: CheckpointCatalog, directory: Path) -> JobAlreadyRunning:
    """Take back what was written, as far as the disk lets it, and tell so."""
    shutil.rmtree(directory, ignore_errors=True)
    left = f"Delete {directory}, which could not be removed, and do not start a query from there. " * directory.exists()
    return JobAlreadyRunning(
        f"Job {catalog.job_name!r} was launched while it was exported, and goes on from the same checkpoint. "
        f"{'' if left else f'{directory} was removed again.'}".strip(),
        hint=f"{left}Stop the job with `dagster-ckpt stop {catalog.job_name} {catalog.filesystem.path_option}` or by "
        "Terminate; then export latest.",
    )


def _publish(complete: Path, directory: Path) -> None:
    """Move a complete, durable directory to its place, which may be an empty directory."""
    for above, _, names in os.walk(complete):
        for path in (*(Path(above, name) for name in names), Path(above)):
            make_durable(path)
    complete.rename(directory)
    make_durable(directory.parent)
