"""What the Dagster UI sees of a start, and of a savepoint or a checkpoint that is asked for."""

from __future__ import annotations

import dagster as dg

from dagster_ckpt.checkpoint import CheckpointMetadata, RequestState, SavepointRequest, StartTrace
from dagster_ckpt.shown_text import in_one_line, redacted

__all__ = ["request_observation", "savepoint_observation", "start_observation"]


def start_observation(asset_key: dg.AssetKey, trace: StartTrace) -> dg.AssetObservation:
    """Where the seconds of a start went; the UI plots the numbers from start to start."""
    steps = {f"start_{name.replace(' ', '_')}_seconds": round(took, 3) for name, took in trace.by_name.items()}
    what = "committed its first batch" if trace.committed else "ended without a batch"
    return dg.AssetObservation(
        asset_key,
        description=f"The start of epoch {trace.epoch} {what} after {trace.seconds:.1f} s",
        metadata={"start_seconds": round(trace.seconds, 3), "epoch": trace.epoch, **steps},
    )


def request_observation(
    asset_key: dg.AssetKey, request: SavepointRequest, state: RequestState, reason: str
) -> dg.AssetObservation:
    """A savepoint that is asked for: the job has taken the request up, or no savepoint was taken."""
    reason = in_one_line(redacted(reason))
    label = {"name": request.name, "note": in_one_line(request.note), "series": request.series, "reason": reason}
    name = f"Savepoint {request.name}" if request.name else "A savepoint"
    return dg.AssetObservation(
        asset_key,
        description=f"{name}: {state}{reason and f', {reason}'}",
        metadata={"state": state.value, **{key: value for key, value in label.items() if value}},
    )


def savepoint_observation(asset_key: dg.AssetKey, metadata: CheckpointMetadata) -> dg.AssetObservation:
    """A savepoint that the job has completed, whoever asked for it."""
    note = in_one_line(metadata.note)
    label = {"name": metadata.given_name, "note": note}
    name = f"Savepoint {metadata.given_name}" if metadata.given_name else "A savepoint"
    return dg.AssetObservation(
        asset_key,
        description=f"{name}: {RequestState.COMPLETED}, batch {metadata.batch}{note and f'. {note}'}",
        metadata={
            "state": RequestState.COMPLETED.value,
            **{key: value for key, value in label.items() if value},
            "pointer": dg.MetadataValue.path(metadata.reference),
            "batch": metadata.batch,
        },
    )
