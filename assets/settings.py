"""Where the example keeps its data, and how much a micro-batch takes."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = [
    "CATCH_UP_VARIABLE",
    "CHECKPOINT_PATH_VARIABLE",
    "CLUSTER_VARIABLE",
    "DATA_VARIABLE",
    "JARS_VARIABLE",
    "KAFKA_VARIABLE",
    "MAX_FILES_VARIABLE",
    "STANDBY_VARIABLE",
    "STORAGE_OPTIONS_VARIABLE",
    "TOPIC",
    "DataPaths",
    "ends_when_caught_up",
    "has_standby",
    "max_files_per_trigger",
    "storage_options",
]

DATA_VARIABLE = "DAGSTER_CKPT_DATA"
MAX_FILES_VARIABLE = "DAGSTER_CKPT_MAX_FILES_PER_TRIGGER"
CATCH_UP_VARIABLE = "DAGSTER_CKPT_UNTIL_CAUGHT_UP"
STANDBY_VARIABLE = "DAGSTER_CKPT_STANDBY"
CHECKPOINT_PATH_VARIABLE = "DAGSTER_CKPT_CHECKPOINT_PATH"
STORAGE_OPTIONS_VARIABLE = "DAGSTER_CKPT_STORAGE_OPTIONS"
#: The URL of a standalone cluster's master: its Workers run the driver of the stream, too.
CLUSTER_VARIABLE = "DAGSTER_CKPT_CLUSTER"
#: What the second path needs: the address of its broker, and the jars of Spark's connector and of Delta.
KAFKA_VARIABLE = "DAGSTER_CKPT_KAFKA"
JARS_VARIABLE = "DAGSTER_CKPT_JARS"
#: The topic that has the flights.
TOPIC = "flights"
_DEFAULT = Path(__file__).resolve().parent.parent / "data"


@dataclass(frozen=True, slots=True)
class DataPaths:
    """The directories of the example, all below one root; its checkpoints may be in a bucket instead.

    Nothing here is created by asking for it.
    """

    root: Path

    @classmethod
    def from_environment(cls) -> DataPaths:
        """The root named by ``DAGSTER_CKPT_DATA``, else ``data`` beside ``definitions.py``."""
        return cls(Path(os.environ.get(DATA_VARIABLE) or _DEFAULT).expanduser().absolute())

    @property
    def landed(self) -> Path:
        """One Parquet file per landed day; what both streams read."""
        return self.root / "landed"

    @property
    def delays(self) -> Path:
        """Output of the continuous stream."""
        return self.root / "flight_delays"

    @property
    def delays_table(self) -> Path:
        """Output of the second path: a Delta table."""
        return self.root / "flight_delays_table"

    @property
    def delays_daily(self) -> Path:
        """Output of the scheduled pipeline."""
        return self.root / "flight_delays_daily"

    @property
    def report(self) -> Path:
        """The daily report as one Parquet file."""
        return self.root / "delay_report.parquet"

    @property
    def checkpoints(self) -> str:
        """The checkpoint path of the example's storage: ``DAGSTER_CKPT_CHECKPOINT_PATH``, else below the root."""
        return os.environ.get(CHECKPOINT_PATH_VARIABLE) or str(self.root / "checkpoints")

    @property
    def savepoints(self) -> Path:
        """Where the example's savepoints go."""
        return self.root / "savepoints"


def storage_options() -> dict[str, Any]:
    """How to connect to a bucket with the checkpoints: the JSON in ``DAGSTER_CKPT_STORAGE_OPTIONS``, else nothing.

    Raises:
        ValueError: the variable is no JSON.
    """
    return dict(json.loads(os.environ.get(STORAGE_OPTIONS_VARIABLE) or "{}"))


def max_files_per_trigger() -> int:
    """Landed files per micro-batch, from ``DAGSTER_CKPT_MAX_FILES_PER_TRIGGER``, else 4.

    Raises:
        ValueError: the variable is no whole number.
    """
    return int(os.environ.get(MAX_FILES_VARIABLE) or 4)


def ends_when_caught_up() -> bool:
    """Whether the continuous stream ends when all is read, from ``DAGSTER_CKPT_UNTIL_CAUGHT_UP``.

    A path there means: if there is such a file when the query is built.
    """
    value = os.environ.get(CATCH_UP_VARIABLE, "")
    return Path(value).exists() if "/" in value else value not in ("", "0")


def has_standby() -> bool:
    """Whether a standby waits beside the continuous stream, from ``DAGSTER_CKPT_STANDBY``."""
    return os.environ.get(STANDBY_VARIABLE, "") not in ("", "0")
