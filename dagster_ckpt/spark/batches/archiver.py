"""Archiving the batch plans of a running query, in the background."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from dagster_ckpt.checkpoint import CheckpointMetadata, PlanArchiveWriter, PlannedBatch
from dagster_ckpt.clock import Clock, Pause
from dagster_ckpt.errors import CheckpointError, Fenced
from dagster_ckpt.spark.batches.plans import PlannedBatches
from dagster_ckpt.threads import Threads

__all__ = ["Archiver"]

_log = logging.getLogger(__name__)

#: Seconds between two looks for new plans, at least. Until the next look, a new plan is in the live location only.
_EVERY = 1.0
#: Seconds that the end of a run waits for the last plans; a writer that hangs in the storage ends with the process.
_LAST = 5.0
_LATER = "What batches read could not be archived and will be tried again: %s"


class Archiver:
    """Archives the batch plans of one query.

    Args:
        plans: reads the plans.
        writer: stores the plans.
        retained: returns the completed checkpoints that exist.
        clock: monotonic time.
        longest: seconds between two looks while no batch is planned.
    """

    def __init__(
        self,
        plans: PlannedBatches,
        writer: PlanArchiveWriter,
        retained: Callable[[], Sequence[CheckpointMetadata]],
        clock: Clock,
        longest: float,
    ) -> None:
        self._plans = plans
        self._writer = writer
        self._retained = retained
        self._lock = threading.Lock()
        self._unsent: list[PlannedBatch] = []
        self._pool = Threads(1, "dagster-ckpt-archive")
        self._pause = Pause(_EVERY, max(_EVERY, longest), clock)
        self._pack = False
        self._running: Future[bool] | None = None

    def tick(self) -> None:
        """Archive due plans in the background; never waits.

        Raises:
            Fenced: a newer run has taken the job over.
        """
        if self._running is not None:
            if not self._running.done():
                return
            future, self._running = self._running, None
            error = future.exception()
            if isinstance(error, Fenced):
                raise error
            if error is not None:
                _log.info(_LATER, error)
            self._pause.begin(changed=error is not None or future.result())
        if self._pack or self._pause.is_over:
            try:
                self._running = self._pool.submit(self._archive, None, pack=self._pack)
            except OSError as error:  # there can be no thread for it
                _log.info(_LATER, error)
                self._pause.begin(changed=True)
            else:
                self._pack = False

    def completed(self) -> None:
        """Note that a checkpoint completed: the next tick packs what was archived before."""
        self._pack = True

    def archive(self, batch: int) -> None:
        """Archive the plans up to ``batch``, which is under way; they are durable on return. Callable from any thread.

        Raises:
            Fenced: a newer run has taken the job over.
            StorageError: the storage failed.
        """
        self._archive(batch, pack=False)

    def close(self) -> None:
        """Archive the remaining plans, as far as the storage and the host allow, and end.

        A run that ends calls this, and why the run ends is what counts.
        """
        # A timeout, and a host without room for a thread, are OSErrors.
        with contextlib.suppress(OSError, CheckpointError):
            self._pool.submit(self._archive, None, pack=False).result(timeout=_LAST)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _archive(self, until: int | None, *, pack: bool) -> bool:
        """Archive new plans; returns whether there were any."""
        with self._lock:
            self._unsent += self._plans.new(until)
            if found := bool(self._unsent):
                self._writer.append(self._unsent)
                self._unsent = []
            if pack:
                self._writer.pack(self._retained())
        return found
