"""What readers find in the Delta table of a job, and a log that has forgotten."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake

from dagster_ckpt.spark.sinks.delta.table import DeltaTable
from tests.jobs.harness import Bench, Row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["forget_log", "seen", "sql", "version", "without_old_log"]


def seen(bench: Bench) -> Counter[Row]:
    """What a reader without Spark finds, which must be what plain Spark finds."""
    table = deltalake.DeltaTable(str(bench.sink)).to_pyarrow_table().select(["id", "v"]).to_pylist()
    rows = Counter((row["id"], row["v"]) for row in table)
    by_spark = bench.spark.read.format("delta").load(str(bench.sink)).select("id", "v").collect()
    assert Counter(map(tuple, by_spark)) == rows
    return rows


def version(bench: Bench) -> int:
    return int(deltalake.DeltaTable(str(bench.sink)).version())


def sql(bench: Bench, statement: str) -> list[Any]:
    """Run a statement on ``{table}``."""
    return bench.spark.sql(statement.format(table=f"delta.`{bench.sink}`")).collect()


def without_old_log(bench: Bench) -> None:
    """The log of the job's table without the versions before the newest."""
    forget_log(bench.spark, bench.sink, version(bench))


def forget_log(session: SparkSession, table: Path, before: int) -> None:
    """As Delta cleans its log up: of what its own checkpoint covers, the versions before one go."""
    DeltaTable(session, str(table))._log.checkpoint()
    for number in range(before):
        (table / "_delta_log" / f"{number:020}.json").unlink(missing_ok=True)
