"""Which batches after a checkpoint a sink that cannot go back may have, where the job forgets more than the sink."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.control.epochs import End
from dagster_ckpt.checkpoint.control.plan_archive import PlanArchiveWriter, PlannedBatch
from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata
from dagster_ckpt.clock import iso
from dagster_ckpt.config import LATEST, RestoreRequest
from dagster_ckpt.spark.preflight.checkpoint_checks import replay_finding
from dagster_ckpt.spark.preflight.start_checks import _later
from dagster_ckpt.spark.sinks.user_sinks import ForeachBatchSink
from dagster_ckpt.spark.verdict import Verdict
from tests.helpers.checkpoint.driver import JOB, Ledger, Pins, Run, state
from tests.helpers.checkpoint.memory import MemoryFileSystem

if TYPE_CHECKING:
    from dagster_ckpt.spark.preflight.start_checks import ProposedStart


class Job:
    """A job that has run batches up to 63: checkpoints at 10, 40 and 60, of which it retains the newest."""

    def __init__(self, root: Path, planned: int = 63) -> None:
        self.filesystem = MemoryFileSystem()
        self.run = Run(self.filesystem, Ledger(), Pins(root)).start()
        epoch = self.run.claim.epoch
        archive = PlanArchiveWriter(self.filesystem, JOB, self.run.store.job_id, epoch, lambda: None)
        archive.begin(-1, None, [])
        taken: list[CheckpointMetadata] = []
        for step, last in enumerate((10, 40, 60), start=1):
            first = taken[-1].batch + 1 if taken else 0
            archive.append([_plan(batch) for batch in range(first, last + 1)])
            taken.append(self.run.checkpoint(state(step), last))
            archive.pack(taken[-1:])
        archive.append([_plan(batch) for batch in range(61, planned + 1)])
        self.taken = taken
        self.catalog = CheckpointCatalog(self.filesystem, JOB)

    def damage(self, name: str) -> None:
        (path,) = [path for path in self.filesystem.files if name in path]
        self.filesystem.files[path] = b"{"

    def discard(self) -> None:
        end = End("FINISHED", "stop", True, iso(0.0))
        self.run.catalog.records.epochs.record_end(self.run.claim.epoch, end)
        self.run.store.discard_all("the job is over")

    def later(self, restored: CheckpointMetadata, location: Path, **change: Any) -> list[int]:
        """What a launch from ``restored`` knows of later batches."""
        same = {"can_choose_anew": False, "elsewhere": "", "catalog": self.catalog, "origin": self.catalog}
        asked = {"request": RestoreRequest(restore_from="/savepoints/s"), "location": location}
        start = SimpleNamespace(**{**same, **asked, **change})
        known = [plan.batch for plan in self.catalog.records.plans(restored.job_id).after(restored)]
        return _later(cast("ProposedStart", start), restored, known)


def _plan(batch: int) -> PlannedBatch:
    return PlannedBatch(batch, {f"offsets/{batch}": "v1"})


@pytest.mark.parametrize(
    ("planned", "lose", "last"),
    [
        (63, lambda job: None, 63),
        (63, lambda job: job.damage("chk-3/_metadata"), 63),
        (63, lambda job: job.discard(), 63),
        (60, lambda job: None, 60),
        (60, lambda job: job.damage("chk-3/_metadata"), 11),  # the id of chk-3 alone is left
        (60, lambda job: job.discard(), 11),
    ],
    ids=["whole", "unreadable", "discarded", "whole-at-60", "unreadable-at-60", "discarded-at-60"],
)
def test_an_older_savepoint_is_refused_whatever_is_left_of_the_job(
    tmp_path: Path, planned: int, lose: Callable[[Job], None], last: int
) -> None:
    """The sink tells nothing, and the plans of batches 11 to 60 are forgotten."""
    job = Job(tmp_path, planned)
    lose(job)
    later = job.later(job.taken[0], tmp_path)
    assert (later[0], later[-1]) == (11, last)
    sink = ForeachBatchSink("delays", lambda rows, batch: None)
    assert replay_finding(job.taken[0], sink, "foreachBatch", [], later).verdict is Verdict.WITH_LOSS


def test_plans_that_cannot_be_read_may_be_of_later_batches(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.damage("/begin")
    start = SimpleNamespace(
        can_choose_anew=False,
        elsewhere="",
        catalog=job.catalog,
        origin=job.catalog,
        request=RestoreRequest(restore_from="/savepoints/s", replay_to="none"),
        location=tmp_path,
    )
    assert _later(cast("ProposedStart", start), job.taken[2], []) == [61]


@pytest.mark.parametrize(
    "lose", [lambda job: None, lambda job: job.damage("chk-2/_metadata"), lambda job: job.discard()]
)
def test_the_newest_is_followed_by_nothing(tmp_path: Path, lose: Callable[[Job], None]) -> None:
    job = Job(tmp_path, planned=60)
    lose(job)
    assert job.later(job.taken[2], tmp_path) == []


@pytest.mark.parametrize(
    "change",
    [
        {"request": RestoreRequest(restore_from=LATEST)},
        {"request": RestoreRequest(fork_from="/sp")},
        {"elsewhere": "the sink before"},
        {"origin": object()},
        {"can_choose_anew": True},
    ],
)
def test_only_batches_of_the_job_itself_in_this_sink_count(tmp_path: Path, change: dict[str, Any]) -> None:
    """And only where an older checkpoint is asked for."""
    job = Job(tmp_path)
    assert job.later(job.taken[0], tmp_path, **change) == []
