"""What an asset says of the versions of its code, and when the sensor returns to one."""

from __future__ import annotations

import time
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from dagster_ckpt import (
    CheckpointConfig,
    FileSystemCheckpointStorage,
    RestartStrategies,
    SparkSessionResource,
    checkpointed_streaming_asset,
)
from dagster_ckpt.checkpoint.control.epochs import End
from dagster_ckpt.checkpoint.format.code_versions import CodeVersion
from dagster_ckpt.clock import SystemClock
from dagster_ckpt.errors import InvalidConfiguration
from dagster_ckpt.orchestration.streaming_run import streaming_job
from dagster_ckpt.orchestration.upgrades import is_to_return
from dagster_ckpt.spark.job import Versions
from tests.helpers.orchestration.stored_job import QUICK, StoredJob, run_id
from tests.unit.orchestration.test_resume_sensor import Sensor


def sums(context: Any, spark: SparkSession) -> DataStreamWriter:
    raise AssertionError("no test runs this query")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"upgrade_mode": "statefull", "code_version": "1"}, "upgrade_mode is 'statefull'"),
        ({"upgrade_mode": "savepoint"}, "upgrade_mode has no effect without code_version"),
        ({"upgrade_timeout": "1 h"}, "upgrade_timeout has no effect without code_version"),
        ({"previous": {"1": sums}, "code_version": "2"}, "previous has no effect without upgrade_timeout"),
        ({"upgrade_timeout": "1 hh", "code_version": "1"}, "upgrade_timeout: '1 hh' is not a duration"),
        ({"upgrade_timeout": "1 min", "code_version": "1"}, "upgrade_timeout is 1 min, and the job takes one in 1 min"),
        ({"green": {"2": sums}}, "green has no effect without code_version"),
        ({"green": {"1": sums}, "code_version": "1"}, "green has version 1, which the asset has already"),
        (
            {"upgrade_timeout": "1 h", "code_version": "1", "config": CheckpointConfig(interval=None)},
            "takes no periodic checkpoints",
        ),
        (
            {
                "upgrade_timeout": "10 min",
                "code_version": "1",
                "config": CheckpointConfig(interval="30 s", min_pause="15 min"),
            },
            "upgrade_timeout is 10 min, and the job takes one in 15 min",
        ),
    ],
)
def test_what_cannot_work_is_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidConfiguration, match=told):
        checkpointed_streaming_asset(**options)


def test_a_run_that_takes_checkpoints_too_seldom_is_refused(tmp_path: Path) -> None:
    """No new version could complete a checkpoint in its time, so each would be taken back."""
    asset = checkpointed_streaming_asset(name="orders", code_version="2", upgrade_timeout="10 min")(sums)
    storage = FileSystemCheckpointStorage(checkpoint_path=str(tmp_path))
    context = dg.build_asset_context(resources={"checkpoint_storage": storage, "spark": SparkSessionResource()})
    job = partial(streaming_job, asset, context=context, op_config={}, filesystem=storage.filesystem())
    assert job(asset.settings.of_run({})).versions.timeout == 600
    seldom = asset.settings.of_run({"configuration": {"execution.checkpointing.interval": "1 h"}})
    with pytest.raises(InvalidConfiguration, match="upgrade_timeout is 10 min, and the job takes one in 1 h"):
        job(seldom)


def test_an_asset_keeps_the_versions() -> None:
    asset = checkpointed_streaming_asset(
        code_version="2", upgrade_mode="stateless", upgrade_timeout=timedelta(hours=1), previous={"1": sums}
    )(sums)
    assert asset.versions == Versions("2", "stateless", 3600, {"1": sums})  # type: ignore[arg-type]
    assert checkpointed_streaming_asset()(sums).versions == Versions()


def _failed(taken_back: str | None, returns_to: str | None) -> End:
    return End("FAILED", "of the test", False, "2026-01-01T00:00:00.000+00:00", taken_back, returns_to)


@pytest.mark.parametrize(
    ("versions", "end", "returns"),
    [
        (Versions("1"), None, False),
        (Versions("1"), _failed(None, None), False),
        (Versions(None), _failed(None, None), False),
        (Versions("1"), _failed("2", "1"), True),
        (Versions("2"), _failed("2", "1"), False),
        (Versions("2", previous={"1": sums}), _failed("2", "1"), True),
        (Versions("2", previous={"0": sums}), _failed("2", "1"), False),
        (Versions("3", previous={"1": sums}), _failed("2", "1"), False),
    ],
)
def test_a_job_returns_where_the_code_is(versions: Versions, end: End | None, returns: bool, tmp_path: Path) -> None:
    assert is_to_return(versions, end, StoredJob(tmp_path / "storage").catalog) is returns


