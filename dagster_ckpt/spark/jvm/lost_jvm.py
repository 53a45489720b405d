"""A JVM that is gone, and what this process lets go of so that another JVM can be started.

PySpark keeps the gateway to the first JVM of a process, its context and its session for ever. All of this is cleared
once the JVM has ended. What users keep beyond that (sessions, data frames, expressions) raises an error that says so,
instead of asking a port where another program may listen by now. User-defined functions are made anew where next used.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Any

import psutil

from dagster_ckpt.errors import DriverLost, InvalidConfiguration, QueryNotBuilt

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "as_loss",
    "has_let_go",
    "is_gone",
    "let_go_of_lost_jvm",
    "live_below_jvm",
    "loss_of",
    "lost_driver",
    "own_jvm_pid",
    "refuse_lost",
]

#: Seconds until a dying JVM must be gone.
_TEAR_DOWN = 5.0
#: Seconds for which a function of the user that the lost JVM has called may go on.
_LAST_CALL = 30.0
_TURN = 0.05
#: What each error about an object of a lost JVM says.
_HELD = "belongs to a JVM of Spark that is gone"
#: Where the client of a lost JVM keeps how that JVM ended.
_ENDED = "_dagster_ckpt_ended"
#: On the command line of every JVM that runs a Python program for Spark.
_RUNNER = "org.apache.spark.deploy.PythonRunner"
#: The JVM that has started this process, when it did that for nothing but a job's driver.
_above: set[int] = set()


class _HeldObjectError(RuntimeError):
    """Something was asked of an object whose JVM is gone."""


def live_below_jvm() -> None:
    """Count the JVM above this process, which ``spark-submit`` has started, as this process's own.

    Raises:
        InvalidConfiguration: another process is between the two. A pause or a kill would reach that process, and the
            JVM would go on.
    """
    above = os.getppid()
    with contextlib.suppress(psutil.Error):  # the JVM is gone, and this process goes next
        parent = psutil.Process(above)
        if _RUNNER not in parent.cmdline():
            raise InvalidConfiguration(
                f"Process {above} ({parent.name()}) is between Spark's JVM and this driver, so nothing could pause the "
                "JVM when the lease is over.",
                hint="If `python` of SparkSubmitResource is a script, let its last line be `exec /path/of/python "
                '"$@"`; or set `python` to the path of a Python.',
            )
    _above.add(above)


def own_jvm_pid(gateway: Any) -> int | None:
    """The process id of a JVM that serves this process alone, ``None`` for a JVM that others may use."""
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    return next(iter(_above), None) if process is None else process.pid


def loss_of(spark: SparkSession, *, after: Exception | None = None) -> str | None:
    """How the JVM of a session was lost; ``None`` while the JVM runs, or if others may use the JVM.

    A JVM whose Spark context has stopped by itself, because Spark has lost its cluster, is ended here. A JVM above this
    process ends with this process.

    Args:
        spark: any session of the JVM.
        after: the error that raised the question. A JVM that shuts down refuses connections before it is gone.
    """
    if (ended := has_let_go(spark)) is not None:
        return ended
    process = _process(spark._jsparkSession._gateway_client)  # noqa: SLF001
    if process is None and not _above:
        return None
    if process is not None and is_gone(process, after):
        return _ending(process)
    try:
        if not spark._jsparkSession.sparkContext().isStopped():  # noqa: SLF001
            return None
    except Exception as error:  # a JVM that ends now
        if process is None:
            return "it answers no more"
        if is_gone(process, error):
            return _ending(process)
    if process is not None:
        process.kill()
        process.wait()
    return "Spark has stopped its context, as it does when it loses its cluster"


def is_gone(process: subprocess.Popen[bytes], after: Exception | None) -> bool:
    """Whether a JVM has ended; waits a little if the error ``after`` says that the JVM is ending."""
    from py4j.protocol import Py4JNetworkError  # noqa: PLC0415 - PySpark is loaded where it runs

    if isinstance(after, (Py4JNetworkError, ConnectionError)):  # no other error of the storage or of the user
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_TEAR_DOWN)
    return process.poll() is not None


def let_go_of_lost_jvm() -> None:
    """Clear PySpark's state of the JVM that this process has started, if that JVM is gone.

    Raises:
        DriverLost: a function of the user that the JVM has called is still at work, so only a new process can go on.
    """
    from pyspark import SparkContext  # noqa: PLC0415 - half a second that only a driver has to pay
    from pyspark.sql import SparkSession, SQLContext  # noqa: PLC0415

    with SparkContext._lock:  # noqa: SLF001 - as the names below: PySpark has no public way
        gateway: Any = SparkContext._gateway  # noqa: SLF001
        process = getattr(gateway, "proc", None)
        if process is None or process.poll() is None:
            return
        client = gateway._gateway_client  # noqa: SLF001
        _await_calls(client)
        _refuse_calls(client, _ending(process))
        with contextlib.suppress(Exception):
            gateway.shutdown_callback_server()
        context: Any = SparkContext._active_spark_context  # noqa: SLF001
        with contextlib.suppress(Exception):
            context._accumulatorServer.shutdown()  # noqa: SLF001
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
        SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None  # noqa: SLF001
        SparkSession._instantiatedSession = SparkSession._activeSession = None  # noqa: SLF001
        SQLContext._instantiatedContext = None  # noqa: SLF001
        _forget_functions()


def has_let_go(spark: SparkSession) -> str | None:
    """How the JVM of a session ended, if :func:`let_go_of_lost_jvm` has cleared PySpark of it; else ``None``."""
    client: Any = spark._jsparkSession._gateway_client  # noqa: SLF001 - PySpark names it nowhere else
    ended: str | None = getattr(client, _ENDED, None)
    return ended


def refuse_lost(spark: SparkSession, job_name: str) -> None:
    """Refuse a session of a lost JVM.

    Raises:
        DriverLost: only a new process can go on.
    """
    if (ended := has_let_go(spark)) is not None:
        raise _only_new_process(f"The Spark session of job {job_name!r} {_HELD}: {ended}.")


def lost_driver(job_name: str, how: str) -> DriverLost:
    """The error for a lost JVM; a new one can replace the JVM, unless this process is below it."""
    what_next = "A new driver resumes the job" if _above else "The run starts another JVM"
    error = DriverLost(
        f"The JVM of job {job_name!r} is gone: {how}.",
        hint=f"{what_next}, as the job's restart strategy allows. If it repeats, look at spark.driver.memory and at "
        "the memory that the machine has left.",
    )
    error.needs_process = bool(_above)
    return error


def as_loss(error: Exception, spark: SparkSession | None, job_name: str) -> Exception:
    """The loss of a session's JVM, if an error is a consequence of that; else the error."""
    if isinstance(error, DriverLost):
        return error
    # The job's own function also calls the JVM, so its error may show that the JVM is gone.
    seen = error.__cause__ if isinstance(error, QueryNotBuilt) else error
    how = None if spark is None else loss_of(spark, after=seen if isinstance(seen, Exception) else error)
    lost: Exception = error
    if how is not None:
        lost = lost_driver(job_name, how)
    elif _HELD in str(error) or _HELD in str(seen):
        lost = _only_new_process(f"The function of job {job_name!r} has kept a part of Spark. {seen}")
    if lost is not error:
        lost.__cause__ = error
    return lost


