"""A run that was declared dead ends its job beside the start of another run, and what must become of the two."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import pytest

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.control.epochs import FAILING, End
from dagster_ckpt.errors import Fenced, NotRestarted, PublishUnknown
from dagster_ckpt.testing import Action, FaultInjectingFileSystem, Late, Operation
from tests.helpers.checkpoint.driver import JOB, Ledger, Pins, Run, once, state
from tests.helpers.checkpoint.memory import MemoryFileSystem
from tests.unit.checkpoint.protocol.lives import Held, arrive

#: How the run that was declared dead ends the job.
ENDS: dict[str, Callable[[Run], object]] = {
    "finished": Run.finish,
    "failed": lambda run: run.finish("FAILED"),
    "discarded": Run.cleanup,
}


class Job:
    """A job whose run was declared dead and lives, and what becomes of the two that meet.

    Attributes:
        old: the run that was declared dead; it has completed two checkpoints.
        newest: its newest checkpoint.
        ended: whether the end of that run counts, ``None`` before it is recorded or refused.
    """

    def __init__(self, pins: Pins) -> None:
        self.storage, self.ledger, self.pins = MemoryFileSystem(), Ledger(), pins
        self.disk = FaultInjectingFileSystem(self.storage)
        self.old = Run(self.disk, self.ledger, pins).start()
        self.old.checkpoint(state(1), 1)
        self.newest = self.old.checkpoint(state(2), 2).reference
        self.ended: bool | None = None
        self._held: Held = []

    @property
    def catalog(self) -> CheckpointCatalog:
        return CheckpointCatalog(self.storage, JOB)

    def end(self, how: Callable[[Run], object]) -> None:
        """The old run ends the job; another that takes the job over in the midst of its cleanup changes nothing."""
        try:
            how(self.old)
        except Fenced:
            end = self.catalog.records.epochs.read_end(1)
            self.ended = end is not None and end.is_final
        else:
            self.ended = True

    def send(self, how: Callable[[Run], object]) -> None:
        """The old run is gone, and its end is on its way."""
        self.disk.plan = once("create", ".end", Late(self._held))
        with pytest.raises(PublishUnknown):
            how(self.old)

    def arrive(self) -> None:
        arrive(self._held)

    def end_of(self, epoch: int) -> End:
        end = self.catalog.records.epochs.read_end(epoch)
        assert end is not None
        return end

    def last_end(self) -> End | None:
        epochs = self.catalog.records.epochs
        return epochs.read_end(epochs.highest())


@dataclass
class Started:
    """A start of the job: what it went on from, ``refused`` if it found the job over."""

    job: Job
    series: int | None
    restored: str | None = None
    refused: bool = False

    def run(self, plan: Callable[[Operation], Action | None] = lambda _: None) -> FaultInjectingFileSystem:
        view = FaultInjectingFileSystem(self.job.storage, plan)
        run = Run(view, self.job.ledger, self.job.pins, series=self.series)
        try:
            self.restored = run.start().store.restored_from
            run.checkpoint(state(3), 3)
        except NotRestarted:
            self.refused = True
        return view

    def examine(self) -> None:
        """Exactly one counts, and it goes on counting whatever arrives later."""
        job, end = self.job, self.job.end_of(1)
        counts = end.status != FAILING
        if job.ended is not None:
            assert job.ended == counts
        assert self.refused == (counts and self.series is not None)
        job.arrive()
        assert job.end_of(1) == end
        if self.refused:
            assert job.last_end() == end, "nobody resumes the job once more"
        else:
            assert self.restored == (None if end.discarded else job.newest)
            again = Run(job.storage, job.ledger, job.pins).start()
            assert again.store.restored_from is not None
            assert job.catalog.load(*_parts(again.store.restored_from)).batch == 3
        job.ledger.examine(job.storage)


def _parts(reference: str) -> tuple[str, int]:
    job_id, _, name = reference.partition("/chk-")
    return job_id, int(name)


def at_request(number: int, act: Callable[[], object]) -> Callable[[Operation], None]:
    """Do something before one request of a process."""
    left = [act]

    def plan(operation: Operation) -> None:
        if operation.sequence == number and left:
            left.pop()()

    return plan


def starts_beside(
    pins: Pins, series: int | None, meanwhile: Callable[[Job], object], before: Callable[[Job], object] = lambda _: None
) -> Iterator[Started]:
    """Starts of the job, each with something before another one of its requests, and the last one with nothing."""
    for number in itertools.count():
        job = Job(pins)
        before(job)
        started = Started(job, series)
        view = started.run(at_request(number, partial(meanwhile, job)))
        yield started
        if len(view.log) <= number:
            return
