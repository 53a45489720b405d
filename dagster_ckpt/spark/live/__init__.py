"""The checkpointLocation that Spark writes to now."""

from dagster_ckpt.spark.live.choose import choose_live, recorded_live, refuse_impossible
from dagster_ckpt.spark.live.live_location import LOCATION, LiveLocation
from dagster_ckpt.spark.live.on_disk import LocalLive

__all__ = [
    "LOCATION",
    "LiveLocation",
    "LocalLive",
    "choose_live",
    "recorded_live",
    "refuse_impossible",
]
