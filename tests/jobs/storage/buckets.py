"""A job whose checkpoints are in a bucket of any kind."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from dagster_ckpt.filesystem import FileSystem
from tests.jobs.harness import Bench


@dataclass
class BucketBench(Bench):
    """A job that keeps its checkpoints in a bucket."""

    bucket: FileSystem | None = None
    reads: Path | None = None

    @property
    def source(self) -> Path:
        return self.reads or super().source

    @property
    def filesystem(self) -> FileSystem:
        assert self.bucket is not None
        return self.bucket

    def lose_local_disk(self) -> None:
        """What a new machine does not have: everything but input, output and the bucket."""
        shutil.rmtree(self.working)
        assert not self.storage.exists(), "nothing was written beside the bucket"
