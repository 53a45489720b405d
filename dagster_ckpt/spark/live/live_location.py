"""The live location of one start of a query, wherever it lies: on a disk, or in the storage of the checkpoints.

What is restored is first laid out in the start's own directory on this machine. On a disk that is the live location
already. In a storage only the small files are laid out here, to be checked and adapted; what its store can copy by
itself is copied there meanwhile, and the small files follow when all has been found to be in order.
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

__all__ = ["BEGUN", "LOCATION", "LiveLocation"]

#: Beside the live location, from when its query was started: before, a batch that is planned there is not under way.
BEGUN = "begun"
#: The live location in the directory of its start.
LOCATION = "checkpoint"


class LiveLocation(ABC):
    """Where Spark keeps what the query of one start needs to go on."""

    @property
    @abstractmethod
    def url(self) -> str:
        """What goes on record, and what people are told."""

    @property
    def spark_url(self) -> str:
        """What Spark is told."""
        return self.url

    @property
    @abstractmethod
    def start(self) -> str:
        """The name of the start it is of."""

    @abstractmethod
    def location(self, providers: Mapping[str, StateLayout] = LAYOUTS) -> CheckpointLocation:
        """It as a checkpointLocation, to read."""

    @abstractmethod
    def mark_begun(self) -> None:
        """Note that its query was started."""

    @abstractmethod
    def has_begun(self) -> bool:
        """Whether its query was started."""

    @abstractmethod
    def unpack(
        self, catalog: CheckpointCatalog, metadata: CheckpointMetadata, directory: Path, told: Callable[[int], object]
    ) -> None:
        """Lay a checkpoint out, all of it verified, in the new ``directory`` of the start.

        ``told`` is told the size of each file, on several threads.

        Raises:
            CorruptCheckpoint: it is not what was written; nothing is left of it.
            StorageError: the storage failed; nothing is left of it where that let it.
        """

    @abstractmethod
    def prepare(self, directory: Path) -> None:
        """Let what is laid out in the directory of the start name the place where Spark will find it."""

    @abstractmethod
    def lay_out(self, directory: Path) -> None:
        """Make what is laid out in the directory of the start what Spark finds."""

    @abstractmethod
    def trial(self, directory: Path) -> contextlib.AbstractContextManager[str]:
        """A copy of what is laid out, that may be spoilt, for Spark: its URL."""

    @abstractmethod
    def edited(self) -> contextlib.AbstractContextManager[Path]:
        """Its logs as local files, which may be changed while no query uses it; the changes are there afterwards."""

    @abstractmethod
    def copied_from(self) -> list[tuple[FileEntry, Identity]]:
        """Which stored files its objects were copied from, with their identities."""

    @abstractmethod
    def abandon(self) -> None:
        """Its start has failed before it was on record, so that nobody will look for it."""

    @abstractmethod
    def remove(self) -> None:
        """Delete it, as far as that goes."""
