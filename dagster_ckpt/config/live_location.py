"""Where Spark's live checkpointLocation lies while a query runs."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["LiveLocationPlace"]


class LiveLocationPlace(StrEnum):
    """Where it lies.

    Attributes:
        AUTO: in the storage of the checkpoints where there is no disk that driver and executors are known to share and
            Spark can reach the storage; else on a disk.
        LOCAL: on a disk, in the working directory.
        STORAGE: in the storage of the checkpoints, or the job is refused.
    """

    AUTO = "auto"
    LOCAL = "local"
    STORAGE = "storage"
