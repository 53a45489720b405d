"""A look at a job: what it asks of the storage, and that what is remembered from the last look does no harm."""

from __future__ import annotations

import itertools
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_ckpt.checkpoint.control.epochs import FAILING, Choice, Claim, End
from dagster_ckpt.checkpoint.control.heartbeat import Heartbeat
from dagster_ckpt.checkpoint.control.job_records import JobRecords
from dagster_ckpt.checkpoint.lease import Lease
from dagster_ckpt.checkpoint.processes import ProcessIdentity
from dagster_ckpt.checkpoint.sight import Sight, look
from dagster_ckpt.clock import iso
from dagster_ckpt.testing import FaultInjectingFileSystem
from tests.helpers.checkpoint.driver import ManualClock
from tests.helpers.checkpoint.manifests import JOB_ID
from tests.helpers.checkpoint.memory import MemoryFileSystem

_NAMES = (f"job-{number}" for number in itertools.count())
_RUNS = (f"run-{number}" for number in itertools.count())


class Watched:
    """A job of another host, in a storage of its own, and who looks at it."""

    def __init__(self) -> None:
        self.storage = FaultInjectingFileSystem(MemoryFileSystem())
        self.name = next(_NAMES)  # what was seen for how long is remembered by the job's name
        self.records = JobRecords(self.storage, self.name)
        self.clock = ManualClock()
        self.sequence = 0
        self.lease = Lease()
        self.claims: list[Claim] = []
        self.sight: Sight | None = None

    def claim(self) -> None:
        run = next(_RUNS)
        self.claims.append(
            self.records.epochs.claim(
                token=f"token of {run}", series=None, run_id=run, host="elsewhere", pid=1, now=iso(self.clock.time())
            )
        )

    def sweep(self) -> None:
        """Delete all records, as ``dagster-ckpt sweep --older-than`` does: the next claim is of epoch 1 again."""
        for directory in ("control/epochs", "control"):
            for entry in self.storage.list(f"{self.name}/{directory}"):
                self.storage.remove(f"{self.name}/{directory}/{entry.name}")
        self.claims.clear()

    def run_and_end(self, status: str) -> None:
        """A whole run, which was told how it ended."""
        self.claim()
        self.choose()
        self.end(status)
        self.beat(stopped=True)

    def choose(self) -> None:
        choice = Choice(JOB_ID, None, 1, 0, "/live", "h", None, "of the test", complete=())
        self.records.epochs.record_choice(self.claims[-1].epoch, choice)

    def beat(self, *, of: int = -1, stopped: bool = False, process: ProcessIdentity | None = None) -> None:
        self.sequence += 1
        claim, process = self.claims[of], process or ProcessIdentity("elsewhere/1", 1, 1.0)
        self.records.heartbeat.write(
            Heartbeat(claim.epoch, claim.run_id, (process,), self.sequence, 0.0, stopped=stopped, lease=self.lease)
        )

    def end(self, status: str) -> None:
        self.records.epochs.record_end(self.claims[-1].epoch, End(status, "of the test", False, "now"))

    def look(self) -> list[str]:
        """Look; what was asked of the storage."""
        before = len(self.storage.operations)
        self.sight = look(self.records, self.clock, self.sight)
        return [f"{item.name} {item.path.rpartition('/')[2]}" for item in self.storage.operations[before:]]


@pytest.fixture
def job() -> Watched:
    return Watched()


def test_a_job_that_was_never_started_costs_one_listing(job: Watched) -> None:
    for _ in range(2):
        assert job.look() == ["list epochs"]
        assert job.sight is None


def test_a_run_that_lives_costs_one_read(job: Watched) -> None:
    job.claim()
    job.choose()
    job.beat()
    assert len(job.look()) == 6, "the first look also asks whether a driver was submitted"
    listed = 0
    for _ in range(180):
        job.clock.advance(1)
        job.beat()
        asked = job.look()
        assert asked in (["read heartbeat"], ["list epochs", "read heartbeat"])
        listed += len(asked) - 1
    assert 3 <= listed <= 6


