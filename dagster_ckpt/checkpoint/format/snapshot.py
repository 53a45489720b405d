"""What a capture hands to the checkpoint protocol: pinned files and facts about the job.

This is the seam between the code that knows Spark (``dagster_ckpt.spark``) and the code that stores checkpoints: the
protocol sees files with relative names, an opaque position and facts to write into ``_metadata``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

from dagster_ckpt.checkpoint.format.facts import Facts
from dagster_ckpt.errors import CaptureIncomplete
from dagster_ckpt.filesystem import ServerSide, Stored
from dagster_ckpt.stored_json import Json

__all__ = [
    "NEXT_BATCH",
    "CheckpointSource",
    "Identity",
    "PinnedFile",
    "Progress",
    "Snapshot",
    "StoredSource",
    "vanished",
]

#: What to do about a capture that was not complete.
NEXT_BATCH = "Nothing was kept of this checkpoint attempt; the next committed batch can be captured."

#: Tells a file from every earlier or later file of the same name.
Identity: TypeAlias = tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class StoredSource:
    """Where a pinned object of a bucket lies, and what the object was when it was pinned.

    Attributes:
        copies: the bucket.
        path: the object's path in the bucket.
        of: version and checksums of the pinned object. The pin does not prevent deletion: reading a deleted object
            raises.
    """

    copies: ServerSide
    path: str
    of: Stored

    def read(self) -> bytes:
        """The object's bytes.

        Raises:
            CaptureIncomplete: the object was deleted or replaced.
        """
        try:
            data = self.copies.read_stored(self.path, self.of.version)
        except FileNotFoundError as error:
            raise vanished(self.path) from error
        if not self.of.is_of(data):
            raise self._misread()
        return data

    def fetch(self, target: Path, stop: Callable[[], bool] = lambda: False) -> None:
        """Download the object into the new local file ``target``; raises as :meth:`read`.

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
        return CaptureIncomplete(f"The bytes read from {self.path} do not match the pinned object.", hint=NEXT_BATCH)


@dataclass(frozen=True, slots=True)
class PinnedFile:
    """One file of a snapshot, pinned so that its bytes no longer change.

    Attributes:
        path: relative POSIX path within the snapshot, for example ``checkpoint/state/0/1/12.zip``.
        local: path at which the pinned bytes can be read until the snapshot is released; empty for an object that is
            pinned in its bucket only.
        size: bytes.
        identity: equal for the same unchanged file in a later snapshot of the same process, so that the checksum need
            not be computed again; ``None`` where that cannot be promised.
        recurs: whether later snapshots are likely to hold the same file. A file that recurs is stored where
            checkpoints share it; a small file that does not recur is kept in ``_metadata``.
        source: the object, where the file is pinned in its bucket only.
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
            CaptureIncomplete: the object was deleted or replaced.
        """
        return Path(self.local).read_bytes() if self.source is None else self.source.read()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A consistent, pinned cut of a job.

    Attributes:
        batch: the last committed micro-batch (or batch step) that the cut covers.
        files: everything a restore needs.
        facts: what ``_metadata`` tells about the job at the cut.
        sink: the sink's position at the cut, ``None`` for a sink without one.
        release: drops the pins; called once, whether the checkpoint completes or not.
    """

    batch: int
    files: tuple[PinnedFile, ...]
    facts: Facts
    sink: Mapping[str, Json] | None
    release: Callable[[], None]

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(file.size for file in self.files)


def vanished(what: str) -> CaptureIncomplete:
    """The error for a pinned object that was deleted or replaced in its bucket."""
    return CaptureIncomplete(
        f"{what} is not what was pinned any more: Spark deleted or replaced it before it was stored.",
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
        """The job's progress, possibly as seen a moment ago. Cheap: a due checkpoint asks many times a second.

        Raises:
            StorageError: the progress cannot be read.
        """

    def look_again(self) -> None:
        """Forget what was seen: the next answer must be current."""

    def pin(self, batch: int) -> Snapshot:
        """Pin a consistent cut of ``batch``.

        Raises:
            CaptureIncomplete: files of the batch are missing; another batch may be whole.
        """
