"""Publishing a restored copy that a start has changed.

The checkpoint has the position of the sink that the restored checkpoint has: nothing was written to the sink. So every
later start restores the change like any checkpoint, and the restored checkpoint stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dagster_ckpt.checkpoint import CheckpointMetadata, CompletedCheckpointStore, Source
from dagster_ckpt.clock import Clock
from dagster_ckpt.spark.capture import StreamingSource
from dagster_ckpt.spark.live import LiveLocation
from dagster_ckpt.spark.sinks import Pin
from dagster_ckpt.stored_json import Json

__all__ = ["RestoredCopy"]


@dataclass(frozen=True, slots=True)
class RestoredCopy:
    """A checkpoint that is laid out without a batch in flight, in a live location that no query uses yet.

    Attributes:
        live: the live location.
        directory: the start's directory.
        restored: the checkpoint that was unpacked.
        store: publishes the changed copy.
        clock: monotonic time.
        accepted_loss: losses and duplicates in this lineage that the user accepted.
        spark_version: of the running Spark.
    """

    live: LiveLocation
    directory: Path
    restored: CheckpointMetadata
    store: CompletedCheckpointStore
    clock: Clock
    accepted_loss: tuple[str, ...]
    spark_version: str

    @property
    def sink_files(self) -> Path:
        """The files that were pinned with the sink's position."""
        return self.directory / "sink"

    def publish(
        self, batch: int, kind: str, observed: Callable[[Sequence[Source]], list[Source]], **facts: str
    ) -> CheckpointMetadata:
        """Publish the copy as it is now.

        Args:
            batch: its last batch.
            kind: of the checkpoint.
            observed: adds to its sources what their own systems tell.
            facts: more facts for the manifest.

        Raises:
            Fenced: a newer run has taken the job over.
            StorageError: the storage failed.
        """
        position = self.restored.sink
        source = StreamingSource(
            self.live.location(),
            self.directory / "pins",
            None if position is None else _Kept(dict(position), self.sink_files),
            self.spark_version,
            lambda: None,
            self.clock,
            self.accepted_loss,
            observed,
            self.restored.facts.of_query,
        )
        self.store.know(self.live.copied_from())
        snapshot = source.pin(batch)
        try:
            told = replace(snapshot, facts=snapshot.facts.model_copy(update=facts))
            return self.store.write(self.store.begin(), told, kind=kind)
        finally:
            snapshot.release()


@dataclass(frozen=True, slots=True)
class _Kept:
    """Tells the position of the restored checkpoint: a change of the copy writes nothing to the sink."""

    position: dict[str, Json]
    files: Path

    def look(self, committed: int) -> None:
        """Do nothing: no query runs."""

    def pin_position(self, batch: int, pin: Pin) -> dict[str, Json]:
        del batch
        for file in self.files.rglob("*"):
            if file.is_file():
                pin(file, file.relative_to(self.files).as_posix())
        return self.position