@pytest.mark.parametrize(
    ("versions", "end", "in_place_of", "returns"),
    [
        (Versions("1", green={"2": sums, "3": sums}), _failed("3", "2"), "1", True),
        (Versions("1", green={"3": sums}), _failed("3", "2"), "1", False),
        # Version 2 was taken back before, and 1 ran in its place.
        (Versions("2", previous={"1": sums}, green={"3": sums}), _failed("3", "1"), "2", True),
        # Another version was deployed since: the job is launched by its user.
        (Versions("4", previous={"2": sums, "3": sums}), _failed("3", "2"), "1", False),
        (Versions("4", previous={"2": sums, "3": sums}), _failed("3", "2"), None, False),
    ],
)
def test_a_failed_cut_over_returns_to_what_ran_in_the_place_of_the_deployed_version(
    versions: Versions, end: End, in_place_of: str | None, returns: bool, tmp_path: Path
) -> None:
    job = StoredJob(tmp_path / "storage")
    claim = job.claim(run_id())
    job.choose(claim, code=CodeVersion("3", in_place_of=in_place_of))
    assert is_to_return(versions, end, job.catalog) is returns


@pytest.mark.parametrize(
    ("status", "tries", "told"),
    [
        (dg.DagsterRunStatus.FAILURE, 4, "4 runs that were to return have failed"),
        (dg.DagsterRunStatus.CANCELED, 1, "was canceled; launch the job to return"),
    ],
)
def test_a_run_that_does_not_get_to_the_job_is_followed_by_another(
    status: dg.DagsterRunStatus, tries: int, told: str, tmp_path: Path
) -> None:
    """As often as the restart strategy says, unless a user has canceled it. Then the tick says why no run follows."""
    job = StoredJob(tmp_path / "storage")
    asset = checkpointed_streaming_asset(name="orders", code_version="1", restart=QUICK)(sums)
    with dg.DagsterInstance.ephemeral() as instance:
        sensor = Sensor(instance, job, [asset])
        failed = sensor.add_run(run_id(), dg.DagsterRunStatus.FAILURE)
        claim = job.die(failed)
        job.catalog.records.epochs.record_end(claim.epoch, _failed("2", "1"))
        keys = set()
        for _ in range(tries):
            again, request = sensor.request(), sensor.request()
            assert again.run_key == request.run_key
            keys.add(request.run_key)
            sensor.launch(request, dg.DagsterRunStatus.STARTED)
            assert sensor.tick()[0] == [], "it may still take the job over"
            (launched,) = instance.get_runs(limit=1)
            sensor.instance.delete_run(launched.run_id)
            sensor.launch(request, status)
        assert len(keys) == tries
        for _ in range(2):
            requests, told_by_tick = sensor.tick()
            assert requests == []
            assert told in told_by_tick


def test_the_sensor_launches_the_version_that_ran_before_a_failed_cut_over(tmp_path: Path) -> None:
    """That version runs in the place of the deployed one, as the version that has failed did."""
    job = StoredJob(tmp_path / "storage")
    green = {"2": sums, "3": sums}
    options: dict[str, Any] = {"code_version": "1", "green": green, "upgrade_timeout": "10 min", "restart": QUICK}
    asset = checkpointed_streaming_asset(name="orders", **options)(sums)
    with dg.DagsterInstance.ephemeral() as instance:
        sensor = Sensor(instance, job, [asset])
        claim = job.claim(sensor.add_run(run_id(), dg.DagsterRunStatus.FAILURE))
        job.checkpoint(job.choose(claim, code=CodeVersion("3", in_place_of="1")), 1)
        job.catalog.records.epochs.record_end(claim.epoch, _failed("3", "2"))
        assert "code_version" not in str(sensor.request().run_config)


def test_a_clock_that_is_set_back_holds_up_no_return(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that was to return failed in what is the future now; the next one waits for the longest delay at most."""
    job, passed, monotonic = StoredJob(tmp_path / "storage"), 0.0, time.monotonic
    restart = RestartStrategies.fixed_delay_restart(3, "20 s")
    asset = checkpointed_streaming_asset(name="orders", code_version="1", restart=restart)(sums)
    with dg.DagsterInstance.ephemeral() as instance:
        sensor = Sensor(instance, job, [asset])
        claim = job.die(sensor.add_run(run_id(), dg.DagsterRunStatus.FAILURE))
        job.catalog.records.epochs.record_end(claim.epoch, _failed("2", "1"))
        sensor.launch(sensor.request(), dg.DagsterRunStatus.FAILURE)
        monkeypatch.setattr(SystemClock, "time", lambda _: time.time() - 3600)
        monkeypatch.setattr(SystemClock, "monotonic", lambda _: monotonic() + passed)
        while passed < 20:
            requests, told = sensor.tick()
            assert requests == []
            assert "the next run that returns waits" in told
            passed += 11
        assert sensor.request().run_key
