"""Deletes subsumed checkpoints on a thread of its own: neither a checkpoint nor a savepoint waits for a deletion.

Which checkpoints go is decided when a deletion begins. Until then every retained checkpoint is whole, can be pinned,
and lends its files to new checkpoints; a crash before the deletion leaves nothing to repair.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Executor, Future

from dagster_ckpt.checkpoint.taking.retained import Discarded
from dagster_ckpt.checkpoint.taking.store import CompletedCheckpointStore
from dagster_ckpt.config import Retention
from dagster_ckpt.errors import CheckpointError, MustStop
from dagster_ckpt.threads import Threads

__all__ = ["Discards", "discard_within"]

_log = logging.getLogger(__name__)

#: The end of a start waits so many seconds for deletions; a deletion that hangs ends with the process.
_LONGEST = 10.0
_LATER = "Old checkpoints could not be deleted and will be tried again: %s"


class Discards:
    """The deletions that completed checkpoints ask for.

    Args:
        store: deletes the checkpoints.
        retention: which checkpoints stay.
        executor: runs one deletion at a time, in order.
    """

    def __init__(self, store: CompletedCheckpointStore, retention: Retention, executor: Executor) -> None:
        self._store = store
        self._retention = retention
        self._executor = executor
        self._waiting: list[Future[Sequence[Discarded]]] = []
        self._is_behind = False

    def __len__(self) -> int:
        """How many deletions have not ended."""
        return sum(not deletion.done() for deletion in self._waiting)

    def are_behind(self, most: int) -> bool:
        """Whether more than ``most`` deletions have not ended; a warning says when that begins."""
        waiting = len(self)
        if waiting > most and not self._is_behind:
            _log.warning("No checkpoint begins while more than %d deletions of old ones wait; %d do.", most, waiting)
        self._is_behind = waiting > most
        return self._is_behind

    def ask(self) -> None:
        """Have the checkpoints deleted that are not to be retained; returns at once."""
        try:
            self._waiting.append(self._executor.submit(self._store.subsume, self._retention))
        except OSError as error:  # there can be no thread for it
            _log.warning(_LATER, error)

    def collect(self) -> Iterator[Sequence[Discarded]]:
        """The checkpoints that each deletion has deleted which ended since the last call.

        Raises:
            Fenced: a newer run has taken the job over.
        """
        while self._waiting and self._waiting[0].done():
            ended = self._waiting.pop(0)
            if ended.cancelled():
                continue
            error = ended.exception()
            if error is None:
                if discarded := ended.result():
                    yield discarded
            elif isinstance(error, (CheckpointError, OSError)) and not isinstance(error, MustStop):
                _log.warning(_LATER, error)
            else:
                raise error

    def end(self) -> None:
        """Wait a few seconds for the deletions, and begin no other; the next start of the job does what is left."""
        until = time.monotonic() + _LONGEST
        for deletion in self._waiting:
            with contextlib.suppress(TimeoutError, CancelledError):
                deletion.exception(timeout=max(until - time.monotonic(), 0))
        for deletion in self._waiting:
            deletion.cancel()
        if len(self):
            _log.warning(
                "Old checkpoints of %s are still being deleted after %g s; the next start of the job finishes that.",
                self._store.catalog.job_name,
                _LONGEST,
            )


def discard_within(seconds: float, store: CompletedCheckpointStore, reason: str) -> Sequence[Discarded]:
    """Delete every checkpoint of a lineage at the end of its job, and wait so many seconds at most.

    What is deleted later, or not at all before the process ends, is left to whoever finishes the recorded end: the
    resume sensor, the next start, or ``dagster-ckpt sweep``.

    Raises:
        Fenced: a newer run has taken the job over.
        StorageError: the storage failed.
    """
    thread = Threads(1, "dagster-ckpt-discard-all")
    discarding: Future[Sequence[Discarded]] = thread.submit(store.discard_all, reason)
    thread.shutdown(wait=False)
    try:
        return discarding.result(timeout=seconds)
    except TimeoutError:
        if discarding.done():  # the deletion has ended since, or its own failure is a timeout
            return discarding.result()
        _log.warning(
            "The checkpoints of %s are not all deleted after %g s, and the job ends without waiting for more. The "
            "resume sensor, the next start or `dagster-ckpt sweep %s %s` deletes the rest.",
            store.catalog.job_name,
            seconds,
            store.catalog.job_name,
            store.filesystem.path_option,
        )
        return ()
