"""The asset check ``healthy``: red when nothing resumes a job by itself, yellow when checkpoints do not complete."""

# No `from __future__ import annotations`: Dagster must find a real type on the nested function.

import contextlib
import logging
import math
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import dagster as dg

from dagster_ckpt.checkpoint import CheckpointCatalog, JobState, job_state
from dagster_ckpt.clock import Clock, SystemClock, iso
from dagster_ckpt.config import CheckpointConfig
from dagster_ckpt.errors import CorruptCheckpoint, StorageError
from dagster_ckpt.filesystem import FileSystem
from dagster_ckpt.orchestration.run_settings import JobSettings
from dagster_ckpt.shown_text import in_one_line, redacted
from dagster_ckpt.spark import CheckpointCompleted, CheckpointDue, Event, Restarting, Started

__all__ = ["CHECK", "HealthWatch", "evaluation", "goes_past_damage", "healthy_check", "refused", "reported", "stuck_by"]

_log = logging.getLogger(__name__)

#: The name of the check.
CHECK = "healthy"
#: Seconds between two looks of a run at its own job; in a bucket, where a look costs some listings, the second figure
#: holds while the job is healthy and nothing happens.
_LOOK, _QUIET = 60.0, 3600.0
#: Tells the config of a run, by the run's id; asked only where the verdict depends on the config.
_ConfigOf = Callable[[str | None], CheckpointConfig]


