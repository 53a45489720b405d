"""Who attends the driver of a job, and whether that run has told how the driver ended."""

from __future__ import annotations

import subprocess
from dataclasses import replace

import pytest

from dagster_ckpt.checkpoint.attendance import Attendance, attendance_of, run_that_waits
from dagster_ckpt.checkpoint.control.epochs import Claim
from dagster_ckpt.checkpoint.control.heartbeat import Heartbeat
from dagster_ckpt.checkpoint.control.job_records import JobRecords
from dagster_ckpt.checkpoint.format import encode_record
from dagster_ckpt.checkpoint.lease import Lease
from dagster_ckpt.checkpoint.processes import ProcessIdentity
from dagster_ckpt.checkpoint.submissions import Submission
from dagster_ckpt.errors import CorruptRecord, Fenced, PublishConflict
from dagster_ckpt.stored_json import seal
from dagster_ckpt.testing import FaultInjectingFileSystem
from tests.helpers.checkpoint.driver import JOB, ManualClock
from tests.helpers.checkpoint.memory import MemoryFileSystem
from tests.helpers.checkpoint.submitting import submitted

CLAIM = Claim(4, "token", 2, "run-a", "host", 7, "2026-01-01T00:00:00.000+00:00")
SUBMITTED = Submission("run-a", 3, 2, "{}", 1.0)
SIGN = Heartbeat(1, "run-b", (ProcessIdentity("elsewhere/1", 7, 1.0),), 5, 1.0)


@pytest.fixture
def records(memory: MemoryFileSystem) -> JobRecords:
    return JobRecords(memory, JOB)


def test_a_driver_that_no_run_has_submitted_is_the_run_itself(records: JobRecords, clock: ManualClock) -> None:
    assert attendance_of(records, CLAIM, clock) is None
    submitted(records, replace(SUBMITTED, run_id="run-b"))
    assert attendance_of(records, CLAIM, clock) is None


def test_before_its_first_sign_of_life_a_run_does_not_attend(records: JobRecords, clock: ManualClock) -> None:
    submitted(records, SUBMITTED)
    assert attendance_of(records, CLAIM, clock) == Attendance("run-a", "it has left no sign of life")


@pytest.mark.parametrize(
    ("stopped", "interrupted", "has_told"), [(False, False, False), (True, False, True), (True, True, False)]
)
def test_a_run_has_told_when_it_stopped_in_order(
    records: JobRecords, clock: ManualClock, stopped: bool, interrupted: bool, has_told: bool
) -> None:
    submitted(records, SUBMITTED)
    records.attendant.write(replace(SIGN, stopped=stopped, interrupted=interrupted))
    assert attendance_of(records, CLAIM, clock) == Attendance("run-b", "it ended" if stopped else None, has_told)


def test_a_run_whose_sign_stays_the_same_for_a_lease_is_dead(records: JobRecords, clock: ManualClock) -> None:
    submitted(records, SUBMITTED)
    records.attendant.write(SIGN)
    for waited, dead in [(0, None), (Lease().timeout, None), (1, f"no heartbeat for {Lease().timeout + 1:.0f} s")]:
        clock.advance(waited)
        assert attendance_of(records, CLAIM, clock) == Attendance("run-b", dead)


