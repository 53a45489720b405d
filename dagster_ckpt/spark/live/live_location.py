"""The live location of one start of a query, wherever it lies: on a disk, or in the storage of the checkpoints.

What is restored is first laid out in the start's own directory on this machine. On a disk that is the live location
already. In a storage only the small files are laid out here, to be checked and adapted; what its store can copy by
itself is copied there meanwhile, and the small files follow when all has been found to be in order.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_ckpt.checkpoint.catalog.file_reader import materialize_checkpoint
from dagster_ckpt.checkpoint.control.heartbeat import live_here
from dagster_ckpt.filesystem.private_directories import is_own
from dagster_ckpt.spark.capture.state_files import PROVIDERS, Provider
from dagster_ckpt.spark.files.checkpoint_location import CheckpointLocation
from dagster_ckpt.spark.files.prepare import prepare_location

if TYPE_CHECKING:
    from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
    from dagster_ckpt.checkpoint.control.epochs import Choice
    from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata, FileEntry
    from dagster_ckpt.checkpoint.format.snapshot import Identity
    from dagster_ckpt.filesystem import FileSystem

__all__ = ["LiveLocation", "LocalLive", "recorded_live"]

_log = logging.getLogger(__name__)

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
    def attempt(self) -> str:
        """The name of the start it is of."""

    @abstractmethod
    def location(self, providers: Mapping[str, Provider] = PROVIDERS) -> CheckpointLocation:
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


class LocalLive(LiveLocation):
    """A live location on a disk of this machine, or one that it shares with the executors.

    Args:
        path: of the location, in the directory of its start.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def url(self) -> str:
        return str(self.path)

    @property
    def attempt(self) -> str:
        return self.path.parent.name

    def location(self, providers: Mapping[str, Provider] = PROVIDERS) -> CheckpointLocation:
        return CheckpointLocation(self.path, providers)

    def mark_begun(self) -> None:
        (self.path.parent / BEGUN).touch()

    def has_begun(self) -> bool:
        return (self.path.parent / BEGUN).exists()

    def unpack(
        self, catalog: CheckpointCatalog, metadata: CheckpointMetadata, directory: Path, told: Callable[[int], object]
    ) -> None:
        with _nothing_left(directory):
            materialize_checkpoint(catalog, metadata, directory, told)
            self.prepare(directory)

    def prepare(self, directory: Path) -> None:
        prepare_location(directory / LOCATION)

    def lay_out(self, directory: Path) -> None:
        """It is there already."""

    @contextlib.contextmanager
    def trial(self, directory: Path) -> Iterator[str]:
        scratch = directory / "trial"
        shutil.copytree(self.path, scratch)
        try:
            yield str(scratch)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    @contextlib.contextmanager
    def edited(self) -> Iterator[Path]:
        yield self.path

    def copied_from(self) -> list[tuple[FileEntry, Identity]]:
        return []

    def abandon(self) -> None:
        """It stays to be looked at, until a later start has a checkpoint."""

    def remove(self) -> None:
        shutil.rmtree(self.path.parent, ignore_errors=True)


def recorded_live(choice: Choice, filesystem: FileSystem) -> LiveLocation | None:
    """The live location that a start began with, if it can be reached from here and is still there.

    Args:
        choice: of the start.
        filesystem: the storage of the job's checkpoints.

    Raises:
        StorageError: the storage failed.
    """
    if (local := live_here(choice)) is not None:
        if is_own(local) and is_own(local.parent):
            return LocalLive(local)
        _log.warning("The live location %s is left alone: it is not, or not only, this user's", local)
        return None
    if filesystem.copies is None or not choice.live.startswith(f"{filesystem.url}/"):
        return None
    # It brings a client of its storage along, which most jobs do not need.
    from dagster_ckpt.spark.live.in_bucket import StoredLive  # noqa: PLC0415

    directory = choice.live.removeprefix(f"{filesystem.url}/")
    if not filesystem.list(directory):
        return None
    return StoredLive(filesystem, filesystem.copies, directory)


@contextlib.contextmanager
def _nothing_left(directory: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
