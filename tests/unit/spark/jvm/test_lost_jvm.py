"""Whether a JVM is gone, and for whose errors that is waited for."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark import SparkContext

from dagster_ckpt.errors import StorageError
from dagster_ckpt.spark.jvm import lost_jvm
from dagster_ckpt.spark.jvm.lost_jvm import is_gone, loss_of

#: Seconds for a JVM to end; a test that has to wait for them fails.
_LONG = 20.0


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    """A process in place of a JVM."""
    monkeypatch.setattr(lost_jvm, "_TEAR_DOWN", _LONG)
    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) as running:
        yield running
        running.kill()


@pytest.mark.parametrize(
    "error",
    [
        StorageError("the bucket is away"),
        FileNotFoundError(2, "No such file or directory", "/of/the/user"),
        OSError(28, "No space left on device"),
        ValueError("no such column"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_that_is_not_of_a_connection_says_nothing_about_the_jvm(
    process: subprocess.Popen[bytes], error: Exception
) -> None:
    began = time.monotonic()
    assert not is_gone(process, error)
    assert time.monotonic() - began < _LONG / 2


@pytest.mark.parametrize(
    "error",
    [Py4JNetworkError("Answer from Java side is empty"), ConnectionRefusedError(111, "Connection refused")],
    ids=lambda error: type(error).__name__,
)
def test_a_jvm_that_refuses_connections_is_waited_for(process: subprocess.Popen[bytes], error: Exception) -> None:
    threading.Timer(0.3, process.kill).start()
    assert is_gone(process, error)


class Dying:
    """As much of a gateway and of a session as is asked for: their JVM answers no more."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.proc = process
        self._jsparkSession: Any = self
        self._gateway_client = self

    def sparkContext(self) -> Any:  # noqa: N802 - PySpark's name
        raise ConnectionRefusedError(111, "Connection refused")


def test_a_jvm_that_dies_beside_another_error_is_said_to_have_been_killed(
    process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    spark: Any = Dying(process)
    monkeypatch.setattr(SparkContext, "_gateway", spark)
    threading.Timer(0.3, process.kill).start()
    assert "it was killed by SIGKILL" in str(loss_of(spark, after=StorageError("the bucket is away")))


_DRIVER = """
from dagster_ckpt.errors import InvalidConfiguration
from dagster_ckpt.spark.jvm.lost_jvm import live_below_jvm, own_jvm_pid
try:
    live_below_jvm()
except InvalidConfiguration as error:
    print(error.message, error.hint)
else:
    print(own_jvm_pid(None))
"""
_JVM = """
import subprocess, sys
print(subprocess.Popen(sys.argv[2:]).wait())
"""


def driver_below(*wrapper: str) -> tuple[int, str]:
    """What a driver says below a process that runs Python programs as Spark's JVM does, and the pid of that process."""
    driver = [sys.executable, "-c", _DRIVER]
    with subprocess.Popen(
        [sys.executable, "-c", _JVM, "org.apache.spark.deploy.PythonRunner", *wrapper, *driver],
        stdout=subprocess.PIPE,
        text=True,
    ) as jvm:
        assert jvm.stdout is not None
        said, _, ended = jvm.stdout.read().strip().rpartition("\n")
        assert ended == "0"
        return jvm.pid, said


@pytest.mark.parametrize("wrapper", [(), ("sh", "-c", 'exec "$@"', "python")], ids=["itself", "a script that execs"])
def test_the_jvm_above_a_driver_is_its_own(wrapper: Sequence[str]) -> None:
    jvm, said = driver_below(*wrapper)
    assert said == str(jvm)


def test_a_process_between_the_jvm_and_its_driver_is_refused_by_name() -> None:
    """A pause would stop the script, and the JVM would go on when the lease is over."""
    _, said = driver_below("sh", "-c", '"$@"; exit $?', "python")
    assert "(sh) is between Spark's JVM and this driver" in said
    assert "`exec " in said
