"""Positions that a sink recorded batch by batch, beside the live location.

The positions must outlive the process: the last batch of a dead process is checkpointed from what the process left.
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
#: How many positions are kept. Only captures for checkpoints and savepoints read them, for one of the last batches.
_KEPT = 200


class RecordedPositions:
    """The positions of one start, by batch.

    Args:
        directory: the start's directory.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory / _DIRECTORY

    def record(self, batch: int, position: Mapping[str, Json]) -> None:
        """Record the position after ``batch``."""
        self._directory.mkdir(parents=True, exist_ok=True)
        temporary = self._directory / f".{batch}.tmp"
        temporary.write_text(json.dumps(dict(position)), encoding="utf-8")
        temporary.replace(self._directory / str(batch))
        (self._directory / str(batch - _KEPT)).unlink(missing_ok=True)

    def look(self, committed: int) -> None:
        """Do nothing: only this start writes these files."""

    def pin_position(self, batch: int, pin: Pin) -> dict[str, Json]:
        """The recorded position of ``batch``.

        Raises:
            CaptureIncomplete: the position is missing or incomplete.
        """
        del pin  # `_metadata` holds the whole position
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
