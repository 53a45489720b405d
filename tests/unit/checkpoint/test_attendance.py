"""Who attends the driver of a job, and whether that run has told how the driver ended."""

from __future__ import annotations

import subprocess
from dataclasses import replace

import pytest

from dagster_ckpt.checkpoint.attendance import Attendance, attendance_of, run_that_waits
from dagster_ckpt.checkpoint.control.epochs import Claim
from dagster_ckpt.checkpoint.control.heartbeat import Heartbeat
from dagster_ckpt.checkpoint.control.job_records import JobRecords
from dagster_ckpt.checkpoint.lease import Lease
from dagster_ckpt.checkpoint.processes import ProcessIdentity
from dagster_ckpt.checkpoint.submissions import Submission
from dagster_ckpt.errors import Fenced
from dagster_ckpt.testing import FaultInjectingFileSystem
from tests.helpers.checkpoint.driver import JOB, ManualClock
from tests.helpers.checkpoint.memory import MemoryFileSystem

CLAIM = Claim(4, "token", 2, "run-a", "host", 7, "2026-01-01T00:00:00.000+00:00")
SUBMITTED = Submission("run-a", 3, 2, "{}", 1.0)
SIGN = Heartbeat(1, "run-b", (ProcessIdentity("elsewhere/1", 7, 1.0),), 5, 1.0)


@pytest.fixture
def records(memory: MemoryFileSystem) -> JobRecords:
    return JobRecords(memory, JOB)


def test_a_driver_that_no_run_has_submitted_is_the_run_itself(records: JobRecords, clock: ManualClock) -> None:
    assert attendance_of(records, CLAIM, clock) is None
    records.submissions.replace(replace(SUBMITTED, run_id="run-b"))
    assert attendance_of(records, CLAIM, clock) is None


def test_before_its_first_sign_of_life_a_run_does_not_attend(records: JobRecords, clock: ManualClock) -> None:
    records.submissions.replace(SUBMITTED)
    assert attendance_of(records, CLAIM, clock) == Attendance("run-a", "it has left no sign of life")


@pytest.mark.parametrize(
    ("stopped", "interrupted", "has_told"), [(False, False, False), (True, False, True), (True, True, False)]
)
def test_a_run_has_told_when_it_stopped_in_order(
    records: JobRecords, clock: ManualClock, stopped: bool, interrupted: bool, has_told: bool
) -> None:
    records.submissions.replace(SUBMITTED)
    records.attendant.write(replace(SIGN, stopped=stopped, interrupted=interrupted))
    assert attendance_of(records, CLAIM, clock) == Attendance("run-b", "it ended" if stopped else None, has_told)


def test_a_run_whose_sign_stays_the_same_for_a_lease_is_dead(records: JobRecords, clock: ManualClock) -> None:
    records.submissions.replace(SUBMITTED)
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
        records.submissions.replace(SUBMITTED)
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
    records.submissions.replace(replace(SUBMITTED, run_id="run-b", after=CLAIM.epoch))
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
        records.submissions.replace(replace(SUBMITTED, run_id=run_id, after=after))
        assert run_that_waits(records, CLAIM, clock) is None


class TestSubmissions:
    def test_a_driver_takes_its_order_from_the_newest(self, records: JobRecords) -> None:
        submissions = records.submissions
        with pytest.raises(Fenced, match="does not want a driver any more") as raised:
            submissions.check("run-a")
        assert "storage of the definitions" in raised.value.hint
        submissions.replace(SUBMITTED)
        assert submissions.check("run-a") == submissions.of("run-a") == submissions.standing() == SUBMITTED
        submissions.replace(replace(SUBMITTED, run_id="run-b"))
        with pytest.raises(Fenced):
            submissions.check("run-a")

    def test_a_run_withdraws_its_own_alone(self, records: JobRecords) -> None:
        records.submissions.replace(SUBMITTED)
        records.submissions.withdraw("run-b")
        assert records.submissions.standing() == SUBMITTED
        records.submissions.withdraw("run-a")
        assert records.submissions.standing() is None
        records.submissions.withdraw("run-a")
