"""How an interrupted run ends in Dagster's log: with a sentence, where Dagster would show stack traces of its own."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg
from dagster._core.errors import DagsterUserCodeProcessError
from dagster_shared.error import SerializableErrorInfo

from dagster_ckpt.clock import SystemClock
from dagster_ckpt.orchestration.attending.own_run import OwnRun

__all__ = ["InterruptedRun", "interrupts_in_words"]

_log = logging.getLogger(__name__)

_TERMINATED = (
    "This run was terminated, which is no failure. The lines above say what became of the query and of the checkpoints."
)
_TOLD_TO_GO = (
    "This run was told to end, and nobody terminated it: its host is shut down, for example, or `dagster dev` was "
    "stopped. The job's resume sensor launches the next run."
)


class InterruptedRun(dg.DagsterExecutionInterruptedError, DagsterUserCodeProcessError):
    """The interrupt of a run, as Dagster raised it, with a sentence in place of the stack.

    Dagster takes it for an interrupt: the step is not tried again, hooks of a failure are not called, and a run that
    was terminated ends as CANCELED. Of an error that comes from another process Dagster shows what that process said,
    instead of the stack of the process that heard it.

    Args:
        reason: the sentence.
    """

    def __init__(self, reason: str) -> None:
        # By this name the multiprocess executor knows that a step was interrupted.
        said = SerializableErrorInfo(f"{reason}\n", [], dg.DagsterExecutionInterruptedError.__name__)
        super().__init__(reason, user_code_process_error_infos=[said])  # type: ignore[no-untyped-call]


@contextmanager
def interrupts_in_words(instance: dg.DagsterInstance, run_id: str) -> Iterator[None]:
    """Have Dagster show a sentence for an interrupt, and not the place where the interrupt found this thread.

    Args:
        instance: the Dagster instance.
        run_id: of this run.

    Raises:
        InterruptedRun: the run was interrupted.
    """
    try:
        yield
    except (dg.DagsterExecutionInterruptedError, KeyboardInterrupt) as interrupt:
        try:
            is_canceled = OwnRun(instance, run_id, SystemClock()).is_canceled()
        except Exception as error:  # the interrupt counts, whatever Dagster's storage says
            _log.warning("Whether the run was terminated cannot be found out: %s", error)
            raise interrupt from None
        raise InterruptedRun(_TERMINATED if is_canceled else _TOLD_TO_GO) from None
