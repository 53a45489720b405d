from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import psutil
import pytest

from dagster_ckpt.checkpoint.control.epochs import Claim, End
from dagster_ckpt.checkpoint.control.heartbeat import Heart, Heartbeat, HeartbeatFile, free_job
from dagster_ckpt.checkpoint.control.heartbeat import heart as heart_module
from dagster_ckpt.checkpoint.lease import Lease
from dagster_ckpt.checkpoint.processes import ProcessIdentity
from dagster_ckpt.checkpoint.seen import unchanged_for
from dagster_ckpt.clock import iso
from dagster_ckpt.errors import JobAlreadyRunning, StorageError
from dagster_ckpt.hosts import this_host
from dagster_ckpt.testing import Action, Fail, FaultInjectingFileSystem, Hang, Operation
from tests.helpers.checkpoint.driver import JOB, ManualClock
from tests.helpers.checkpoint.memory import MemoryFileSystem
from tests.unit.checkpoint.control.bystanders import driving, jvm

LEASE, INTERVAL, SETTLED = Lease().timeout, Lease().interval, Lease().settled
#: The heart beats once, and then when it is told to.
SELDOM = Lease(1200, 3600)


@pytest.fixture
def other() -> Iterator[subprocess.Popen[str]]:
    """A live process that does nothing."""
    with subprocess.Popen(
        [sys.executable, "-c", "import signal; print(flush=True); signal.pause()"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


@pytest.fixture
def file(memory: MemoryFileSystem) -> HeartbeatFile:
    return HeartbeatFile(memory, JOB)


def beat(clock: ManualClock, *processes: ProcessIdentity, epoch: int = 1) -> Heartbeat:
    return Heartbeat(epoch, "run-a", processes, 5, clock.time(), uptime=clock.monotonic())


def no_wait(seconds: float) -> None:
    pytest.fail(f"waited {seconds} s although the process is here")


class TestProcessIdentity:
    @pytest.mark.parametrize(
        "values",
        [
            (0, 1.0, 1),
            (-1, 1.0, 1),
            (True, 1.0, 1),
            (1 << 40, 1.0, 1),
            (1, float("nan"), 1),
            (1, float("inf"), 1),
            (1, 1.0, -1),
            (1, 1.0, 1.5),
            (1, 1.0, True),
        ],
    )
    def test_no_process_has_impossible_values(self, values: tuple[Any, ...]) -> None:
        with pytest.raises(ValueError, match=r"is no process id|cannot have started"):
            ProcessIdentity("host", *values)

    def test_of_this_process(self) -> None:
        me = ProcessIdentity.of(os.getpid())
        assert me.is_here
        assert me.is_alive()
        assert me == ProcessIdentity.of(os.getpid()) == ProcessIdentity.current()

    def test_a_process_that_ended(self, other: subprocess.Popen[str]) -> None:
        identity = ProcessIdentity.of(other.pid)
        assert identity.is_alive()
        other.kill()
        assert_gone(identity)
        other.wait()
        assert not identity.is_alive()
        assert not identity.kill()

    def test_a_pid_used_again_is_another_process(self, other: subprocess.Popen[str]) -> None:
        identity = ProcessIdentity.of(other.pid)
        assert identity.ticks is not None
        before = replace(identity, ticks=identity.ticks - 6000)
        assert not before.is_alive()
        assert not before.kill()
        assert other.poll() is None

    def test_a_stopped_process_is_alive_and_can_be_killed(self, other: subprocess.Popen[str]) -> None:
        identity = ProcessIdentity.of(other.pid)
        other.send_signal(signal.SIGSTOP)
        assert identity.is_alive()
        assert identity.kill()
        assert not identity.is_alive()

    def test_another_boot_is_another_host(self) -> None:
        assert not replace(ProcessIdentity.current(), host="elsewhere/1").is_here
        assert "/" in this_host()


def assert_gone(identity: ProcessIdentity) -> None:
    """An entry that its parent has not collected yet is no process any more."""
    with psutil.Popen(["true"]):
        pass
    for _ in range(100_000):
        if not identity.is_alive():
            return
        os.sched_yield()
    pytest.fail("still alive")


class TestIsDead:
    def test_while_its_process_lives_and_beats(self, clock: ManualClock) -> None:
        heartbeat = beat(clock, ProcessIdentity.current())
        assert heartbeat.is_dead(clock) is None
        clock.advance(LEASE)
        assert heartbeat.is_dead(clock) is None

    def test_reasons(self, clock: ManualClock, other: subprocess.Popen[str]) -> None:
        me, it = ProcessIdentity.current(), ProcessIdentity.of(other.pid)
        assert replace(beat(clock, me), stopped=True).is_dead(clock) == "it ended"
        before = beat(clock, me)
        clock.advance(42)
        dead = str(before.is_dead(clock))
        assert dead.startswith(f"no heartbeat for 42 s, although its process {me.pid} lives")
        assert "full disk" in dead, "a storage that is full is no dead run"
        other.kill()
        other.wait()
        assert beat(clock, it, me).is_dead(clock) == f"its process {other.pid} is gone"

    def test_elsewhere_only_what_was_seen_of_it_counts(self, clock: ManualClock) -> None:
        heartbeat = beat(clock, ProcessIdentity("elsewhere/1", 1, 1.0))
        clock.advance(3600)
        assert heartbeat.is_dead(clock) is None, "nobody has watched it"
        assert heartbeat.is_dead(clock, unchanged=29) is None
        assert heartbeat.is_dead(clock, unchanged=31) == "no heartbeat for 31 s"
        assert replace(heartbeat, lease=Lease(10, 60)).is_dead(clock, unchanged=31) is None

    def test_here_silence_counts_when_it_cannot_lie_over_a_newer_beat(self, clock: ManualClock) -> None:
        heartbeat = beat(clock, ProcessIdentity.current())
        clock.advance(42)
        assert heartbeat.is_dead(clock, unchanged=LEASE - 0.1) is None
        assert str(heartbeat.is_dead(clock, unchanged=LEASE)).startswith("no heartbeat for 42 s")

    @pytest.mark.parametrize("set_by", [-3600.0, 3600.0])
    def test_a_clock_that_is_set_kills_nobody_and_hides_nobody(self, clock: ManualClock, set_by: float) -> None:
        heartbeat = replace(beat(clock, ProcessIdentity.current()), beat_at=clock.time() + set_by)
        assert heartbeat.is_dead(clock) is None
        clock.advance(LEASE + 1)
        assert str(heartbeat.is_dead(clock)).startswith("no heartbeat for 31 s")

    def test_for_how_long_it_was_seen_unchanged(self, clock: ManualClock) -> None:
        what = ("storage", "of this test")
        assert unchanged_for(what, (1, 5), clock) == 0
        clock.advance(20)
        assert unchanged_for(what, (1, 5), clock) == 20
        assert unchanged_for(("storage", "another"), (1, 5), clock) == 0
        assert unchanged_for(what, (1, 6), clock) == 0
        clock.advance(31)
        assert unchanged_for(what, (1, 6), clock) == 31


class TestFreeJob:
    def test_nobody_was_here(self, file: HeartbeatFile, clock: ManualClock) -> None:
        assert free_job(file, clock, no_wait) == ()

    def test_an_orderly_end(self, file: HeartbeatFile, clock: ManualClock, other: subprocess.Popen[str]) -> None:
        file.write(replace(beat(clock, ProcessIdentity.of(other.pid)), stopped=True))
        assert free_job(file, clock, no_wait) == ()
        assert other.poll() is None

    def test_its_own_process(self, file: HeartbeatFile, clock: ManualClock) -> None:
        file.write(beat(clock, ProcessIdentity.current()))
        assert free_job(file, clock, no_wait) == ()

    def test_a_live_run_is_refused_by_name(
        self, file: HeartbeatFile, clock: ManualClock, other: subprocess.Popen[str]
    ) -> None:
        file.write(beat(clock, ProcessIdentity.of(other.pid), epoch=3))
        with pytest.raises(
            JobAlreadyRunning, match=rf"'flights' .* run run-a \(process {other.pid} .* epoch 3"
        ) as raised:
            free_job(file, clock, no_wait)
        assert "Terminate run run-a in Dagster; or" in raised.value.hint
        assert f"`dagster-ckpt cancel {file.key[1]} --path {file.key[0]}`" in raised.value.hint
        assert other.poll() is None

    def test_what_is_left_of_a_dead_run_is_killed(self, file: HeartbeatFile, clock: ManualClock) -> None:
        """The driver is gone, its JVM still writes."""
        with subprocess.Popen(["true"]) as driver:
            dead = replace(ProcessIdentity.current(), pid=driver.pid, created=1.0, ticks=1)
        with jvm(dead.mark) as left:
            identity = ProcessIdentity.of(left.pid)
            file.write(beat(clock, dead, identity))
            assert list(free_job(file, clock, no_wait)) == [identity]
            assert not identity.is_alive()

    def test_a_reused_pid_is_not_killed(
        self, file: HeartbeatFile, clock: ManualClock, other: subprocess.Popen[str]
    ) -> None:
        file.write(beat(clock, replace(ProcessIdentity.of(other.pid), ticks=1)))
        assert list(free_job(file, clock, no_wait)) == []
        assert other.poll() is None

    def test_a_stopped_process_is_killed_when_its_lease_is_over(self, file: HeartbeatFile, clock: ManualClock) -> None:
        with driving(file.key) as driver:
            identity = ProcessIdentity.of(driver.pid)
            driver.send_signal(signal.SIGSTOP)
            file.write(beat(clock, identity))
            with pytest.raises(JobAlreadyRunning):
                free_job(file, clock, no_wait)
            clock.advance(LEASE + 1)
            started = clock.now
            assert list(free_job(file, clock, clock.advance)) == [identity]
            assert LEASE <= clock.now - started <= LEASE + INTERVAL
            assert not identity.is_alive()

    @pytest.mark.parametrize("epoch", [1, 2], ids=["its own", "of a later epoch"])
    def test_a_beat_that_came_late_kills_nobody(
        self, file: HeartbeatFile, clock: ManualClock, other: subprocess.Popen[str], epoch: int
    ) -> None:
        late = beat(clock, ProcessIdentity.of(other.pid))
        file.write(late)
        clock.advance(LEASE + 1)

        def it_beats(seconds: float) -> None:
            clock.advance(seconds)
            file.write(replace(beat(clock, ProcessIdentity.of(other.pid), epoch=epoch), sequence=30))

        with pytest.raises(JobAlreadyRunning, match=f"epoch {epoch}"):
            free_job(file, clock, it_beats)
        assert other.poll() is None

    def test_a_process_that_lives_is_not_killed_because_a_clock_was_set(
        self, file: HeartbeatFile, clock: ManualClock, other: subprocess.Popen[str]
    ) -> None:
        file.write(replace(beat(clock, ProcessIdentity.of(other.pid)), beat_at=1.0))
        with pytest.raises(JobAlreadyRunning):
            free_job(file, clock, no_wait)
        assert other.poll() is None

    def test_of_a_record_that_tells_no_uptime_it_is_watched(self, file: HeartbeatFile, clock: ManualClock) -> None:
        with driving(file.key) as driver:
            identity = ProcessIdentity.of(driver.pid)
            silent = replace(beat(clock, identity), uptime=None)
            file.write(silent)

            def it_beats(seconds: float) -> None:
                clock.advance(seconds)
                file.write(replace(silent, sequence=silent.sequence + 1))

            with pytest.raises(JobAlreadyRunning):
                free_job(file, clock, it_beats)
            assert list(free_job(file, clock, clock.advance)) == [identity]

    def test_another_host_is_watched_for_a_lease(self, file: HeartbeatFile, clock: ManualClock) -> None:
        file.write(beat(clock, ProcessIdentity("elsewhere/1", 1, 1.0)))
        started = clock.now
        assert free_job(file, clock, clock.advance) == ()
        assert LEASE <= clock.now - started <= LEASE + INTERVAL

    def test_its_clock_is_not_compared_with_ours(self, file: HeartbeatFile, clock: ManualClock) -> None:
        old = replace(beat(clock, ProcessIdentity("elsewhere/1", 1, 1.0)), beat_at=1.0)
        file.write(old)

        def it_beats(seconds: float) -> None:
            clock.advance(seconds)
            file.write(replace(old, sequence=old.sequence + int(clock.now)))

        with pytest.raises(JobAlreadyRunning, match="on elsewhere"):
            free_job(file, clock, it_beats)

    def test_one_that_ends_while_it_is_watched(self, file: HeartbeatFile, clock: ManualClock) -> None:
        heartbeat = beat(clock, ProcessIdentity("elsewhere/1", 1, 1.0))
        file.write(heartbeat)
        started = clock.now

        def it_ends(seconds: float) -> None:
            clock.advance(seconds)
            file.write(replace(heartbeat, stopped=True))

        assert free_job(file, clock, it_ends) == ()
        assert clock.now - started == INTERVAL


class TestHeart:
    def test_it_beats_from_start_to_stop(self, file: HeartbeatFile, clock: ManualClock) -> None:
        heart = Heart(file, clock, epoch=4, run_id="run-a")
        heart.start()
        first = file.read()
        assert first is not None
        assert (first.epoch, first.run_id, first.sequence, first.stopped) == (4, "run-a", 1, False)
        assert first.beat_at == clock.time()
        assert first.processes == (ProcessIdentity.current(),)
        heart.stop()
        last = file.read()
        assert last is not None
        assert last.stopped
        assert last.sequence > first.sequence

    def test_processes_and_epochs_are_added(
        self, file: HeartbeatFile, clock: ManualClock, other: subprocess.Popen[str]
    ) -> None:
        heart = Heart(file, clock, epoch=1, run_id="run-a")
        heart.add_process(other.pid)
        heart.add_process(other.pid)
        heart.hold(2)
        current = file.read()
        assert current is not None
        assert current.epoch == 2
        assert [process.pid for process in current.processes] == [os.getpid(), other.pid]

    def test_a_newer_epochs_heartbeat_is_not_overwritten(self, file: HeartbeatFile, clock: ManualClock) -> None:
        heart = Heart(file, clock, epoch=1, run_id="old")
        heart.start()
        newer = replace(beat(clock, ProcessIdentity("elsewhere/1", 1, 1.0), epoch=2), run_id="new")
        file.write(newer)
        heart.add_process(os.getpid())
        heart.stop()
        assert file.read() == newer

    def test_its_lease_runs_out_while_the_machine_sleeps_and_nobody_here_takes_it_for_dead(
        self, file: HeartbeatFile, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        heart = Heart(file, clock, epoch=1, run_id="run-a")
        heart._make(1)
        claim = Claim(1, "token", 1, "run-a", this_host(), 1, iso(clock.time()))
        assert judged(file, claim, None, clock)[0] is None
        assert heart.left > 0
        monkeypatch.setattr(heart_module, "slept", lambda: 3600.0)
        assert heart.left < 0
        assert judged(file, claim, None, clock)[0] is None
        heart._make(2)
        assert heart.left > 0

    def test_a_storage_that_refuses_does_not_stop_it(self, memory: MemoryFileSystem, clock: ManualClock) -> None:
        disk = FaultInjectingFileSystem(memory, lambda _: Fail())
        heart = Heart(HeartbeatFile(disk, JOB), clock, epoch=1, run_id="run-a")
        heart.start()
        disk.plan = lambda _: None
        heart.stop()
        current = HeartbeatFile(memory, JOB).read()
        assert current is not None
        assert current.stopped


class Hanging:
    """A storage in which requests hang until they are let go, and the heart of a run in it."""

    def __init__(self, memory: MemoryFileSystem, clock: ManualClock, patience: Callable[[float], None]) -> None:
        self.disk = FaultInjectingFileSystem(memory, self._plan)
        self.file = HeartbeatFile(memory, JOB)
        self.clock = clock
        self.heart = Heart(HeartbeatFile(self.disk, JOB), clock, epoch=1, run_id="run-a", lease=SELDOM)
        #: How many of the next requests of a kind hang.
        self.hang = {"read": 0, "replace": 0}
        self.hung = 0
        self.beaten = threading.Event()
        #: What comes of a request that hangs.
        self.then: Callable[[], None] = lambda: None
        self._patience = patience
        self._arrived = threading.Semaphore(0)
        self._let_go = threading.Event()

    def _plan(self, operation: Operation) -> Action | None:
        if self.hang.get(operation.name):
            self.hang[operation.name] -= 1
            self.hung += 1
            self._arrived.release()
            return Hang(self._wait)
        if operation.name == "replace":
            self.beaten.set()
        return None

    def _wait(self) -> None:
        assert self._let_go.wait(60)
        self.then()

    def hangs(self, kind: str, beat: Callable[[], None] | None = None) -> None:
        """Beat, and go on when that hangs."""
        self.hang[kind] = 1
        self._patience(0)
        (beat or self.heart._once)()
        assert self._arrived.acquire(timeout=60)
        self._patience(60)

    def let_go(self) -> None:
        """Let what hangs happen, and wait for it."""
        self._let_go.set()
        for thread in threading.enumerate():
            if thread.name == "dagster-ckpt-beat":
                thread.join(60)
                assert not thread.is_alive()

    def seen(self) -> Heartbeat:
        heartbeat = self.file.read()
        assert heartbeat is not None
        return heartbeat


class TestHangingRequests:
    @pytest.fixture
    def hanging(
        self, memory: MemoryFileSystem, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[Hanging]:
        def patience(seconds: float) -> None:
            monkeypatch.setattr(Lease, "patience", seconds)

        patience(60)
        monkeypatch.setattr(Lease, "settled", 0.0)
        made = Hanging(memory, clock, patience)
        yield made
        patience(0)
        made.heart.stop()
        made.let_go()

    @pytest.mark.parametrize("kind", ["read", "replace"])
    def test_the_heart_goes_on_beside_one(self, hanging: Hanging, kind: str) -> None:
        hanging.heart.lease = Lease(0.01)
        hanging.hangs(kind, hanging.heart.start)
        for _ in range(3):
            hanging.beaten.clear()
            assert hanging.beaten.wait(60)
        assert hanging.hung == 1

    @pytest.mark.parametrize("kind", ["read", "replace"])
    def test_only_so_many_hang_and_the_heart_stops_all_the_same(self, hanging: Hanging, kind: str) -> None:
        hanging.hangs(kind, hanging.heart.start)
        for _ in range(5):
            hanging.hangs(kind)
        begun = len(hanging.disk.operations)
        for _ in range(20):
            hanging.heart._once()
        assert len(hanging.disk.operations) == begun
        hanging.hangs(kind, hanging.heart.stop)
        assert hanging.hung == 7, "the last one is tried all the same"
        hanging.let_go()
        assert hanging.seen().stopped

    def test_where_no_thread_can_be_started_it_beats_all_the_same(
        self, hanging: Hanging, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        hanging.heart.start()
        before = hanging.seen().sequence
        with monkeypatch.context() as none_left:
            none_left.setattr(threading.Thread, "start", refuse)
            hanging.heart._once()
        assert hanging.seen().sequence == before + 1

    def test_there_are_others_when_they_have_come_back(self, hanging: Hanging) -> None:
        for _ in range(6):
            hanging.hangs("read")
        hanging.let_go()
        before = hanging.seen().sequence
        hanging.heart._once()
        assert hanging.seen().sequence == before + 1

    def test_what_hung_while_it_was_read_is_not_needed_any_more(self, hanging: Hanging) -> None:
        hanging.hangs("read")
        hanging.clock.advance(60)
        hanging.heart._once()
        newest = hanging.seen()
        hanging.let_go()
        assert hanging.seen() == newest

    def test_or_tells_what_is_true_then(self, hanging: Hanging) -> None:
        hanging.hangs("read")
        hanging.clock.advance(60)
        hanging.let_go()
        assert hanging.seen().uptime == hanging.clock.now

    @pytest.mark.parametrize("kind", ["read", "replace"])
    def test_a_newer_epoch_is_overwritten_until_its_next_beat_at_most(self, hanging: Hanging, kind: str) -> None:
        newer = Heart(hanging.file, hanging.clock, epoch=2, run_id="run-b")
        hanging.hangs(kind)
        newer._once()
        hanging.let_go()
        assert hanging.seen().epoch == (1 if kind == "replace" else 2)
        newer._once()
        hanging.heart._once()
        assert (hanging.seen().epoch, hanging.seen().run_id) == (2, "run-b")

    @pytest.mark.parametrize("lost", [False, True], ids=["", "its reply is lost"])
    def test_a_late_one_does_not_take_back_that_the_run_has_ended(self, hanging: Hanging, *, lost: bool) -> None:
        hanging.heart.start()
        alive = hanging.seen()
        hanging.hangs("replace")
        hanging.heart.stop()
        assert hanging.seen().stopped

        def come_to_pass() -> None:
            hanging.file.write(alive)
            if lost:
                raise StorageError("nobody knows")

        hanging.then = come_to_pass
        hanging.let_go()
        assert hanging.seen().stopped
        assert free_job(hanging.file, hanging.clock, no_wait) == ()

    def test_the_end_is_said_again_when_a_new_holder_would_have_beaten(
        self, hanging: Hanging, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        slept: list[float] = []
        sleep = time.sleep
        monkeypatch.setattr(Lease, "settled", 7.0)
        # Threads of other tests may sleep meanwhile.
        monkeypatch.setattr("time.sleep", lambda seconds: slept.append(seconds) if seconds == 7.0 else sleep(seconds))
        hanging.heart.start()
        hanging.hangs("replace")
        hanging.heart.stop()
        hanging.let_go()
        assert slept == [7.0]

    def test_nor_does_it_end_a_run_that_has_taken_over(self, hanging: Hanging) -> None:
        hanging.heart.start()
        hanging.hangs("replace")
        hanging.heart.stop()
        newer = Heart(hanging.file, hanging.clock, epoch=2, run_id="run-b")

        def beat_before_it_looks_again(operation: Operation) -> None:
            if operation.name == "read":
                newer._once()

        hanging.disk.plan = beat_before_it_looks_again
        hanging.let_go()
        assert (hanging.seen().epoch, hanging.seen().stopped) == (2, False)

    def test_one_that_nobody_puts_right_refuses_for_a_lease_at_most(
        self, hanging: Hanging, other: subprocess.Popen[str]
    ) -> None:
        """The process that ended in order is gone, or on another host."""
        hanging.heart.start()
        alive = hanging.seen()
        hanging.heart.stop()
        hanging.file.write(replace(alive, processes=(ProcessIdentity("elsewhere/1", 1, 1.0),)))
        started = hanging.clock.now
        assert free_job(hanging.file, hanging.clock, hanging.clock.advance) == ()
        assert hanging.clock.now - started <= SELDOM.timeout + SELDOM.interval
        hanging.file.write(replace(alive, processes=(ProcessIdentity.of(other.pid),)))
        other.kill()
        other.wait()
        assert free_job(hanging.file, hanging.clock, no_wait) == ()


def judged(file: HeartbeatFile, claim: Claim, end: End | None, clock: ManualClock) -> tuple[str | None, float]:
    """Why the run is dead, and its last sign of life to the millisecond."""
    dead, last_sign = file.judged(claim, end, clock)
    return dead, round(last_sign, 3)


def test_the_last_sign_of_life_of_a_silent_run_is_its_last_beat(memory: MemoryFileSystem) -> None:
    """Whoever looks again and again dates a death by when the heartbeat last changed."""
    clock, file = ManualClock(), HeartbeatFile(memory, "judged")
    began = round(clock.time(), 3)
    claim = Claim(1, "token", 1, "run-a", "elsewhere", 1, iso(began))
    file.write(Heartbeat(1, "run-a", (ProcessIdentity("elsewhere", 1, 0.0),), 5, began))
    assert judged(file, claim, None, clock) == (None, began)
    clock.advance(LEASE - 1)
    assert judged(file, claim, None, clock) == (None, began)
    clock.advance(2)
    dead, last_sign = judged(file, claim, None, clock)
    assert dead == f"no heartbeat for {LEASE + 1:.0f} s"
    assert last_sign == began


@pytest.mark.parametrize("here", [True, False])
def test_a_claim_without_a_beat_is_dated_by_this_hosts_clock_only_if_it_is_of_this_host(
    memory: MemoryFileSystem, here: bool
) -> None:
    clock, file = ManualClock(), HeartbeatFile(memory, f"claimed-{here}")
    claimed = round(clock.time(), 3)
    claim = Claim(1, "token", 1, "run-a", this_host() if here else "elsewhere", 1, iso(claimed))
    clock.advance(LEASE + 5)
    seconds = LEASE + 5
    if not here:
        assert judged(file, claim, None, clock) == (None, claimed)
        clock.advance(LEASE + 1)
        seconds = LEASE + 1
    assert judged(file, claim, None, clock) == (
        f"no heartbeat since it took the job over {seconds:.0f} s ago",
        claimed,
    )
    end = End("CANCELED", "terminated", discarded=False, ended_at=iso(clock.time()))
    assert judged(file, claim, end, clock) == ("it ended", claimed)


@pytest.mark.parametrize(
    ("lease", "seconds"),
    [(Lease(), LEASE), (Lease(2, 120), 120), (Lease(1, 5), LEASE)],
    ids=["default", "longer", "shorter"],
)
def test_a_claim_without_a_beat_has_its_own_lease_and_at_least_the_default(
    memory: MemoryFileSystem, lease: Lease, seconds: float
) -> None:
    """A first beat that is late on a loaded host is no death; the lease of the run before says nothing."""
    clock, file = ManualClock(), HeartbeatFile(memory, f"held-{lease}")
    there = ProcessIdentity("elsewhere", 1, 0.0)
    file.write(Heartbeat(1, "run-a", (there,), 5, clock.time(), lease=Lease(2, 600)))
    claim = Claim(2, "token", 1, "run-b", "elsewhere", 1, iso(clock.time()), lease)
    assert judged(file, claim, None, clock)[0] is None
    clock.advance(seconds - 1)
    assert judged(file, claim, None, clock)[0] is None
    clock.advance(2)
    assert judged(file, claim, None, clock)[0] == f"no heartbeat since it took the job over {seconds + 1:.0f} s ago"


@pytest.mark.parametrize("beats", [False, True], ids=["before its first beat", "with the same beat"])
def test_the_silence_of_a_run_is_not_that_of_a_run_before_a_sweep(memory: MemoryFileSystem, beats: bool) -> None:
    """A sweep deletes all records of a job that is over, and the epochs and the beats begin anew."""
    clock, file = ManualClock(), HeartbeatFile(memory, f"swept-{beats}")
    there = ProcessIdentity("elsewhere", 1, 0.0)

    def seen(run: str) -> str | None:
        claim = Claim(1, f"token of {run}", 1, run, "elsewhere", 1, iso(clock.time()))
        if beats:
            file.write(Heartbeat(1, run, (there,), 0, clock.time()))
        return judged(file, claim, None, clock)[0]

    assert seen("run-a") is None
    memory.remove(f"swept-{beats}/control/heartbeat")
    clock.advance(1000)
    assert seen("run-b") is None


def test_what_goes_wrong_with_checkpoints_is_told_until_one_completes(file: HeartbeatFile, clock: ManualClock) -> None:
    heart = Heart(file, clock, epoch=1, run_id="run-a")

    def told(epoch: int) -> Heartbeat:
        heart.hold(epoch)
        found = file.read()
        assert found is not None
        return found

    def beaten() -> Heartbeat:
        heart.add_process(os.getpid())
        found = file.read()
        assert found is not None
        return found

    began = clock.time()
    heart.checkpoint_due()
    clock.advance(60)
    heart.checkpoint_failed(4, "x" * 1_000_000, 2)
    assert beaten().due_since == began
    restarted = told(2)
    assert restarted.due_since is None, "whether the new start owes a checkpoint is not known yet"
    assert restarted.failed_checkpoints is not None
    assert (restarted.failed_checkpoints.in_a_row, restarted.failed_checkpoints.at) == (2, clock.time())
    assert len(restarted.failed_checkpoints.reason) < 20_000
    heart.checkpoint_due()
    assert beaten().due_since == began, "no start has completed one since"
    heart.completed(f"{1:032x}/chk-1", 1)
    whole = beaten()
    assert (whole.due_since, whole.failed_checkpoints) == (None, None)
    clock.advance(60)
    heart.checkpoint_due()
    assert beaten().due_since == clock.time()
    heart.completed(f"{1:032x}/chk-2", 1, is_durable=False)
    in_memory = beaten()
    assert in_memory.due_since is None, "a checkpoint in the driver's memory is one, too"
    assert in_memory.completed == whole.completed, "its loss is none"
