from __future__ import annotations

from datetime import date
from itertools import accumulate, pairwise
from pathlib import Path

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from assets.delays import flights_of
from assets.flights import (
    CLOSING_FILES,
    MAX_FILES_PER_TRIGGER,
    MAX_RECORDS_PER_TRIGGER,
    SCHEMA,
    LandedFile,
    Lateness,
    _write,
    land,
    landing_plan,
    records,
)
from assets.kafka_to_delta import defs, flight_delays_table
from assets.landing import landed_flights


def is_marker(file: LandedFile) -> bool:
    return Lateness.MARKER in file.rows


def test_the_code_location_loads() -> None:
    dg.Definitions.validate_loadable(defs)
    assert defs.resolve_asset_graph().get(flight_delays_table.key).parent_keys == {landed_flights.key}


def test_a_batch_of_records_is_of_no_more_files_than_the_rule_of_the_answer_allows() -> None:
    sizes = [file.table.num_rows for file in landing_plan() if not is_marker(file)]
    begins = [0, *accumulate(sizes)]
    # With one file more than allowed, a batch would have the files between its first and its last as a whole.
    inside = MAX_FILES_PER_TRIGGER - 1
    assert min(end - begin for begin, end in zip(begins, begins[inside:], strict=False)) + 2 > MAX_RECORDS_PER_TRIGGER


def test_a_batch_with_markers_follows_the_one_that_moves_the_watermark(tmp_path: Path) -> None:
    for file in landing_plan()[-CLOSING_FILES - 1 :]:
        _write(tmp_path, file)
    flights, *markers = records(tmp_path)
    assert len(flights) == landing_plan()[-CLOSING_FILES - 1].table.num_rows
    assert len(markers) == CLOSING_FILES
    assert sum(map(len, markers)) > MAX_RECORDS_PER_TRIGGER


def test_records_come_in_the_order_of_landing(tmp_path: Path) -> None:
    land(tmp_path, days=3)
    days = [date.fromisoformat(path.stem.removeprefix("flights-")) for path in sorted(tmp_path.iterdir())]
    assert all(earlier < later for earlier, later in pairwise(days))
    for day, values in zip(days, records(tmp_path), strict=True):
        assert all(f'"landed": "{day.isoformat()}"' in value for value in values)


@pytest.mark.slow
def test_spark_reads_the_landed_rows_from_the_records(spark: SparkSession, tmp_path: Path) -> None:
    land(tmp_path, days=2)
    sent = [(value.encode(),) for values in records(tmp_path) for value in values]
    found = flights_of(spark.createDataFrame(sent, "value BINARY"))
    landed = spark.read.parquet(str(tmp_path)).select(SCHEMA.names)
    assert found.columns == SCHEMA.names
    assert found.count() == landed.count() > 1000
    assert found.exceptAll(landed).isEmpty()
