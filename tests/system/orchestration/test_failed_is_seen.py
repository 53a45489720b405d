"""A job that ended FAILED is red on its asset, in the lineage and by its check, and one alert is sent."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dagster_ckpt.testing.dagster_dev import wait_for
from tests.system.orchestration.watch import PATIENCE, JobWatch
from tools.screenshots import browse, find_chromium

# A Dagster, a browser, and a Spark: minutes where others use the machine too, far less where not.
pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(2400)]


def test_a_failed_job_is_seen_red_and_alerts_once(watch: Callable[[str], JobWatch]) -> None:
    find_chromium()  # its absence is told before minutes are spent
    job = watch("doomed")
    job.pipeline.land(1)
    job.pipeline.poison.write_text("1000")
    job.pipeline.land(1, poisoned=True)
    run = job.launch()
    assert job.wait_end(run) == "FAILURE"
    job.wait_tick("it ended FAILED")
    wait_for(job.pipeline.alerts.exists, f"the alert (see {job.dev.log})", seconds=PATIENCE, poll=0.5)

    with browse(job.dev) as ui:
        ui.lineage(job.name, job.name)
        ui.wait_red("ailed", f"foreignObject:has([href*='/assets/{job.name}'])")
        ui.page.screenshot(path=job.dev.home / "lineage.png")
        ui.asset(job.name)
        ui.wait_red("ailed")
        ui.page.screenshot(path=job.dev.home / "asset.png")
        ui.check(job.name, "healthy", "a poison row")
        ui.wait_red("ailed")
        ui.page.screenshot(path=job.dev.home / "check.png")
        assert not ui.errors

    (alert,) = job.pipeline.alerts.read_text().splitlines()
    assert alert.startswith("doomed FAILED ")
    assert "a poison row" in alert
    assert [found.run_id for found in job.dev.runs(job.name)] == [run]
