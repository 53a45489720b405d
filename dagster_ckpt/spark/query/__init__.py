"""Sessions, queries and their plans."""

from dagster_ckpt.spark.query.errors import another_query, failed_in_batch, failure_of, not_built
from dagster_ckpt.spark.query.executions import has_run
from dagster_ckpt.spark.query.key_columns import state_keys
from dagster_ckpt.spark.query.logical_plan import (
    QuerySource,
    StatefulKind,
    fingerprint_of,
    has_watermark,
    keeps_its_input,
    listed_sources,
    notices_reading,
    plan_nodes,
    recorded_kind,
    sources_of,
    stateful_kinds,
)
from dagster_ckpt.spark.query.session import (
    check_characters,
    check_state_format,
    driver_jvm_pid,
    find_programs,
    jvm_conf,
    make_active,
    start_jvm,
    start_session,
    streaming_session,
)
from dagster_ckpt.spark.query.state_backend import (
    check_partitions,
    check_state_backend,
    ignored_partitions,
    ignored_settings,
    known_providers,
    unload_state,
)
from dagster_ckpt.spark.query.tasks import await_tasks, end_query, flag_of_end, refuse_running_tasks, stop_query
from dagster_ckpt.spark.query.time_zone import TIME_ZONE_CONF, time_zone_of
from dagster_ckpt.spark.query.trial_run import try_query
from dagster_ckpt.spark.query.writer_plan import WriterPlan, bounded, plan_of, qualified, with_options

__all__ = [
    "TIME_ZONE_CONF",
    "QuerySource",
    "StatefulKind",
    "WriterPlan",
    "another_query",
    "await_tasks",
    "bounded",
    "check_characters",
    "check_partitions",
    "check_state_backend",
    "check_state_format",
    "driver_jvm_pid",
    "end_query",
    "failed_in_batch",
    "failure_of",
    "find_programs",
    "fingerprint_of",
    "flag_of_end",
    "has_run",
    "has_watermark",
    "ignored_partitions",
    "ignored_settings",
    "jvm_conf",
    "keeps_its_input",
    "known_providers",
    "listed_sources",
    "make_active",
    "not_built",
    "notices_reading",
    "plan_nodes",
    "plan_of",
    "qualified",
    "recorded_kind",
    "refuse_running_tasks",
    "sources_of",
    "start_jvm",
    "start_session",
    "state_keys",
    "stateful_kinds",
    "stop_query",
    "streaming_session",
    "time_zone_of",
    "try_query",
    "unload_state",
    "with_options",
]
