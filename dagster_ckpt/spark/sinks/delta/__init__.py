"""The sink that writes to a Delta table, and the table itself."""

from dagster_ckpt.spark.sinks.delta.commits import Commit, FileKey
from dagster_ckpt.spark.sinks.delta.delta_sink import DeltaSink
from dagster_ckpt.spark.sinks.delta.table import DeltaTable

__all__ = ["Commit", "DeltaSink", "DeltaTable", "FileKey"]
