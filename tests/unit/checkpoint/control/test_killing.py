"""Only what is proven to drive the job is killed, whatever a heartbeat says."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_ckpt.checkpoint import processes
from dagster_ckpt.checkpoint.control.heartbeat import Heart, Heartbeat, HeartbeatFile, free_job
from dagster_ckpt.checkpoint.lease import Lease
from dagster_ckpt.checkpoint.processes import DRIVER_VARIABLE, ProcessIdentity, is_proven, mark_driver
from dagster_ckpt.errors import CorruptCheckpoint, JobAlreadyRunning
from tests.helpers.checkpoint.driver import JOB, ManualClock
from tests.helpers.checkpoint.memory import MemoryFileSystem
from tests.unit.checkpoint.control.bystanders import SPARK, driving, jvm, running, submitted

_RECORD = f"{JOB}/control/heartbeat"


@pytest.fixture
def file(memory: MemoryFileSystem) -> HeartbeatFile:
    return HeartbeatFile(memory, JOB)


LEASE = Lease().timeout


def beat(clock: ManualClock, *named: ProcessIdentity) -> Heartbeat:
    return Heartbeat(1, "run-a", named, 5, clock.time(), uptime=clock.monotonic())


def earlier_release(identity: ProcessIdentity) -> ProcessIdentity:
    """As a release recorded it that told no ticks."""
    return replace(identity, ticks=None)


def free(file: HeartbeatFile, clock: ManualClock) -> list[ProcessIdentity]:
    clock.advance(LEASE + 1)
    return list(free_job(file, clock, clock.advance))


class TestNoClockDecides:
    """The wall clock was set between the record and the look; ``created`` is computed from that clock."""

    @pytest.mark.parametrize("set_by", [-3600.0, 3600.0])
    def test_a_process_lives_on_when_the_clock_is_set(self, bystander: subprocess.Popen[str], set_by: float) -> None:
        identity = ProcessIdentity.of(bystander.pid)
        moved = replace(identity, created=identity.created + set_by)
        assert moved.is_alive()
        assert beat(ManualClock(), moved).is_dead(ManualClock()) is None
        bystander.kill()
        bystander.wait()
        assert not moved.is_alive()

    def test_a_pid_that_is_used_again_is_another_process_whatever_the_clock_says(
        self, bystander: subprocess.Popen[str]
    ) -> None:
        identity = ProcessIdentity.of(bystander.pid)
        assert identity.ticks is not None
        before = replace(identity, ticks=identity.ticks - 1)
        assert before.created == psutil.Process(bystander.pid).create_time()
        assert not before.is_alive()
        assert not before.kill()
        assert bystander.poll() is None

    def test_ticks_are_those_of_the_process_whatever_its_name(self, tmp_path: Any) -> None:
        program = tmp_path / "a) R 1 (b"
        program.symlink_to("/bin/sleep")
        with subprocess.Popen([str(program), "1000"]) as process:
            try:
                identity = ProcessIdentity.of(process.pid)
                assert identity.is_alive()
                since_boot = psutil.Process(process.pid).create_time() - psutil.boot_time()
                assert identity.ticks == pytest.approx(since_boot * os.sysconf("SC_CLK_TCK"))
            finally:
                process.kill()

    def test_a_record_of_an_earlier_release_is_judged_by_created(self, bystander: subprocess.Popen[str]) -> None:
        old = earlier_release(ProcessIdentity.of(bystander.pid))
        assert old.is_alive()
        assert not replace(old, created=old.created - 60).is_alive()

    def test_this_process_is_known_when_the_clock_is_set(
        self, file: HeartbeatFile, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An earlier run of this process could not write its last beat."""
        me = ProcessIdentity.current()
        file.write(beat(clock, replace(me, created=me.created - 3600)))
        assert free_job(file, clock, clock.advance) == ()


