"""Crash, failure and lost reply at the storage operations of a job whose live location lies in the storage."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from dagster_ckpt.errors import CheckpointError
from dagster_ckpt.testing import Action, Operation, enumerate_crash_points
from dagster_ckpt.testing.crashes import actions_for
from tests.helpers.spark.stored_lives import Life

#: `make test` tries what can go wrong at each so-manieth operation.
STEP = 29


@pytest.fixture
def life(tmp_path: Path) -> Life:
    return Life(tmp_path)


def _tried(life: Life, step: int, first: int) -> None:
    def some(operation: Operation) -> Sequence[Action]:
        return actions_for(operation) if operation.sequence % step == first else ()

    result = enumerate_crash_points(
        life.fresh, life.lead, life.examine, actions=some, expected=(OSError, CheckpointError)
    )
    names = {operation.name for operation in result.operations}
    assert names >= {"copy", "stored_below", "read_stored", "remove_below", "create", "write", "read", "list"}
    assert result.runs >= len(result.operations) // step
    result.require_none()


@pytest.mark.parametrize("first", [0])
def test_some_operations_go_wrong(life: Life, first: int) -> None:
    _tried(life, STEP, first)


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
def test_every_operation_goes_wrong(life: Life) -> None:
    _tried(life, 1, 0)
