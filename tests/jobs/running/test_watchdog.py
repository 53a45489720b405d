"""The watchdog in the JVM of the tests, which it never ends here."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import pytest

from dagster_ckpt.checkpoint.control.heartbeat import Heart, HeartbeatFile
from dagster_ckpt.checkpoint.lease import Lease
from dagster_ckpt.clock import SystemClock
from dagster_ckpt.config.checkpoint_config import JobStatus
from dagster_ckpt.spark.events import Started
from dagster_ckpt.spark.query.session import driver_jvm_pid
from dagster_ckpt.spark.run import watchdog
from dagster_ckpt.spark.run.watchdog import Watchdog
from tests.helpers.checkpoint.memory import MemoryFileSystem
from tests.jobs.harness import Bench, eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.quick

_THREAD = "dagster-ckpt-watchdog"
#: In nanoseconds, as the watchdog counts.
SECOND = 1_000_000_000


def dog_of(job: str, beaten: HeartbeatFile) -> Watchdog:
    """A watchdog of a run that has an hour."""
    heart = Heart(beaten, SystemClock(), epoch=1, run_id="run", lease=Lease(1200, 3600))
    heart._make(1)
    return Watchdog(job, heart, threading.Event())


@pytest.fixture
def beaten() -> HeartbeatFile:
    return HeartbeatFile(MemoryFileSystem(), "job")


def arm(dog: Watchdog, spark: SparkSession) -> None:
    pid = driver_jvm_pid(spark)
    assert pid is not None
    dog.arm(spark, pid)


def watching(spark: SparkSession) -> int:
    """How many watchdogs the JVM has."""
    jvm: Any = spark._jvm
    threads = jvm.java.lang.Thread.getAllStackTraces().keySet().toArray()
    return sum(thread.getName() == _THREAD for thread in threads)


def test_it_counts_until_this_process_gives_a_sign_of_life(spark: SparkSession, beaten: HeartbeatFile) -> None:
    dog = dog_of("job", beaten)
    arm(dog, spark)
    try:
        field = dog._java.getClass().getDeclaredField("left")
        field.setAccessible(True)
        full = field.get(dog._java)
        eventually("it counts", lambda: field.get(dog._java) <= full - SECOND)
        before = field.get(dog._java)
        dog._heart._make(2)
        dog.renew()
        eventually("it counts anew", lambda: field.get(dog._java) > before)
        assert watching(spark) == 1
    finally:
        dog.disarm()
    eventually("it has ended", lambda: watching(spark) == 0)


def test_it_counts_the_time_and_not_its_looks(spark: SparkSession, beaten: HeartbeatFile) -> None:
    """On a busy machine a look comes late. After a pause, in which no query has run, most of the lease is left."""
    dog = dog_of("job", beaten)
    arm(dog, spark)
    dog.disarm()
    counted = [dog._java.counted(int(seconds * SECOND)) / SECOND for seconds in (0.1, 0.25, 3600)]
    assert counted == [0.1, 0.25, 0.1]


def test_one_after_another_and_side_by_side_they_are_reached(spark: SparkSession, beaten: HeartbeatFile) -> None:
    """As for the attempts of a run, and for several runs in one process."""
    dogs = [dog_of(f"job {number}", beaten) for number in range(4)]
    for dog in dogs:
        arm(dog, spark)
        dog._java.renew(60_000)
    assert watching(spark) == len(dogs)
    for dog in dogs:
        dog.disarm()
    eventually("they have ended", lambda: watching(spark) == 0)
    for number in range(4):
        dog = dog_of(f"job {number}", beaten)
        arm(dog, spark)
        dog._java.renew(60_000)
        dog.disarm()
    eventually("they have ended", lambda: watching(spark) == 0)


def test_it_watches_a_run_and_nothing_after_that(bench: Bench) -> None:
    bench.until_done = False
    launch = bench.launch()
    eventually("the query starts", lambda: bool(launch.of(Started)), unless=launch.check)
    assert watching(bench.spark) == 1
    launch.run.cancel()
    assert launch.result().status is JobStatus.CANCELED
    eventually("it has ended", lambda: watching(bench.spark) == 0)


def test_a_run_goes_on_where_it_cannot_be_compiled(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watchdog, "_compiled", WeakKeyDictionary())
    monkeypatch.setattr(watchdog, "_SOURCE", "this is not Java")
    with caplog.at_level(logging.WARNING):
        bench.tick(1)
    assert "No watchdog could be started in the JVM of job 'tiny'" in caplog.text
    bench.assert_exact()
