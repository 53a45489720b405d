"""Keeps the driver's JVM from going on with a job that others may have taken over.

A run may go on for a part of its lease after each heartbeat that the storage took. If no later heartbeat is taken in
time, because the storage hiccups or is away, the JVM is paused, and goes on as soon as a heartbeat is taken. If a newer
run has taken the job over by then, the JVM is killed. So a storage that is away costs time, and no restart.

A process that is stopped or hangs can pause nothing. So a watchdog in the JVM ends the JVM when this process has shown
no sign of life until shortly before the lease is over. The watchdog looks at a clock in the JVM every tenth of a second
and compares no two clocks. A long time between two looks was a pause of the JVM, and counts as one look.
"""

from __future__ import annotations

import atexit
import logging
import threading
import uuid
from collections import defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import psutil

from dagster_ckpt.checkpoint import Heart

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Watchdog"]

_log = logging.getLogger(__name__)

_PACKAGE = "dagster_ckpt"
#: The compiled class in each JVM, by gateway.
_compiled: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
_compiling = threading.Lock()
#: The watchdogs that have paused a JVM: a process may run several jobs in one JVM.
_held: defaultdict[psutil.Process, set[Watchdog]] = defaultdict(set)
_holding = threading.Lock()
#: Seconds between two looks at what is left of the lease.
_LOOK = 0.1
#: Compiled by Janino, the compiler that Spark uses for its queries.
_SOURCE = """
package PACKAGE;

public final class Watchdog extends Thread {
    private static final long MILLISECOND = 1000000L;
    private static final long TICK = 100L * MILLISECOND;
    private final double lease;
    private final String job;
    // Nanoseconds.
    private final java.util.concurrent.atomic.AtomicLong left = new java.util.concurrent.atomic.AtomicLong();
    private volatile boolean armed = true;

    public Watchdog(double lease, String job) {
        super("dagster-ckpt-watchdog");
        this.lease = lease;
        this.job = job;
        setDaemon(true);
    }

    public void renew(int milliseconds) {
        left.set(milliseconds * MILLISECOND);
    }

    // How much of the time since the last look counts. On a busy machine a thread sleeps too long, and that time has
    // passed. A JVM that was paused must not lose what a short lease has left before its Python process can renew that.
    public static long counted(long nanoseconds) {
        return nanoseconds <= 3L * TICK ? nanoseconds : TICK;
    }

    public void disarm() {
        armed = false;
        interrupt();
    }

    public void run() {
        long before = System.nanoTime();
        while (armed) {
            try {
                Thread.sleep(TICK / MILLISECOND);
            } catch (InterruptedException e) {
                continue;
            }
            long now = System.nanoTime();
            long passed = counted(now - before);
            before = now;
            if (left.addAndGet(-passed) <= 0 && armed) {
                Thread last = new LastWords(job, lease);
                last.start();
                try {
                    last.join(200L);
                } catch (InterruptedException e) {
                }
                if (armed) {
                    Runtime.getRuntime().halt(70);
                }
            }
        }
    }
}

final class LastWords extends Thread {
    private final String job;
    private final double lease;

    LastWords(String job, double lease) {
        super("dagster-ckpt-last-words");
        this.job = job;
        this.lease = lease;
        setDaemon(true);
    }

    // On a thread of its own: nobody may be reading what a stopped process was to pass on.
    public void run() {
        System.err.println("dagster-ckpt: this JVM ends itself, because the Python process that runs job " + job
            + " has given no sign of life, and its lease of " + lease + " s is nearly over. Another run may take the"
            + " job over.");
        System.err.flush();
    }
}
"""