def _only_new_process(message: str) -> DriverLost:
    """The error for a JVM that is lost and that this process cannot replace."""
    error = DriverLost(
        message,
        hint="A new process resumes the job (the sensor, or `dagster-ckpt run`). To restart within the run, let the "
        "job's function make everything of Spark from the session that it is given, and keep nothing of Spark between "
        "two calls.",
    )
    error.needs_process = True
    return error


def _process(client: Any) -> subprocess.Popen[bytes] | None:
    from pyspark import SparkContext  # noqa: PLC0415

    gateway: Any = SparkContext._gateway  # noqa: SLF001
    is_ours = gateway is not None and gateway._gateway_client is client  # noqa: SLF001
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None) if is_ours else None
    return process


def _ending(process: subprocess.Popen[bytes]) -> str:
    """How a process ended, for people."""
    if process.returncode is None:  # only its parent is told the exit status
        return "it has ended; its error output says why"
    if process.returncode == -signal.SIGKILL:
        return "it was killed by SIGKILL, as the kernel does to a process when memory runs out (OOM kill)"
    if process.returncode < 0:
        with contextlib.suppress(ValueError):
            return f"it was ended by {signal.Signals(-process.returncode).name}"
    return f"it ended with exit code {process.returncode}; its error output says why"


def _await_calls(client: Any) -> None:
    """Wait until no function of the user that the JVM has called, such as that of foreachBatch, is at work."""
    until = time.monotonic() + _LAST_CALL
    while any(_serves(thread, client) for thread in threading.enumerate()):
        if time.monotonic() > until:
            raise _only_new_process(
                f"A function that Spark has called, such as that of foreachBatch, {_HELD}, and is still at work after "
                f"{_LAST_CALL:.0f} s. It may write beside a query that is started again in this process."
            )
        time.sleep(_TURN)


def _serves(thread: threading.Thread, client: Any) -> bool:
    """Whether a thread carries out calls of this JVM: py4j has one thread for each that calls."""
    connection = getattr(getattr(thread, "_target", None), "__self__", None)
    own, py4js = getattr(thread, "__dict__", {}), getattr(connection, "__dict__", {})
    return client is py4js.get("java_client") or client is own.get("gateway_client")


def _refuse_calls(client: Any, ended: str) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise _HeldObjectError(
            f"This object {_HELD}: {ended}. Use the session that the job's function is given, and keep nothing of "
            "Spark between two calls of the function."
        )

    setattr(client, _ENDED, ended)
    client.send_command = refuse
    client.is_connected = False
    with contextlib.suppress(Exception):
        client.close()


def _forget_functions() -> None:
    """User-defined functions of Python keep what their first use has made in the JVM."""
    from pyspark.sql.udf import UserDefinedFunction  # noqa: PLC0415
    from pyspark.sql.udtf import UserDefinedTableFunction  # noqa: PLC0415

    for each in gc.get_objects():
        if issubclass(type(each), UserDefinedFunction):
            each._judf_placeholder = None  # noqa: SLF001
        elif issubclass(type(each), UserDefinedTableFunction):
            each._judtf_placeholder = None  # noqa: SLF001
