"""All checks of a start that has a query."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_ckpt.checkpoint import (
    CheckpointCatalog,
    CheckpointMetadata,
    Choice,
    Claim,
    Newest,
    PlannedBatch,
    StateKeys,
)
from dagster_ckpt.clock import SystemClock, iso
from dagster_ckpt.config import LATEST, RestoreRequest
from dagster_ckpt.errors import CheckpointError
from dagster_ckpt.spark.batches import forget_plan
from dagster_ckpt.spark.job import StreamingJob
from dagster_ckpt.spark.kafka import KafkaInputs
from dagster_ckpt.spark.moved_sources import MOVE_CHECK, Places, places_of
from dagster_ckpt.spark.preflight.another_sink import SinkName, elsewhere_finding
from dagster_ckpt.spark.preflight.checkpoint_checks import (
    files_finding,
    in_flight,
    in_flight_batch,
    log_finding,
    others_finding,
    replay_finding,
    version_finding,
    with_in_flight,
)
from dagster_ckpt.spark.preflight.kafka_topics import kafka_findings, kafka_sink_findings, newest_of
from dagster_ckpt.spark.preflight.later_input import later_input_findings
from dagster_ckpt.spark.preflight.query_checks import (
    empty_sink_finding,
    operators_finding,
    partitions_finding,
    query_sink_finding,
    removed_finding,
    sources_finding,
    state_finding,
    state_keys_finding,
)
from dagster_ckpt.spark.preflight.source_directories import directories_finding
from dagster_ckpt.spark.preflight.source_files import CHECK as SOURCE_FILES
from dagster_ckpt.spark.preflight.source_files import SourceFiles, source_finding
from dagster_ckpt.spark.preflight.table_sources import table_findings
from dagster_ckpt.spark.query import WriterPlan
from dagster_ckpt.spark.rescale import Rescale, rescale_finding
from dagster_ckpt.spark.sinks import Sink
from dagster_ckpt.spark.verdict import Finding, Preflight

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["Passed", "ProposedStart", "accepted_in", "pass_preflight"]

_log = logging.getLogger(__name__)

_ACCEPTED = " (accepted "


@dataclass(frozen=True, slots=True)
class ProposedStart:
    """What a start of a query is about to do. The checkpoint's files were verified when they were unpacked.

    Attributes:
        job: the job.
        catalog: the job's checkpoints.
        origin: the checkpoints of the job that took ``target``; for a fork another job.
        claim: the epoch of the start.
        request: what the start was asked to begin with.
        target: the checkpoint, or nothing.
        previous: what the previous start began with.
        directory: where the checkpoint was unpacked.
        writer: the query.
        plan: the plan of the writer.
        state_keys: by what the query keeps state; ``None`` if its plan does not tell.
        sink: the query's sink, ``None`` if checkpoints do not cover it.
        own_sink: whether all data in the sink belongs to this lineage and is written again.
        replay: the batches that must run again with their earlier boundaries.
        known: reads the plans of all batches that were planned after the checkpoint.
        inputs: the Kafka sources of the query.
        spark_version: the version of the running Spark.
        elsewhere: where the rows up to the checkpoint are, if not in this sink.
        removes: files in the sink that the start removes and that may not be the query's.
        on_disk: whether the live location is on a disk.
    """

    job: StreamingJob
    catalog: CheckpointCatalog
    origin: CheckpointCatalog
    claim: Claim
    request: RestoreRequest
    target: Newest
    previous: Choice | None
    directory: Path
    writer: DataStreamWriter
    plan: WriterPlan
    state_keys: Sequence[StateKeys] | None
    sink: Sink | None
    own_sink: bool
    replay: Sequence[PlannedBatch]
    known: Callable[[], Sequence[PlannedBatch]]
    inputs: KafkaInputs
    spark_version: str
    elsewhere: str = ""
    removes: Sequence[str] = ()
    on_disk: bool = True

    @property
    def location(self) -> Path:
        """The directory of the unpacked checkpointLocation."""
        return self.directory / "checkpoint"

    @property
    def ran_last(self) -> str | None:
        """The Spark version of the start whose batches this start goes on with, ``None`` if there is none."""
        previous = self.previous
        goes_on = self.request.restore_from == LATEST and previous is not None and previous.job_id == self.target.job_id
        return previous.spark_version if previous is not None and goes_on else None

    @property
    def can_choose_anew(self) -> bool:
        """Whether batches after the checkpoint may get new boundaries."""
        return self.sink is None or self.sink.can_roll_back

    @property
    def gives_up_in_flight(self) -> bool:
        """Whether the request forbids running any batch again as it was, even the batch in flight."""
        last = self.request.last_replayed(can_roll_back=self.can_choose_anew)
        return self.request.replay_to is not None and last is None


@dataclass(frozen=True, slots=True)
class Passed:
    """A start that passed preflight.

    Attributes:
        preflight: the findings.
        replay: the batches that run again with their earlier boundaries.
        accepted_loss: losses and duplicates in this lineage that the user accepted, for the record.
        offsets: all offsets of each source that starts elsewhere, by Spark's id of the source.
    """

    preflight: Preflight
    replay: Sequence[PlannedBatch]
    accepted_loss: tuple[str, ...]
    offsets: Mapping[str, dict[str, dict[str, int]]] = field(default_factory=dict)


def pass_preflight(start: ProposedStart, now: float) -> Passed:
    """Check a start, and change nothing but what was unpacked for it.

    Args:
        start: what the start is about to do.
        now: seconds since the epoch.

    Raises:
        RestoreWithLoss: rows would be lost (or doubled under ``EXACTLY_ONCE``), and the user has not accepted that.
        CheckpointError: the start is impossible; the error of the worst finding, with all other bad findings.
    """
    restored = start.target.metadata
    plans = _read_again(start, restored)
    places = _places(start, restored, plans)
    found = _checked(start, restored, plans, places)
    preflight = Preflight("nothing" if restored is None else restored.reference, tuple(found))
    before = _accepted_before(start)
    # Each move skips or doubles rows anew, also where an earlier one has told the same numbers.
    standing = [item for item in preflight.losses if item.check != MOVE_CHECK]
    told = accepted_in(before, standing)
    allowed = None if start.request.allow_loss else told
    if (error := preflight.refusal(start.job.config.mode, allowed)) is not None:
        raise error
    accepted = [item for item in preflight.losses if start.request.allow_loss and item.reason not in told]
    note = f"{_ACCEPTED}{iso(now)} by run {start.claim.run_id})"
    notes = (*before, *(f"{item.check}: {item.reason}{note}" for item in accepted))
    replay = start.replay
    if restored is not None and start.gives_up_in_flight and in_flight_batch(start.location, restored.batch):
        forget_plan(start.location, restored.batch + 1)
    if restored is not None and start.can_choose_anew and any(item.check == SOURCE_FILES for item in preflight.losses):
        replay = _choose_anew(start, restored)
    return Passed(preflight, replay, notes, places.offsets)


def _checked(
    start: ProposedStart, restored: CheckpointMetadata | None, plans: Sequence[PlannedBatch], places: Places
) -> list[Finding]:
    job = start.job
    heartbeat = start.catalog.records.heartbeat.read()
    dead = None if heartbeat is None else heartbeat.is_dead(SystemClock())
    others = others_finding(start.catalog, heartbeat, dead, own_epoch=start.claim.epoch)
    if restored is None:
        start.inputs.begin_anew()
        sink = None if start.own_sink else start.sink
        return [
            empty_sink_finding(start.catalog, start.target, sink, asked=start.request.restore_from),
            version_finding(None, start.spark_version, start.ran_last),
            *_without_checkpoint(start, plans),
            *kafka_sink_findings(start.plan),
            others,
            *_rescaled(start, None, ()),
            *places.findings,
        ]
    again = [plan.batch for plan in start.replay]
    if not again and not start.gives_up_in_flight:
        again = in_flight_batch(start.location, restored.batch)
    known = [plan.batch for plan in plans]
    begins_with = None if again or start.request.state_partitions is not None else start.location
    tables, of_tables = table_findings(restored.facts, start.writer, start.plan, start.location)
    now = f"a {start.plan.format} sink" if start.sink is None else str(SinkName.of(start.sink))
    return [
        files_finding(restored),
        log_finding(restored, start.location, start.spark_version, start.replay),
        version_finding(restored.facts.spark_version, start.spark_version, start.ran_last),
        state_finding(job.state_backend, restored),
        *(_rescaled(start, restored, known) or [partitions_finding(job.partitions, restored)]),
        sources_finding(job.name, restored, start.writer, [plan for plan in plans if plan.batch in again], begins_with),
        operators_finding(job.name, restored, start.writer),
        state_keys_finding(restored, start.state_keys),
        query_sink_finding(restored, start.plan, start.sink, start.directory),
        replay_finding(
            restored,
            start.sink,
            None if start.plan.is_transient else start.plan.format,
            again,
            _may_be_written(start, restored, known),
            goes_on=_goes_on(start),
        ),
        directories_finding(
            job.name, restored, start.writer, start.location, gives_up_in_flight=start.gives_up_in_flight
        ),
        source_finding(plans, restored.facts, {*start.inputs.ids, *of_tables}),
        *later_input_findings(start.origin, restored, start.location, plans),
        *tables,
        *_kafka(start, restored, plans, places),
        *places.findings,
        *kafka_sink_findings(start.plan),
        others,
        *([elsewhere_finding(restored, now, start.elsewhere)] if start.elsewhere else []),
        *([removed_finding(start.removes)] if start.removes else []),
    ]


def _without_checkpoint(start: ProposedStart, plans: Sequence[PlannedBatch]) -> list[Finding]:
    """What a lineage without a checkpoint does with the batches that it has planned, if it has planned any."""
    if not plans:
        return []
    again, known = [plan.batch for plan in start.replay], [plan.batch for plan in plans]
    uncovered = None if start.plan.is_transient else start.plan.format
    return [replay_finding(None, start.sink, uncovered, again, known), source_finding(plans, None)]


def _kafka(
    start: ProposedStart, restored: CheckpointMetadata, plans: Sequence[PlannedBatch], places: Places
) -> list[Finding]:
    planned = () if places.offsets else plans  # batches get new boundaries where a source starts elsewhere
    facts = places.moved(restored.facts)
    return kafka_findings(facts, start.inputs, planned, lambda: newest_of(start.catalog), places.partitions)


def _rescaled(start: ProposedStart, restored: CheckpointMetadata | None, known: Sequence[int]) -> list[Finding]:
    """Whether the state can have the number of partitions that was asked for; empty if none was asked for."""
    number = start.request.state_partitions
    if number is None:
        return []
    later = _later(start, restored, known)
    asked = Rescale(number, start.spark_version, start.job.partitions, start.on_disk, start.location, start.sink, later)
    return [rescale_finding(asked, restored)]


def _places(start: ProposedStart, restored: CheckpointMetadata | None, plans: Sequence[PlannedBatch]) -> Places:
    """Where sources start elsewhere, as was asked for."""
    asked = start.request.start_sources
    if asked is None:
        return Places()
    later = _later(start, restored, [plan.batch for plan in plans])
    return places_of(asked, restored, start.inputs, start.sink, later)


def _later(start: ProposedStart, restored: CheckpointMetadata | None, known: Sequence[int]) -> list[int]:
    """The batches that are known to have been planned after the checkpoint."""
    if restored is None:
        return sorted(known)
    written = _may_be_written(start, restored, known)
    return sorted({*known, *written, *in_flight_batch(start.location, restored.batch)})


def _goes_on(start: ProposedStart) -> bool:
    """Whether the job goes on from its newest checkpoint, and its records tell all that it has planned since."""
    if start.request.restore_from != LATEST or start.request.fork_from is not None:
        return False
    try:
        start.known()
    except CheckpointError:
        return False
    return True


def _may_be_written(start: ProposedStart, restored: CheckpointMetadata, known: Sequence[int]) -> Sequence[int]:
    """The batches after the checkpoint that the sink may have, as far as the job's records tell."""
    if start.can_choose_anew:
        return known
    if start.elsewhere or start.origin is not start.catalog:
        return ()  # they went to another sink
    if start.request.restore_from == LATEST or start.request.fork_from is not None:
        return known
    return sorted({*known, *_traces(start.catalog, restored)})


