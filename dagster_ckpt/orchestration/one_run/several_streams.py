"""*Materialize all* of several streams: one run, whose executor may never get to the last of them."""

from __future__ import annotations

import dagster as dg

from dagster_ckpt.orchestration.checkpointed_asset import CheckpointedStreamingAsset

__all__ = ["tell_of_others"]


def tell_of_others(context: dg.AssetExecutionContext, asset: CheckpointedStreamingAsset) -> None:
    """Warn if the run has other streams: a stream has no end, and what the executor cannot start waits for ever."""
    layer = context.job_def.asset_layer
    streams = [one for one in layer.asset_graph.assets_defs if isinstance(one, CheckpointedStreamingAsset)]
    others = sorted(one.name for one in streams if one.key in layer.selected_asset_keys and one.key != asset.key)
    if others:
        jobs = ", ".join(f"{name}_job" for name in sorted([*others, asset.name]))
        context.log.warning(
            f"This run also has the streams {', '.join(others)}. A stream has no end, so what the run's executor "
            "cannot start beside it waits for ever: the multiprocess executor starts as many steps as the machine has "
            f"processors, and the in-process executor one. To be sure, terminate this run, and launch {jobs}."
        )
