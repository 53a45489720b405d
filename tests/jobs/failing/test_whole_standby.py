"""A standby in this process: when it takes a job over whose run is dead, and when it ends and changes nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from dagster_ckpt import (
    FileSystemCheckpointStorage,
)
from dagster_ckpt.checkpoint.control.epochs import End
from dagster_ckpt.checkpoint.control.failures import Failure
from dagster_ckpt.checkpoint.control.heartbeat import Completed
from dagster_ckpt.checkpoint.lease import Lease
from dagster_ckpt.clock import iso
from dagster_ckpt.orchestration import names
from dagster_ckpt.testing.gcs.server import GcsServer
from tests.jobs.failing.waiting import Waiting
from tests.jobs.harness import Bench, eventually
from tests.jobs.storage.buckets import BucketBench
from tests.servers.gcs import BUCKET, bucket_of

Status = dg.DagsterRunStatus


@pytest.fixture
def waiting(bench: Bench, tmp_path: Path) -> Iterator[Waiting]:
    home = tmp_path / "home"
    home.mkdir()
    with dg.DagsterInstance.local_temp(str(home)) as instance:
        yield Waiting(bench, instance)


def test_it_takes_over_a_dead_run_as_the_sensor_would_resume_it(waiting: Waiting) -> None:
    waiting.bench.land(3)
    wait = waiting.start()
    assert waiting.records.epochs.highest() == 1
    waiting.beat(alive=False)
    claim = waiting.assert_taken_over(done := wait())
    assert (claim.epoch, claim.series) == (2, waiting.claim.series)
    (failure,) = waiting.records.failures.of(claim.series)
    assert failure.run_id == waiting.run_id
    dead = waiting.instance.get_run_by_id(waiting.run_id)
    assert dead is not None
    assert dead.status is Status.FAILURE
    tags = waiting.tags(waiting.standby)
    assert tags.items() >= {names.JOB_TAG: waiting.asset.name, names.RESUMES_TAG: waiting.run_id}.items()
    assert len(done.get_asset_materialization_events()) == 1
    assert not waiting.standbys.all()


def test_it_takes_over_from_another_host_once_the_lease_is_over(waiting: Waiting) -> None:
    waiting.bench.land(3)
    lease = Lease(0.2, 10.0)
    with waiting.alive_elsewhere(lease) as beats:
        wait = waiting.start()
        assert waiting.records.epochs.highest() == 1
    eventually("the standby claims the job", lambda: waiting.records.epochs.highest() == 2)
    assert time.monotonic() - beats[-1] >= lease.timeout
    claim = waiting.assert_taken_over(wait())
    assert claim.epoch == 2
    (failure,) = waiting.records.failures.of(claim.series)
    assert failure.run_id == waiting.run_id


def test_it_ends_with_the_job(waiting: Waiting) -> None:
    wait = waiting.start()
    waiting.records.epochs.record_end(waiting.claim.epoch, End("FINISHED", "of the test", False, iso(time.time())))
    waiting.beat(alive=False)
    waiting.assert_left_alone(wait())
    assert waiting.records.failures.of(waiting.claim.series) == []


def test_it_ends_when_nobody_wants_it(waiting: Waiting) -> None:
    wait = waiting.start()
    waiting.standbys.remove(waiting.standby)
    waiting.assert_left_alone(wait())
    assert waiting.records.epochs.highest() == 1


def test_it_ends_beside_a_run_with_another_configuration(waiting: Waiting) -> None:
    wait = waiting.start({"fallback_to_older": True})
    waiting.assert_left_alone(wait())


@pytest.mark.exhaustive
def test_it_leaves_a_job_whose_restarts_are_used_up_failed(waiting: Waiting) -> None:
    waiting.bench.land(1)
    wait = waiting.start()
    waiting.records.failures.record(
        waiting.claim.series, Failure(waiting.run_id, 1, time.time() - 1, None, "an earlier failure")
    )
    waiting.beat(alive=False)
    waiting.assert_left_alone(wait())
    end = waiting.records.epochs.read_end(waiting.records.epochs.highest())
    assert end is not None
    assert end.status == "FAILED"
    assert waiting.bench.in_raw_directory() == {}


@pytest.mark.exhaustive
def test_it_waits_on_when_another_run_was_faster(waiting: Waiting) -> None:
    """The other run claims the job between the look and the claim of the standby."""
    waiting.bench.land(1)
    wait = waiting.start()
    other = waiting._add(waiting.asset.job_name, {names.JOB_TAG: waiting.asset.name}, {})
    mark = waiting.instance.report_run_failed
    taken = threading.Event()

    def claim_meanwhile(run: dg.DagsterRun, message: str | None = None) -> Any:
        waiting.instance.report_run_failed = mark  # type: ignore[method-assign]
        told = mark(run, message)
        waiting.claim = waiting.take_over(other)
        waiting.beat(alive=True)
        taken.set()
        return told

    waiting.instance.report_run_failed = claim_meanwhile  # type: ignore[method-assign,assignment]
    waiting.beat(alive=False)
    assert taken.wait(60)
    time.sleep(1)
    assert [sign.run_id for sign in waiting.standbys.all()] == [waiting.standby], "it waits on"
    assert waiting.records.epochs.highest() == waiting.claim.epoch
    waiting.beat(alive=False)
    waiting.assert_taken_over(wait())


@pytest.mark.exhaustive
def test_it_has_fetched_the_newest_checkpoint_before_it_takes_over(spark: SparkSession, tmp_path: Path) -> None:
    with GcsServer() as server, dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        server.create_bucket(BUCKET)
        bench = BucketBench(spark, tmp_path / "job", bucket=bucket_of(server, "of all"))
        (newest,) = bench.tick(2, bench.job(deployment="default", inline_threshold=0)).completed
        stored = {bench.catalog.stored_path(newest, file.reference) for file in newest.files if file.reference}
        assert stored, "the checkpoint has files besides its manifest"
        bench.lose_local_disk()
        storage = FileSystemCheckpointStorage(
            checkpoint_path=f"gs://{BUCKET}/of all",
            storage_options=dict(bench.filesystem.storage_options),
            working_directory=str(bench.working),
        )
        waiting = Waiting(bench, instance, storage)
        waiting.beat(alive=True, completed=Completed(newest.reference, newest.epoch))
        wait = waiting.start()

        def read() -> list[str]:
            asked = [request for request in server.log if request.kind == "read"]
            return sorted(request.name for request in asked if request.name.removeprefix("of all/") in stored)

        wanted = len({file.sha256 for file in newest.files if file.reference})
        eventually(
            "the checkpoint is fetched",
            lambda: len(list(bench.working.glob("**/dagster-ckpt-scratch-*/files/*"))) == wanted,
        )
        before = read()
        assert {name.removeprefix("of all/") for name in before} == stored
        bench.land(1)
        waiting.beat(alive=False)
        assert wait().success
        assert read() == before, "the start has read none of them from the bucket"
        bench.assert_exact()
        assert list(bench.working.glob("**/dagster-ckpt-scratch-*")) == []
