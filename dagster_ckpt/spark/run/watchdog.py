"""A watchdog in the driver's JVM, which ends the JVM when this process shows no sign of life for a whole lease.

A process that is stopped or hangs sends no heartbeats, so another run takes its job over. Its JVM would still run the
query beside that run, and write to the sink. On the same host the other run kills the JVM; from another host it cannot.

The watchdog counts ticks of about a second in the JVM since the last renewal, and compares no clocks. So while the JVM
is paused together with this process, or the machine is suspended, no ticks are counted. Each heartbeat also renews the
watchdog, whether the storage takes the heartbeat or not.
"""

from __future__ import annotations

import logging
import math
import threading
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from dagster_ckpt.checkpoint import LEASE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Watchdog"]

_log = logging.getLogger(__name__)

_PACKAGE = "dagster_ckpt"
#: The compiled class in each JVM, by gateway.
_compiled: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
_compiling = threading.Lock()
#: Compiled by Janino, the compiler that Spark uses for its queries.
_SOURCE = """
package PACKAGE;

public final class Watchdog extends Thread {
    private final int lease;
    private final String job;
    private final java.util.concurrent.atomic.AtomicInteger silent = new java.util.concurrent.atomic.AtomicInteger();
    private volatile boolean armed = true;

    public Watchdog(int lease, String job) {
        super("dagster-ckpt-watchdog");
        this.lease = lease;
        this.job = job;
        setDaemon(true);
    }

    public void renew() {
        silent.set(0);
    }

    public void disarm() {
        armed = false;
        interrupt();
    }

    public void run() {
        while (armed) {
            try {
                Thread.sleep(1000L);
            } catch (InterruptedException e) {
                continue;
            }
            if (silent.incrementAndGet() > lease && armed) {
                Thread last = new LastWords(job, lease);
                last.start();
                try {
                    last.join(1000L);
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
    private final int lease;

    LastWords(String job, int lease) {
        super("dagster-ckpt-last-words");
        this.job = job;
        this.lease = lease;
        setDaemon(true);
    }

    // On a thread of its own: nobody may be reading what a stopped process was to pass on.
    public void run() {
        System.err.println("dagster-ckpt: this JVM ends itself, because the Python process that runs job " + job
            + " has given no sign of life for " + lease + " s. Another run may have taken the job over.");
        System.err.flush();
    }
}
"""


class Watchdog:
    """The watchdog of one run in one JVM.

    Args:
        job_name: the job's name, for the JVM's last message.
        lease: the lease in seconds.
    """

    def __init__(self, job_name: str, lease: float = LEASE) -> None:
        self._job_name = job_name
        self._lease = lease
        self._due = threading.Event()
        self._is_over = False
        self._java: Any = None

    def arm(self, spark: SparkSession) -> None:
        """Start the watchdog in the JVM of a session; if that fails, log a warning and continue without.

        Calls into the JVM, which may block.
        """
        try:
            self._java = _start(spark, math.ceil(self._lease), self._job_name)
        except Exception as error:  # whatever the JVM or py4j raises: the run matters more
            _log.warning(
                "No watchdog could be started in the JVM of job %r. If this process is stopped while its JVM runs on, "
                "the query goes on until somebody ends it: %s",
                self._job_name,
                str(error).partition("\n")[0],
            )
            return
        threading.Thread(target=self._renew, name="dagster-ckpt-watchdog", daemon=True).start()

    def renew(self) -> None:
        """Tell the watchdog that this process lives; returns at once, whatever the JVM does."""
        self._due.set()

    def disarm(self) -> None:
        """Stop the watchdog at the end of the run, because from now on others decide about the JVM."""
        self._is_over = True
        self._due.set()
        if self._java is not None:
            with suppress(Exception):  # the JVM is gone
                self._java.disarm()

    def _renew(self) -> None:
        # Runs on its own thread: a paused JVM does not answer, and the heartbeat must continue.
        while not self._is_over:
            self._due.wait()
            self._due.clear()
            try:
                self._java.renew()
            except Exception as error:  # the JVM is gone, or the next renewal may succeed
                _log.debug("The watchdog in the JVM was not reached: %s", error)


def _start(spark: SparkSession, lease: int, job_name: str) -> Any:
    jvm: Any = spark._jvm  # noqa: SLF001 - PySpark names it nowhere else
    gateway: Any = spark.sparkContext._gateway  # noqa: SLF001
    with _compiling:
        if gateway not in _compiled:
            _compiled[gateway] = _compile(jvm)
        compiled = _compiled[gateway]
    arguments = gateway.new_array(jvm.java.lang.Object, 2)
    arguments[0], arguments[1] = lease, job_name
    watchdog = compiled.getConstructors()[0].newInstance(arguments)
    watchdog.renew()  # renew first: an unreachable watchdog would end a healthy JVM
    watchdog.start()
    return watchdog


def _compile(jvm: Any) -> Any:
    # py4j caches methods by class name, and would confuse two classes of the same name.
    package = f"{_PACKAGE}.w{uuid.uuid4().hex}"
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.cook(_SOURCE.replace("PACKAGE", package))
    return compiler.getClassLoader().loadClass(f"{package}.Watchdog")
