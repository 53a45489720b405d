"""A run that resumes a job begins nothing if the job is over, and an end that another run was faster with is no end."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.cleanup.dead_runs import close_earlier
from dagster_ckpt.checkpoint.control.epochs import Claim, End
from dagster_ckpt.clock import SystemClock
from dagster_ckpt.config.checkpoint_config import CheckpointConfig, JobStatus
from dagster_ckpt.config.recovery import RestoreRequest
from dagster_ckpt.config.restart import NoRestart
from dagster_ckpt.errors import Fenced, NotRestarted, SparkNotStarted
from dagster_ckpt.filesystem import FileSystem, PosixFileSystem
from dagster_ckpt.spark.job import RunResult, StreamingJob
from dagster_ckpt.spark.run.job_run import StreamingRun
from dagster_ckpt.testing import FaultInjectingFileSystem, Operation
from tests.helpers.checkpoint.driver import JOB, Ledger, Pins, Run, state


@dataclass
class Resumed:
    """A run of a job whose Spark never starts.

    Attributes:
        root: of the storage.
        sessions: how often the run has wanted Spark.
        run: the run, once it was made.
    """

    root: Path
    sessions: int = 0
    run: StreamingRun | None = None
    storage: FileSystem = field(init=False)

    def __post_init__(self) -> None:
        self.storage = PosixFileSystem(self.root / "storage")

    @property
    def catalog(self) -> CheckpointCatalog:
        return CheckpointCatalog(self.storage, JOB)

    def claim(self) -> Claim:
        """Another run takes the job over."""
        return self.catalog.records.epochs.claim(
            token=uuid.uuid4().hex, series=None, run_id="another", host="h", pid=1, now="2026-11-28T00:00:00+00:00"
        )

    def ends(self) -> list[End | None]:
        epochs = self.catalog.records.epochs
        return [epochs.read_end(epoch) for epoch in epochs.names()]

    def drive(self, series: int | None, before: Callable[[Operation], None], *, cancels: bool = False) -> RunResult:
        """Run the job; ``before`` comes before each request. ``cancels``: the run is canceled once it wants Spark."""

        def session() -> object:
            self.sessions += 1
            if cancels and self.run is not None:
                self.run.cancel()
            raise SparkNotStarted("there is no Spark here")

        job = StreamingJob(
            name=JOB,
            query=lambda _: pytest.fail("there is no session"),
            session=session,  # type: ignore[arg-type]
            config=CheckpointConfig(),
            restart=NoRestart(),
            filesystem=FaultInjectingFileSystem(self.storage, before),
            working_directory=self.root / "live",
            deployment="tests",
            inline_threshold=1024,
        )
        self.run = StreamingRun(
            job,
            run_id=uuid.uuid4().hex,
            request=RestoreRequest(),
            series=series,
            clock=SystemClock(),
            emit=lambda _: None,
        )
        return self.run.run()


@pytest.fixture
def pins(tmp_path: Path) -> Pins:
    directory = tmp_path / "pins"
    directory.mkdir()
    return Pins(directory)


@pytest.fixture
def resumed(tmp_path: Path) -> Resumed:
    return Resumed(tmp_path)


def ended(status: JobStatus) -> End:
    return End(status.value, "of the test", discarded=False, ended_at="2026-11-28T00:00:00+00:00")


def at_the_claim(act: Callable[[], object]) -> Callable[[Operation], None]:
    """Do something once, just after a run has claimed the second epoch."""
    claimed, left = False, [act]

    def before(operation: Operation) -> None:
        nonlocal claimed
        if claimed and left:
            left.pop()()
        claimed = claimed or (operation.name == "create" and operation.path.endswith(f"/e-{2:010}"))

    return before


@pytest.mark.parametrize("status", [JobStatus.FINISHED, JobStatus.CANCELED])
def test_a_run_that_resumes_a_job_that_is_over_begins_nothing(resumed: Resumed, status: JobStatus) -> None:
    """The run that was declared dead came back, and has recorded its end when the newer one had claimed already."""
    resumed.claim()
    end = ended(status)
    result = resumed.drive(1, at_the_claim(lambda: resumed.catalog.records.epochs.record_end(1, end)))
    assert (result.status, result.newest) == (status, None)
    assert resumed.sessions == 0
    assert resumed.ends() == [end, end], "nobody resumes the job once more"
    assert resumed.catalog.records.failures.of(1) == []


def test_a_run_that_finds_its_job_over_tells_the_newest_checkpoint(resumed: Resumed, pins: Pins) -> None:
    before = Run(resumed.storage, Ledger(), pins).start()
    before.checkpoint(state(1))
    taken = before.checkpoint(state(2))
    end = ended(JobStatus.FINISHED)
    result = resumed.drive(1, at_the_claim(lambda: resumed.catalog.records.epochs.record_end(1, end)))
    assert result == RunResult(JobStatus.FINISHED, taken)

    (resumed.root / "storage" / JOB / taken.reference / "_metadata").write_bytes(b"{")
    assert RunResult.of_job_over(resumed.catalog, end) == RunResult(JobStatus.FINISHED, None)


def test_nor_one_that_resumes_a_job_that_has_failed(resumed: Resumed) -> None:
    resumed.claim()
    end = ended(JobStatus.FAILED)
    with pytest.raises(NotRestarted, match="Job 'flights' ended FAILED: of the test") as raised:
        resumed.drive(1, at_the_claim(lambda: resumed.catalog.records.epochs.record_end(1, end)))
    assert "run the job again" in raised.value.hint
    assert resumed.sessions == 0
    assert resumed.ends() == [end, end]
    assert resumed.catalog.records.failures.of(1) == [], "the end of another run is no failure of this one"


def test_a_run_that_a_person_launches_begins_a_job_that_is_over(resumed: Resumed) -> None:
    resumed.claim()
    resumed.catalog.records.epochs.record_end(1, ended(JobStatus.FINISHED))
    with pytest.raises(SparkNotStarted):
        resumed.drive(None, lambda _: None)
    assert resumed.sessions == 1


def test_a_start_closes_the_epoch_of_the_run_that_it_resumes(resumed: Resumed) -> None:
    resumed.claim()
    with pytest.raises(SparkNotStarted):
        resumed.drive(1, lambda _: None)
    assert not resumed.catalog.records.epochs.record_end(1, ended(JobStatus.FINISHED))
    closed, own = resumed.ends()
    assert closed is not None
    assert (closed.status, closed.discarded) == ("FAILING", False)
    assert closed.reason == "epoch 2 was claimed before this start had recorded its end"
    assert own is not None
    assert own.status == "FAILED"


def test_a_run_whose_epoch_was_closed_is_fenced_when_it_ends(resumed: Resumed) -> None:
    """It is paused just before it records that it was canceled."""
    left = [True]

    def before(operation: Operation) -> None:
        if operation.name == "create" and operation.path.endswith(f"/e-{1:010}.end") and left:
            left.clear()
            close_earlier(resumed.catalog, resumed.claim(), SystemClock())

    with pytest.raises(Fenced, match="run another on h has claimed epoch 2"):
        resumed.drive(None, before, cancels=True)
    assert not left
    closed = resumed.ends()[0]
    assert closed is not None
    assert closed.status == "FAILING"
