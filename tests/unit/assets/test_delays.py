from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as in assets/delays.py
from pyspark.sql.streaming.query import StreamingQuery

from assets.batch_answer import Comparison, batch_answer, compare, read_delays
from assets.delays import FLIGHT_SCHEMA, delays_query
from assets.flights import (
    CLOSING_FILES,
    MAX_FILES_PER_TRIGGER,
    LandedFile,
    Lateness,
    land,
    landing_plan,
)

pytestmark = pytest.mark.slow

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
DAYS = 61
"""Enough for a month of rows that are too late."""


@contextmanager
def settings(spark: SparkSession, values: dict[str, str]) -> Iterator[None]:
    """Session settings for the queries started inside."""
    before = {name: spark.conf.get(name, None) for name in values}
    for name, value in values.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)


@pytest.fixture(scope="module")
def year(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything landed."""
    directory = tmp_path_factory.mktemp("year")
    land(directory)
    return directory


@pytest.fixture(scope="module")
def landed(year: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two months of flights and the markers."""
    directory = tmp_path_factory.mktemp("landed")
    deliver(year, directory, [*landing_plan()[:DAYS], *landing_plan()[-CLOSING_FILES:]])
    return directory


def deliver(source: Path, directory: Path, files: Iterable[LandedFile]) -> None:
    """Copy landed files with their modification times."""
    directory.mkdir(exist_ok=True)
    for file in files:
        shutil.copy2(source / file.name, directory / file.name)


def run(spark: SparkSession, landed: Path, work: Path, *, files: int) -> StreamingQuery:
    """Run the query over everything landed, as one scheduled run does."""
    query = (
        delays_query(spark, landed, work / "output", max_files_per_trigger=files)
        .option("checkpointLocation", str(work / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(240)
    finally:
        query.stop()
    return query


def compare_with_batch(landed: Path, work: Path) -> Comparison:
    return compare(batch_answer(landed), read_delays((work / "output").glob("part-*.parquet")))


def dropped_by_watermark(query: StreamingQuery) -> int:
    return sum(
        operator["numRowsDroppedByWatermark"]
        for progress in query.recentProgress
        for operator in progress["stateOperators"]
    )


def files_in_order_of_batches(work: Path) -> list[str]:
    """Names of the files the source took, from its log."""
    batches = {}
    for log in (work / "checkpoint" / "sources" / "0").iterdir():
        if not log.name.startswith("."):
            for line in log.read_text().splitlines()[1:]:
                entry = json.loads(line)
                batches[Path(entry["path"]).name] = int(entry["batchId"])
    return sorted(batches, key=lambda name: (batches[name], name))


@pytest.mark.parametrize(
    ("files", "conf"),
    [
        pytest.param(4, {"spark.sql.streaming.stateStore.providerClass": ROCKSDB}, marks=pytest.mark.slow),
        # After a restart Spark does not run the empty batch it owed: the markers must do without.
        pytest.param(
            MAX_FILES_PER_TRIGGER,
            {"spark.sql.streaming.noDataMicroBatches.enabled": "false"},
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            MAX_FILES_PER_TRIGGER - 1, {"spark.sql.session.timeZone": "America/New_York"}, marks=pytest.mark.exhaustive
        ),
    ],
    ids=["4 files, RocksDB", "8 files, no empty batches", "7 files, another time zone"],
)
def test_stream_equals_batch(
    spark: SparkSession, landed: Path, tmp_path: Path, files: int, conf: dict[str, str]
) -> None:
    with settings(spark, conf):
        query = run(spark, landed, tmp_path, files=files)
    answer = compare_with_batch(landed, tmp_path)
    assert answer.expected > 1000
    assert (answer.missing, answer.surplus) == ((), ())
    assert dropped_by_watermark(query) > 0, "nothing was too late, so nothing was shown about late rows"
    assert files_in_order_of_batches(tmp_path) == sorted(path.name for path in landed.iterdir())


@pytest.mark.exhaustive
def test_scheduled_runs_together_equal_batch(spark: SparkSession, year: Path, tmp_path: Path) -> None:
    directory = tmp_path / "landed"
    for days in (20, 18, 5):
        land(directory, days=days)
        run(spark, directory, tmp_path, files=6)
    deliver(year, directory, landing_plan()[-CLOSING_FILES:])
    run(spark, directory, tmp_path, files=6)
    answer = compare_with_batch(directory, tmp_path)
    assert answer.expected > 1000
    assert (answer.missing, answer.surplus) == ((), ())


def test_the_slice_has_rows_of_every_lateness() -> None:
    for lateness in (Lateness.ON_TIME, Lateness.LATE, Lateness.TOO_LATE):
        assert sum(file.rows[lateness] for file in landing_plan()[:DAYS]) > 0


@pytest.mark.exhaustive
def test_the_markers_reach_the_watermark(spark: SparkSession, landed: Path, tmp_path: Path) -> None:
    # The plan is that of the last batch, which must have files to read.
    with settings(spark, {"spark.sql.streaming.noDataMicroBatches.enabled": "false"}):
        query = run(spark, landed, tmp_path, files=MAX_FILES_PER_TRIGGER)
    plan = optimized_plan(query)
    assert_above_watermark(plan)
    assert "PushedFilters: []" in plan
    # 70 files in batches of 8: the last batch but one ends with the third marker, of March 3.
    assert query.recentProgress[-1]["eventTime"]["watermark"] == "2014-02-28T00:00:00.000Z"

    # The other way to leave the markers out, to show that the assertion above can fail.
    by_carrier = (
        spark.readStream.schema(FLIGHT_SCHEMA)
        .parquet(str(landed))
        .withWatermark("time_hour", "3 days")
        .where(F.col("carrier") != "")
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "by_carrier"))
        .trigger(availableNow=True)
        .start()
    )
    assert by_carrier.awaitTermination(240)
    with pytest.raises(AssertionError):
        assert_above_watermark(optimized_plan(by_carrier))


def optimized_plan(query: StreamingQuery) -> str:
    """The optimized plan of a query's last batch."""
    plans: str = query._jsq.explainInternal(True)
    return plans.partition("== Optimized Logical Plan ==")[2]


def assert_above_watermark(plan: str) -> None:
    """Assert that a plan, printed from the output down, filters what the watermark has already seen."""
    operators = [line for line in plan.splitlines() if "Filter" in line or "EventTimeWatermark" in line]
    assert "Filter" in operators[0]
    assert "EventTimeWatermark" in operators[1]


@pytest.mark.parametrize("files", [0, MAX_FILES_PER_TRIGGER + 1])
def test_batches_that_would_change_the_result_are_refused(spark: SparkSession, tmp_path: Path, files: int) -> None:
    with pytest.raises(ValueError, match="it must be 1 to 8"):
        delays_query(spark, tmp_path, tmp_path, max_files_per_trigger=files)
