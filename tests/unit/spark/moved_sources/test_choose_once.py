"""A move that a start before this one has done is not repeated, and one that was lost is done as it was asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.catalog.newest import Newest
from dagster_ckpt.checkpoint.control.epochs import Choice
from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata
from dagster_ckpt.checkpoint.format.records import Moved
from dagster_ckpt.config.recovery import RestoreRequest
from dagster_ckpt.spark.moved_sources import choose_once
from tests.helpers.checkpoint.driver import JOB, Ledger, Pins, Run, state
from tests.helpers.checkpoint.memory import MemoryFileSystem


class _Choosing:
    """Chooses what stands behind each ``restore_from``, and tells what it was asked for."""

    def __init__(self, **there: CheckpointMetadata) -> None:
        self.there = there
        self.did: list[str] = []

    def choose(self, request: RestoreRequest) -> Newest:
        self.did.append(request.restore_from)
        metadata = self.there[request.restore_from]
        return Newest(metadata, metadata.job_id, "it is there")

    def forget(self) -> None:
        self.did.append("forget")


@pytest.fixture
def taken(memory: MemoryFileSystem, tmp_path: Path) -> list[CheckpointMetadata]:
    """A checkpoint before a move, and one after it."""
    run = Run(memory, Ledger(), Pins(tmp_path)).start()
    return [run.checkpoint(state(1)), run.checkpoint(state(2))]


def _asked(restore_from: str, taken: list[CheckpointMetadata]) -> tuple[RestoreRequest, Choice]:
    """A request, and the choice of a start that has done it between the two checkpoints."""
    request = RestoreRequest(restore_from, allow_loss=True, start_sources={"orders": "latest"})
    assert request.move is not None
    moved = Moved(request.move, f"{taken[0].job_id}/chk-{taken[0].checkpoint_id}")
    return request, Choice(taken[0].job_id, None, 1, 0, "/live", "host", None, "", moved=moved)


def test_it_goes_on_from_the_newest_and_tells_so(memory: MemoryFileSystem, taken: list[CheckpointMetadata]) -> None:
    request, previous = _asked("first", taken)
    choosing = _Choosing(first=taken[0], latest=taken[1])
    catalog = CheckpointCatalog(memory, JOB)
    target, left = choose_once(catalog, request, previous, choosing.choose, choosing.forget)
    assert (target.metadata, left, choosing.did) == (taken[1], RestoreRequest(allow_loss=True), ["latest"])
    assert target.reason.endswith(f"moved before, as asked, by {taken[0].reference}")

    for another in (replace(request, asked_by="another run"), replace(request, start_sources={"orders": "earliest"})):
        target, left = choose_once(catalog, another, previous, choosing.choose, choosing.forget)
        assert (target.metadata, left) == (taken[0], another)


@pytest.mark.parametrize(("restore_from", "did"), [("latest", ["latest"]), ("first", ["latest", "forget", "first"])])
def test_a_fallback_past_the_move_restores_what_was_asked_for(
    restore_from: str, did: list[str], memory: MemoryFileSystem, taken: list[CheckpointMetadata]
) -> None:
    """The newest checkpoint is broken, which shows when it is unpacked."""
    request, previous = _asked(restore_from, taken)
    older = replace(taken[0], checkpoint_id=0)
    choosing = _Choosing(first=taken[0], latest=older)
    target, left = choose_once(CheckpointCatalog(memory, JOB), request, previous, choosing.choose, choosing.forget)
    assert (target.metadata, left, choosing.did) == (choosing.there[restore_from], request, did)


def test_an_upgrade_that_sends_the_start_elsewhere_moves_there(
    memory: MemoryFileSystem, taken: list[CheckpointMetadata]
) -> None:
    request, previous = _asked("latest", taken)
    sent = request.sent_to("first")
    choosing = _Choosing(first=taken[0], latest=taken[1])
    target, left = choose_once(CheckpointCatalog(memory, JOB), sent, previous, choosing.choose, choosing.forget)
    assert (target.metadata, left, left.move) == (taken[0], sent, request.move)