class TestBystanders:
    """A process that is not of the job lives on, whatever names it."""

    @pytest.mark.parametrize("created", [math.nan, math.inf, -math.inf, 0, 1e308, "now", None, True])
    @pytest.mark.parametrize("place", [0, 1])
    def test_named_with_a_start_that_cannot_be(
        self,
        memory: MemoryFileSystem,
        file: HeartbeatFile,
        clock: ManualClock,
        bystander: subprocess.Popen[str],
        gone: ProcessIdentity,
        created: Any,
        place: int,
    ) -> None:
        forged = {"host": ProcessIdentity.current().host, "pid": bystander.pid, "created": created}
        named = [forged] if place == 0 else [asdict(gone), forged]
        memory.replace(_RECORD, json.dumps(asdict(beat(clock, gone)) | {"processes": named}).encode())
        with contextlib.suppress(JobAlreadyRunning, CorruptCheckpoint):
            assert free(file, clock) == []
        assert bystander.poll() is None

    @pytest.mark.parametrize("pid", [0, -1, 1, 2**31, 2**70, 1.5, True, "1"])
    def test_a_pid_that_means_others(
        self, memory: MemoryFileSystem, file: HeartbeatFile, clock: ManualClock, gone: ProcessIdentity, pid: Any
    ) -> None:
        created = psutil.Process(1).create_time()
        forged = {"host": ProcessIdentity.current().host, "pid": pid, "created": created}
        memory.replace(_RECORD, json.dumps(asdict(beat(clock, gone)) | {"processes": [asdict(gone), forged]}).encode())
        with pytest.raises((JobAlreadyRunning, CorruptCheckpoint)):
            free(file, clock)

    @pytest.mark.parametrize("is_old", [False, True], ids=["", "of an earlier release"])
    @pytest.mark.parametrize("place", ["driver", "JVM"])
    def test_named_as_it_is(
        self,
        file: HeartbeatFile,
        clock: ManualClock,
        bystander: subprocess.Popen[str],
        gone: ProcessIdentity,
        place: str,
        *,
        is_old: bool,
    ) -> None:
        identity = ProcessIdentity.of(bystander.pid)
        identity = earlier_release(identity) if is_old else identity
        file.write(beat(clock, *([gone] if place == "JVM" else []), identity))
        with pytest.raises(JobAlreadyRunning, match=rf"process {bystander.pid}, .* was not killed") as raised:
            free(file, clock)
        assert f"kill -9 {bystander.pid}" in raised.value.hint
        assert f"delete {file.url}" in raised.value.hint
        assert bystander.poll() is None

    def test_the_driver_of_another_job(self, file: HeartbeatFile, clock: ManualClock) -> None:
        """The storage was copied, with its heartbeats; or a record of another job lies in the place of ours."""
        for other in [(file.key[0], "another"), ("file:///elsewhere", JOB)]:
            with driving(other) as driver:
                identity = ProcessIdentity.of(driver.pid)
                with jvm(identity.mark) as its_jvm:
                    file.write(beat(clock, identity, ProcessIdentity.of(its_jvm.pid)))
                    with pytest.raises(JobAlreadyRunning, match=str(driver.pid)):
                        free(file, clock)
                    assert driver.poll() is None
                    assert its_jvm.poll() is None

    def test_the_jvm_of_another_driver(self, file: HeartbeatFile, clock: ManualClock, gone: ProcessIdentity) -> None:
        with jvm("4711-4711") as another:
            file.write(beat(clock, gone, ProcessIdentity.of(another.pid)))
            with pytest.raises(JobAlreadyRunning, match=str(another.pid)):
                free(file, clock)
            assert another.poll() is None

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of another user")
    def test_a_process_of_another_user(self, file: HeartbeatFile, clock: ManualClock, gone: ProcessIdentity) -> None:
        shell = ("/bin/sh", "-c", "echo; read line")  # the other user may not be able to run this Python
        with running(*SPARK, program=shell, started_by=gone.mark, user=65534) as foreign:
            file.write(beat(clock, gone, ProcessIdentity.of(foreign.pid)))
            with pytest.raises(JobAlreadyRunning, match=str(foreign.pid)):
                free(file, clock)
            assert foreign.poll() is None

    def test_what_a_driver_started_and_is_no_jvm(
        self, file: HeartbeatFile, clock: ManualClock, gone: ProcessIdentity
    ) -> None:
        with running("tar", "pyspark-shell", started_by=gone.mark) as child:
            file.write(beat(clock, gone, ProcessIdentity.of(child.pid)))
            with pytest.raises(JobAlreadyRunning, match=str(child.pid)):
                free(file, clock)
            assert child.poll() is None

    def test_nothing_is_killed_if_one_is_not_proven(
        self, file: HeartbeatFile, clock: ManualClock, bystander: subprocess.Popen[str]
    ) -> None:
        with driving(file.key) as driver:
            file.write(beat(clock, ProcessIdentity.of(driver.pid), ProcessIdentity.of(bystander.pid)))
            with pytest.raises(JobAlreadyRunning, match=str(bystander.pid)):
                free(file, clock)
            assert driver.poll() is None

    def test_this_process_and_those_above_it(self, file: HeartbeatFile) -> None:
        """Even with every proof."""
        mark = mark_driver(file.key)
        assert mark is not None
        try:
            me = ProcessIdentity.current()
            assert not is_proven(me, me, file.key)
            code = (
                "import os, sys; from dagster_ckpt.checkpoint.processes import *\n"
                "above = ProcessIdentity.of(os.getppid()); print(is_proven(above, above, tuple(sys.argv[1:])))"
            )
            with subprocess.Popen([sys.executable, "-c", code, *file.key], stdout=subprocess.PIPE, text=True) as child:
                assert child.communicate()[0] == "False\n"
        finally:
            os.close(mark)


