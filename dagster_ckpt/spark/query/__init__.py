"""Sessions, queries and their plans."""

from dagster_ckpt.spark.query.errors import another_query, failed_in_batch, failure_of, not_built
from dagster_ckpt.spark.query.executions import has_run
from dagster_ckpt.spark.query.logical_plan import (
    StatefulKind,
    has_watermark,
    plan_nodes,
    recorded_kind,
    sources_of,
    stateful_kinds,
)
from dagster_ckpt.spark.query.session import driver_jvm_pid, is_jvm_alive, make_active, start_session, streaming_session
from dagster_ckpt.spark.query.state_backend import (
    check_partitions,
    check_state_backend,
    ignored_settings,
    known_providers,
)
from dagster_ckpt.spark.query.tasks import await_tasks
from dagster_ckpt.spark.query.trial_run import try_query
from dagster_ckpt.spark.query.writer_plan import WriterPlan, java_field, plan_of

__all__ = [
    "StatefulKind",
    "WriterPlan",
    "another_query",
    "await_tasks",
    "check_partitions",
    "check_state_backend",
    "driver_jvm_pid",
    "failed_in_batch",
    "failure_of",
    "has_run",
    "has_watermark",
    "ignored_settings",
    "is_jvm_alive",
    "java_field",
    "known_providers",
    "make_active",
    "not_built",
    "plan_nodes",
    "plan_of",
    "recorded_kind",
    "sources_of",
    "start_session",
    "stateful_kinds",
    "streaming_session",
    "try_query",
]
