"""Where Spark's live checkpointLocation lies while a query runs."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["LiveLocationPlace"]


class LiveLocationPlace(StrEnum):
    """Where the live location lies.

    Attributes:
        AUTO: in the checkpoints' storage, if driver and executors are not known to share a disk and Spark can reach the
            storage; else on a disk.
        LOCAL: on a disk, in the working directory.
        STORAGE: in the checkpoints' storage; otherwise the job is refused.
    """

    AUTO = "auto"
    LOCAL = "local"
    STORAGE = "storage"
