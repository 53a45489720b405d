"""The rows that are compared: of files with any name, and in columns with any name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from dagster_ckpt.errors import InvalidConfiguration
from dagster_ckpt.paths import hadoop_path
from dagster_ckpt.spark.proof import comparison
from dagster_ckpt.spark.proof.comparison import Comparison, compare_rows
from dagster_ckpt.spark.sinks.file_rows import rows_in

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession


@pytest.mark.parametrize("name", ["a[1]", "b{x,y}", "c*?", "d\\e", "f]g}"])
def test_a_name_of_a_sink_is_no_pattern(spark: SparkSession, tmp_path: Path, name: str) -> None:
    root = tmp_path / name
    for _ in range(2):
        spark.range(2).coalesce(1).write.mode("append").parquet(hadoop_path(root))
    files = sorted(root.glob("part-*"))
    assert len(files) == 2
    assert sorted(row.id for row in rows_in(files, root, spark).collect()) == [0, 0, 1, 1]


def _compare(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, green: str, columns: list[str] | None = None
) -> Comparison:
    """Compare a row of 1 and 2, in the columns ``a.b`` and ``a``, a structure with ``b``, with a row of ``green``."""
    newest = [SimpleNamespace(job_name=job) for job in ("blue", "green")]
    monkeypatch.setattr(comparison, "find_common", lambda *_: (newest, 0, 1))

    def read(session: SparkSession, job: str, *_: int) -> DataFrame:
        one = "1 AS `a.b`, named_struct('b', 2) AS a, 3 AS `t``k`"
        return session.sql(f"SELECT {one if job == 'blue' else green}")

    nowhere: Any = None
    return compare_rows(spark, nowhere, "blue", "green", columns=columns, read=read)


def test_a_column_with_a_dot_is_no_field(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    green = "5 AS `a.b`, named_struct('b', 2) AS a, 3 AS `t``k`"
    assert _compare(spark, monkeypatch, green).only_in_green == 1
    assert _compare(spark, monkeypatch, green, ["a.b"]).only_in_green == 1
    assert _compare(spark, monkeypatch, green, ["a", "t`k"]).is_same
    assert _compare(spark, monkeypatch, "1 AS `a.b`, named_struct('b', 2) AS a, 3 AS `t``k`").is_same


def test_a_column_that_is_not_there_is_refused(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidConfiguration, match="Spark does not compare the rows of blue and green"):
        _compare(spark, monkeypatch, "1 AS x", ["x"])
