"""``on_job_failed``: who is told of which job, once, whatever the tick costs."""

from __future__ import annotations

import json
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import dagster as dg
import pytest

from dagster_ckpt import CheckpointConfig, CheckpointedStreamingAsset, JobFailed, on_job_failed
from dagster_ckpt.checkpoint.catalog.newest import find_newest
from dagster_ckpt.filesystem import PosixFileSystem
from dagster_ckpt.orchestration.sensors import failed_sensor, ticks
from dagster_ckpt.testing import Fail, FaultInjectingFileSystem, Operation
from tests.helpers.orchestration.stored_job import StoredJob, launched, make_asset, run_id

#: Dagster ends a tick after so many seconds, and discards its cursor.
LIMIT = 60.0


class Distant(FaultInjectingFileSystem):
    """A storage of which requests are made side by side, as of a bucket."""

    is_distant = True


class Alerts:
    """An instance on which the sensor ticks.

    Attributes:
        told: what was told.
        on_tell: called when somebody is told.
        cursor: what the last tick has left.
    """

    def __init__(
        self,
        instance: dg.DagsterInstance,
        storage: FaultInjectingFileSystem,
        assets: Sequence[CheckpointedStreamingAsset],
    ) -> None:
        self.told: list[JobFailed] = []
        self.on_tell: Callable[[JobFailed], object] = str
        self.cursor: str | None = None
        self.storage = storage
        self._instance = instance
        self._sensor = on_job_failed(assets, self._tell)

    def _tell(self, failed: JobFailed) -> None:
        self.on_tell(failed)
        self.told.append(failed)

    def tick(self) -> str:
        context = dg.build_sensor_context(
            instance=self._instance,
            cursor=self.cursor,
            resources={"checkpoint_storage": SimpleNamespace(filesystem=lambda: self.storage)},
        )
        data = self._sensor.evaluate_tick(context)
        self.cursor = data.cursor
        return data.skip_message or ""


@pytest.fixture
def job(tmp_path: Path) -> StoredJob:
    return StoredJob(tmp_path / "storage", "orders")


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as ephemeral:
        yield ephemeral


@pytest.fixture
def alerts(instance: dg.DagsterInstance, job: StoredJob) -> Alerts:
    return Alerts(instance, Distant(PosixFileSystem(job.root)), assets_of([job]))


def assets_of(jobs: Sequence[StoredJob]) -> list[CheckpointedStreamingAsset]:
    return [make_asset(job.name) for job in jobs]


def fail(job: StoredJob, reason: str = "all 3 restarts are used up") -> None:
    job.end(job.die(run_id()), "FAILED", reason)


def wipe(alerts: Alerts, job: StoredJob) -> None:
    """Delete all of a job; the sensor sees that the job is gone."""
    shutil.rmtree(job.root / job.name)
    alerts.tick()


def damage_newest(job: StoredJob) -> Callable[[], object]:
    """Damage the newest checkpoint of a job; returns what mends it."""
    newest = find_newest(job.catalog).metadata
    assert newest is not None
    metadata = job.root / job.name / newest.reference / "_metadata"
    content = metadata.read_bytes()
    metadata.write_bytes(content[:-20])
    return lambda: metadata.write_bytes(content)


def test_each_end_is_told_once_and_no_run_that_is_resumed(instance: dg.DagsterInstance, job: StoredJob) -> None:
    other = StoredJob(job.root, "returns")
    alerts = Alerts(instance, Distant(PosixFileSystem(job.root)), assets_of([job, other]))

    def refuse(_: JobFailed) -> None:
        raise ConnectionError("no route to the pager")

    dead = job.die(run_id())
    alerts.tick()
    job.fail(dead, 1)
    job.end(dead, "FAILING", "tried again")
    alerts.tick()
    other.end(other.die(run_id()), "CANCELED")
    alerts.tick()
    assert alerts.told == []

    again = job.die(run_id(), series=dead.series)
    job.end(again, "FAILED", "all 3 restarts are used up")
    alerts.on_tell = refuse
    assert "no route to the pager" in alerts.tick()
    alerts.on_tell = str
    alerts.tick()
    assert alerts.tick() == "no job has ended FAILED since"
    (first,) = alerts.told
    assert (first.job_name, first.run_id, first.state) == ("orders", again.run_id, "FAILED")
    assert first.reason == "all 3 restarts are used up"
    assert str(first.checkpoint).endswith("/chk-2")

    later = job.die(run_id())
    alerts.tick()
    job.end(later, "FAILED", "once more")
    alerts.tick()
    alerts.tick()
    assert [failed.reason for failed in alerts.told] == [first.reason, "once more"]
    assert {failed.checkpoint_path for failed in alerts.told} == {str(job.root)}


