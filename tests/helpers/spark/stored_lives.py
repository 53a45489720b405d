"""The life of a job whose live location lies in the storage, and what must hold after each thing that goes wrong."""

from __future__ import annotations

import uuid
from pathlib import Path

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog, references
from dagster_ckpt.checkpoint.catalog.file_reader import materialize_checkpoint
from dagster_ckpt.checkpoint.cleanup.live_locations import forget_stored, stored_before
from dagster_ckpt.errors import CheckpointError, Fenced
from dagster_ckpt.filesystem import FileSystem
from dagster_ckpt.testing import FaultInjectingFileSystem
from tests.helpers.checkpoint.memory import CopyingMemory
from tests.helpers.spark.stored_starts import JOB, Promised, Start, found_in, shared


class Life:
    """Checkpoints from a location in the storage, a death, a salvage, a restore, and the sweep of what is dead."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def fresh(self) -> tuple[FileSystem, Promised]:
        return CopyingMemory(), Promised()

    def lead(self, storage: FileSystem, promised: Promised) -> None:
        first = self._start(storage, promised)
        for batches in (2, 1, 1):
            first.query.run(batches)
            _take(first)
        first.query.run(1)
        first.query.plan()
        second = self._start(storage, promised)
        second.query.run(2)
        _take(second)
        forget_stored(storage, JOB, second.claim.epoch)

    def examine(self, storage: FileSystem, promised: Promised) -> None:
        """As the next start finds it, on another machine, with a storage that works again."""
        catalog = CheckpointCatalog(storage, JOB)
        visible = {item.reference: item for job_id in catalog.job_ids() for item in catalog.completed(job_id)[0]}
        for reference, (_, needed) in promised.acknowledged.items():
            if reference in visible:
                assert _content(catalog, reference, self._new()) == needed, reference
            else:
                assert reference in promised.given_up, f"acknowledged {reference} is gone"
        dead = {name: found for name in promised.queries if (found := _of_attempt(storage, name))}
        start = self._start(storage, promised)
        for name, found in dead.items():
            assert _of_attempt(storage, name) == found, "a dead start's location was touched, which may be alive"
        newest = max((key for key, _ in promised.acknowledged.values()), default=(0, 0))
        assert newest == (0, 0) or (start.restored is not None and start.restored.key >= newest)
        if start.restored is not None:
            found = found_in(storage, start)
            needed = start.query.needed(start.restored.batch)
            assert {path: found.get(path) for path in needed} == needed
            planned = start.restored.batch + 1
            assert found.keys() - needed.keys() <= {f"offsets/{planned}", f"sources/0/{planned}"}
        start.query.run(1)
        metadata = start.checkpoint()
        assert shared(storage, start.store.job_id) == {
            name.rpartition("/")[2] for name in references(start.store.retained)
        }, "what a dead attempt has left is still there"
        forget_stored(storage, JOB, start.claim.epoch)
        assert not stored_before(storage, JOB, start.claim.epoch)
        assert _content(catalog, metadata.reference, self._new()) == start.query.needed(metadata.batch)

    def _start(self, storage: FileSystem, promised: Promised) -> Start:
        beneath = storage.inner if isinstance(storage, FaultInjectingFileSystem) else storage
        return Start(storage, beneath, promised, self._new()).start()

    def _new(self) -> Path:
        return self.home / uuid.uuid4().hex


def _take(start: Start) -> None:
    """As the coordinator does it: a checkpoint that fails is counted, and the job goes on."""
    try:
        start.checkpoint()
    except Fenced:
        raise
    except (CheckpointError, OSError):
        return


def _content(catalog: CheckpointCatalog, reference: str, target: Path) -> dict[str, bytes]:
    materialize_checkpoint(catalog, catalog.resolve(reference), target)
    root = target / "checkpoint"
    return {file.relative_to(root).as_posix(): file.read_bytes() for file in root.rglob("*") if file.is_file()}


def _of_attempt(storage: FileSystem, name: str) -> dict[str, bytes]:
    assert storage.copies is not None
    directory = f"{JOB}/taskowned/{name}/checkpoint"
    return {path: storage.read(f"{directory}/{path}") for path in storage.copies.stored_below(directory)}
