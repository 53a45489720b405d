"""Whoever looks at a job while it goes on gets a true answer: nothing that was listed and is gone is called broken.

A look is interrupted before each of its requests in turn, and the job goes on meanwhile: it completes and subsumes
checkpoints, is started again, packs its batch plans, ends, discards all, or is swept away.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from click.testing import CliRunner, Result

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.catalog.file_reader import verify_checkpoint
from dagster_ckpt.checkpoint.catalog.newest import find_newest
from dagster_ckpt.checkpoint.cleanup.job_sweep import sweep_job
from dagster_ckpt.checkpoint.control.plan_archive import PlanArchive, PlanArchiveWriter, PlannedBatch
from dagster_ckpt.cli import changing, looking, main, status
from dagster_ckpt.errors import CheckpointError, CheckpointNotFound, JobAlreadyRunning
from dagster_ckpt.filesystem import FileSystem
from dagster_ckpt.testing import FaultInjectingFileSystem, Operation, enumerate_interleavings
from tests.helpers.checkpoint.driver import JOB, Ledger, ManualClock, Pins, Run, state
from tests.helpers.checkpoint.memory import MemoryFileSystem

LINEAGE = f"{1:032x}"
#: How each answer of a command ends that is no success, and yet true.
NOT_THERE = (
    "was deleted",
    "is being deleted",
    "Cannot find",
    "There is no job",
    "no checkpoint in",
    "no completed checkpoint",
    "nothing to go on from",
)


@dataclass
class Job:
    """A job in the midst of its life.

    Attributes:
        storage: its storage.
        run: its run.
        pins: where its snapshots are pinned.
        step: of its last checkpoint.
    """

    storage: MemoryFileSystem
    run: Run
    pins: Pins
    step: int = 0
    plans: PlanArchiveWriter = field(init=False)

    @classmethod
    def begun(cls, pins: Pins) -> Job:
        storage = MemoryFileSystem()
        job = cls(storage, Run(storage, Ledger(), pins).start(), pins)
        job.plans = PlanArchiveWriter(storage, JOB, LINEAGE, 1, lambda: None)
        job.plans.begin(-1, None, [])
        job.checkpoint(keep=2)
        job.checkpoint(keep=2)
        return job

    def checkpoint(self, keep: int = 1) -> None:
        self.step += 1
        plan = PlannedBatch(self.step - 1, {f"offsets/{self.step - 1}": "v1"})
        self.plans.append([plan])
        self.run.checkpoint(state(self.step), self.step)
        self.run.subsume(keep)

    def go_on(self) -> None:
        for _ in range(2):
            self.checkpoint()

    def pack(self) -> None:
        self.plans.pack([])

    def start_again(self) -> None:
        self.run = Run(self.storage, self.run.ledger, self.pins).start()
        self.go_on()

    def discard(self) -> None:
        self.run.cleanup()

    def vanish(self) -> None:
        """End, and be swept to the last record."""
        self.run.cleanup()
        clock = ManualClock()
        clock.advance(10**6)
        sweep_job(CheckpointCatalog(self.storage, JOB), clock, older_than=timedelta(seconds=1))


def looks(monkeypatch: pytest.MonkeyPatch, view: FileSystem, *arguments: str) -> Result:
    for module in (looking, changing, status):
        monkeypatch.setattr(module, "storage_at", lambda path: view)
    return CliRunner(catch_exceptions=False).invoke(main, [*arguments, "--path", "of the test"])


COMMANDS = [
    ("list", "--json"),
    ("status", "--json"),
    ("verify", JOB),
    ("verify", JOB, "chk-1"),
    ("describe", JOB),
    ("retention", JOB, "--num-retained", "1", "--json"),
    ("pin", JOB, "latest"),
    ("sweep", JOB),
]
MORE_COMMANDS = [
    ("list", JOB),
    ("describe", JOB, f"{LINEAGE}/chk-2"),
    ("retention", JOB, "--num-retained", "1"),
    ("pin", JOB, "chk-1"),
    ("unpin", JOB, "chk-1"),
    ("sweep", JOB, "--dry-run"),
]
MEANWHILE = [Job.go_on, Job.start_again, Job.discard, Job.vanish]


def at_every_request(pins: Pins, meanwhile: Callable[[Job], None], look: Callable[[FileSystem], object]) -> None:
    """Interrupt a look before each of its requests in turn."""
    for number in itertools.count():
        job = Job.begun(pins)

        def plan(operation: Operation, job: Job = job, number: int = number) -> None:
            if operation.sequence == number:
                meanwhile(job)

        view = FaultInjectingFileSystem(job.storage, plan)
        look(view)
        if len(view.log) <= number:
            assert number > 0
            return


@pytest.mark.parametrize("meanwhile", MEANWHILE, ids=lambda act: act.__name__)
@pytest.mark.parametrize(
    "arguments",
    [
        *(pytest.param(command, id=" ".join(command)) for command in COMMANDS),
        *(pytest.param(command, id=" ".join(command), marks=pytest.mark.exhaustive) for command in MORE_COMMANDS),
    ],
)
def test_a_command_beside_a_job_tells_the_truth(
    pins: Pins, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[Job], None], arguments: tuple[str, ...]
) -> None:
    lives = meanwhile in {Job.go_on, Job.start_again}

    def look(view: FileSystem) -> None:
        result = looks(monkeypatch, view, *arguments)
        assert "is gone" not in result.output
        assert "cannot be believed" not in result.output
        if result.exit_code == 0:
            return
        assert result.exit_code == 1
        if arguments[0] == "sweep":
            told = ("is not over", "was started") if lives else ("is not over", "was started", "There is no job")
            assert any(text in result.output for text in told), result.output
        elif arguments[0] == "unpin":
            assert "is not pinned" in result.output
        else:
            assert any(text in result.output for text in NOT_THERE), result.output
            # A job that lives always has a checkpoint, though perhaps not the one that was looked at.
            assert not lives or "no completed checkpoint" not in result.output
            assert not lives or arguments[0] not in {"list", "retention", "status"}

    at_every_request(pins, meanwhile, look)


def test_verify_succeeds_where_the_rest_is_whole(pins: Pins, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a job that lives deletes meanwhile is named; where that is all, there is nothing to say of the rest."""
    told: dict[int, set[bool]] = {0: set(), 1: set()}

    def look(view: FileSystem) -> None:
        result = looks(monkeypatch, view, "verify", JOB)
        assert (result.exit_code == 0) == ("  verified" in result.output)
        assert ("was deleted before all" in result.output) == (result.exit_code == 1)
        told[result.exit_code].add("was deleted while" in result.output)

    at_every_request(pins, Job.checkpoint, look)
    assert told == {0: {False, True}, 1: {True}}


