"""The checkpointLocation that Spark writes to now."""

from dagster_ckpt.spark.live.choose import choose_live, recorded_live, refuse_impossible
from dagster_ckpt.spark.live.live_location import BEGUN, LOCATION, QUERY, TOPICS, LiveLocation
from dagster_ckpt.spark.live.on_disk import LocalLive, probe_working_directory

__all__ = [
    "BEGUN",
    "LOCATION",
    "QUERY",
    "TOPICS",
    "LiveLocation",
    "LocalLive",
    "choose_live",
    "probe_working_directory",
    "recorded_live",
    "refuse_impossible",
]