def _traces(catalog: CheckpointCatalog, restored: CheckpointMetadata) -> list[int]:
    """The first and the last batch after a checkpoint, as far as the job's records show; empty if they show none.

    The archive forgets the plans of batches that every retained checkpoint covers. These batches are known from the
    newest checkpoint; if that cannot be read, or is discarded, from the ids that were issued after the restored one.
    """
    newest = newest_of(catalog)
    last = restored.batch if newest is None else newest.batch
    if newest is None and catalog.next_id(restored.job_id, restored) > restored.checkpoint_id + 1:
        last += 1
    try:
        last = max(last, catalog.records.plans(restored.job_id).newest_batch() or 0)
    except CheckpointError:  # plans that cannot be read may be of later batches
        last = max(last, restored.batch + 1)
    return [restored.batch + 1, last] if last > restored.batch else []


def _read_again(start: ProposedStart, restored: CheckpointMetadata | None) -> Sequence[PlannedBatch]:
    """The plans of all batches whose input is read again, with their earlier or with new boundaries, in order."""
    try:
        known = start.known()
    except CheckpointError as error:  # a start without a replay can do without the plans; a replay has read them before
        after = "the beginning" if restored is None else restored.name
        _log.warning("What batches after %s have read is not known: %s", after, error)
        known = ()
    return known if start.replay or restored is None else with_in_flight(known, start.location, restored.batch)


