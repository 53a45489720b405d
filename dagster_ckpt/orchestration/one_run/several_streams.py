"""*Materialize all* of several streams: one run, whose executor may never get to the last of them."""

from __future__ import annotations

import dagster as dg

from dagster_ckpt.orchestration.checkpointed_asset import CheckpointedStreamingAsset, defined_assets

__all__ = ["tell_of_others"]


def tell_of_others(context: dg.AssetExecutionContext, asset: CheckpointedStreamingAsset) -> None:
    """Warn if the run has other streams: a stream has no end, and what the executor cannot start waits for ever."""
    selected = context.run.asset_selection or ()
    others = sorted(other.name for other in defined_assets() if other.key in selected and other is not asset)
    if others:
        jobs = ", ".join(f"{name}_job" for name in sorted([*others, asset.name]))
        context.log.warning(
            f"This run also has the streams {', '.join(others)}. A stream has no end, so what the run's executor "
            "cannot start beside it waits for ever: the multiprocess executor starts as many steps as the machine has "
            f"processors, and the in-process executor one. To be sure, terminate this run, and launch {jobs}."
        )
