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

from dagster_ckpt.checkpoint.clock import Clock
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
from dagster_ckpt.errors import Fenced

__all__ = ["Heart"]

#: Beats that may be under way at once: as many as fit into a lease.
_AT_ONCE = int(LEASE / PATIENCE)


class Heart:
    """Beats in a thread of its own until stopped.

    A beat that cannot be written is skipped: the storage may be full, and the job must outlive that. Others may
    then take this run for dead, which is what the epoch is for.

    One request may hang for longer than the lease. So each beat is made on a thread of its own, and when it has not
    come back after a few seconds the next one is tried beside it, until as many hang as fit into a lease. What hangs
    ends with the process, and nobody waits for it. A beat that comes late does no harm:

    * What it says is put together after what is there has been read, and it gives up if one that was begun later has
      been written by then. So late is only what hangs while it is written.
    * Such a one may lie over a newer sign of life, of this run or of one that has taken the job over, until the next
      beat of whoever holds it: no longer than :data:`SETTLED`. Those who read it do not go by silence, nor by an older
      epoch, before they have seen it for so long; a sequence that goes back is a change like any other.
    * After the last beat, which says that the run has ended, none is begun. One that comes back later looks whether the
      record says so still, when a new holder would have beaten, and says it again if not. If the process is gone by
      then, its own host knows that, and another one has seen the last of it after a lease. Until it is put right
      :func:`free_job` refuses for at most a lease after that beat was made, and then holds this process for a dead one,
      as it does with any run that could not say that it had ended.
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
        #: Beats are numbered as they are begun.
        self._begun = 0
        self._written = 0
        self._under_way: list[Future[None]] = []
        #: What proves that this process drives the job.
        self._mark: int | None = None
        #: Called with each beat that is due: this process lives, whatever the storage does. It must return at once.
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
        """Add a process that must be gone before anybody else may start, the JVM for example."""
        with self._lock:
            identity = ProcessIdentity.of(pid)
            if identity.mark not in {process.mark for process in self._beat.processes}:
                self._beat = replace(self._beat, processes=(*self._beat.processes, identity))
        self._once()

    def completed(self, checkpoint: str, epoch: int) -> None:
        """Beat now, and say that ``{job id}/chk-N`` is complete, so that its loss would be noticed; returns at once."""
        with self._lock:
            self._beat = replace(self._beat, completed=Completed(checkpoint, epoch))
        self._due.set()

    def hold(self, epoch: int) -> None:
        """Go on beating for a newer epoch of the same run."""
        with self._lock:
            self._beat = replace(self._beat, epoch=epoch)
        self._once()

    def stop(self) -> None:
        """Stop, and say that it was in order; a storage that hangs is waited for a few seconds only."""
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
            with contextlib.suppress(Exception):  # whatever it is, the heart goes on
                self.on_beat()
            self._once()

    def _once(self, *, last: bool = False) -> None:
        """Begin a beat, and wait for it a little; the last one is begun however many hang."""
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
            except RuntimeError:  # there are no more threads
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
            return  # somebody took over: their sign of life must not be overwritten
        with self._lock:
            if self._written > number:
                return
            beat = self._beat = replace(
                self._beat,
                sequence=self._beat.sequence + 1,
                beat_at=self._clock.time(),
                uptime=self._clock.monotonic(),
                # What the run before knew to be complete stays known until this run completes something.
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
        """What may lie over the last beat is not to stay there; but a run that has taken over beats by itself."""
        time.sleep(SETTLED)
        try:
            current = self._file.read_by_holder(self._beat.epoch)
        except Fenced:
            return
        if current is None or (current.epoch <= self._beat.epoch and not current.stopped):
            self._file.write(self._beat)

    def _let_go(self) -> None:
        """A run that has ended, and could say so, drives the job no more; until then, it is what may be killed."""
        with self._lock:
            if self._beat.stopped and self._mark is not None:
                os.close(self._mark)
                self._mark = None
