"""Running jobs outside Dagster: several at once, supervised by this process only."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dagster_ckpt.checkpoint import CheckpointMetadata
from dagster_ckpt.clock import SystemClock
from dagster_ckpt.config import LATEST, NONE, JobStatus, RecoveryClaimMode, RestoreRequest
from dagster_ckpt.errors import InvalidConfiguration
from dagster_ckpt.spark import Event, Started, StreamingJob, StreamingRun, describe, supervise_all

__all__ = ["JobExecutionResult", "QueryResult", "run_jobs"]

_log = logging.getLogger("dagster_ckpt.datastream")


@dataclass(frozen=True, slots=True)
class QueryResult:
    """How the job of one query ended.

    Attributes:
        job_name: the directory of its checkpoints.
        job_id: the lineage of its state; ``None`` if the query never started.
        status: ``FINISHED``, or ``CANCELED``.
        checkpoint: the newest checkpoint left behind, ``None`` if there is none.
    """

    job_name: str
    job_id: str | None
    status: JobStatus
    checkpoint: CheckpointMetadata | None


@dataclass(frozen=True, slots=True)
class JobExecutionResult:
    """How the queries of an environment ended, in the order in which they were added."""

    queries: tuple[QueryResult, ...]


@dataclass(frozen=True, slots=True)
class _Told:
    """An event and its job."""

    job_name: str
    event: Event


def run_jobs(
    jobs: Sequence[StreamingJob], restore_from: str | None, claim_mode: RecoveryClaimMode | None
) -> JobExecutionResult:
    """Run jobs until all have ended.

    Args:
        jobs: the jobs to run.
        restore_from: ``latest`` (also for ``None``), ``none``, or a pointer, which only a single job can take.
        claim_mode: who owns the restored checkpoint or savepoint; ``None`` for the default of its kind.

    Raises:
        InvalidConfiguration: a pointer is given for several jobs.
        CheckpointError: the first job's failure; its notes tell the failures of other jobs.
    """
    if restore_from not in {None, LATEST, NONE} and len(jobs) > 1:
        raise InvalidConfiguration(
            f"{restore_from} is a checkpoint of one job, and there are {len(jobs)}: "
            f"{', '.join(job.name for job in jobs)}.",
            hint="Execute the query to be restored in an environment of its own.",
        )
    job_ids: dict[str, str] = {}
    starts = [_start(job, restore_from or LATEST, claim_mode) for job in jobs]
    outcomes = supervise_all(starts, lambda told: _on_event(told, job_ids))
    failures = {job.name: error for job, outcome in zip(jobs, outcomes, strict=True) if (error := outcome.exception())}
    if failures:
        (_, first), *others = failures.items()
        for name, error in others:
            first.add_note(f"Job {name!r} failed too: {error}")
        raise first
    ended = [(job.name, outcome.result()) for job, outcome in zip(jobs, outcomes, strict=True)]
    return JobExecutionResult(
        tuple(QueryResult(name, job_ids.get(name), result.status, result.newest) for name, result in ended)
    )


def _start(
    job: StreamingJob, restore_from: str, claim_mode: RecoveryClaimMode | None
) -> Callable[[Callable[[_Told], None]], StreamingRun]:
    def start(emit: Callable[[_Told], None]) -> StreamingRun:
        return StreamingRun(
            job,
            run_id=uuid.uuid4().hex,
            request=RestoreRequest(restore_from, claim_mode),
            series=None,
            clock=SystemClock(),
            emit=lambda event: emit(_Told(job.name, event)),
        )

    return start


def _on_event(told: _Told, job_ids: dict[str, str]) -> None:
    for level, text in describe(told.event):
        _log.log(level, "%s: %s", told.job_name, text)
    if isinstance(told.event, Started):
        job_ids[told.job_name] = told.event.job_id
