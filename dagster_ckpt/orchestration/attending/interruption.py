"""How an interrupted run ends in Dagster's log: with a sentence that says who ended the run, and without a stack."""

from __future__ import annotations

import logging
import multiprocessing
import os
from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg
from dagster._core.errors import DagsterUserCodeProcessError
from dagster_shared.error import SerializableErrorInfo

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


class _WithoutStack(dg.DagsterExecutionInterruptedError, DagsterUserCodeProcessError):
    """Dagster's interrupt of a run, with a sentence in place of the stack.

    Of an error that comes from another process Dagster shows what that process said, instead of the stack of the
    process that heard it.

    Args:
        reason: the sentence.
    """

    def __init__(self, reason: str) -> None:
        # By this name the multiprocess executor knows that a step was interrupted.
        said = SerializableErrorInfo(f"{reason}\n", [], dg.DagsterExecutionInterruptedError.__name__)
        super().__init__(reason, user_code_process_error_infos=[said])  # type: ignore[no-untyped-call]


@contextmanager
def interrupts_in_words(instance: dg.DagsterInstance, run_id: str) -> Iterator[None]:
    """Have an interrupt say whether somebody has terminated the run.

    In a process that Dagster has started for the run, Dagster shows the sentence alone. Elsewhere, and where errors
    are redacted, the interrupt is Dagster's own, with its stack.

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
        reason = _TERMINATED if is_canceled else _TOLD_TO_GO
        raise (
            _WithoutStack(reason) if _may_be_an_exception() else dg.DagsterExecutionInterruptedError(reason)
        ) from None


def _may_be_an_exception() -> bool:
    """Whether the interrupt may be an ``Exception``, too, as it must be to have no stack.

    An ``except Exception`` around ``dg.materialize`` in a script would swallow it; no script is around a run in a
    process that Dagster's launcher or executor has spawned. Redacted, its name no longer tells executors what it is.
    """
    redacts = os.getenv("DAGSTER_REDACT_USER_CODE_ERRORS", "").lower() in {"1", "true", "t"}
    return multiprocessing.parent_process() is not None and not redacts
