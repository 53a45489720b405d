"""Everything ends at once: Dagster, its daemon and code server, the run, its JVM; by a crash, or by Ctrl-C."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import dagster as dg
import pytest

from dagster_ckpt.orchestration import names
from dagster_ckpt.testing.dagster_dev import DagsterDev
from tests.system.orchestration.pipeline import Pipeline
from tests.system.orchestration.watch import JobWatch, dagster_dev

# A Dagster, and a Spark for each run: minutes where others use the machine too, far less where not.
pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(2400)]


def test_a_crashed_host_is_gone_on_from_by_the_same_and_by_a_fresh_dagster(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path / "pipelines", "host_crash")
    pipeline.land(2)
    dev = dagster_dev(pipeline.root, tmp_path / "home")
    try:
        job, first = _held_mid_batch(dev, pipeline)
        lineage = job.choice().job_id
        dev.kill()
        assert dev.status(first) == "STARTED", "nobody was left to tell Dagster"
        pipeline.release()

        dev.start()
        second = job.wait_resumed(first).run_id
        assert dev.status(first) == "FAILURE"
        job.wait_caught_up(second)
        pipeline.assert_exact()
        job.hold_mid_batch(second)
        newest = job.completed()[-1]
    finally:
        dev.kill()

    job.forget_live_location()
    pipeline.release()
    pipeline.until_caught_up.touch()
    with dagster_dev(pipeline.root, tmp_path / "fresh_home") as fresh:
        job = JobWatch(fresh, pipeline)
        third = job.wait_resumed(second)
        assert third.tags[names.RESTORED_FROM_TAG] == newest.reference
        job.assert_succeeds(third.run_id)
        pipeline.assert_exact()
        retained = job.assert_all_verify()
        assert {metadata.job_id for metadata in retained} == {lineage}
        job.assert_shown()
        # What the lost instance knew is told again: each retained checkpoint is a materialization of the new one.
        with fresh.instance() as instance:
            told = instance.fetch_materializations(dg.AssetKey(["host_crash_checkpoints"]), limit=200).records
        assert {names.partition_key(metadata) for metadata in retained} <= {record.partition_key for record in told}
        assert [run.run_id for run in fresh.runs("host_crash")] == [third.run_id]


def test_ctrl_c_on_dagster_cancels_no_job(tmp_path: Path) -> None:
    """The run is in Dagster's process group, and is interrupted as well; its policy deletes what is canceled."""
    pipeline = Pipeline(tmp_path / "pipelines", "interrupted")
    pipeline.land(2)
    dev = dagster_dev(pipeline.root, tmp_path / "home")
    try:
        job, first = _held_mid_batch(dev, pipeline)
        completed, processes = job.completed(), job.heartbeat().processes
        os.killpg(os.getpgid(processes[0].pid), signal.SIGINT)
        job.wait_gone(processes)
        dev.kill()  # what is left of the servers
        assert job.completed() == completed
        assert job.catalog.records.epochs.read_end(job.epoch()) is None

        pipeline.release()
        pipeline.until_caught_up.touch()
        dev.start()
        second = job.wait_resumed(first)
        job.assert_succeeds(second.run_id)
        assert job.choice().restored == completed[-1].reference
        pipeline.assert_exact()
    finally:
        dev.kill()


def _held_mid_batch(dev: DagsterDev, pipeline: Pipeline) -> tuple[JobWatch, str]:
    """Start Dagster and the job, and hold it in the middle of a batch; the job and its run."""
    dev.start()
    job = JobWatch(dev, pipeline)
    run = job.launch()
    job.hold_mid_batch(run)
    return job, run
