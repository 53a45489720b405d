"""The JVM in which Hadoop's client runs, and its failures.

The JVM is a process of its own, launched as PySpark launches its gateway, with Spark's own class path,
``HADOOP_CONF_DIR`` and ``spark-defaults.conf``. The JVM of a Spark session would not do: checkpoints are read before a
session starts and in processes without a session, and a run must write its last records after its Spark is gone.
PySpark's own gateway is left alone, so that a later session gets the memory and the options that its builder asks for.

py4j's answers come on the connection of the thread that asked, and an interrupt in between leaves an unread answer. So
separate threads ask the JVM, and an interrupted caller only stops waiting for one of these threads.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from py4j.protocol import Py4JError, Py4JJavaError, get_return_value, is_error

from dagster_ckpt.errors import JavaNotFound, StorageUnusable

__all__ = ["THREADS", "Hadoop", "JavaFailure", "hadoop_of_this_process"]

#: Short calls into the JVM that may be under way at once, and as many that move the bytes of a file.
THREADS = 16
#: Far more than the client needs; a driver memory that is set for all of Spark is not meant for this JVM.
_HEAP = "512m"
#: Seconds the JVM may take to end.
_TEAR_DOWN = 5.0
#: By default Hadoop tries a connection without an answer to its first packet 45 times, 20 s each.
_PATIENCE = {"ipc.client.connect.max.retries.on.timeouts": "2"}
#: The checksum of a file is the CRC32C of its bytes, however they lie in blocks.
_CHECKSUMS = {"dfs.checksum.combine.mode": "COMPOSITE_CRC"}

_Result = TypeVar("_Result")


class JavaFailure(Exception):
    """Hadoop's client failed; the text is Java's, with its stack trace.

    Args:
        text: what Java says.
        causes: class name without its package, and message of each throwable, the outermost first.

    Attributes:
        names: the class names.
        message: the first line of the first message that is not empty.
    """

    def __init__(self, text: str, causes: list[tuple[str, str]]) -> None:
        super().__init__(text)
        self.names = frozenset(name for name, _ in causes)
        said = next((message for _, message in causes if message), "")
        self.message = said.strip().partition("\n")[0] or causes[0][0]


@dataclass(frozen=True)
class Hadoop:
    """Hadoop's client for one cluster.

    Attributes:
        jvm: the packages of the JVM.
        filesystem: the ``org.apache.hadoop.fs.FileSystem``.
    """

    jvm: Any
    filesystem: Any
    _threads: ThreadPoolExecutor
    _carriers: ThreadPoolExecutor

    def call(self, work: Callable[[], _Result]) -> _Result:
        """Run ``work``, which asks the JVM, on one of the JVM's threads, and wait for the result.

        Raises:
            JavaFailure: the client failed, or the JVM is gone.
        """
        return _on(self._threads, lambda: _described(work))

    def carry(self, work: Callable[[], _Result]) -> _Result:
        """As :meth:`call`, for work that moves the bytes of a file; its threads are not those of short requests."""
        return _on(self._carriers, lambda: _described(work))


def hadoop_of_this_process(cluster: str, options: Mapping[str, str]) -> Hadoop:
    """The client for a cluster; starts the JVM when none runs.

    Args:
        cluster: ``hdfs://host:port``, ``hdfs://nameservice`` or ``hdfs://`` for the default cluster.
        options: keys of Hadoop's configuration, which override its files.

    Raises:
        JavaNotFound: there is no Java.
        StorageUnusable: the JVM does not start, or ``JAVA_HOME`` has no Java.
        JavaFailure: the client cannot be made.
    """
    global _running  # noqa: PLW0603 - one JVM for a process
    with _lock:
        if _running is not None and not _running.is_alive:
            _running.let_go()
            _running = None
        if _running is None:
            _running = _Jvm()
        return _running.client(cluster, options)


class _Jvm:
    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, "dagster-ckpt-hdfs")
        self._carriers = ThreadPoolExecutor(THREADS, "dagster-ckpt-hdfs-bytes")
        self._gateway = _on(self._threads, _launch)
        self._clients: dict[tuple[str, tuple[tuple[str, str], ...]], Hadoop] = {}

    @property
    def _process(self) -> subprocess.Popen[bytes]:
        process: subprocess.Popen[bytes] = self._gateway.proc
        return process

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def client(self, cluster: str, options: Mapping[str, str]) -> Hadoop:
        key = (cluster, tuple(sorted(options.items())))
        if key not in self._clients:
            jvm = self._gateway.jvm
            made = _on(self._threads, lambda: _described(lambda: _filesystem(jvm, cluster, options)))
            self._clients[key] = Hadoop(jvm, made, self._threads, self._carriers)
        return self._clients[key]

    def close(self) -> None:
        """End the JVM by closing its standard input."""
        process = self._process
        # Collected Java objects are not reported from here on: the JVM may be gone before it could answer.
        self._gateway._gateway_client.is_connected = False  # noqa: SLF001 - py4j has no other way to say so
        self.let_go()
        try:
            process.wait(_TEAR_DOWN)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def let_go(self) -> None:
        """Close this process's end of the pipe."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()


_lock = threading.Lock()
_running: _Jvm | None = None
_inherited: list[_Jvm] = []


@atexit.register
def _end() -> None:
    if _running is not None:
        _running.close()


def _after_fork() -> None:
    """Forget the parent's JVM in the child: its threads are gone, and its connections belong to the parent.

    The parent may have held the lock. Keep the parent's objects from collection here: py4j would tell the JVM.
    """
    global _lock, _running  # noqa: PLW0603 - see above
    _lock = threading.Lock()
    if _running is not None:
        _running.let_go()
        _inherited.append(_running)
        _running = None


