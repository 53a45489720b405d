"""``<job>_report`` as Dagster materializes it."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import dagster as dg
import pytest

from dagster_ckpt import SparkSessionResource, build_checkpoint_definitions, build_job_report
from dagster_ckpt.orchestration.events.occurrence import Happened, Occurrence
from tests.helpers.orchestration.stored_job import StoredJob, make_asset, run_id

_HOSTILE = "<script>alert(1)</script> ![x](javascript:alert(1)) | **b**"


@pytest.fixture
def job(tmp_path: Path) -> StoredJob:
    return StoredJob(tmp_path / "storage", "orders")


def _report(job: StoredJob, instance: dg.DagsterInstance, **arguments: Any) -> dict[str, Any]:
    asset = make_asset()
    definitions = dg.Definitions.merge(
        build_checkpoint_definitions([asset], {"checkpoint_storage": job.storage, "spark": SparkSessionResource()}),
        build_job_report(asset, **arguments),
    )
    assert definitions.resolve_job_def("orders_report_job").execute_in_process(instance=instance).success
    event = instance.get_latest_materialization_event(dg.AssetKey("orders_report"))
    assert event is not None
    assert event.asset_materialization is not None
    metadata = event.asset_materialization.metadata
    return {
        name: [dict(record.data) for record in found.records]
        if isinstance(found, dg.TableMetadataValue)
        else found.value
        for name, found in metadata.items()
    }


def _charts(told: dict[str, Any]) -> list[ET.Element]:
    coded = re.findall(r"!\[a chart\]\(data:image/svg\+xml;base64,([A-Za-z0-9+/=]+)\)", told["charts"])
    return [ET.fromstring(base64.b64decode(each)) for each in coded]


def test_a_job_without_a_checkpoint_has_a_report(job: StoredJob) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        told = _report(job, instance)
    assert (told["charts"], told["state"], told["newest"]) == ("There is nothing to draw yet.", "NEVER RAN", "none")
    assert (told["checkpoints"], told["troubles"]) == (0, 0)


def test_charts_numbers_and_tables_are_of_the_job(job: StoredJob) -> None:
    claim = job.claim(run_id())
    store = job.choose(claim)
    job.checkpoint(store, 3)
    newest = job.checkpoint(store, 5)
    job.fail(claim, 1)
    with dg.DagsterInstance.ephemeral() as instance:
        told = _report(job, instance)
    titles = [chart.findtext("{http://www.w3.org/2000/svg}title") for chart in _charts(told)]
    assert titles == ["Duration of a checkpoint", "Bytes of a checkpoint", "Rows in the state"]
    assert (told["checkpoints"], told["lineages"], told["restarts"], told["troubles"]) == (2, 1, 0, 1)
    assert told["newest"] == newest.reference
    assert told["what_went_wrong"][0]["reason"] == "failure 1"
    assert told["starts"][0]["run"] == claim.run_id


def test_failed_checkpoints_that_dagster_was_told_of_are_in_the_report(job: StoredJob) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        for event, reason in ((Happened.FAILED_CHECKPOINT, f"full {_HOSTILE}"), (Happened.RESTART, "of no interest")):
            found = Occurrence(event, "id", 1_700_000_000.0, reason, "do", times=3)
            instance.report_runless_asset_event(found.observation(dg.AssetKey("orders")))
        told = _report(job, instance)
    (row,) = told["what_went_wrong"]
    assert (row["what"], row["reason"]) == ("failed checkpoint", f"full {_HOSTILE} (3 times)")
    assert "script" not in told["charts"]


def test_a_schedule_runs_the_job() -> None:
    asset = make_asset()
    (schedule,) = build_job_report(asset, cron_schedule="0 * * * *").schedules or ()
    assert isinstance(schedule, dg.ScheduleDefinition)
    assert (schedule.cron_schedule, schedule.job_name) == ("0 * * * *", "orders_report_job")
    assert not build_job_report(asset).schedules