def healthy_check(
    key: dg.AssetKey,
    job_name: str,
    storage_key: str,
    settings: JobSettings,
    op_name: str,
    most_restarts_per_hour: int | None,
) -> dg.AssetChecksDefinition:
    """The check of one job: an operator or a schedule may run it; runs of the job and the sensor report it too.

    Args:
        key: of the output asset.
        job_name: the job's stable name.
        storage_key: resource key of the checkpoint storage.
        settings: of the job: how long it may be without a new checkpoint, unless its run says otherwise.
        op_name: of the query.
        most_restarts_per_hour: with more restarts the job is not healthy; ``None`` for any number.
    """

    def healthy(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        catalog = getattr(context.resources, storage_key).catalog(job_name)
        config_of = partial(settings.config_now, context.instance, op_name)
        found = evaluation(key, catalog, SystemClock(), config_of, most_restarts_per_hour)
        return dg.AssetCheckResult(
            passed=found.passed, severity=found.severity, metadata=found.metadata, description=found.description
        )

    decorate = dg.asset_check(
        asset=key,
        name=CHECK,
        description="Red when the job has ended FAILED, its records are damaged, or it cannot go on from its newest "
        "checkpoint: nothing resumes it by itself. Yellow when a checkpoint that is due has not completed for too "
        "long, the job restarts too often, or the newest checkpoint is damaged while the job goes on.",
        required_resource_keys={storage_key},
    )
    return decorate(healthy)


def evaluation(
    key: dg.AssetKey,
    catalog: CheckpointCatalog,
    clock: Clock,
    config_of: _ConfigOf,
    most_restarts_per_hour: int | None,
    *,
    refusal: str | None = None,
) -> dg.AssetCheckEvaluation:
    """What the check says of a job now.

    Args:
        key: as for :func:`healthy_check`.
        catalog: the job's checkpoints.
        clock: of this host.
        config_of: the config of the run that has claimed the job, by the run's id.
        most_restarts_per_hour: as for :func:`healthy_check`.
        refusal: why the sensor cannot launch the run that resumes the job, and the next step; empty if the sensor
            launches the run; ``None`` for a caller that does not know.

    Raises:
        StorageError: the storage failed.
    """
    found = job_state(catalog, clock)
    stuck = stuck_by(found, catalog, config_of) if refusal is None else refusal
    ended = refused(stuck) if stuck else f"{found.state}{found.reason and f': {found.reason}'}{_way_on(found)}"
    needs_help = found.needs_help or bool(stuck)
    troubles = [] if needs_help else _troubles(found, config_of, most_restarts_per_hour, clock.time())
    return dg.AssetCheckEvaluation(
        asset_key=key,
        check_name=CHECK,
        passed=not needs_help and not troubles,
        severity=dg.AssetCheckSeverity.WARN if troubles else dg.AssetCheckSeverity.ERROR,
        metadata=_metadata(found, clock),
        description=in_one_line(redacted(" ".join(troubles) or ended)),
    )


def stuck_by(found: JobState, catalog: CheckpointCatalog, config_of: _ConfigOf) -> str:
    """Why no run can resume a job that is to be resumed, and the next step; empty if a run can.

    Args:
        found: how the job is doing.
        catalog: the job's checkpoints.
        config_of: as for :func:`evaluation`.

    Raises:
        StorageError: the storage failed.
    """
    if not found.is_stuck:
        return ""
    with contextlib.suppress(CorruptCheckpoint):  # then nobody knows where the last run has left its files, either
        if goes_past_damage(catalog, lambda: config_of(found.run_id)):
            return ""
    return found.damage


def goes_past_damage(catalog: CheckpointCatalog, config: Callable[[], CheckpointConfig]) -> bool:
    """Whether a run can go on although the newest checkpoint is damaged.

    Such a run salvages what the run before it has left on this host, or falls back to an older checkpoint.

    Args:
        catalog: the job's checkpoints.
        config: tells that of the run; asked where nothing can be salvaged.

    Raises:
        CorruptCheckpoint: the record of the newest choice cannot be read.
        StorageError: the storage failed.
    """
    from dagster_ckpt.spark import recorded_live  # noqa: PLC0415 - only for jobs with a damaged checkpoint

    chosen = catalog.choice()
    here = None if chosen is None else recorded_live(chosen[1], catalog.filesystem)
    return here is not None or config().fallback_to_older


_REFUSED = "Nothing resumes the job: "


def refused(refusal: str) -> str:
    """What the check says of a job that no run can resume, for this reason."""
    return in_one_line(redacted(f"{_REFUSED}{refusal}"))


def refusal_in(evaluation: dg.AssetCheckEvaluation | None) -> str:
    """What the check says if no run can resume the job; else nothing."""
    said = "" if evaluation is None else evaluation.description or ""
    return said if said.startswith(_REFUSED) else ""


def reported(instance: dg.DagsterInstance, key: dg.AssetKey) -> dg.AssetCheckEvaluation | None:
    """What Dagster has of the check as the last word, ``None`` if there is none, or the check is being run."""
    check = dg.AssetCheckKey(key, CHECK)
    for record in instance.event_log_storage.get_asset_check_execution_history(check, limit=1):
        event = None if record.event is None else record.event.dagster_event
        if event is not None and event.event_type is dg.DagsterEventType.ASSET_CHECK_EVALUATION:
            return event.asset_check_evaluation_data
    return None


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
        self._quiet = _LOOK
        self._is_due = False
        self._look_at = math.inf
        self._said: tuple[bool, dg.AssetCheckSeverity] | None = None

    def began(self) -> None:
        """The query has started, or a start has failed and the next one is due: the next tick looks at the job."""
        self._look_at = self._clock.monotonic()

    def hears_all(self, storage: FileSystem) -> None:
        """All that happens calls :meth:`happened` or :meth:`beaten`: in a bucket, look seldom while nothing happens."""
        self._quiet = _QUIET if storage.is_distant else _LOOK

    def happened(self, event: Event) -> None:
        """Something happened to the job: look at it soon."""
        self._is_due = isinstance(event, CheckpointDue) or (self._is_due and not isinstance(event, CheckpointCompleted))
        if isinstance(event, Started | Restarting):
            self.began()
        elif self._look_at < math.inf:
            self._look_at = min(self._look_at, self._clock.monotonic() + _LOOK)

    def beaten(self, is_due: bool) -> None:
        """The beat of a driver tells something new: look at the job soon, and often while a checkpoint is due."""
        self._is_due = is_due
        if self._look_at < math.inf:
            self._look_at = min(self._look_at, self._clock.monotonic() + _LOOK)

    def tick(self) -> None:
        """Look at the job from time to time, once a start of its query has succeeded or failed."""
        if self._clock.monotonic() < self._look_at:
            return
        self._look_at = self._clock.monotonic() + _LOOK
        try:
            found = self._evaluate()
        except StorageError as error:
            _log.warning("How the job is doing cannot be found out now, and is looked at again: %s", error)
            return
        if found.passed and not self._is_due:
            self._look_at += self._quiet - _LOOK
        if (said := (found.passed, found.severity)) != self._said:
            self._report(found)
            self._said = said


def _troubles(found: JobState, config_of: _ConfigOf, most_restarts: int | None, now: float) -> list[str]:
    """What is wrong with a job that goes on by itself, a sentence each, with the next step."""
    told = []
    if found.damage:
        told.append(f"{found.state}, and its newest checkpoint cannot be restored: {_sentence(found.damage)}")
    due = found.due_seconds
    bound = None if due is None else config_of(found.run_id).longest_without_checkpoint
    if due is not None and bound is not None and due > bound.total_seconds():
        failed = found.failed_checkpoints
        why = f" {failed.in_a_row} in a row failed, the last one because: {_sentence(failed.reason)}" if failed else ""
        told.append(
            f"{found.state}, and a checkpoint has been due for {timedelta(seconds=round(due))} that has "
            f"not completed; {bound} is borne.{why} See whether a batch hangs (Spark's UI, the run's log) and whether "
            "the checkpoint storage answers and has space."
        )
    restarts = found.failures_in_the_last_hour(now)
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
        "failures_in_the_last_hour": found.failures_in_the_last_hour(now),
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
    if not found.has_failed:
        return ""
    damage = found.damage and f" But its newest checkpoint cannot be restored: {found.damage}"
    return f". Mend the cause, and launch the job with restore_from: latest.{damage}"
