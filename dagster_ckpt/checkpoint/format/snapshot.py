"""What a capture hands to the checkpoint protocol: pinned files and facts about them.

This is the seam between what knows Spark (``dagster_ckpt.spark``) and what stores checkpoints: the
protocol sees files with relative names, an opaque position and facts to write into ``_metadata``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

from dagster_ckpt.errors import CaptureIncomplete
from dagster_ckpt.filesystem import ServerSide, Stored

__all__ = [
    "NEXT_BATCH",
    "CheckpointSource",
    "Identity",
    "Json",
    "PinnedFile",
    "Progress",
    "Snapshot",
    "StoredSource",
    "vanished",
]

#: What to do about a capture that was not complete.
NEXT_BATCH = "Nothing was kept of this attempt; the next committed batch can be captured."

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
#: What tells a file from any other that had, or will have, its name.
Identity: TypeAlias = tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class StoredSource:
    """Where a pinned object lies, and what it was when it was pinned.

    Attributes:
        copies: the store it lies in.
        path: of the object there.
        of: what it was. Nothing keeps it from being deleted: who comes too late is told so.
    """

    copies: ServerSide
    path: str
    of: Stored

    def read(self) -> bytes:
        """Its bytes.

        Raises:
            CaptureIncomplete: it is gone, or another one.
        """
        try:
            data = self.copies.read_stored(self.path, self.of.version)
        except FileNotFoundError as error:
            raise vanished(self.path) from error
        if not self.of.is_of(data):
            raise self._misread()
        return data

    def fetch(self, target: Path, stop: Callable[[], bool] = lambda: False) -> None:
        """Bring its bytes into the new local file ``target``; raises as :meth:`read`.

        Raises:
            Stopped: ``stop()`` became true.
        """
        try:
            whole = self.copies.fetch_stored(self.path, self.of, target, stop)
        except FileNotFoundError as error:
            raise vanished(self.path) from error
        if not whole:
            raise self._misread()

    def _misread(self) -> CaptureIncomplete:
        return CaptureIncomplete(f"{self.path} was read with other bytes than it has.", hint=NEXT_BATCH)


@dataclass(frozen=True, slots=True)
class PinnedFile:
    """One file of a snapshot, pinned so that its bytes no longer change.

    Attributes:
        path: relative POSIX path within the snapshot, for example ``checkpoint/state/0/1/12.zip``.
        local: path at which the pinned bytes can be read until the snapshot is released; empty for an object that is
            pinned in its store only.
        size: bytes.
        identity: equal for the same unchanged file in a later snapshot of the same process, so that its
            checksum need not be computed again; ``None`` where no such promise can be made.
        recurs: whether later snapshots are likely to hold the same file, so that it is stored where they can share
            it; small files that do not recur are kept in ``_metadata``.
        source: the object it is, where it is pinned in its store only.
    """

    path: str
    local: str
    size: int
    identity: Identity | None = None
    recurs: bool = True
    source: StoredSource | None = None

    def read(self) -> bytes:
        """The pinned bytes.

        Raises:
            CaptureIncomplete: it is an object that is gone, or another one.
        """
        return Path(self.local).read_bytes() if self.source is None else self.source.read()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A consistent, pinned cut of a job.

    Attributes:
        batch: the last committed micro-batch (or batch step) that the cut covers.
        files: everything a restore needs.
        facts: what ``_metadata`` tells about the job at the cut (JSON values only).
        sink: the sink's position at the cut, ``None`` where the job's sink has none.
        release: drops the pins; called once, whatever became of the checkpoint.
    """

    batch: int
    files: tuple[PinnedFile, ...]
    facts: Mapping[str, Json]
    sink: Mapping[str, Json] | None
    release: Callable[[], None]

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(file.size for file in self.files)


def vanished(what: str) -> CaptureIncomplete:
    """That an object which was pinned in its store is gone from there, or is another one."""
    return CaptureIncomplete(
        f"{what} is not what was pinned any more: Spark has deleted or replaced it before it was stored.",
        hint=f"{NEXT_BATCH} If it happens again and again, raise spark.sql.streaming.minBatchesToRetain.",
    )


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the job is: the last committed batch, and the one in flight, if any."""

    committed: int | None
    planned: int | None


class CheckpointSource(Protocol):
    """What can be checkpointed."""

    def progress(self) -> Progress:
        """Cheap: asked many times a second while a checkpoint is due. It may be what was seen a moment ago.

        Raises:
            StorageError: nobody can tell.
        """

    def look_again(self) -> None:
        """What is asked for next must be as it is then."""

    def pin(self, batch: int) -> Snapshot:
        """Pin a consistent cut of ``batch``.

        Raises:
            CaptureIncomplete: it is not all there; another batch may be.
        """
