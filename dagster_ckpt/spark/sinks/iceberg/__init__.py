"""The sink that writes to an Iceberg table, and the table itself."""

from dagster_ckpt.spark.sinks.iceberg.iceberg_sink import IcebergSink
from dagster_ckpt.spark.sinks.iceberg.table import IcebergTable

__all__ = ["IcebergSink", "IcebergTable"]
