"""What a checkpoint takes of Spark's state."""

from dagster_ckpt.spark.capture.source import StreamingSource

__all__ = [
    "StreamingSource",
]