def test_a_job_begun_anew_that_fails_in_the_same_epoch_is_told(alerts: Alerts, job: StoredJob) -> None:
    fail(job, "the first")
    alerts.tick()
    wipe(alerts, job)
    fail(job, "after the storage was wiped")
    alerts.tick()
    alerts.tick()
    assert [failed.reason for failed in alerts.told] == ["the first", "after the storage was wiped"]


def test_what_an_earlier_release_has_told_is_not_told_again(alerts: Alerts, job: StoredJob) -> None:
    """Its cursor has the number of each job's epoch."""
    fail(job)
    alerts.cursor = json.dumps({job.name: 1, "returns": 4})
    alerts.tick()
    alerts.tick()
    assert alerts.told == []
    wipe(alerts, job)
    fail(job, "after the storage was wiped")
    alerts.tick()
    assert [failed.reason for failed in alerts.told] == ["after the storage was wiped"]


@pytest.mark.parametrize("cursor", ["no JSON", "[1]", '{"ended": {"orders": []}}', '{"orders": "x"}', "7"])
def test_a_cursor_that_nobody_understands_is_none(alerts: Alerts, job: StoredJob, cursor: str) -> None:
    fail(job)
    alerts.cursor = cursor
    alerts.tick()
    assert len(alerts.told) == 1


def test_a_failed_job_with_a_damaged_newest_checkpoint_is_told_as_failed(alerts: Alerts, job: StoredJob) -> None:
    fail(job, "its newest checkpoint cannot be read")
    damage_newest(job)
    alerts.tick()
    alerts.tick()
    (told,) = alerts.told
    assert (told.state, told.checkpoint) == ("FAILED", None)
    assert told.reason.startswith("its newest checkpoint cannot be read. Its newest checkpoint cannot be restored: ")


def test_damaged_records_are_told_once_and_anew_when_they_are_damaged_again(alerts: Alerts, job: StoredJob) -> None:
    claim = job.claim(run_id())
    record = job.root / job.name / "control" / "epochs" / f"e-{claim.epoch:010}"
    content = record.read_bytes()
    for times in (1, 2):
        record.write_text("this is no record")
        for _ in range(3):
            alerts.tick()
        assert [failed.state for failed in alerts.told] == ["UNREADABLE"] * times
        assert str(record) in alerts.told[-1].reason
        record.write_bytes(content)
        alerts.tick()
    assert len(alerts.told) == 2


def test_a_job_that_nobody_can_resume_is_told_once(instance: dg.DagsterInstance, job: StoredJob) -> None:
    job.die(run_id())
    mend = damage_newest(job)
    storage = Distant(PosixFileSystem(job.root))
    goes_past = Alerts(instance, storage, [make_asset(config=CheckpointConfig(fallback_to_older=True))])
    alerts = Alerts(instance, storage, [make_asset()])
    for _ in range(2):
        goes_past.tick()
        alerts.tick()
    assert goes_past.told == []
    (told,) = alerts.told
    assert (told.state, told.checkpoint) == ("DEAD", None)
    assert "is gone. Its newest checkpoint cannot be restored: " in told.reason
    mend()
    alerts.tick()
    damage_newest(job)
    alerts.tick()
    assert len(alerts.told) == 2


def test_a_run_that_was_launched_to_fall_back_is_resumed_and_nobody_is_told(
    instance: dg.DagsterInstance, job: StoredJob
) -> None:
    """And one that was launched without is told, whatever the asset says."""
    storage = Distant(PosixFileSystem(job.root))
    alerts = Alerts(instance, storage, assets_of([job]))
    dead = job.die(launched(instance, {"fallback_to_older": True}), checkpoints=2)
    damage_newest(job)
    alerts.tick()
    assert alerts.told == []
    goes_past = Alerts(instance, storage, [make_asset(config=CheckpointConfig(fallback_to_older=True))])
    last = job.claim(launched(instance, {"fallback_to_older": False}), series=dead.series)
    job.beat(last, alive=False)
    goes_past.tick()
    assert [told.run_id for told in goes_past.told] == [last.run_id]


