"""A user who knows the Dagster UI alone takes a running job back to a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import dagster as dg
import pytest

from dagster_ckpt.orchestration import names
from dagster_ckpt.testing.dagster_dev import wait_for
from tests.system.orchestration.watch import PATIENCE, JobWatch
from tools.screenshots import browse, count_clicks, find_chromium

# A Dagster, a browser, and a Spark for each run: minutes where others use the machine too, far less where not.
pytestmark = [pytest.mark.integration, pytest.mark.timeout(2400)]

_MOST_CLICKS = 4


@pytest.mark.exhaustive
def test_a_running_job_goes_back_by_clicks_and_not_where_rows_would_be_lost(
    watch: Callable[[str], JobWatch], tmp_path: Path
) -> None:
    find_chromium()  # its absence is told before minutes are spent
    job = watch("clicked")
    job.pipeline.land(1)
    run = job.launch()
    for _ in range(2):
        job.wait_caught_up(run)
        job.pipeline.land(1)
    job.wait_caught_up(run)
    _wait_shown(job)
    old = job.completed()[0]
    key = names.partition_key(old)
    epoch = job.epoch()

    with browse(job.dev) as ui:
        look = count_clicks(ui.page)
        # The input of the next batch is gone: the verdict is told, and nothing is changed.
        file = sorted(job.pipeline.landing.glob("*.json"))[old.batch + 1]
        file.rename(tmp_path / file.name)
        ui.partitions(job.name, key)
        refused = ui.launch(f"go back to {old.name}")
        assert job.wait_end(refused) == "FAILURE"
        assert _tags(job, refused)[names.VERDICT_TAG] == "WITH_LOSS"
        ui.run(refused, "1 file of batch")
        assert (job.epoch(), job.dev.status(run)) == (epoch, "STARTED")
        assert not job.catalog.records.pins.pinned()
        (tmp_path / file.name).rename(file)

        job.pipeline.hold_from(old.batch + 2)
        clicks, _ = look()
        ui.partitions(job.name, key)
        rollback = ui.launch(f"go back to {old.name}")
        assert job.wait_end(rollback) == "SUCCESS", f"see {job.dev.log}"
        clicks, keys = look()[0] - clicks, look()[1]
        assert (0 < clicks <= _MOST_CLICKS, keys) == (True, 0)
        assert not ui.errors

    assert job.dev.status(run) == "CANCELED"
    back = next(run for run in job.dev.runs(job.name) if run.tags.get(names.ASKED_BY_TAG) == rollback)
    job.wait_committed(back.run_id, old.batch + 1)
    assert job.choice().restored == old.reference
    job.pipeline.assert_exact(files=old.batch + 2)
    assert not job.catalog.records.pins.pinned()
    job.pipeline.release()
    job.pipeline.land(1)
    job.wait_caught_up(back.run_id)
    job.pipeline.assert_exact()
    job.dev.terminate(back.run_id)
    assert job.wait_end(back.run_id) == "CANCELED"
    job.assert_all_verify()
    with job.dev.instance() as instance:
        newest = instance.get_latest_materialization_event(dg.AssetKey(f"{job.name}_checkpoints"))
        assert newest is not None
        assert newest.run_id == back.run_id, "a rollback is no checkpoint"


def _tags(job: JobWatch, run_id: str) -> dict[str, str]:
    with job.dev.instance() as instance:
        run = instance.get_run_by_id(run_id)
        assert run is not None
        return dict(run.tags)


def _wait_shown(job: JobWatch) -> None:
    """Wait until the partitions are the retained checkpoints."""

    def ask() -> bool:
        with job.dev.instance() as instance:
            shown = set(instance.get_dynamic_partitions(f"{job.name}_checkpoints"))
        return shown == {names.partition_key(metadata) for metadata in job.completed()}

    wait_for(ask, f"the checkpoints of {job.name} to be shown (see {job.dev.log})", seconds=PATIENCE, poll=0.5)