class Watchdog:
    """The watchdog of one run over one JVM.

    Args:
        job_name: the job's name, for messages.
        heart: of the run, which tells for how long the run may go on.
        cancel: set when the run should stop; a JVM that would be paused then is killed.
    """

    def __init__(self, job_name: str, heart: Heart, cancel: threading.Event) -> None:
        self._job_name = job_name
        self._heart = heart
        self._cancel = cancel
        self._due = threading.Event()
        self._over = threading.Event()
        self._java: Any = None

    def arm(self, spark: SparkSession, pid: int) -> None:
        """Watch the JVM of a session; if it can have no watchdog inside, log a warning and continue without.

        Calls into the JVM, which may block.
        """
        try:
            self._java = _start(spark, self._heart, self._job_name)
        except Exception as error:  # whatever the JVM or py4j raises: the run matters more
            _log.warning(
                "No watchdog could be started in the JVM of job %r. If this process is stopped while its JVM runs on, "
                "the query goes on until somebody ends it: %s",
                self._job_name,
                str(error).partition("\n")[0],
            )
        else:
            threading.Thread(target=self._renew, name="dagster-ckpt-watchdog", daemon=True).start()
        with suppress(psutil.Error):  # the JVM is gone
            process = psutil.Process(pid)
            threading.Thread(target=self._guard, args=(process,), name="dagster-ckpt-guard", daemon=True).start()

    def renew(self) -> None:
        """Tell the watchdog that this process lives; returns at once, whatever the JVM does."""
        self._due.set()

    def disarm(self) -> None:
        """Stop the watchdog at the end of the run, because from now on others decide about the JVM."""
        self._over.set()
        self._due.set()
        if self._java is not None:
            with suppress(Exception):  # the JVM is gone
                self._java.disarm()

    def _renew(self) -> None:
        # Runs on its own thread: a paused JVM does not answer, and the heartbeat must continue.
        while not self._over.is_set():
            self._due.wait()
            self._due.clear()
            try:
                self._java.renew(_milliseconds(self._heart))
            except Exception as error:  # the JVM is gone, or the next renewal may succeed
                _log.debug("The watchdog in the JVM was not reached: %s", error)

    def _guard(self, process: psutil.Process) -> None:
        """Pause the JVM while this run may not go on."""
        try:
            with suppress(psutil.NoSuchProcess):
                while not self._over.wait(_LOOK):
                    if self._heart.left > 0:
                        if _let_go(process, self):
                            self._due.set()
                            _log.warning("The query of job %r goes on: a heartbeat was taken.", self._job_name)
                    elif self._heart.is_fenced or self._cancel.is_set():
                        process.kill()
                        return
                    elif _hold(process, self):
                        _log.warning(
                            "The query of job %r pauses: the storage has taken no heartbeat for %.1f s, and after %.0f "
                            "s without a heartbeat another run may take the job over. The query goes on as soon as a "
                            "heartbeat is taken.",
                            self._job_name,
                            self._heart.lease.own,
                            self._heart.lease.timeout,
                        )
        finally:
            with suppress(psutil.Error):
                _let_go(process, self)


def _hold(process: psutil.Process, holder: Watchdog) -> bool:
    """Pause a JVM on behalf of one run; ``False`` if the run does so already."""
    with _holding:
        holders = _held[process]
        if holder in holders:
            return False
        process.suspend()
        holders.add(holder)
        return True


def _let_go(process: psutil.Process, holder: Watchdog) -> bool:
    """Let a JVM go on, unless another run of this process pauses it; ``False`` if this run did not pause it."""
    with _holding:
        holders = _held.get(process, set())
        if holder not in holders:
            return False
        holders.discard(holder)
        if not holders:
            del _held[process]
            process.resume()
        return True


@atexit.register
def _kill_held() -> None:
    """A paused JVM does not notice that its driver ends."""
    for process in list(_held):
        with suppress(psutil.Error):
            process.kill()


def _start(spark: SparkSession, heart: Heart, job_name: str) -> Any:
    jvm: Any = spark._jvm  # noqa: SLF001 - PySpark names it nowhere else
    gateway: Any = spark.sparkContext._gateway  # noqa: SLF001
    with _compiling:
        if gateway not in _compiled:
            _compiled[gateway] = _compile(jvm)
        compiled = _compiled[gateway]
    arguments = gateway.new_array(jvm.java.lang.Object, 2)
    arguments[0], arguments[1] = heart.lease.timeout, job_name
    watchdog = compiled.getConstructors()[0].newInstance(arguments)
    watchdog.renew(_milliseconds(heart))  # renew first: an unreachable watchdog would end a healthy JVM
    watchdog.start()
    return watchdog


def _milliseconds(heart: Heart) -> int:
    """For how long the JVM may go on without a sign of life: until it should have been paused, and a little longer.

    A run whose lease a newer run of this process keeps has no end of its own.
    """
    return round(1000 * (min(max(heart.left, 0.0), heart.lease.own) + heart.lease.grace))


def _compile(jvm: Any) -> Any:
    # py4j caches methods by class name, and would confuse two classes of the same name.
    package = f"{_PACKAGE}.w{uuid.uuid4().hex}"
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.cook(_SOURCE.replace("PACKAGE", package))
    return compiler.getClassLoader().loadClass(f"{package}.Watchdog")
