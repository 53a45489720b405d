"""A job that goes on on a host of another time zone."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dagster_ckpt.checkpoint import Facts
from dagster_ckpt.errors import InvalidConfiguration
from dagster_ckpt.spark.query import TIME_ZONE_CONF, streaming_session, time_zone_of
from tests.jobs.harness import Bench

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

_ROOT = Path(__file__).parents[3]


def _run(root: Path, host: str) -> tuple[dict[str, Any], str]:
    """One run of the job in a process of its own; returns what it printed, and its log."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.jobs.starting.zoned_driver", str(root)],
        cwd=_ROOT,
        env={**os.environ, "TZ": host},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


@pytest.mark.slow
def test_a_day_stays_a_day_on_a_host_of_another_time_zone(tmp_path: Path) -> None:
    """All rows are of the first hour of 2024 in UTC."""
    began, _ = _run(tmp_path, "Asia/Tokyo")
    assert began == {"days": ["2024-01-01"], "zone": "Asia/Tokyo"}
    went_on, log = _run(tmp_path, "America/New_York")
    assert went_on == began
    assert "stays Asia/Tokyo, as in the checkpoint, and is not America/New_York, that of this host" in log


@pytest.fixture
def unset(spark: SparkSession) -> Iterator[SparkSession]:
    """The session of the tests, without the time zone that it sets."""
    before = time_zone_of(spark)
    spark.conf.unset(TIME_ZONE_CONF)
    yield spark
    spark.conf.set(TIME_ZONE_CONF, before)


def test_a_restored_session_has_the_time_zone_of_its_checkpoint(unset: SparkSession) -> None:
    here = time_zone_of(streaming_session(unset, None))
    assert here != "Asia/Tokyo"
    assert time_zone_of(streaming_session(unset, Facts(time_zone="Asia/Tokyo"))) == "Asia/Tokyo"
    assert time_zone_of(streaming_session(unset, Facts())) == here, "a checkpoint of an older release tells none"


def test_a_time_zone_that_the_user_sets_is_obeyed(spark: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dagster_ckpt")
    chosen = time_zone_of(spark)
    assert time_zone_of(streaming_session(spark, Facts(time_zone=chosen))) == chosen
    assert "time zone" not in caplog.text
    assert time_zone_of(streaming_session(spark, Facts(time_zone="Asia/Tokyo"))) == chosen
    assert "says, and was Asia/Tokyo" in caplog.text


def test_a_salvage_before_the_first_checkpoint_has_the_time_zone_of_the_dead_run(
    unset: SparkSession, tmp_path: Path
) -> None:
    bench = Bench(unset, tmp_path / "job")
    here = time_zone_of(streaming_session(unset, None))
    unset.conf.set(TIME_ZONE_CONF, "Asia/Tokyo")
    bench.run_and_cancel(2)
    unset.conf.unset(TIME_ZONE_CONF)
    went_on = bench.tick(1)
    restored, (taken,) = went_on.started.restored, went_on.completed
    assert restored is not None
    assert restored.kind == "salvage"
    assert restored.facts.time_zone == taken.facts.time_zone == "Asia/Tokyo" != here


def test_a_time_zone_that_java_does_not_know_is_refused(unset: SparkSession) -> None:
    with pytest.raises(InvalidConfiguration, match="'Nowhere/Land', which this Java does not know") as caught:
        streaming_session(unset, Facts(time_zone="Nowhere/Land"))
    assert TIME_ZONE_CONF in caught.value.hint
