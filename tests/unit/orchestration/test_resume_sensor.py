"""The sensor's function on a real storage and an instance of its own, without a daemon and without Spark."""

from __future__ import annotations

import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_ckpt import (
    CheckpointConfig,
    CheckpointedStreamingAsset,
    ExternalizedCheckpointCleanup,
    RestartStrategies,
    SparkSessionResource,
    build_checkpoint_definitions,
)
from dagster_ckpt.checkpoint import seen
from dagster_ckpt.checkpoint.catalog.newest import find_newest
from dagster_ckpt.checkpoint.cleanup.job_sweep import sweep_job
from dagster_ckpt.checkpoint.cleanup.pinning import pin_checkpoint
from dagster_ckpt.checkpoint.control.epochs import Choice, Claim
from dagster_ckpt.checkpoint.control.failures import Failure
from dagster_ckpt.checkpoint.control.heartbeat import Heartbeat, HeartbeatFile, free_job
from dagster_ckpt.checkpoint.control.job_records import JobRecords
from dagster_ckpt.checkpoint.lease import Lease
from dagster_ckpt.checkpoint.processes import ProcessIdentity
from dagster_ckpt.checkpoint.sight import Sight, look
from dagster_ckpt.checkpoint.submissions import Submission
from dagster_ckpt.checkpoint.taking.store import CompletedCheckpointStore
from dagster_ckpt.clock import Clock, SystemClock, seconds_of
from dagster_ckpt.orchestration import names
from dagster_ckpt.orchestration.sensors import job_watch, resume_sensor, ticks
from dagster_ckpt.orchestration.sensors.failed_sensor import JobFailed, on_job_failed
from dagster_ckpt.resume.decision import Action, Facts, decide
from tests.helpers.checkpoint.driver import ManualClock
from tests.helpers.checkpoint.record_files import resealed
from tests.helpers.checkpoint.submitting import submitted
from tests.helpers.mounts import fill, mounted
from tests.helpers.orchestration.stored_job import StoredJob, make_asset, run_id

_DELETES = CheckpointConfig(cleanup=ExternalizedCheckpointCleanup.DELETE_ON_CANCELLATION)
Status = dg.DagsterRunStatus


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as ephemeral:
        yield ephemeral


@pytest.fixture
def job(tmp_path: Path) -> StoredJob:
    return StoredJob(tmp_path / "storage")


