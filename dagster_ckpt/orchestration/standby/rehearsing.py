"""The rehearsal of a standby, as its run tells of it: once, after the standby is warm, and never in the way."""

from __future__ import annotations

import contextvars
import logging
from collections.abc import Callable
from functools import partial
from threading import Event as Flag
from threading import Thread
from time import monotonic

import dagster as dg

from dagster_ckpt.checkpoint import CheckpointCatalog
from dagster_ckpt.orchestration import names
from dagster_ckpt.orchestration.checkpointed_asset import CheckpointedStreamingAsset
from dagster_ckpt.orchestration.events import say
from dagster_ckpt.shown_text import redacted
from dagster_ckpt.spark import StreamingJob, rehearse

__all__ = ["Rehearsal", "Rehearsing"]

#: Seconds for which a takeover waits for the end of a rehearsal.
_PATIENCE = 10.0


class Rehearsing:
    """The rehearsal of one standby.

    Args:
        context: of the run.
        asset: of the job.
        catalog: the job's checkpoints.
        job: makes the job that the run will drive.
    """

    def __init__(
        self,
        context: dg.AssetExecutionContext,
        asset: CheckpointedStreamingAsset,
        catalog: CheckpointCatalog,
        job: Callable[[], StreamingJob],
    ) -> None:
        self._context, self._catalog, self._job = context, catalog, job
        self._is_due = asset.rehearses and names.REHEARSAL_TAG not in context.run.tags
        self._under_way: Rehearsal | None = None

    def go_on(self, *, may_begin: bool) -> None:
        """Begin if that is due, and tell how it went once it is over."""
        if self._is_due and may_begin:
            self._is_due = False
            # A standby that dies now is followed by one that does not rehearse.
            if self._is_tagged(names.BEGUN):
                self._under_way = Rehearsal(self._rehearse)
        if self._under_way is not None and self._under_way.is_over:
            done, self._under_way = self._under_way.outcome, None
            if isinstance(done, str):
                say(self._context.log, logging.INFO, f"The standby has rehearsed: {done}.")
            else:
                said = redacted(str(done))
                text = f"The standby is warm, and has not rehearsed the query: {said}"
                say(self._context.log, logging.WARNING, text)
            self._is_tagged(names.DONE if isinstance(done, str) else names.FAILED)

    def gives_way(self) -> bool | None:
        """Have the session free: whether it is; ``None`` when the rehearsal does not end."""
        if self._under_way is None or self._under_way.is_over:
            return True
        return False if self._under_way.cut() < _PATIENCE else None

    def end(self) -> None:
        """End it, and wait a moment until its copy is deleted."""
        if self._under_way is not None:
            self._under_way.cut()
            self._under_way.join(_PATIENCE)

    def _is_tagged(self, state: str) -> bool:
        """Tag the run; whether Dagster's storage took that."""
        try:
            self._context.instance.add_run_tags(self._context.run.run_id, {names.REHEARSAL_TAG: state})
        except Exception as error:  # whatever the storage raises
            text = f"The rehearsal of the standby cannot be tagged as {state}: {redacted(str(error))}"
            say(self._context.log, logging.WARNING, text)
            return False
        return True

    def _rehearse(self, cut: Flag) -> str:
        done = rehearse(self._job(), self._catalog, cut)
        return f"the batch after {done.checkpoint}, {done.times} times on a copy, in {done.seconds} s"


class Rehearsal:
    """A rehearsal under way, on a thread of its own.

    Args:
        rehearse: takes the flag that tells it to end; returns what it has done, for people.

    Attributes:
        outcome: what was done, or the error; ``None`` while it is under way.
    """

    def __init__(self, rehearse: Callable[[Flag], str]) -> None:
        self.outcome: str | Exception | None = None
        self._rehearse = rehearse
        self._cut = Flag()
        self._cut_at: float | None = None
        # What the job's function asks of this thread's context, it finds there, too.
        run = partial(contextvars.copy_context().run, self._run)
        self._thread = Thread(target=run, name="dagster-ckpt-rehearsal", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # there can be no more threads, and nobody needs the rehearsal
            self.outcome = error

    @property
    def is_over(self) -> bool:
        """Whether the session is free."""
        return not self._thread.is_alive()

    def cut(self) -> float:
        """Tell the rehearsal to end; returns the seconds since it was first told so."""
        self._cut.set()
        self._cut_at = self._cut_at or monotonic()
        return monotonic() - self._cut_at

    def join(self, seconds: float) -> None:
        """Wait until it is over, or so long."""
        if not self.is_over:
            self._thread.join(seconds)

    def _run(self) -> None:
        try:
            self.outcome = self._rehearse(self._cut)
        except Exception as error:  # whatever the job's function raises: nobody needs the rehearsal
            self.outcome = error
