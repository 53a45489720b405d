"""Spark jobs under checkpoints: the job, its run, its events, and the sinks that a restore can set back."""

from typing import TYPE_CHECKING

from dagster_ckpt.lazy_names import lazy_names

if TYPE_CHECKING:
    from dagster_ckpt.spark.batches import (
        BatchInFlight,
        PlannedBatches,
        batch_in_flight,
        fingerprint,
        planned_files,
        planned_offsets,
    )
    from dagster_ckpt.spark.events import (
        CheckpointCompleted,
        CheckpointFailed,
        CheckpointQuarantined,
        CheckpointsDropped,
        EpochClaimed,
        Event,
        Restarting,
        SparkStarted,
        Started,
        describe,
    )
    from dagster_ckpt.spark.job import RunResult, StreamingJob
    from dagster_ckpt.spark.live import recorded_live
    from dagster_ckpt.spark.preflight import check_stored, local_file
    from dagster_ckpt.spark.query import has_watermark, plan_nodes, start_session, streaming_session
    from dagster_ckpt.spark.run import StreamingRun, die_with_parent, supervise, supervise_all
    from dagster_ckpt.spark.sinks import CustomSink, ForeachBatchSink, TransactionalFileSink, sink_to
    from dagster_ckpt.spark.verdict import Finding, Preflight
else:  # hidden from type checkers, which would take every name for one that is there
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "BatchInFlight",
    "CheckpointCompleted",
    "CheckpointFailed",
    "CheckpointQuarantined",
    "CheckpointsDropped",
    "CustomSink",
    "EpochClaimed",
    "Event",
    "Finding",
    "ForeachBatchSink",
    "PlannedBatches",
    "Preflight",
    "Restarting",
    "RunResult",
    "SparkStarted",
    "Started",
    "StreamingJob",
    "StreamingRun",
    "TransactionalFileSink",
    "batch_in_flight",
    "check_stored",
    "describe",
    "die_with_parent",
    "fingerprint",
    "has_watermark",
    "local_file",
    "plan_nodes",
    "planned_files",
    "planned_offsets",
    "recorded_live",
    "sink_to",
    "start_session",
    "streaming_session",
    "supervise",
    "supervise_all",
]
