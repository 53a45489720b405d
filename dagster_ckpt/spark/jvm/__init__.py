"""The JVM of Spark's driver: how it starts, what shortens its start and its batches, and how its loss is seen."""

from dagster_ckpt.spark.jvm.class_archive import java_and_spark, make_class_archive, run_small_query, with_archive
from dagster_ckpt.spark.jvm.early_jvm import start_beside
from dagster_ckpt.spark.jvm.launching import launched_for_a_short_start, launched_with_compiler
from dagster_ckpt.spark.jvm.local_files import IN_THIS_PROCESS, load_local_files, local_files_conf
from dagster_ckpt.spark.jvm.lost_jvm import (
    as_loss,
    has_let_go,
    is_gone,
    let_go_of_lost_jvm,
    live_below_jvm,
    loss_of,
    lost_driver,
    own_jvm_pid,
    refuse_lost,
)

__all__ = [
    "IN_THIS_PROCESS",
    "as_loss",
    "has_let_go",
    "is_gone",
    "java_and_spark",
    "launched_for_a_short_start",
    "launched_with_compiler",
    "let_go_of_lost_jvm",
    "live_below_jvm",
    "load_local_files",
    "local_files_conf",
    "loss_of",
    "lost_driver",
    "make_class_archive",
    "own_jvm_pid",
    "refuse_lost",
    "run_small_query",
    "start_beside",
    "with_archive",
]
