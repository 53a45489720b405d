"""Two runs submit a driver each, want none any more, and their drivers come, whatever the moment.

What one of them does happens before each request of the other in turn: the other is paused there. And the network holds
each change of one of them back until the other is through. Whatever is told to a run or a driver then holds: a driver
that may start is on record as the newest, and a driver that was withdrawn never starts.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from dagster_ckpt.checkpoint.control.heartbeat import Heartbeat
from dagster_ckpt.checkpoint.control.job_records import JobRecords
from dagster_ckpt.checkpoint.processes import ProcessIdentity
from dagster_ckpt.clock import SystemClock, iso
from dagster_ckpt.errors import Fenced, JobAlreadyRunning, PublishUnknown, StorageError
from dagster_ckpt.filesystem import FileSystem, PosixFileSystem
from dagster_ckpt.orchestration.attending.own_submission import OwnSubmission
from dagster_ckpt.testing import FaultInjectingFileSystem, Late, Operation
from dagster_ckpt.testing.gcs.server import GcsServer
from tests.helpers.checkpoint.driver import JOB, ManualClock
from tests.helpers.checkpoint.memory import MemoryFileSystem
from tests.servers import gcs
from tests.unit.checkpoint.protocol.late_ends import at_request
from tests.unit.checkpoint.protocol.lives import Held, arrive


class Side:
    """A run and the driver that it submits.

    Attributes:
        run: its id.
        view: the storage as both see it.
        submitted: whether the run has submitted its driver.
        withdrawn: what the run was told when it wanted the driver no more, ``None`` before.
        epoch: that the driver drives, 0 if it was told not to, ``None`` before it comes.
    """

    def __init__(self, run: str, storage: FileSystem) -> None:
        self.run, self.view = run, FaultInjectingFileSystem(storage)
        self._records, self._clock = JobRecords(self.view, JOB), ManualClock()
        self._own = OwnSubmission(self._records, JOB, run, self._clock, self._clock.advance)
        self.submitted = False
        self.withdrawn: bool | None = None
        self.epoch: int | None = None

    def submit(self) -> None:
        with suppress(JobAlreadyRunning):
            self._own.make(None, "{}")
            self.submitted = True

    def withdraw(self) -> None:
        self.withdrawn = self._own.withdraw()

    def come(self) -> None:
        """The driver takes its order, claims the job, and goes on if it is still wanted."""
        self.epoch = 0
        with suppress(Fenced):
            order = self._records.submissions.check(self.run)
            claim = self._records.epochs.claim(
                token=self.run,
                series=None,
                run_id=self.run,
                host="h",
                pid=1,
                now=iso(self._clock.time()),
                after=order.after,
                is_start=True,
            )
            self._records.submissions.take(order, claim.epoch)
            self.epoch = claim.epoch
            process, uptime = ProcessIdentity.of(os.getppid()), SystemClock().monotonic()
            assert process is not None
            # Whoever has not beaten yet counts as gone, as beside every start; here nobody is paused before that.
            beat = Heartbeat(claim.epoch, self.run, (process,), 1, 0.0, uptime=uptime)
            JobRecords(self.view.inner, JOB).heartbeat.write(beat)

    def drive(self) -> None:
        self.submit()
        if self.submitted:
            self.come()

    def give_up(self) -> None:
        self.submit()
        if self.submitted:
            self.withdraw()


class Pair:
    """Two runs of one job."""

    def __init__(self, storage: FileSystem) -> None:
        self.storage = storage
        self.first, self.second = Side("a" * 32, storage), Side("b" * 32, storage)

    def examine(self) -> None:
        sides = (self.first, self.second)
        for side in sides:
            assert side.withdrawn is None or side.withdrawn is (not side.epoch), "a run and its driver agree"
            if side.submitted and side.epoch is None:
                side.come()
                assert not (side.withdrawn and side.epoch), "a driver that was withdrawn has started"
        driving, records = [side for side in sides if side.epoch], JobRecords(self.storage, JOB)
        latest = records.submissions.latest()
        if latest.standing is None:
            assert latest.submission is not None
            (own,) = [side for side in sides if side.run == latest.submission.run_id]
            assert own.withdrawn or not own.submitted, "nobody but the run itself gives the newest up"
            assert not driving
            return
        newest = max(driving, key=lambda side: side.epoch or 0)
        assert records.epochs.highest() == newest.epoch, "a driver that drives is not fenced"
        found = records.submissions.of(newest.run)
        assert found is not None, "nobody would attend it again"
        assert found.after + 1 == newest.epoch


Act = Callable[[Pair], None]

#: What has happened, what one side does, and what the other one does meanwhile.
BESIDE: dict[str, tuple[Act, Act, Act]] = {
    "a run wants its driver no more, and another submits": (
        lambda pair: pair.first.submit(),
        lambda pair: pair.first.withdraw(),
        lambda pair: pair.second.drive(),
    ),
    "another submits, and a run wants its driver no more": (
        lambda pair: pair.first.submit(),
        lambda pair: pair.second.drive(),
        lambda pair: pair.first.withdraw(),
    ),
    "a run wants its driver no more, and the driver comes": (
        lambda pair: pair.first.submit(),
        lambda pair: pair.first.withdraw(),
        lambda pair: pair.first.come(),
    ),
    "a driver comes, and its run wants it no more": (
        lambda pair: pair.first.submit(),
        lambda pair: pair.first.come(),
        lambda pair: pair.first.withdraw(),
    ),
    "a driver comes, and another run submits": (
        lambda pair: pair.first.submit(),
        lambda pair: pair.first.come(),
        lambda pair: pair.second.drive(),
    ),
    "another run submits, and a driver comes": (
        lambda pair: pair.first.submit(),
        lambda pair: pair.second.drive(),
        lambda pair: pair.first.come(),
    ),
    "another run submits in vain, and a driver comes": (
        lambda pair: pair.first.submit(),
        lambda pair: pair.second.give_up(),
        lambda pair: pair.first.come(),
    ),
    "two runs submit": (
        lambda _: None,
        lambda pair: pair.first.drive(),
        lambda pair: pair.second.drive(),
    ),
    "two runs submit, and one in vain": (
        lambda _: None,
        lambda pair: pair.first.drive(),
        lambda pair: pair.second.give_up(),
    ),
}


@pytest.fixture(scope="module")
def server() -> Iterator[GcsServer]:
    with GcsServer() as running:
        running.create_bucket(gcs.BUCKET)
        yield running


@pytest.fixture(params=["memory", "directory", pytest.param("bucket", marks=pytest.mark.integration)])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Pair]:
    """Two runs of a job that is new in its storage."""
    numbers = itertools.count()
    if request.param == "memory":
        return lambda: Pair(MemoryFileSystem())
    if request.param == "directory":
        return lambda: Pair(PosixFileSystem(tmp_path / str(next(numbers))))
    server = request.getfixturevalue("server")
    return lambda: Pair(gcs.bucket_of(server, f"{request.node.name}-{next(numbers)}"))


@pytest.mark.parametrize("story", BESIDE)
def test_at_every_moment(pair: Callable[[], Pair], story: str) -> None:
    before, act, meanwhile = BESIDE[story]
    for number in itertools.count():
        both = pair()
        before(both)
        paused = _paused(both, act)
        paused.view.plan = at_request(len(paused.view.log) + number, partial(meanwhile, both))
        ended = len(paused.view.log) + number
        act(both)
        both.examine()
        if len(paused.view.log) <= ended:
            assert number > 1
            return


@pytest.mark.parametrize("story", BESIDE)
def test_every_change_may_arrive_late(pair: Callable[[], Pair], story: str) -> None:
    """Its sender has given up, and is gone when the change takes effect."""
    before, act, meanwhile = BESIDE[story]
    for number in itertools.count():
        both = pair()
        before(both)
        paused, held = _paused(both, act), Held()
        paused.view.plan = _holds_back(number, held)
        with suppress(PublishUnknown, StorageError):
            act(both)
        paused.view.plan = lambda _: None
        if not held:
            assert number > 0
            return
        other = both.second if paused is both.first else both.first
        meanwhile(both)
        arrive(held)
        if other is both.second and other.submitted:
            assert other.epoch or other.withdrawn, "whoever was told that it has submitted is wanted"
        if other.epoch:
            assert JobRecords(both.storage, JOB).submissions.of(other.run) is not None, "nobody would attend it again"


def _paused(both: Pair, act: Act) -> Side:
    """Who does this."""
    return both.second if "second" in act.__code__.co_names else both.first


def _holds_back(number: int, held: Held) -> Callable[[Operation], Late | None]:
    """Hold one of the changes back."""
    changes = itertools.count()

    def plan(operation: Operation) -> Late | None:
        return Late(held) if operation.changes and next(changes) == number else None

    return plan
