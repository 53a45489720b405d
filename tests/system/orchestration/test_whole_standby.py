"""A second run waits beside a job, and takes the job over when the job's run is killed, under a real Dagster."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import dagster as dg
import pytest

from dagster_ckpt.checkpoint.control.heartbeat import Heartbeat
from dagster_ckpt.checkpoint.standbys import Standbys
from dagster_ckpt.orchestration import names
from tests.jobs.harness import eventually
from tests.system.orchestration.watch import JobWatch

pytestmark = pytest.mark.timeout(1800)


@pytest.mark.exhaustive
def test_a_standby_takes_over_a_killed_run_whose_live_location_is_gone(watch: Callable[[str], JobWatch]) -> None:
    job = watch("stood_by")
    first, standby = _with_standby(job)
    waiting = _run(job, standby.run_id)
    assert names.JOB_TAG not in waiting.tags, "it would wait for the place of the job's run, or take it"
    newest = job.completed()[-1]
    job.pipeline.until_caught_up.touch()
    job.kill_driver()
    job.forget_live_location()
    job.pipeline.release()
    eventually("the standby has taken the job over", lambda: job.heartbeat().run_id == standby.run_id)
    assert _run(job, standby.run_id).status is dg.DagsterRunStatus.STARTED
    job.assert_succeeds(standby.run_id)
    job.pipeline.assert_exact()
    assert job.choice().restored == newest.reference
    assert {item.writer["run_id"] for item in job.assert_all_verify()} == {first, standby.run_id}
    assert job.wait_end(first) == "FAILURE"
    assert len(job.failures()) == 1
    resumed = _run(job, standby.run_id)
    assert (resumed.tags[names.JOB_TAG], resumed.tags[names.RESUMES_TAG]) == (job.name, first)
    assert _materialized_by(job) == [standby.run_id]
    (trace,) = job.catalog.records.starts.newest(1)
    assert {"detected", "decided"} <= trace.by_name.keys()
    assert not {"process", "imports"} & trace.by_name.keys()
    assert len(job.dev.runs(job.name)) == 2, "no run was launched beside the standby"
    _assert_none_waits(job)


@pytest.mark.exhaustive
def test_of_two_standbys_one_takes_over_and_the_other_waits_on(watch: Callable[[str], JobWatch]) -> None:
    job = watch("two_standbys")
    first, one = _with_standby(job)
    config = dict(_run(job, one.run_id).run_config)
    other = job.dev.launch(names.standby_job(job.name), config=config)
    _wait_standbys(job, {one.run_id, other})
    job.pipeline.release()
    job.kill_driver()
    job.forget_live_location()
    eventually("one has taken the job over", lambda: job.heartbeat().run_id in {one.run_id, other})
    second = job.heartbeat().run_id
    third = ({one.run_id, other} - {second}).pop()
    job.pipeline.land(1)
    job.hold_mid_batch(second)
    assert _run(job, third).status is dg.DagsterRunStatus.STARTED
    job.pipeline.until_caught_up.touch()
    job.kill_driver()
    job.pipeline.release()
    eventually("the other has taken the job over", lambda: job.heartbeat().run_id == third)
    job.assert_succeeds(third)
    job.pipeline.assert_exact()
    assert [job.wait_end(run) for run in (first, second)] == ["FAILURE", "FAILURE"]
    assert _materialized_by(job) == [third]
    _assert_none_waits(job)


@pytest.mark.exhaustive
def test_a_killed_standby_is_replaced_and_is_no_failure_of_the_job(watch: Callable[[str], JobWatch]) -> None:
    job = watch("lost_standby")
    first, lost = _with_standby(job)
    os.kill(lost.processes[0].pid, signal.SIGKILL)
    job.wait_gone(lost.processes)
    assert job.wait_end(lost.run_id) == "FAILURE"
    eventually("another standby waits", lambda: [sign.run_id for sign in _standbys(job)] not in ([], [lost.run_id]))
    (another,) = _standbys(job)
    assert job.failures() == []
    assert job.dev.status(first) == "STARTED"
    # The job's user cancels the job: the standby ends in order, and materializes nothing.
    job.dev.terminate(first)
    assert job.wait_end(first) == "CANCELED"
    assert job.wait_end(another.run_id) == "SUCCESS"
    assert _materialized_by(job) == []
    _assert_none_waits(job)


@pytest.mark.exhaustive
def test_other_code_ends_a_standby_and_a_new_one_follows(watch: Callable[[str], JobWatch]) -> None:
    job = watch("reloaded")
    first, old = _with_standby(job)
    (job.pipeline.root / "edited_code.py").write_text("# a module that the definitions now import\n")
    job.reload()
    assert job.wait_end(old.run_id) == "SUCCESS"
    eventually("another standby waits", lambda: [sign.run_id for sign in _standbys(job)] not in ([], [old.run_id]))
    (new,) = _standbys(job)
    assert _run(job, new.run_id).tags[names.CODE_TAG] != _run(job, old.run_id).tags[names.CODE_TAG]
    job.dev.terminate(new.run_id)
    assert job.wait_end(new.run_id) == "CANCELED"
    job.pipeline.until_caught_up.touch()
    job.kill_driver()
    job.pipeline.release()
    second = job.wait_resumed(first)  # by the sensor: its user has canceled the standby
    job.assert_succeeds(second.run_id)
    job.pipeline.assert_exact()
    _assert_none_waits(job)


def _with_standby(job: JobWatch) -> tuple[str, Heartbeat]:
    """A run held in the middle of a batch, and its standby, which is warm."""
    job.pipeline.land(2)
    first = job.launch()
    job.hold_mid_batch(first)
    (standby,) = _wait_standbys(job, None)
    return first, standby


def _wait_standbys(job: JobWatch, wanted: set[str] | None) -> list[Heartbeat]:
    def there() -> bool:
        found = {sign.run_id for sign in _standbys(job)}
        return bool(found) if wanted is None else found == wanted

    eventually(f"the standbys of {job.name} are warm (see {job.dev.log})", there)
    return _standbys(job)


def _standbys(job: JobWatch) -> list[Heartbeat]:
    return list(Standbys(job.catalog.filesystem, job.name).all())


def _run(job: JobWatch, run_id: str) -> dg.DagsterRun:
    with job.dev.instance() as instance:
        run = instance.get_run_by_id(run_id)
    assert run is not None
    return run


def _materialized_by(job: JobWatch) -> list[str]:
    """The runs that have materialized the stream; that of its first checkpoint is nobody's."""
    with job.dev.instance() as instance:
        records = instance.fetch_materializations(dg.AssetKey([job.name]), limit=10).records
    return [record.run_id for record in records if record.run_id]


def _assert_none_waits(job: JobWatch) -> None:
    """Soon no standby is left, and none comes after the job's end."""
    assert job.wait_tick("it ended")
    eventually("no standby waits", lambda: not _standbys(job))
