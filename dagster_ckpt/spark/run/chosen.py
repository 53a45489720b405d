"""What a start resumes from, laid out for its query; the sink that the query is to have with it; the start itself."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_ckpt.checkpoint import (
    CheckpointMetadata,
    Choice,
    CompletedCheckpointStore,
    FellBack,
    Newest,
    PlanArchiveWriter,
    PlannedBatch,
)
from dagster_ckpt.errors import CheckpointError
from dagster_ckpt.filesystem import share_start
from dagster_ckpt.paths import is_same_place
from dagster_ckpt.spark.events import Started
from dagster_ckpt.spark.kafka import KafkaInputs
from dagster_ckpt.spark.live import LiveLocation
from dagster_ckpt.spark.plain import PlainLocation
from dagster_ckpt.spark.preflight import Passed, is_sink_of
from dagster_ckpt.spark.run.built_query import BuiltQuery
from dagster_ckpt.spark.run.fork import ForkPoint, lay_out_fork
from dagster_ckpt.spark.sinks import Sink, recorded_sink
from dagster_ckpt.stored_json import Json, believed, parsed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["Checked", "Chosen", "Prepared", "lay_out"]

_SINK = "sink"


@dataclass(frozen=True, slots=True)
class Chosen:
    """What a start resumes from.

    Attributes:
        previous: the choice of the previous start.
        fork: the checkpoint of another job, or the plain checkpointLocation, that this job begins with.
        target: the checkpoint, or nothing.
        job_id: the lineage.
        claimed: the savepoint that the lineage owns and may delete.
        elsewhere: where the rows up to the checkpoint are, if the query now writes to another sink.
        removes: files in the sink that this start removes and that may not be the query's.
        sink_position: as of :class:`~dagster_ckpt.checkpoint.Choice`.
    """

    previous: Choice | None
    fork: ForkPoint | PlainLocation | None
    target: Newest
    job_id: str
    claimed: CheckpointMetadata | None
    elsewhere: str = ""
    removes: Sequence[str] = ()
    sink_position: str | None = None


@dataclass(frozen=True, slots=True)
class Checked:
    """A start that passed its checks.

    Attributes:
        target: what the start resumes from; for a fork, the job's own copy.
        passed: the findings of preflight.
        line: the epoch whose plans this start continues.
        began: when the lineage began to fill its sink from nothing, ``None`` if the lineage has a checkpoint.
        fell_back: what resuming costs because newer checkpoints are broken.
    """

    target: Newest
    passed: Passed
    line: int | None
    began: float | None
    fell_back: FellBack | None


@dataclass(frozen=True, slots=True)
class Prepared:
    """A start that is verified and on record, ready to run.

    Attributes:
        choice: the recorded choice.
        restored: the checkpoint that the start resumes from, ``None`` for a start from nothing.
        store: the store for the checkpoints of this start.
        directory: the start's directory in the working directory.
        sink: the query's sink, if checkpoints cover it.
        writer: the query, without its checkpointLocation.
        session: the session of the query.
        started: the event that tells about the start.
        ignored: the settings of the state backend that cannot take effect.
        archive: archives the plans of the query's batches.
        replay: plans of the batches that run first, again as they were.
        live: the live location, laid out.
        token: the token of the start's claim.
        inputs: the Kafka sources of the query.
    """

    choice: Choice
    restored: CheckpointMetadata | None
    store: CompletedCheckpointStore
    directory: Path
    sink: Sink | None
    writer: DataStreamWriter
    session: SparkSession
    started: Started
    ignored: Sequence[str]
    archive: PlanArchiveWriter
    replay: Sequence[PlannedBatch]
    live: LiveLocation
    token: str
    inputs: KafkaInputs

    @property
    def after(self) -> int:
        """The batch that the query goes on after, -1 for a start from nothing."""
        return -1 if self.restored is None else self.restored.batch


def lay_out(chosen: Chosen, query: BuiltQuery, live: LiveLocation, directory: Path, job_name: str) -> Chosen:
    """Make the directory of the start, lay out a fork in it, and the position of a sink that is new to the job.

    Raises:
        CheckpointError: as :func:`~dagster_ckpt.spark.run.fork.lay_out_fork`.
    """
    if chosen.fork is not None:
        restored, begins = lay_out_fork(chosen.fork, directory, query.sink, query.session, job_name, chosen.job_id)
        live.prepare(directory)
        target = replace(chosen.target, metadata=restored, job_id=chosen.job_id)
        chosen = replace(chosen, target=target, elsewhere=begins.elsewhere, removes=begins.removes)
    elif chosen.target.metadata is None:
        directory.mkdir(mode=0o700, parents=True)
    elif not is_sink_of(chosen.target.metadata, query.sink):
        chosen = _with_another_sink(chosen, chosen.target.metadata, query, directory)
    share_start(directory)
    return chosen


def _with_another_sink(chosen: Chosen, restored: CheckpointMetadata, query: BuiltQuery, directory: Path) -> Chosen:
    """Add the position of the new sink if the job may move there. Otherwise preflight refuses what is chosen."""
    sink = query.sink
    is_new = sink is not None and _is_empty(sink)  # also a table that was dropped and created again since
    before = None if sink is None or is_new else _goes_on(chosen, restored, sink)
    if sink is not None and before is None and not is_new:
        return chosen
    shutil.rmtree(directory / _SINK, ignore_errors=True)  # the position of the sink before
    position = None
    if before is not None and before.sink_position is not None:
        position = _recorded(before.sink_position)
    elif sink is not None:
        position = sink.seed(restored.batch, directory / _SINK, query.session)
    recorded = None if sink is None or sink.seeds_alike else json.dumps(position)
    target = replace(chosen.target, metadata=replace(restored, sink=position))
    return replace(chosen, target=target, elsewhere=_told(restored), sink_position=recorded)


def _goes_on(chosen: Chosen, restored: CheckpointMetadata, sink: Sink) -> Choice | None:
    """The choice of the start before, if it has begun with the same checkpoint and this sink, which was empty then."""
    before = chosen.previous
    same = (
        before is not None
        and (before.job_id, before.restored, before.sink_kind) == (chosen.job_id, restored.reference, sink.kind)
        and before.sink is not None
        and is_same_place(before.sink, sink.path)
        and (sink.seeds_alike or before.sink_position is not None)
    )
    return before if same else None


def _recorded(position: str) -> dict[str, Json]:
    with believed("The position of the sink in the choice of the start before", "Restore a checkpoint by its name."):
        return dict(parsed(position).items())


def _is_empty(sink: Sink) -> bool:
    return sink.tells_data and sink.first_data() is None


def _told(restored: CheckpointMetadata) -> str:
    """The sink of a checkpoint, for people, and which batches it has that the checkpoint does not cover."""
    if restored.sink is None:
        return "the sink before, which checkpoints do not cover"
    told = f"the {restored.sink.get('kind')} sink {restored.sink.get('path')}"
    try:
        if (sink := recorded_sink(restored.sink)) is None:
            return f"{told}; if it has batches after {restored.batch}, these are written a second time"
        newest = sink.newest_batch()
    except (CheckpointError, OSError):
        return f"{told}, which cannot be read"
    if newest is None or newest <= restored.batch:
        return told
    return f"{told}, which has batches up to {newest}: the later ones are written a second time"
