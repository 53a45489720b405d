"""Whether a new version has completed a checkpoint, and what the end of its dead run says of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.catalog.upgrades import pending_upgrade, taken_back_since
from dagster_ckpt.checkpoint.cleanup.dead_runs import end_dead_epoch
from dagster_ckpt.checkpoint.control.epochs import Choice, End
from dagster_ckpt.checkpoint.control.heartbeat import Completed, Heartbeat, HeartbeatFile
from dagster_ckpt.checkpoint.format.code_versions import CodeVersion, Upgrade
from dagster_ckpt.checkpoint.processes import ProcessIdentity
from dagster_ckpt.config.checkpoint_config import CheckpointConfig, ExternalizedCheckpointCleanup, JobStatus
from tests.helpers.checkpoint.driver import JOB, Ledger, ManualClock, Pins, Run, state
from tests.helpers.checkpoint.memory import MemoryFileSystem

_DELETING = CheckpointConfig(cleanup=ExternalizedCheckpointCleanup.NO_EXTERNALIZED_CHECKPOINTS)
_NOW = "2026-01-01T00:00:00.000+00:00"


class Job:
    """A job whose version 1 has a checkpoint, and whose version 2 has begun with it."""

    def __init__(self, memory: MemoryFileSystem, ledger: Ledger, pins: Pins) -> None:
        self.memory, self.ledger, self.pins = memory, ledger, pins
        self.catalog = CheckpointCatalog(memory, JOB)
        first = self.run()
        first.open(self.chosen(first, None))
        self.before = first.checkpoint(state(1))
        self.second = self.run()
        self.upgrade = Upgrade("1", self.before.reference, self.second.claim.epoch, _NOW)
        self.second.open(self.chosen(self.second, self.upgrade))

    def run(self) -> Run:
        run = Run(self.memory, self.ledger, self.pins)
        run.claim_epoch()
        return run

    def chosen(self, run: Run, upgrade: Upgrade | None) -> Choice:
        choice = replace(run.choose(), code=CodeVersion("1" if upgrade is None else "2", upgrade))
        run.record(choice)
        return choice

    def pending(self) -> Upgrade | None:
        chosen = self.catalog.choice()
        assert chosen is not None
        return pending_upgrade(self.catalog, *chosen)

    def made_before_its_query(self, run: Run) -> None:
        for kind in ("salvage", "rescale", "moved"):
            pending = run.begin()
            run.store.write(pending, run.pins.snapshot(2, state(2)), kind=kind)


@pytest.fixture
def job(memory: MemoryFileSystem, ledger: Ledger, pins: Pins) -> Job:
    return Job(memory, ledger, pins)


def test_a_checkpoint_of_its_query_proves_a_version(job: Job) -> None:
    assert job.pending() == job.upgrade
    job.made_before_its_query(job.second)
    assert job.pending() == job.upgrade, "a restart has made these of what was committed"
    job.second.checkpoint(state(3))
    assert job.pending() is None


def test_a_checkpoint_that_cannot_be_read_any_more_has_proven_it(job: Job) -> None:
    """Or the job would go back to what it had before the upgrade, however long ago that was."""
    made = job.second.checkpoint(state(3))
    job.memory.files[f"{JOB}/{made.reference}/_metadata"] = b"{"
    assert job.pending() is None


def test_a_damaged_checkpoint_of_the_version_before_proves_nothing(job: Job) -> None:
    job.memory.files[f"{JOB}/{job.before.reference}/_metadata"] = b"{"
    assert job.pending() == job.upgrade


def test_a_checkpoint_that_is_gone_has_proven_it(job: Job) -> None:
    """The policy may have deleted all when the version finished."""
    made = job.second.checkpoint(state(3))
    del job.memory.files[f"{JOB}/{made.reference}/_metadata"]
    assert job.pending() == job.upgrade
    epoch = job.second.claim.epoch
    beat = Heartbeat(epoch, "run", (ProcessIdentity.current(),), 1, 0.0, completed=Completed(made.reference, epoch))
    HeartbeatFile(job.memory, JOB).write(beat)
    assert job.pending() is None


def test_there_is_nothing_to_return_to_after_a_cleanup(job: Job) -> None:
    job.second.cleanup()
    assert job.pending() is None


def test_a_version_that_was_taken_back_stays_so_though_an_upload_completes_later(job: Job) -> None:
    epoch = job.second.claim.epoch
    job.catalog.records.epochs.record_end(epoch, End("FAILED", "of the test", False, _NOW, "2", "1"))
    job.second.checkpoint(state(3))
    assert job.pending() == job.upgrade
    end = taken_back_since(job.catalog, epoch, job.catalog.records.epochs.names())
    assert end is not None
    assert end.taken_back == "2"


@pytest.mark.parametrize("restarted", [True, False])
def test_only_a_restart_of_the_new_version_is_taken_back(job: Job, clock: ManualClock, restarted: bool) -> None:
    """A run of another series may be of the version before, which has not chosen yet. Nothing is deleted then."""
    series = job.second.claim.series if restarted else None
    epochs = job.catalog.records.epochs
    dead = epochs.claim(token="t", series=series, run_id="r", host="h", pid=1, now=_NOW)
    assert end_dead_epoch(job.catalog, dead, _DELETING, JobStatus.FAILED, "used up", clock) == ()
    end = epochs.read_end(epochs.highest())
    assert end is not None
    assert (end.taken_back, end.returns_to) == (("2", "1") if restarted else (None, None))
    assert not end.discarded
    assert job.pending() == job.upgrade
