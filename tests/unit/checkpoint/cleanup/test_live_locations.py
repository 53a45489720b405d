"""Which directories are the live locations of earlier starts, by their names."""

from __future__ import annotations

import pytest

from dagster_ckpt.checkpoint.cleanup.live_locations import epoch_of_start, stored_before
from tests.helpers.checkpoint.memory import MemoryFileSystem


@pytest.mark.parametrize(
    ("name", "epoch"),
    [
        ("000012-0123abcd", 12),
        ("1234567-0123abcd", 1_234_567),
        ("000012-0123abcd.salvage", 12),
        ("12-0123abcd", None),
        ("000012-0123abc", None),
        ("000012-0123abcd.backup", None),
        ("notes", None),
    ],
)
def test_the_name_of_a_start_tells_its_epoch(name: str, epoch: int | None) -> None:
    assert epoch_of_start(name) == epoch


def test_those_of_earlier_starts_are_found_and_nothing_else(memory: MemoryFileSystem) -> None:
    for name in ("000003-00000000", "000001-00000000", "000002-00000000", "notes"):
        memory.create(f"job/taskowned/{name}/offsets/0", b"v1")
    memory.create("job/taskowned/000001-11111111", b"a file")
    found = stored_before(memory, "job", 3)
    assert found == ["job/taskowned/000001-00000000", "job/taskowned/000002-00000000"]
