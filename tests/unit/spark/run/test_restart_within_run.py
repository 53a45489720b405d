"""A restart within a run claims the epoch after the run's own, or ends: a run that was overtaken takes nothing back."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pytest

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.control.epochs import Claim
from dagster_ckpt.checkpoint.control.failures import Failure
from dagster_ckpt.checkpoint.control.heartbeat import Heartbeat
from dagster_ckpt.checkpoint.lease import Lease
from dagster_ckpt.checkpoint.processes import ProcessIdentity
from dagster_ckpt.clock import SystemClock
from dagster_ckpt.config.checkpoint_config import CheckpointConfig, JobStatus
from dagster_ckpt.config.recovery import RestoreRequest
from dagster_ckpt.config.restart import FailureRateRestart, FixedDelayRestart, RestartStrategy
from dagster_ckpt.errors import Fenced, JavaNotFound, SparkNotStarted, StorageError
from dagster_ckpt.filesystem import FileSystem, PosixFileSystem
from dagster_ckpt.spark.events import Event, Restarting
from dagster_ckpt.spark.job import RunResult, StreamingJob
from dagster_ckpt.spark.run.job_run import StreamingRun
from dagster_ckpt.testing import Action, Fail, FailAfter, FaultInjectingFileSystem, Operation
from tests.helpers.checkpoint.driver import JOB
from tests.helpers.mounts import fill, mounted


def no_spark() -> object:
    raise SparkNotStarted("there is no Spark here")


#: The holder of a job that has died on another host: whoever takes the job over watches its beat for three seconds.
ELSEWHERE = Heartbeat(
    7,
    "a" * 32,
    (ProcessIdentity("elsewhere/boot", 4242, 1.0, 5),),
    7,
    SystemClock().time(),
    uptime=1.0,
    lease=Lease(1.0, 3.0),
)


@dataclass
class Restarted:
    """A run whose Spark never starts, so that it restarts until its strategy allows no more.

    Attributes:
        root: of the storage.
        session: starts Spark.
        meanwhile: called at each restart, while the run waits.
        filesystem: as the run sees the storage.
        restarts: how often the run may restart.
        restart: the strategy, if it is not to count the restarts only.
        errors: why the run has restarted.
    """

    root: Path
    session: Callable[[], object] = no_spark
    meanwhile: Callable[[], object] = list
    filesystem: FileSystem = field(init=False)
    restarts: int = 2
    restart: RestartStrategy | None = None
    errors: list[str] = field(default_factory=list)
    made: StreamingRun | None = None

    def __post_init__(self) -> None:
        self.filesystem = PosixFileSystem(self.root / "storage")

    @property
    def catalog(self) -> CheckpointCatalog:
        return CheckpointCatalog(PosixFileSystem(self.root / "storage"), JOB)

    def claims(self) -> list[Claim | None]:
        epochs = self.catalog.records.epochs
        return [epochs.read_claim(epoch) for epoch in epochs.names()]

    def ends(self) -> list[tuple[str, str] | None]:
        """The status and the reason of each epoch's end."""
        epochs = self.catalog.records.epochs
        ends = [epochs.read_end(epoch) for epoch in epochs.names()]
        return [None if end is None else (end.status, end.reason) for end in ends]

    def cancel(self, *, interrupted: bool = False) -> None:
        assert self.made is not None
        if interrupted:
            self.made.interrupt()
        else:
            self.made.cancel()

    def run(self) -> RunResult:
        def emit(event: Event) -> None:
            if isinstance(event, Restarting):
                self.errors.append(event.error)
                self.meanwhile()

        job = StreamingJob(
            name=JOB,
            query=lambda _: pytest.fail("there is no session"),
            session=self.session,  # type: ignore[arg-type]
            config=CheckpointConfig(),
            restart=self.restart or FixedDelayRestart(self.restarts, timedelta(milliseconds=1)),
            filesystem=self.filesystem,
            working_directory=self.root / "live",
            deployment="tests",
            inline_threshold=1024,
        )
        self.made = StreamingRun(
            job, run_id=uuid.uuid4().hex, request=RestoreRequest(), series=None, clock=SystemClock(), emit=emit
        )
        return self.made.run()


@pytest.fixture
def restarted(tmp_path: Path) -> Restarted:
    return Restarted(tmp_path)