def test_dagster_is_asked_for_the_run_of_a_damaged_job_only(
    alerts: Alerts, instance: dg.DagsterInstance, job: StoredJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    find = instance.get_run_by_id

    def counted(run: str) -> dg.DagsterRun | None:
        asked.append(run)
        return find(run)

    monkeypatch.setattr(instance, "get_run_by_id", counted)
    claim = job.claim(run_id())
    job.choose(claim)
    job.beat(claim, alive=True)
    alerts.tick()
    job.beat(claim, alive=False)
    alerts.tick()
    fail(job)
    alerts.tick()
    assert [told.state for told in alerts.told] == ["FAILED"]
    assert asked == []
    dead = job.die(run_id())
    damage_newest(job)
    alerts.tick()
    assert [told.state for told in alerts.told] == ["FAILED", "DEAD"]
    assert asked == [dead.run_id]


def test_a_storage_that_fails_for_a_moment_pages_nobody(alerts: Alerts, job: StoredJob) -> None:
    fail(job)
    alerts.storage.plan = lambda operation: Fail() if operation.path.endswith(".end") else None
    assert "orders: StorageError: " in alerts.tick()
    assert alerts.told == []
    alerts.storage.plan = lambda _: None
    alerts.tick()
    assert len(alerts.told) == 1


class TestManyJobs:
    """A tick ends in time, and each job has its turn."""

    COUNT = 24

    @pytest.fixture
    def jobs(self, tmp_path: Path) -> list[StoredJob]:
        return [StoredJob(tmp_path / "storage", f"job_{number:03}") for number in range(self.COUNT)]

    @pytest.fixture
    def alerts(self, instance: dg.DagsterInstance, jobs: list[StoredJob]) -> Alerts:
        return Alerts(instance, Distant(PosixFileSystem(jobs[0].root)), assets_of(jobs))

    def test_slow_messages_end_the_tick_before_its_cursor_is_lost(
        self, alerts: Alerts, jobs: list[StoredJob], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each message takes longer than a webhook of the documentation may take."""
        now = 0.0
        monkeypatch.setattr(ticks, "time", SimpleNamespace(monotonic=lambda: now))

        def send(_: JobFailed) -> None:
            nonlocal now
            now += 15

        alerts.on_tell = send
        for job in jobs:
            fail(job)
        for _ in range(self.COUNT):
            began = now
            alerts.tick()
            assert now - began < LIMIT - 15
        assert Counter(failed.job_name for failed in alerts.told) == dict.fromkeys((job.name for job in jobs), 1)

    def test_when_a_tick_has_no_time_left_the_next_one_goes_on_where_it_stopped(
        self, instance: dg.DagsterInstance, jobs: list[StoredJob], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """However often nobody can be told: here a tick has time for seven messages, and all of them fail."""
        passed = iter(range(10**6))
        monkeypatch.setattr(ticks, "time", SimpleNamespace(monotonic=lambda: float(next(passed))))
        monkeypatch.setattr(failed_sensor, "_BUDGET", 7.0)
        alerts = Alerts(instance, FaultInjectingFileSystem(PosixFileSystem(jobs[0].root)), assets_of(jobs))
        tried: Counter[str] = Counter()

        def refuse(failed: JobFailed) -> None:
            tried[failed.job_name] += 1
            raise ConnectionError("no route to the pager")

        alerts.on_tell = refuse
        for job in jobs:
            fail(job)
        for _ in range(self.COUNT):
            alerts.tick()
        assert tried == dict.fromkeys((job.name for job in jobs), 7)

    def test_jobs_in_a_distant_storage_are_looked_at_side_by_side(self, alerts: Alerts, jobs: list[StoredJob]) -> None:
        for job in jobs:
            fail(job)
        together = threading.Barrier(self.COUNT)

        def wait_for_the_others(operation: Operation) -> None:
            if operation.path.endswith("control/epochs"):
                together.wait(60)

        alerts.storage.plan = wait_for_the_others
        alerts.tick()
        assert len(alerts.told) == self.COUNT

    def test_jobs_that_were_told_of_or_are_well_cost_one_request_each(
        self, alerts: Alerts, jobs: list[StoredJob]
    ) -> None:
        failed, running, finished = jobs[:8], jobs[8:16], jobs[16:]
        for job in failed:
            fail(job)
        for job in running:
            claim = job.claim(run_id())
            job.choose(claim)
            job.beat(claim, alive=True)
        for job in finished:
            job.end(job.die(run_id()), "FINISHED")
        alerts.tick()
        before = len(alerts.storage.operations)
        alerts.tick()
        asked = (f"{item.name} {item.path.rpartition('/')[2]}".strip() for item in alerts.storage.operations[before:])
        assert Counter(asked) == {"list epochs": 16, "read heartbeat": 8}