os.register_at_fork(after_in_child=_after_fork)


class _Settings:
    """The part of a SparkConf that PySpark's launcher reads, without asking the JVM of a session that may be gone."""

    def getAll(self) -> list[tuple[str, str]]:  # noqa: N802 - Spark's name
        # No application runs there. In a container of YARN spark-submit would take the container's master, and refuse.
        return [("spark.driver.memory", _HEAP), ("spark.master", "local"), ("spark.submit.deployMode", "client")]


def _launch() -> Any:
    """A gateway to a new JVM."""
    # The import takes half a second, which users of other storages do not pay.
    from pyspark.errors import PySparkRuntimeError  # noqa: PLC0415
    from pyspark.java_gateway import launch_gateway  # noqa: PLC0415

    home = os.environ.get("JAVA_HOME")
    if not (Path(home, "bin", "java").exists() if home else shutil.which("java")):
        missing = StorageUnusable if home else JavaNotFound  # a mount that is away comes back
        raise missing(
            "Checkpoints on HDFS go through Hadoop's client, which needs Java, and "
            + (f"there is none in JAVA_HOME, which is {home}." if home else "there is none on the PATH."),
            hint="Install the Java that Spark needs (17 or later) on this machine, too, and set JAVA_HOME to it.",
        )
    with tempfile.TemporaryFile() as said:
        try:
            with _without_gateway():
                gateway = launch_gateway(_Settings(), {"stdout": said, "stderr": said})  # type: ignore[no-untyped-call]
        except PySparkRuntimeError as error:
            said.seek(0)
            lines = said.read().decode(errors="replace").strip().splitlines() or [str(error)]
            telling = next((line for line in lines if "Exception" in line or "Error" in line), lines[-1])
            raise StorageUnusable(
                f"The JVM for Hadoop's client did not start: {telling.strip()}",
                hint="It is started by Spark's own spark-submit: see that `pyspark` starts on this machine.",
            ) from error
    _raise_at_once(gateway._gateway_client)  # noqa: SLF001 - where py4j's answers come in
    return gateway


@contextlib.contextmanager
def _without_gateway() -> Iterator[None]:
    """Hide the JVM above this process, if there is one: PySpark would use that JVM instead of a new one.

    ``spark-submit`` starts a driver below the JVM of its Spark session. That JVM is paused at the end of a lease, when
    the run must still be able to write.
    """
    hidden = {key: os.environ.pop(key) for key in tuple(os.environ) if key.startswith("PYSPARK_GATEWAY")}
    try:
        yield
    finally:
        os.environ.update(hidden)


def _raise_at_once(client: Any) -> None:
    """Make ``client`` raise the JVM's exceptions before PySpark sees them.

    With a session, PySpark puts its own function into py4j. That function asks the session's JVM for the kind of the
    exception, by a number that means something else in that JVM.
    """
    send = client.send_command

    def send_command(command: str, retry: bool = True, binary: bool = False) -> Any:
        answer = send(command, retry=retry, binary=binary)
        if not binary and is_error(answer)[0]:
            _, target, member = (*command.split("\n"), "", "")[:3]
            get_return_value(answer, client, target, member)
        return answer

    client.send_command = send_command


def _filesystem(jvm: Any, cluster: str, options: Mapping[str, str]) -> Any:
    """A separate ``org.apache.hadoop.fs.FileSystem``: other code may close one from Hadoop's cache."""
    hadoop_util = jvm.org.apache.spark.deploy.SparkHadoopUtil.get()
    configuration = hadoop_util.newConfiguration(jvm.org.apache.spark.SparkConf())
    for key, value in _PATIENCE.items():
        if all(source.endswith("-default.xml") for source in configuration.getPropertySources(key) or ()):
            configuration.set(key, value)
    for key, value in {**options, **_CHECKSUMS}.items():
        configuration.set(key, value)
    return jvm.org.apache.hadoop.fs.FileSystem.newInstance(jvm.java.net.URI(f"{cluster}/"), configuration)


def _on(threads: ThreadPoolExecutor, work: Callable[[], _Result]) -> _Result:
    try:
        future = threads.submit(work)
    except RuntimeError as error:  # this thread outlives Python's shutdown
        raise JavaFailure(str(error), [("InterruptedException", f"this process ends ({error})")]) from error
    return future.result()


def _described(work: Callable[[], _Result]) -> _Result:
    """Turn a Java exception into a ``JavaFailure`` on this thread: printing py4j's exception asks the JVM again."""
    try:
        return work()
    except Py4JJavaError as error:
        raise _failure(error) from None
    except (Py4JError, ConnectionError) as error:
        raise _gone(error) from None


def _failure(error: Py4JJavaError) -> JavaFailure:
    causes: list[tuple[str, str]] = []
    throwable = error.java_exception
    try:
        while throwable is not None and len(causes) < 8:
            name = str(throwable.getClass().getName())
            if name.endswith(".RemoteException"):  # wraps a class that the client does not translate
                name = str(throwable.getClassName())
            causes.append((name.rpartition(".")[2], str(throwable.getMessage() or "")))
            throwable = throwable.getCause()
        return JavaFailure(str(error), causes)
    except (Py4JError, ConnectionError) as gone:
        return _gone(gone)


def _gone(error: Exception) -> JavaFailure:
    return JavaFailure(str(error), [("Py4JNetworkError", f"the JVM of Hadoop's client is gone ({error})")])
