"""What Flink calls the JobManager's memory: checkpoints in the memory of the driver, which end with the driver.

The few records by which runs know of each other (owner, epochs, heartbeat, failures, requests) lie on a disk all the
same: so the next run notices the driver's death and can report what was lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path, PurePosixPath

from dagster_ckpt.filesystem.memory import MemoryFileSystem
from dagster_ckpt.filesystem.port import FileSystem
from dagster_ckpt.filesystem.values import Entry, Part, Written

__all__ = ["DriverMemory"]


class DriverMemory(FileSystem):
    """Checkpoints in the driver's memory; one directory per job lies on a disk.

    Args:
        control: the disk with these directories.
        directory: the name of this directory within the directory of the job.
    """

    is_durable = False

    def __init__(self, control: FileSystem, directory: str) -> None:
        self._control = control
        self._directory = directory
        self._memory = MemoryFileSystem()

    def __reduce__(self) -> tuple[type[DriverMemory], tuple[FileSystem, str]]:
        return (DriverMemory, (self._control, self._directory))

    @property
    def url(self) -> str:
        return self._control.url

    def create(self, path: str, data: bytes) -> None:
        self._holder(path).create(path, data)

    def replace(self, path: str, data: bytes) -> None:
        self._holder(path).replace(path, data)

    def write(self, path: str, source: Path | bytes, stop: Callable[[], bool]) -> Written:
        return self._holder(path).write(path, source, stop)

    def sync_directories(self, paths: Iterable[str]) -> None:
        for path in paths:
            self._holder(path).sync_directories([path])

    def read(self, path: str) -> bytes:
        return self._holder(path).read(path)

    def fetch(self, path: str, target: Path, part: Part | None = None) -> Written:
        return self._holder(path).fetch(path, target, part)

    def checksum(self, path: str, part: Part | None = None) -> Written:
        return self._holder(path).checksum(path, part)

    def size(self, path: str) -> int:
        return self._holder(path).size(path)

    def list(self, path: str) -> Sequence[Entry]:
        if len(PurePosixPath(path).parts) > 1:
            return self._holder(path).list(path)
        # The root and the directory of a job exist on both sides.
        return list({entry.name: entry for side in (self._control, self._memory) for entry in side.list(path)}.values())

    def remove(self, path: str) -> None:
        self._holder(path).remove(path)

    def remove_directory(self, path: str) -> None:
        for side in (self._memory, self._control):
            side.remove_directory(path)

    def probe(self) -> None:
        self._control.probe()

    def _holder(self, path: str) -> FileSystem:
        parts = PurePosixPath(path).parts
        return self._control if len(parts) > 1 and parts[1] == self._directory else self._memory
