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
from math import inf

from dagster_ckpt.checkpoint.control.heartbeat.beat import Completed, FailedCheckpoints, Heartbeat
from dagster_ckpt.checkpoint.control.heartbeat.heartbeat_file import HeartbeatFile
from dagster_ckpt.checkpoint.format import LONGEST_REASON
from dagster_ckpt.checkpoint.lease import UNSAID, Lease
from dagster_ckpt.checkpoint.processes import ProcessIdentity, mark_driver
from dagster_ckpt.clock import Clock, slept
from dagster_ckpt.errors import Fenced

__all__ = ["Heart", "beating_here"]

#: (storage, job) of each heart that beats in this process: one process may be asked to run a job twice.
beating_here: set[tuple[str, str]] = set()


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
      holder of the job beats again, and the next beats may hang, too. So readers trust the age of a beat or an older
      epoch only after they have seen the same beat for a lease; a sequence that goes back counts as a change.
    * After the last beat, which says that the run has ended, no beat is begun. An earlier beat that returns later
      waits until a new holder would have beaten, checks whether the file still says that the run has ended, and
      otherwise writes the last beat again. If the process is gone by then, its own host knows that, and another host
      sees no further change for a lease. Until the file is right again, ``free_job`` refuses for at most a lease
      after the late beat was made. Then it counts this process as dead, as any run that could not record its end.

    A beat that the storage has taken lets this run go on for :attr:`Lease.own` from the moment at which the beat was
    made. So the run's permission is over before a reader, who has seen that beat later, may take the job over. A run
    whose permission was over for a while asks with each beat for a lease whether another process has claimed the job:
    such a process may have died before its first beat, and while this run beat, nobody would know that.
    """

    def __init__(
        self,
        file: HeartbeatFile,
        clock: Clock,
        *,
        epoch: int,
        run_id: str,
        worker: int | None = None,
        lease: Lease | None = None,
    ) -> None:
        self._file = file
        self._clock = clock
        self.lease = lease or UNSAID
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        began = clock.monotonic()
        self._beat = Heartbeat(
            epoch, run_id, (ProcessIdentity.current(),), 0, clock.time(), uptime=began, lease=self.lease
        )
        #: Until when this run may go on, by :meth:`_now`. Before its first beat, readers of release 0.1.0 judge by the
        #: default lease.
        self._until = began + slept() + min(self.lease.own, UNSAID.own)
        #: Until when each beat asks for a newer claim.
        self._asks_until = -inf
        #: Whether a newer run has taken the job over.
        self.is_fenced = False
        if worker is not None:
            self._beat = replace(self._beat, worker=ProcessIdentity.of(worker))
        #: The number of the beat that was begun last, and of the last beat that was written.
        self._begun = 0
        self._written = 0
        self._under_way: list[Future[None]] = []
        #: What proves that this process drives the job.
        self._mark: int | None = None
        #: Called at each beat that is due and each beat that was taken. It must return at once.
        self.on_beat: Callable[[], None] = lambda: None
        self._stop = threading.Event()
        self._due = threading.Event()
        #: Since when no checkpoint has completed although one was due, whichever start it was due in.
        self._overdue_since: float | None = None
        self._thread = threading.Thread(target=self._run, name="dagster-ckpt-heart", daemon=True)

    @property
    def left(self) -> float:
        """Seconds for which this run may go on without another beat; 0 or less: others may have taken the job over."""
        with self._lock:
            return 0.0 if self.is_fenced else self._until - self._now()

    def start(self) -> None:
        """Beat once, then at every interval."""
        self._mark = mark_driver(self._file.key)
        beating_here.add(self._file.key)
        self._once()
        self._thread.start()

    def add_process(self, pid: int) -> None:
        """Add a process, such as the JVM, that must be gone before another run may start the job.

        Added processes that have ended are left out from now on.
        """
        identity = ProcessIdentity.of(pid)
        with self._lock:
            driver, *added = self._beat.processes
            others = [process for process in added if process.mark != identity.mark and process.is_alive()]
            if identity.mark != driver.mark:
                self._beat = replace(self._beat, processes=(driver, *others, identity))
        self._once()

    def completed(self, checkpoint: str, epoch: int, *, is_durable: bool = True) -> None:
        """Beat now, and tell that ``{job id}/chk-N`` is complete, so that its loss is noticed; returns at once.

        Args:
            checkpoint: the checkpoint.
            epoch: that completed the checkpoint.
            is_durable: the checkpoint outlives this process, so that its loss is one.
        """
        with self._lock:
            self._overdue_since = None
            completed = Completed(checkpoint, epoch) if is_durable else self._beat.completed
            self._beat = replace(self._beat, completed=completed, failed_checkpoints=None, due_since=None)
        self._due.set()

    def checkpoint_due(self) -> None:
        """Tell with the next beat that a checkpoint is due, until one completes."""
        with self._lock:
            self._overdue_since = self._overdue_since or self._clock.time()
            self._beat = replace(self._beat, due_since=self._overdue_since)

    def checkpoint_failed(self, number: int, reason: str, in_a_row: int) -> None:
        """Tell with the next beat that so many checkpoints in a row have failed, and why the last one did."""
        with self._lock:
            failed = FailedCheckpoints(in_a_row, reason[:LONGEST_REASON], self._clock.time(), number)
            self._beat = replace(self._beat, failed_checkpoints=failed)

    def hold(self, epoch: int) -> None:
        """Go on beating for a newer epoch of the same run."""
        with self._lock:
            self._beat = replace(self._beat, epoch=epoch, due_since=None)
        self._once()

    def stop(self, *, interrupted: bool = False) -> None:
        """Stop, and record an orderly end; waits only a few seconds for a storage that hangs.

        Args:
            interrupted: the process was told to end, while nobody had canceled the job.
        """
        self._stop.set()
        self._due.set()
        if self._thread.is_alive():
            self._thread.join()
        with self._lock:
            self._beat = replace(self._beat, stopped=True, interrupted=interrupted)
        self._once(last=True)
        beating_here.discard(self._file.key)

    def _run(self) -> None:
        while True:
            self._due.wait(self.lease.interval)
            self._due.clear()
            if self._stop.is_set():
                return
            self._tell()
            self._once()

    def _tell(self) -> None:
        with contextlib.suppress(Exception):  # whatever on_beat raises, the heart goes on
            self.on_beat()

    def _once(self, *, last: bool = False) -> None:
        """Begin a beat, and wait for it a little; the last beat is begun however many beats hang."""
        with self._turn:
            self._under_way = [beat for beat in self._under_way if not beat.done()]
            if len(self._under_way) >= self.lease.at_once and not last:
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
                beat.result(timeout=self.lease.patience)

    def _carry_out(self, beat: Future[None], number: int) -> None:
        try:
            self._make(number)
        except BaseException as error:
            beat.set_exception(error)
        else:
            beat.set_result(None)

    def _make(self, number: int) -> None:
        asks = self._is_late() or self._now() < self._asks_until
        if asks and self._is_taken():
            return
        try:
            current = self._file.read_by_holder(self._beat.epoch)
        except Fenced:
            self._fence(None)
            return
        if current is not None and current.epoch > self._beat.epoch:
            self._fence(current)
            return  # another run took over: its heartbeat must not be overwritten
        with self._lock:
            if self._written > number:
                return
            now = self._now()
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
            # A process that was paused during the beat may have lost the job since it asked.
            if self._is_late() and self._is_taken():
                return
            with self._lock:
                self._until = max(self._until, now + self.lease.own)
            self._tell()
            if beat.stopped:
                self._let_go()
        finally:
            if self._beat.stopped and not beat.stopped:
                self._say_again()

    def _now(self) -> float:
        """Monotonic seconds in which the sleep of this machine counts: the others have waited meanwhile."""
        return self._clock.monotonic() + slept()

    def _is_late(self) -> bool:
        """Whether another run may have claimed the job by now, because the storage has taken no beat in time."""
        now = self._now()
        if now <= self._until:
            return False
        self._asks_until = now + self.lease.timeout
        return True

    def _is_taken(self) -> bool:
        """Fence this run if another one has claimed the job; whether that is so."""
        is_taken = self._file.is_claimed_after(self._beat.epoch, self._beat.run_id)
        if is_taken:
            self._fence(None)
        return is_taken

    def _say_again(self) -> None:
        """Write the last beat again if a late beat overwrote it, unless another run has taken the job over.

        Raises:
            Fenced: another run has claimed the job, and has not beaten yet.
        """
        time.sleep(self.lease.settled)
        current = self._file.read_by_holder(self._beat.epoch)
        if current is None or (current.epoch <= self._beat.epoch and not current.stopped):
            self._file.write(self._beat)

    def _fence(self, by: Heartbeat | None) -> None:
        with self._lock:
            if by is not None and by.processes[0].is_this_one:
                self._until = inf  # the newer run of this process shares the JVM, and keeps the lease
            else:
                self.is_fenced = True
        self._tell()
        self._let_go()

    def _let_go(self) -> None:
        """Remove the driver's mark once the end is recorded; until then this process may be killed as the driver."""
        with self._lock:
            if self._beat.stopped and self._mark is not None:
                os.close(self._mark)
                self._mark = None
