"""A submitted driver that finishes while nobody attends it: the asset is materialized all the same, once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import create_autospec

import dagster as dg
import pytest

from dagster_ckpt import SparkSubmitResource, build_checkpoint_definitions
from dagster_ckpt.checkpoint.control.epochs import Claim
from dagster_ckpt.checkpoint.control.heartbeat import Heartbeat
from dagster_ckpt.checkpoint.control.savepoint_requests import Answer, SavepointRequest
from dagster_ckpt.checkpoint.processes import ProcessIdentity
from dagster_ckpt.checkpoint.submissions import Submission
from dagster_ckpt.clock import SystemClock
from dagster_ckpt.errors import CorruptRecord
from dagster_ckpt.orchestration import names
from dagster_ckpt.orchestration.attending.attendant import Attendant
from dagster_ckpt.orchestration.attending.driver_report import Told
from dagster_ckpt.orchestration.events import RequestEvents
from dagster_ckpt.orchestration.reporting import CheckpointReporter
from tests.helpers.checkpoint.submitting import submitted
from tests.helpers.orchestration.stored_job import StoredJob, make_asset, run_id

Status = dg.DagsterRunStatus


class Place:
    """A code location with the job, its sensor, and an instance that may have been away."""

    def __init__(self, instance: dg.DagsterInstance, root: Path) -> None:
        self.instance, self.job, self.asset = instance, StoredJob(root), make_asset()
        spark = SparkSubmitResource(definitions="some_project.definitions:defs", spark_home="/nowhere")
        self._resources = {"checkpoint_storage": self.job.storage, "spark": spark}
        self._definitions = build_checkpoint_definitions([self.asset], self._resources)
        self._cursor: str | None = None

    def driven(self) -> Claim:
        """The driver of a run has taken the job over, and has a checkpoint."""
        run = run_id()
        self._add(run, Status.STARTED, {})
        submitted(self.job.catalog.records, Submission(run, 0, None, "{}", 1.0))
        claim = self.job.claim(run)
        self.store = self.job.choose(claim)
        self.job.checkpoint(self.store, 1)
        return claim

    def finished(self, *, interrupted: bool = False) -> Claim:
        """The driver of a run has finished after the process of the run was killed, or interrupted."""
        claim, records = self.driven(), self.job.catalog.records
        gone = replace(ProcessIdentity.current(), created=0.0, ticks=1)
        sign = Heartbeat(claim.epoch, claim.run_id, (gone,), 1, time.time(), uptime=SystemClock().monotonic())
        records.attendant.write(replace(sign, stopped=interrupted, interrupted=interrupted))
        self.finish(claim)
        return claim

    def finish(self, claim: Claim) -> None:
        self.job.end(claim, "FINISHED")
        self.job.beat(claim, alive=False, stopped=True)

    def tick(self) -> tuple[list[dg.RunRequest], str]:
        (sensor,) = self._definitions.get_repository_def().sensor_defs
        context = dg.build_sensor_context(
            instance=self.instance,
            cursor=self._cursor,
            resources={"checkpoint_storage": self._resources["checkpoint_storage"]},
            definitions=self._definitions,
        )
        data = sensor.evaluate_tick(context)
        self._cursor = data.cursor
        return list(data.run_requests or ()), data.skip_message or ""

    def launch(self, request: dg.RunRequest) -> bool:
        """Do as Dagster does with a request; returns whether the run has succeeded."""
        job = self._definitions.resolve_job_def(self.asset.job_name)
        return job.execute_in_process(
            run_config=request.run_config, instance=self.instance, tags=dict(request.tags), raise_on_error=False
        ).success

    def status(self, run: str) -> dg.DagsterRunStatus:
        found = self.instance.get_run_by_id(run)
        assert found is not None
        return found.status

    def materializations(self) -> int:
        return len(self.instance.fetch_materializations(self.asset.key, limit=10).records)

    def _add(self, run: str, status: dg.DagsterRunStatus, tags: dict[str, str]) -> None:
        self.instance.create_run_for_job(
            self._definitions.resolve_job_def(self.asset.job_name),
            run_id=run,
            status=status,
            tags={names.JOB_TAG: self.asset.name, **tags},
        )


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield Place(instance, tmp_path / "storage")


@pytest.mark.parametrize("interrupted", [False, True], ids=["killed", "interrupted"])
def test_one_run_tells_how_it_has_ended(place: Place, *, interrupted: bool) -> None:
    claim = place.finished(interrupted=interrupted)
    (request,) = place.tick()[0]
    assert [again.run_key for again in place.tick()[0]] == [request.run_key], "a doubled tick"
    assert place.status(claim.run_id) is Status.FAILURE, "as of every run whose process has died"
    assert request.tags[names.ATTENDS_TAG] == claim.run_id
    assert names.RESUMES_TAG not in request.tags
    assert place.launch(request)
    assert place.materializations() == 1
    for _ in range(2):
        assert place.tick() == ([], "orders: it ended FINISHED: of the test")
    assert place.job.failures.of(claim.series) == []


def test_a_savepoint_that_was_taken_after_the_last_look_is_told_when_the_driver_has_ended(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a bucket there is a look each 300 s; a request that is not answered is left to the sensor, with its reason."""
    monkeypatch.setattr(RequestEvents, "tick", lambda _: None)
    claim, now = place.finished(), time.time()
    (request,) = place.tick()[0]
    place.job.savepoint(place.store, 2)
    requests = place.job.catalog.records.savepoint_requests
    for token in ("a" * 32, "b" * 32):
        requests.ask(SavepointRequest(token, None, False, now - 10, now + 9000))
    refused = requests.unread()[0].request
    requests.begin(claim.epoch, refused, now)
    requests.answer(claim.epoch, refused, Answer(now, error="The disk is full.", hint="Free some."))
    assert place.launch(request)
    found = place.instance.fetch_observations(dg.AssetKey("orders_savepoints"), limit=9, ascending=True).records
    told = [str(item.asset_observation.description) for item in found if item.asset_observation is not None]
    assert [item.split(",")[0] for item in told] == ["A savepoint: FAILED", "A savepoint: COMPLETED"]


