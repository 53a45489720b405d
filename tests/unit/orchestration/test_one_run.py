"""A second run of a job gives way: alone it is canceled, beside other assets its step fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import dagster as dg
import pytest

from dagster_ckpt import SparkSessionResource, build_checkpoint_definitions
from dagster_ckpt import spark as spark_door
from dagster_ckpt.errors import JobAlreadyRunning
from tests.helpers.orchestration.stored_job import StoredJob, make_asset


@dg.asset
def report() -> None: ...


@pytest.mark.parametrize(("selected", "canceled"), [({"orders"}, True), ({"orders", "report"}, False)])
def test_a_run_that_gives_way_cancels_no_other_asset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, selected: set[str], canceled: bool
) -> None:
    resources = {"checkpoint_storage": StoredJob(tmp_path).storage, "spark": SparkSessionResource()}
    definitions = dg.Definitions.merge(
        build_checkpoint_definitions([make_asset("orders")], resources), dg.Definitions(assets=[report])
    )
    job, asked = definitions.resolve_job_def("__ASSET_JOB"), []

    def cancel(run: str) -> NoReturn:
        asked.append(run)
        raise NotImplementedError

    with dg.DagsterInstance.ephemeral() as instance:
        alive = instance.create_run_for_job(job, status=dg.DagsterRunStatus.STARTED).run_id

        def refuse(*_: Any, **__: Any) -> NoReturn:
            error = JobAlreadyRunning("Another run drives the job.", hint="Wait.")
            error.by = alive
            raise error

        monkeypatch.setattr(spark_door, "supervise", refuse)
        monkeypatch.setattr(instance.run_coordinator, "cancel_run", cancel)
        keys = [dg.AssetKey([name]) for name in sorted(selected)]
        run = job.execute_in_process(instance=instance, asset_selection=keys, raise_on_error=False)
    assert asked == [run.run_id] * canceled
    assert [event.step_key for event in run.get_step_failure_events()] == ["orders"]
    assert {
        event.asset_key.to_user_string() for event in run.get_asset_materialization_events() if event.asset_key
    } == (selected - {"orders"})
