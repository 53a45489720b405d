"""The run of a job: its starts, one after another."""

from dagster_ckpt.spark.run.job_run import StreamingRun
from dagster_ckpt.spark.run.supervisor import die_with_parent, supervise, supervise_all

__all__ = [
    "StreamingRun",
    "die_with_parent",
    "supervise",
    "supervise_all",
]
