"""How far requests for savepoints are, as observations of a real instance."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.control.savepoint_requests import (
    Answer,
    RequestState,
    SavepointRequest,
    TakenSavepoint,
)
from dagster_ckpt.clock import SystemClock, iso
from dagster_ckpt.orchestration.events import RequestEvents
from dagster_ckpt.orchestration.sensors.job_watch import JobWatch
from dagster_ckpt.testing import FaultInjectingFileSystem
from tests.helpers.checkpoint.driver import ManualClock
from tests.helpers.checkpoint.memory import MemoryFileSystem
from tests.helpers.orchestration.stored_job import StoredJob, make_asset, run_id

_SAVEPOINTS, _CHECKPOINTS = dg.AssetKey("orders_savepoints"), dg.AssetKey("orders_checkpoints")


@dataclass
class Asked:
    """A job that is asked for savepoints, and what Dagster is told."""

    job: StoredJob
    instance: dg.DagsterInstance

    @property
    def events(self) -> RequestEvents:
        """Another one each time, as after a restart of whoever tells."""
        report = self.instance.report_runless_asset_event
        return RequestEvents(self.instance, report, _SAVEPOINTS, _CHECKPOINTS, self.job.catalog, SystemClock())

    def ask(self, *, wait: float = 600.0, ago: float = 10.0, **label: Any) -> SavepointRequest:
        now = SystemClock().time()
        request = SavepointRequest(uuid.uuid4().hex, None, False, now - ago, now + wait, **label)
        self.job.catalog.records.savepoint_requests.ask(request)
        return request

    def told(self, key: dg.AssetKey = _SAVEPOINTS) -> list[str]:
        """The descriptions, the oldest first."""
        records = self.instance.fetch_observations(key, limit=100, ascending=True).records
        return [str(item.asset_observation.description) for item in records if item.asset_observation is not None]


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[Asked]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield Asked(StoredJob(tmp_path / "storage"), instance)


def test_a_request_to_a_dead_job_is_seen_pending_and_abandoned_through_the_sensor(asked: Asked) -> None:
    claim = asked.job.die(run_id())
    request = asked.ask(name="before-upgrade")
    watch = JobWatch(asked.instance, make_asset(), asked.job.catalog, SystemClock(), None)
    for _ in range(3):
        watch.step()
    (pending,) = asked.told()
    assert pending.startswith("Savepoint before-upgrade: PENDING, no run is alive: ")
    assert "a run of the job takes the request up in its turn" in pending
    requests = asked.job.catalog.records.savepoint_requests
    requests.withdraw(request.token, SystemClock().time(), "no answer within 60 s")
    for _ in range(2):
        watch.step()
    _, abandoned = asked.told()
    assert abandoned.startswith("Savepoint before-upgrade: ABANDONED, no answer within 60 s. ")
    assert "ask again" in abandoned
    assert claim.epoch == 1


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (
            Answer(1.0, error="The disk is full.", hint="Free some."),
            "A savepoint: FAILED, The disk is full. Free some.",
        ),
        (Answer(1.0, TakenSavepoint("/s/p", 1, 2, 3, 4, 0.5)), "A savepoint: COMPLETED, it is /s/p. Nothing is to"),
    ],
)
def test_each_end_is_told_once_whoever_sees_it_and_with_what_to_do(asked: Asked, answer: Answer, told: str) -> None:
    claim = asked.job.claim(run_id())
    request = asked.ask()
    asked.events.look()
    requests = asked.job.catalog.records.savepoint_requests
    requests.begin(claim.epoch, request, 1.0)
    asked.events.look()
    requests.answer(claim.epoch, request, answer)
    for _ in range(3):
        asked.events.look()
    pending, begun, ended = asked.told()
    assert (pending.split(".")[0], begun.split(".")[0]) == ("A savepoint: PENDING", "A savepoint: IN_PROGRESS")
    assert ended.startswith(told)


def test_each_epoch_that_takes_a_request_up_is_told_and_a_moment_is_not(asked: Asked) -> None:
    request = asked.ask(checkpoint=True, ago=-60.0)
    for told in range(2):
        asked.job.claim(run_id())
        asked.events.look()
        assert len(asked.told(_CHECKPOINTS)) == told, "a living driver takes it up within a second"
        for _ in range(2):
            asked.events.changed(request, RequestState.IN_PROGRESS, "", "Wait.")
    assert asked.told(_CHECKPOINTS) == ["A checkpoint: IN_PROGRESS. Wait."] * 2
    assert asked.told() == []


def test_a_savepoint_of_a_driver_of_its_own_is_told_though_its_request_is_gone(asked: Asked) -> None:
    store = asked.job.choose(asked.job.claim(run_id()))
    taken = asked.job.savepoint(store, 7)
    beside = asked.events
    beside.tick()
    beside.tick()
    asked.events.tick()
    (told,) = asked.told()
    assert told.startswith("A savepoint: COMPLETED, batch 7")
    (record,) = asked.instance.fetch_observations(_SAVEPOINTS, limit=2).records
    assert record.asset_observation is not None
    assert record.asset_observation.metadata["pointer"].value == taken.reference
    assert taken.reference in str(record.asset_observation.metadata["next_step"].value)


def test_in_a_bucket_the_requests_are_listed_when_somebody_has_rung_until_they_are_answered() -> None:
    """Beside a driver of its own, which tells Dagster nothing itself: a listing costs as much as a dozen reads."""
    storage, clock = FaultInjectingFileSystem(MemoryFileSystem()), ManualClock()
    storage.is_distant = True
    catalog = CheckpointCatalog(storage, "orders")
    requests = catalog.records.savepoint_requests
    claim = catalog.records.epochs.claim(
        token="t", series=None, run_id=run_id(), host="elsewhere", pid=1, now=iso(clock.time())
    )
    with dg.DagsterInstance.ephemeral() as instance:
        report = instance.report_runless_asset_event
        events = RequestEvents(instance, report, _SAVEPOINTS, _CHECKPOINTS, catalog, clock)

        def listings(seconds: int) -> int:
            before = len(storage.operations)
            for _ in range(seconds):
                clock.advance(1)
                events.tick()
            asked = [f"{item.name} {item.path}" for item in storage.operations[before:]]
            return asked.count("list orders/control/requests")

        assert listings(1) == 1, "it looks at first"
        assert listings(3000) <= 1, "and when a request was answered meanwhile; then nobody has rung"
        request = SavepointRequest("a" * 32, None, False, clock.time(), clock.time() + 9000)
        requests.ask(request)
        assert listings(1200) == 4, "until the request is answered"
        requests.begin(claim.epoch, request, 1.0)
        requests.answer(claim.epoch, request, Answer(1.0, error="The disk is full.", hint="Free some."))
        assert listings(300) == 1
        assert listings(3000) <= 1
        assert listings(7200) >= 1, "seldom besides: whoever has asked may have died before it rang"
        found = instance.fetch_observations(_SAVEPOINTS, limit=100, ascending=True).records
    told = [str(item.asset_observation.description) for item in found if item.asset_observation is not None]
    assert [item.split(",")[0].split(".")[0] for item in told] == ["A savepoint: PENDING", "A savepoint: FAILED"]


def test_in_a_bucket_what_dagster_could_not_be_told_is_told_at_the_next_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a savepoint whose request is gone and of a request that is answered; not of a savepoint that is gone."""
    job, clock = StoredJob(tmp_path / "storage"), ManualClock()
    monkeypatch.setattr(type(job.catalog.filesystem), "is_distant", True)
    claim = job.claim(run_id())
    store = job.choose(claim)
    shutil.rmtree(job.savepoint(store, 5).reference)
    job.savepoint(store, 7)
    request = SavepointRequest("a" * 32, None, False, clock.time(), clock.time() + 9000)
    requests = job.catalog.records.savepoint_requests
    requests.ask(request)
    requests.begin(claim.epoch, request, 1.0)
    requests.answer(claim.epoch, request, Answer(1.0, error="The disk is full.", hint="Free some."))
    told: set[str] = set()

    def is_away(_: dg.AssetObservation) -> None:
        raise ConnectionError("the database of Dagster is away")

    with dg.DagsterInstance.ephemeral() as instance:
        events = RequestEvents(instance, is_away, _SAVEPOINTS, _CHECKPOINTS, job.catalog, clock)
        events.tick()
        clock.advance(301)
        events.tick()  # whoever rings during a look is heard at the next one; this is that look
        events._log_event = lambda found: told.add(str(found.description))
        for _ in range(5):  # the other savepoint may be in a storage that cannot be reached now
            clock.advance(301)
            events.tick()
        assert events._last[2] is False, "all is told"
    assert sorted(item[:21] for item in told) == ["A savepoint: COMPLETE", "A savepoint: FAILED, "]


