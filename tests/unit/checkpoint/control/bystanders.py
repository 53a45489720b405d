"""Processes for the tests of what is killed: drivers, JVMs as PySpark starts them, and others."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import psutil

from dagster_ckpt.checkpoint.processes import DRIVER_VARIABLE, SUBMITTED, ProcessIdentity

_WAIT = "import signal; print(flush=True); signal.pause()"
_DRIVE = """
import sys
from dagster_ckpt.checkpoint.processes import mark_driver
held = mark_driver(tuple(sys.argv[1:3]))
"""
_SUBMIT = """
import subprocess, sys
driver = subprocess.Popen([sys.executable, "-c", *sys.argv[1:]], stdout=subprocess.PIPE)
driver.stdout.readline()
"""
SPARK = ("org.apache.spark.deploy.SparkSubmit", "--name", "flights", "pyspark-shell")


@contextmanager
def running(
    *arguments: str,
    program: Sequence[str] = (sys.executable, "-c", _WAIT),
    started_by: str | None = None,
    user: int | None = None,
    holds: Sequence[int] = (),
) -> Iterator[subprocess.Popen[str]]:
    """A process that does nothing, once it has begun to do nothing; nothing of it is left afterwards."""
    environment = {name: value for name, value in os.environ.items() if name != DRIVER_VARIABLE}
    if started_by is not None:
        environment[DRIVER_VARIABLE] = started_by
    with subprocess.Popen(
        [*program, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        user=user,
        pass_fds=holds,
        cwd="/" if user is not None else None,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()


def driving(job: Sequence[str], *holds: int) -> AbstractContextManager[subprocess.Popen[str]]:
    """The driver of a job, with files that it holds open."""
    return running(*job, program=(sys.executable, "-c", _DRIVE + _WAIT), holds=holds)


def jvm(started_by: str | None = None) -> AbstractContextManager[subprocess.Popen[str]]:
    """What looks like a JVM that PySpark has started; by default one without a mark."""
    return running(*SPARK, started_by=started_by)


@contextmanager
def submitted(job: Sequence[str], *, on_yarn: bool = False) -> Iterator[tuple[subprocess.Popen[str], ProcessIdentity]]:
    """What looks like the JVM of ``spark-submit``, or of YARN, and the driver of a job that the JVM has started."""
    order: tuple[str, ...] = (SUBMITTED, "shop.definitions:defs", job[1], "0" * 32)
    if on_yarn:
        arguments = (part for argument in ("-m", "", *order) for part in ("--arg", argument))
        order = ("org.apache.spark.deploy.yarn.ApplicationMaster", *arguments, "--properties-file", "/some/file")
    with running(*job, *order, program=(sys.executable, "-c", _SUBMIT + _WAIT, _DRIVE + _WAIT)) as above:
        (driver,) = psutil.Process(above.pid).children()
        try:
            yield above, ProcessIdentity.of(driver.pid)
        finally:
            with contextlib.suppress(psutil.NoSuchProcess):
                driver.kill()