@pytest.mark.parametrize("meanwhile", [Job.go_on, Job.start_again], ids=lambda act: act.__name__)
def test_a_job_that_lives_always_has_a_complete_checkpoint(pins: Pins, meanwhile: Callable[[Job], None]) -> None:
    def look(view: FileSystem) -> None:
        catalog = CheckpointCatalog(view, JOB)
        completed, broken = catalog.completed(LINEAGE)
        assert completed
        assert not broken

    at_every_request(pins, meanwhile, look)


@pytest.mark.parametrize("meanwhile", [Job.pack, Job.go_on], ids=lambda act: act.__name__)
def test_plans_that_are_packed_meanwhile_are_all_read(pins: Pins, meanwhile: Callable[[Job], None]) -> None:
    """A plan that was missing gave later batches new boundaries."""

    def look(view: FileSystem) -> None:
        plans = PlanArchive(view, JOB, LINEAGE).newest_after(-1)
        assert [plan.batch for plan in plans][:2] == [0, 1]

    at_every_request(pins, meanwhile, look)


SEEDS = 15


def interleaved(pins: Pins, seeds: range) -> None:
    """A writer that keeps one checkpoint, its restart, and two who look on, switched between requests."""

    def fresh() -> tuple[FileSystem, Ledger]:
        storage, ledger = MemoryFileSystem(), Ledger()
        Run(storage, ledger, pins).start().checkpoint(state(0), 0)
        return storage, ledger

    def write(view: FileSystem, ledger: Ledger) -> None:
        for start in range(2):
            run = Run(view, ledger, pins).start()
            for step in range(4):
                run.checkpoint(state(10 * start + step), step)
                run.subsume(1)

    def look(view: FileSystem, ledger: Ledger) -> None:
        catalog = CheckpointCatalog(view, JOB)
        for _ in range(6):
            assert find_newest(catalog).metadata is not None
            completed, broken = catalog.completed(LINEAGE)
            assert completed
            assert not broken
            for metadata in completed:
                try:
                    verify_checkpoint(catalog, metadata)
                except CheckpointNotFound:
                    continue
            with pytest.raises((JobAlreadyRunning, CheckpointError)):
                sweep_job(catalog, ManualClock(), dry_run=True)

    enumerate_interleavings(
        fresh, [write, look, look], lambda storage, ledger: ledger.examine(storage), seeds
    ).require_none()


def test_who_looks_on_between_any_two_requests_sees_what_is_true(pins: Pins) -> None:
    interleaved(pins, range(SEEDS))


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
def test_who_looks_on_sees_what_is_true_under_many_more_seeds(pins: Pins) -> None:
    interleaved(pins, range(SEEDS, SEEDS + 1000))
