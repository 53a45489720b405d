"""The sink that writes to a Delta table."""

from dagster_ckpt.spark.sinks.delta.delta_sink import DeltaSink

__all__ = ["DeltaSink"]
