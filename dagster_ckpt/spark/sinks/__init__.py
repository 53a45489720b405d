"""Sinks that a restore can set back to a checkpoint: what a sink must be able to do, and the sinks that can."""

from dagster_ckpt.spark.sinks.delta import Commit, DeltaSink, DeltaTable, FileKey
from dagster_ckpt.spark.sinks.iceberg import IcebergSink, IcebergTable
from dagster_ckpt.spark.sinks.postgres import PostgresSink
from dagster_ckpt.spark.sinks.recorded_sinks import position_reader, recorded_sink
from dagster_ckpt.spark.sinks.sink import (
    BatchSink,
    Pin,
    PlainQuery,
    PositionReader,
    Sink,
    SinkRun,
    SinkStart,
    attached_sink,
    refusal_of_batch,
    sink_to,
)
from dagster_ckpt.spark.sinks.spark_file_sink import SparkFileSink
from dagster_ckpt.spark.sinks.transactional_file_sink import TransactionalFileSink
from dagster_ckpt.spark.sinks.user_sinks import CustomSink, ForeachBatchSink

__all__ = [
    "BatchSink",
    "Commit",
    "CustomSink",
    "DeltaSink",
    "DeltaTable",
    "FileKey",
    "ForeachBatchSink",
    "IcebergSink",
    "IcebergTable",
    "Pin",
    "PlainQuery",
    "PositionReader",
    "PostgresSink",
    "Sink",
    "SinkRun",
    "SinkStart",
    "SparkFileSink",
    "TransactionalFileSink",
    "attached_sink",
    "position_reader",
    "recorded_sink",
    "refusal_of_batch",
    "sink_to",
]
