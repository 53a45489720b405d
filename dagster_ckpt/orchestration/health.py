"""The asset check ``healthy``: red when a job has ended FAILED, yellow when checkpoints do not complete."""

# No `from __future__ import annotations`: Dagster must find a real type on the nested function.

import math
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import dagster as dg

from dagster_ckpt.checkpoint import CheckpointCatalog, JobState, job_state
from dagster_ckpt.clock import Clock, SystemClock, iso
from dagster_ckpt.config import CheckpointConfig
from dagster_ckpt.shown_text import in_one_line, redacted

__all__ = ["CHECK", "HealthWatch", "evaluation", "healthy_check"]

#: The name of the check.
CHECK = "healthy"
#: Seconds between two looks of a run at its own job.
_LOOK = 60.0
_HOUR = 3600.0


def healthy_check(
    key: dg.AssetKey, job_name: str, storage_key: str, config: CheckpointConfig, most_restarts_per_hour: int | None
) -> dg.AssetChecksDefinition:
    """The check of one job: an operator or a schedule may run it; runs of the job and the sensor report it too.

    Args:
        key: of the output asset.
        job_name: the job's stable name.
        storage_key: resource key of the checkpoint storage.
        config: tells how long a job may be without a new checkpoint.
        most_restarts_per_hour: with more restarts the job is not healthy; ``None`` for any number.
    """

    def healthy(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        catalog = getattr(context.resources, storage_key).catalog(job_name)
        found = evaluation(key, catalog, SystemClock(), config, most_restarts_per_hour)
        return dg.AssetCheckResult(
            passed=found.passed, severity=found.severity, metadata=found.metadata, description=found.description
        )

    decorate = dg.asset_check(
        asset=key,
        name=CHECK,
        description="Red when the job has ended FAILED or its records are damaged: nothing resumes it by itself. "
        "Yellow when a checkpoint that is due has not completed for too long, or the job restarts too often.",
        required_resource_keys={storage_key},
    )
    return decorate(healthy)


def evaluation(
    key: dg.AssetKey,
    catalog: CheckpointCatalog,
    clock: Clock,
    config: CheckpointConfig,
    most_restarts_per_hour: int | None,
) -> dg.AssetCheckEvaluation:
    """What the check says of a job now; arguments as for :func:`healthy_check`.

    Raises:
        StorageError: the storage failed.
    """
    found = job_state(catalog, clock)
    ended = f"{found.state}{found.reason and f': {found.reason}'}{_way_on(found)}"
    troubles = [] if found.needs_help else _troubles(found, config, most_restarts_per_hour, clock.time())
    return dg.AssetCheckEvaluation(
        asset_key=key,
        check_name=CHECK,
        passed=not found.needs_help and not troubles,
        severity=dg.AssetCheckSeverity.WARN if troubles else dg.AssetCheckSeverity.ERROR,
        metadata=_metadata(found, clock),
        description=in_one_line(redacted(" ".join(troubles) or ended)),
    )


class HealthWatch:
    """Reports the check of a job that runs, when what it says has changed.

    Args:
        evaluate: what the check says now.
        report: hands it to Dagster.
        clock: monotonic time.
    """

    def __init__(
        self,
        evaluate: Callable[[], dg.AssetCheckEvaluation],
        report: Callable[[dg.AssetCheckEvaluation], object],
        clock: Clock,
    ) -> None:
        self._evaluate = evaluate
        self._report = report
        self._clock = clock
        self._look_at = math.inf
        self._said: tuple[bool, dg.AssetCheckSeverity] | None = None

    def began(self) -> None:
        """The query has started: the next tick looks at the job."""
        self._look_at = self._clock.monotonic()

    def tick(self) -> None:
        """Look at the job from time to time, once its query has started."""
        if self._clock.monotonic() < self._look_at:
            return
        self._look_at = self._clock.monotonic() + _LOOK
        found = self._evaluate()
        if (said := (found.passed, found.severity)) != self._said:
            self._report(found)
            self._said = said


def _troubles(found: JobState, config: CheckpointConfig, most_restarts: int | None, now: float) -> list[str]:
    """What is wrong with a job that goes on by itself, a sentence each, with the next step."""
    told = []
    bound = config.longest_without_checkpoint
    if bound is not None and found.due_seconds is not None and found.due_seconds > bound.total_seconds():
        failed = found.failed_checkpoints
        why = f" {failed.in_a_row} in a row failed, the last one because: {_sentence(failed.reason)}" if failed else ""
        told.append(
            f"{found.state}, and a checkpoint has been due for {timedelta(seconds=round(found.due_seconds))} that has "
            f"not completed; {bound} is borne.{why} See whether a batch hangs (Spark's UI, the run's log) and whether "
            "the checkpoint storage answers and has space."
        )
    restarts = found.failures_within(_HOUR, now)
    if most_restarts is not None and restarts > most_restarts:
        told.append(
            f"{found.state}, and it failed {restarts} times in the last hour; {most_restarts} restarts an hour are "
            f"borne. The last failure: {_sentence(found.failures[-1].reason)} Mend its cause: the "
            "job goes on by itself until the restart strategy ends it."
        )
    return told


def _sentence(reason: str) -> str:
    return f"{reason.removesuffix('.')}."


def _metadata(found: JobState, clock: Clock) -> dict[str, Any]:
    now = clock.time()
    last, failed = (found.failures[-1] if found.failures else None), found.failed_checkpoints
    known: dict[str, Any] = {
        "state": found.state,
        "run": found.run_id,
        "failures": len(found.failures),
        "failures_in_the_last_hour": found.failures_within(_HOUR, now),
        "last_failure": None if last is None else in_one_line(redacted(last.reason)),
        "last_failure_at": None if last is None else dg.MetadataValue.timestamp(datetime.fromisoformat(iso(last.at))),
        "failed_checkpoints_in_a_row": None if failed is None else failed.in_a_row,
        "last_failed_checkpoint": None if failed is None else in_one_line(redacted(failed.reason)),
        "checkpoint_due_seconds": None if found.due_seconds is None else round(found.due_seconds, 1),
        "checkpoint": None if found.newest is None else found.newest.reference,
        "checkpoint_age_seconds": found.age(now),
    }
    return {key: value for key, value in known.items() if value is not None}


def _way_on(found: JobState) -> str:
    return ". Mend the cause, and launch the job with restore_from: latest." if found.has_failed else ""
