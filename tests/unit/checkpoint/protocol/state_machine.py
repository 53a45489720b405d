"""Any order of starts, rollbacks, checkpoints, subsumptions, pins, faults, crashes and zombies, against the ledger."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.catalog.newest import find_newest
from dagster_ckpt.errors import CheckpointError, Fenced
from dagster_ckpt.testing import (
    Action,
    Crash,
    CrashAfter,
    Fail,
    FailAfter,
    FaultInjectingFileSystem,
    ProcessDied,
    at_operation,
)
from tests.helpers.checkpoint.driver import JOB, Ledger, Pins, Run, pin, state, unpin
from tests.helpers.checkpoint.memory import MemoryFileSystem

#: Mostly the newest process.
whose = st.sampled_from([0, 0, 0, 1, 2])
faults = st.none() | st.tuples(st.integers(0, 30), st.sampled_from([Crash(), CrashAfter(), Fail(), FailAfter()]))


class StoreMachine(RuleBasedStateMachine):
    """Several processes drive one job; all but the newest are zombies that have not noticed yet."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.pins = Pins(self.directory)
        self.storage = MemoryFileSystem()
        self.ledger = Ledger()
        self.runs: list[tuple[Run, FaultInjectingFileSystem]] = []
        self.step = 0

    def teardown(self) -> None:
        shutil.rmtree(self.directory)

    @rule(back=st.none() | st.integers(0, 9), fault=faults)
    def start(self, back: int | None, fault: tuple[int, Action] | None) -> None:
        """A start from the newest, or back to one of the visible ones; earlier runs go on as zombies."""
        restore_from = "latest"
        if back is not None:
            catalog = CheckpointCatalog(self.storage, JOB)
            found = [item.reference for job_id in catalog.job_ids() for item in catalog.completed(job_id)[0]]
            if found:
                restore_from = found[back % len(found)]
        disk = FaultInjectingFileSystem(self.storage)
        run = Run(disk, self.ledger, self.pins)
        self.disturb(disk, fault)
        try:
            run.start(restore_from)
        except (CheckpointError, OSError, ProcessDied):
            return
        disk.plan = lambda _: None
        self.runs = [*self.runs[-2:], (run, disk)]

    @initialize(count=st.integers(1, 4))
    def a_job_that_has_been_running(self, count: int) -> None:
        self.start(None, None)
        self.checkpoints(0, count, 1, None)

    @precondition(lambda self: self.runs)
    @rule(which=whose, count=st.integers(1, 3), change=st.integers(0, 2), fault=faults)
    def checkpoints(self, which: int, count: int, change: int, fault: tuple[int, Action] | None) -> None:
        with self.process(which, fault) as run:
            for _ in range(count):
                self.step += change
                run.checkpoint(state(self.step), self.step)

    @precondition(lambda self: self.runs)
    @rule(which=whose, keep=st.integers(1, 3), fault=faults)
    def subsume(self, which: int, keep: int, fault: tuple[int, Action] | None) -> None:
        with self.process(which, fault) as run:
            run.subsume(keep)

    @precondition(lambda self: len(self.runs) > 2)
    @rule(fault=faults)
    def cleanup(self, fault: tuple[int, Action] | None) -> None:
        run = self.runs[-1][0]
        if run.claim.epoch != run.catalog.records.epochs.highest():
            return  # a zombie's supervisor finds that out before it records an end
        with self.process(0, fault):
            run.cleanup()
        self.runs.pop()

    @rule(which=st.integers(0, 9), fault=faults)
    def pin(self, which: int, fault: tuple[int, Action] | None) -> None:
        """A user pins one of the visible checkpoints, of any lineage, from a process of his own."""
        catalog = CheckpointCatalog(self.storage, JOB)
        found = [item.reference for job_id in catalog.job_ids() for item in catalog.completed(job_id)[0]]
        if found:
            disk = FaultInjectingFileSystem(self.storage)
            self.disturb(disk, fault)
            with suppress(CheckpointError, OSError, ProcessDied):
                pin(disk, self.ledger, found[which % len(found)])

    @precondition(lambda self: self.ledger.pinned)
    @rule(which=st.integers(0, 9), fault=faults)
    def unpin(self, which: int, fault: tuple[int, Action] | None) -> None:
        disk = FaultInjectingFileSystem(self.storage)
        self.disturb(disk, fault)
        with suppress(CheckpointError, OSError, ProcessDied):
            unpin(disk, self.ledger, sorted(self.ledger.pinned)[which % len(self.ledger.pinned)])

    @rule(moved=st.booleans())
    def host_is_gone(self, moved: bool) -> None:
        """All processes die; perhaps the directory is copied elsewhere, and the job goes on there."""
        self.runs.clear()
        if moved:
            self.storage = self.storage.backup()
        self.start(None, None)

    @contextmanager
    def process(self, which: int, fault: tuple[int, Action] | None) -> Iterator[Run]:
        """One of the processes, perhaps with a fault on its way; a fenced one and a dead one are gone afterwards."""
        run, disk = self.runs[-1 - which % len(self.runs)]
        self.disturb(disk, fault)
        try:
            yield run
        except (Fenced, ProcessDied):
            self.runs.remove((run, disk))
        except (CheckpointError, OSError):
            pass  # counted; the job goes on
        disk.plan = lambda _: None

    @invariant()
    def every_promise_is_kept(self) -> None:
        self.ledger.examine(self.storage)

    @invariant()
    def there_is_always_something_right_to_go_on_from(self) -> None:
        found = find_newest(CheckpointCatalog(self.storage, JOB))
        assert self.ledger.acceptable(found.metadata), found.reason

    @invariant()
    def no_id_is_issued_twice(self) -> None:
        issued = [(job_id, number) for job_id, number, _ in self.ledger.issued]
        assert len(set(issued)) == len(issued)

    def disturb(self, disk: FaultInjectingFileSystem, fault: tuple[int, Action] | None) -> None:
        if fault is not None:
            disk.plan = at_operation(len(disk.log) + fault[0], fault[1])


def explore(*, max_examples: int, phases: Sequence[Phase] = tuple(Phase)) -> None:
    """Try orders of events; raises what the first one that breaks a promise is found by."""
    run_state_machine_as_test(
        StoreMachine,
        settings=settings(
            max_examples=max_examples,
            phases=phases,
            stateful_step_count=25,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
