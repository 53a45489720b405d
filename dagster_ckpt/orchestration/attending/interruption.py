"""How an interrupted run ends in Dagster's log: with a sentence that says who ended the run, above the stack."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from dagster_ckpt.clock import SystemClock
from dagster_ckpt.orchestration.attending.own_run import OwnRun

__all__ = ["interrupts_in_words"]

_log = logging.getLogger(__name__)

_TERMINATED = (
    "This run was terminated, which is no failure. The lines above say what became of the query and of the checkpoints."
)
_TOLD_TO_GO = (
    "This run was told to end, and nobody terminated it: its host is shut down, `dagster dev` was stopped, or Dagster "
    "has counted the run as failed while nothing was heard of it. The job's resume sensor launches the next run."
)


@contextmanager
def interrupts_in_words(instance: dg.DagsterInstance, run_id: str) -> Iterator[None]:
    """Have an interrupt say whether somebody has terminated the run.

    The interrupt stays Dagster's own: executors of Dagster know it by its name, and ``except Exception`` around
    ``dg.materialize`` in a script does not swallow it.

    Args:
        instance: the Dagster instance.
        run_id: of this run.

    Raises:
        DagsterExecutionInterruptedError: the run was interrupted.
    """
    try:
        yield
    except (dg.DagsterExecutionInterruptedError, KeyboardInterrupt) as interrupt:
        try:
            is_canceled = OwnRun(instance, run_id, SystemClock()).is_canceled()
        except Exception as error:  # the interrupt counts, whatever Dagster's storage says
            _log.warning("Whether the run was terminated cannot be found out: %s", error)
            raise interrupt from None
        raise dg.DagsterExecutionInterruptedError(_TERMINATED if is_canceled else _TOLD_TO_GO) from None
