"""Tells Dagster what went wrong with a job: the run tells while it lives, and the sensor tells after it."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterable, Iterator

import dagster as dg

from dagster_ckpt.checkpoint import CheckpointCatalog, symptom
from dagster_ckpt.clock import Clock
from dagster_ckpt.errors import CheckpointError, Fenced
from dagster_ckpt.orchestration.events.occurrence import CALM, Happened, Occurrence, is_due, to_tell, told_ids
from dagster_ckpt.orchestration.events.recorded import next_step, recorded
from dagster_ckpt.spark import CheckpointFailed, CheckpointReplaced, EpochClaimed, Event, Restarting, Started

__all__ = ["JobEvents"]

_log = logging.getLogger(__name__)

#: Most reasons of failed checkpoints that are remembered.
_REASONS = 100
#: Seconds after which a run tells again what could not be told.
_AGAIN = 300.0


class JobEvents:
    """Tells what went wrong with a job: observations of its asset, each with the reason and the next step.

    What is on record in the storage is told from there, so that it is told later if nobody could tell it at the time,
    and once, by the run or by the sensor. Telling never fails: an error is logged, and the run tells again later.

    Dagster does not check whether it has an observation already. So in the milliseconds between a look and an
    observation, the run and the sensor may tell the same thing: two observations with the same ``event_id``.

    Args:
        instance: the Dagster instance.
        log_event: where events go: a run's ``context.log_event`` or the instance's runless one.
        asset_key: of the output asset.
        catalog: the job's checkpoints.
        clock: wall and monotonic time.
    """

    def __init__(
        self,
        instance: dg.DagsterInstance,
        log_event: Callable[[dg.AssetObservation], object],
        asset_key: dg.AssetKey,
        catalog: CheckpointCatalog,
        clock: Clock,
    ) -> None:
        self._instance = instance
        self._log_event = log_event
        self._asset_key = asset_key
        self._catalog = catalog
        self._clock = clock
        self._has_claimed = False
        #: What is on no record, and that Dagster has not taken yet.
        self._waiting: list[Occurrence] = []
        self._again_at = math.inf
        #: Of each reason why a checkpoint failed: how often, how often when it was told last, and when it was seen.
        self._failed: dict[str, tuple[int, int, float]] = {}

    def happened(self, event: Event) -> None:
        """Tell of an event of the run, if something went wrong."""
        match event:
            case EpochClaimed():
                self._has_claimed = True
            case Started() | Restarting():
                self.look(goes_on=True)
            case CheckpointReplaced(checkpoint, reason):
                self.look(goes_on=True)
                told = f"{checkpoint} is broken, and a checkpoint salvaged from the run before replaces it: {reason}"
                self._tell_now(Happened.FALLBACK, f"replaced-{checkpoint}", told)
            case CheckpointFailed(number, reason, in_a_row):
                self._checkpoint_failed(number, reason, in_a_row)

    def ended(self, error: CheckpointError, run_id: str, *, is_resumed: bool) -> None:
        """Tell that a run ended with ``error``.

        Args:
            error: of the run.
            run_id: of the run.
            is_resumed: somebody resumes the job if this run could not take it over for a while.
        """
        if isinstance(error, Fenced):
            return  # the run that has taken the job over tells of it
        if self._has_claimed or (is_resumed and error.recoverable):
            self.look(goes_on=False, way_on=error.hint)
        else:
            self._tell_now(Happened.REFUSED_START, f"{run_id}-refused", error.message, error.hint)

    def interrupted(self, name: str, reason: str) -> None:
        """Tell that the job is resumed although it did not fail; ``name`` is that of the claim that ended."""
        self.look(goes_on=True)
        self._tell_now(Happened.RESTART, f"{name}-interrupted", reason)

    def tick(self) -> None:
        """Tell again what could not be told while the run goes on."""
        if self._clock.monotonic() >= self._again_at:
            self._again_at = math.inf
            self._tell_waiting()
            self.look(goes_on=True)

    def look(self, *, goes_on: bool, way_on: str = "") -> None:
        """Tell what is on record and was not told.

        Args:
            goes_on: the latest failure is followed by a restart.
            way_on: the next step after the latest failure, where its error has one.
        """
        with self._or_later():
            told = told_ids(self._instance, self._asset_key)
            self._tell(list(to_tell(recorded(self._catalog, told, goes_on=goes_on, way_on=way_on), told)))

    def _checkpoint_failed(self, number: int, reason: str, in_a_row: int) -> None:
        key, now = symptom(reason), self._clock.time()
        times, told, last = self._failed.pop(key, (0, 0, now))
        if now - last > CALM:
            times = told = 0
        times += 1
        if is_due(times, told):
            told = times
            text = f"{reason.removesuffix('.')} ({in_a_row} in a row)"
            self._tell_now(Happened.FAILED_CHECKPOINT, f"checkpoint-{number}-{now:.3f}", text, times=times)
        self._failed[key] = (times, told, now)
        if len(self._failed) > _REASONS:
            del self._failed[next(iter(self._failed))]

    def _tell_now(self, event: Happened, name: str, reason: str, step: str = "", *, times: int = 1) -> None:
        """Tell what is on no record."""
        step = step or next_step(event, self._catalog)
        self._waiting.append(Occurrence(event, name, self._clock.time(), reason, step, times))
        self._tell_waiting()

    def _tell_waiting(self) -> None:
        with self._or_later():
            self._tell(self._waiting)
            self._waiting.clear()

    def _tell(self, occurrences: Iterable[Occurrence]) -> None:
        """Tell what Dagster does not have: somebody else may have told it since the last look."""
        told = told_ids(self._instance, self._asset_key) if occurrences else set()
        for occurrence in occurrences:
            if occurrence.id not in told:
                self._log_event(occurrence.observation(self._asset_key))

    @contextlib.contextmanager
    def _or_later(self) -> Iterator[None]:
        """Around what tells: the job survives whatever goes wrong."""
        try:
            yield
        except Exception:
            _log.exception("What went wrong with job %s is told later", self._catalog.job_name)
            self._again_at = self._clock.monotonic() + _AGAIN
