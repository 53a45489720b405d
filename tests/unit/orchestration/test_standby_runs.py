"""The standbys that the resume sensor launches, replaces, ends, and leaves jobs to; without a daemon and Spark."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import dagster as dg
import pytest
import sqlalchemy
from click.testing import CliRunner

from dagster_ckpt import SparkSessionResource, build_checkpoint_definitions
from dagster_ckpt.checkpoint.control.epochs import Claim
from dagster_ckpt.checkpoint.control.heartbeat import Heartbeat
from dagster_ckpt.checkpoint.processes import ProcessIdentity
from dagster_ckpt.checkpoint.standbys import Standbys
from dagster_ckpt.cli import main
from dagster_ckpt.clock import SystemClock, iso
from dagster_ckpt.errors import InvalidConfiguration
from dagster_ckpt.hosts import this_host
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

    def run(self, *, completed: bool = True, given: Mapping[str, Any] | None = None) -> Claim:
        """A living run of the job, whose query was launched with the configuration ``given``."""
        run = run_id()
        claim = self.job.claim(run)
        newest = self.job.checkpoint(self.job.choose(claim), 0)
        config = {"ops": {"orders": {"config": dict(given or {})}}}
        self._add(run, "orders_job", Status.STARTED, {names.JOB_TAG: "orders", "team": "sales"}, config)
        self.job.beat(claim, alive=True, completed=newest if completed else None)
        return claim

    def beat_on(self, claim: Claim, ahead: float) -> None:
        """The run lives ``ahead`` seconds from now, too, with the checkpoint that it has."""
        (newest,) = self.job.catalog.completed(claim.run_id.replace("-", ""))[0]
        self.job.beat(claim, alive=True, ago=-ahead, completed=newest)

    def launched(self, request: dg.RunRequest, status: dg.DagsterRunStatus = Status.STARTED) -> str:
        """Dagster has launched what was requested."""
        tags = {**request.tags, names.RUN_KEY_TAG: request.run_key or ""}
        return self._add(run_id(), request.job_name or "", status, tags)

    def _add(
        self,
        run: str,
        job: str,
        status: dg.DagsterRunStatus,
        tags: dict[str, str],
        config: Mapping[str, Any] | None = None,
    ) -> str:
        self.instance.create_run_for_job(
            self.definitions.resolve_job_def(job), run_id=run, status=Status.STARTED, tags=tags, run_config=config
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
    bench.beat_on(claim, 31)
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
    bench.beat_on(claim, 31)
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


def test_after_a_deployment_is_rolled_back_the_job_has_a_standby_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dagster launches no second run for a key that it has seen."""
    bench.run()
    standby, keys = "", []
    for code in ("before", "after", "before", "after"):
        monkeypatch.setattr("dagster_ckpt.orchestration.sensors.resume_sensor.loaded_code", lambda _, code=code: code)
        bench.load(standby=True)
        (request,) = bench.tick()
        keys.append(request.run_key)
        if standby:
            assert bench.standbys.read(standby) is None, "so it ends"
            bench.end(standby, Status.SUCCESS)
        standby = bench.launched(request)
        bench.sign(standby)
        assert bench.tick() == []
    assert len(set(keys)) == 4


def test_a_standby_that_is_wanted_again_is_launched_again(bench: Bench) -> None:
    """A deployment without a standby is rolled back: run and code are those of the standby that was told to end."""
    bench.run()
    (request,) = bench.tick()
    standby = bench.launched(request)
    bench.sign(standby)
    bench.load(standby=False)
    assert bench.tick() == []
    bench.end(standby, Status.SUCCESS)
    bench.load(standby=True)
    (again,) = bench.tick()
    assert again.run_key != request.run_key
    bench.end(bench.launched(again), Status.SUCCESS)
    assert bench.tick() == [], "it has ended by itself"


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


def _tagged(bench: Bench, standby: str) -> None:
    bench.instance.add_run_tags(standby, {names.JOB_TAG: "orders"})


@pytest.mark.parametrize("tag", [_tagged, lambda *_: None], ids=["Dagster knows", "Dagster could not be told"])
@pytest.mark.parametrize("in_the_tick", [False, True])
def test_the_run_that_has_taken_the_job_over_is_never_marked_as_a_dead_standby(
    bench: Bench, pass_time: Callable[[float], None], tag: Callable[[Bench, str], None], *, in_the_tick: bool
) -> None:
    old = bench.run()
    (request,) = bench.tick()
    standby = bench.launched(request)
    bench.sign(standby)
    pass_time(700)
    bench.beat_on(old, 700)
    assert bench.tick() == []

    def take_over() -> None:
        claim = bench.job.claim(standby, series=old.series)
        (newest,) = bench.job.catalog.completed(old.run_id.replace("-", ""))[0]
        bench.job.choose(claim, newest)
        bench.job.beat(claim, alive=True, ago=-700, completed=newest)
        tag(bench, standby)
        bench.standbys.remove(standby)

    get_runs, asked = bench.instance.get_runs, list[dg.RunsFilter]()

    def answer_and_take_over(filters: dg.RunsFilter, *args: Any) -> object:
        answer = get_runs(filters, *args)
        if names.STANDBY_OF_TAG in (filters.tags or {}) and not asked:
            asked.append(filters)
            take_over()
        return answer

    if in_the_tick:
        bench.instance.get_runs = answer_and_take_over  # type: ignore[method-assign, assignment]
    else:
        take_over()
    bench.tick()
    assert bool(asked) == in_the_tick
    pass_time(100)
    bench.tick()
    assert bench.status(standby) is Status.STARTED