def test_a_savepoint_of_an_earlier_epoch_of_the_driver_is_told_when_dagster_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver was started again between the two looks. What was taken before the first look is told by others."""
    job, clock = StoredJob(tmp_path / "storage"), ManualClock()
    monkeypatch.setattr(type(job.catalog.filesystem), "is_distant", True)
    job.savepoint(job.choose(job.claim(run_id())), 3)
    store = job.choose(job.claim(run_id()))
    told: list[str] = []

    def is_away(_: dg.AssetObservation) -> None:
        raise ConnectionError("the database of Dagster is away")

    with dg.DagsterInstance.ephemeral() as instance:
        events = RequestEvents(instance, is_away, _SAVEPOINTS, _CHECKPOINTS, job.catalog, clock)
        job.savepoint(store, 7)
        events.tick()
        job.savepoint(job.choose(job.claim(run_id())), 9)
        events._log_event = lambda found: told.append(str(found.description))
        clock.advance(301)
        events.tick()
        clock.advance(301)
        events.tick()
    assert sorted(told) == ["A savepoint: COMPLETED, batch 7", "A savepoint: COMPLETED, batch 9"]


def test_a_savepoint_is_told_whose_storage_can_be_reached_a_little_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, clock, told = StoredJob(tmp_path / "storage"), ManualClock(), list[str]()
    taken = Path(job.savepoint(job.choose(job.claim(run_id())), 7).reference)
    away = taken.rename(tmp_path / "away")
    with dg.DagsterInstance.ephemeral() as instance:
        events = RequestEvents(
            instance, lambda found: told.append(str(found.description)), _SAVEPOINTS, _CHECKPOINTS, job.catalog, clock
        )
        for _ in range(10):
            events.tick()
            clock.advance(2)
        assert not told
        away.rename(taken)
        events.tick()
    assert told == ["A savepoint: COMPLETED, batch 7"]