class Sensor:
    """The sensor of a code location with these assets, ticking by hand."""

    def __init__(
        self, instance: dg.DagsterInstance, job: StoredJob, assets: Sequence[CheckpointedStreamingAsset] | None = None
    ) -> None:
        self.instance = instance
        self.assets = assets or [make_asset()]
        self.resources = {"checkpoint_storage": job.storage, "spark": SparkSessionResource()}
        self.definitions = build_checkpoint_definitions(self.assets, self.resources)
        self.cursor: str | None = None

    def tick(self) -> tuple[list[dg.RunRequest], str]:
        """What it requests and what it says."""
        (sensor,) = self.definitions.get_repository_def().sensor_defs
        context = dg.build_sensor_context(
            instance=self.instance,
            cursor=self.cursor,
            resources={"checkpoint_storage": self.resources["checkpoint_storage"]},
            definitions=self.definitions,
        )
        data = sensor.evaluate_tick(context)
        self.cursor = data.cursor
        return list(data.run_requests or ()), data.skip_message or ""

    def request(self) -> dg.RunRequest:
        (request,) = self.tick()[0]
        return request

    def add_run(
        self,
        run: str,
        status: dg.DagsterRunStatus,
        *,
        tags: Mapping[str, str] | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> str:
        """Let the instance know a run of the first asset's job."""
        asset = self.assets[0]
        self.instance.create_run_for_job(
            self.definitions.resolve_job_def(asset.job_name),
            run_id=run,
            status=status,
            tags={names.JOB_TAG: asset.name, **(tags or {})},
            run_config=config,
        )
        return run

    def launch(self, request: dg.RunRequest, status: dg.DagsterRunStatus) -> str:
        """Let Dagster have launched what was requested."""
        return self.add_run(run_id(), status, tags=request.tags, config=request.run_config)

    def status(self, run: str) -> dg.DagsterRunStatus:
        found = self.instance.get_run_by_id(run)
        assert found is not None
        return found.status

    def shown(self) -> set[str]:
        return set(self.instance.get_dynamic_partitions(self.assets[0].partitions_name))


@pytest.fixture
def sensor(instance: dg.DagsterInstance, job: StoredJob) -> Sensor:
    return Sensor(instance, job)


@pytest.fixture
def pass_time(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Lets so many seconds pass, for whoever goes by the time since boot."""
    passed = 0.0

    def advance(seconds: float) -> None:
        nonlocal passed
        passed += seconds

    monkeypatch.setattr(SystemClock, "monotonic", lambda _: time.monotonic() + passed)
    return advance


def test_a_job_that_never_ran_is_left_alone(sensor: Sensor) -> None:
    assert sensor.tick() == ([], "orders: it has never run")


def test_a_new_instance_resumes_from_what_the_storage_says_alone(sensor: Sensor, job: StoredJob) -> None:
    dead = job.die(run_id(), checkpoints=2)
    request = sensor.request()
    newest = find_newest(job.catalog).metadata
    assert newest is not None
    assert request.job_name == "orders_job"
    assert request.run_config == {"ops": {"orders": {"config": {"restore_from": "latest"}}}}
    assert (
        request.tags.items()
        >= {
            names.JOB_TAG: "orders",
            names.ATTEMPT_TAG: "1",
            names.SERIES_TAG: str(dead.series),
            names.RESTORED_FROM_TAG: newest.reference,
            names.PARENT_RUN_TAG: dead.run_id,
            names.ROOT_RUN_TAG: dead.run_id,
            names.MAX_RETRIES_TAG: "0",
        }.items()
    )
    moments = [seconds_of(request.tags[tag]) for tag in (names.FAILED_AT_TAG, names.DETECTED_AT_TAG)]
    assert moments == sorted(moments)
    assert moments[1] <= SystemClock().time()
    assert dg.validate_run_config(sensor.definitions.resolve_job_def("orders_job"), request.run_config)


def test_a_doubled_tick_requests_the_same_run_and_counts_the_death_once(sensor: Sensor, job: StoredJob) -> None:
    dead = job.die(run_id())
    first, second = sensor.request(), sensor.request()
    assert first.run_key == second.run_key
    assert [failure.run_id for failure in job.failures.of(dead.series)] == [dead.run_id]


def test_two_sensors_on_two_instances_agree(sensor: Sensor, job: StoredJob) -> None:
    job.die(run_id())
    with dg.DagsterInstance.ephemeral() as other:
        assert Sensor(other, job).request().run_key == sensor.request().run_key


def _submitted(sensor: Sensor, job: StoredJob, *, attended: bool, status: Status = Status.STARTED) -> Claim:
    """A living driver that was submitted for a run; the process of that run lives or is gone."""
    run = sensor.add_run(run_id(), status)
    submitted(job.catalog.records, Submission(run, 0, None, "{}", 1.0))
    claim = job.claim(run)
    job.choose(claim)
    job.beat(claim, alive=True)
    process = ProcessIdentity.current()
    process = process if attended else replace(process, created=0.0, ticks=1)
    sign = Heartbeat(claim.epoch, run, (process,), 1, time.time(), uptime=SystemClock().monotonic())
    job.catalog.records.attendant.write(sign)
    return claim


def test_a_driver_that_its_run_attends_is_left_alone(sensor: Sensor, job: StoredJob) -> None:
    claim = _submitted(sensor, job, attended=True)
    for _ in range(3):
        assert sensor.tick() == ([], f"orders: run {claim.run_id} is alive")


def test_a_living_driver_whose_run_died_is_attended_by_one_run_and_not_restarted(
    sensor: Sensor, job: StoredJob
) -> None:
    claim = _submitted(sensor, job, attended=True)
    assert sensor.tick() == ([], f"orders: run {claim.run_id} is alive")
    sign = job.catalog.records.attendant.read()
    assert sign is not None
    job.catalog.records.attendant.write(replace(sign, stopped=True, sequence=2))
    request = sensor.request()
    assert request.run_key == sensor.request().run_key, "a doubled tick"
    assert sensor.status(claim.run_id) is Status.FAILURE
    (told,) = sensor.instance.all_logs(claim.run_id, of_type=dg.DagsterEventType.RUN_FAILURE)
    assert "its driver goes on without it" in str(told.message)
    assert request.tags[names.ATTENDS_TAG] == request.tags[names.PARENT_RUN_TAG] == claim.run_id
    assert names.RESUMES_TAG not in request.tags
    assert dg.validate_run_config(sensor.definitions.resolve_job_def("orders_job"), request.run_config)
    launched = sensor.launch(request, Status.STARTING)
    assert sensor.tick() == ([], f"orders: run {launched} is about to attend the driver of run {claim.run_id}")
    assert job.failures.of(claim.series) == [], "nothing has failed"
    assert job.catalog.records.epochs.highest() == claim.epoch

    job.catalog.records.attendant.write(replace(sign, run_id=launched, sequence=3))
    assert sensor.tick() == ([], f"orders: run {claim.run_id} is alive")


def test_a_resumed_run_is_not_given_up_while_it_waits_for_room_on_the_cluster(
    sensor: Sensor, job: StoredJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = 0.0
    monkeypatch.setattr(SystemClock, "monotonic", lambda _: time.monotonic() + passed)
    dead = job.die(sensor.add_run(run_id(), Status.STARTED))
    first = sensor.request()
    launched = sensor.launch(first, Status.STARTED)
    submitted(job.catalog.records, Submission(launched, dead.epoch, dead.series, "{}", 1.0))
    sign = Heartbeat(dead.epoch, launched, (ProcessIdentity.current(),), 1, time.time())
    for sequence in range(3):
        now = SystemClock().monotonic()
        job.catalog.records.attendant.write(replace(sign, sequence=sequence, uptime=now))
        assert sensor.tick() == ([], f"orders: run {launched} waits for the driver that it has submitted")
        passed += 130
    gone = replace(sign.processes[0], created=0.0, ticks=1)
    job.catalog.records.attendant.write(replace(sign, sequence=4, processes=(gone,)))
    assert sensor.request().run_key != first.run_key
    assert sensor.status(launched) is Status.FAILURE


def test_a_canceled_run_whose_process_died_cancels_its_living_driver(sensor: Sensor, job: StoredJob) -> None:
    claim = _submitted(sensor, job, attended=False, status=Status.CANCELED)
    assert sensor.tick() == ([], f"orders: run {claim.run_id} was canceled, and its driver lives")
    assert job.catalog.records.savepoint_requests.is_to_cancel(claim.run_id)


def test_a_driver_of_an_earlier_submission_is_no_driver_of_the_run_now(sensor: Sensor, job: StoredJob) -> None:
    """The user has gone back to a Spark in the process of the run: what the submission left counts for nothing."""
    job.end(_submitted(sensor, job, attended=False), "FINISHED")
    claim = job.claim(sensor.add_run(run_id(), Status.STARTED))
    job.beat(claim, alive=True)
    assert sensor.tick() == ([], f"orders: run {claim.run_id} is alive")


def test_a_run_that_lives_is_left_alone(sensor: Sensor, job: StoredJob) -> None:
    claim = job.claim(sensor.add_run(run_id(), Status.STARTED))
    job.beat(claim, alive=True)
    assert sensor.tick() == ([], f"orders: run {claim.run_id} is alive")


def test_a_run_that_has_just_claimed_is_given_time_to_beat(sensor: Sensor, job: StoredJob) -> None:
    claim = job.claim(run_id())
    assert sensor.tick() == ([], f"orders: run {claim.run_id} is alive")


def test_a_run_that_never_beat_is_dead_after_the_lease(sensor: Sensor, job: StoredJob) -> None:
    claim = job.claim(run_id(), ago=31)
    assert sensor.request().tags[names.PARENT_RUN_TAG] == claim.run_id
    (failure,) = job.failures.of(claim.series)
    assert re.search(r"no heartbeat since it took the job over 3\d s ago", failure.reason)


def test_a_run_that_stopped_beating_is_dead_after_the_lease(
    sensor: Sensor, job: StoredJob, pass_time: Callable[[float], None]
) -> None:
    claim = job.claim(run_id(), ago=100)
    job.beat(claim, alive=True)
    assert sensor.tick() == ([], f"orders: run {claim.run_id} is alive")
    pass_time(31)
    sensor.request()
    assert re.search(r"no heartbeat for 3\d s", job.failures.of(claim.series)[0].reason)


def test_the_run_that_follows_a_silent_run_of_another_host_does_not_wait_for_a_second_lease(
    sensor: Sensor, job: StoredJob, pass_time: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = job.claim(run_id())
    elsewhere = ProcessIdentity("elsewhere/1", 7, 1.0)
    lease = Lease(10, 60)  # so that the machine may be slow between two ticks
    job.catalog.records.heartbeat.write(Heartbeat(claim.epoch, claim.run_id, (elsewhere,), 1, time.time(), lease=lease))
    assert sensor.tick() == ([], f"orders: run {claim.run_id} is alive")
    requests: list[dg.RunRequest] = []
    while not requests:
        pass_time(5)
        requests, _ = sensor.tick()
    monkeypatch.setattr(seen, "_seen", {})  # the run is a process of its own
    waited: list[float] = []

    def wait(seconds: float) -> None:
        waited.append(seconds)
        pass_time(seconds)

    assert free_job(job.catalog.records.heartbeat, SystemClock(), wait) == ()
    assert 0 < sum(waited) <= lease.settled


def test_a_tick_that_found_the_run_alive_resumes_the_job_when_the_run_dies(
    sensor: Sensor, job: StoredJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks at the process again after its first look, and may stay only where no other sensor waits for it."""
    claim = job.claim(run_id())
    with subprocess.Popen(["sleep", "600"]) as driver:
        process = ProcessIdentity.of(driver.pid)
        beat = Heartbeat(claim.epoch, claim.run_id, (process,), 1, time.time(), uptime=SystemClock().monotonic())
        job.catalog.records.heartbeat.write(beat)
        looked = threading.Event()

        def look_and_tell(records: JobRecords, clock: Clock, before: Sight | None) -> Sight | None:
            found = look(records, clock, before)
            looked.set()
            return found

        def die() -> None:
            looked.wait()
            driver.kill()
            driver.wait()

        monkeypatch.setattr(ticks, "look", look_and_tell)
        monkeypatch.setattr(resume_sensor, "STAY", 60.0)
        assert sensor.tick() == ([], f"orders: run {claim.run_id} is alive"), "sensors are evaluated one by one"
        looked.clear()
        settings = {"use_threads": True, "num_workers": 4}
        monkeypatch.setattr(dg.DagsterInstance, "get_settings", lambda _, key: settings if key == "sensors" else {})
        dying = threading.Thread(target=die)
        dying.start()
        request = sensor.request()
        dying.join()
    assert request.tags[names.PARENT_RUN_TAG] == claim.run_id
    assert job.failures.of(claim.series)[0].reason.endswith(f"its process {process.pid} is gone")


@pytest.mark.parametrize(
    ("delay", "latest", "is_due"),
    [("1 s", 600.0, True), ("1 h", 600.0, False), ("1 s", 0.0, False)],
    ids=["soon", "late", "soon, after a long look"],
)
def test_the_tick_that_finds_a_death_waits_for_the_first_delay_and_no_later_tick_does(
    instance: dg.DagsterInstance,
    job: StoredJob,
    monkeypatch: pytest.MonkeyPatch,
    delay: str,
    latest: float,
    *,
    is_due: bool,
) -> None:
    """Else the job would wait for the next tick, which Dagster begins after five seconds, and ends after sixty."""
    sensor = Sensor(instance, job, [make_asset(restart=RestartStrategies.fixed_delay_restart(3, delay))])
    settings = {"use_threads": True, "num_workers": 4}
    monkeypatch.setattr(dg.DagsterInstance, "get_settings", lambda _, key: settings if key == "sensors" else {})
    monkeypatch.setattr(resume_sensor, "STAY", 0.0)
    monkeypatch.setattr(resume_sensor, "AFTER_NEWS", 1.0 if delay == "1 h" else 60.0)
    monkeypatch.setattr(resume_sensor, "LONGEST_TICK", latest)
    turns: list[float] = []
    monkeypatch.setattr(time, "sleep", turns.append)
    job.die(sensor.add_run(run_id(), Status.STARTED))
    requests, _ = sensor.tick()
    assert len(requests) == int(is_due), "one tick has found the death and waited for the delay"
    if not is_due:
        assert bool(turns) == (latest > 0)
        turns.clear()
        assert sensor.tick()[0] == []
        assert not turns, "the death is no news any more"


@pytest.mark.parametrize("workers", [1, 4])
def test_a_tick_looks_once_while_the_run_lives_although_its_step_has_ended(
    sensor: Sensor, job: StoredJob, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    claim = job.claim(run_id())
    process = ProcessIdentity.current()
    gone = ProcessIdentity(process.host, process.pid, process.created - 1000)
    beat = Heartbeat(claim.epoch, claim.run_id, (gone,), 1, time.time(), uptime=SystemClock().monotonic())
    beat = replace(beat, worker=process)
    job.catalog.records.heartbeat.write(beat)
    looks: list[Sight | None] = []

    def look_and_count(records: JobRecords, clock: Clock, before: Sight | None) -> Sight | None:
        looks.append(look(records, clock, before))
        return looks[-1]

    monkeypatch.setattr(ticks, "look", look_and_count)
    monkeypatch.setattr(resume_sensor, "STAY", 0.5)
    settings = {"use_threads": True, "num_workers": workers}
    monkeypatch.setattr(dg.DagsterInstance, "get_settings", lambda _, key: settings if key == "sensors" else {})
    assert sensor.tick() == ([], f"orders: run {claim.run_id} is alive")
    assert len(looks) == 1


def test_what_is_seen_for_the_first_time_may_lie_over_a_newer_beat(
    sensor: Sensor, job: StoredJob, pass_time: Callable[[float], None]
) -> None:
    claim = job.claim(run_id(), ago=100)
    job.beat(claim, alive=True, ago=31)
    assert sensor.tick() == ([], f"orders: run {claim.run_id} is alive")
    pass_time(Lease().timeout)
    sensor.request()
    assert "no heartbeat for " in job.failures.of(claim.series)[0].reason, "a busy machine adds seconds"


@pytest.mark.parametrize("of_before", [False, True], ids=["its own", "of the epoch before"])
def test_a_run_does_not_die_of_a_beat_that_came_late(
    sensor: Sensor, job: StoredJob, pass_time: Callable[[float], None], *, of_before: bool
) -> None:
    before, claim = job.claim(run_id(), ago=200), job.claim(run_id(), ago=100)
    file = HeartbeatFile(job.catalog.filesystem, job.name)
    job.beat(before if of_before else claim, alive=True, ago=40)
    late = file.read()
    assert late is not None
    job.beat(claim, alive=True)
    beat = file.read()
    assert beat is not None
    for sequence in range(10, 15):
        file.write(replace(beat, sequence=sequence, uptime=SystemClock().monotonic()))
        assert sensor.tick() == ([], f"orders: run {claim.run_id} is alive")
        pass_time(20)
        file.write(late)
        assert sensor.tick() == ([], f"orders: run {claim.run_id} is alive")
        pass_time(1)


@pytest.mark.parametrize("skew", [-3600.0, 3600.0])
def test_a_run_on_another_host_is_dead_when_it_was_seen_to_be_silent_for_a_lease(
    sensor: Sensor, job: StoredJob, monkeypatch: pytest.MonkeyPatch, skew: float
) -> None:
    """Whatever its clock says, which may be wrong by an hour."""
    passed = 0.0
    monkeypatch.setattr(SystemClock, "monotonic", lambda _: 1000.0 + passed)
    claim = job.claim(run_id())
    file = HeartbeatFile(job.catalog.filesystem, job.name)
    beat = Heartbeat(claim.epoch, claim.run_id, (ProcessIdentity("elsewhere/1", 1, 1.0),), 1, time.time() + skew)
    for sequence in range(3):
        file.write(replace(beat, sequence=sequence))
        assert sensor.tick() == ([], f"orders: run {claim.run_id} is alive")
        passed += 29
        assert sensor.tick() == ([], f"orders: run {claim.run_id} is alive")
    passed += 2
    sensor.request()
    assert re.search(r"no heartbeat for 3\d s", job.failures.of(claim.series)[0].reason)


def test_a_run_that_died_unnoticed_is_marked_failed_with_the_reason(sensor: Sensor, job: StoredJob) -> None:
    dead = job.die(sensor.add_run(run_id(), Status.STARTED))
    sensor.request()
    assert sensor.status(dead.run_id) is Status.FAILURE
    said = "\n".join(entry.message for entry in sensor.instance.all_logs(dead.run_id))
    assert "dagster_ckpt: the run counts as dead: its process" in said


@pytest.mark.parametrize("alive_for", [0, 3600])
def test_a_run_that_goes_on_after_its_stream_has_ended_is_left_alone(
    sensor: Sensor, job: StoredJob, alive_for: float
) -> None:
    """Assets downstream of the stream may take long, in the same run."""
    claim = job.claim(sensor.add_run(run_id(), Status.STARTED))
    job.choose(claim)
    job.beat(claim, alive=True, stopped=True, ago=alive_for)
    job.end(claim, "FINISHED")
    assert sensor.tick()[0] == []
    assert sensor.status(claim.run_id) is Status.STARTED


def test_such_a_run_on_another_host_is_left_to_dagster(
    sensor: Sensor, job: StoredJob, pass_time: Callable[[float], None]
) -> None:
    """Nobody here sees whether its process goes on, and its last beat never changes again."""
    claim = job.claim(sensor.add_run(run_id(), Status.STARTED))
    job.choose(claim)
    pod = replace(ProcessIdentity.current(), host="pod-1")
    beat = Heartbeat(claim.epoch, claim.run_id, (pod,), 5, time.time(), stopped=True, uptime=SystemClock().monotonic())
    job.catalog.records.heartbeat.write(beat)
    job.end(claim, "FINISHED")
    for _ in range(3):
        assert sensor.tick()[0] == []
        assert sensor.status(claim.run_id) is Status.STARTED
        pass_time(100)


def test_a_canceled_run_that_died_is_cleaned_up_after_and_dagster_told_why(
    instance: dg.DagsterInstance, job: StoredJob
) -> None:
    sensor = Sensor(instance, job, [make_asset(config=_DELETES)])
    dead = job.die(sensor.add_run(run_id(), Status.CANCELING), checkpoints=2)
    instance.add_dynamic_partitions(
        "orders_checkpoints", [names.partition_key(item) for item in job.catalog.completed(_lineage(dead.run_id))[0]]
    )
    assert sensor.tick() == ([], f"orders: it ended CANCELED: run {dead.run_id} was canceled")
    assert sensor.status(dead.run_id) is Status.CANCELED
    assert job.catalog.completed(_lineage(dead.run_id)) == ([], [])
    assert sensor.shown() == set()
    observed = instance.fetch_observations(dg.AssetKey(["orders_checkpoints"]), limit=10).records
    reasons = {str(item.asset_observation.metadata["reason"].value) for item in observed if item.asset_observation}
    assert len(observed) == 2
    assert reasons == {f"CANCELED: run {dead.run_id} was canceled, and the cleanup policy deletes"}
    assert sensor.tick() == ([], f"orders: it ended CANCELED: run {dead.run_id} was canceled"), "once is enough"


def test_what_a_tick_could_not_show_of_an_end_the_next_one_shows(
    instance: dg.DagsterInstance, job: StoredJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end is on record, and Dagster refuses to hear of it just then."""
    sensor = Sensor(instance, job, [make_asset(config=_DELETES)])
    job.die(sensor.add_run(run_id(), Status.CANCELED))
    instance.add_dynamic_partitions(sensor.assets[0].partitions_name, ["of its run"])
    with monkeypatch.context() as refusing:
        refusing.setattr(instance, "get_dynamic_partitions", _refuse)
        assert "database is locked" in sensor.tick()[1]
    assert sensor.shown() == {"of its run"}
    assert "it ended CANCELED" in sensor.tick()[1]
    assert sensor.shown() == set()


def test_what_is_too_much_for_a_tick_is_shown_by_several_with_one_reason(
    instance: dg.DagsterInstance, job: StoredJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    sensor = Sensor(instance, job, [make_asset(config=_DELETES)])
    dead = job.die(sensor.add_run(run_id(), Status.CANCELING), checkpoints=3)
    keys = [names.partition_key(item) for item in job.catalog.completed(_lineage(dead.run_id))[0]]
    instance.add_dynamic_partitions("orders_checkpoints", keys)
    monkeypatch.setattr("dagster_ckpt.orchestration.reporting.reporter._LONGEST_REPORT", -1.0)
    for left in (2, 1, 0, 0):
        assert "it ended CANCELED" in sensor.tick()[1]
        assert len(sensor.shown()) == left
    observed = instance.fetch_observations(dg.AssetKey(["orders_checkpoints"]), limit=10).records
    reasons = {str(item.asset_observation.metadata["reason"].value) for item in observed if item.asset_observation}
    assert len(observed) == 3
    assert reasons == {f"CANCELED: run {dead.run_id} was canceled, and the cleanup policy deletes"}


def test_what_a_tick_could_not_delete_the_next_one_deletes(
    instance: dg.DagsterInstance, job: StoredJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    sensor = Sensor(instance, job, [make_asset(config=_DELETES)])
    claim = job.die(sensor.add_run(run_id(), Status.CANCELED), checkpoints=2)
    job_id = claim.run_id.replace("-", "")
    with monkeypatch.context() as refusing:
        refusing.setattr(CompletedCheckpointStore, "discard_all", _refuse)
        assert "database is locked" in sensor.tick()[1]
    assert len(job.catalog.completed(job_id)[0]) == 2
    assert "it ended CANCELED" in sensor.tick()[1]
    assert not job.catalog.numbers(job_id)
    epochs = job.catalog.records.epochs.highest()
    assert "it ended CANCELED" in sensor.tick()[1]
    assert job.catalog.records.epochs.highest() == epochs, "once is enough"


def test_a_run_that_begins_while_another_is_being_ended_is_not_fenced(
    sensor: Sensor, job: StoredJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tick has read that the run was canceled; before it has said so, a new one claims."""
    canceled = job.die(sensor.add_run(run_id(), Status.CANCELED))
    claims: list[Claim] = []

    def and_then_a_claim(facts: Facts) -> Action:
        action = decide(facts)
        if not claims:
            claims.append(job.claim(run_id()))
        return action

    monkeypatch.setattr(job_watch, "decide", and_then_a_claim)
    assert sensor.tick() == ([], f"orders: run {claims[0].run_id} is alive")
    assert job.catalog.records.epochs.highest() == claims[0].epoch == canceled.epoch + 1
    assert job.catalog.records.epochs.read_end(canceled.epoch) is None


def swept(sensor: Sensor, job: StoredJob) -> None:
    """The job was over, the sensor knows that, and then a sweep deleted all that was left of the job."""
    job.end(job.claim(run_id()), "CANCELED")
    for _ in range(2):
        assert "it ended CANCELED" in sensor.tick()[1]
    clock = ManualClock()
    clock.now = time.time() + 86_400
    sweep_job(job.catalog, clock, older_than=timedelta(hours=1))
    assert not (job.root / job.name).exists()


@pytest.mark.parametrize("ticked", [True, False], ids=["with a tick in between", "without a tick in between"])
def test_a_job_that_was_swept_and_launched_again_is_resumed(sensor: Sensor, job: StoredJob, *, ticked: bool) -> None:
    """Though the new claim has the number of the old one."""
    swept(sensor, job)
    if ticked:
        assert "it has never run" in sensor.tick()[1]
    second = job.die(run_id())
    assert second.epoch == 1
    assert sensor.request().tags[names.RESUMES_TAG] == second.run_id


@pytest.mark.parametrize("ticked", [True, False], ids=["with a tick in between", "without a tick in between"])
def test_a_job_that_was_swept_and_launched_again_and_failed_is_resumed(
    sensor: Sensor, job: StoredJob, pass_time: Callable[[float], None], *, ticked: bool
) -> None:
    swept(sensor, job)
    if ticked:
        assert "it has never run" in sensor.tick()[1]
    second = job.claim(run_id())
    job.fail(second, 0)
    job.end(second, "FAILING")
    job.beat(second, alive=False)
    if not ticked:
        pass_time(2 * Lease().timeout)
    assert sensor.request().tags[names.RESUMES_TAG] == second.run_id


def test_a_run_that_was_interrupted_and_not_canceled_is_resumed(sensor: Sensor, job: StoredJob) -> None:
    """Its process was told to go, by a host that shuts down: it stopped in order and recorded no end."""
    claim = job.claim(sensor.add_run(run_id(), Status.FAILURE))
    job.checkpoint(job.choose(claim), 1)
    job.beat(claim, alive=False, stopped=True, interrupted=True)
    assert sensor.request().tags[names.ATTEMPT_TAG] == "0"
    assert job.failures.of(claim.series) == []


def test_a_job_that_failed_turns_its_asset_red(sensor: Sensor, job: StoredJob, instance: dg.DagsterInstance) -> None:
    dead = job.die(sensor.add_run(run_id(), Status.FAILURE))
    job.fail(dead, 1, recoverable=False)
    sensor.tick()
    key = dg.AssetCheckKey(sensor.assets[0].key, "healthy")
    (record,) = instance.event_log_storage.get_asset_check_execution_history(key, limit=9)
    assert record.status.value == "FAILED"
    sensor.tick()
    assert len(instance.event_log_storage.get_asset_check_execution_history(key, limit=9)) == 1


def test_a_resumed_run_has_the_tags_that_its_user_gave(sensor: Sensor, job: StoredJob) -> None:
    dead = sensor.add_run(run_id(), Status.FAILURE)
    given = {"team": "data", "dagster/priority": "3", "dagster-k8s/config": "{}"}
    own = {"dagster/sensor_name": "x", "dagster/run_key": "y", ".dagster/agent_id": "z", names.ATTEMPT_TAG: "7"}
    sensor.instance.add_run_tags(dead, {**given, **own})
    job.die(dead)
    tags = sensor.request().tags
    assert given.items() <= tags.items()
    assert not own.items() & tags.items()


def test_a_run_that_stopped_and_could_not_record_its_end_has_failed(sensor: Sensor, job: StoredJob) -> None:
    claim = job.claim(sensor.add_run(run_id(), Status.FAILURE))
    job.checkpoint(job.choose(claim), 1)
    job.beat(claim, alive=False, stopped=True)
    assert sensor.request().tags[names.ATTEMPT_TAG] == "1"
    (failure,) = job.failures.of(claim.series)
    assert failure.reason == f"run {claim.run_id} counts as dead: it stopped and recorded no end"


def _refuse(*_: Any) -> None:
    raise OSError("database is locked")


def test_a_canceled_run_that_died_keeps_its_checkpoints_by_default(sensor: Sensor, job: StoredJob) -> None:
    dead = job.die(sensor.add_run(run_id(), Status.CANCELED))
    assert sensor.tick()[0] == []
    retained = job.catalog.completed(_lineage(dead.run_id))[0]
    assert len(retained) == 1
    assert sensor.shown() == {names.partition_key(retained[0])}, "a new instance is shown what there is"


def test_a_run_that_fails_before_it_claims_counts_and_the_next_has_a_new_key(sensor: Sensor, job: StoredJob) -> None:
    job.die(run_id())
    first = sensor.request()
    launched = sensor.launch(first, Status.FAILURE)
    second = sensor.request()
    assert second.run_key != first.run_key
    assert second.tags[names.ATTEMPT_TAG] == "2"
    assert launched in {failure.run_id for failure in job.failures.of(1)}


def test_while_the_resumed_run_starts_no_other_is_requested(sensor: Sensor, job: StoredJob) -> None:
    job.die(run_id())
    launched = sensor.launch(sensor.request(), Status.STARTING)
    assert sensor.tick() == ([], f"orders: run {launched} is starting")


def test_the_time_to_start_begins_when_the_resumed_run_leaves_the_queue(
    sensor: Sensor, job: StoredJob, monkeypatch: pytest.MonkeyPatch, pass_time: Callable[[float], None]
) -> None:
    job.die(run_id())
    launched = sensor.launch(sensor.request(), Status.STARTING)
    now = time.time()

    def pass_on(seconds: float) -> None:
        nonlocal now
        now += seconds
        pass_time(seconds)

    monkeypatch.setattr(SystemClock, "time", lambda _: now)
    pass_on(600)  # so long it was in the queue
    leaves = dg.DagsterEvent(dg.DagsterEventType.RUN_STARTING.value, "orders_job")
    sensor.instance.run_storage.handle_run_event(launched, leaves, datetime.fromtimestamp(now, UTC))
    for seconds in (119, 2):
        assert sensor.tick() == ([], f"orders: run {launched} is starting")
        pass_on(seconds)
    sensor.tick()
    assert sensor.status(launched) is Status.FAILURE, "it has never begun"


def test_a_resumed_run_that_the_user_cancels_in_the_queue_ends_the_job(sensor: Sensor, job: StoredJob) -> None:
    job.die(run_id())
    launched = sensor.launch(sensor.request(), Status.CANCELED)
    requests, said = sensor.tick()
    assert requests == []
    assert f"it ended CANCELED: run {launched} was canceled" in said


def _launched_by_the_first_release(sensor: Sensor, status: Status) -> str:
    """A run with the tags that the sensor of 0.1.0 gave it, and those that Dagster gives each run of a sensor."""
    request = sensor.request()
    later = {names.RESUMES_TAG, names.FAILED_AT_TAG, names.DETECTED_AT_TAG}
    tags = {key: value for key, value in request.tags.items() if key not in later}
    return sensor.add_run(run_id(), status, tags={**tags, names.RUN_KEY_TAG: str(request.run_key)})


def test_a_resume_of_the_first_release_that_the_user_cancels_ends_the_job(sensor: Sensor, job: StoredJob) -> None:
    job.die(run_id())
    launched = _launched_by_the_first_release(sensor, Status.CANCELED)
    requests, said = sensor.tick()
    assert requests == []
    assert f"it ended CANCELED: run {launched} was canceled" in said


def test_a_resume_of_the_first_release_that_fails_before_it_claims_counts(sensor: Sensor, job: StoredJob) -> None:
    job.die(run_id())
    launched = _launched_by_the_first_release(sensor, Status.FAILURE)
    assert sensor.request().tags[names.ATTEMPT_TAG] == "2"
    assert launched in {failure.run_id for failure in job.failures.of(1)}


def test_while_a_resume_of_the_first_release_starts_no_other_is_requested(sensor: Sensor, job: StoredJob) -> None:
    job.die(run_id())
    launched = _launched_by_the_first_release(sensor, Status.STARTING)
    assert sensor.tick() == ([], f"orders: run {launched} is starting")


def test_what_a_user_runs_again_is_no_resume_although_dagster_copies_the_tags(sensor: Sensor, job: StoredJob) -> None:
    first = job.die(run_id())
    resumed = _launched_by_the_first_release(sensor, Status.FAILURE)
    job.die(resumed, series=first.series)
    again = sensor.instance.get_run_by_id(resumed)
    assert again is not None
    tags = {**again.tags, names.PARENT_RUN_TAG: resumed}
    repeated = sensor.add_run(run_id(), Status.CANCELED, tags=tags)
    run = sensor.instance.get_run_by_id(repeated)
    assert run is not None
    assert not names.is_resumed(run, sensor.instance)
    assert names.is_resumed(again, sensor.instance)
    assert len(sensor.tick()[0]) == 1, "the user has canceled a run of his own, and not the job"


def test_the_second_resume_names_the_first_run_as_root(sensor: Sensor, job: StoredJob) -> None:
    first = job.die(run_id())
    sensor.add_run(first.run_id, Status.FAILURE)
    second = job.die(sensor.launch(sensor.request(), Status.STARTED), series=first.series)
    request = sensor.request()
    assert request.tags[names.PARENT_RUN_TAG] == second.run_id
    assert request.tags[names.ROOT_RUN_TAG] == first.run_id
    assert request.tags[names.ATTEMPT_TAG] == "2"
    assert request.tags[names.SERIES_TAG] == str(first.series)


def test_the_budget_is_counted_over_runs_and_then_the_sensor_says_why_it_stopped(
    instance: dg.DagsterInstance, job: StoredJob
) -> None:
    sensor = Sensor(instance, job, [make_asset(restart=RestartStrategies.fixed_delay_restart(2, "0 s"))])
    series = job.die(run_id()).series
    for attempt in (1, 2):
        request = sensor.request()
        assert request.tags[names.ATTEMPT_TAG] == str(attempt)
        job.die(sensor.launch(request, Status.STARTED), series=series)
    requests, said = sensor.tick()
    assert requests == []
    assert "it ended FAILED: " in said
    assert "all 2 restarts are used up (fixed delay 0 ms, 2 attempts)" in said
    assert find_newest(job.catalog).metadata is not None, "nothing was deleted"


def test_a_storage_that_is_full_delays_the_restart_and_forgets_nothing(sensor: Sensor, job: StoredJob) -> None:
    """The run could record neither its failure nor its end, and the sensor can write down nothing either."""
    job.root.mkdir(parents=True)
    with mounted("-t", "tmpfs", "-o", "size=2m", "tmpfs", str(job.root)):
        dead = job.die(sensor.add_run(run_id(), Status.FAILURE))
        fill(job.root / "ballast")
        for _ in range(2):
            requests, said = sensor.tick()
            assert requests == []
            assert "No space left on device" in said
        (job.root / "ballast").unlink()
        assert sensor.request().tags[names.PARENT_RUN_TAG] == dead.run_id
        assert [failure.run_id for failure in job.failures.of(dead.series)] == [dead.run_id]


def test_a_resume_that_failed_counts_whatever_the_clock_says(sensor: Sensor, job: StoredJob) -> None:
    """The clock has been set back by a day since the claim. Dagster never launches a run key twice."""
    claim = job.claim(sensor.add_run(run_id(), Status.FAILURE), ago=-86_400)
    job.checkpoint(job.choose(claim), 0)
    job.beat(claim, alive=False)
    first = sensor.request()
    failed = sensor.launch(first, Status.FAILURE)
    second = sensor.request()
    assert second.run_key != first.run_key
    assert second.tags[names.ATTEMPT_TAG] == "2"
    assert {failure.run_id for failure in job.failures.of(claim.series)} == {claim.run_id, failed}


def test_a_restart_does_not_wait_for_a_clock_that_was_set_back(
    instance: dg.DagsterInstance, job: StoredJob, pass_time: Callable[[float], None]
) -> None:
    sensor = Sensor(instance, job, [make_asset(restart=RestartStrategies.fixed_delay_restart(3, "1000 s"))])
    dead = job.die(sensor.add_run(run_id(), Status.FAILURE))
    job.failures.record(dead.series, Failure(dead.run_id, 1, time.time() + 86_400, None, "it failed"))
    job.end(dead, "FAILING")

    def rest() -> int:
        return int(sensor.tick()[1].rpartition(" in ")[2].removesuffix(" s"))

    assert 900 < rest() <= 1000
    pass_time(600)
    assert 300 < rest() <= 400
    pass_time(400)
    sensor.request()


def test_a_failure_that_a_restart_cannot_help_ends_the_job(sensor: Sensor, job: StoredJob) -> None:
    dead = job.die(sensor.add_run(run_id(), Status.FAILURE))
    job.fail(dead, 1, recoverable=False)
    job.end(dead, "FAILING")
    requests, said = sensor.tick()
    assert requests == []
    assert said == "orders: it ended FAILED: failure 1 (a restart cannot help)"


def test_a_restart_waits_for_its_delay_and_says_so(instance: dg.DagsterInstance, job: StoredJob) -> None:
    sensor = Sensor(instance, job, [make_asset(restart=RestartStrategies.fixed_delay_restart(3, "1 h"))])
    job.die(run_id())
    requests, said = sensor.tick()
    assert requests == []
    assert said.startswith("orders: restart 1 of 3 (fixed delay 1 h, 3 attempts), in 3")


def test_what_a_launch_asked_for_is_asked_for_again_until_it_is_on_record(sensor: Sensor, job: StoredJob) -> None:
    job.die(run_id(), checkpoints=2)
    wanted = f"{job.catalog.job_ids()[0]}/chk-1"
    config = {"ops": {"orders": {"config": {"restore_from": wanted, "claim_mode": "NO_CLAIM"}}}}
    claim = job.claim(sensor.add_run(run_id(), Status.FAILURE, config=config))
    job.beat(claim, alive=False)
    request = sensor.request()
    assert request.run_config == config
    assert request.tags[names.RESTORED_FROM_TAG] == wanted

    job.choose(claim, job.catalog.resolve(wanted))
    request = sensor.request()
    assert request.run_config["ops"]["orders"]["config"] == {"restore_from": "latest"}
    assert request.tags[names.RESTORED_FROM_TAG] == wanted, "it is what the newest choice began with"


@pytest.mark.parametrize("asked", ["none", "chk-1"])
def test_a_later_attempt_of_the_same_run_does_not_start_over(sensor: Sensor, job: StoredJob, asked: str) -> None:
    """The first attempt did what was asked for; the second one, which died before its choice, only went on."""
    config = {"ops": {"orders": {"config": {"restore_from": asked}}}}
    first = job.claim(sensor.add_run(run_id(), Status.FAILURE, config=config))
    newest = job.checkpoint(job.choose(first), 0)
    job.end(first, "FAILING")
    second = job.claim(first.run_id, series=first.series)
    job.beat(second, alive=False)
    request = sensor.request()
    assert request.run_config["ops"]["orders"]["config"]["restore_from"] == "latest"
    assert request.tags[names.RESTORED_FROM_TAG] == newest.reference


def configured(**keys: str) -> dict[str, Any]:
    """The run configuration of a launch with Flink's keys; some of them for short."""
    short = {
        "cleanup": "execution.checkpointing.externalized-checkpoint-retention",
        "restart": "restart-strategy.type",
        "path": "execution.state-recovery.path",
        "prefer": "execution.checkpointing.prefer-checkpoint-for-recovery",
    }
    config = {short[name]: value for name, value in keys.items()}
    return {"ops": {"orders": {"config": {"configuration": config}}}}


def test_the_configuration_of_the_launch_is_kept_but_not_what_it_began_with(
    sensor: Sensor, job: StoredJob, pass_time: Callable[[float], None]
) -> None:
    job.die(run_id(), checkpoints=2)
    wanted = f"{job.root}/orders/{job.catalog.job_ids()[0]}/chk-1"
    config = configured(restart="exponential-delay", path=wanted)
    claim = job.claim(sensor.add_run(run_id(), Status.FAILURE, config=config), ago=60)
    assert sensor.tick() == ([], f"orders: run {claim.run_id} is alive"), "a beat of before may lie over its own"
    pass_time(Lease().timeout)
    request = sensor.request()
    asked = request.run_config["ops"]["orders"]["config"]
    assert asked["configuration"] == config["ops"]["orders"]["config"]["configuration"]
    assert asked["restore_from"] == "latest"
    assert request.tags[names.RESTORED_FROM_TAG] == wanted, "it has not restored it yet"

    job.choose(claim, job.catalog.resolve(wanted))
    request = sensor.request()
    asked = request.run_config["ops"]["orders"]["config"]
    assert asked == {"restore_from": "latest", "configuration": {"restart-strategy.type": "exponential-delay"}}
    assert dg.validate_run_config(sensor.definitions.resolve_job_def("orders_job"), request.run_config)


@pytest.mark.parametrize("prefer", ["true", "false"])
def test_what_is_shown_as_gone_on_from_is_what_the_run_prefers(sensor: Sensor, job: StoredJob, prefer: str) -> None:
    claim = job.claim(sensor.add_run(run_id(), Status.FAILURE, config=configured(prefer=prefer)))
    store = job.choose(claim)
    checkpoint, savepoint = job.checkpoint(store, 0), job.savepoint(store, 1)
    job.beat(claim, alive=False)
    request = sensor.request()
    assert request.tags[names.RESTORED_FROM_TAG] == (checkpoint if prefer == "true" else savepoint).reference
    kept = request.run_config["ops"]["orders"]["config"]["configuration"]
    assert kept == {"execution.checkpointing.prefer-checkpoint-for-recovery": prefer}


def test_the_restart_strategy_is_the_runs_own(sensor: Sensor, job: StoredJob) -> None:
    dead = job.die(sensor.add_run(run_id(), Status.FAILURE, config=configured(restart="none")))
    requests, said = sensor.tick()
    assert requests == []
    assert (
        said == f"orders: it ended FAILED: run {dead.run_id} counts as dead: {_why(job, dead)} (Restart deactivated.)"
    )


def test_and_is_kept_by_the_runs_that_resume_it(instance: dg.DagsterInstance, job: StoredJob) -> None:
    sensor = Sensor(instance, job, [make_asset(restart=RestartStrategies.no_restart())])
    config = configured(restart="fixed-delay")
    config["ops"]["orders"]["config"]["configuration"]["restart-strategy.fixed-delay.delay"] = "1 ms"
    series = job.die(sensor.add_run(run_id(), Status.FAILURE, config=config)).series
    job.die(sensor.launch(sensor.request(), Status.FAILURE), series=series)
    requests, said = sensor.tick()
    assert requests == []
    assert "all 1 restarts are used up (fixed delay 1 ms, 1 attempts)" in said


@pytest.mark.parametrize(("cleanup", "left"), [("NO_EXTERNALIZED_CHECKPOINTS", 0), ("RETAIN_ON_CANCELLATION", 2)])
def test_the_cleanup_is_the_runs_own(instance: dg.DagsterInstance, job: StoredJob, cleanup: str, left: int) -> None:
    sensor = Sensor(instance, job, [make_asset(config=_DELETES)])
    dead = job.die(sensor.add_run(run_id(), Status.CANCELED, config=configured(cleanup=cleanup)), checkpoints=2)
    assert sensor.tick()[0] == []
    assert len(job.catalog.completed(_lineage(dead.run_id))[0]) == left


def test_what_is_pinned_stays_a_partition_when_the_job_is_cleaned_up(
    instance: dg.DagsterInstance, job: StoredJob
) -> None:
    sensor = Sensor(instance, job, [make_asset(config=_DELETES)])
    dead = job.die(sensor.add_run(run_id(), Status.CANCELED), checkpoints=3)
    completed = job.catalog.completed(_lineage(dead.run_id))[0]
    instance.add_dynamic_partitions("orders_checkpoints", [names.partition_key(item) for item in completed])
    pin_checkpoint(job.catalog, completed[1], "audit", SystemClock())
    assert sensor.tick()[0] == []
    assert sensor.shown() == {names.partition_key(completed[1])}
    observed = instance.fetch_observations(dg.AssetKey(["orders_checkpoints"]), limit=10).records
    reasons = {str(item.asset_observation.metadata["reason"].value) for item in observed if item.asset_observation}
    assert len(observed) == 2
    assert all(reason.endswith("; pinned and kept: chk-2 (audit)") for reason in reasons)


def test_resource_configuration_of_the_launch_is_kept(sensor: Sensor, job: StoredJob) -> None:
    resources = {"spark": {"config": {"master": "local[3]"}}}
    sensor.add_run(dead := run_id(), Status.FAILURE, config={"resources": resources})
    job.die(dead)
    assert sensor.request().run_config["resources"] == resources


def test_trouble_with_one_job_does_not_stop_the_others(instance: dg.DagsterInstance, job: StoredJob) -> None:
    other = StoredJob(job.root, "payments")
    sensor = Sensor(instance, job, [make_asset(), make_asset("payments")])
    job.die(run_id())
    epoch = job.root / "orders" / "control" / "epochs" / "e-0000000001"
    epoch.write_text("this is no record")
    requests, said = sensor.tick()
    assert requests == []
    assert "orders: could not be looked at: " in said
    assert str(epoch) in said
    assert said.endswith("payments: it has never run")

    other.die(run_id())
    assert sensor.request().job_name == "payments_job"


def test_a_failure_at_a_time_that_no_calendar_has_holds_up_no_resume(sensor: Sensor, job: StoredJob) -> None:
    job.fail(job.die(run_id()), 1)
    (path,) = (path for path in (job.root / job.name / "control" / "failures").rglob("*") if path.is_file())
    path.write_bytes(resealed(path.read_bytes(), at=1e12))
    assert sensor.request().tags[names.ATTEMPT_TAG] == "2"


def test_a_job_whose_configuration_the_code_no_longer_takes_does_not_stop_the_others(
    instance: dg.DagsterInstance, job: StoredJob
) -> None:
    """Dagster ends the tick that asks for such a run, and launches none of the others."""
    other = StoredJob(job.root, "payments")
    assets = [make_asset(), make_asset("payments")]
    sensor = Sensor(instance, job, assets)
    given = {"resources": {"spark": {"config": {"threshold": 5}}}}
    instance.add_run(dg.DagsterRun("orders_job", dead := run_id(), given, status=Status.FAILURE))
    job.die(dead)
    other.die(run_id())
    assert [request.job_name for request in sensor.tick()[0]] == ["payments_job"]
    other.claim(run_id(), series=1)
    requests, said = sensor.tick()
    assert requests == []
    assert "threshold" in said
    assert "Launch a run of orders_job with a configuration that it takes" in said
    check = dg.AssetCheckKey(dg.AssetKey(["orders"]), "healthy")
    told_of = instance.event_log_storage.get_asset_check_execution_history(check, limit=9)
    assert [item.status.value for item in told_of] == ["FAILED"], "once, whatever the number of ticks"
    told: list[JobFailed] = []
    alerts = on_job_failed(assets, told.append)
    cursor = None
    for _ in range(2):
        context = dg.build_sensor_context(
            instance=instance, cursor=cursor, resources={"checkpoint_storage": job.storage}
        )
        cursor = alerts.evaluate_tick(context).cursor
    (alert,) = told
    assert (alert.job_name, alert.state) == ("orders", "DEAD")
    assert "threshold" in alert.reason


@pytest.mark.parametrize(
    "cursor",
    [
        '{"finished": null}',
        '{"first": null}',
        '{"first": "x", "finished": []}',
        '{"first": Infinity}',
        '{"finished": {"orders": []}}',
        "[]",
        "1",
        "no JSON",
    ],
)
def test_a_cursor_that_says_nothing_stops_no_tick(sensor: Sensor, job: StoredJob, cursor: str) -> None:
    job.die(run_id())
    sensor.cursor = cursor
    assert len(sensor.tick()[0]) == 1


def test_several_jobs_are_resumed_in_one_tick(instance: dg.DagsterInstance, job: StoredJob) -> None:
    other = StoredJob(job.root, "payments")
    sensor = Sensor(instance, job, [make_asset(), make_asset("payments")])
    job.die(run_id())
    other.die(run_id())
    assert {request.job_name for request in sensor.tick()[0]} == {"orders_job", "payments_job"}


def test_an_unreadable_newest_checkpoint_is_named_and_not_passed_over(sensor: Sensor, job: StoredJob) -> None:
    dead = job.die(run_id(), checkpoints=2)
    metadata = job.root / "orders" / _lineage(dead.run_id) / "chk-2" / "_metadata"
    metadata.write_bytes(metadata.read_bytes()[:-20])
    requests, said = sensor.tick()
    assert requests == []
    assert str(metadata) in said


def _why(job: StoredJob, claim: Claim) -> str:
    (failure,) = job.failures.of(claim.series)
    return failure.reason.partition("counts as dead: ")[2]


def _lineage(run: str) -> str:
    return run.replace("-", "")


@pytest.mark.parametrize("way", ["the live location", "the option"])
def test_past_a_newest_checkpoint_that_is_broken_the_run_finds_its_way(
    instance: dg.DagsterInstance, job: StoredJob, way: str
) -> None:
    job.die(run_id(), checkpoints=2)
    newest = find_newest(job.catalog).metadata
    assert newest is not None
    manifest = job.root / "orders" / newest.reference / "_metadata"
    manifest.write_bytes(manifest.read_bytes()[:-4])
    if way == "the live location":
        (job.root.parent / "live").mkdir()
    sensor = Sensor(instance, job, [make_asset(config=CheckpointConfig(fallback_to_older=way == "the option"))])
    assert sensor.request().tags[names.RESTORED_FROM_TAG] == "latest"


def test_a_run_that_fell_back_is_said_to_have(sensor: Sensor, job: StoredJob) -> None:
    claim = job.claim(sensor.add_run(run_id(), Status.STARTED))
    cost = "chk-9 is broken, and it fell back to chk-7 (batch 12): batch 13 is run again (1 batch)"
    job.catalog.records.epochs.record_choice(
        claim.epoch, Choice("a" * 32, None, 1, 0, "/l", "h", None, "", fell_back=cost)
    )
    job.beat(claim, alive=True)
    assert sensor.tick() == ([], f"orders: run {claim.run_id} is alive; {cost}")
