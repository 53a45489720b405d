"""Dagster's own retries of runs, switched on: they would start a second run beside the one that the sensor launches."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import dagster as dg
import pytest
from dagster._core.storage.tags import WILL_RETRY_TAG
from dagster._daemon.auto_run_reexecution.auto_run_reexecution import filter_runs_to_should_retry

from dagster_ckpt import SparkSessionResource, build_checkpoint_definitions
from dagster_ckpt import spark as spark_door
from dagster_ckpt.errors import QueryFailed
from tests.helpers.orchestration.stored_job import StoredJob, make_asset

_GRAPH = "__ASSET_JOB"


@dg.asset
def fails() -> None:
    raise RuntimeError("as any asset may")


def _fail(*_: Any, **__: Any) -> NoReturn:
    raise QueryFailed("the table is gone")


@pytest.mark.parametrize(
    ("job", "selected", "retried"),
    [
        (_GRAPH, "fails", True),
        (_GRAPH, "orders", False),
        ("orders_job", "orders", False),
    ],
    ids=["another asset", "the asset page", "the job"],
)
def test_dagster_does_not_retry_a_stream_that_the_sensor_resumes(
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
