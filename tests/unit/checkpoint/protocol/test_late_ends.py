"""A run that was declared dead ends its job while another run takes the job over: exactly one of the two counts.

What one of them does happens before each request of the other in turn, and the network holds an end back until then.
"""

from __future__ import annotations

import itertools

import pytest

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.cleanup.dead_runs import end_dead_epoch, finish_end
from dagster_ckpt.checkpoint.control.epochs import End
from dagster_ckpt.config.checkpoint_config import CheckpointConfig, ExternalizedCheckpointCleanup, JobStatus
from dagster_ckpt.errors import Fenced
from dagster_ckpt.testing import FaultInjectingFileSystem
from tests.helpers.checkpoint.driver import JOB, ManualClock, Pins, Run
from tests.unit.checkpoint.protocol.late_ends import ENDS, Job, Started, at_request, starts_beside

KEEPING = CheckpointConfig()
DELETING = CheckpointConfig(cleanup=ExternalizedCheckpointCleanup.NO_EXTERNALIZED_CHECKPOINTS)


@pytest.fixture(params=[None, 1], ids=["launched", "resumed"])
def series(request: pytest.FixtureRequest) -> int | None:
    found: int | None = request.param
    return found


@pytest.mark.parametrize("how", ENDS)
def test_an_end_in_the_midst_of_a_start(pins: Pins, series: int | None, how: str) -> None:
    seen = set()
    for started in starts_beside(pins, series, lambda job: job.end(ENDS[how])):
        started.examine()
        seen.add(started.job.ended)
    assert seen == {True, False, None}


@pytest.mark.parametrize("how", ENDS)
def test_an_end_that_arrives_in_the_midst_of_a_start(pins: Pins, series: int | None, how: str) -> None:
    seen = set()
    for started in starts_beside(pins, series, Job.arrive, lambda job: job.send(ENDS[how])):
        started.examine()
        seen.add(started.job.end_of(1).is_final)
    assert seen == {True, False}


@pytest.mark.parametrize("how", ENDS)
def test_a_start_in_the_midst_of_an_end(pins: Pins, series: int | None, how: str) -> None:
    seen = set()
    for number in itertools.count():
        job = Job(pins)
        started = Started(job, series)
        begun = len(job.disk.log)
        job.disk.plan = at_request(begun + number, started.run)
        job.end(ENDS[how])
        if len(job.disk.log) <= begun + number:
            break
        job.disk.plan = lambda _: None
        started.examine()
        seen.add(job.ended)
    assert False in seen


def over(catalog: CheckpointCatalog, config: CheckpointConfig) -> bool:
    """The sensor ends the job of the run that was declared dead; whether that end counts."""
    dead = catalog.records.epochs.read_claim(1)
    assert dead is not None
    try:
        end_dead_epoch(catalog, dead, config, JobStatus.FAILED, "all restarts are used up", ManualClock())
    except Fenced:
        return False
    return True


@pytest.mark.parametrize("config", [KEEPING, DELETING], ids=["keeps", "deletes"])
@pytest.mark.parametrize("how", ENDS)
def test_an_end_in_the_midst_of_the_end_that_the_sensor_records(pins: Pins, how: str, config: CheckpointConfig) -> None:
    seen = set()
    for number in itertools.count():
        job = Job(pins)
        view = FaultInjectingFileSystem(job.storage, at_request(number, lambda job=job: job.end(ENDS[how])))  # type: ignore[misc]
        counts = over(CheckpointCatalog(view, JOB), config)
        if len(view.log) <= number:
            break
        assert job.ended is not counts, "both count, or none"
        last = job.last_end()
        assert last is not None
        assert (last.reason == "all restarts are used up") is counts
        discarded = last.discarded
        assert (job.catalog.given_up() is not None) is discarded
        assert discarded is ((config is DELETING) if counts else how == "discarded")
        seen.add(counts)
    assert seen == {True, False}


def test_a_job_that_the_sensor_has_ended_is_ended_once(pins: Pins) -> None:
    """The sensor is interrupted between its claim and the record of the end, and a run is launched meanwhile."""
    for number in itertools.count():
        job = Job(pins)
        started = Started(job, None)
        view = FaultInjectingFileSystem(job.storage, at_request(number, started.run))
        counts = over(CheckpointCatalog(view, JOB), KEEPING)
        if len(view.log) <= number:
            assert number > 0
            return
        epochs = job.catalog.records.epochs
        ends = [end for epoch in epochs.names() if (end := epochs.read_end(epoch)) is not None]
        assert [end.is_final for end in ends].count(True) == counts
        assert started.restored == job.newest


def test_finishing_an_end_closes_the_epochs_before_it(pins: Pins) -> None:
    """The rest of a recorded end is carried out under an epoch of its own: no late end of an older epoch adds to it."""
    job = Job(pins)
    job.send(Run.cleanup)
    epochs = job.catalog.records.epochs
    newer = epochs.claim(token="t", series=None, run_id="r", host="h", pid=1, now="2026-11-28T00:00:00+00:00")
    end = End("FAILED", "its storage was away", discarded=False, ended_at="2026-11-28T00:00:00+00:00")
    epochs.record_end(newer.epoch, end)
    finish_end(job.catalog, newer, end, ManualClock())
    job.arrive()
    assert job.catalog.given_up() is None
    assert Run(job.storage, job.ledger, pins).start().store.restored_from == job.newest
