"""What looks at a bucket by the clock: as often as the run beats, and at least once a minute."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from unittest.mock import create_autospec

import pytest

from dagster_ckpt.checkpoint import CancelRequest
from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.control.epochs import Choice, Claim
from dagster_ckpt.checkpoint.control.heartbeat import Completed, Heartbeat
from dagster_ckpt.checkpoint.control.job_records import JobRecords
from dagster_ckpt.checkpoint.lease import Lease
from dagster_ckpt.checkpoint.processes import ProcessIdentity
from dagster_ckpt.checkpoint.seen import unchanged_for
from dagster_ckpt.checkpoint.submissions import Submission
from dagster_ckpt.clock import iso
from dagster_ckpt.errors import Fenced, StorageError
from dagster_ckpt.orchestration.attending.attendant import Attendant
from dagster_ckpt.orchestration.attending.driver_report import Told
from dagster_ckpt.orchestration.reporting import CheckpointReporter
from dagster_ckpt.spark.run.job_run import StreamingRun
from dagster_ckpt.standalone.job_drive import _Cancellation
from dagster_ckpt.testing import Fail, FaultInjectingFileSystem, Operation
from tests.helpers.checkpoint.driver import ManualClock
from tests.helpers.checkpoint.memory import MemoryFileSystem
from tests.helpers.checkpoint.submitting import submitted
from tests.helpers.orchestration.stored_job import run_id

DRIVER = run_id()
_NAMES = (f"orders-{number}" for number in itertools.count())


@pytest.mark.parametrize(
    ("lease", "seconds"),
    [(Lease(0.5, 3), 2), (Lease(), 2), (Lease(10, 50), 10), (Lease(60, 300), 60), (Lease(1200, 3600), 60)],
)
@pytest.mark.parametrize("distant", [False, True], ids=["a directory", "a bucket"])
def test_how_often(lease: Lease, seconds: float, *, distant: bool) -> None:
    storage = MemoryFileSystem()
    storage.is_distant = distant
    assert lease.look(2.0, storage) == (seconds if distant else 2)


class Bucket:
    """A bucket with the records of a job, and a clock."""

    def __init__(self) -> None:
        memory, self.clock = MemoryFileSystem(), ManualClock()
        self.name = next(_NAMES)  # what was seen for how long is remembered by the job's name
        self.storage = FaultInjectingFileSystem(memory)
        self.storage.is_distant = True
        self.catalog = CheckpointCatalog(self.storage, self.name)
        #: Of others, whose requests are not counted.
        self.others = JobRecords(memory, self.name)
        memory.is_distant = True

    def asked(self, what: str) -> int:
        """How often the storage was asked for this."""
        said = [f"{item.name} {item.path.rpartition('/')[2]}" for item in self.storage.operations]
        return said.count(what)


def test_a_driver_that_is_to_be_canceled_sees_that_within_one_look() -> None:
    bucket = Bucket()
    cancellation = _Cancellation(bucket.catalog, DRIVER, bucket.clock, Lease(60, 300))
    run = cancellation.run = create_autospec(StreamingRun)

    def pass_time(seconds: int) -> None:
        for _ in range(seconds):
            bucket.clock.advance(1)
            cancellation.look()

    pass_time(600)
    assert bucket.asked("read cancel") == 10
    bucket.catalog.records.savepoint_requests.ask_to_cancel(CancelRequest(DRIVER, 1.0))
    pass_time(60)
    run.cancel.assert_called_once_with()


def listening(bucket: Bucket, cancellation: _Cancellation, seconds: int) -> None:
    """Time passes in which the query's watch listens to the bell."""
    requests = JobRecords(bucket.storage, bucket.name).savepoint_requests  # of the query, which has records of its own
    for second in range(seconds):
        bucket.clock.advance(1)
        if second % 60 == 30:
            unchanged_for(requests.heard_as, requests.bell(), bucket.clock)
        cancellation.look()


