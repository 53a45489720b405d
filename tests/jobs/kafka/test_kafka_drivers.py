"""Drivers of a job that reads Kafka, killed at any moment."""

from __future__ import annotations

import random
import shutil
import threading
from collections import Counter

import pytest

from tests.helpers.driving import driving
from tests.helpers.local_spark import delta_conf, iceberg_conf
from tests.jobs.harness import Row
from tests.jobs.kafka.topics import TopicBench
from tests.jobs.tables import delta, iceberg

pytestmark = pytest.mark.timeout(3600)

#: What is exact with the running release of Spark.
_SINK = "delta" if delta_conf() else "iceberg" if iceberg_conf() else "parquet"
_KILLS = 25


def _driver(bench: TopicBench) -> tuple[str, ...]:
    return ("tests.jobs.kafka.driver", bench.kafka.address, bench.topic, _SINK, str(bench.root))


def _seen(bench: TopicBench) -> Counter[Row]:
    """What a reader without Spark finds."""
    if _SINK == "parquet":
        assert bench.in_raw_directory() == bench.in_sink_log()
        return bench.in_sink_log()
    return delta.seen(bench) if _SINK == "delta" else iceberg.seen(bench)


def test_a_killed_driver_that_left_only_its_checkpoints_goes_on_exactly(bench: TopicBench) -> None:
    bench.land(3)
    with driving(*_driver(bench)) as killed:
        killed.await_("checkpoints", lambda: len(killed.of("Completed")) > 1)
        bench.land(1)
        killed.kill()
    shutil.rmtree(bench.root / "live")
    bench.land(1)
    with driving(*_driver(bench), "end") as driver:
        assert driver.ended() == "FINISHED"
        assert driver.of("Started")[0]["kind"] == "checkpoint"
    assert _seen(bench) == bench.expected()


@pytest.mark.exhaustive
@pytest.mark.releases
def test_a_job_is_exact_after_kills_at_random_moments(bench: TopicBench) -> None:
    """In half of them the live location goes, too."""
    moments, pause = random.Random(14), threading.Event()
    for kill in range(_KILLS):
        bench.land(2)
        with driving(*_driver(bench)) as driver:
            driver.await_("it starts", lambda driver=driver: bool(driver.of("Started")))
            pause.wait(moments.uniform(0, 4))
            driver.kill()
        if kill % 2:
            shutil.rmtree(bench.root / "live")
    with driving(*_driver(bench), "end") as driver:
        assert driver.ended() == "FINISHED"
    assert _seen(bench) == bench.expected()
