"""A driver of its own, outside of the Dagster run: how it is submitted, and how a run attends it."""

from dagster_ckpt.orchestration.attending.attended_run import attended
from dagster_ckpt.orchestration.attending.driver_report import Told
from dagster_ckpt.orchestration.attending.interruption import interrupts_in_words
from dagster_ckpt.orchestration.attending.own_run import OwnRun
from dagster_ckpt.orchestration.attending.submit_resource import SparkSubmitResource, own_spark
from dagster_ckpt.orchestration.attending.submitted_process import REFUSED

__all__ = [
    "REFUSED",
    "OwnRun",
    "SparkSubmitResource",
    "Told",
    "attended",
    "interrupts_in_words",
    "own_spark",
]
