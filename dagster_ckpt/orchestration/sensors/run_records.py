"""What Dagster's record of a run tells the sensors."""

from __future__ import annotations

import dagster as dg

__all__ = ["since"]


def since(record: dg.RunRecord) -> float:
    """When a run was created, launched, started or ended (the latest known), in seconds since the epoch."""
    if record.dagster_run.status is dg.DagsterRunStatus.STARTING:  # it may have waited in Dagster's queue for long
        return record.update_timestamp.timestamp()
    return record.end_time or record.start_time or record.create_timestamp.timestamp()
