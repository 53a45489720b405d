"""Deletes subsumed checkpoints on a thread of its own: neither a checkpoint nor a savepoint waits for a deletion.

Which checkpoints go is decided when a deletion begins. Until then every retained checkpoint is whole, can be pinned,
and lends its files to new checkpoints; a crash before the deletion leaves nothing to repair.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Executor, Future
from typing import Any

from dagster_ckpt.checkpoint.taking.retained import Discarded
from dagster_ckpt.checkpoint.taking.store import CompletedCheckpointStore
from dagster_ckpt.config import RetentionPolicy
from dagster_ckpt.errors import CheckpointError, MustStop

__all__ = ["Discards", "OneThread", "discard_within"]

_log = logging.getLogger(__name__)

#: The end of a start waits so many seconds for deletions; a deletion that hangs ends with the process.
_LONGEST = 10.0


class OneThread(Executor):
    """Runs calls in order on one thread, which ends with the process even in the midst of a call.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def call() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:  # raised again for whoever asks for the result
                future.set_exception(error)

        self._calls.put(call)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the thread after the calls that were submitted; never waits."""
        del wait, cancel_futures
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


class Discards:
    """The deletions that completed checkpoints ask for.

    Args:
        store: deletes the checkpoints.
        retention: which checkpoints stay.
        executor: runs one deletion at a time, in order.
    """

    def __init__(self, store: CompletedCheckpointStore, retention: RetentionPolicy, executor: Executor) -> None:
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
        self._waiting.append(self._executor.submit(self._store.subsume, self._retention))

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
                _log.warning("Old checkpoints could not be deleted and will be tried again: %s", error)
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
    thread = OneThread("dagster-ckpt-discard-all")
    discarding: Future[Sequence[Discarded]] = thread.submit(store.discard_all, reason)
    thread.shutdown()
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
