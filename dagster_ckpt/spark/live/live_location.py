"""The live location of one start of a query: on a disk, or in the storage of the checkpoints.

A restore first lays files out in the start's own directory on this machine. On a disk, this already is the live
location. For a storage, only the small files are laid out here, to be checked and adapted. Meanwhile the storage copies
all other files by itself. When everything is in order, the small files are uploaded.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_ckpt.config import LAYOUTS, StateLayout
from dagster_ckpt.spark.files import CheckpointLocation

if TYPE_CHECKING:
    from dagster_ckpt.checkpoint import CheckpointCatalog, CheckpointMetadata, FileEntry, Identity

__all__ = ["BEGUN", "LOCATION", "QUERY", "TOPICS", "LiveLocation"]

#: A file beside the live location that marks the query as started: before, a planned batch is not under way.
BEGUN = "begun"
#: A file beside the live location with the ids of the topics that the query reads: a salvage cannot ask for them later.
TOPICS = "topics"
#: A file beside the live location with what the session and the plan of the query tell, and no file of Spark.
QUERY = "query"
#: The name of the live location in the start's directory.
LOCATION = "checkpoint"


class LiveLocation(ABC):
    """Where Spark keeps what it needs to resume the query of one start."""

    @property
    @abstractmethod
    def url(self) -> str:
        """The URL for records and for people."""

    @property
    def spark_url(self) -> str:
        """The URL for Spark."""
        return self.url

    @property
    @abstractmethod
    def start(self) -> str:
        """The name of the start that the live location belongs to."""

    @abstractmethod
    def location(self, providers: Mapping[str, StateLayout] = LAYOUTS) -> CheckpointLocation:
        """The checkpointLocation, for reading."""

    @abstractmethod
    def note(self, name: str, content: bytes) -> None:
        """Write a file beside the live location, or replace it."""

    @abstractmethod
    def noted(self, name: str) -> bytes | None:
        """The file beside the live location, ``None`` for no such file."""

    def mark_begun(self) -> None:
        """Record that the query of this live location was started."""
        self.note(BEGUN, b"")

    def has_begun(self) -> bool:
        """Whether the query of this live location was started."""
        return self.noted(BEGUN) is not None

    @abstractmethod
    def unpack(
        self, catalog: CheckpointCatalog, metadata: CheckpointMetadata, directory: Path, told: Callable[[int], object]
    ) -> None:
        """Lay a checkpoint out in the new ``directory`` of the start, and verify all of it.

        ``told`` is called with the size of each file, on several threads.

        Raises:
            CorruptCheckpoint: the checkpoint is not what was written; nothing is left of what was laid out.
            StorageError: the storage failed; what was laid out is removed, as far as the storage allows.
        """

    @abstractmethod
    def prepare(self, directory: Path) -> None:
        """Write the future path of the live location into the files laid out in the start's directory."""

    @abstractmethod
    def lay_out(self, directory: Path) -> None:
        """Move the files laid out in the start's directory to where Spark finds them."""

    @abstractmethod
    def trial(self, directory: Path) -> contextlib.AbstractContextManager[str]:
        """A disposable copy of the live location for Spark: the URL of the copy."""

    @abstractmethod
    def edited(self) -> contextlib.AbstractContextManager[Path]:
        """The logs as local files that may be changed while no query uses them; changes are stored on exit."""

    @abstractmethod
    def copied_from(self) -> list[tuple[FileEntry, Identity]]:
        """The stored files that the location's objects were copied from, with the identities of the copies."""

    @abstractmethod
    def abandon(self) -> None:
        """Clean up after a start that failed before it was on record, because no start will look for its files."""

    @abstractmethod
    def remove(self) -> None:
        """Delete the live location, as far as possible."""
