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
from datetime import timedelta
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
from dagster_ckpt.errors import CheckpointError, DriverLost, InvalidConfiguration, JavaNotFound, SparkNotStarted
from dagster_ckpt.spark.files import PARTITIONS_CONF
from dagster_ckpt.spark.jvm import (
    IN_THIS_PROCESS,
    is_gone,
    launched_for_a_short_start,
    launched_with_compiler,
    let_go_of_lost_jvm,
    load_local_files,
    local_files_conf,
    own_jvm_pid,
    with_archive,
)
from dagster_ckpt.spark.query.tasks import STOP_TIMEOUT_CONF
from dagster_ckpt.spark.query.time_zone import TIME_ZONE_CONF, keep_time_zone
from dagster_ckpt.spark.releases import refuse_unknown_options, release_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "check_characters",
    "check_state_format",
    "driver_jvm_pid",
    "find_java",
    "find_programs",
    "jvm_conf",
    "make_active",
    "start_jvm",
    "start_session",
    "streaming_session",
]

_MINIMUM_JAVA = 17
_MODULE = "jdk.incubator.vector"
_HOW = (
    "Install a full Java 17 or later and set JAVA_HOME to it: on Debian or Ubuntu "
    "`apt-get install openjdk-17-jre-headless`, on macOS `brew install openjdk@17`."
)
_CHANGELOGS = {PROVIDER_CONF: ROCKSDB_PROVIDER, CHANGELOG_CONF: "true"}
#: New queries keep their state in RocksDB with changelogs, Spark keeps at least this many batches, and a batch that
#: did not heed its interrupt is interrupted again.
_DEFAULTS = {
    **_CHANGELOGS,
    "spark.sql.streaming.minBatchesToRetain": "100",
    STOP_TIMEOUT_CONF: "5s",
}
#: Spark looks this often whether there is a new snapshot of RocksDB to be stored, which there is once in ten batches. A
#: restore replays all later changes. Spark's own setting is 60 s.
_SNAPSHOTS_CONF = "spark.sql.streaming.stateStore.maintenanceInterval"
_SHORTEST_BETWEEN_SNAPSHOTS, _LONGEST_BETWEEN_SNAPSHOTS = timedelta(seconds=1), timedelta(seconds=60)
#: The progress bars of a stream would fill the terminal of ``dagster dev`` for months.
_QUIET = {"spark.ui.showConsoleProgress": "false"}
#: The errors for a file that this machine cannot execute.
_NO_PROGRAM = frozenset({errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOEXEC})


def find_java(*, by_running: bool = False) -> Path:
    """The ``java`` that PySpark will use: ``$JAVA_HOME/bin/java``, else the one on the ``PATH``.

    Args:
        by_running: run it, and do not believe its ``release`` file: that of a Java for another processor is as good.

    Raises:
        JavaNotFound: there is no Java, or it is older than 17, or it lacks the module that PySpark needs.
        SparkNotStarted: Java does not run now, so its version is unknown; or ``JAVA_HOME`` has none, as where it is on
            a mount that is away.
    """
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    needs = f"PySpark needs Java {_MINIMUM_JAVA} or later"
    if found is None:
        raise JavaNotFound(f"There is no java on the PATH; {needs}.", hint=_HOW)
    if home and not Path(found).exists():
        raise SparkNotStarted(f"JAVA_HOME is {home}, but {found} does not exist; {needs}.", hint=_HOW)
    java = Path(found)
    if not by_running and _is_told_to_do(java):
        return java
    version = _output([str(java), "-version"])
    match = re.search(r'version "(\d+)', version)
    if match is None or int(match[1]) < _MINIMUM_JAVA:
        raise JavaNotFound(
            f"{java} is {version.splitlines()[0] if version else 'not a working Java'}; {needs}.", hint=_HOW
        )
    if _MODULE not in _output([str(java), "--list-modules"]):
        raise JavaNotFound(f"{java} is a trimmed Java without the module {_MODULE}, which Spark loads.", hint=_HOW)
    return java


def _is_told_to_do(java: Path) -> bool:
    """Whether the file ``release`` of a Java says that Spark can use this Java, which saves two starts of Java."""
    try:
        told = (java.resolve().parent.parent / "release").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return False
    version, modules = (
        re.search(r'^JAVA_VERSION="(\d+)', told, re.MULTILINE),
        re.search(r'^MODULES="(.*)"', told, re.MULTILINE),
    )
    if version is None or modules is None or not os.access(java, os.X_OK):
        return False
    return int(version[1]) >= _MINIMUM_JAVA and _MODULE in modules[1].split()


