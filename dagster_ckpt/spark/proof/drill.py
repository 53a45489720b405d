"""A restore drill: the newest checkpoint is restored aside, and the job's query computes one batch from it.

Nothing of the job is touched. The batch goes nowhere, the live location is a copy, no epoch is claimed, and no record
is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from dagster_ckpt.checkpoint import CheckpointCatalog, CheckpointMetadata, find_newest
from dagster_ckpt.clock import Clock, seconds_of
from dagster_ckpt.config import LATEST
from dagster_ckpt.spark.batches import planned_files
from dagster_ckpt.spark.files import CheckpointLocation
from dagster_ckpt.spark.job import StreamingJob
from dagster_ckpt.spark.kafka import KafkaInputs
from dagster_ckpt.spark.live import LOCATION
from dagster_ckpt.spark.preflight import (
    AFTER_IT,
    accepted_in,
    check_unpacked,
    kafka_findings,
    rows_of,
    version_finding,
)
from dagster_ckpt.spark.proof.batch_on_copy import BatchOnCopy
from dagster_ckpt.spark.proof.scratch_copy import Bar, copied, no_bar, nothing_to_copy, scratch_place
from dagster_ckpt.spark.query import check_state_backend, known_providers, make_active
from dagster_ckpt.spark.run import Queries
from dagster_ckpt.spark.upgrading import Upgrading
from dagster_ckpt.spark.verdict import Finding, Preflight

__all__ = ["Drilled", "drill_restore"]


@dataclass(frozen=True, slots=True)
class Drilled:
    """A drill that has succeeded: seconds, and what the batch was.

    Attributes:
        job: the job's name.
        checkpoint: ``{job id}/chk-N``.
        batch: the batch that the drill computed.
        read: what the batch read: ``as planned`` after the checkpoint, ``new input``, or ``nothing new``.
        input_rows: of the batch, ``None`` where Spark did not tell.
        state_rows: keys in the state after the batch, ``None`` where Spark did not tell.
        restored_bytes: of the checkpoint.
        spark_seconds: until Spark was there.
        restore_seconds: until the checkpoint was copied, verified and checked.
        build_seconds: until the query was built.
        batch_seconds: until its first batch was committed.
        age_seconds: how old the checkpoint was when the drill began: what a restore goes back at most.
        batches_behind: batches that were planned after the checkpoint, and run again after a restore.
        files_behind: input files of these batches.
        rows_behind: input rows of these batches, ``None`` where that is not known.
    """

    job: str
    checkpoint: str
    batch: int
    read: str
    input_rows: int | None
    state_rows: int | None
    restored_bytes: int
    spark_seconds: float
    restore_seconds: float
    build_seconds: float
    batch_seconds: float
    age_seconds: float
    batches_behind: int
    files_behind: int
    rows_behind: int | None

    @property
    def recovery_seconds(self) -> float:
        """From the beginning to the first committed batch."""
        took = self.spark_seconds + self.restore_seconds + self.build_seconds + self.batch_seconds
        return round(took, 3)


def drill_restore(
    job: StreamingJob,
    catalog: CheckpointCatalog,
    clock: Clock,
    *,
    scratch_directory: str | Path | None = None,
    timeout: timedelta = timedelta(minutes=30),
    bar: Bar = no_bar,
) -> Drilled:
    """Restore the newest checkpoint of a job aside, and compute one batch of its query. The job may be running.

    The query is that of the version of the code that a start by ``latest`` would run now.

    Args:
        job: the job; its storage is read, and nothing is written there.
        catalog: the job's checkpoints.
        clock: wall and monotonic time.
        scratch_directory: where the copy lies, as of :func:`read_state`.
        timeout: how long the batch may take.
        bar: shows how far the copy is.

    Raises:
        CheckpointNotFound: the job has no checkpoint.
        CorruptCheckpoint: the newest checkpoint is not what was written.
        RestoreRefused: a restore would be refused, or would lose rows.
        QueryNotBuilt: the job's function raised an error.
        QueryFailed: the batch failed, or was not done in time.
        InvalidConfiguration: Spark's executors are on other machines, and no directory that they share is named; or
            the version that the job was cut over to is not here.
        StorageError: the storage failed.
    """
    if (newest := find_newest(catalog)).metadata is None:
        raise nothing_to_copy(catalog, newest.reason)
    began, watch = clock.time(), _Watch(clock)
    spark = job.session()
    place = scratch_place(spark, scratch_directory)
    spark_seconds = watch.lap()

    def check(metadata: CheckpointMetadata) -> None:
        check_state_backend(job.state_backend, metadata)
        if (error := version_finding(metadata.facts.spark_version, spark.version).error) is not None:
            raise error

    prefer = job.config.prefer_checkpoint_for_recovery
    with copied(catalog, LATEST, place, check=check, prefer_checkpoint=prefer, bar=bar) as (restored, directory):
        # Which batches a sink gets twice depends on the running job; preflight checks that after the job is over.
        findings = [item for item in check_unpacked(catalog, restored, directory, LATEST) if item.check != AFTER_IT]
        notes = _accepted(catalog, restored)
        _pass(job, restored, findings, notes)
        known = catalog.records.plans(restored.job_id).after(restored)
        restore_seconds = watch.lap()
        writer = Queries(Upgrading(job, catalog, clock).job_of_next_start(), spark).for_trial(restored)
        with closing(KafkaInputs(writer, clock)) as inputs:
            _pass(job, restored, kafka_findings(restored.facts, inputs, known), notes)
        build_seconds = watch.lap()
        location = CheckpointLocation(directory / LOCATION, known_providers(job.state_backend))
        batch = BatchOnCopy(spark, writer, restored, location, name=f"restore drill of {job.name}", timeout=timeout)
        try:
            read, report = batch.run(known)
        finally:
            make_active(spark)  # as it was before the query was built
        batch_seconds = watch.lap()
    return Drilled(
        job=job.name,
        checkpoint=restored.reference,
        batch=restored.batch + 1,
        read=read,
        input_rows=report.get("numInputRows"),
        state_rows=_sum(report.get("stateOperators") or ()),
        restored_bytes=restored.size,
        spark_seconds=spark_seconds,
        restore_seconds=restore_seconds,
        build_seconds=build_seconds,
        batch_seconds=batch_seconds,
        age_seconds=round(max(began - seconds_of(restored.written_at), 0.0), 3),
        batches_behind=len(known),
        files_behind=sum(len(planned_files(plan)) for plan in known),
        rows_behind=rows_of(known, restored.facts),
    )


def _accepted(catalog: CheckpointCatalog, restored: CheckpointMetadata) -> Sequence[str]:
    """The notes of losses that a start by ``latest`` does not ask about again."""
    _, choice = catalog.choice() or (0, None)
    own = () if choice is None or choice.job_id != restored.job_id else choice.accepted_loss
    return [*restored.facts.accepted_loss, *own]


def _pass(job: StreamingJob, restored: CheckpointMetadata, findings: Sequence[Finding], notes: Sequence[str]) -> None:
    accepted = accepted_in(notes, findings)
    refusal = Preflight(restored.reference, tuple(findings)).refusal(job.config.mode, accepted)
    if refusal is not None:
        raise refusal


class _Watch:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._from = clock.monotonic()

    def lap(self) -> float:
        """Seconds since the last lap."""
        before, self._from = self._from, self._clock.monotonic()
        return round(self._from - before, 3)


def _sum(operators: Sequence[dict[str, Any]]) -> int | None:
    return sum(int(item.get("numRowsTotal") or 0) for item in operators) if operators else None