class TestBelievedForAsLongAsItStands:
    """A bucket is asked again once the next sign is due, and at once when the run's process is seen to be gone."""

    @pytest.fixture
    def storage(self) -> FaultInjectingFileSystem:
        storage = FaultInjectingFileSystem(MemoryFileSystem())
        storage.is_distant = True
        return storage

    @pytest.fixture
    def records(self, storage: FaultInjectingFileSystem) -> JobRecords:
        records = JobRecords(storage, f"{JOB}-believed")
        submitted(records, SUBMITTED)
        records.attendant.write(replace(SIGN, lease=Lease(300, 900)))
        return records

    def test_of_a_dead_driver_nobody_waits_for_more_than_one_sign(
        self, records: JobRecords, clock: ManualClock
    ) -> None:
        lease = Lease(300, 900)
        told = []
        for waited in (0, lease.settled, 1):
            clock.advance(waited)
            living = attendance_of(records, CLAIM, clock)
            dead = attendance_of(records, CLAIM, clock, is_driver_dead=True)
            assert living is not None
            assert dead is not None
            assert living.dead is None
            told.append(dead.dead)
        assert told == [None, None, f"its sign of life is overdue: the last one is {lease.settled + 1:.0f} s old"]

    def test_on_another_host(self, storage: FaultInjectingFileSystem, records: JobRecords, clock: ManualClock) -> None:
        first = attendance_of(records, CLAIM, clock)
        before = storage.operations
        for _ in range(2):
            clock.advance(149)
            assert attendance_of(records, CLAIM, clock, first) is first
        assert storage.operations == before
        clock.advance(2)
        records.attendant.write(replace(SIGN, lease=Lease(300, 900), stopped=True, sequence=6))
        assert attendance_of(records, CLAIM, clock, first) == Attendance("run-b", "it ended", has_told=True)

    def test_when_the_next_sign_is_due_the_sign_alone_is_asked_for(
        self, storage: FaultInjectingFileSystem, records: JobRecords, clock: ManualClock
    ) -> None:
        found = attendance_of(records, CLAIM, clock)
        before = len(storage.operations)
        for _ in range(3):
            clock.advance(301)
            found = attendance_of(records, CLAIM, clock, found)
        asked = [f"{item.name} {item.path.rpartition('/')[2]}" for item in storage.operations[before:]]
        assert asked == ["read attendant"] * 3

    def test_a_silent_run_is_dead_after_its_own_lease(self, records: JobRecords, clock: ManualClock) -> None:
        found = attendance_of(records, CLAIM, clock)
        for _ in range(3):
            assert found == Attendance("run-b", None)
            clock.advance(301)
            found = attendance_of(records, CLAIM, clock, found)
        assert found == Attendance("run-b", "no heartbeat for 903 s")

    def test_a_process_of_this_host_is_looked_at_each_time(self, records: JobRecords, clock: ManualClock) -> None:
        with subprocess.Popen(["sleep", "60"]) as process:
            identity = ProcessIdentity.of(process.pid)
            assert identity is not None
            sign = replace(SIGN, lease=Lease(300, 900), processes=(identity,), uptime=clock.monotonic())
            records.attendant.write(sign)
            found = attendance_of(records, CLAIM, clock)
            assert found == Attendance("run-b", None)
            assert attendance_of(records, CLAIM, clock, found) is found
            process.kill()
        gone = attendance_of(records, CLAIM, clock, found)
        assert gone == Attendance("run-b", f"its process {process.pid} is gone")

    def test_a_directory_is_read_each_time(
        self, storage: FaultInjectingFileSystem, records: JobRecords, clock: ManualClock
    ) -> None:
        storage.is_distant = False
        first = attendance_of(records, CLAIM, clock)
        records.attendant.write(replace(SIGN, stopped=True, sequence=6))
        assert attendance_of(records, CLAIM, clock, first) == Attendance("run-b", "it ended", has_told=True)


def test_a_run_waits_for_its_driver_as_long_as_it_lives(records: JobRecords, clock: ManualClock) -> None:
    assert run_that_waits(records, CLAIM, clock) is None
    submitted(records, replace(SUBMITTED, run_id="run-b", after=CLAIM.epoch))
    assert run_that_waits(records, CLAIM, clock) is None, "it has left no sign of life"
    records.attendant.write(replace(SIGN, run_id="run-c"))
    assert run_that_waits(records, CLAIM, clock) is None, "the sign is another run's"
    records.attendant.write(SIGN)
    assert run_that_waits(records, CLAIM, clock) == "run-b"
    clock.advance(Lease().timeout + 1)
    assert run_that_waits(records, CLAIM, clock) is None
    records.attendant.write(replace(SIGN, sequence=6))
    assert run_that_waits(records, CLAIM, clock) == "run-b"


def test_the_run_whose_driver_has_come_does_not_wait(records: JobRecords, clock: ManualClock) -> None:
    records.attendant.write(SIGN)
    for run_id, after in (("run-b", CLAIM.epoch - 1), ("run-a", CLAIM.epoch)):
        submitted(records, replace(SUBMITTED, run_id=run_id, after=after))
        assert run_that_waits(records, CLAIM, clock) is None


