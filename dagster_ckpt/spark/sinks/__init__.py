"""Sinks that a restore can set back to a checkpoint: what a sink must be able to do, and the sinks that can."""

from dagster_ckpt.spark.sinks.recorded_sinks import position_reader, recorded_sink
from dagster_ckpt.spark.sinks.sink import BatchSink, PositionReader, Sink, SinkRun, SinkStart, attached_sink, sink_to
from dagster_ckpt.spark.sinks.spark_file_sink import SparkFileSink
from dagster_ckpt.spark.sinks.transactional_file_sink import TransactionalFileSink
from dagster_ckpt.spark.sinks.user_sinks import CustomSink, ForeachBatchSink

__all__ = [
    "BatchSink",
    "CustomSink",
    "ForeachBatchSink",
    "PositionReader",
    "Sink",
    "SinkRun",
    "SinkStart",
    "SparkFileSink",
    "TransactionalFileSink",
    "attached_sink",
    "position_reader",
    "recorded_sink",
    "sink_to",
]
