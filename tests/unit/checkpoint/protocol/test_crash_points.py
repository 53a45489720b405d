"""Crash, failure and lost reply at every storage operation of a job's life."""

from __future__ import annotations

from pathlib import Path

import pytest

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.errors import CheckpointError
from dagster_ckpt.filesystem import FileSystem
from dagster_ckpt.testing import Fail, Flip, enumerate_crash_points
from tests.helpers.checkpoint.driver import JOB, Ledger, Pins, Run, state
from tests.helpers.checkpoint.memory import MemoryFileSystem
from tests.unit.checkpoint.protocol.lives import FLIPPED, SCENARIOS, Life


@pytest.fixture
def life(tmp_path: Path) -> Life:
    (tmp_path / "pins").mkdir()
    return Life(Pins(tmp_path / "pins"))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_operation_may_crash_fail_or_lose_its_reply(life: Life, scenario: str) -> None:
    result = enumerate_crash_points(
        life.fresh, getattr(life, scenario), life.examine, expected=(OSError, CheckpointError)
    )
    assert len(result.operations) > 30
    assert result.runs > 2 * len(result.operations)
    result.require_none()


def test_a_flipped_bit_is_never_restored(life: Life) -> None:
    """Neither of what is stored nor of what is read."""
    result = enumerate_crash_points(
        life.fresh,
        life.restored,
        lambda storage, ledger: None,
        actions=lambda operation: [Flip(5)] if operation.name in FLIPPED and "/control/" not in operation.path else [],
        expected=(OSError, CheckpointError),
    )
    assert result.runs >= 5
    result.require_none()


def test_what_fails_leaves_no_file_behind(life: Life) -> None:
    """One failure of the storage while a checkpoint is written: its files are gone when `write` returns."""

    def one_checkpoint(storage: FileSystem, ledger: Ledger) -> None:
        run = Run(storage, ledger, life.pins).start()
        run.checkpoint(state(1), 1)
        run.checkpoint(state(2), 2)

    def nothing_unreachable(storage: FileSystem, ledger: Ledger) -> None:
        assert isinstance(storage, MemoryFileSystem)
        catalog = CheckpointCatalog(storage, JOB)
        needed = {
            f"{JOB}/{job_id}/{name.removeprefix('../')}"
            for job_id in catalog.job_ids()
            for metadata in catalog.completed(job_id)[0]
            for name in metadata.references
        }
        assert {name for name in storage.files if "/shared/" in name} <= needed

    result = enumerate_crash_points(
        life.fresh,
        one_checkpoint,
        nothing_unreachable,
        actions=lambda operation: [Fail()] if operation.name not in {"remove", "remove_directory"} else [],
        expected=(OSError, CheckpointError),
    )
    result.require_none()
