"""To and from plain Spark: a checkpointLocation that a job begins with, and one that Spark alone goes on with."""

from dagster_ckpt.spark.plain.export import export_checkpoint
from dagster_ckpt.spark.plain.location import Beginning, PlainLocation, plain_location, plain_url

__all__ = [
    "Beginning",
    "PlainLocation",
    "export_checkpoint",
    "plain_location",
    "plain_url",
]
