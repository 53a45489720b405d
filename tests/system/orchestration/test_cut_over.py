"""``dagster-ckpt restore JOB now --code-version``: a version takes the place of another, and back, in one command."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable

import dagster as dg
import psutil
import pytest
from click.testing import CliRunner

from dagster_ckpt.checkpoint.format.code_versions import CodeVersion
from dagster_ckpt.cli import main
from dagster_ckpt.orchestration import names
from dagster_ckpt.testing.dagster_dev import wait_for
from tests.system.orchestration.watch import PATIENCE, JobWatch

# A Dagster, and a Spark for each run: minutes where others use the machine too, far less where not.
pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(2400)]

_GREEN = CodeVersion("2", in_place_of="1")


def test_a_running_job_is_cut_over_and_back_and_a_cut_over_that_is_killed_loses_nothing(
    watch: Callable[[str], JobWatch],
) -> None:
    job = watch("cut_over")
    job.pipeline.land(2)
    blue = job.launch()
    job.wait_caught_up(blue)

    run, told = _cut_over(job, "2")
    assert told["status"] == "SUCCESS"
    assert job.dev.status(blue) == "SUCCESS", "blue was stopped with a savepoint"
    assert _taken(job), "which is on record"
    green = next(found.run_id for found in job.dev.runs(job.name) if found.tags.get(names.ASKED_BY_TAG) == run)
    assert job.choice().code == _GREEN
    job.pipeline.land(1)
    _wait_letters(job, green, {"wrong"})

    # The run of the cut-over is killed once the job has stopped: the job is as it was, and stopped.
    before = len(_taken(job))
    rollback = job.dev.launch(names.rollback_job(job.name), config={"to": "now", "code_version": "1"})
    wait_for(lambda: len(_taken(job)) > before, "the savepoint of the stop", seconds=PATIENCE, poll=0.01)
    _kill(job, rollback)
    assert job.wait_end(green) == "SUCCESS"
    assert job.choice().code == _GREEN
    assert [found for found in job.dev.runs(job.name) if found.tags.get(names.ASKED_BY_TAG) == rollback] == []
    job.pipeline.land(1)
    again = job.launch()
    _wait_letters(job, again, {"wrong"})
    assert job.choice().code == _GREEN, "a launch goes on with the version that was there"

    job.dev.terminate(rollback, force=True)  # Dagster takes it for running
    run, told = _cut_over(job, "1")
    assert told["status"] == "SUCCESS"
    assert job.choice().code == CodeVersion("1")
    back = next(found.run_id for found in job.dev.runs(job.name) if found.tags.get(names.ASKED_BY_TAG) == run)
    job.pipeline.land(1)
    _wait_letters(job, back, {letter for letter, _ in job.pipeline.expected()})
    job.dev.terminate(back)
    assert job.wait_end(back) == "CANCELED"
    job.assert_all_verify()


def test_a_version_that_is_not_there_changes_nothing(watch: Callable[[str], JobWatch]) -> None:
    job = watch("cut_over")
    epoch = job.epoch()
    _, told = _cut_over(job, "3")
    assert told["status"] == "FAILURE"
    assert job.epoch() == epoch


def _cut_over(job: JobWatch, version: str) -> tuple[str, dict[str, str]]:
    """The run of the command, and what the command says."""
    arguments = ["restore", job.name, "now", "--code-version", version, "--dagster-url", job.dev.url, "--json"]
    done = CliRunner(catch_exceptions=False).invoke(main, arguments)
    told = json.loads(done.stdout)
    assert (done.exit_code == 0) == (told["status"] == "SUCCESS"), done.stderr
    return told["run"], told


def _kill(job: JobWatch, run: str) -> None:
    """SIGKILL the process of a run."""
    with job.dev.instance() as instance:
        told = (entry.message for entry in instance.all_logs(run, of_type=dg.DagsterEventType.ENGINE_EVENT))
        pid = next(int(found[1]) for text in told if (found := re.search(r"pid: (\d+)", text)))
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not psutil.pid_exists(pid), f"process {pid} to be gone")


def _taken(job: JobWatch) -> list[str]:
    return [savepoint.reference for savepoint in job.catalog.records.taken_savepoints.known()]


def _wait_letters(job: JobWatch, run: str, letters: set[str]) -> None:
    """Wait until everything landed was read; each id is there once, and those of the last file have such letters."""
    ids = {id_ for _, id_ in job.pipeline.expected()}
    new = ids - {id_ for _, id_ in job.pipeline.expected(job.pipeline.landed() - 1)}

    def ask() -> bool:
        assert job.dev.status(run) in {"QUEUED", "NOT_STARTED", "STARTING", "STARTED"}, f"see {job.dev.log}"
        return {id_ for _, id_ in job.pipeline.committed()} == ids

    wait_for(ask, f"run {run} to read what has landed (see {job.dev.log})", seconds=PATIENCE, poll=0.2)
    committed = job.pipeline.committed()
    assert sorted(id_ for _, id_ in committed.elements()) == sorted(ids)
    assert {letter for letter, id_ in committed if id_ in new} <= letters
