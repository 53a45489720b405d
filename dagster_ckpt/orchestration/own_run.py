"""What Dagster says of the run that this process is: whether an interrupt is a cancellation, and whether it is over."""

from __future__ import annotations

import logging

import dagster as dg

from dagster_ckpt.checkpoint.clock import Clock

__all__ = ["OwnRun"]

_log = logging.getLogger(__name__)

#: Seconds between two looks.
_LOOK = 10.0


class OwnRun:
    """A Dagster run, as its own process looks at it.

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
        """Whether somebody has canceled it, as Dagster says before it interrupts a run.

        An interrupt without that is the end of a process (its host is drained or shut down, ``dagster dev`` is stopped
        by Ctrl-C), for which Dagster calls the run failed.
        """
        return self._status() in {dg.DagsterRunStatus.CANCELING, dg.DagsterRunStatus.CANCELED}

    def look(self) -> None:
        """End this process's run when Dagster takes it for over, which it asks from time to time.

        It was marked so while it could not be heard of. Nobody can terminate it in Dagster any more, and as long as it
        lives no other run can go on with the job.

        Raises:
            DagsterExecutionInterruptedError: it is over.
        """
        now = self._clock.monotonic()
        if now - self._looked_at < _LOOK:
            return
        self._looked_at = now
        status = self._status()
        if status in {dg.DagsterRunStatus.CANCELED, dg.DagsterRunStatus.FAILURE}:
            _log.warning("Dagster has this run down as %s already, so it stops", status.value)
            raise dg.DagsterExecutionInterruptedError

    def _status(self) -> dg.DagsterRunStatus | None:
        run = self._instance.get_run_by_id(self._run_id)
        return None if run is None else run.status