def test_a_standby_that_has_taken_its_sign_away_has_time_to_end(
    bench: Bench, pass_time: Callable[[float], None]
) -> None:
    claim = bench.run()
    (request,) = bench.tick()
    standby = bench.launched(request)
    bench.sign(standby)
    pass_time(700)
    bench.beat_on(claim, 700)
    bench.sign(standby)
    bench.tick()
    bench.standbys.remove(standby)
    bench.tick()
    pass_time(59)
    bench.beat_on(claim, 759)
    bench.tick()
    assert bench.status(standby) is Status.STARTED
    pass_time(2)
    bench.tick()
    assert bench.status(standby) is Status.FAILURE, "it hangs"


def _damage(bench: Bench) -> None:
    (sign,) = bench.job.root.rglob("standbys/*")
    sign.write_bytes(b"")


def test_a_damaged_sign_of_a_dead_standby_holds_up_no_resume(bench: Bench) -> None:
    claim = bench.run()
    (request,) = bench.tick()
    standby = bench.launched(request)
    bench.sign(standby, alive=False)
    _damage(bench)
    bench.job.beat(claim, alive=False)
    (resumes,) = bench.tick()
    assert resumes.tags[names.RESUMES_TAG] == claim.run_id


def test_a_damaged_sign_of_a_standby_is_as_none(bench: Bench, pass_time: Callable[[float], None]) -> None:
    claim = bench.run()
    (request,) = bench.tick()
    standby = bench.launched(request)
    bench.sign(standby)
    _damage(bench)
    bench.tick()
    assert bench.status(standby) is Status.STARTED
    assert "could not be looked at" not in bench.said
    pass_time(700)
    bench.beat_on(claim, 700)
    bench.tick()
    assert bench.status(standby) is Status.FAILURE
    assert not list(bench.job.root.rglob("standbys/*"))


def test_a_standby_that_has_queued_for_long_has_its_time_to_warm_up(
    bench: Bench, pass_time: Callable[[float], None]
) -> None:
    claim = bench.run()
    (request,) = bench.tick()
    standby = run_id()
    tags = {**request.tags, names.RUN_KEY_TAG: request.run_key or ""}
    job = bench.definitions.resolve_job_def(request.job_name or "")
    bench.instance.create_run_for_job(job, run_id=standby, status=Status.NOT_STARTED, tags=tags)
    with cast("Any", bench.instance.run_storage).connect() as storage:  # it was created long ago
        storage.execute(sqlalchemy.text("UPDATE runs SET create_timestamp = '2020-01-01 00:00:00'"))
    bench.tick()
    event = dg.DagsterEvent(dg.DagsterEventType.RUN_STARTING.value, request.job_name or "", message="of the test")
    bench.instance.report_dagster_event(event, standby)
    pass_time(61)
    bench.beat_on(claim, 61)
    bench.tick()
    assert bench.status(standby) is Status.STARTING
    pass_time(600)
    bench.beat_on(claim, 661)
    bench.tick()
    assert bench.status(standby) is Status.FAILURE


def _fail(bench: Bench, request: dg.RunRequest, *, after: float = 0) -> None:
    """The standby is launched, and fails now, ``after`` seconds."""
    run = bench.instance.get_run_by_id(bench.launched(request))
    assert run is not None
    bench.instance.report_run_failed(run)
    now = SystemClock().time()
    with cast("Any", bench.instance.run_storage).connect() as storage:
        moments = {"run": run.run_id, "began": now - after, "ended": now}
        storage.execute(
            sqlalchemy.text("UPDATE runs SET start_time = :began, end_time = :ended WHERE run_id = :run"), moments
        )


def test_standbys_that_fail_one_after_the_other_are_launched_ever_more_seldom(
    bench: Bench, pass_time: Callable[[float], None]
) -> None:
    claim, now, keys = bench.run(), 0.0, set()

    def tick_after(seconds: float) -> list[dg.RunRequest]:
        nonlocal now
        pass_time(seconds)
        now += seconds
        bench.beat_on(claim, now)
        return bench.tick()

    (request,) = tick_after(0)
    for pause in (30, 60, 120, 240, 480, 960, 1800, 1800):
        keys.add(request.run_key)
        _fail(bench, request)
        assert tick_after(pause - 5) == []
        (request,) = tick_after(6)
    assert len(keys) == 8
    _fail(bench, request, after=3600)
    assert len(tick_after(31)) == 1, "it has lived for long"


def test_a_standby_that_is_canceled_after_one_that_failed_is_not_asked_for_again(
    bench: Bench, pass_time: Callable[[float], None]
) -> None:
    claim = bench.run()
    _fail(bench, *bench.tick())
    pass_time(31)
    bench.beat_on(claim, 31)
    (request,) = bench.tick()
    bench.launched(request, Status.CANCELED)
    assert bench.tick() == []


def test_a_standby_and_a_pool_are_refused() -> None:
    from dagster_ckpt import checkpointed_streaming_asset  # noqa: PLC0415

    with pytest.raises(InvalidConfiguration, match="pool"):
        checkpointed_streaming_asset(standby=True, pool="spark")