class TestSubmissions:
    def test_a_driver_takes_its_order_from_the_newest(self, records: JobRecords) -> None:
        submissions = records.submissions
        with pytest.raises(Fenced, match="does not want a driver any more") as raised:
            submissions.check("run-a")
        assert "storage of the definitions" in raised.value.hint
        first = submitted(records, SUBMITTED)
        assert submissions.check("run-a") == submissions.of("run-a") == submissions.latest().standing == first
        assert first == replace(SUBMITTED, number=1)
        assert submissions.stands(first)
        assert submitted(records, replace(SUBMITTED, run_id="run-b")).number == 2
        with pytest.raises(Fenced):
            submissions.check("run-a")
        assert not submissions.stands(first)

    def test_the_first_outcome_counts(self, records: JobRecords) -> None:
        submissions = records.submissions
        first = submitted(records, SUBMITTED)
        assert submissions.withdraw(first) is None
        assert submissions.withdraw(first) is None
        with pytest.raises(Fenced):
            submissions.take(first, 4)
        assert submissions.latest().standing is None
        assert not submissions.stands(first)
        second = submitted(records, SUBMITTED)
        submissions.take(second, 4)
        submissions.take(second, 4)
        assert submissions.withdraw(second) == 4
        assert submissions.latest().standing == second
        assert submissions.stands(second)

    def test_of_two_that_have_looked_at_once_one_submits(self, records: JobRecords) -> None:
        first = submitted(records, SUBMITTED)
        with pytest.raises(PublishConflict):
            records.submissions.add(replace(SUBMITTED, run_id="run-b"), over=0)
        assert records.submissions.latest().standing == first

    def test_older_records_go_and_foreign_files_stay(self, records: JobRecords, memory: MemoryFileSystem) -> None:
        directory = f"{JOB}/control/submissions"
        memory.create(f"{directory}/a note of the user's", b"is no record")
        for _ in range(3):
            records.submissions.withdraw(submitted(records, SUBMITTED))
        names = {entry.name for entry in memory.list(directory)}
        assert names == {"a note of the user's", "s-0000000003", "s-0000000003.outcome"}

    def test_a_number_is_used_once_though_its_record_was_deleted(
        self, records: JobRecords, memory: MemoryFileSystem
    ) -> None:
        """As the hint of a damaged record says; the outcome that is left is not that of the next submission."""
        records.submissions.withdraw(submitted(records, SUBMITTED))
        memory.remove(f"{JOB}/control/submissions/s-0000000001")
        assert records.submissions.latest().standing is None
        second = submitted(records, SUBMITTED)
        assert second.number == 2
        records.submissions.take(second, 4)

    def test_a_damaged_one_names_the_next_step(self, records: JobRecords, memory: MemoryFileSystem) -> None:
        submitted(records, SUBMITTED)
        memory.replace(f"{JOB}/control/submissions/s-0000000001", b"{")
        with pytest.raises(CorruptRecord, match="s-0000000001") as raised:
            records.submissions.latest()
        assert "delete the file. It is about the runs of the job" in raised.value.hint
        with pytest.raises(CorruptRecord, match="submitted that often"):
            records.submissions.add(SUBMITTED, over=10**10 - 1)


class TestASubmissionOfTheTimeBeforeTheyHadNumbers:
    """One record was replaced by each run, and removed by the run that withdrew it."""

    PLACE = f"{JOB}/control/submission"

    @pytest.fixture
    def old(self, records: JobRecords, memory: MemoryFileSystem) -> Submission:
        before = encode_record(SUBMITTED, self.PLACE)
        assert b'"number": 0' in before
        body = before[: before.rindex(b',\n "number"')]
        memory.replace(self.PLACE, seal(body))
        assert records.submissions.latest().number == 0
        return records.submissions.check("run-a")

    def test_its_driver_takes_its_order_from_it(self, records: JobRecords, old: Submission) -> None:
        assert old == SUBMITTED
        assert records.submissions.stands(old)
        records.submissions.take(old, 4)
        assert records.submissions.withdraw(old) == 4
        assert records.submissions.latest().standing == old

    def test_it_is_withdrawn(self, records: JobRecords, old: Submission, clock: ManualClock) -> None:
        assert attendance_of(records, CLAIM, clock) is not None
        assert records.submissions.withdraw(old) is None
        with pytest.raises(Fenced):
            records.submissions.take(old, 4)
        assert attendance_of(records, CLAIM, clock) is None

    def test_a_newer_one_counts(self, records: JobRecords, old: Submission, memory: MemoryFileSystem) -> None:
        newer = submitted(records, replace(SUBMITTED, run_id="run-b"))
        assert newer.number == 1
        assert self.PLACE not in memory.files
        memory.replace(self.PLACE, encode_record(SUBMITTED, self.PLACE))
        assert records.submissions.latest().standing == newer, "a request of that release has arrived late"
        with pytest.raises(Fenced):
            records.submissions.take(old, 4)
