"""Running jobs outside Dagster: several at once, supervised by this process only."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dagster_ckpt.checkpoint import CheckpointMetadata
from dagster_ckpt.clock import SystemClock
from dagster_ckpt.config import LATEST, NONE, JobStatus, RestoreRequest
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


def run_jobs(jobs: Sequence[StreamingJob], request: RestoreRequest) -> JobExecutionResult:
    """Run jobs until all have ended.

    Args:
        jobs: the jobs to run.
        request: what they begin with; only a single job can begin with a checkpoint that is named.

    Raises:
        InvalidConfiguration: a checkpoint, a number of state partitions or places of topics are named for several jobs.
        CheckpointError: the first job's failure; its notes tell the failures of other jobs.
    """
    named = request.fork_from or request.restore_from
    if named not in {LATEST, NONE} and len(jobs) > 1:
        raise InvalidConfiguration(
            f"{named} is a checkpoint of one job, and there are {len(jobs)}: {', '.join(job.name for job in jobs)}.",
            hint="Execute the query to be restored in an environment of its own.",
        )
    if request.state_partitions is not None and len(jobs) > 1:
        raise InvalidConfiguration(
            f"state_partitions is for the state of one query, and there are {len(jobs)}: "
            f"{', '.join(job.name for job in jobs)}.",
            hint="Execute the query whose state is to be repartitioned in an environment of its own.",
        )
    if request.start_sources is not None and len(jobs) > 1:
        raise InvalidConfiguration(
            f"start_sources is for the topics of one query, and there are {len(jobs)}: "
            f"{', '.join(job.name for job in jobs)}.",
            hint="Execute the query whose topics are to be read from elsewhere in an environment of its own.",
        )
    job_ids: dict[str, str] = {}
    starts = [_start(job, request) for job in jobs]
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


def _start(job: StreamingJob, request: RestoreRequest) -> Callable[[Callable[[_Told], None]], StreamingRun]:
    def start(emit: Callable[[_Told], None]) -> StreamingRun:
        return StreamingRun(
            job,
            run_id=uuid.uuid4().hex,
            request=request,
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
