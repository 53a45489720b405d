from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.catalog.lineage import reclaimable_bytes
from dagster_ckpt.config.retention import Retention
from tests.helpers.checkpoint.driver import JOB, Ledger, Pins, Run, state
from tests.helpers.checkpoint.memory import MemoryFileSystem


def stored_bytes(memory: MemoryFileSystem, job_id: str) -> int:
    return sum(len(data) for path, data in memory.files.items() if path.startswith(f"{JOB}/{job_id}/"))


@pytest.mark.parametrize("keep", [1, 2, 5])
def test_it_is_what_subsuming_really_frees(memory: MemoryFileSystem, ledger: Ledger, pins: Pins, keep: int) -> None:
    run = Run(memory, ledger, pins).start()
    taken = [run.checkpoint(state(step)) for step in range(8)]
    told = reclaimable_bytes(CheckpointCatalog(memory, JOB), taken, {item.reference for item in taken[:-keep]})
    before = stored_bytes(memory, run.store.job_id)
    discarded = run.store.subsume(Retention(keep))
    assert [item.metadata.reference for item in discarded] == list(told)
    assert before - stored_bytes(memory, run.store.job_id) == sum(told.values()) > 0


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(st.sets(st.integers(0, 7)))
def test_what_a_kept_checkpoint_needs_is_not_counted(tmp_path: Path, discarded: set[int]) -> None:
    memory, directory = MemoryFileSystem(), tmp_path / "pinned"
    directory.mkdir(exist_ok=True)
    run = Run(memory, Ledger(), Pins(directory)).start()
    taken = [run.checkpoint(state(step)) for step in range(8)]
    told = reclaimable_bytes(CheckpointCatalog(memory, JOB), taken, {taken[index].reference for index in discarded})
    kept = [item for index, item in enumerate(taken) if index not in discarded]
    needed = {name.rpartition("/")[2] for item in kept for name in item.references}
    prefix = f"{JOB}/{run.store.job_id}/"
    alone = {f"{prefix}{item.name}/_metadata" for item in kept}
    free = sum(
        len(data)
        for path, data in memory.files.items()
        if path.startswith(prefix) and path not in alone and path.rpartition("/")[2] not in needed
    )
    assert sum(told.values()) == free
