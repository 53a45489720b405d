"""What a job goes on from when its newest checkpoints are in quarantine, and a checkpoint that is deleted meanwhile."""

from __future__ import annotations

import pytest

from dagster_ckpt.checkpoint.catalog import newest as newest_module
from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.catalog.newest import find_newest, read_newest
from dagster_ckpt.checkpoint.control.epochs import Epochs
from dagster_ckpt.checkpoint.control.quarantine import Quarantine, Quarantined
from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata
from dagster_ckpt.errors import CheckpointNotFound, CorruptCheckpoint
from dagster_ckpt.filesystem import FileSystem
from tests.helpers.checkpoint.driver import JOB, Ledger, Pins, Run, state
from tests.helpers.checkpoint.memory import MemoryFileSystem

LINEAGE = f"{1:032x}"


def put_away(storage: FileSystem, *numbers: int) -> None:
    """As the newest start does."""
    epoch = Epochs(storage, JOB).highest()
    for number in numbers:
        name = f"{LINEAGE}/chk-{number}"
        Quarantine(storage, JOB).add(Quarantined(name, f"File {number} is gone.", epoch, "run", "host", "then"))


@pytest.fixture
def three(run: Run) -> Run:
    for step in range(3):
        run.checkpoint(state(step))
    return run


@pytest.mark.parametrize(
    ("away", "found", "past"),
    [
        ((), 3, ()),
        ((3,), 2, (3,)),
        ((2, 3), 1, (3, 2)),
        ((2,), 3, ()),
        ((1, 3), 2, (3,)),
    ],
)
def test_the_newest_that_is_not_in_quarantine(
    three: Run, memory: MemoryFileSystem, away: tuple[int, ...], found: int, past: tuple[int, ...]
) -> None:
    put_away(memory, *away)
    newest = find_newest(CheckpointCatalog(memory, JOB))
    assert newest.metadata is not None
    assert newest.metadata.checkpoint_id == found
    assert newest.passed_over == tuple(f"{LINEAGE}/chk-{number}" for number in past)
    told = f", past {', '.join(f'chk-{number}' for number in past)} in quarantine" if past else ""
    assert newest.reason == f"chk-{found} is the newest complete checkpoint (epoch 1){told}"


def test_the_line_of_descent_when_what_the_job_began_with_is_in_quarantine(
    three: Run, memory: MemoryFileSystem, ledger: Ledger, pins: Pins
) -> None:
    Run(memory, ledger, pins).start()
    put_away(memory, 3)
    newest = find_newest(CheckpointCatalog(memory, JOB))
    assert newest.reason == "chk-2 is the newest checkpoint on the line of descent, past chk-3 in quarantine"
    put_away(memory, 2)
    newest = find_newest(CheckpointCatalog(memory, JOB))
    assert newest.reason == "chk-1 is the newest checkpoint on the line of descent, past chk-3, chk-2 in quarantine"
    assert newest.passed_over == (f"{LINEAGE}/chk-3", f"{LINEAGE}/chk-2")


@pytest.mark.parametrize("has_started_again", [False, True])
def test_with_all_in_quarantine_the_error_names_the_newest_to_go_back_to(
    three: Run, memory: MemoryFileSystem, ledger: Ledger, pins: Pins, *, has_started_again: bool
) -> None:
    if has_started_again:
        Run(memory, ledger, pins).start()
    put_away(memory, 1, 2, 3)
    with pytest.raises(CorruptCheckpoint) as caught:
        find_newest(CheckpointCatalog(memory, JOB))
    names = [f"{LINEAGE}/chk-{number}" for number in (3, 2, 1)]
    assert f"{', '.join(names)} are in quarantine. File 3 is gone. File 2 is gone. File 1" in caught.value.message
    assert f"launch with restore_from: {names[0]}," in caught.value.hint
    assert caught.value.checkpoint == names[-1]


def test_the_only_one_is_in_quarantine(run: Run, memory: MemoryFileSystem) -> None:
    run.checkpoint(state(0))
    put_away(memory, 1)
    with pytest.raises(CorruptCheckpoint, match=r"chk-1 is in quarantine\. File 1"):
        find_newest(CheckpointCatalog(memory, JOB))


class TestReading:
    def test_without_a_checkpoint_nothing_is_read(self, run: Run, memory: MemoryFileSystem) -> None:
        newest, read = read_newest(CheckpointCatalog(memory, JOB), lambda _: pytest.fail("there is nothing to read"))
        assert (newest.metadata, read) == (None, None)

    @pytest.mark.parametrize("deleted", [0, 1, newest_module._MOST_READS - 1])
    def test_a_checkpoint_that_is_deleted_meanwhile_is_looked_for_again(
        self, three: Run, memory: MemoryFileSystem, deleted: int
    ) -> None:
        left = [CheckpointNotFound("it was deleted")] * deleted

        def read(metadata: CheckpointMetadata) -> int:
            if left:
                raise left.pop()
            return metadata.checkpoint_id

        newest, found = read_newest(CheckpointCatalog(memory, JOB), read)
        assert newest.metadata is not None
        assert found == newest.metadata.checkpoint_id == 3

    def test_but_not_for_ever(self, three: Run, memory: MemoryFileSystem) -> None:
        tried = []

        def read(metadata: CheckpointMetadata) -> int:
            tried.append(metadata)
            raise CheckpointNotFound("it was deleted")

        with pytest.raises(CheckpointNotFound, match="it was deleted"):
            read_newest(CheckpointCatalog(memory, JOB), read)
        assert len(tried) == 10