def _accepted_before(start: ProposedStart) -> tuple[str, ...]:
    """The losses accepted in this lineage so far; an older checkpoint records what was accepted until it was taken."""
    restored = start.target.metadata
    notes = [] if restored is None else list(restored.facts.accepted_loss)
    previous = start.previous
    if start.request.restore_from == LATEST and previous is not None and previous.job_id == start.target.job_id:
        notes += previous.accepted_loss
    return tuple(dict.fromkeys(notes))


def accepted_in(notes: Collection[str], findings: Iterable[Finding]) -> set[str]:
    """The reasons of those findings which the user has accepted, as the notes in checkpoints and choices say."""
    losses = [note.rpartition(_ACCEPTED)[0] for note in notes]
    return {item.reason for item in findings if any(map(item.is_accepted, losses))}


def _choose_anew(start: ProposedStart, restored: CheckpointMetadata) -> Sequence[PlannedBatch]:
    """Forget the plans from the first with a missing file on: Spark plans these batches anew from existing files."""
    following = restored.batch + 1
    planned = in_flight(start.location, restored.batch)
    plans = start.replay or ([] if planned is None else [planned])
    first = min(SourceFiles.of(plans).missing, default=None)
    if first is None:
        return start.replay
    _log.warning("Batches from %d on get new boundaries: some of their files are gone", first)
    if first == following and planned is not None:
        forget_plan(start.location, following)
    return [plan for plan in start.replay if plan.batch < first]
