"""Positions that a sink wrote down batch by batch, beside the live checkpointLocation.

They must outlive the process: when it is dead, its last batch is checkpointed from what it left behind.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from dagster_ckpt.errors import CaptureIncomplete
from dagster_ckpt.spark.sinks.sink import Pin
from dagster_ckpt.stored_json import Json, believed, parsed

__all__ = ["RecordedPositions"]

_DIRECTORY = "positions"
#: A checkpoint is of one of the last batches; only its capture and a savepoint's ask for older ones.
_KEPT = 200


class RecordedPositions:
    """The positions of one start of a query, by batch.

    Args:
        directory: of the start.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory / _DIRECTORY

    def record(self, batch: int, position: Mapping[str, Json]) -> None:
        """Write down the position after ``batch``."""
        self._directory.mkdir(parents=True, exist_ok=True)
        temporary = self._directory / f".{batch}.tmp"
        temporary.write_text(json.dumps(dict(position)), encoding="utf-8")
        temporary.replace(self._directory / str(batch))
        (self._directory / str(batch - _KEPT)).unlink(missing_ok=True)

    def look(self, committed: int) -> None:
        """Nothing to look at: only its own start writes there."""

    def pin_position(self, batch: int, pin: Pin) -> dict[str, Json]:
        """The position that was recorded for ``batch``.

        Raises:
            CaptureIncomplete: there is none, or not a whole one.
        """
        del pin  # it goes into `_metadata` whole
        where = self._directory / str(batch)
        hint = "The next committed batch can be captured."
        try:
            data = where.read_bytes()
        except FileNotFoundError as error:
            raise CaptureIncomplete(
                f"The position of the sink after batch {batch} is not recorded in {self._directory}", hint=hint
            ) from error
        with believed(f"{where}, the position of the sink after batch {batch},", hint, CaptureIncomplete):
            position: dict[str, Json] = dict(parsed(data).items())
        return position
