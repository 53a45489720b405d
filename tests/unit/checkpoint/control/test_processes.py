"""What is told of a process that is gone or hidden, or whose system tells little: when in doubt, none is killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from dagster_ckpt.checkpoint import processes
from dagster_ckpt.checkpoint.control.heartbeat import HeartbeatFile, free_job
from dagster_ckpt.checkpoint.processes import DRIVER_VARIABLE, ProcessIdentity, is_proven, mark_driver
from dagster_ckpt.clock import SystemClock
from dagster_ckpt.errors import JobAlreadyRunning
from dagster_ckpt.filesystem import PosixFileSystem
from dagster_ckpt.hosts import this_host
from tests.unit.checkpoint.control.bystanders import running

JOB = ("file:///storage", "flights")


@pytest.fixture
def _without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system that tells of a process what psutil tells, and no more."""
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setenv(DRIVER_VARIABLE, "")


def test_of_a_process_that_is_gone_nothing_is_proven(gone: ProcessIdentity) -> None:
    assert not gone.is_alive()
    assert not is_proven(gone, gone, JOB)
    told = {
        "user": processes._is_of_this_user(gone.pid),
        "other user": processes._is_of_another_user(gone.pid),
        "open": processes._has_open(gone.pid, "pipe:"),
        "holds": processes._holds_input_of(os.getpid(), gone.pid),
        "submitted": processes._is_submitted(gone.pid, JOB[1]),
        "closed": processes._is_input_closed(gone.pid),
    }
    assert not any(told.values()), told
    assert processes._jvm_started_by(gone.pid) is None
    assert processes._parent_of(gone.pid) is None
    assert processes._is_with_driver(gone.pid, JOB[1]), "as long as nobody can say that it has none"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of processes in /proc")
