"""Spark's own files in a checkpointLocation."""

from dagster_ckpt.spark.files.bucket_location import (
    ListedLocation,
    StoredCheckpointLocation,
    UnreadableStateFile,
    is_state_data,
    stored_identity,
)
from dagster_ckpt.spark.files.checkpoint_location import CheckpointLocation
from dagster_ckpt.spark.files.compactible_log import (
    COMPACT,
    COMPACT_INTERVAL,
    LOG_VERSION,
    compact_interval,
    is_file_entry,
    log_files,
    log_id,
    require_id,
)
from dagster_ckpt.spark.files.log_entries import (
    PARTITIONS_CONF,
    CommitEntry,
    OffsetEntry,
    OperatorEntry,
    decoded,
    parse_commit,
    parse_offsets,
    parse_operator,
    parse_query_id,
)
from dagster_ckpt.spark.files.prepare import prepare_location, prepare_new_location
from dagster_ckpt.spark.files.sink_log import SinkFile, read_sink_log

__all__ = [
    "COMPACT",
    "COMPACT_INTERVAL",
    "LOG_VERSION",
    "PARTITIONS_CONF",
    "CheckpointLocation",
    "CommitEntry",
    "ListedLocation",
    "OffsetEntry",
    "OperatorEntry",
    "SinkFile",
    "StoredCheckpointLocation",
    "UnreadableStateFile",
    "compact_interval",
    "decoded",
    "is_file_entry",
    "is_state_data",
    "log_files",
    "log_id",
    "parse_commit",
    "parse_offsets",
    "parse_operator",
    "parse_query_id",
    "prepare_location",
    "prepare_new_location",
    "read_sink_log",
    "require_id",
    "stored_identity",
]