class TestProven:
    """What is left of a dead run of the job is killed."""

    def test_a_driver_and_its_jvm_that_hang(self, file: HeartbeatFile, clock: ManualClock) -> None:
        with driving(file.key) as driver:
            first = ProcessIdentity.of(driver.pid)
            with jvm(first.mark) as its_jvm:
                second = ProcessIdentity.of(its_jvm.pid)
                for process in (driver, its_jvm):
                    process.send_signal(signal.SIGSTOP)
                file.write(beat(clock, first, second))
                assert free(file, clock) == [first, second]
                assert (driver.wait(), its_jvm.wait()) == (-signal.SIGKILL, -signal.SIGKILL)

    def test_a_driver_and_the_jvm_that_it_has_adopted_hang(self, file: HeartbeatFile, clock: ManualClock) -> None:
        with jvm("its keeper") as its_jvm:
            assert its_jvm.stdin is not None
            with driving(file.key, its_jvm.stdin.fileno()) as driver:
                first, second = ProcessIdentity.of(driver.pid), ProcessIdentity.of(its_jvm.pid)
                for process in (driver, its_jvm):
                    process.send_signal(signal.SIGSTOP)
                file.write(beat(clock, first, second))
                assert free(file, clock) == [first, second]
                assert (driver.wait(), its_jvm.wait()) == (-signal.SIGKILL, -signal.SIGKILL)

    def test_a_jvm_whose_driver_is_gone(self, file: HeartbeatFile, clock: ManualClock, gone: ProcessIdentity) -> None:
        with jvm(gone.mark) as left:
            identity = ProcessIdentity.of(left.pid)
            file.write(beat(clock, gone, identity))
            assert free(file, clock) == [identity]
            assert left.wait() == -signal.SIGKILL

    def test_a_jvm_of_an_earlier_release_that_nobody_can_talk_to(
        self, file: HeartbeatFile, clock: ManualClock, gone: ProcessIdentity
    ) -> None:
        with jvm() as left:
            identity = earlier_release(ProcessIdentity.of(left.pid))
            file.write(beat(clock, earlier_release(gone), identity))
            with pytest.raises(JobAlreadyRunning, match=str(left.pid)):
                free(file, clock)  # this process could still talk to the JVM
            assert left.poll() is None
            assert left.stdin is not None
            left.stdin.close()
            assert free(file, clock) == [identity]
            assert left.wait() == -signal.SIGKILL

    @pytest.mark.parametrize("is_gone", [False, True], ids=["", "its driver is gone"])
    @pytest.mark.parametrize("on_yarn", [False, True], ids=["", "on YARN"])
    def test_a_paused_jvm_above_its_driver(
        self, file: HeartbeatFile, clock: ManualClock, *, is_gone: bool, on_yarn: bool
    ) -> None:
        """The JVM is there first, so the JVM has no mark of the driver."""
        with submitted(file.key, on_yarn=on_yarn) as (above, driver):
            above.send_signal(signal.SIGSTOP)
            if is_gone:
                driver.kill()
            file.write(beat(clock, driver, ProcessIdentity.of(above.pid)))
            assert [each.pid for each in free(file, clock)] == ([] if is_gone else [driver.pid]) + [above.pid]
            assert above.wait() == -signal.SIGKILL

    @pytest.mark.parametrize("other", ["another", JOB], ids=["of another job", "in another storage"])
    @pytest.mark.parametrize("on_yarn", [False, True], ids=["", "on YARN"])
    def test_the_jvm_above_another_driver_is_not(
        self, file: HeartbeatFile, clock: ManualClock, gone: ProcessIdentity, other: str, *, on_yarn: bool
    ) -> None:
        with submitted(("file:///elsewhere", other), on_yarn=on_yarn) as (above, driver):
            for named in (gone, driver):
                file.write(beat(clock, named, ProcessIdentity.of(above.pid)))
                with pytest.raises(JobAlreadyRunning):
                    free(file, clock)
            assert above.poll() is None
            assert driver.is_alive()

    @pytest.mark.parametrize("on_yarn", [False, True], ids=["", "on YARN"])
    def test_another_driver_is_no_jvm_that_has_lost_its_driver(
        self, file: HeartbeatFile, clock: ManualClock, gone: ProcessIdentity, *, on_yarn: bool
    ) -> None:
        """The command line of a submitted driver ends as that of its JVM."""
        with submitted(("file:///elsewhere", JOB), on_yarn=on_yarn) as (_, driver):
            file.write(beat(clock, gone, driver))
            with pytest.raises(JobAlreadyRunning):
                free(file, clock)
            assert driver.is_alive()

    def test_a_heart_proves_its_driver_until_it_has_said_that_it_stopped(
        self, file: HeartbeatFile, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(processes, "_never_killed", set)
        monkeypatch.delenv(DRIVER_VARIABLE, raising=False)
        me = ProcessIdentity.current()
        heart = Heart(file, clock, epoch=1, run_id="run-a")
        assert not is_proven(me, me, file.key)
        heart.start()
        assert is_proven(me, me, file.key)
        assert not is_proven(me, me, (file.key[0], "another"))
        assert os.environ[DRIVER_VARIABLE] == me.mark
        heart.stop()
        assert not is_proven(me, me, file.key)


_NUMBERS = st.one_of(
    st.integers(), st.floats(), st.booleans(), st.none(), st.text(max_size=3), st.integers(min_value=0, max_value=2**16)
)


_FORGED_PROCESS = st.dictionaries(st.sampled_from(["host", "pid", "created", "ticks", "more"]), _NUMBERS, max_size=2)
_FORGED_HEARTBEAT = st.dictionaries(
    st.sampled_from(["epoch", "sequence", "stopped", "beat_at", "worker"]), _NUMBERS, max_size=1
)


@pytest.fixture(scope="module")
def storage() -> MemoryFileSystem:
    return MemoryFileSystem()


@pytest.fixture(scope="module")
def named(storage: MemoryFileSystem) -> Iterator[list[ProcessIdentity]]:
    """Processes that a record may name: the driver of the job and its JVM, and four that are not of the job."""
    with contextlib.ExitStack() as stack:
        driver = ProcessIdentity.of(stack.enter_context(driving((storage.url, JOB))).pid)
        others = [jvm(driver.mark), running(), jvm(), jvm("1-1"), driving((storage.url, "another"))]
        above, below = stack.enter_context(submitted(("file:///elsewhere", JOB)))
        elsewhere = [ProcessIdentity.of(above.pid), below]
        yield [driver, *(ProcessIdentity.of(stack.enter_context(other).pid) for other in others), *elsewhere]


class TestWhateverARecordSays:
    @settings(max_examples=150)
    @given(data=st.data())
    def test_nobody_is_killed_but_the_driver_and_its_jvm(
        self, storage: MemoryFileSystem, named: list[ProcessIdentity], data: st.DataObject
    ) -> None:
        clock, file, killed = ManualClock(), HeartbeatFile(storage, JOB), set()
        living = [*named, ProcessIdentity.current(), ProcessIdentity.of(os.getppid()), ProcessIdentity.of(1)]

        listed = data.draw(st.lists(st.sampled_from(living), max_size=2))
        if data.draw(st.booleans()):
            listed = [named[0], *listed]  # the driver, which may lend its proof to others
        told = [asdict(each) for each in listed]
        is_forged = data.draw(st.booleans())
        if told and is_forged:
            told[data.draw(st.integers(0, len(told) - 1))] |= data.draw(_FORGED_PROCESS)
        record = asdict(beat(clock, named[0])) | {"processes": told} | data.draw(_FORGED_HEARTBEAT)
        storage.replace(_RECORD, json.dumps(record).encode())
        clock.advance(LEASE + 1)

        def send_kill(pid: int, handle: int | None) -> None:
            killed.add(pid)
            raise ProcessLookupError

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(processes, "_send_kill", send_kill)
            patch.setattr(processes, "_LAST_BREATH", 0.0)
            with contextlib.suppress(JobAlreadyRunning, CorruptCheckpoint):
                free_job(file, clock, clock.advance)
        assert killed <= {each.pid for each in named[:2]}

    def test_and_these_two_are_proven(self, storage: MemoryFileSystem, named: list[ProcessIdentity]) -> None:
        driver, *others = named
        proven = [each for each in named if is_proven(each, driver, (storage.url, JOB))]
        assert proven == [driver, others[0]]


class TestDamagedHeartbeat:
    @pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"null", b"\xff", b'{"processes": []}'], ids=repr)
    def test_the_holder_writes_over_it(
        self, memory: MemoryFileSystem, file: HeartbeatFile, clock: ManualClock, damage: bytes
    ) -> None:
        heart = Heart(file, clock, epoch=1, run_id="run-a")
        heart.start()
        memory.replace(_RECORD, damage)
        with pytest.raises(CorruptCheckpoint):
            free_job(file, clock, clock.advance)
        heart.hold(2)
        heartbeat = file.read()
        assert heartbeat is not None
        assert heartbeat.epoch == 2
        memory.replace(_RECORD, damage)
        heart.stop()
        heartbeat = file.read()
        assert heartbeat is not None
        assert heartbeat.stopped

    def test_but_not_when_a_newer_run_holds_the_job(
        self, memory: MemoryFileSystem, file: HeartbeatFile, clock: ManualClock
    ) -> None:
        heart = Heart(file, clock, epoch=1, run_id="run-a")
        heart.start()
        memory.create(f"{JOB}/control/epochs/e-0000000002", b"{}")
        memory.replace(_RECORD, b"{")
        heart.hold(1)
        heart.stop()
        assert memory.read(_RECORD) == b"{"

    @pytest.mark.parametrize("named", [[], [{}], ["1"], None])
    def test_one_that_names_no_process_is_refused(
        self, memory: MemoryFileSystem, file: HeartbeatFile, clock: ManualClock, gone: ProcessIdentity, named: Any
    ) -> None:
        memory.replace(_RECORD, json.dumps(asdict(beat(clock, gone)) | {"processes": named}).encode())
        with pytest.raises(CorruptCheckpoint, match="control/heartbeat"):
            free_job(file, clock, clock.advance)
