"""What Spark does with a planned batch whose file is gone: the reason for looking before a restore."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.helpers.spark.streaming import Job, write_input

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("ignore", ["false", "true"])
def test_spark_reads_nothing_for_a_planned_file_that_is_gone_and_says_nothing(
    spark: SparkSession, tmp_path: Path, ignore: str
) -> None:
    write_input(tmp_path / "in", range(2))
    job = Job(spark, "stateless", {"spark.sql.files.ignoreMissingFiles": ignore}, tmp_path / "in")
    live = tmp_path / "live"
    assert [len(rows) for rows in job.run(live).values()] == [8, 8]
    for file in live.glob("commits/*1*"):  # as after a crash in the second batch
        file.unlink()
    (tmp_path / "in" / "0001.json").unlink()
    assert job.run(live) == {1: []}
    assert (live / "commits" / "1").exists()
