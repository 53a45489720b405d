"""At which moment a silent run is dead, and which of its processes must be gone: too early means a second driver."""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dagster_ckpt.checkpoint import seen
from dagster_ckpt.checkpoint.control.epochs import Claim, End, Epochs
from dagster_ckpt.checkpoint.control.heartbeat import (
    ENDED_ELSEWHERE,
    INTERRUPTED,
    Heart,
    Heartbeat,
    HeartbeatFile,
    free_job,
)
from dagster_ckpt.checkpoint.lease import Lease
from dagster_ckpt.checkpoint.processes import ProcessIdentity
from dagster_ckpt.clock import iso
from dagster_ckpt.hosts import this_host
from dagster_ckpt.testing import Fail, FaultInjectingFileSystem, Operation
from tests.helpers.checkpoint.driver import ManualClock
from tests.helpers.checkpoint.memory import MemoryFileSystem

LEASE = Lease().timeout
THERE = ProcessIdentity("elsewhere/1", 7, 1.0)
HERE = ProcessIdentity.current()
#: A process of this host that is gone: this process, had it begun at another time.
GONE = replace(HERE, ticks=1) if HERE.ticks is not None else replace(HERE, created=1.0)
ENDED = End("FINISHED", "done", discarded=False, ended_at="2026-01-01T00:00:00.000+00:00")
_NAMES = (f"judged-{number}" for number in itertools.count())


@pytest.fixture
def file(memory: MemoryFileSystem) -> HeartbeatFile:
    """Of a job of its own: what was seen for how long is remembered by the job's name."""
    return HeartbeatFile(memory, next(_NAMES))


def claim_of(clock: ManualClock, *, host: str = "elsewhere/1", epoch: int = 1) -> Claim:
    return Claim(epoch, "token", 1, "run-a", host, 7, iso(clock.time()))


def beat(clock: ManualClock, process: ProcessIdentity = THERE) -> Heartbeat:
    return Heartbeat(1, "run-a", (process,), 5, clock.time(), uptime=clock.monotonic())