def running_quietly(job: Watched) -> Watched:
    """A run with a lease for quiet jobs, in a bucket."""
    job.storage.is_distant, job.lease = True, Lease(60, 300)
    job.claim()
    job.choose()
    job.beat()
    job.look()
    return job


@pytest.fixture
def quiet(job: Watched) -> Watched:
    return running_quietly(job)


def test_a_bucket_is_asked_once_for_each_beat(quiet: Watched) -> None:
    asked = []
    for second in range(5, 3605, 5):
        quiet.clock.advance(5)
        if second % 60 == 0:
            quiet.beat()
        asked += quiet.look()
    assert asked.count("read heartbeat") == pytest.approx(60, abs=1)
    assert 6 <= asked.count("read e-0000000002") <= 12
    assert 1 <= asked.count("list epochs") <= 2
    assert set(asked) == {"read heartbeat", "read e-0000000002", "list epochs"}


def test_not_all_jobs_of_a_bucket_list_their_epochs_at_once() -> None:
    minutes = []
    for _ in range(30):
        quiet, minute = running_quietly(Watched()), 0
        asked: list[str] = []
        while "list epochs" not in asked:
            minute += 1
            quiet.clock.advance(60)
            quiet.beat()
            asked = quiet.look()
        minutes.append(minute)
    assert 30 <= min(minutes) <= max(minutes) <= 61
    assert len(set(minutes)) > 10


def test_a_newer_run_in_a_bucket_is_seen_within_two_leases_though_the_older_one_beats(quiet: Watched) -> None:
    quiet.claim()  # and not one beat
    seconds = 0
    while quiet.sight is not None and quiet.sight.claim != quiet.claims[-1]:
        quiet.clock.advance(60)
        seconds += 60
        quiet.beat(of=0)
        quiet.look()
    assert 300 <= seconds <= 600


def test_a_run_in_a_bucket_that_beats_though_its_job_was_swept_hides_the_next_run_for_an_hour_at_most(
    quiet: Watched,
) -> None:
    """The epochs begin with 1 again, so the claim after that of the zombie tells nothing."""
    quiet.claim()
    quiet.choose()
    quiet.beat()
    quiet.clock.advance(700)
    quiet.look()
    zombie = quiet.claims[-1]
    quiet.sweep()
    quiet.claim()
    quiet.choose()
    seconds = 0
    while quiet.sight is None or quiet.sight.claim != quiet.claims[-1]:
        assert quiet.sight is not None
        assert quiet.sight.claim == zombie
        quiet.clock.advance(60)
        seconds += 60
        quiet.claims.append(zombie)
        quiet.beat()
        quiet.claims.pop()
        quiet.look()
    assert seconds <= 3660


def test_a_run_that_is_silent_is_dead_a_beat_after_its_lease_at_the_latest(quiet: Watched) -> None:
    seconds = 0
    while quiet.sight is not None and quiet.sight.dead is None:
        quiet.clock.advance(5)
        seconds += 5
        quiet.look()
    assert 300 < seconds <= 365


def test_a_process_of_this_host_that_is_gone_is_seen_without_a_request(quiet: Watched) -> None:
    gone = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    quiet.beat(process=ProcessIdentity.of(gone.pid))
    quiet.clock.advance(61)
    quiet.look()
    quiet.clock.advance(5)
    assert quiet.look() == []
    gone.communicate()
    quiet.clock.advance(5)
    assert "read heartbeat" in quiet.look()
    assert quiet.sight is not None
    assert quiet.sight.dead == f"its process {gone.pid} is gone"


def over(job: Watched) -> None:
    """The job is seen to be over."""
    job.run_and_end("FINISHED")
    job.clock.advance(60)
    job.look()
    job.clock.advance(60)
    job.look()
    assert job.sight is not None
    assert job.sight.is_over


def test_a_job_that_is_over_costs_one_listing(job: Watched) -> None:
    """And now and then a read: nothing else shows whether the job was swept and has been over a second time."""
    over(job)
    read = 0
    for _ in range(180):
        job.clock.advance(1)
        asked = job.look()
        assert asked in (["list epochs"], ["list epochs", "read e-0000000001"])
        read += len(asked) - 1
    assert 3 <= read <= 6
    job.claim()
    job.look()
    assert job.sight is not None
    assert not job.sight.is_over


