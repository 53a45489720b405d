"""One standby for the JVM of this process: adopted at a start, and kept for the next run while the job runs.

No error leaves this module: a standby saves time, and is needed by nobody.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial

from dagster_ckpt.filesystem import default_root, make_working_directory
from dagster_ckpt.spark.jvm import let_go_of_lost_jvm
from dagster_ckpt.spark.query import find_programs, jvm_conf
from dagster_ckpt.spark.standby.adopted_jvm import adopt
from dagster_ckpt.spark.standby.handover import TAKEN, UNADOPTED, UNASKED, WAIT
from dagster_ckpt.spark.standby.place import Standby, directory, is_kept

__all__ = ["adopt_standby", "end_standby", "keep_standby", "launch_early"]

_log = logging.getLogger(__name__)

#: Seconds for which no JVM is launched with a run, when no run has asked for the last one.
_UNASKED_FOR = 3600.0


class _Kept:
    """The standby that this process keeps.

    Attributes:
        wanted: what this process has last asked for, and so what its next run will ask for.
        keeper: the process of the standby.
        left: keepers that this process is done with and has not seen ended: an adopted JVM keeps its parent.
        next_at: monotonic seconds before which no other is started, if one ends unadopted.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.wanted: Standby | None = None
        self.keeper: subprocess.Popen[bytes] | None = None
        self.thread: threading.Thread | None = None
        self.left: list[subprocess.Popen[bytes]] = []
        self.next_at = 0.0

    @property
    def is_due(self) -> bool:
        """Whether another keeper may be started now."""
        alive = self.thread is not None and self.thread.is_alive()
        return not alive and time.monotonic() >= self.next_at

    def begin(self, keep: Callable[[], None]) -> None:
        """Start a keeper, and wait for it, on a thread: the directory may hang, and this thread drives a job."""
        self.thread = threading.Thread(target=keep, name="dagster-ckpt-standby", daemon=True)
        try:
            self.thread.start()
        except RuntimeError as error:
            self.thread = None
            _log.warning("No standby is kept: %s", error)


_kept = _Kept()


def adopt_standby(
    app_name: str, master: str, conf: Mapping[str, str], *, class_archive: bool, kept: bool = True
) -> bool:
    """Make a JVM that waits for this run this process's own, if there is one of this configuration; on any thread.

    That is a standby, or the JVM that :func:`launch_early` has begun to start.

    Args:
        app_name: as of :func:`~dagster_ckpt.spark.query.start_session`.
        master: likewise.
        conf: likewise.
        class_archive: likewise.
        kept: whether a standby may have been kept.

    Returns:
        whether this process has the JVM now. If not, the log says why.
    """
    if sys.platform != "linux":
        if kept:
            _log.warning("There is no standby: only Linux has what hands a JVM over. Set standby to 0.")
        return False
    try:
        from pyspark import SparkContext  # noqa: PLC0415 - half a second that only a driver has to pay

        let_go_of_lost_jvm()
        # Below spark-submit there is a JVM already, with settings of its command line.
        if SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:  # noqa: SLF001 - no public way
            return False
        find_programs(conf)
        wanted = _kept.wanted = Standby.of(jvm_conf(app_name, master, conf), class_archive=class_archive)
        gateway, whose = adopt(wanted.name) if kept else None, "of a standby"
        if gateway is None:
            gateway, whose = adopt(wanted.early, WAIT), "that was launched with this run"
        if gateway is None:
            if kept:
                _log.info("Spark starts a JVM: no standby of this configuration waits in %s.", directory())
            return False
        SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001
    except Exception as error:
        _log.warning("Spark starts a JVM, because the one that waits cannot be adopted: %s", error)
        return False
    _kept.next_at = 0.0
    _log.info("Spark goes on in the JVM %s: process %d.", whose, gateway.proc.pid)
    return True


def keep_standby() -> None:
    """Have a standby for the next run, started in the background unless there is one; returns at once.

    One that ends unadopted is not started again for some minutes.
    """
    with _kept.lock:
        if _kept.wanted is not None and _kept.is_due:
            _kept.next_at = time.monotonic() + UNADOPTED
            _kept.begin(partial(_keep, _kept.wanted))


def launch_early(app_name: str, master: str, conf: Mapping[str, str], *, class_archive: bool) -> None:
    """Start the JVM of a run that is launched now, in the background; returns at once.

    That run adopts the JVM, by then started, if both processes have the same environment and directory. This process
    waits for one such run at a time. The JVM ends with this process, or if no run has adopted it in a minute; then none
    is launched for an hour, because it would only take processor time from the run. The arguments are those of
    :func:`~dagster_ckpt.spark.query.start_session`.
    """
    if sys.platform != "linux":
        return

    def launch() -> None:
        try:
            wanted = Standby.of(jvm_conf(app_name, master, conf), class_archive=class_archive)
            waits = (directory() / f"{wanted.name}.sock").exists() and is_kept(wanted.name)
        except OSError as error:  # the run tells why
            _log.info("The JVM of %s is started by its run: %s", app_name, error)
            return
        if not waits:  # else a standby does
            _keep(wanted, early=True)

    with _kept.lock:
        if _kept.is_due:
            _kept.begin(launch)


def end_standby() -> None:
    """End the standby of this process: the job is over, and no run goes on from it."""
    with _kept.lock:
        _kept.wanted = None
        if _kept.keeper is not None:
            _kept.keeper.kill()  # its JVM ends with it


def _keep(wanted: Standby, *, early: bool = False) -> None:
    name = wanted.early if early else wanted.name
    try:
        make_working_directory(directory(), default_root())
        log = directory() / f"{name}.log"
        with log.open("wb") as said:
            keeper = subprocess.Popen(  # noqa: S603 - this Python, with a module of this package
                [sys.executable, "-m", "dagster_ckpt.spark.standby.keeper", name],
                stdin=subprocess.PIPE,  # it ends when this process is gone
                stdout=subprocess.PIPE,  # tells of the adoption
                stderr=said,
                env=dict(wanted.environment),
                start_new_session=True,  # what ends this process's group must not end the standby
            )
        with _kept.lock:
            _kept.left = [each for each in _kept.left if each.poll() is None]
            _kept.keeper = keeper
            if _kept.wanted is None and not early:
                keeper.kill()
        try:
            returned = _returned(keeper, wanted.asked(early=early))
        finally:
            with _kept.lock:
                _kept.keeper = None
                _kept.left.append(keeper)
    except Exception as error:
        _log.warning("No standby is kept: %s", error)
        return
    if returned is None:
        return
    if early and (returned < 0 or returned == UNASKED):
        _kept.next_at = time.monotonic() + _UNASKED_FOR
        _log.info("No run has asked for the JVM that was launched with it; for an hour none is launched.")
    elif returned > 0:
        _log.warning("The standby has ended with %d; %s says why.", returned, log)


def _returned(keeper: subprocess.Popen[bytes], asked: bytes) -> int | None:
    """How a keeper that was asked for a JVM has ended; ``None`` if a run has adopted the JVM."""
    if keeper.stdin is None or keeper.stdout is None:
        return keeper.wait()
    with keeper.stdin, keeper.stdout:
        keeper.stdin.write(asked)
        keeper.stdin.flush()
        is_adopted = keeper.stdout.read().endswith(TAKEN)
    return None if is_adopted else keeper.wait()
