"""A session of Spark that is started and warm before anybody needs it, in the process that will use it."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from dagster_ckpt.checkpoint import ProcessIdentity, mark_children
from dagster_ckpt.config import StateBackend
from dagster_ckpt.errors import DriverLost
from dagster_ckpt.filesystem import scratch_directory
from dagster_ckpt.spark.jvm import IN_THIS_PROCESS, run_small_query
from dagster_ckpt.spark.query import driver_jvm_pid, streaming_session, unload_state

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["WarmSession"]

_log = logging.getLogger(__name__)
_SCORE = "oom_score_adj"
_FIRST_TO_GO = "1000"


class WarmSession:
    """Starts a session on a thread of its own, and runs a small stream in it.

    Until :meth:`take`, this process and its JVM are the first to go when memory runs out.

    Args:
        session: starts Spark; the run that takes the session calls it again, and gets the same one.
        backend: of the job's state.
    """

    def __init__(self, session: Callable[[], SparkSession], backend: StateBackend | None) -> None:
        self._session, self._backend = session, backend
        self._jvm: ProcessIdentity | None = None
        self._error: Exception | None = None
        self._score = _replace_score("self", _FIRST_TO_GO)
        mark_children()  # so that a later run may kill the JVM if this process leaves the JVM behind
        self._thread = threading.Thread(target=self._warm, name="dagster-ckpt-warm", daemon=True)
        self._thread.start()

    def is_warm(self) -> bool:
        """Whether the session is ready.

        Raises:
            DriverLost: its JVM is gone.
            Exception: Spark did not start.
        """
        if self._thread.is_alive():
            return False
        if self._error is not None:
            raise self._error
        if self._jvm is not None and not self._jvm.is_alive():
            raise DriverLost(
                f"The JVM of the standby, process {self._jvm.pid}, is gone.",
                hint="The resume sensor launches another standby. The job itself is not concerned.",
            )
        return True

    def take(self) -> None:
        """The session is in use from now on."""
        if self._score is not None:
            _replace_score("self", self._score)
            # Python's workers, which a rehearsal has started, are children of the JVM and have its score.
            for pid in [] if self._jvm is None else _with_descendants(self._jvm.pid):
                _replace_score(str(pid), self._score)

    def _warm(self) -> None:
        try:
            spark = self._session()
            if (pid := driver_jvm_pid(spark)) is not None:
                self._jvm = ProcessIdentity.of(pid)
            if IN_THIS_PROCESS.match(str(spark.sparkContext.master)):  # executors elsewhere cannot read the small files
                _run_stream(streaming_session(spark, None, self._backend))
        except Exception as error:
            self._error = error


def _with_descendants(pid: int) -> Iterator[int]:
    """A process and what it has started, each after its parent, so that what is started meanwhile inherits anew."""
    yield pid
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(pid).children():
            yield from _with_descendants(child.pid)


def _run_stream(session: SparkSession) -> None:
    """Load and compile the classes of a stream with state, and leave nothing else."""
    jvm: Any = session._jvm  # noqa: SLF001 - PySpark names it nowhere else
    with scratch_directory() as scratch:
        try:
            run_small_query(session, scratch)
        finally:
            unload_state(session)
    jvm.System.gc()


def _replace_score(process: str, score: str) -> str | None:
    """Set how early the kernel ends a process when memory runs out; returns the earlier score, if it could be set."""
    file = Path(f"/proc/{process}/{_SCORE}")
    try:
        before = file.read_text(encoding="ascii")
        file.write_text(score, encoding="ascii")
    except OSError as error:
        _log.debug("%s cannot be set: %s", file, error)
        return None
    return before