@pytest.mark.parametrize("looked", [True, False], ids=["looked at in between", "not looked at in between"])
@pytest.mark.parametrize("chosen", [True, False], ids=["chosen", "not chosen"])
def test_a_job_that_was_swept_and_launched_again_is_not_over(job: Watched, *, looked: bool, chosen: bool) -> None:
    """Though the new claim has the number of the old one."""
    over(job)
    job.sweep()
    if looked:
        job.look()
        assert job.sight is None
    job.claim()
    if chosen:
        job.choose()
    job.look()
    assert job.sight is not None
    assert job.sight.claim == job.claims[-1]
    assert not job.sight.is_over


def test_a_job_that_was_swept_and_failed_between_two_looks_is_seen_to_soon(job: Watched) -> None:
    over(job)
    job.sweep()
    job.run_and_end(FAILING)
    job.look()
    job.clock.advance(2 * Lease().timeout)
    job.look()
    assert job.sight is not None
    assert job.sight.claim == job.claims[-1]
    assert job.sight.end is not None
    assert not job.sight.end.is_final


def test_a_run_that_lives_is_not_taken_for_the_run_before_a_sweep(job: Watched) -> None:
    job.claim()
    job.choose()
    job.beat()
    job.look()
    job.sweep()
    job.claim()
    job.choose()
    job.beat()
    job.look()
    assert job.sight is not None
    assert job.sight.claim == job.claims[-1]


def test_a_run_that_is_dead_is_seen_to_be_at_once_whatever_is_remembered(job: Watched) -> None:
    job.claim()
    job.choose()
    job.beat()
    job.look()
    job.beat(stopped=True)
    job.clock.advance(1)
    job.look()
    job.clock.advance(60)
    job.look()
    assert job.sight is not None
    assert job.sight.dead is not None


def steps() -> st.SearchStrategy[list[str]]:
    names = ["claim", "choose", "beat", "old beat", "stop", "fail", "finish", "1 s", "8 s", "40 s", "look", "sweep"]
    return st.lists(st.sampled_from(names), max_size=25)


@given(steps())
def test_nobody_acts_on_what_is_remembered(taken: list[str]) -> None:
    """To whoever looks for the first time, what is acted on looks the same; the rest does after a while."""
    job = Watched()
    job.claim()
    for step in taken:
        if not job.claims:
            job.claim()
        claimed = "choice" in job.records.epochs.names()[job.claims[-1].epoch]
        match step:
            case "claim":
                job.claim()
            case "choose" if not claimed:
                job.choose()
            case "sweep":
                job.end("CANCELED")
                job.beat(stopped=True)
                for _ in range(2):
                    job.look()
                    job.clock.advance(60)
                job.sweep()
            case "beat":
                job.beat()
            case "old beat":
                job.beat(of=0)
            case "stop":
                job.beat(stopped=True)
            case "fail" | "finish":
                job.end(FAILING if step == "fail" else "FINISHED")
            case "look":
                job.look()
                if (
                    job.sight is not None
                    and job.sight.dead is not None
                    and not ("sweep" in taken and job.sight.is_over)
                ):
                    assert seen(job, job.sight)
            case _ if step.endswith(" s"):
                job.clock.advance(float(step.split()[0]))
    if not job.claims:
        job.claim()
    job.look()
    job.clock.advance(2 * Lease().timeout)
    job.look()
    assert job.sight is not None
    assert seen(job, job.sight)


def seen(job: Watched, sight: Sight) -> bool:
    """Whether a first look shows the same. Of a job that is over only a new claim matters."""
    fresh = look(job.records, job.clock, None)
    assert fresh is not None
    if sight.is_over:
        return (fresh.claim, fresh.end) == (sight.claim, sight.end)
    return replace(fresh, anew_at=0, asked=0, list_at=0) == replace(sight, anew_at=0, asked=0, list_at=0)
