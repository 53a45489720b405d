"""An id is above every id that was ever issued, in use or restored, up to the greatest that a name can hold."""

from __future__ import annotations

import pytest

from dagster_ckpt.checkpoint.control.issued_ids import IssuedIds
from dagster_ckpt.errors import CorruptRecord
from tests.helpers.checkpoint.driver import JOB
from tests.helpers.checkpoint.memory import MemoryFileSystem

LINEAGE = f"{1:032x}"
GREATEST = 999_999_999_999_999


@pytest.fixture
def issued(memory: MemoryFileSystem) -> IssuedIds:
    return IssuedIds(memory, JOB, LINEAGE)


@pytest.mark.parametrize(
    ("recorded", "present", "restored", "following"),
    [
        ((), (), 0, 1),
        ((), (), 7, 8),
        ((3, 4), (), 0, 5),
        ((3,), (9, 2), 0, 10),
        ((3,), (9,), 12, 13),
        ((12,), (9,), 3, 13),
    ],
)
def test_the_next_id(
    issued: IssuedIds, recorded: tuple[int, ...], present: tuple[int, ...], restored: int, following: int
) -> None:
    for number in recorded:
        issued.record(1, number)
    assert issued.next(present, restored) == following
    if not restored:
        assert issued.next(present) == following


def test_records_of_the_first_release_count_too(issued: IssuedIds, memory: MemoryFileSystem) -> None:
    directory = f"{JOB}/control/issued/{LINEAGE}"
    issued.record(2, 5)
    memory.files[f"{directory}/e-0000000001"] = b"17\n"
    memory.files[f"{directory}/notes"] = b"of somebody else"
    assert issued.next(()) == 18
    assert issued.epochs() == {1, 2}
    issued.forget(2, 5)
    assert issued.epochs() == {1}
    memory.files[f"{directory}/e-0000000001"] = b"many"
    with pytest.raises(CorruptRecord, match="does not hold the number of a checkpoint"):
        issued.next(())


def test_the_greatest_id_and_those_of_known_epochs_are_kept(issued: IssuedIds, memory: MemoryFileSystem) -> None:
    directory = f"{JOB}/control/issued/{LINEAGE}"
    for epoch, number in [(1, 3), (2, 8), (3, 4), (4, 7), (5, 6)]:
        issued.record(epoch, number)
    memory.files[f"{directory}/e-0000000001"] = b"2\n"
    memory.files[f"{directory}/notes"] = b"of somebody else"
    issued.forget_before(7, {3, 5})
    assert sorted(path.rpartition("/")[2] for path in memory.files) == [
        "e-0000000001",  # of the first release, which wrote a single one for each epoch
        "e-0000000002-000000000000008",  # of a writer that was declared dead and came back
        "e-0000000003-000000000000004",
        "e-0000000004-000000000000007",
        "e-0000000005-000000000000006",
        "notes",
    ]
    assert issued.next(()) == 9


def test_the_greatest_id_is_the_last(issued: IssuedIds) -> None:
    assert issued.next((GREATEST - 1,)) == GREATEST
    for present, restored in [((GREATEST,), 0), ((), GREATEST)]:
        with pytest.raises(CorruptRecord, match="no job has had that many checkpoints"):
            issued.next(present, restored)
