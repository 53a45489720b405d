"""Threads that ask a storage, and end with the process."""

from __future__ import annotations

import errno
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

__all__ = ["Threads"]


class Threads(Executor):
    """Runs calls side by side, and in their order, on threads that end with the process even in the midst of a call.

    A process waits for the threads of a ``ThreadPoolExecutor`` before it ends, and so would not end while one of them
    hangs in a storage.

    Args:
        most: how many calls run at once.
        name: of the threads.
    """

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._lock = threading.Lock()
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._is_closed = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Have a call made on one of the threads.

        Raises:
            OSError: the host has no room for a single thread; the call is never made.
            RuntimeError: the threads were shut down.
        """
        future: Future[Any] = Future()
        with self._lock:
            if self._is_closed:
                raise RuntimeError(f"The threads {self._name} take no more calls.")
            if len(self._threads) < self._most:
                thread = threading.Thread(target=self._run, name=f"{self._name}_{len(self._threads)}", daemon=True)
                try:
                    thread.start()
                    self._threads.append(thread)
                except RuntimeError as error:  # the host has no room for another thread, and those that run have time
                    if not self._threads:
                        raise OSError(
                            errno.EAGAIN,
                            f"This host has no room for the threads {self._name} ({error}): see `ulimit -u` and the "
                            "limit of processes of the container",
                        ) from error
            self._calls.put((future, lambda: fn(*args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the threads after the calls that were submitted, or with ``cancel_futures`` after those that run."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                if cancel_futures:
                    self._cancel()
                for _ in self._threads:
                    self._calls.put(None)
        if wait:
            for thread in self._threads:
                thread.join()

    def _cancel(self) -> None:
        while True:
            try:
                call = self._calls.get_nowait()
            except queue.Empty:
                return
            if call is not None:
                call[0].cancel()

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            future, work = call
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(work())
            except BaseException as error:  # raised again for whoever asks for the result
                future.set_exception(error)
            del call, future, work  # or a thread that waits keeps what the last call returned
