"""What Dagster would do with the run of a stream by itself: retry it beside the sensor, or end it after some hours."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn
from unittest.mock import create_autospec

import dagster as dg
import pytest
from dagster._core.storage.tags import WILL_RETRY_TAG
from dagster._daemon.auto_run_reexecution.auto_run_reexecution import filter_runs_to_should_retry
from dagster._daemon.monitoring.run_monitoring import check_run_timeout
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from dagster_ckpt import SparkSessionResource, build_checkpoint_definitions, checkpointed_streaming_asset
from dagster_ckpt import spark as spark_door
from dagster_ckpt.errors import QueryFailed
from dagster_ckpt.orchestration import names
from tests.helpers.orchestration.stored_job import StoredJob, make_asset

_GRAPH = "__ASSET_JOB"


@dg.asset
def fails() -> None:
    raise RuntimeError("as any asset may")


def _fail(*_: Any, **__: Any) -> NoReturn:
    raise QueryFailed("the table is gone")


def _is_ended_at_the_limit(run: dg.DagsterRun) -> bool:
    """Whether ``run_monitoring.max_runtime_seconds`` ends a run that goes on for ever."""
    instance = create_autospec(dg.DagsterInstance, instance=True)
    record: Any = SimpleNamespace(dagster_run=run, start_time=0.0)
    check_run_timeout(instance, record, logging.getLogger(__name__), default_timeout_seconds=3600)
    return bool(instance.report_run_canceling.called)


@pytest.mark.parametrize(
    ("job", "selected", "retried"),
    [
        (_GRAPH, "fails", True),
        (_GRAPH, "orders", False),
        ("orders_job", "orders", False),
    ],
    ids=["another asset", "the asset page", "the job"],
)
def test_dagster_neither_retries_nor_ends_a_stream_that_the_sensor_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: str, selected: str, retried: bool
) -> None:
    monkeypatch.setattr(spark_door, "supervise", _fail)
    stored = StoredJob(tmp_path / "storage")
    resources = {"checkpoint_storage": stored.storage, "spark": SparkSessionResource()}
    definitions = dg.Definitions.merge(
        build_checkpoint_definitions([make_asset("orders")], resources), dg.Definitions(assets=[fails])
    )
    overrides = {"run_retries": {"enabled": True, "max_retries": 3}}
    with dg.DagsterInstance.local_temp(str(tmp_path), overrides=overrides) as instance:
        result = definitions.resolve_job_def(job).execute_in_process(
            instance=instance, asset_selection=[dg.AssetKey([selected])], raise_on_error=False
        )
        assert not result.success
        run = instance.get_run_by_id(result.run_id)
        assert run is not None
        assert run.tags[WILL_RETRY_TAG] == str(retried).lower()
        assert [found.run_id for found in filter_runs_to_should_retry([run], instance)] == [run.run_id] * retried
        assert _is_ended_at_the_limit(run) == retried


@pytest.mark.parametrize("limit", names.MAX_RUNTIME_TAGS)
def test_a_limit_of_its_user_ends_a_stream(tmp_path: Path, limit: str) -> None:
    @checkpointed_streaming_asset(run_tags={limit: "60"}, standby=True)
    def payments(context: dg.AssetExecutionContext, spark: SparkSession) -> DataStreamWriter:
        raise AssertionError("no test runs this query")

    stored = StoredJob(tmp_path / "storage")
    resources = {"checkpoint_storage": stored.storage, "spark": SparkSessionResource()}
    definitions = build_checkpoint_definitions([payments], resources)
    with dg.DagsterInstance.ephemeral() as instance:
        jobs = (definitions.resolve_job_def(job) for job in ("payments_job", "payments_standby"))
        run, standby = (instance.create_run_for_job(job, tags=job.run_tags) for job in jobs)
    assert _is_ended_at_the_limit(run)
    assert names.of_user(run.tags) == {limit: "60", names.MAX_RUNTIME_TAGS[0]: "60"}
    assert not _is_ended_at_the_limit(standby)


def test_a_limit_in_the_launchpad_counts_and_no_limit_is_not_handed_on() -> None:
    """Dagster reads the first of two names, which the job has; a job may get a limit after a run was launched."""
    first, second = names.MAX_RUNTIME_TAGS
    unlimited = names.of_stream({})
    assert names.of_user(unlimited) == {}
    assert names.of_stream({**unlimited, second: "3600"})[first] == "3600"
    assert names.of_stream({first: "60", second: "3600"})[first] == "60"