class TestHidden:
    """Where ``/proc`` shows only the processes of a user, one of another user lives as far as anybody knows."""

    def test_its_files_may_not_be_read(self, gone: ProcessIdentity, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(path: Path) -> bytes:
            raise PermissionError(path)

        monkeypatch.setattr(Path, "read_bytes", refuse)
        assert gone.is_alive()
        assert processes._parent_of(gone.pid) is None

    def test_its_directory_is_not_shown(self, gone: ProcessIdentity, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(pid: int, number: int) -> None:
            raise PermissionError(pid, number)

        assert not gone.is_alive()
        monkeypatch.setattr(os, "kill", refuse)
        assert gone.is_alive()


@pytest.mark.usefixtures("_without_proc")
class TestWithoutProc:
    def test_a_process_is_known_by_when_it_was_created(self, bystander: subprocess.Popen[str]) -> None:
        identity = ProcessIdentity.of(bystander.pid)
        assert identity.ticks is None
        assert identity.mark == f"{bystander.pid}-{identity.created!r}"
        assert identity.is_alive()
        assert not replace(identity, created=identity.created - 2).is_alive()
        assert identity.kill()
        assert not identity.is_alive(), "an entry that its parent has not collected yet is no process"
        bystander.wait()
        assert not identity.is_alive()
        assert not identity.kill()

    def test_nothing_is_proven(self, bystander: subprocess.Popen[str]) -> None:
        identity = ProcessIdentity.of(bystander.pid)
        assert mark_driver(JOB) is None
        assert not is_proven(identity, identity, JOB)
        assert not processes._is_input_closed(bystander.pid)


@pytest.mark.parametrize(("off_by", "alive"), [(0.9, True), (-0.9, True), (1.1, False), (-1.1, False)])
def test_a_record_without_ticks_may_be_off_by_a_second(
    bystander: subprocess.Popen[str], off_by: float, alive: bool
) -> None:
    identity = replace(ProcessIdentity.of(bystander.pid), ticks=None)
    assert replace(identity, created=identity.created + off_by).is_alive() is alive


def test_what_a_process_is_known_by() -> None:
    assert ProcessIdentity("host", 7, 1.5, 9).mark == "7-9"
    assert ProcessIdentity("host", 7, 1.5).mark == "7-1.5"
    assert ProcessIdentity.current().is_this_one
    assert not replace(ProcessIdentity.current(), host="elsewhere/1").is_this_one


def test_its_age(bystander: subprocess.Popen[str]) -> None:
    identity = ProcessIdentity.of(bystander.pid)
    assert replace(identity, ticks=None).age(identity.created + 7) == pytest.approx(7)
    age, real = identity.age(0.0), time.time() - psutil.Process(bystander.pid).create_time()
    assert age == pytest.approx(real, abs=2)


def test_a_driver_is_known_by_the_same_name_to_every_release() -> None:
    """A driver of an earlier release that hangs is proven by this name, and by no other."""
    assert processes._name_of(JOB) == "dagster_ckpt-a02ba87325db7a485ed4aabf597c5d39"


def test_a_driver_that_may_open_no_more_files_drives_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> int:
        raise OSError(24, "Too many open files", name)

    monkeypatch.setattr(os, "memfd_create", refuse, raising=False)
    monkeypatch.setenv(DRIVER_VARIABLE, "")
    assert mark_driver(JOB) is None
    assert os.environ[DRIVER_VARIABLE] == ProcessIdentity.current().mark


def test_who_is_never_killed_is_known_though_its_parents_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(process: psutil.Process) -> list[psutil.Process]:
        raise psutil.NoSuchProcess(process.pid)

    known = processes._never_killed()
    assert {1, os.getpid(), os.getppid()} <= known
    monkeypatch.setattr(psutil.Process, "parents", refuse)
    assert processes._never_killed() == {1, os.getpid(), os.getppid()}


def test_a_process_of_another_host_is_not_here() -> None:
    assert replace(ProcessIdentity.current(), pid=1).is_here
    assert not ProcessIdentity("elsewhere/1", 1, 1.0).is_here
    assert not ProcessIdentity(f"{this_host()}/7", 1, 1.0).is_here, "it is in a container"


_BEATING = """
import sys, threading
from pathlib import Path
from dagster_ckpt.checkpoint.control.heartbeat import Heart, HeartbeatFile
from dagster_ckpt.checkpoint.lease import Lease
from dagster_ckpt.clock import SystemClock
from dagster_ckpt.filesystem import PosixFileSystem
file = HeartbeatFile(PosixFileSystem(Path(sys.argv[1])), "job")
Heart(file, SystemClock(), epoch=1, run_id="in the container", lease=Lease(0.1, 60)).start()
print(flush=True)
threading.Event().wait()
"""


@pytest.mark.integration
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has PID namespaces")
def test_a_driver_in_a_container_that_has_this_hosts_name_is_alive(tmp_path: Path) -> None:
    """As with `docker run --network host`, or `hostNetwork` of Kubernetes: the name is the host's, the pids are not."""
    assert shutil.which("unshare"), "unshare (package util-linux) is needed to drive as if from a container"
    container = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc")
    file = HeartbeatFile(PosixFileSystem(tmp_path), "job")
    with running(str(tmp_path), program=(*container, sys.executable, "-c", _BEATING)):
        beat = file.read()
        assert beat is not None, "the container did not start: root, or the right to make user namespaces, is needed"
        with pytest.raises(JobAlreadyRunning, match="in the container"):
            free_job(file, SystemClock(), time.sleep)
        assert beat.is_dead(SystemClock()) is None


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has handles of processes")
def test_a_handle_means_one_process_and_is_given_back() -> None:
    """By its number alone a process that took the number over meanwhile would be killed."""
    with processes._handle(os.getpid()) as handle:
        assert handle is not None
        os.fstat(handle)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(handle)


@pytest.mark.parametrize("by_handle", [True, False], ids=["by its handle", "by its number where there are no handles"])
def test_a_process_is_killed(gone: ProcessIdentity, bystander: subprocess.Popen[str], *, by_handle: bool) -> None:
    with processes._handle(bystander.pid) as handle:
        if by_handle and handle is not None:
            processes._send_kill(gone.pid, handle)
        else:
            processes._send_kill(bystander.pid, None)
    assert bystander.wait(60) == -signal.SIGKILL
