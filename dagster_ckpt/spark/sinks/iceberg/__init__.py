"""The sink that writes to an Iceberg table."""

from dagster_ckpt.spark.sinks.iceberg.iceberg_sink import IcebergSink

__all__ = ["IcebergSink"]
