"""Several processes look at the jobs of a bucket: whatever befalls those, all jobs are told, and no process stays."""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from dagster_ckpt.checkpoint import job_states
from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.job_states import JobState, job_state, states_of_jobs
from dagster_ckpt.clock import SystemClock
from dagster_ckpt.filesystem import HdfsFileSystem, PosixFileSystem
from dagster_ckpt.filesystem.buckets import ObjectFileSystem
from dagster_ckpt.testing import Fail, FaultInjectingFileSystem, Operation
from tests.helpers.orchestration.stored_job import StoredJob, run_id
from tests.unit.checkpoint.many_looks import INTERRUPTED

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody forks")

_STATES = ["RUNNING", "DEAD", "RUNNING", "STARTING", "INTERRUPTED", "FINISHED", "FINISHED"]
NAMES = [f"job-{number}" for number in range(len(_STATES))]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory with seven jobs."""
    root = tmp_path / "storage"
    for name, state in zip(NAMES, _STATES, strict=True):
        job = StoredJob(root, name)
        claim = job.claim(run_id())
        if state != "STARTING":
            job.checkpoint(job.choose(claim), 3)
            job.beat(claim, alive=state == "RUNNING", stopped=state in {"INTERRUPTED", "FINISHED"})
        if state == "FINISHED":
            job.end(claim, state, "x" * 200_000)  # no pipe holds an answer with that until somebody reads
    return root


@pytest.fixture
def processes(tmp_path: Path) -> Path:
    """A directory with a file for each process that looks."""
    (directory := tmp_path / "processes").mkdir()
    return directory


@pytest.fixture
def storage(root: Path, monkeypatch: pytest.MonkeyPatch) -> FaultInjectingFileSystem:
    """As a bucket with enough jobs for three processes."""
    monkeypatch.setattr(job_states, "_JOBS_OF_A_PROCESS", 2)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2})
    storage = FaultInjectingFileSystem(PosixFileSystem(root))
    storage.is_distant, storage.is_worth_forking = True, ObjectFileSystem.is_worth_forking
    return storage


@dataclass(frozen=True)
class _InAnotherProcess:
    """What befalls every process but one that reads a heartbeat; each leaves a file that is named like it."""

    one: int
    directory: Path
    befalls: str = "nothing"

    def __call__(self, operation: Operation) -> Fail | None:
        (self.directory / str(os.getpid())).touch()
        if os.getpid() == self.one or not operation.path.endswith("heartbeat"):
            return None
        if self.befalls == "a kill":
            os.kill(os.getpid(), signal.SIGKILL)
        return Fail() if self.befalls == "an error" else None


def _without_seconds(found: JobState | None) -> JobState | None:
    return found and replace(found, due_seconds=None)


def _check_told(storage: FaultInjectingFileSystem, processes: Path, befalls: str = "nothing") -> int:
    """Look at all jobs, and at each alone; how many processes have looked."""
    storage.plan = _InAnotherProcess(os.getpid(), processes, befalls)
    found = states_of_jobs(storage, NAMES, SystemClock())
    assert not multiprocessing.active_children()
    storage.plan = lambda _: None
    alone = [job_state(CheckpointCatalog(storage, name), SystemClock()) for name in NAMES]
    assert [item.state for item in alone] == _STATES
    assert list(map(_without_seconds, found)) == list(map(_without_seconds, alone))
    return len(list(processes.iterdir()))


@pytest.mark.parametrize("befalls", ["nothing", "a kill", "an error"])
def test_each_job_is_told_as_alone(storage: FaultInjectingFileSystem, processes: Path, befalls: str) -> None:
    assert _check_told(storage, processes, befalls) == 3


@pytest.mark.parametrize("started", [0, 1])
def test_a_host_that_gives_no_more_processes_looks_with_those_that_there_are(
    storage: FaultInjectingFileSystem, processes: Path, monkeypatch: pytest.MonkeyPatch, started: int
) -> None:
    fork = os.fork
    forks: list[int] = []

    def refused() -> int:
        forks.append(len(forks))
        if len(forks) > started:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return fork()

    monkeypatch.setattr(os, "fork", refused)
    assert _check_told(storage, processes) == 1 + started
    assert len(forks) == started + 1, "and asks for no further one"


def test_no_process_is_forked_for_hdfs_where_each_would_start_a_jvm(
    storage: FaultInjectingFileSystem, processes: Path
) -> None:
    storage.is_worth_forking = HdfsFileSystem.is_worth_forking
    assert _check_told(storage, processes) == 1


@pytest.fixture
def looking(root: Path, processes: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that waits for two that it has forked, which stay."""
    command = [sys.executable, "-m", "tests.unit.checkpoint.many_looks", str(root), str(processes)]
    pipe, until = subprocess.PIPE, time.monotonic() + 120
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as process:
        try:
            while len(list(processes.iterdir())) < 3:
                assert process.poll() is None, process.communicate()
                assert time.monotonic() < until
                time.sleep(0.02)
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_none_outlives_the_one_that_has_forked_it(looking: subprocess.Popen[str], number: signal.Signals) -> None:
    looking.send_signal(number)
    said = looking.communicate(timeout=120)  # of all: each has inherited both
    assert (looking.returncode, said) == (-number, ("", ""))


def test_ctrl_c_ends_all_and_no_forked_one_says_anything(looking: subprocess.Popen[str]) -> None:
    os.killpg(looking.pid, signal.SIGINT)
    said = looking.communicate(timeout=120)
    assert (looking.returncode, said) == (INTERRUPTED, ("", ""))


def test_ctrl_c_is_left_to_the_one_that_has_forked(looking: subprocess.Popen[str], processes: Path) -> None:
    for process in [int(path.name) for path in processes.iterdir() if path.name.isdigit()]:
        os.kill(process, signal.SIGINT)
    (processes / "go").touch()
    said = looking.communicate(timeout=120)
    assert (looking.returncode, said) == (0, (" ".join(_STATES), ""))