@pytest.mark.parametrize("rings", [True, False], ids=["", "by one that died before it rang"])
def test_while_the_query_listens_to_the_bell_a_cancellation_is_read_when_somebody_rings(*, rings: bool) -> None:
    bucket = Bucket()
    cancellation = _Cancellation(bucket.catalog, DRIVER, bucket.clock, Lease(60, 300))
    run = cancellation.run = create_autospec(StreamingRun)
    listening(bucket, cancellation, 1500)
    assert bucket.asked("read cancel") <= 2
    assert bucket.asked("read bell") == 25
    others = bucket.others.savepoint_requests
    if not rings:
        others._ring = lambda token: None  # type: ignore[method-assign]
    others.ask_to_cancel(CancelRequest(DRIVER, 1.0))
    listening(bucket, cancellation, 60 if rings else 3600)
    assert run.cancel.called
    if not rings:
        assert bucket.asked("read cancel") <= 4


def test_a_cancellation_that_could_not_be_read_is_read_again_soon() -> None:
    bucket = Bucket()
    cancellation = _Cancellation(bucket.catalog, DRIVER, bucket.clock, Lease(60, 300))
    run = cancellation.run = create_autospec(StreamingRun)
    listening(bucket, cancellation, 300)
    bucket.others.savepoint_requests.ask_to_cancel(CancelRequest(DRIVER, 1.0))
    failed: list[str] = []

    def fail_once(operation: Operation) -> Fail | None:
        if failed or not operation.path.endswith("/cancel"):
            return None
        failed.append(str(operation))
        return Fail(StorageError("away"))

    bucket.storage.plan = fail_once
    listening(bucket, cancellation, 180)
    assert failed
    assert run.cancel.called


def beat(bucket: Bucket, claim: Claim, sequence: int) -> None:
    process = ProcessIdentity("elsewhere/1", 1, 1.0)
    bucket.others.heartbeat.write(Heartbeat(claim.epoch, claim.run_id, (process,), sequence, 0.0, lease=Lease(60, 300)))


