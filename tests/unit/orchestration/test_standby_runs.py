"""The standbys that the resume sensor launches, replaces, ends, and leaves jobs to; without a daemon and Spark."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import dagster as dg
import pytest
from click.testing import CliRunner

from dagster_ckpt import SparkSessionResource, build_checkpoint_definitions
from dagster_ckpt.checkpoint.control.epochs import Claim
from dagster_ckpt.checkpoint.control.heartbeat import Heartbeat
from dagster_ckpt.checkpoint.processes import ProcessIdentity, this_host
from dagster_ckpt.checkpoint.standbys import Standbys
from dagster_ckpt.cli import main
from dagster_ckpt.clock import SystemClock, iso
from dagster_ckpt.errors import InvalidConfiguration
from dagster_ckpt.orchestration import names
from tests.helpers.orchestration.stored_job import StoredJob, make_asset, run_id

Status = dg.DagsterRunStatus


class Bench:
    """A job that runs, and the sensor of a code location that wants a standby for the job, or none."""

    def __init__(self, instance: dg.DagsterInstance, root: Path) -> None:
        self.instance = instance
        self.job = StoredJob(root / "storage")
        self.standbys = Standbys(self.job.catalog.filesystem, self.job.name)
        self.load(standby=True)

    def load(self, *, standby: bool) -> None:
        """Load the code location, as a new process of it does."""
        self.resources = {"checkpoint_storage": self.job.storage, "spark": SparkSessionResource()}
        self.definitions = build_checkpoint_definitions([make_asset(standby=standby)], self.resources)

    def tick(self) -> list[dg.RunRequest]:
        (sensor,) = self.definitions.get_repository_def().sensor_defs
        context = dg.build_sensor_context(
            instance=self.instance,
            resources={"checkpoint_storage": self.job.storage},
            definitions=self.definitions,
        )
        data = sensor.evaluate_tick(context)
        self.said = data.skip_message or ""
        return list(data.run_requests or ())

    def run(self, *, completed: bool = True) -> Claim:
        """A living run of the job."""
        run = run_id()
        claim = self.job.claim(run)
        newest = self.job.checkpoint(self.job.choose(claim), 0)
        self._add(run, "orders_job", Status.STARTED, {names.JOB_TAG: "orders", "team": "sales"})
        self.job.beat(claim, alive=True, completed=newest if completed else None)
        return claim

    def launched(self, request: dg.RunRequest, status: dg.DagsterRunStatus = Status.STARTED) -> str:
        """Dagster has launched what was requested."""
        tags = {**request.tags, names.RUN_KEY_TAG: request.run_key or ""}
        return self._add(run_id(), request.job_name or "", status, tags)

    def _add(self, run: str, job: str, status: dg.DagsterRunStatus, tags: dict[str, str]) -> str:
        self.instance.create_run_for_job(
            self.definitions.resolve_job_def(job), run_id=run, status=Status.STARTED, tags=tags
        )
        if status is not Status.STARTED:
            self.end(run, status)
        return run

    def end(self, run: str, status: dg.DagsterRunStatus) -> None:
        found = self.instance.get_run_by_id(run)
        assert found is not None
        kinds = {Status.CANCELED: dg.DagsterEventType.RUN_CANCELED, Status.SUCCESS: dg.DagsterEventType.RUN_SUCCESS}
        event = dg.DagsterEvent(kinds[status].value, found.job_name, message="of the test")
        self.instance.report_dagster_event(event, run)

    def sign(self, run: str, *, alive: bool = True) -> None:
        """A standby that is warm, or that was warm and is gone."""
        process = ProcessIdentity.current()
        process = process if alive else replace(process, created=0.0, ticks=1)
        self.standbys.write(Heartbeat(1, run, (process,), 1, time.time(), uptime=SystemClock().monotonic()))

    def status(self, run: str) -> dg.DagsterRunStatus:
        found = self.instance.get_run_by_id(run)
        assert found is not None
        return found.status


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield Bench(instance, tmp_path)


@pytest.fixture
def pass_time(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    passed = 0.0

    def advance(seconds: float) -> None:
        nonlocal passed
        passed += seconds

    monkeypatch.setattr(SystemClock, "monotonic", lambda _: time.monotonic() + passed)
    monkeypatch.setattr(SystemClock, "time", lambda _: time.time() + passed)
    return advance


def test_a_run_that_has_not_yet_a_checkpoint_of_its_own_starts_without_a_standby_beside_it(
    bench: Bench, pass_time: Callable[[float], None]
) -> None:
    first = bench.run()
    assert bench.tick()
    (restored,) = bench.job.catalog.completed(first.run_id.replace("-", ""))[0]
    resumed = bench.run(completed=False)
    bench.job.beat(resumed, alive=True, completed=restored)
    assert bench.tick() == [], "what it has restored is no checkpoint of it"
    pass_time(31)
    bench.job.beat(resumed, alive=True, ago=-31, completed=restored)
    assert bench.tick(), "its source has nothing new"


def test_a_run_with_a_checkpoint_gets_one_standby_with_its_configuration(bench: Bench) -> None:
    bench.run(completed=False)
    assert bench.tick() == []
    bench.run()
    (request,) = bench.tick()
    assert request.job_name == "orders_standby"
    assert request.run_config == {"ops": {"orders": {"config": {"restore_from": "latest"}}}}
    assert request.tags.items() >= {names.STANDBY_OF_TAG: "orders", "team": "sales"}.items()
    assert names.JOB_TAG not in request.tags
    (again,) = bench.tick()
    assert again.run_key == request.run_key, "Dagster launches it once"
    standby = bench.launched(request)
    assert bench.tick() == [], "it warms up"
    bench.sign(standby)
    assert bench.tick() == []
    told = CliRunner().invoke(main, ["status", "--path", str(bench.job.root)])
    assert f"orders: run {standby} on {this_host().partition('/')[0]} is a standby" in told.output


def test_a_dead_standby_is_marked_and_replaced_after_a_pause(bench: Bench, pass_time: Callable[[float], None]) -> None:
    claim = bench.run()
    (request,) = bench.tick()
    dead = bench.launched(request)
    bench.sign(dead, alive=False)
    assert bench.tick() == []
    assert bench.status(dead) is Status.FAILURE
    assert not bench.standbys.all()
    left = run_id()
    bench.sign(left, alive=False)  # Dagster has noticed the end of this one by itself
    pass_time(31)
    (newest,) = bench.job.catalog.completed(claim.run_id.replace("-", ""))[0]
    bench.job.beat(claim, alive=True, ago=-31, completed=newest)
    (another,) = bench.tick()
    assert another.run_key != request.run_key
    assert bench.standbys.read(left) is None
    assert bench.job.failures.of(claim.series) == [], "a standby is no failure of the job"


@pytest.mark.parametrize(
    ("last", "tag"), [(names.BEGUN, names.LEFT_OUT), (names.DONE, None), (names.FAILED, None), (names.LEFT_OUT, None)]
)
def test_the_standby_after_one_that_died_in_its_rehearsal_does_not_rehearse(
    bench: Bench, pass_time: Callable[[float], None], last: str, tag: str | None
) -> None:
    claim = bench.run()
    (request,) = bench.tick()
    dead = bench.launched(request)
    bench.instance.add_run_tags(dead, {names.REHEARSAL_TAG: last})
    bench.sign(dead, alive=False)
    bench.tick()
    pass_time(31)
    (newest,) = bench.job.catalog.completed(claim.run_id.replace("-", ""))[0]
    bench.job.beat(claim, alive=True, ago=-31, completed=newest)
    (another,) = bench.tick()
    assert another.tags.get(names.REHEARSAL_TAG) == tag


@pytest.mark.parametrize("status", [Status.SUCCESS, Status.CANCELED])
def test_a_standby_that_has_ended_is_not_replaced_beside_the_same_run(bench: Bench, status: Status) -> None:
    bench.run()
    (request,) = bench.tick()
    bench.launched(request, status)
    assert bench.tick() == []
    bench.run()
    assert len(bench.tick()) == 1, "the next run of the job gets one"


def test_a_standby_of_other_code_is_told_to_end_and_another_one_follows(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.run()
    (request,) = bench.tick()
    old = bench.launched(request)
    bench.sign(old)
    bench.load(standby=True)
    assert bench.tick() == [], "the same code was loaded again"
    monkeypatch.setattr("dagster_ckpt.orchestration.sensors.resume_sensor.loaded_code", lambda _: "other")
    bench.load(standby=True)
    (another,) = bench.tick()
    assert another.tags[names.CODE_TAG] == "other"
    assert bench.standbys.read(old) is None


def test_a_standby_that_is_not_wanted_any_more_is_told_to_end(bench: Bench) -> None:
    bench.run()
    (request,) = bench.tick()
    old = bench.launched(request)
    bench.sign(old)
    bench.load(standby=False)
    assert bench.tick() == []
    assert bench.standbys.read(old) is None
    bench.end(old, Status.SUCCESS)
    assert bench.tick() == []


def test_the_sensor_leaves_a_job_to_a_living_standby_for_a_while(
    bench: Bench, pass_time: Callable[[float], None]
) -> None:
    claim = bench.run()
    (request,) = bench.tick()
    standby = bench.launched(request)
    bench.sign(standby)
    bench.job.beat(claim, alive=False)
    assert bench.tick() == []
    assert f"the standby, run {standby}, is about to take the job over" in bench.said
    assert bench.status(claim.run_id) is Status.FAILURE
    pass_time(16)
    bench.sign(standby)
    (resumes,) = bench.tick()
    assert (resumes.job_name, resumes.tags[names.RESUMES_TAG]) == ("orders_job", claim.run_id)


def test_the_sensor_does_not_wait_for_a_dead_standby_or_one_that_is_not_warm(bench: Bench) -> None:
    claim = bench.run()
    (request,) = bench.tick()
    standby = bench.launched(request)
    bench.job.beat(claim, alive=False)
    assert [item.job_name for item in bench.tick()] == ["orders_job"]
    bench.sign(standby, alive=False)
    assert [item.job_name for item in bench.tick()] == ["orders_job"]


def test_a_tick_that_reads_the_claim_before_the_takeover_marks_nobody(bench: Bench) -> None:
    """The standby runs for long, and gets the tags of a resumed run between the tick's two reads."""
    claim = bench.run()
    (request,) = bench.tick()
    standby = bench.launched(request)
    record = bench.instance.get_run_record_by_id(standby)
    assert record is not None
    bench.job.beat(claim, alive=False)
    tags = {names.JOB_TAG: "orders", names.RESUMES_TAG: claim.run_id, names.PARENT_RUN_TAG: claim.run_id}
    moments = {names.SERIES_TAG: str(claim.series), names.DETECTED_AT_TAG: iso(time.time() + 500)}
    bench.instance.add_run_tags(standby, {**tags, **moments})
    later = SystemClock()
    later.time = lambda: time.time() + 500  # type: ignore[method-assign]
    from dagster_ckpt.orchestration.sensors.job_watch import JobWatch  # noqa: PLC0415

    said = JobWatch(bench.instance, make_asset(standby=True), bench.job.catalog, later, None).step()
    assert said == f"run {standby} is starting"
    assert bench.status(standby) is Status.STARTED


def test_a_standby_and_a_pool_are_refused() -> None:
    from dagster_ckpt import checkpointed_streaming_asset  # noqa: PLC0415

    with pytest.raises(InvalidConfiguration, match="pool"):
        checkpointed_streaming_asset(standby=True, pool="spark")
