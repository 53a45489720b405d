"""A Dagster run, as the run's own process sees it: whether somebody has canceled it, and whether it is over."""

from __future__ import annotations

import logging

import dagster as dg

from dagster_ckpt.clock import Clock

__all__ = ["OwnRun"]

_log = logging.getLogger(__name__)

#: Seconds between two checks of a run's own status in Dagster.
_LOOK = 10.0


class OwnRun:
    """A Dagster run, as the run's own process sees it.

    Args:
        instance: the Dagster instance.
        run_id: of the run.
        clock: monotonic time.
    """

    def __init__(self, instance: dg.DagsterInstance, run_id: str, clock: Clock) -> None:
        self._instance = instance
        self._run_id = run_id
        self._clock = clock
        self._looked_at = clock.monotonic()

    def is_canceled(self) -> bool:
        """Whether a user has canceled the run: Dagster records that before it interrupts the run.

        Any other interrupt ends the process (its host is drained or shut down, ``dagster dev`` is stopped by Ctrl-C),
        and Dagster calls the run failed.
        """
        return self._status() in {dg.DagsterRunStatus.CANCELING, dg.DagsterRunStatus.CANCELED}

    def look(self) -> None:
        """Check the run's status in Dagster from time to time, and end the run when Dagster counts it as over.

        The run was marked as over while it showed no sign of life. Then nobody can terminate the run in
        Dagster any more, and no other run can continue the job while this one lives.

        Raises:
            DagsterExecutionInterruptedError: Dagster counts the run as over.
        """
        now = self._clock.monotonic()
        if now - self._looked_at < _LOOK:
            return
        self._looked_at = now
        if (status := self._status()) in {dg.DagsterRunStatus.CANCELED, dg.DagsterRunStatus.FAILURE}:
            _log.warning("Dagster counts this run as %s already, so the run stops", status.value)
            raise dg.DagsterExecutionInterruptedError

    def _status(self) -> dg.DagsterRunStatus | None:
        run = self._instance.get_run_by_id(self._run_id)
        return None if run is None else run.status
