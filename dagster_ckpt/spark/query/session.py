"""Finding Java, starting a Spark session, and the defaults under which streaming state is kept."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_ckpt.checkpoint import Facts
from dagster_ckpt.config import (
    CHANGELOG_CONF,
    PROVIDER_CONF,
    ROCKSDB_PROVIDER,
    STATE_FORMAT_CONF,
    StateBackend,
)
from dagster_ckpt.errors import CheckpointError, DriverLost, JavaNotFound, SparkNotStarted
from dagster_ckpt.spark.files import PARTITIONS_CONF

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["driver_jvm_pid", "find_java", "is_jvm_alive", "make_active", "start_session", "streaming_session"]

_MINIMUM_JAVA = 17
_MODULE = "jdk.incubator.vector"
_HOW = (
    "Install a full Java 17 or later and set JAVA_HOME to it: on Debian or Ubuntu "
    "`apt-get install openjdk-17-jre-headless`, on macOS `brew install openjdk@17`."
)
#: New queries keep their state in RocksDB with changelogs, and Spark keeps at least this many batches.
_DEFAULTS = {
    PROVIDER_CONF: ROCKSDB_PROVIDER,
    CHANGELOG_CONF: "true",
    "spark.sql.streaming.minBatchesToRetain": "100",
}
#: The errors for a file that this machine cannot execute.
_NO_PROGRAM = frozenset({errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOEXEC})
#: Seconds until a dying JVM must be gone.
_TEAR_DOWN = 5.0


def find_java() -> Path:
    """The ``java`` that PySpark will use: ``$JAVA_HOME/bin/java``, else the one on the ``PATH``.

    Raises:
        JavaNotFound: there is no Java, or it is older than 17, or it lacks the module that PySpark needs.
        SparkNotStarted: Java does not run now, so its version is unknown.
    """
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if found is None or not Path(found).exists():
        where = f"JAVA_HOME is {home}, but {found} does not exist" if home else "There is no java on the PATH"
        raise JavaNotFound(f"{where}; PySpark needs Java {_MINIMUM_JAVA} or later.", hint=_HOW)
    java = Path(found)
    version = _output([str(java), "-version"])
    match = re.search(r'version "(\d+)', version)
    if match is None or int(match[1]) < _MINIMUM_JAVA:
        raise JavaNotFound(
            f"{java} is {version.splitlines()[0] if version else 'not a working Java'}; "
            f"PySpark needs Java {_MINIMUM_JAVA} or later.",
            hint=_HOW,
        )
    if _MODULE not in _output([str(java), "--list-modules"]):
        raise JavaNotFound(f"{java} is a trimmed Java without the module {_MODULE}, which Spark loads.", hint=_HOW)
    return java


def start_session(app_name: str, master: str, conf: Mapping[str, str]) -> SparkSession:
    """Start Spark, or join the session that this process already has.

    Raises:
        JavaNotFound: there is no usable Java.
        SparkNotStarted: Spark did not start; another start may succeed.
        DriverLost: the JVM that this process started earlier is gone, so only a new process can start Spark.
    """
    try:
        return _session(app_name, master, conf)
    except CheckpointError:
        raise
    except Exception as error:
        from pyspark import SparkContext  # noqa: PLC0415 - as below

        # PySpark keeps the gateway to the first JVM of a process forever.
        process = getattr(SparkContext._gateway, "proc", None)  # noqa: SLF001
        said = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        if process is not None and _is_gone(process, error):
            raise DriverLost(
                f"The JVM of Spark for {app_name!r} is gone: {said}",
                hint="The sensor resumes the job in a new process.",
            ) from error
        raise SparkNotStarted(f"Spark for {app_name!r} did not start: {said}", hint=_look_at(conf)) from error


def _session(app_name: str, master: str, conf: Mapping[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession  # noqa: PLC0415 - half a second that only a driver has to pay

    if SparkSession.getActiveSession() is None:
        find_java()
        if "spark.pyspark.python" not in conf:
            # Python workers must use the driver's Python: the Python on the PATH may lack its packages.
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app_name).master(master)
    for key, value in conf.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def streaming_session(
    spark: SparkSession,
    restored: Facts | None,
    backend: StateBackend | None = None,
    partitions: int | None = None,
) -> SparkSession:
    """A separate session for one query, with this library's state defaults where the user set nothing.

    New queries keep their state in RocksDB with changelog checkpointing and immutable file names (state format 2), and
    Spark keeps at least 100 batches. A restored query keeps its first settings, which Spark fixes at the first start.

    Args:
        spark: the session with the configuration to use.
        restored: the facts of the restored checkpoint.
        backend: the job's state backend, which overrides that configuration; it must fit ``restored``.
        partitions: the number for a query that starts from nothing; ``None`` for that of the configuration.

    Raises:
        InvalidConfiguration: an option of the backend cannot be used.
    """
    session = spark.newSession()
    for key, value in _explicit_sql_conf(spark).items():
        session.conf.set(key, value)
    for key, value in _DEFAULTS.items():
        if session.conf.get(key, None) is None:
            session.conf.set(key, value)
    if backend is not None:
        for key, value in backend.spark_conf().items():
            session.conf.set(key, value)
    if restored is not None:
        session.conf.set(PROVIDER_CONF, str(restored.state_store_provider or session.conf.get(PROVIDER_CONF)))
        session.conf.set(STATE_FORMAT_CONF, str(restored.state_format or 1))
    elif session.conf.get(STATE_FORMAT_CONF, None) is None and session.conf.get(PROVIDER_CONF) == ROCKSDB_PROVIDER:
        session.conf.set(STATE_FORMAT_CONF, "2")
    if partitions is not None:
        session.conf.set(PARTITIONS_CONF, str(partitions))
    return session


def make_active(session: SparkSession) -> None:
    """Make a session the calling thread's active session, in which Spark looks for Python data sources."""
    java_sessions = session._get_j_spark_session_class(session._jvm)  # noqa: SLF001 - PySpark has no public name for it
    java_sessions.setActiveSession(session._jsparkSession)  # noqa: SLF001