def test_a_run_that_has_broken_off_leaves_it_to_another_to_tell_the_end(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By an error that says nothing of the driver, which lives and finishes before the sensor's next tick."""
    claim, catalog = place.driven(), place.job.catalog
    place.job.beat(claim, alive=True)

    def damaged(_: int) -> None:
        raise CorruptRecord("The end of epoch 1 is truncated.", hint="None.")

    monkeypatch.setattr(catalog.records.epochs, "read_end", damaged)
    told = Told(lambda: None, lambda: False, *[lambda *_: None] * 8)
    reporter = create_autospec(CheckpointReporter)
    with pytest.raises(CorruptRecord):
        Attendant(catalog, claim.run_id, claim.run_id, reporter, told, SystemClock(), time.sleep).attend()
    monkeypatch.undo()
    run = place.instance.get_run_by_id(claim.run_id)
    assert run is not None
    place.instance.report_run_failed(run)
    place.finish(claim)
    (request,) = place.tick()[0]
    assert request.tags[names.ATTENDS_TAG] == claim.run_id
    assert place.launch(request)
    assert place.materializations() == 1


def test_what_its_own_run_has_told_is_not_told_again(place: Place) -> None:
    """The run may go on with assets downstream for hours after its process has left the last sign of life."""
    claim = place.finished()
    sign = place.job.catalog.records.attendant.read()
    assert sign is not None
    place.job.catalog.records.attendant.write(replace(sign, stopped=True, sequence=2))
    assert place.tick() == ([], "orders: it ended FINISHED: of the test")
    assert place.status(claim.run_id) is Status.STARTED
