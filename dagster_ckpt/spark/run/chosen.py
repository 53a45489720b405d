"""What a start resumes from, laid out for its query; the sink that the query is to have with it; the start itself."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_ckpt.checkpoint import (
    CheckpointCatalog,
    CheckpointMetadata,
    Choice,
    CompletedCheckpointStore,
    Facts,
    FellBack,
    Newest,
    PlanArchiveWriter,
    PlannedBatch,
)
from dagster_ckpt.config import RestoreRequest
from dagster_ckpt.filesystem import share_start
from dagster_ckpt.spark.batches import KnownPlans, plans_after
from dagster_ckpt.spark.changed_copy import RestoredCopy
from dagster_ckpt.spark.events import Started
from dagster_ckpt.spark.kafka import KafkaInputs
from dagster_ckpt.spark.live import LiveLocation
from dagster_ckpt.spark.moved_sources import move_sources
from dagster_ckpt.spark.plain import PlainLocation
from dagster_ckpt.spark.preflight import Passed, SinkName, goes_on, is_empty, left_elsewhere
from dagster_ckpt.spark.rescale import rescale
from dagster_ckpt.spark.run.built_query import BuiltQuery
from dagster_ckpt.spark.run.fork import ForkPoint, lay_out_fork
from dagster_ckpt.spark.run.starting_point import Began
from dagster_ckpt.spark.sinks import Sink
from dagster_ckpt.stored_json import Json, believed, parsed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["Checked", "Chosen", "Prepared", "change_copy", "lay_out"]

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

    def known_plans(self, catalog: CheckpointCatalog, request: RestoreRequest) -> KnownPlans:
        """Tells which batches come after the target: a fork that is to replay takes those of the first job."""
        if isinstance(self.fork, ForkPoint) and request.replay_to is not None:
            plans = self.fork.plans
            return lambda: (None, plans())
        return partial(plans_after, catalog, self.target)

    def origin(self, catalog: CheckpointCatalog) -> CheckpointCatalog:
        """The checkpoints of the job that took the target: those of ``catalog``, or of the job that is forked."""
        return self.fork.catalog if isinstance(self.fork, ForkPoint) else catalog

    def goes_on_with(self, query: BuiltQuery) -> bool:
        """Whether the start before ran this very query, which can then resume from what that start resumes from."""
        return self.fork is None and self.previous is not None and self.previous.query == query.fingerprint


@dataclass(frozen=True, slots=True)
class Checked:
    """A start that passed its checks.

    Attributes:
        target: what the start resumes from; for a fork, the job's own copy.
        passed: the findings of preflight.
        line: the epoch whose plans this start continues.
        began: the lineage's first start with its sink, ``None`` if the lineage has a checkpoint.
        fell_back: what resuming costs because newer checkpoints are broken.
    """

    target: Newest
    passed: Passed
    line: int | None
    began: Began | None
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
        facts: what the session and the plan of the query tell.
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
    facts: Facts

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
    elif not SinkName.of(query.sink).is_same(SinkName.of_position(chosen.target.metadata.sink)):
        chosen = _with_another_sink(chosen, chosen.target.metadata, query, directory)
    share_start(directory)
    return chosen


def change_copy(
    copy: RestoredCopy,
    request: RestoreRequest,
    checked: Checked,
    session: SparkSession,
    inputs: KafkaInputs,
    move: str | None,
    sink: Sink | None,
) -> Checked:
    """Change the restored copy as asked. The lineage goes on from the checkpoint of that, on a line of its own.

    Args:
        copy: the restored copy.
        request: what is asked.
        checked: the start, which has passed its checks.
        session: the session of the query.
        inputs: the Kafka sources of the query.
        move: what tells the move of sources, if the run was launched with one.
        sink: the query's sink, ``None`` if checkpoints do not cover it.

    Raises:
        CheckpointError: as :func:`~dagster_ckpt.spark.rescale.rescale`, and as
            :func:`~dagster_ckpt.spark.moved_sources.move_sources`.
    """
    if request.state_partitions is not None:
        made = rescale(session, copy, request.state_partitions, sink)
        changed = f"{request.state_partitions} state partitions"
    else:
        made = move_sources(copy, checked.passed.offsets, move or "", inputs)
        changed = "other offsets"
    reason = f"{checked.target.reason}; {made.name} is {copy.restored.name} with {changed}"
    target = replace(checked.target, metadata=made, job_id=made.job_id, reason=reason, otherwise=None)
    return replace(checked, target=target, line=None)


def _with_another_sink(chosen: Chosen, restored: CheckpointMetadata, query: BuiltQuery, directory: Path) -> Chosen:
    """Add the position of the new sink if the job may move there. Otherwise preflight refuses what is chosen."""
    sink, now, before = query.sink, SinkName.of(query.sink), chosen.previous
    is_new = sink is None or is_empty(sink)  # also a table that was dropped and created again since
    is_begun = before is not None and not is_new and goes_on(before, chosen.job_id, restored, now)
    kept = before.sink_position if before is not None and is_begun else None
    if sink is not None and not is_new and not (is_begun and (sink.seeds_alike or kept is not None)):
        return chosen
    shutil.rmtree(directory / _SINK, ignore_errors=True)  # the position of the sink before
    position = None
    if kept is not None:
        position = _recorded(kept)
    elif sink is not None:
        position = sink.seed(restored.batch, directory / _SINK, query.session)
    return replace(
        chosen,
        target=replace(chosen.target, metadata=replace(restored, sink=position)),
        elsewhere=left_elsewhere(before, chosen.job_id, restored, now),
        sink_position=None if sink is None or sink.seeds_alike else json.dumps(position),
    )


def _recorded(position: str) -> dict[str, Json]:
    with believed("The position of the sink in the choice of the start before", "Restore a checkpoint by its name."):
        return dict(parsed(position).items())
