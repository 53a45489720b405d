"""A driver of its own, attended by Dagster runs: killed, left alone by its run, and terminated."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import partial

import dagster as dg
import psutil
import pytest

from dagster_ckpt.checkpoint.catalog.newest import find_newest
from dagster_ckpt.checkpoint.processes import ProcessIdentity
from dagster_ckpt.orchestration import names
from dagster_ckpt.testing.dagster_dev import wait_for
from tests.system.orchestration.watch import PATIENCE, JobWatch

# A Dagster, and a Spark for each driver: minutes where others use the machine too, far less where not.
pytestmark = pytest.mark.timeout(2400)


def test_a_driver_is_resumed_when_it_dies_attended_again_when_its_run_dies_and_canceled_by_terminate(
    watch: Callable[[str], JobWatch],
) -> None:
    job = watch("submitted")
    job.pipeline.land(3)
    first = job.launch()
    job.hold_mid_batch(first)
    newest = job.completed()[-1]
    driver = job.heartbeat().processes[0]
    java = ProcessIdentity.of(psutil.Process(driver.pid).ppid())
    assert os.getsid(driver.pid) != os.getsid(_attendant(job)), "what ends the run's processes ends no driver"

    # 1. The driver dies: its run fails, and the next run submits another driver.
    job.kill_driver()
    job.wait_gone([java])
    job.forget_live_location()
    job.pipeline.release()
    second = job.wait_resumed(first).run_id
    assert job.wait_end(first) == "FAILURE"
    job.pipeline.land(1)
    job.wait_caught_up(second)
    assert job.choice().restored == newest.reference
    for run, says in ((first, "starts from nothing"), (second, f"starts from {newest.reference}")):
        lines = wait_for(partial(_said, job, run, says), f"a line with {says!r}", seconds=PATIENCE, poll=0.5)
        assert "The function of submitted makes its query." in lines, "by context.log"
    with job.dev.instance() as instance:
        key = dg.AssetCheckKey(dg.AssetKey(job.name), "of_the_function")
        evaluated = instance.event_log_storage.get_asset_check_execution_history(key, limit=10)
    assert [check.run_id for check in evaluated] == [second, first], "each driver has reported it by Dagster Pipes"
    assert [failure.run_id for failure in job.failures()] == [first]

    # 2. The process of the run dies: the driver goes on, and another run reports.
    epoch, driver = job.epoch(), job.heartbeat().processes[0]
    os.kill(_attendant(job), signal.SIGKILL)
    third = wait_for(lambda: _attending(job, second), "a run that attends the driver", seconds=PATIENCE, poll=0.5)
    assert job.wait_end(second) == "FAILURE"
    job.pipeline.land(2)
    job.wait_caught_up(third)
    assert (job.epoch(), job.heartbeat().processes[0]) == (epoch, driver), "the driver was not started again"
    wait_for(lambda: _is_shown(job), "the run to report the checkpoints", seconds=PATIENCE)
    assert [failure.run_id for failure in job.failures()] == [first], "nothing has failed"
    with job.dev.instance() as instance:
        (told,) = instance.fetch_materializations(dg.AssetKey(job.name), limit=10).records
    assert not told.run_id, "the first checkpoint has told it, and no run has ended in success"
    job.pipeline.assert_exact()

    # 3. Terminate reaches the driver, and the cleanup policy decides.
    job.dev.terminate(third)
    assert job.wait_end(third) == "CANCELED"
    assert _said(job, third, "The job is over: "), "the driver's last words"
    job.wait_gone([driver])
    end = job.catalog.records.epochs.read_end(epoch)
    assert end is not None
    assert (end.status, end.reason, end.discarded) == ("CANCELED", "canceled", True)
    assert find_newest(job.catalog).metadata is None
    job.assert_shown()
    job.wait_tick("it ended CANCELED: canceled")
    assert {run.run_id for run in job.dev.runs(job.name)} == {first, second, third}


def _attendant(job: JobWatch) -> int:
    """The process that attends the driver."""
    sign = job.catalog.records.attendant.read()
    assert sign is not None
    return sign.processes[0].pid


def _attending(job: JobWatch, driver: str) -> str | None:
    """The run that was launched to attend the driver of a run."""
    found = [run.run_id for run in job.dev.runs(job.name) if run.tags.get(names.ATTENDS_TAG) == driver]
    return found[0] if found else None


def _said(job: JobWatch, run: str, part: str) -> list[str] | None:
    """The lines in the log of a run, once one of them has a part."""
    with job.dev.instance() as instance:
        lines = [entry.user_message for entry in instance.all_logs(run) if not entry.is_dagster_event]
    return lines if any(part in line for line in lines) else None


def _is_shown(job: JobWatch) -> bool:
    with job.dev.instance() as instance:
        shown = set(instance.get_dynamic_partitions(f"{job.name}_checkpoints"))
    return shown == {names.partition_key(metadata) for metadata in job.completed()}
