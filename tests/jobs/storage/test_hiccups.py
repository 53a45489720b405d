"""A lease of 5 s on a bucket that hangs for seconds again and again, and is away for longer than the lease."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from dagster_ckpt.config.checkpoint_config import JobStatus
from dagster_ckpt.spark.events import Restarting, Started
from dagster_ckpt.spark.query.session import driver_jvm_pid
from dagster_ckpt.testing.gcs.server import Answer, GcsServer, Hang, Request
from tests.helpers.driving import ELSEWHERE, driving
from tests.jobs.harness import OFTEN, eventually
from tests.jobs.storage.buckets import BucketBench
from tests.servers.gcs import BUCKET, bucket_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PATIENT = OFTEN.model_copy(update={"tolerable_failed_checkpoints": None})
_SHORT = type(OFTEN)(**{**dict(_PATIENT), "heartbeat_interval": "1 s", "heartbeat_timeout": "5 s"})
#: Seconds from one hiccup to the next, and of a hiccup.
_EVERY, _HICCUP = 6.0, 3.0


def hiccups(request: Request) -> Hang | None:
    del request
    into = time.monotonic() % _EVERY
    return Hang(_HICCUP - into) if into < _HICCUP else None


def test_hiccups_cost_nothing_and_an_outage_pauses_the_query(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pid = driver_jvm_pid(spark)
    assert pid is not None
    jvm = psutil.Process(pid)
    with GcsServer() as server:
        server.create_bucket(BUCKET)
        bench = BucketBench(spark, tmp_path, bucket=bucket_of(server, "of all"), until_done=False)
        bench.land(1)
        launch = bench.launch(bench.job(config=_SHORT))
        eventually("a checkpoint", lambda: bool(launch.completed), unless=launch.check)
        server.plan = hiccups
        with driving("tests.jobs.storage.standby", server.url, bench.name, **ELSEWHERE) as standby:
            eventually("it sees the run", lambda: bool(standby.of("Alive")), unless=launch.check)
            seen, until = len(standby.of("Alive")), time.monotonic() + 2 * _EVERY
            while time.monotonic() < until:
                bench.land(1)
                bench.await_in_sink(launch)
            eventually("it sees it again", lambda: len(standby.of("Alive")) > seen, unless=launch.check)
            # On a machine so busy that a beat is late by a second more, the run has paused before.
            assert not standby.of("Dead") or "pauses: the storage has taken no heartbeat" in caplog.text

            server.plan = lambda request: Answer(503)
            eventually("the JVM is paused", lambda: jvm.status() == psutil.STATUS_STOPPED, unless=launch.check)
        before = len(launch.completed)
        server.plan = lambda request: None
        eventually("the JVM goes on", lambda: jvm.status() != psutil.STATUS_STOPPED, unless=launch.check)
        bench.land(1)
        bench.await_in_sink(launch)
        eventually("a checkpoint", lambda: len(launch.completed) > before, unless=launch.check)
        launch.run.cancel()
        assert launch.result().status is JobStatus.CANCELED
        assert len(launch.of(Started)) == 1
        assert not launch.of(Restarting)
        bench.assert_exact()
    assert jvm.pid == driver_jvm_pid(spark)
