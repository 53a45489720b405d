"""The heart of a run: it rewrites the heartbeat for as long as the run holds the job."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial

from dagster_ckpt.checkpoint.control.heartbeat import (
    INTERVAL,
    LEASE,
    PATIENCE,
    SETTLED,
    Completed,
    Heartbeat,
    HeartbeatFile,
    beating_here,
)
from dagster_ckpt.checkpoint.processes import ProcessIdentity, mark_driver
from dagster_ckpt.clock import Clock
from dagster_ckpt.errors import Fenced

__all__ = ["Heart"]

#: Beats that may be in progress at once: as many as fit into a lease.
_AT_ONCE = int(LEASE / PATIENCE)


class Heart:
    """Beats in its own thread until stopped.

    A beat that cannot be written is skipped: the storage may be full, and the job must survive that. Other runs may
    then take this run for dead; the epoch makes that safe.

    One request may hang for longer than the lease. So each beat has its own thread. When a beat has not returned after
    a few seconds, the next beat is tried beside it, until as many beats hang as fit into a lease. Nobody waits for a
    hanging beat; it ends with the process. A late beat does no harm:

    * A beat first reads the heartbeat file, then decides what to write. If a later beat has been written by then, the
      earlier beat gives up. So only a beat that hangs during its write can be late.
    * A late beat may overwrite a newer heartbeat, of this run or of a run that has taken the job over, until the
      holder of the job beats again: for at most :data:`SETTLED`. Readers trust silence or an older epoch only after
      they have seen it for so long; a sequence that goes back counts as a change like any other.
    * After the last beat, which says that the run has ended, no beat is begun. An earlier beat that returns later
      waits until a new holder would have beaten, checks whether the file still says that the run has ended, and
      otherwise writes the last beat again. If the process is gone by then, its own host knows that, and another host
      sees no further change for a lease. Until the file is right again, ``free_job`` refuses for at most a lease
      after the late beat was made. Then it counts this process as dead, as any run that could not record its end.
    """

    def __init__(
        self, file: HeartbeatFile, clock: Clock, *, epoch: int, run_id: str, worker: int | None = None
    ) -> None:
        self._file = file
        self._clock = clock
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._beat = Heartbeat(epoch, run_id, (ProcessIdentity.current(),), 0, clock.time(), uptime=clock.monotonic())
        if worker is not None:
            self._beat = replace(self._beat, worker=ProcessIdentity.of(worker))
        #: The number of the beat that was begun last, and of the last beat that was written.
        self._begun = 0
        self._written = 0
        self._under_way: list[Future[None]] = []
        #: What proves that this process drives the job.
        self._mark: int | None = None
        #: Called at each beat that is due, even when the storage hangs: the process lives. It must return at once.
        self.on_beat: Callable[[], None] = lambda: None
        self._stop = threading.Event()
        self._due = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dagster-ckpt-heart", daemon=True)

    def start(self) -> None:
        """Beat once, then every :data:`INTERVAL` seconds."""
        self._mark = mark_driver(self._file.key)
        beating_here.add(self._file.key)
        self._once()
        self._thread.start()

    def add_process(self, pid: int) -> None:
        """Add a process, such as the JVM, that must be gone before another run may start the job."""
        with self._lock:
            identity = ProcessIdentity.of(pid)
            if identity.mark not in {process.mark for process in self._beat.processes}:
                self._beat = replace(self._beat, processes=(*self._beat.processes, identity))
        self._once()

    def completed(self, checkpoint: str, epoch: int) -> None:
        """Beat now, and tell that ``{job id}/chk-N`` is complete, so that its loss is noticed; returns at once."""
        with self._lock:
            self._beat = replace(self._beat, completed=Completed(checkpoint, epoch))
        self._due.set()

    def hold(self, epoch: int) -> None:
        """Go on beating for a newer epoch of the same run."""
        with self._lock:
            self._beat = replace(self._beat, epoch=epoch)
        self._once()

    def stop(self) -> None:
        """Stop, and record an orderly end; waits only a few seconds for a storage that hangs."""
        self._stop.set()
        self._due.set()
        if self._thread.is_alive():
            self._thread.join()
        with self._lock:
            self._beat = replace(self._beat, stopped=True)
        self._once(last=True)
        beating_here.discard(self._file.key)

    def _run(self) -> None:
        while True:
            self._due.wait(INTERVAL)
            self._due.clear()
            if self._stop.is_set():
                return
            with contextlib.suppress(Exception):  # whatever on_beat raises, the heart goes on
                self.on_beat()
            self._once()

    def _once(self, *, last: bool = False) -> None:
        """Begin a beat, and wait for it a little; the last beat is begun however many beats hang."""
        with self._turn:
            self._under_way = [beat for beat in self._under_way if not beat.done()]
            if len(self._under_way) >= _AT_ONCE and not last:
                return
            self._begun += 1
            beat: Future[None] = Future()
            self._under_way.append(beat)
            work = partial(self._carry_out, beat, self._begun)
            try:
                threading.Thread(target=work, name="dagster-ckpt-beat", daemon=True).start()
            except RuntimeError:  # no thread can be started
                work()
            with contextlib.suppress(Exception):  # whatever a storage raises, the heart goes on
                beat.result(timeout=PATIENCE)

    def _carry_out(self, beat: Future[None], number: int) -> None:
        try:
            self._make(number)
        except BaseException as error:
            beat.set_exception(error)
        else:
            beat.set_result(None)

    def _make(self, number: int) -> None:
        try:
            current = self._file.read_by_holder(self._beat.epoch)
        except Fenced:
            self._let_go()
            return
        if current is not None and current.epoch > self._beat.epoch:
            self._let_go()
            return  # another run took over: its heartbeat must not be overwritten
        with self._lock:
            if self._written > number:
                return
            beat = self._beat = replace(
                self._beat,
                sequence=self._beat.sequence + 1,
                beat_at=self._clock.time(),
                uptime=self._clock.monotonic(),
                # The previous run's newest checkpoint stays known until this run completes one.
                completed=self._beat.completed or (None if current is None else current.completed),
            )
        try:
            self._file.write(beat)
            with self._lock:
                self._written = max(self._written, number)
            if beat.stopped:
                self._let_go()
        finally:
            if self._beat.stopped and not beat.stopped:
                self._say_again()

    def _say_again(self) -> None:
        """Write the last beat again if a late beat overwrote it, unless another run has taken the job over."""
        time.sleep(SETTLED)
        try:
            current = self._file.read_by_holder(self._beat.epoch)
        except Fenced:
            return
        if current is None or (current.epoch <= self._beat.epoch and not current.stopped):
            self._file.write(self._beat)

    def _let_go(self) -> None:
        """Remove the driver's mark once the end is recorded; until then this process may be killed as the driver."""
        with self._lock:
            if self._beat.stopped and self._mark is not None:
                os.close(self._mark)
                self._mark = None