def start_jvm(app_name: str, master: str, conf: Mapping[str, str], *, class_archive: bool = False) -> None:
    """Start the JVM that :func:`start_session` with the same arguments will use; on any thread.

    A process that has a JVM keeps it, unless that JVM is gone. The arguments are those of :func:`start_session`.

    Raises:
        JavaNotFound: there is no usable Java.
        Exception: the JVM did not start; :func:`start_session` tries again, and tells why.
    """
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415 - half a second that only a driver has to pay

    let_go_of_lost_jvm()
    if _has_jvm():
        return
    find_programs(conf)
    given = jvm_conf(app_name, master, conf)
    with with_archive(conf, wanted=class_archive), launched_with_compiler(given), launched_for_a_short_start():
        SparkContext._ensure_initialized(conf=SparkConf().setAll(list(given.items())))  # noqa: SLF001
    load_local_files(SparkContext._jvm, given)  # noqa: SLF001


def jvm_conf(app_name: str, master: str, conf: Mapping[str, str]) -> dict[str, str]:
    """The conf of a JVM that is started next."""
    return {"spark.app.name": app_name, "spark.master": master, **_QUIET, **conf}  # as in the session's builder


def start_session(app_name: str, master: str, conf: Mapping[str, str], *, class_archive: bool = False) -> SparkSession:
    """Start Spark, or join the session that this process already has and whose JVM still runs.

    Args:
        app_name: name of the application.
        master: URL of the master.
        conf: of the session, and of the JVM if it is started here.
        class_archive: let the JVM use the class archive, if there is one.

    Raises:
        JavaNotFound: there is no usable Java.
        SparkNotStarted: Spark did not start; another start may succeed.
        DriverLost: the JVM is gone.
    """
    let_go_of_lost_jvm()
    with contextlib.suppress(Exception):  # the JVM is started below, with nothing that is not needed
        start_jvm(app_name, master, conf, class_archive=class_archive)
    try:
        return _session(app_name, master, conf)
    except CheckpointError:
        raise
    except Exception as error:
        from pyspark import SparkContext  # noqa: PLC0415 - as below

        process = getattr(SparkContext._gateway, "proc", None)  # noqa: SLF001
        said = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        if process is not None and is_gone(process, error):
            raise DriverLost(
                f"The JVM of Spark for {app_name!r} is gone: {said}", hint="The job is started again in a new JVM."
            ) from error
        if not _has_jvm():
            find_java(by_running=True)
        raise SparkNotStarted(f"Spark for {app_name!r} did not start: {said}", hint=_look_at(conf)) from error


def _session(app_name: str, master: str, conf: Mapping[str, str]) -> SparkSession:
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415 - half a second that only a driver has to pay
    from pyspark.sql import SparkSession  # noqa: PLC0415

    if SparkSession.getActiveSession() is None:
        find_programs(conf)
    given = {**_QUIET, **conf}
    if _has_jvm() and SparkContext._active_spark_context is None:  # noqa: SLF001
        all_given = dict([*SparkConf().getAll(), ("spark.master", master), *given.items()])
        given |= local_files_conf(SparkContext._jvm, all_given)  # noqa: SLF001
    builder = SparkSession.builder.appName(app_name).master(master)
    for key, value in given.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def find_programs(conf: Mapping[str, str]) -> None:
    """Find Java, unless its JVM is there, and Python for a Spark that is started next.

    Raises:
        JavaNotFound: there is no usable Java.
    """
    if not _has_jvm():
        find_java()
    if "spark.pyspark.python" not in conf:
        # Python workers must use the driver's Python: the Python on the PATH may lack its packages.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def _has_jvm() -> bool:
    from pyspark import SparkContext  # noqa: PLC0415 - as above

    return SparkContext._gateway is not None  # noqa: SLF001


def streaming_session(
    spark: SparkSession,
    restored: Facts | None,
    backend: StateBackend | None = None,
    partitions: int | None = None,
    snapshots_each: timedelta | None = None,
) -> SparkSession:
    """A separate session for one query, with this library's state defaults where the user set nothing.

    New queries keep their state in RocksDB with changelog checkpointing and, where the release has them, immutable file
    names (state format 2); under a local master in a partition per core. Spark keeps at least 100 batches. A restored
    query keeps its first settings, which Spark fixes at the first start, and the time zone of its checkpoint.

    Args:
        spark: the session with the configuration to use.
        restored: the facts of the restored checkpoint.
        backend: the job's state backend, which overrides that configuration; it must fit ``restored``.
        partitions: the number for a query that starts from nothing; ``None`` for that of the configuration.
        snapshots_each: how often snapshots of RocksDB are stored, from each second to each minute; ``None`` for
            Spark's own setting.

    Raises:
        InvalidConfiguration: an option of the backend cannot be used, or Java does not know the checkpoint's time zone.
    """
    release = release_of(spark.version)
    session = spark.newSession()
    explicit = _explicit_sql_conf(spark)
    for key, value in explicit.items():
        session.conf.set(key, value)
    for key, value in _DEFAULTS.items():
        if session.conf.get(key, None) is None:
            session.conf.set(key, value)
    if backend is not None:
        refuse_unknown_options(settings := backend.spark_conf(), release)
        for key, value in settings.items():
            session.conf.set(key, value)
    if restored is not None:
        session.conf.set(PROVIDER_CONF, str(restored.state_store_provider or session.conf.get(PROVIDER_CONF)))
        session.conf.set(STATE_FORMAT_CONF, str(release.session_format(restored.state_format, restored.commit_log)))
        if restored.time_zone is not None:
            keep_time_zone(session, restored.time_zone, is_chosen=TIME_ZONE_CONF in explicit)
    elif session.conf.get(STATE_FORMAT_CONF, None) is None and session.conf.get(PROVIDER_CONF) == ROCKSDB_PROVIDER:
        session.conf.set(STATE_FORMAT_CONF, str(max(release.formats.state)))
    if snapshots_each is not None and all(session.conf.get(key) == value for key, value in _CHANGELOGS.items()):
        _store_snapshots(session, snapshots_each)
    if partitions is None and PARTITIONS_CONF not in explicit:
        partitions = _default_partitions(spark, restored)
    if partitions is not None:
        session.conf.set(PARTITIONS_CONF, str(partitions))
    return session


