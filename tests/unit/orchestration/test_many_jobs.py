"""One sensor for many jobs: what a tick asks of the storage and of Dagster, and that each job has its turn."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest

from dagster_ckpt import FileSystemCheckpointStorage, SparkSessionResource, build_checkpoint_definitions
from dagster_ckpt.checkpoint.control.heartbeat import HeartbeatFile
from dagster_ckpt.filesystem import PosixFileSystem
from dagster_ckpt.orchestration.sensors import resume_sensor, ticks
from dagster_ckpt.testing import FaultInjectingFileSystem, Hang, Operation
from tests.helpers.orchestration.stored_job import StoredJob, make_asset, run_id

COUNT = 24


class Distant(FaultInjectingFileSystem):
    """A storage of which requests are made side by side, as of a bucket."""

    is_distant = True


class Jobs:
    """A code location with many jobs in one storage."""

    def __init__(self, root: Path, instance: dg.DagsterInstance, count: int) -> None:
        self.root, self.instance = root, instance
        self.storage = Distant(PosixFileSystem(root))
        self.assets = [make_asset(f"job_{number:03}") for number in range(count)]
        self.jobs = [StoredJob(root, asset.name) for asset in self.assets]
        resources = {
            "checkpoint_storage": FileSystemCheckpointStorage(checkpoint_path=str(root)),
            "spark": SparkSessionResource(),
        }
        self.storage_resource = resources["checkpoint_storage"]
        self.definitions = build_checkpoint_definitions(self.assets, resources)
        self.sensor = self.definitions.resolve_sensor_def("job_000_resume_sensor")
        self.cursor: str | None = None
        self.requests: Sequence[dg.RunRequest] = ()

    def tick(self) -> tuple[Counter[str], str]:
        """What a tick asks of the storage, and what it says."""
        before = len(self.storage.operations)
        context = dg.build_sensor_context(
            instance=self.instance,
            cursor=self.cursor,
            resources={"checkpoint_storage": self.storage_resource},
            definitions=self.definitions,
        )
        data = self.sensor.evaluate_tick(context)
        self.cursor, self.requests = data.cursor, data.run_requests or ()
        asked = (f"{item.name} {item.path.rpartition('/')[2]}".strip() for item in self.storage.operations[before:])
        return Counter(asked), data.skip_message or ""


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Jobs]:
    with dg.DagsterInstance.ephemeral() as instance:
        found = Jobs(tmp_path / "storage", instance, COUNT)
        monkeypatch.setattr(FileSystemCheckpointStorage, "filesystem", lambda _: found.storage)
        yield found


@pytest.fixture
def no_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise AssertionError("Dagster was asked")

    for question in ("get_run_records", "get_run_record_by_id", "get_run_by_id"):
        monkeypatch.setattr(dg.DagsterInstance, question, refused)


@pytest.mark.usefixtures("no_queries")
def test_jobs_that_never_ran_cost_one_listing_together(jobs: Jobs) -> None:
    for _ in range(2):
        asked, said = jobs.tick()
        assert asked == {"list": 1}
        assert "it has never run" in said
        assert "job_000" in said
        assert f"and {COUNT - 20} more" in said


@pytest.mark.usefixtures("no_queries")
def test_jobs_that_run_cost_one_read_each(jobs: Jobs) -> None:
    claims = []
    for job in jobs.jobs:
        claims.append(job.claim(run_id()))
        job.choose(claims[-1])
        job.beat(claims[-1], alive=True)
    jobs.tick()
    for sequence in range(2, 5):
        for job in jobs.jobs:
            file = HeartbeatFile(job.catalog.filesystem, job.name)
            beat = file.read()
            assert beat is not None
            file.write(replace(beat, sequence=sequence))
        asked, said = jobs.tick()
        assert asked == {"read heartbeat": COUNT}
        assert f"job_000: run {claims[0].run_id} is alive" in said
        assert said.endswith("and 4 more jobs")


def test_jobs_that_are_over_cost_one_listing_each(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    for job in jobs.jobs:
        claim = job.claim(run_id())
        job.choose(claim)
        job.end(claim, "FINISHED")
        job.beat(claim, alive=False, stopped=True)
    jobs.tick()
    monkeypatch.setattr(dg.DagsterInstance, "get_run_records", None)
    for _ in range(2):
        asked, said = jobs.tick()
        assert asked == {"list epochs": COUNT}
        assert "it ended FINISHED: of the test" in said


def test_a_job_that_begins_again_is_seen_to(jobs: Jobs) -> None:
    job = jobs.jobs[0]
    first = job.claim(run_id())
    job.choose(first)
    job.end(first, "FINISHED")
    job.beat(first, alive=False, stopped=True)
    for _ in range(3):
        assert "job_000: it ended FINISHED" in jobs.tick()[1]
    second = job.claim(run_id())
    assert f"job_000: run {second.run_id} is alive" in jobs.tick()[1]
    job.beat(second, alive=False)
    jobs.tick()
    assert [request.job_name for request in jobs.requests] == ["job_000_job"]


def test_jobs_in_a_distant_storage_are_looked_at_side_by_side(jobs: Jobs) -> None:
    for job in jobs.jobs:
        job.claim(run_id())
    together = threading.Barrier(COUNT)

    def wait_for_the_others(operation: Operation) -> None:
        if operation.path.endswith("control/epochs"):
            together.wait(60)

    jobs.storage.plan = wait_for_the_others
    assert "could not be looked at" not in jobs.tick()[1]


def test_jobs_in_a_distant_storage_are_acted_on_side_by_side(jobs: Jobs) -> None:
    for job in jobs.jobs:
        job.die(run_id())
    together = threading.Barrier(8)

    def wait_for_the_others(operation: Operation) -> None:
        if operation.name == "create" and "/control/failures/" in operation.path:
            together.wait(60)

    jobs.storage.plan = wait_for_the_others
    jobs.tick()
    assert [request.job_name for request in jobs.requests] == [f"{asset.name}_job" for asset in jobs.assets]


def test_when_a_tick_has_no_time_left_the_next_one_goes_on_where_it_stopped(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However slow the jobs are: here a tick has time for seven, and then it is late."""
    passed = iter(range(10**6))
    monkeypatch.setattr(ticks, "time", SimpleNamespace(monotonic=lambda: float(next(passed))))
    monkeypatch.setattr(resume_sensor, "_BUDGET", 7.0)
    seen: Counter[str] = Counter()
    for _ in range(COUNT):
        names = jobs.tick()[1].partition(":")[0].split(", ")
        assert len(names) == 7
        seen.update(names)
    assert seen == dict.fromkeys((asset.name for asset in jobs.assets), 7)


def test_while_a_request_hangs_the_other_jobs_are_looked_after(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    for job in jobs.jobs:
        job.die(run_id())
    answered = threading.Event()
    hung = Hang(lambda: answered.wait(300))
    jobs.storage.plan = lambda operation: hung if operation.path == "job_000/control/epochs" else None
    # However slow this machine is, the tick has three seconds left for each job.
    monkeypatch.setattr(ticks, "time", SimpleNamespace(monotonic=lambda: 0.0))
    monkeypatch.setattr(resume_sensor, "_BUDGET", 3.0)
    try:
        jobs.tick()
        assert jobs.requests
        assert "job_000_job" not in {request.job_name for request in jobs.requests}
    finally:
        answered.set()
    jobs.storage.plan = lambda _: None
    monkeypatch.setattr(resume_sensor, "_BUDGET", 300.0)
    jobs.tick()
    assert {request.job_name for request in jobs.requests} == {f"{asset.name}_job" for asset in jobs.assets}