def overtake(job: Restarted) -> None:
    job.catalog.records.epochs.claim(
        token=uuid.uuid4().hex, series=1, run_id="overtaking", host="elsewhere", pid=1, now="2026"
    )


def test_each_restart_claims_the_next_epoch(restarted: Restarted) -> None:
    with pytest.raises(SparkNotStarted):
        restarted.run()
    claims = [claim for claim in restarted.claims() if claim is not None]
    assert [(claim.epoch, claim.series) for claim in claims] == [(1, 1), (2, 1), (3, 1)]
    assert len({claim.run_id for claim in claims}) == 1


def test_a_clock_that_was_ahead_once_switches_no_limit_off(restarted: Restarted) -> None:
    """The run before failed on a host that had booted with a clock two days ahead."""

    def count() -> None:
        if len(restarted.errors) == 1:
            ahead = Failure("run-ahead", 1, SystemClock().time() + 2 * 86_400, None, "it failed")
            restarted.catalog.records.failures.record(1, ahead)
        if len(restarted.errors) > 9:
            restarted.cancel()

    restarted.restart = FailureRateRestart(4, timedelta(hours=1), timedelta(milliseconds=1))
    restarted.meanwhile = count
    with pytest.raises(SparkNotStarted):
        restarted.run()
    assert len(restarted.errors) == 3, "with that of the run before, the fifth failure within an hour is one too many"


@pytest.mark.parametrize("interrupted", [True, False])
def test_a_run_that_is_to_end_while_it_watches_a_lease(interrupted: bool, restarted: Restarted) -> None:
    """It claims nothing, and asks the storage no more: it did so as often as the storage answered."""
    restarted.catalog.records.heartbeat.write(ELSEWHERE)
    looks: list[str] = []

    def look(operation: Operation) -> Action | None:
        if operation.name.startswith("read") and operation.path.endswith("heartbeat"):
            looks.append(operation.name)
            if len(looks) == 2:
                restarted.cancel(interrupted=interrupted)
        return None

    restarted.filesystem = FaultInjectingFileSystem(restarted.filesystem, look)
    result = restarted.run()
    assert (result.status, result.newest) == (JobStatus.CANCELED, None)
    assert len(looks) == 2
    assert restarted.claims() == []


def test_a_run_that_is_interrupted_before_its_claim_claims_nothing(restarted: Restarted) -> None:
    """Where nobody holds the job, and nothing is waited for."""

    def cancel(operation: Operation) -> Action | None:
        if operation.name.startswith("read") and operation.path.endswith("heartbeat"):
            restarted.cancel(interrupted=True)
        return None

    restarted.filesystem = FaultInjectingFileSystem(restarted.filesystem, cancel)
    assert restarted.run().status is JobStatus.CANCELED
    assert restarted.claims() == []


