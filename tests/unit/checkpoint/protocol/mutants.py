"""The rules of the protocol, and how to switch each of them off.

A rule is switched off at one place, for as long as a ``monkeypatch`` lasts. What is left must break a promise that one
of the harnesses looks after.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import pytest

from dagster_ckpt.checkpoint.catalog import file_reader as reading
from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.catalog.voiding import Voiding, _AtChoice
from dagster_ckpt.checkpoint.cleanup import dead_runs as ending
from dagster_ckpt.checkpoint.cleanup import start_sweep
from dagster_ckpt.checkpoint.cleanup.start_sweep import sweep_start
from dagster_ckpt.checkpoint.control import deletion_log as deletions
from dagster_ckpt.checkpoint.control.deletion_log import DeletionLog
from dagster_ckpt.checkpoint.control.epochs import Claim, Epochs
from dagster_ckpt.checkpoint.control.issued_ids import IssuedIds
from dagster_ckpt.checkpoint.format.layout import METADATA_FILE_NAME
from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata
from dagster_ckpt.checkpoint.taking import store
from dagster_ckpt.checkpoint.taking.data_files import DataFiles
from dagster_ckpt.checkpoint.taking.retained import RetainedCheckpoints
from dagster_ckpt.checkpoint.taking.shared_files import SharedFiles
from dagster_ckpt.checkpoint.taking.store import CompletedCheckpointStore
from dagster_ckpt.filesystem import FileSystem, ObjectFileSystem, Written
from dagster_ckpt.testing import FaultInjectingFileSystem
from tests.helpers.checkpoint import driver
from tests.helpers.checkpoint.driver import Run
from tests.helpers.checkpoint.memory import MemoryFileSystem

SwitchOff = Callable[[pytest.MonkeyPatch], object]


def metadata_first(patch: pytest.MonkeyPatch) -> None:
    """Data files are written when `_metadata` has been."""
    real, write = DataFiles._write, CompletedCheckpointStore.write
    waiting = threading.local()

    def later(files: DataFiles, items: Sequence[tuple[str, Path | bytes]], stop: Callable[[], bool]) -> list[Written]:
        waiting.of = [*getattr(waiting, "of", []), (files, items, stop)]
        contents = [item if isinstance(item, bytes) else item.read_bytes() for _, item in items]
        return [Written.of(content) for content in contents]

    def first(store: CompletedCheckpointStore, *arguments: Any, **options: Any) -> Any:
        waiting.of = []
        metadata = write(store, *arguments, **options)
        for files, items, stop in waiting.of:
            real(files, items, stop)
        return metadata

    patch.setattr(DataFiles, "_write", later)
    patch.setattr(CompletedCheckpointStore, "write", first)


def create_overwrites(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryFileSystem, "create", MemoryFileSystem.replace)


def unknown_is_failed(patch: pytest.MonkeyPatch) -> None:
    class NeverRaised(Exception):
        pass

    patch.setattr(store, "PublishUnknown", NeverRaised)


def no_read_back(patch: pytest.MonkeyPatch) -> None:
    def nothing(storage: ObjectFileSystem, path: str, cause: object) -> None:
        """As if nobody had looked."""

    patch.setattr(ObjectFileSystem, "_held", nothing)


def _check_unless(patch: pytest.MonkeyPatch, skipped: Callable[[str, str], bool]) -> None:
    """The epoch is not checked within a publish where the operation just before says so."""
    write, check = CompletedCheckpointStore.write, Epochs.check
    inside = threading.local()

    def publish(store: CompletedCheckpointStore, *arguments: Any, **options: Any) -> Any:
        inside.write = True
        try:
            return write(store, *arguments, **options)
        finally:
            inside.write = False

    def checked(epochs: Epochs, epoch: int) -> None:
        storage = epochs._filesystem
        if getattr(inside, "write", False) and isinstance(storage, FaultInjectingFileSystem):
            last = storage.log[-1][0]
            if skipped(last.name, last.path):
                return
        check(epochs, epoch)

    patch.setattr(CompletedCheckpointStore, "write", publish)
    patch.setattr(Epochs, "check", checked)


def _published(name: str, path: str) -> bool:
    return name == "create" and path.endswith(METADATA_FILE_NAME)


def no_check_before_the_publish(patch: pytest.MonkeyPatch) -> None:
    _check_unless(patch, lambda name, path: not _published(name, path))


def no_check_before_the_acknowledgement(patch: pytest.MonkeyPatch) -> None:
    _check_unless(patch, _published)


def no_check_before_a_deletion(patch: pytest.MonkeyPatch) -> None:
    class Unfenced(Epochs):
        def check(self, epoch: int) -> None:
            """Fence nobody."""

    patch.setattr(deletions, "Epochs", Unfenced)


class _MetadataLast:
    """A file system that deletes a `_metadata` when the deletion is struck."""

    def __init__(self, inner: FileSystem) -> None:
        self._inner = inner
        self._waiting: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def remove(self, path: str) -> None:
        if path.endswith(METADATA_FILE_NAME):
            self._waiting.append(path)
            return
        if "/deletions/" in path:
            while self._waiting:
                self._inner.remove(self._waiting.pop())
        self._inner.remove(path)


def files_before_metadata(patch: pytest.MonkeyPatch) -> None:
    carry_out = DeletionLog._carry_out

    def reversed_order(log: Any, *arguments: Any) -> None:
        real = log._filesystem
        log._filesystem = _MetadataLast(real)
        try:
            carry_out(log, *arguments)
        finally:
            log._filesystem = real

    patch.setattr(DeletionLog, "_carry_out", reversed_order)


def no_reference_count(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SharedFiles, "in_use", lambda state: frozenset())
    patch.setattr(ending, "shared_in_use", lambda catalog, job_id: frozenset())


def no_settling(patch: pytest.MonkeyPatch) -> None:
    """What became of an unknown publish is not looked at before a deletion: it is taken for failed."""
    patch.setattr(RetainedCheckpoints, "_is_published", lambda kept, metadata: False)


def names_stay_free(patch: pytest.MonkeyPatch) -> None:
    """An unknown publish is read back, and where it is not there, nothing keeps it from coming later."""

    def read_back(kept: RetainedCheckpoints, metadata: CheckpointMetadata) -> bool:
        return metadata.checkpoint_id in kept._catalog.completed_ids(metadata.job_id)

    patch.setattr(RetainedCheckpoints, "_is_published", read_back)


def ids_are_not_recorded(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(IssuedIds, "record", lambda *arguments: None)


def nothing_is_void(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Voiding, "voided_by", lambda voiding, metadata, names: None)


def only_later_ids_are_void(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_AtChoice, "counts", lambda then, number: number <= then.last_id)


def nothing_is_compared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reading, "_compared", lambda file, found, where: None)


def everything_is_swept(patch: pytest.MonkeyPatch) -> None:
    real = start_sweep.sweep

    def careless(
        catalog: CheckpointCatalog,
        job_id: str,
        epoch: int,
        first_id: int,
        completed: Collection[int],
        in_use: Collection[str],
    ) -> list[str]:
        return real(catalog, job_id, epoch, first_id, completed, ())

    patch.setattr(start_sweep, "sweep", careless)


def no_closing(patch: pytest.MonkeyPatch) -> None:
    """An epoch without an end stays open when the next one begins."""
    patch.setattr(driver, "close_earlier", lambda catalog, claim, clock: None)


def in_the_driver(patch: pytest.MonkeyPatch) -> None:
    """An order that the driver keeps is another in a driver of its own."""


class SweepsFirst(Run):
    """Sweeps before its choice is on record."""

    def start(self, restore_from: str = "latest", *, branch: bool = False) -> Run:
        self.claim_epoch()
        self.close()
        ending.finish_deletions(self.catalog, self.claim.epoch)
        choice = self.choose(restore_from, branch=branch)
        self.open(choice)
        sweep_start(self.store)
        self.record(self.choose(restore_from, branch=branch))
        return self


class ClaimsLate(Run):
    """Looks for what it goes on from before it claims."""

    def start(self, restore_from: str = "latest", *, branch: bool = False) -> Run:
        self.claim = Claim(self.catalog.records.epochs.highest() + 1, "", 1, "", "h", 1, "now")
        choice = self.choose(restore_from, branch=branch)
        self.claim_epoch()
        self.close()
        ending.finish_deletions(self.catalog, self.claim.epoch)
        self.record(choice)
        self.open(choice)
        sweep_start(self.store)
        return self
