"""A live location in the storage of the checkpoints: Spark uses a connector, this library the storage's client."""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath

from dagster_ckpt.checkpoint import (
    CheckpointCatalog,
    CheckpointMetadata,
    FileEntry,
    Identity,
    copy_files,
    layout,
    materialize_checkpoint,
)
from dagster_ckpt.config import LAYOUTS, StateLayout
from dagster_ckpt.filesystem import Copy, FileSystem, ServerSide, scratch_directory
from dagster_ckpt.spark.files import StoredCheckpointLocation, is_state_data, prepare_location, stored_identity
from dagster_ckpt.spark.live.live_location import LOCATION, LiveLocation
from dagster_ckpt.threads import Threads

__all__ = ["StoredLive", "stored_live"]

_log = logging.getLogger(__name__)

_STATE = f"{LOCATION}/"
_PLANS = "offsets/"
#: What an edit may change: the plans of batches, and the logs of their sources.
_LOGS = (_PLANS, "sources/")


def stored_live(filesystem: FileSystem, store: ServerSide, job_name: str, start: str) -> StoredLive:
    """The live location of a start in a storage: a directory that no other start ever writes to."""
    directory = f"{job_name}/{layout.CHECKPOINT_TASK_OWNED_STATE_DIR}/{start}/{LOCATION}"
    return StoredLive(filesystem, store, directory)


class StoredLive(LiveLocation):
    """A live location below a directory of a storage.

    Args:
        filesystem: the storage.
        store: the storage's server-side operations.
        directory: the directory of the location.
    """

    def __init__(self, filesystem: FileSystem, store: ServerSide, directory: str) -> None:
        self._filesystem = filesystem
        self._store = store
        self._directory = directory
        self._above = directory.rpartition("/")[0]
        self._copied: list[tuple[FileEntry, Identity]] = []
        #: For edits: remembers logs, so that no log is read twice.
        self._logs = StoredCheckpointLocation(filesystem, store, directory)

    @property
    def url(self) -> str:
        return f"{self._filesystem.url}/{self._directory}"

    @property
    def spark_url(self) -> str:
        return self._for_spark(self._directory)

    @property
    def start(self) -> str:
        return self._above.rpartition("/")[2]

    def location(self, providers: Mapping[str, StateLayout] = LAYOUTS) -> StoredCheckpointLocation:
        return StoredCheckpointLocation(self._filesystem, self._store, self._directory, providers)

    def note(self, name: str, content: bytes) -> None:
        self._filesystem.replace(f"{self._above}/{name}", content)

    def noted(self, name: str) -> bytes | None:
        try:
            return self._filesystem.read(f"{self._above}/{name}")
        except FileNotFoundError:
            return None

    def unpack(
        self, catalog: CheckpointCatalog, metadata: CheckpointMetadata, directory: Path, told: Callable[[int], object]
    ) -> None:
        # The storage copies only state files of the job's own checkpoints: a savepoint lies elsewhere. Files with a
        # SHA-256 are downloaded and verified, and so are files with a checksum if the storage tells none of its copies.
        copied = tuple(
            file
            for file in metadata.files
            if metadata.location is None and _is_copied(file) and self._can_prove_copies_of(file)
        )
        paths = {file.path for file in copied}
        here = tuple(file for file in metadata.files if file.path not in paths)
        try:
            materialize_checkpoint(catalog, replace(metadata, files=here), directory, told)
            self.prepare(directory)
            made = copy_files(catalog, self._store, metadata, copied, self._above, told)
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            self.remove()
            raise
        self._copied = [(file, stored_identity(stored)) for file, stored in zip(copied, made, strict=True)]

    def prepare(self, directory: Path) -> None:
        prepare_location(directory / LOCATION, self.spark_url)

    def lay_out(self, directory: Path) -> None:
        self._upload(directory / LOCATION, self._directory)
        shutil.rmtree(directory / LOCATION, ignore_errors=True)

    @contextlib.contextmanager
    def trial(self, directory: Path) -> Iterator[str]:
        place, scratch = f"{self._above}/trial", directory / "trial"
        try:
            shutil.copytree(directory / LOCATION, scratch)
            prepare_location(scratch, self._for_spark(place))
            self._upload(scratch, place)
            there = self._store.stored_below(self._directory)
            self._store.copy_many(
                [Copy(f"{self._directory}/{path}", stored, f"{place}/{path}") for path, stored in there.items()]
            )
            yield self._for_spark(place)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
            self._remove(place)

    @contextlib.contextmanager
    def edited(self) -> Iterator[Path]:
        listed = self._logs.listed()
        paths = [path for path in listed.objects if path.startswith(_LOGS)]
        with Threads(self._store.concurrency, "dagster-ckpt-read") as pool:
            before = dict(zip(paths, pool.map(listed.read, paths), strict=True))
        with scratch_directory() as scratch:
            root = scratch / "files"
            root.mkdir()
            for path, data in before.items():
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_bytes(data)
            yield root
            after = {path: (root / path).read_bytes() for path in _files(root)}
        # A plan is removed first and written last: when a plan exists, everything that the plan refers to exists.
        gone = sorted(before.keys() - after.keys(), key=lambda path: not path.startswith(_PLANS))
        for path in gone:
            self._filesystem.remove(f"{self._directory}/{path}")
        changed = [path for path, data in after.items() if before.get(path) != data]
        for path in sorted(changed, key=lambda path: path.startswith(_PLANS)):
            self._filesystem.replace(f"{self._directory}/{path}", after[path])

    def copied_from(self) -> list[tuple[FileEntry, Identity]]:
        return self._copied

    def abandon(self) -> None:
        self.remove()

    def remove(self) -> None:
        self._remove(self._above)

    def _can_prove_copies_of(self, file: FileEntry) -> bool:
        return self._store.tells_checksums or file.stored is None or not file.stored.has_checksum

    def _for_spark(self, directory: str) -> str:
        return f"{self._filesystem.hadoop_url}/{directory}"

    def _remove(self, directory: str) -> None:
        try:
            self._store.remove_below(directory)
        except OSError as error:
            _log.info("%s/%s is still there, until a later start: %s", self._filesystem.url, directory, error)

    def _upload(self, root: Path, directory: str) -> None:
        files = _files(root)
        self._filesystem.write_many([(f"{directory}/{path}", root / path) for path in files], lambda: False)


def _is_copied(file: FileEntry) -> bool:
    return file.stored is not None and file.path.startswith(_STATE) and is_state_data(file.path.removeprefix(_STATE))


def _files(root: Path) -> list[str]:
    """The files below a directory, relative to the directory, without hidden files."""
    found = (PurePosixPath(file.relative_to(root).as_posix()) for file in sorted(root.rglob("*")) if file.is_file())
    return [str(path) for path in found if not path.name.startswith(".")]
