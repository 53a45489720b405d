"""The run of a job: its starts, one after another."""

from dagster_ckpt.spark.run.built_query import Queries
from dagster_ckpt.spark.run.job_run import StreamingRun
from dagster_ckpt.spark.run.supervisor import die_with_parent, supervise, supervise_all
from dagster_ckpt.spark.start_tracer import Earlier

__all__ = [
    "Earlier",
    "Queries",
    "StreamingRun",
    "die_with_parent",
    "supervise",
    "supervise_all",
]
