from __future__ import annotations

from dataclasses import replace

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.catalog.lineage import for_retention, line_before, line_of_descent, older_than
from dagster_ckpt.checkpoint.control.taken_savepoints import RecordedSavepoint
from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata
from dagster_ckpt.config.retention import Retention
from tests.helpers.checkpoint.driver import JOB, Run, state
from tests.helpers.checkpoint.manifests import JOB_ID, MANIFEST
from tests.helpers.checkpoint.memory import MemoryFileSystem


def checkpoint(epoch: int, number: int, restored_from: int | None) -> CheckpointMetadata:
    origin = None if restored_from is None else f"{JOB_ID}/chk-{restored_from}"
    return replace(MANIFEST, epoch=epoch, checkpoint_id=number, restored_from=origin)


def numbers(start: CheckpointMetadata, completed: list[CheckpointMetadata]) -> list[int]:
    return [metadata.checkpoint_id for metadata in line_of_descent(start, completed)]


def test_restarts_from_the_newest_are_one_line() -> None:
    completed = [checkpoint(1, 1, None), checkpoint(1, 2, None), checkpoint(2, 3, 2), checkpoint(3, 4, 3)]
    assert numbers(completed[-1], completed) == [1, 2, 3, 4]


def test_what_a_rollback_went_back_behind_is_not_of_the_line() -> None:
    completed = [checkpoint(1, number, None) for number in (1, 2, 3, 4)] + [checkpoint(2, 5, 2), checkpoint(3, 6, 5)]
    assert numbers(completed[-1], completed) == [1, 2, 5, 6]
    assert numbers(completed[3], completed) == [1, 2, 3, 4], "the abandoned line is still a line of its own"


def test_a_salvage_descends_from_the_run_it_was_salvaged_from() -> None:
    salvage = replace(checkpoint(2, 3, 2), kind="salvage")
    completed = [checkpoint(1, 1, None), checkpoint(1, 2, None), salvage, checkpoint(2, 4, 3)]
    assert numbers(completed[-1], completed) == [1, 2, 3, 4]


def test_an_ancestor_that_is_gone_ends_the_line() -> None:
    completed = [checkpoint(1, 1, None), checkpoint(2, 5, 3), checkpoint(2, 6, 3)]
    assert numbers(completed[-1], completed) == [5, 6]


def test_a_line_goes_on_behind_a_savepoint_of_the_lineage_that_is_on_record() -> None:
    at = "/savepoints/of the user's"
    restored = [replace(checkpoint(2, number, None), restored_from=at) for number in (5, 6)]
    completed = [checkpoint(1, 1, None), checkpoint(1, 2, None), checkpoint(1, 4, None), *restored]
    saved = RecordedSavepoint(JOB_ID, 1, 3, None, at)
    line = line_of_descent(completed[-1], completed, [saved])
    assert [metadata.checkpoint_id for metadata in line] == [1, 2, 5, 6]
    assert numbers(completed[-1], completed) == [5, 6], "without the record nobody can know"


def test_retention_drops_abandoned_checkpoints_first() -> None:
    completed = [checkpoint(1, 1, None), checkpoint(1, 2, None), checkpoint(2, 3, 1)]
    known = for_retention(
        [replace(item, written_at=f"2026-01-0{item.checkpoint_id}T00:00:00+00:00") for item in completed]
    )
    assert [(item.name[-5:], item.key, item.abandoned) for item in known] == [
        ("chk-1", (1, 1), False),
        ("chk-2", (1, 2), True),
        ("chk-3", (2, 3), False),
    ]
    assert known[2].written_at - known[0].written_at == 2 * 86_400
    decisions = Retention(2).decide(known, 0)
    assert [decision.keep for decision in decisions] == [True, False, True]
    assert decisions[1].reason.startswith("a rollback has abandoned it"), "it is one of the two newest by its number"
    assert for_retention([]) == []


def test_an_unreadable_checkpoint_is_on_the_line_and_has_one(run: Run, memory: MemoryFileSystem) -> None:
    taken = [run.checkpoint(state(step), step) for step in range(4)]
    first, second, third, last = (metadata.reference for metadata in taken)
    memory.replace(f"{JOB}/{second}/_metadata", b"damaged")
    catalog = CheckpointCatalog(memory, JOB)
    assert line_before(catalog, taken[-1]) == [third, second, first]
    assert line_before(catalog, second) == [first]
    assert [metadata.reference for metadata in older_than(catalog, last)] == [third, first]
    assert line_before(catalog, "no checkpoint") == []