class TestMoments:
    """Each wait ends at its moment: not before, and not later."""

    @pytest.mark.parametrize(
        ("has_beaten", "dead"),
        [
            (True, f"no heartbeat for {LEASE + 0.5:.0f} s"),
            (False, f"no heartbeat since it took the job over {LEASE + 0.5:.0f} s ago"),
        ],
    )
    def test_a_silent_run_elsewhere(self, file: HeartbeatFile, clock: ManualClock, has_beaten: bool, dead: str) -> None:
        claim = claim_of(clock)
        if has_beaten:
            file.write(beat(clock))
        seen = [file.judged(claim, None, clock)[0]]
        for seconds in (LEASE, 0.5):
            clock.advance(seconds)
            seen.append(file.judged(claim, None, clock)[0])
        assert seen == [None, None, dead]

    def test_a_claim_under_a_beat_of_an_earlier_epoch(self, file: HeartbeatFile, clock: ManualClock) -> None:
        """A late beat of the earlier epoch may hide a beat of the claim, for as long as the next beats hang."""
        claim = claim_of(clock, host=this_host(), epoch=2)
        file.write(beat(clock))
        clock.advance(LEASE + 5)
        assert file.judged(claim, None, clock)[0] is None
        clock.advance(LEASE - 0.5)
        assert file.judged(claim, None, clock)[0] is None
        clock.advance(0.5)
        assert str(file.judged(claim, None, clock)[0]).startswith("no heartbeat since it took the job over")

    def test_a_run_of_another_host_is_watched_for_its_lease(self, file: HeartbeatFile, clock: ManualClock) -> None:
        file.write(replace(beat(clock), lease=Lease(7, 30)))
        waits: list[float] = []

        def wait(seconds: float) -> None:
            waits.append(seconds)
            clock.advance(seconds)

        assert file.watched(clock, wait)[1] == "no heartbeat for 30 s"
        assert waits == [7, 7, 7, 7, 2]

    def test_a_silent_run_of_this_host_is_watched_for_its_lease(self, file: HeartbeatFile, clock: ManualClock) -> None:
        lease = Lease(0.3, 0.9)
        file.write(replace(beat(clock, HERE), lease=lease))
        clock.advance(5)
        began = clock.now
        _, dead = file.watched(clock, clock.advance)
        assert str(dead).startswith("no heartbeat for 6 s")
        assert clock.now - began == pytest.approx(lease.timeout, abs=0.01)

    def test_a_run_that_was_just_looked_at_again_and_again_is_not_watched_anew(
        self, file: HeartbeatFile, clock: ManualClock
    ) -> None:
        lease = Lease(2, 30)
        file.write(replace(beat(clock), lease=lease))
        claim = claim_of(clock)
        for _ in range(6):
            assert file.judged(claim, None, clock)[0] is None
            clock.advance(6)
        began = clock.now
        assert file.watched(clock, clock.advance)[1] == "no heartbeat for 36 s"
        assert clock.now == began
        clock.advance(lease.settled + 0.1)
        assert file.watched(clock, clock.advance)[1] == "no heartbeat for 30 s"
        assert clock.now - began == pytest.approx(lease.settled + 0.1 + lease.timeout)

    def test_a_beat_during_the_watch_is_a_sign_of_life_however_old_it_is(
        self, file: HeartbeatFile, clock: ManualClock
    ) -> None:
        silent = replace(beat(clock, HERE), lease=Lease(0.3, 0.9))
        file.write(silent)
        clock.advance(5)

        def it_beats(seconds: float) -> None:
            clock.advance(seconds)
            file.write(replace(silent, sequence=6))

        assert file.watched(clock, it_beats)[1] is None

    @pytest.mark.parametrize("process", [THERE, HERE], ids=["of another host", "of this host"])
    def test_after_an_outage_of_the_storage_a_run_that_goes_on_is_not_taken_over(
        self, file: HeartbeatFile, clock: ManualClock, process: ProcessIdentity
    ) -> None:
        """A standby and the run lost the storage together, and the standby reads the first beat too early."""
        file.write(beat(clock, process))
        claim = claim_of(clock)
        for _ in range(3):
            assert file.judged(claim, None, clock)[0] is None
            clock.advance(1)
        clock.advance(600)
        assert "no heartbeat for" in str(file.judged(claim, None, clock)[0])

        def it_beats(seconds: float) -> None:
            clock.advance(seconds)
            file.write(replace(beat(clock, process), sequence=6))

        assert file.watched(clock, it_beats)[1] is None

    def test_a_process_that_ends_during_the_watch_is_not_watched_any_longer(
        self, file: HeartbeatFile, clock: ManualClock
    ) -> None:
        with subprocess.Popen(["sleep", "600"]) as hanging:
            file.write(beat(clock, ProcessIdentity.of(hanging.pid)))
            clock.advance(LEASE + 5)
            began = clock.now

            def it_dies(seconds: float) -> None:
                clock.advance(seconds)
                hanging.kill()
                hanging.wait()

            assert file.watched(clock, it_dies)[1] == f"its process {hanging.pid} is gone"
        assert clock.now - began == Lease().interval