def _store_snapshots(session: SparkSession, wanted: timedelta) -> None:
    """Have the changes that a restore replays reach back no further than to the checkpoint before."""
    if session.conf.get(_SNAPSHOTS_CONF, None) is None:
        between = min(max(wanted, _SHORTEST_BETWEEN_SNAPSHOTS), _LONGEST_BETWEEN_SNAPSHOTS)
        session.conf.set(_SNAPSHOTS_CONF, f"{between // timedelta(milliseconds=1)}ms")


def check_state_format(session: SparkSession) -> None:
    """Make sure that the state of a new query can be kept; the job's function may have set its format.

    Raises:
        InvalidConfiguration: the running release does not keep state in the session's format.
    """
    own, release = session.conf.get(STATE_FORMAT_CONF, None), release_of(session.version)
    if own not in {None, *map(str, release.formats.state)}:
        raise InvalidConfiguration(
            f"{STATE_FORMAT_CONF} is {own}, and state in that format cannot be kept with Spark {release.name}.",
            hint=f"Leave the setting out, or set it to {max(release.formats.state)}.",
        )


def _default_partitions(spark: SparkSession, restored: Facts | None) -> int | None:
    """The number that a checkpoint has fixed; else one per core of this machine, ``None`` for Spark's own on a cluster.

    Each partition is a task and a state store of its own, and Spark's 200 keep a single machine busy with nothing else.
    """
    if restored is not None:
        fixed = str(restored.sql_confs.get(PARTITIONS_CONF, ""))
        return int(fixed) if fixed.isdecimal() else None
    context = spark.sparkContext
    return context.defaultParallelism if IN_THIS_PROCESS.match(str(context.master)) else None


def make_active(session: SparkSession) -> None:
    """Make a session the calling thread's active session, in which Spark looks for Python data sources."""
    java_sessions = session._get_j_spark_session_class(session._jvm)  # noqa: SLF001 - PySpark has no public name for it
    java_sessions.setActiveSession(session._jsparkSession)  # noqa: SLF001


def driver_jvm_pid(spark: SparkSession) -> int | None:
    """The process id of the JVM if the JVM serves this process alone, else ``None``."""
    return own_jvm_pid(spark.sparkContext._gateway)  # noqa: SLF001 - PySpark names it nowhere else


def _look_at(conf: Mapping[str, str]) -> str:
    """The advice for a person when Spark does not start."""
    memory = conf.get("spark.driver.memory", "not set: 1g")
    return (
        "The JVM has written why to the error output of this process (in Dagster: stderr of the run). Look there, at "
        f"the memory that this machine has left (spark.driver.memory is {memory}), and at JAVA_HOME "
        f"({os.environ.get('JAVA_HOME', 'not set')}). The job is started again by its restart strategy."
    )


def check_characters(spark: SparkSession, path: str) -> None:
    """Refuse a path that the JVM would open under another name: outside its character set, a JVM writes ``?``.

    Raises:
        InvalidConfiguration: the path has such characters.
    """
    if path.isascii():
        return
    known = str(spark._jvm.java.lang.System.getProperty("sun.jnu.encoding"))  # type: ignore[union-attr]  # noqa: SLF001
    try:
        path.encode(known)
    except UnicodeEncodeError as error:
        raise InvalidConfiguration(
            f"Spark cannot reach {path!r}: its JVM knows names of files in {known} only, and would open "
            f"{path.encode(known, 'replace').decode(known)!r}.",
            hint="Start the process with LC_ALL=C.UTF-8 in its environment, or name a directory in ASCII.",
        ) from error
    except LookupError:  # a character set that Python does not know
        return


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
