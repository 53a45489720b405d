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
        CheckpointDue,
        CheckpointFailed,
        CheckpointQuarantined,
        CheckpointReplaced,
        CheckpointsDiscarded,
        CheckpointsSubsumed,
        EpochClaimed,
        Event,
        RequestTold,
        Restarting,
        SavepointCompleted,
        Started,
        StartTraced,
        describe,
    )
    from dagster_ckpt.spark.job import RunResult, StreamingJob, Versions
    from dagster_ckpt.spark.jvm import has_let_go, live_below_jvm, make_class_archive
    from dagster_ckpt.spark.kafka import with_kafka_headers
    from dagster_ckpt.spark.live import recorded_live
    from dagster_ckpt.spark.plain import export_checkpoint
    from dagster_ckpt.spark.preflight import check_stored, local_file
    from dagster_ckpt.spark.proof import (
        Bar,
        Drilled,
        compare_rows,
        drill_restore,
        find_common,
        freshness_of,
        no_bar,
        read_state,
        read_state_metadata,
        rehearse,
        state_operator,
    )
    from dagster_ckpt.spark.query import has_watermark, plan_nodes, start_jvm, start_session, streaming_session
    from dagster_ckpt.spark.run import Earlier, StreamingRun, die_with_parent, supervise, supervise_all
    from dagster_ckpt.spark.sinks import (
        CustomSink,
        DeltaSink,
        ForeachBatchSink,
        IcebergSink,
        PostgresSink,
        TransactionalFileSink,
        sink_to,
    )
    from dagster_ckpt.spark.standby import (
        WarmSession,
        adopt_standby,
        end_standby,
        keep_standby,
        launch_early,
    )
    from dagster_ckpt.spark.verdict import Finding, Preflight, Verdict
else:  # hidden from type checkers, which would take every name for one that is there
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "Bar",
    "BatchInFlight",
    "CheckpointCompleted",
    "CheckpointDue",
    "CheckpointFailed",
    "CheckpointQuarantined",
    "CheckpointReplaced",
    "CheckpointsDiscarded",
    "CheckpointsSubsumed",
    "CustomSink",
    "DeltaSink",
    "Drilled",
    "Earlier",
    "EpochClaimed",
    "Event",
    "Finding",
    "ForeachBatchSink",
    "IcebergSink",
    "PlannedBatches",
    "PostgresSink",
    "Preflight",
    "RequestTold",
    "Restarting",
    "RunResult",
    "SavepointCompleted",
    "StartTraced",
    "Started",
    "StreamingJob",
    "StreamingRun",
    "TransactionalFileSink",
    "Verdict",
    "Versions",
    "WarmSession",
    "adopt_standby",
    "batch_in_flight",
    "check_stored",
    "compare_rows",
    "describe",
    "die_with_parent",
    "drill_restore",
    "end_standby",
    "export_checkpoint",
    "find_common",
    "fingerprint",
    "freshness_of",
    "has_let_go",
    "has_watermark",
    "keep_standby",
    "launch_early",
    "live_below_jvm",
    "local_file",
    "make_class_archive",
    "no_bar",
    "plan_nodes",
    "planned_files",
    "planned_offsets",
    "read_state",
    "read_state_metadata",
    "recorded_live",
    "rehearse",
    "sink_to",
    "start_jvm",
    "start_session",
    "state_operator",
    "streaming_session",
    "supervise",
    "supervise_all",
    "with_kafka_headers",
]
