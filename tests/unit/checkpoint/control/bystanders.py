"""Processes for the tests of what is killed: drivers, JVMs as PySpark starts them, and others."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from dagster_ckpt.checkpoint.processes import DRIVER_VARIABLE

_WAIT = "import signal; print(flush=True); signal.pause()"
_DRIVE = """
import sys
from dagster_ckpt.checkpoint.processes import mark_driver
held = mark_driver(tuple(sys.argv[1:]))
"""
SPARK = ("org.apache.spark.deploy.SparkSubmit", "--name", "flights", "pyspark-shell")


@contextmanager
def running(
    *arguments: str,
    program: Sequence[str] = (sys.executable, "-c", _WAIT),
    started_by: str | None = None,
    user: int | None = None,
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
        cwd="/" if user is not None else None,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()


def driving(job: Sequence[str]) -> AbstractContextManager[subprocess.Popen[str]]:
    """The driver of a job."""
    return running(*job, program=(sys.executable, "-c", _DRIVE + _WAIT))


def jvm(started_by: str | None = None) -> AbstractContextManager[subprocess.Popen[str]]:
    """What looks like a JVM that PySpark has started; by default one without a mark."""
    return running(*SPARK, started_by=started_by)
