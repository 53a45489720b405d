"""A live location on a disk of this machine, possibly shared with the executors."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_ckpt.checkpoint import materialize_checkpoint
from dagster_ckpt.config import LAYOUTS, StateLayout
from dagster_ckpt.errors import StorageUnusable
from dagster_ckpt.filesystem import make_working_directory
from dagster_ckpt.paths import hadoop_path
from dagster_ckpt.spark.files import CheckpointLocation, prepare_location

if TYPE_CHECKING:
    from dagster_ckpt.checkpoint import CheckpointCatalog, CheckpointMetadata, FetchedAhead, FileEntry, Identity
    from dagster_ckpt.spark.job import StreamingJob

from dagster_ckpt.spark.live.live_location import LOCATION, LiveLocation

__all__ = ["LocalLive", "probe_working_directory"]


class LocalLive(LiveLocation):
    """A live location on a disk of this machine, possibly shared with the executors.

    Args:
        path: the path of the location, in the start's directory.
        ahead: has files of the checkpoint on this machine; ``None`` for no such files.
    """

    def __init__(self, path: Path, ahead: FetchedAhead | None = None) -> None:
        self.path, self._ahead = path, ahead

    @property
    def url(self) -> str:
        return str(self.path)

    @property
    def spark_url(self) -> str:
        return hadoop_path(self.path)

    @property
    def start(self) -> str:
        return self.path.parent.name

    def location(self, providers: Mapping[str, StateLayout] = LAYOUTS) -> CheckpointLocation:
        return CheckpointLocation(self.path, providers)

    def note(self, name: str, content: bytes) -> None:
        temporary = self.path.with_name(f".{name}.tmp")
        temporary.write_bytes(content)
        temporary.replace(self.path.with_name(name))

    def noted(self, name: str) -> bytes | None:
        try:
            return self.path.with_name(name).read_bytes()
        except FileNotFoundError:
            return None

    def unpack(
        self, catalog: CheckpointCatalog, metadata: CheckpointMetadata, directory: Path, told: Callable[[int], object]
    ) -> None:
        with _nothing_left(directory):
            take = None if self._ahead is None else self._ahead.take
            materialize_checkpoint(catalog, metadata, directory, told, take)
            self.prepare(directory)

    def prepare(self, directory: Path) -> None:
        prepare_location(directory / LOCATION)

    def lay_out(self, directory: Path) -> None:
        """Do nothing: the files are already in place."""

    @contextlib.contextmanager
    def trial(self, directory: Path) -> Iterator[str]:
        scratch = directory / "trial"
        shutil.copytree(self.path, scratch)
        try:
            yield hadoop_path(scratch)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    @contextlib.contextmanager
    def edited(self) -> Iterator[Path]:
        yield self.path

    def copied_from(self) -> list[tuple[FileEntry, Identity]]:
        return []

    def abandon(self) -> None:
        """Keep the files for inspection, until a later start."""

    def remove(self) -> None:
        shutil.rmtree(self.path.parent, ignore_errors=True)


@contextlib.contextmanager
def _nothing_left(directory: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise


def probe_working_directory(job: StreamingJob) -> None:
    """Make sure that live locations can be written, and only by the user of the job.

    Raises:
        StorageUnusable: live locations cannot be written, or not by this user alone.
    """
    directory = job.working_directory
    try:
        make_working_directory(directory, job.private_from)
        with tempfile.TemporaryFile(dir=directory) as file:
            file.write(b"probe")
    except StorageUnusable:
        raise
    except OSError as error:
        raise StorageUnusable(
            f"Live checkpointLocations cannot be written to {directory}: {error}",
            hint="Set working_directory of the checkpoint storage to a directory that is writable and has space left.",
        ) from error