def test_a_run_whose_heart_cannot_start_leaves_the_job_to_the_next(
    restarted: Restarted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host has no room for its thread; the next run may be one of the same process."""
    start = threading.Thread.start

    def full(thread: threading.Thread) -> None:
        if thread.name == "dagster-ckpt-heart":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", full)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        restarted.run()
    monkeypatch.undo()
    with pytest.raises(SparkNotStarted):
        restarted.run()
    heartbeat = restarted.catalog.records.heartbeat.read()
    assert heartbeat is not None
    assert heartbeat.stopped


def test_a_run_that_was_overtaken_while_it_waited_does_not_take_the_job_back(restarted: Restarted) -> None:
    restarted.meanwhile = lambda: overtake(restarted)
    with pytest.raises(Fenced, match="run overtaking on elsewhere has claimed epoch 2"):
        restarted.run()
    assert [claim.run_id for claim in restarted.claims() if claim is not None][1:] == ["overtaking"]
    assert len(restarted.errors) == 1


def test_nor_does_a_run_that_was_cut_off_from_its_storage_meanwhile(restarted: Restarted) -> None:
    """Its first claims fail; when the link heals, another run holds the job."""
    away = 3

    def cut_off(operation: Operation) -> Action | None:
        nonlocal away
        if restarted.errors and operation.name == "list" and operation.path.endswith("/epochs"):
            away -= 1
            if away == 0:
                overtake(restarted)
            return Fail() if away >= 0 else None
        return None

    restarted.restarts = 9
    restarted.filesystem = FaultInjectingFileSystem(restarted.filesystem, cut_off)
    with pytest.raises(Fenced, match="run overtaking"):
        restarted.run()
    assert len(restarted.errors) > 1, "it has tried again while the storage was away"
    assert len(restarted.claims()) == 2


def test_a_claim_whose_reply_was_lost_is_the_runs_own(restarted: Restarted) -> None:
    """Nobody has overtaken the run: the epoch that the storage shows next is the run's."""
    lost = 1

    def lose(operation: Operation) -> Action | None:
        nonlocal lost
        if restarted.errors and operation.name == "create" and "/epochs/e-" in operation.path and lost:
            if operation.path.endswith((".end", ".choice")):
                return None
            lost -= 1
            return FailAfter()
        return None

    restarted.filesystem = FaultInjectingFileSystem(restarted.filesystem, lose)
    with pytest.raises(SparkNotStarted):
        restarted.run()
    assert not lost
    assert [claim.epoch for claim in restarted.claims() if claim is not None] == [1, 2]
    assert len(restarted.errors) == 2


@pytest.mark.parametrize("action", [Fail, FailAfter], ids=["failed", "unheard"])
def test_a_cancellation_after_a_claim_that_failed_is_on_record(
    restarted: Restarted, action: type[Fail | FailAfter]
) -> None:
    """The epoch of the start has an end already, by which the sensor would resume the job."""
    trouble: list[Action] = [action()]

    def fail(operation: Operation) -> Action | None:
        is_claim = operation.name == "create" and operation.path.endswith(f"/e-{2:010}")
        return trouble.pop() if is_claim and trouble else None

    restarted.meanwhile = lambda: None if trouble else restarted.cancel()
    restarted.filesystem = FaultInjectingFileSystem(restarted.filesystem, fail)
    result = restarted.run()
    assert (result.status, result.newest) == (JobStatus.CANCELED, None)
    assert len(restarted.errors) == 2
    assert restarted.ends() == [
        ("FAILING", "there is no Spark here"),
        ("CANCELED", "canceled while it waited for its restart"),
    ]
    assert len({claim.run_id for claim in restarted.claims() if claim is not None}) == 1


def test_an_end_after_a_claim_that_failed_is_on_record(restarted: Restarted) -> None:
    trouble = [Fail(), Fail()]

    def fail(operation: Operation) -> Action | None:
        is_claim = operation.name == "create" and operation.path.endswith(f"/e-{2:010}")
        return trouble.pop() if is_claim and trouble else None

    restarted.filesystem = FaultInjectingFileSystem(restarted.filesystem, fail)
    with pytest.raises(StorageError):
        restarted.run()
    (_, end) = restarted.ends()
    assert end is not None
    assert end[0] == "FAILED"


def test_a_restart_on_a_full_disk_leaves_the_reserve_to_ends(restarted: Restarted) -> None:
    disk, found = restarted.root / "storage", list[int]()
    disk.mkdir()

    def fill_up() -> None:
        fill(disk / "ballast")
        found.append(restarted.filesystem.size(f"{JOB}/control/reserve"))

    with mounted("-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)):
        restarted.meanwhile = fill_up
        with pytest.raises(StorageError, match="No space left"):
            restarted.run()
        assert found == [1 << 20, 1 << 20], "the claim that failed in between has left the reserve"
        end = restarted.catalog.records.epochs.read_end(2)
        assert end is not None
        assert end.status == "FAILED"


class LostSession:
    """As much of a session as a start first asks for: its JVM is lost just when it is asked for its version."""

    def __init__(self) -> None:
        self._jsparkSession = self._gateway_client = self

    @property
    def version(self) -> str:
        self._dagster_ckpt_ended = "it was killed by SIGKILL"
        raise ConnectionRefusedError("[Errno 111] Connection refused")


def test_the_start_after_a_lost_jvm_fails_by_its_own_error(restarted: Restarted) -> None:
    found = iter([LostSession()])

    def session() -> object:
        for lost in found:
            return lost
        raise JavaNotFound("there is no Java any more")

    restarted.session = session
    with pytest.raises(JavaNotFound, match="there is no Java any more"):
        restarted.run()
    assert restarted.errors == [f"The JVM of job '{JOB}' is gone: it was killed by SIGKILL."]