class TestToldSilent:
    """A process that has watched a run for its lease tells others so, and they believe that of the very same beat."""

    LEASE = Lease(2, 30)

    @pytest.fixture
    def silent(self, file: HeartbeatFile, clock: ManualClock, epochs: Epochs, forget: Callable[[], None]) -> Heartbeat:
        """A beat that was seen silent for a lease, by a process of which others remember nothing."""
        take_over(epochs, clock, "run-a")
        silent = replace(beat(clock), lease=self.LEASE)
        file.write(silent)
        watch(file, clock, 31)
        file.tell_silent(clock)
        forget()
        return silent

    @pytest.fixture
    def epochs(self, memory: MemoryFileSystem, file: HeartbeatFile) -> Epochs:
        return Epochs(memory, file.key[1])

    @pytest.fixture
    def forget(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
        return lambda: monkeypatch.setattr(seen, "_seen", {})

    @pytest.fixture
    def waited(self, file: HeartbeatFile, clock: ManualClock) -> Callable[[], float]:
        """The seconds for which another process watches the job before the run counts as dead."""

        def wait_for_it() -> float:
            began = clock.now
            assert str(file.watched(clock, clock.advance)[1]).startswith("no heartbeat for 30 s")
            return clock.now - began

        return wait_for_it

    def test_the_next_run_watches_no_second_lease(
        self, file: HeartbeatFile, clock: ManualClock, silent: Heartbeat
    ) -> None:
        began = clock.now
        assert file.watched(clock, clock.advance) == (silent, "no heartbeat for 30 s, as another process has seen")
        assert free_job(file, clock, clock.advance) == ()
        assert clock.now - began == self.LEASE.settled

    def test_a_beat_that_a_repeated_request_has_brought_back_is_not_believed(
        self, file: HeartbeatFile, clock: ManualClock, silent: Heartbeat
    ) -> None:
        """The run has returned and beaten, and the request of the beat before, sent twice, arrives once more."""

        def next_beat(seconds: float) -> None:
            clock.advance(seconds)
            file.write(replace(silent, sequence=silent.sequence + 2))

        file.write(replace(silent, sequence=silent.sequence + 1))
        file.write(silent)
        assert file.watched(clock, next_beat)[1] is None

    @pytest.mark.parametrize("change", [{"sequence": 6}, {"epoch": 2}, {"run_id": "run-b"}, {"beat_at": 7.0}], ids=str)
    def test_any_other_beat_is_watched(
        self, file: HeartbeatFile, waited: Callable[[], float], silent: Heartbeat, change: dict[str, Any]
    ) -> None:
        file.write(replace(silent, **change))
        assert waited() == 30

    @pytest.mark.usefixtures("silent")
    def test_a_run_that_has_claimed_the_job_since_and_not_beaten_yet_is_watched(
        self, epochs: Epochs, clock: ManualClock, waited: Callable[[], float]
    ) -> None:
        take_over(epochs, clock, "run-b")
        assert waited() == 30

    def test_a_run_that_beats_again_while_the_record_is_read_is_alive(
        self, memory: MemoryFileSystem, clock: ManualClock, silent: Heartbeat, file: HeartbeatFile
    ) -> None:
        class BeatsMeanwhile(MemoryFileSystem):
            def read(self, path: str) -> bytes:
                found = super().read(path)
                if path.endswith("/silent"):
                    file.write(replace(silent, sequence=silent.sequence + 1))
                return found

        watching = BeatsMeanwhile()
        watching.files, watching.directories = memory.files, memory.directories
        assert HeartbeatFile(watching, file.key[1]).watched(clock, clock.advance)[1] is None

    def test_a_damaged_record_tells_nothing(
        self, file: HeartbeatFile, memory: MemoryFileSystem, waited: Callable[[], float], silent: Heartbeat
    ) -> None:
        for damaged in (b"{}", b"", b"\xff"):
            memory.replace(f"{file.key[1]}/control/silent", damaged)
            file.write(replace(silent, sequence=silent.sequence + 1 + len(damaged)))
            assert waited() == 30

    def test_a_record_that_cannot_be_read_tells_nothing(
        self, memory: MemoryFileSystem, clock: ManualClock, silent: Heartbeat, file: HeartbeatFile
    ) -> None:
        denied = FaultInjectingFileSystem(memory, lambda at: Fail() if at.path.endswith("/silent") else None)
        began = clock.now
        assert HeartbeatFile(denied, file.key[1]).watched(clock, clock.advance) == (silent, "no heartbeat for 30 s")
        assert clock.now - began == 30

    @pytest.mark.parametrize(
        ("before", "gap", "after"), [(20, 0, 9), (20, 12, 9), (29, 12, 0)], ids=["too short", "a gap", "a gap at last"]
    )
    def test_what_was_not_watched_for_a_lease_is_not_told(
        self,
        file: HeartbeatFile,
        clock: ManualClock,
        waited: Callable[[], float],
        epochs: Epochs,
        forget: Callable[[], None],
        before: int,
        gap: int,
        after: int,
    ) -> None:
        take_over(epochs, clock, "run-a")
        file.write(replace(beat(clock), lease=self.LEASE))
        watch(file, clock, before)
        clock.advance(gap)
        if after:
            watch(file, clock, after)
        file.tell_silent(clock)
        forget()
        assert waited() == pytest.approx(30, abs=0.01)

    def test_a_storage_that_takes_no_record_hinders_nobody(
        self, memory: MemoryFileSystem, clock: ManualClock, file: HeartbeatFile
    ) -> None:
        file.write(replace(beat(clock), lease=self.LEASE))
        full = FaultInjectingFileSystem(memory, lambda at: Fail() if at.path.endswith("/silent") else None)
        told = HeartbeatFile(full, file.key[1])
        watch(told, clock, 31)
        told.tell_silent(clock)
        assert f"{file.key[1]}/control/silent" not in memory.files


class TestComesBack:
    """A run was away for its lease, another process has claimed its job and died before its first beat."""

    @pytest.fixture
    def away(self, memory: MemoryFileSystem) -> FaultInjectingFileSystem:
        """The storage as the first run has it: away for as long as ``plan`` says so."""
        return FaultInjectingFileSystem(memory)

    @pytest.fixture
    def heart(self, away: FaultInjectingFileSystem, file: HeartbeatFile, clock: ManualClock) -> Heart:
        """Of the first run; it beats when it is told to."""
        take_over(Epochs(away, file.key[1]), clock, "run-a")
        heart = Heart(HeartbeatFile(away, file.key[1]), clock, epoch=1, run_id="run-a")
        self.beats(heart, away)
        return heart

    @staticmethod
    def beats(heart: Heart, storage: FaultInjectingFileSystem) -> list[str]:
        """Beat once; what was asked of the storage."""
        before = len(storage.operations)
        heart.hold(1)
        return [f"{item.name} {item.path.rpartition('/')[2]}" for item in storage.operations[before:]]

    @staticmethod
    def is_away(storage: FaultInjectingFileSystem, clock: ManualClock, heart: Heart) -> None:
        storage.plan = lambda _: Fail()
        clock.advance(LEASE + 1)
        TestComesBack.beats(heart, storage)
        storage.plan = lambda _: None

    def test_the_dead_claim_is_seen_although_the_older_run_is_back(
        self,
        memory: MemoryFileSystem,
        away: FaultInjectingFileSystem,
        file: HeartbeatFile,
        clock: ManualClock,
        heart: Heart,
    ) -> None:
        self.is_away(away, clock, heart)
        claim = take_over(Epochs(memory, file.key[1]), clock, "run-b")
        dead, waited = None, 0
        while dead is None and waited < 10 * LEASE:
            self.beats(heart, away)
            dead, _ = file.judged(claim, None, clock)
            clock.advance(1)
            waited += 1
        assert dead is not None
        assert dead.startswith("no heartbeat since it took the job over")
        assert heart.is_fenced
        assert waited <= LEASE + 2

    def test_whoever_decided_before_the_run_was_back_may_claim_the_job_a_little_later(
        self,
        memory: MemoryFileSystem,
        away: FaultInjectingFileSystem,
        file: HeartbeatFile,
        clock: ManualClock,
        heart: Heart,
    ) -> None:
        self.is_away(away, clock, heart)
        assert "list epochs" in self.beats(heart, away)
        assert heart.left > 0
        take_over(Epochs(memory, file.key[1]), clock, "run-b")
        clock.advance(1)
        self.beats(heart, away)
        assert heart.is_fenced

    def test_a_claim_of_the_same_process_ends_nothing(
        self, away: FaultInjectingFileSystem, file: HeartbeatFile, clock: ManualClock, heart: Heart
    ) -> None:
        """A run that restarts its query claims the next epoch, and its heart hears of that a moment later."""
        self.is_away(away, clock, heart)
        epochs, now = Epochs(away, file.key[1]), iso(clock.time())
        epochs.claim(token="next", series=None, run_id="run-a", host=this_host(), pid=os.getpid(), now=now)
        assert "replace heartbeat" in self.beats(heart, away)
        assert not heart.is_fenced

    def test_a_claim_of_another_run_ends_it_though_both_drivers_are_process_1_of_containers_of_one_name(
        self, away: FaultInjectingFileSystem, file: HeartbeatFile, clock: ManualClock, heart: Heart
    ) -> None:
        self.is_away(away, clock, heart)
        epochs, now = Epochs(away, file.key[1]), iso(clock.time())
        epochs.claim(token="next", series=None, run_id="run-b", host=this_host(), pid=os.getpid(), now=now)
        self.beats(heart, away)
        assert heart.is_fenced

    @pytest.mark.parametrize("step", ["read", "replace"])
    @pytest.mark.parametrize("late_before", [False, True])
    def test_a_process_that_is_paused_during_a_beat_hears_of_the_claim(
        self,
        memory: MemoryFileSystem,
        away: FaultInjectingFileSystem,
        file: HeartbeatFile,
        clock: ManualClock,
        heart: Heart,
        step: str,
        *,
        late_before: bool,
    ) -> None:
        """Else it would write a beat that looks timely, and go on for a lease beside the run that has taken over."""

        def pause(at: Operation) -> None:
            if at.name == step and at.path.endswith("/heartbeat") and Epochs(memory, file.key[1]).highest() == 1:
                clock.advance(LEASE + 1)
                take_over(Epochs(memory, file.key[1]), clock, "run-b")

        if late_before:
            self.is_away(away, clock, heart)
        away.plan = pause
        self.beats(heart, away)
        assert heart.is_fenced
        assert heart.left == 0

    def test_a_run_that_beats_in_time_asks_for_no_claims(
        self, away: FaultInjectingFileSystem, clock: ManualClock, heart: Heart
    ) -> None:
        self.is_away(away, clock, heart)
        asked = []
        for _ in range(100):
            clock.advance(1)
            asked.append(self.beats(heart, away))
        assert asked[0] == ["list epochs", "read heartbeat", "replace heartbeat", "list epochs"]
        assert asked[int(LEASE) + 1 :] == [["read heartbeat", "replace heartbeat"]] * (99 - int(LEASE))


def take_over(epochs: Epochs, clock: ManualClock, run_id: str) -> Claim:
    return epochs.claim(token=run_id, series=None, run_id=run_id, host="elsewhere", pid=1, now=iso(clock.time()))


def watch(file: HeartbeatFile, clock: ManualClock, seconds: int) -> None:
    """Look each second, as the sensor does."""
    for _ in range(seconds):
        file.judged(claim_of(clock), None, clock)
        clock.advance(1)
    file.judged(claim_of(clock), None, clock)


@pytest.mark.parametrize(
    ("process", "worker", "stopped", "interrupted", "end", "dead"),
    [
        (HERE, None, False, False, None, None),
        (GONE, None, False, False, None, "its process {pid} is gone"),
        (GONE, HERE, False, False, None, None),
        (GONE, GONE, False, False, None, "its process {pid} is gone"),
        (THERE, THERE, False, False, None, None),
        (HERE, None, True, False, ENDED, None),
        (HERE, None, True, False, None, None),
        (THERE, None, True, False, ENDED, None),
        (GONE, None, True, False, ENDED, "it ended"),
        (GONE, HERE, True, False, ENDED, None),
        (GONE, None, True, True, ENDED, "it ended"),
        (GONE, None, True, True, None, INTERRUPTED),
        (GONE, None, True, False, None, "it stopped and recorded no end"),
    ],
)
def test_while_the_process_of_the_dagster_run_lives_the_run_is_not_dead(
    file: HeartbeatFile,
    clock: ManualClock,
    process: ProcessIdentity,
    worker: ProcessIdentity | None,
    stopped: bool,
    interrupted: bool,
    end: End | None,
    dead: str | None,
) -> None:
    """Dagster hears from that process how the run ended."""
    file.write(replace(beat(clock, process), worker=worker, stopped=stopped, interrupted=interrupted))
    clock.advance(1)
    found, last_sign = file.judged(claim_of(clock), end, clock)
    assert found == (None if dead is None else dead.format(pid=GONE.pid))
    assert last_sign == pytest.approx(clock.time() - (0 if process == THERE else 1))


def test_a_run_elsewhere_that_stopped_is_over_after_its_lease(file: HeartbeatFile, clock: ManualClock) -> None:
    file.write(replace(beat(clock), stopped=True))
    claim = claim_of(clock)
    assert file.judged(claim, ENDED, clock)[0] is None
    clock.advance(LEASE + 1)
    assert file.judged(claim, ENDED, clock)[0] == ENDED_ELSEWHERE
