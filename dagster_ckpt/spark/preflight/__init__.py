"""The checks before a query starts."""

from dagster_ckpt.spark.preflight.another_sink import SinkName, goes_on, is_empty, left_elsewhere
from dagster_ckpt.spark.preflight.checkpoint_checks import AFTER_IT, version_finding
from dagster_ckpt.spark.preflight.kafka_topics import kafka_findings
from dagster_ckpt.spark.preflight.named_sources import read_before
from dagster_ckpt.spark.preflight.source_files import local_file, rows_of
from dagster_ckpt.spark.preflight.start_checks import Passed, ProposedStart, accepted_in, pass_preflight
from dagster_ckpt.spark.preflight.stored_checks import check_exported, check_stored, check_unpacked

__all__ = [
    "AFTER_IT",
    "Passed",
    "ProposedStart",
    "SinkName",
    "accepted_in",
    "check_exported",
    "check_stored",
    "check_unpacked",
    "goes_on",
    "is_empty",
    "kafka_findings",
    "left_elsewhere",
    "local_file",
    "pass_preflight",
    "read_before",
    "rows_of",
    "version_finding",
]
