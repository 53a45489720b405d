"""Capturing Spark's state for a checkpoint."""

from dagster_ckpt.spark.capture.source import StreamingSource

__all__ = [
    "StreamingSource",
]
