"""The program that keeps a standby: it starts a JVM of Spark, warms the JVM up, and hands it over to one run.

    python -m dagster_ckpt.spark.standby.keeper NAME < {"conf": ..., "class_archive": ..., "early": ...}

The JVM ends when nobody holds the other end of its standard input. This program holds that end, and gives it to the
first process of the same user that connects to its socket. So a JVM has one owner at any moment, and ends with it.
Then the keeper becomes :mod:`~dagster_ckpt.spark.standby.jvm_parent`, which tells that owner how the JVM ends.
Standard input is a pipe from the driver that wants the standby: the pipe ends when the driver is gone.

An early JVM is one for a run that is launched at this moment. It is not warmed up, and the pipe is from the sensor that
launches the run.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import json
import math
import os
import shutil
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import IO, Any

from dagster_ckpt.checkpoint import mark_children
from dagster_ckpt.spark.jvm import (
    launched_for_a_short_start,
    launched_with_compiler,
    load_local_files,
    local_files_conf,
    run_small_query,
    with_archive,
)
from dagster_ckpt.spark.standby import jvm_parent
from dagster_ckpt.spark.standby.handover import CREDENTIALS, EARLY, PATIENCE, TAKEN, UNADOPTED, UNASKED, pump
from dagster_ckpt.spark.standby.place import directory, sweep

_LOOK = 1.0
#: Tries to have the lock, and seconds between two: whoever asks whether a keeper lives has the lock for an instant.
_TRIES, _INSTANT = 10, 0.05
_SCORE = Path("/proc/self/oom_score_adj")
_FIRST_TO_GO = "1000"
#: The warm-up needs no cluster, no port that a job may want, and none of the user's listeners and plugins.
_WARM_UP = {
    "spark.app.name": "dagster-ckpt standby",
    "spark.master": "local[2]",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.catalogImplementation": "in-memory",
    # A JVM takes one for good, with the conf of the Spark that sets it.
    "spark.sql.defaultUrlStreamHandlerFactory.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
}


class _Driver:
    """Whether the driver that wanted the standby is there."""

    def __init__(self) -> None:
        self.is_warm = False
        self.gone_at: float | None = None
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        os.read(0, 1)  # nobody writes more: this is the end of the pipe
        if not self.is_warm:
            os._exit(1)  # the run that resumes the job needs the processor now
        self.gone_at = time.monotonic()


def main() -> int:
    """Keep the standby until it is adopted, its JVM ends, or nobody wants it any more."""
    name = sys.argv[1]
    asked = json.loads(sys.stdin.buffer.readline())
    with (directory() / f"{name}.lock").open("wb") as lock:
        if not _is_only_one(lock):
            return 0  # another driver has one like it
        driver = _Driver()
        score = ""
        with contextlib.suppress(OSError):  # not every container has it
            score = _SCORE.read_text(encoding="ascii")
            _SCORE.write_text(_FIRST_TO_GO, encoding="ascii")
        mark_children()
        output, said = os.pipe()
        enough, stop = os.pipe()
        pumping = threading.Thread(target=pump, args=(output, enough), daemon=True)
        pumping.start()
        with contextlib.ExitStack() as open_:
            # A run that is launched now may ask before its JVM is there, and waits; who asks for a standby does not.
            listener = open_.enter_context(_listen(name)) if asked["early"] else None
            until = time.monotonic() + EARLY if asked["early"] else math.inf
            hung = threading.Timer(EARLY, os.killpg, (os.getpgrp(), signal.SIGKILL))  # with the JVM that hangs
            hung.daemon = True
            if asked["early"]:
                hung.start()
            gateway = _start(asked["conf"], said, archive=asked["class_archive"], early=asked["early"])
            os.close(said)
            hung.cancel()
            sweep()
            if listener is None:
                _warm_up(gateway, directory() / f"{name}.warm")
                driver.is_warm = True
                listener = open_.enter_context(_listen(name))
            connection = _await(listener, gateway.proc, driver, until)
        (directory() / f"{name}.sock").unlink(missing_ok=True)  # no other run may wait for this JVM
        if connection is None:
            return UNASKED if time.monotonic() >= until else 0
        driver.is_warm = True  # the JVM is a run's, whoever is gone now
        os.write(stop, b".")
        pumping.join()
        with connection:
            if not _is_handed_over(connection, gateway, output):
                return 1
            _stay_as_parent(gateway.proc.pid, connection, score)
    return 0


def _is_only_one(lock: IO[bytes]) -> bool:
    for _ in range(_TRIES):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return os.fstat(lock.fileno()).st_nlink > 0  # else a sweep has deleted the file since it was opened
        time.sleep(_INSTANT)
    return False


def _start(conf: dict[str, str], said: int, *, archive: bool, early: bool) -> Any:
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415 - only where a standby is kept
    from pyspark.java_gateway import launch_gateway  # noqa: PLC0415

    short_start = launched_for_a_short_start() if early else contextlib.nullcontext()
    with with_archive(conf, wanted=archive), launched_with_compiler(conf), short_start:
        given = SparkConf().setAll(list(conf.items()))
        gateway = launch_gateway(given, {"stdout": said, "stderr": said})  # type: ignore[no-untyped-call]
    load_local_files(gateway.jvm, conf)
    SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001 - PySpark has no public way
    return gateway


def _warm_up(gateway: Any, scratch: Path) -> None:
    """Run a small stream in a Spark of its own, and leave nothing of that Spark but loaded and compiled classes."""
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415 - as above
    from pyspark.sql import SparkSession  # noqa: PLC0415

    jvm = gateway.jvm
    given = {**_WARM_UP, **local_files_conf(jvm, _WARM_UP)}
    conf = SparkConf(loadDefaults=False, _jvm=jvm).setAll(list(given.items()))
    spark = SparkSession(SparkContext(conf=conf, gateway=gateway))
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(mode=0o700)
    try:
        run_small_query(spark, scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    with contextlib.suppress(Exception):  # what is still loaded is dropped when Spark is started again
        jvm.org.apache.spark.sql.execution.streaming.state.StateStore.stop()
    spark.stop()
    jvm.org.apache.hadoop.fs.FileSystem.closeAll()  # they know the conf of the warm-up
    jvm.System.gc()


def _listen(name: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    place = os.open(directory(), os.O_RDONLY | os.O_DIRECTORY)
    try:
        (directory() / f"{name}.sock").unlink(missing_ok=True)  # of a keeper that was killed: this one has the lock
        before = os.umask(0o177)
        try:
            listener.bind(f"/proc/self/fd/{place}/{name}.sock")  # the address of a socket has 107 bytes at most
        finally:
            os.umask(before)  # a JVM has its modes of files from here
        listener.listen()
    finally:
        os.close(place)
    listener.settimeout(_LOOK)
    return listener


def _await(listener: socket.socket, jvm: Any, driver: _Driver, until: float = math.inf) -> socket.socket | None:
    while jvm.poll() is None and time.monotonic() < until:
        with contextlib.suppress(TimeoutError):
            connection, _ = listener.accept()
            told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
            if CREDENTIALS.unpack(told)[1] == os.geteuid():
                return connection
            connection.close()
        if driver.gone_at is not None and time.monotonic() - driver.gone_at > UNADOPTED:
            return None
    return None


def _is_handed_over(connection: socket.socket, gateway: Any, output: int) -> bool:
    """Give the JVM away; whether the run has seen that the JVM is what it should be."""
    parameters, jvm = gateway.gateway_parameters, gateway.proc
    told = {"pid": jvm.pid, "port": parameters.port, "secret": parameters.auth_token}
    held = array.array("i", [jvm.stdin.fileno(), output])
    connection.settimeout(3 * PATIENCE)
    connection.sendmsg([json.dumps(told).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, held)])
    return connection.recv(len(TAKEN)) == TAKEN


def _stay_as_parent(jvm: int, connection: socket.socket, score: str) -> None:
    """Become the program that tells the run how its JVM ends; this function returns only if that is impossible.

    Args:
        jvm: the process.
        connection: to the run.
        score: how early the kernel should end this process when memory runs out: not before the JVM.
    """
    with contextlib.suppress(OSError):
        os.write(1, TAKEN)
    with contextlib.suppress(OSError):
        _SCORE.write_text(score, encoding="ascii")
    with contextlib.suppress(OSError):
        nowhere = os.open(os.devnull, os.O_RDWR)
        for end in (0, 1):  # of the pipes to the process that wanted the standby
            os.dup2(nowhere, end)
        connection.set_inheritable(True)
        program = [sys.executable, "-I", "-S", jvm_parent.__file__, str(jvm), str(connection.fileno())]
        os.execv(sys.executable, program)  # noqa: S606 - this Python, with a file of this package


if __name__ == "__main__":
    sys.exit(main())
