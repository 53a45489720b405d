"""A spot check costs no more than it may, and look by look reads every file."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dagster_ckpt.checkpoint import CheckpointCatalog, CheckpointMetadata, spot_check
from dagster_ckpt.errors import CheckpointError, CheckpointFileChanged, CheckpointFileMissing, CheckpointNotFound
from tests.helpers.checkpoint.driver import JOB, Ledger, Pins, Run
from tests.helpers.checkpoint.memory import MemoryFileSystem

_FILES = 23


@pytest.fixture
def taken(memory: MemoryFileSystem, ledger: Ledger, pins: Pins) -> CheckpointMetadata:
    contents = {f"checkpoint/state/0/0/{number}.sst": b"a file of its own, number %d" % number for number in range(22)}
    return Run(memory, ledger, pins).start().checkpoint({**contents, "checkpoint/metadata": b"inline"}, 1)


class _Counted:
    """A storage that counts what is read of it."""

    def __init__(self, memory: MemoryFileSystem) -> None:
        self._memory = memory
        self.read_bytes = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._memory, name)
        if name not in {"checksum", "read", "fetch"}:
            return found

        def counted(*args: Any) -> Any:
            told = found(*args)
            self.read_bytes += len(told) if isinstance(told, bytes) else told.size
            return told

        return counted


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(most_files=st.integers(1, 30), most_bytes=st.integers(1, 700), damaged=st.integers(0, 21))
def test_successive_looks_read_every_file_and_none_costs_more(
    memory: MemoryFileSystem, taken: CheckpointMetadata, most_files: int, most_bytes: int, damaged: int
) -> None:
    storage = _Counted(memory)
    catalog = CheckpointCatalog(storage, JOB)  # type: ignore[arg-type]
    sizes = {file.path: file.size for file in taken.files}
    budget: Any = {"most_files": most_files, "most_bytes": most_bytes}
    after, files, looks = "", 0, 0
    while files < _FILES:
        before = storage.read_bytes
        found = spot_check(catalog, taken, after=after, **budget)
        assert 1 <= found.files <= most_files
        assert found.bytes <= max(most_bytes, *sizes.values())
        assert storage.read_bytes - before <= max(most_bytes, *sizes.values())
        after, files, looks = found.until, files + found.files, looks + 1

    file = next(file for file in taken.files if file.path.endswith(f"/{damaged}.sst"))
    stored = catalog.stored_path(taken, file.reference or "")
    whole = memory.files[stored]
    memory.files[stored] = bytes(len(whole))
    try:
        after, told = _until_red(catalog, taken, after, looks + 1, budget)
        assert f"/{damaged}.sst" in told
        with pytest.raises(CheckpointFileChanged):
            spot_check(catalog, taken, after=after, **budget)
        del memory.files[stored]
        with pytest.raises(CheckpointError) as caught:
            spot_check(catalog, taken, after="", most_files=1, most_bytes=1)
        assert type(caught.value) is CheckpointFileMissing, "a file that is gone shows at any look"
    finally:
        memory.files[stored] = whole


def _until_red(
    catalog: CheckpointCatalog, metadata: CheckpointMetadata, after: str, looks: int, budget: dict[str, int]
) -> tuple[str, str]:
    """Look so often until a file is found to be changed: where that look began, and what it told."""
    for _ in range(looks):
        try:
            after = spot_check(catalog, metadata, after=after, **budget).until
        except CheckpointFileChanged as error:
            return after, error.message
    return after, "nothing"


def test_a_checkpoint_that_was_deleted_meanwhile_is_no_broken_one(
    memory: MemoryFileSystem, taken: CheckpointMetadata
) -> None:
    catalog = CheckpointCatalog(memory, JOB)
    memory.files = {path: data for path, data in memory.files.items() if "/control/" in path}
    with pytest.raises(CheckpointNotFound):
        spot_check(catalog, taken, after="", most_files=5, most_bytes=1 << 20)
