"""What a crash, a failure or a lost reply at each storage operation leaves of a savepoint."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace

import pytest

from dagster_ckpt.checkpoint.format.layout import METADATA_FILE_NAME
from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata
from dagster_ckpt.checkpoint.taking.savepoint_files import (
    dispose_savepoint,
    write_savepoint,
)
from dagster_ckpt.errors import (
    CheckpointError,
    CheckpointNotFound,
    PublishUnknown,
)
from dagster_ckpt.filesystem import FileSystem
from dagster_ckpt.testing import Fail, FailAfter, FaultInjectingFileSystem, enumerate_crash_points
from tests.helpers.checkpoint.driver import INLINE, Ledger, Pins, Run, state
from tests.helpers.checkpoint.memory import CopyingMemory, MemoryFileSystem
from tests.helpers.checkpoint.savepoints import described, quiet, saved, savepoints, stored_snapshot


class Crashes:
    """The user's storage, with everything else of the job on a storage that always works.

    Args:
        pins: of the job.
        stored: whether its live location lies in a store.
    """

    def __init__(self, pins: Pins, *, stored: bool) -> None:
        self.pins = pins
        self.stored = stored
        self.run: Run

    def fresh(self) -> tuple[FileSystem, dict[str, CheckpointMetadata]]:
        self.run = Run(MemoryFileSystem(), Ledger(), self.pins).start()
        target = MemoryFileSystem()
        before = write_savepoint(
            target, "a" * 32, self.pins.snapshot(1, state(1)), self._describe(1), quiet(), new_token=lambda: "0" * 12
        )
        return target, {"before": before}

    def write(self, target: FileSystem, promised: dict[str, CheckpointMetadata]) -> None:
        promised["written"] = write_savepoint(
            target,
            "a" * 32,
            stored_snapshot(CopyingMemory(), state(2)) if self.stored else self.pins.snapshot(2, state(2)),
            self._describe(2),
            quiet(),
            inline_threshold=INLINE,
            new_token=lambda: "1" * 12,
        )

    def dispose(self, target: FileSystem, promised: dict[str, CheckpointMetadata]) -> None:
        dispose_savepoint(target, promised["before"].name)

    def _describe(self, batch: int):  # type: ignore[no-untyped-def]
        return lambda entries: replace(described(entries), batch=batch)


@pytest.fixture(params=[False, True], ids=["local", "stored"])
def crashes(request: pytest.FixtureRequest, pins: Pins) -> Crashes:
    return Crashes(pins, stored=request.param)


def test_a_write_that_crashes_fails_or_loses_its_reply_is_whole_or_invisible(crashes: Crashes) -> None:
    def examine(target: FileSystem, promised: Mapping[str, CheckpointMetadata]) -> None:
        for name in savepoints(target):
            data = target.read(f"{name}/{METADATA_FILE_NAME}")
            metadata = replace(CheckpointMetadata.decode(data, name), location=f"memory/{name}")
            assert saved(target, metadata) == state(metadata.batch)
        assert promised["before"].name in savepoints(target), "one that was there is never touched"
        if "written" in promised:
            assert promised["written"].name in savepoints(target)

    result = enumerate_crash_points(crashes.fresh, crashes.write, examine, expected=(OSError, CheckpointError))
    assert len(result.operations) >= 5
    result.require_none()


def test_a_write_that_fails_leaves_nothing_behind(crashes: Crashes) -> None:
    def examine(target: FileSystem, promised: Mapping[str, CheckpointMetadata]) -> None:
        left = {entry.name for entry in target.list("")}
        assert left == {promised[name].name for name in promised}

    result = enumerate_crash_points(
        crashes.fresh,
        crashes.write,
        examine,
        actions=lambda operation: [Fail()],
        expected=(OSError, CheckpointError),
    )
    result.require_none()


def test_an_unknown_outcome_deletes_nothing(memory: MemoryFileSystem, ledger: Ledger, pins: Pins) -> None:
    run, target = Run(memory, ledger, pins).start(), MemoryFileSystem()
    disk = FaultInjectingFileSystem(target, lambda operation: FailAfter() if operation.name == "create" else None)
    with pytest.raises(PublishUnknown):
        run.store.write_savepoint(run.begin(), pins.snapshot(1, state(1)), disk)
    (name,) = savepoints(target)
    metadata = CheckpointMetadata.decode(target.read(f"{name}/{METADATA_FILE_NAME}"), name)
    assert saved(target, replace(metadata, location=f"memory/{name}")) == state(1)


class Interrupted(MemoryFileSystem):
    """Ctrl-C comes while the reply to a publish is awaited, which may arrive before that or after."""

    def __init__(self, *, arrives_later: bool) -> None:
        super().__init__()
        self._arrives_later = arrives_later
        self.on_their_way: list[tuple[str, bytes]] = []

    def create(self, path: str, data: bytes) -> None:
        if self._arrives_later:
            self.on_their_way.append((path, data))
        else:
            super().create(path, data)
        raise KeyboardInterrupt

    def arrive(self) -> None:
        for path, data in self.on_their_way:
            super().create(path, data)


@pytest.mark.parametrize("arrives_later", [False, True])
def test_an_interrupt_during_the_publish_deletes_nothing(pins: Pins, arrives_later: bool) -> None:
    target = Interrupted(arrives_later=arrives_later)
    with pytest.raises(KeyboardInterrupt):
        write_savepoint(target, "a" * 32, pins.snapshot(1, state(1)), described, quiet(), inline_threshold=INLINE)
    target.arrive()
    (name,) = savepoints(target)
    metadata = CheckpointMetadata.decode(target.read(f"{name}/{METADATA_FILE_NAME}"), name)
    assert saved(target, replace(metadata, location=f"memory/{name}")) == state(1)


def test_a_disposal_broken_off_anywhere_is_finished_by_the_same_command(crashes: Crashes) -> None:
    def fresh() -> tuple[FileSystem, dict[str, CheckpointMetadata]]:
        target, promised = crashes.fresh()
        crashes.write(target, promised)
        promised["before"], promised["written"] = promised["written"], promised["before"]
        return target, promised

    def examine(target: FileSystem, promised: Mapping[str, CheckpointMetadata]) -> None:
        name = promised["before"].name
        if name in savepoints(target):
            data = target.read(f"{name}/{METADATA_FILE_NAME}")
            metadata = replace(CheckpointMetadata.decode(data, name), location=promised["before"].location)
            assert saved(target, metadata) == state(2), "while it can be restored it is whole"
        with contextlib.suppress(CheckpointNotFound):  # it was finished, and its reply was lost
            assert dispose_savepoint(target, name) == []
        assert [entry.name for entry in target.list("")] == [promised["written"].name]
        assert saved(target, promised["written"]) == state(1)

    result = enumerate_crash_points(fresh, crashes.dispose, examine, expected=(OSError, CheckpointError))
    assert {operation.name for operation in result.operations if operation.changes} == {
        "create",
        "remove",
        "sync_directories",
        "remove_directory",
    }
    result.require_none()