def driver_jvm_pid(spark: SparkSession) -> int | None:
    """The process id of the JVM if this process started the JVM, else ``None``."""
    process = getattr(spark.sparkContext._gateway, "proc", None)  # noqa: SLF001 - PySpark names it nowhere else
    return None if process is None else int(process.pid)


def is_jvm_alive(spark: SparkSession, *, after: Exception | None = None) -> bool:
    """Whether the JVM of this process still runs; ``True`` when this process did not start the JVM and cannot know.

    Args:
        spark: any session of the JVM.
        after: the error that raised the question. A JVM that shuts down refuses connections before it is gone.
    """
    process = getattr(spark.sparkContext._gateway, "proc", None)  # noqa: SLF001
    return process is None or not _is_gone(process, after)


def _is_gone(process: subprocess.Popen[bytes], after: Exception | None) -> bool:
    from py4j.protocol import Py4JNetworkError  # noqa: PLC0415 - PySpark is loaded where it runs

    if isinstance(after, (Py4JNetworkError, OSError)):
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_TEAR_DOWN)
    return process.poll() is not None


def _look_at(conf: Mapping[str, str]) -> str:
    """The advice for a person when Spark does not start."""
    memory = conf.get("spark.driver.memory", "not set: 1g")
    return (
        "The JVM has written why to the error output of this process (in Dagster: stderr of the run). Look there, at "
        f"the memory that this machine has left (spark.driver.memory is {memory}), and at JAVA_HOME "
        f"({os.environ.get('JAVA_HOME', 'not set')}). The job is started again by its restart strategy."
    )


def _explicit_sql_conf(spark: SparkSession) -> dict[str, str]:
    """The settings made on the session itself; ``newSession`` copies the context's configuration only."""
    entries = spark._jsparkSession.sessionState().conf().settings()  # noqa: SLF001
    found = {str(entry.getKey()): str(entry.getValue()) for entry in entries.entrySet()}
    # `conf.isModifiable` is false for every unregistered key, and the keys of RocksDB are unregistered.
    is_static = spark._jvm.org.apache.spark.sql.internal.SQLConf.isStaticConfigKey  # type: ignore[union-attr]  # noqa: SLF001
    return {key: value for key, value in found.items() if key.startswith("spark.sql.") and not is_static(key)}


def _output(command: list[str]) -> str:
    """The output of a Java command.

    Raises:
        JavaNotFound: this machine cannot execute the file.
        SparkNotStarted: the command did not end normally, which may be different next time.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)  # noqa: S603
    except OSError as error:
        if error.errno in _NO_PROGRAM:
            raise JavaNotFound(f"{command[0]} is not a working Java: {error.strerror}.", hint=_HOW) from error
        raise SparkNotStarted(f"{' '.join(command)} was not started: {error.strerror}.", hint=_look_at({})) from error
    except subprocess.TimeoutExpired as error:
        raise SparkNotStarted(f"{' '.join(command)} did not end within 60 s.", hint=_look_at({})) from error
    said = done.stdout + done.stderr
    if done.returncode:
        first = said.strip().partition("\n")[0] or "it said nothing"
        raise SparkNotStarted(f"{' '.join(command)} ended with {done.returncode}: {first}.", hint=_look_at({}))
    return said