@pytest.mark.parametrize("is_late", [False, True], ids=["", "and beats first after it was looked at"])
def test_a_run_that_attends_a_driver_looks_as_often_as_the_driver_beats_and_gives_rarer_signs(*, is_late: bool) -> None:
    bucket = Bucket()
    epochs = bucket.others.epochs
    claim = epochs.claim(token="t", series=None, run_id=DRIVER, host="elsewhere", pid=1, now=iso(bucket.clock.time()))
    epochs.record_choice(claim.epoch, Choice("a" * 32, None, 1, 0, "/live", "h", None, "of the test", complete=()))
    if not is_late:
        beat(bucket, claim, 1)
    began = bucket.clock.now
    given: dict[int, float] = {}
    parts: list[float] = []

    def wait(seconds: float) -> None:
        bucket.clock.advance(seconds)
        beat(bucket, claim, int(bucket.clock.now // 60))
        if (sign := bucket.others.attendant.read()) is not None:
            age = bucket.clock.now - given.setdefault(sign.sequence, bucket.clock.now)
            parts.append(age / sign.lease.timeout)

    def turn() -> None:
        if bucket.clock.now - began > 3600:
            raise KeyboardInterrupt

    told = Told(turn, lambda: False, *[lambda *_: None] * 8)
    attendant = Attendant(bucket.catalog, DRIVER, DRIVER, create_autospec(CheckpointReporter), told, bucket.clock, wait)
    with pytest.raises(KeyboardInterrupt):
        attendant.attend()
    assert bucket.asked("replace attendant") == pytest.approx(14, abs=2), "once in a timeout of the driver's lease"
    assert bucket.asked("read attendant") <= 15, "only before each sign"
    assert bucket.asked("list epochs") <= 2, "once, and the next claim is asked for instead"
    assert 1 <= bucket.asked("read e-0000000002") <= 2, "once in six timeouts"
    assert bucket.asked("read heartbeat") == pytest.approx(65, abs=6), "once a look, and once more with each listing"
    assert bucket.asked("list deletions") <= 3, "what is retained is listed seldom while the driver tells nothing new"
    sign = bucket.others.attendant.read()
    assert sign is not None
    assert sign.lease == Lease(300, 900), "whoever waits for the next sign waits as long"
    # A listing costs as much as a write, a read a twelfth.
    spent = Counter(item.name for item in bucket.storage.operations)
    usd = 720 * ((spent["replace"] + spent["list"]) * 5 + spent["read"] * 0.4) / 1e6
    assert usd < 0.12, "with the first looks, which are no part of a month"
    assert max(parts) < 0.5, "no sign is older than the lease that it announces, the first one neither"


def test_a_run_that_attends_a_driver_sees_within_six_timeouts_that_another_has_taken_the_job_over() -> None:
    """Though its own driver still beats, and the other one has not yet."""
    bucket = Bucket()
    epochs, now = bucket.others.epochs, bucket.clock.time()
    claim = epochs.claim(token="t", series=None, run_id=DRIVER, host="elsewhere", pid=1, now=iso(now))
    epochs.record_choice(claim.epoch, Choice("a" * 32, None, 1, 0, "/live", "h", None, "of the test", complete=()))
    beat(bucket, claim, 1)
    began, taken = bucket.clock.now, 2000

    def wait(seconds: float) -> None:
        before = bucket.clock.now - began
        bucket.clock.advance(seconds)
        beat(bucket, claim, int(bucket.clock.now // 60))
        if before < taken <= bucket.clock.now - began:
            epochs.claim(token="u", series=None, run_id=run_id(), host="elsewhere", pid=2, now=iso(now))

    def turn() -> None:
        assert bucket.clock.now - began < taken + 1800 + 120

    told = Told(turn, lambda: False, *[lambda *_: None] * 8)
    attendant = Attendant(bucket.catalog, DRIVER, DRIVER, create_autospec(CheckpointReporter), told, bucket.clock, wait)
    with pytest.raises(Fenced, match="taken the job over"):
        attendant.attend()
    assert bucket.clock.now - began >= taken


def test_what_a_driver_says_is_told_soon_after_its_checkpoints_and_else_once_in_a_timeout() -> None:
    bucket = Bucket()
    records = bucket.others
    submission = submitted(records, Submission(DRIVER, 0, None, "{}", 1.0))
    claim = records.epochs.claim(token="t", series=None, run_id=DRIVER, host="elsewhere", pid=1, now=iso(1.0))
    choice = Choice("a" * 32, None, 1, 0, "/live", "h", None, "of the test", complete=())
    records.epochs.record_choice(claim.epoch, choice)
    driver, process = records.messages(submission.number), ProcessIdentity("elsewhere/1", 1, 1.0)
    said_at = {"opened": 0.0, "chk-1 completed": 2010.0, "a line of the function": 3000.0}
    unsaid, heard = dict(said_at), dict[str, float]()
    began = bucket.clock.now

    def passed() -> float:
        return bucket.clock.now - began

    def wait(seconds: float) -> None:
        bucket.clock.advance(seconds)
        for message in [each for each, at in unsaid.items() if at <= passed()]:
            driver.add([message])
            del unsaid[message]
        completed = Completed(f"{'a' * 32}/chk-1", 1) if passed() > 2000 else None
        beat = int(bucket.clock.now // 2)
        records.heartbeat.write(Heartbeat(claim.epoch, DRIVER, (process,), beat, 0.0, completed=completed))

    def turn() -> None:
        if passed() > 3600:
            raise KeyboardInterrupt

    nobody = Told(turn, lambda: False, *[lambda *_: None] * 8)
    told = replace(nobody, said=lambda message: heard.setdefault(message, passed()) < 0)
    attendant = Attendant(bucket.catalog, DRIVER, DRIVER, create_autospec(CheckpointReporter), told, bucket.clock, wait)
    wait(0)
    with pytest.raises(KeyboardInterrupt):
        attendant.attend()
    late = {message: heard[message] - at for message, at in said_at.items()}
    assert late["chk-1 completed"] <= 12 + 2, "12 s after the beat that names it, and one look"
    assert max(late.values()) <= 30 + 2, "a timeout of the lease, and one look"
    reads = sum(item.name == "read" and "/messages/" in item.path for item in bucket.storage.operations)
    lists = sum(item.name == "list" and "/messages" in item.path for item in bucket.storage.operations)
    assert reads <= 3600 / 30 + 6, "one in a timeout, and two for each message"
    assert lists <= reads / 10 + 2
