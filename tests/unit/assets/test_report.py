from __future__ import annotations

import base64
import shutil
from pathlib import Path

import dagster as dg
import pandas as pd
import pytest
from pyspark.sql import SparkSession

from assets.batch_answer import batch_answer, read_delays
from assets.daily_report import daily_report, picture
from assets.delays import delays_query
from assets.flights import Lateness, land
from assets.report import delay_report
from assets.settings import DATA_VARIABLE, DataPaths
from dagster_ckpt.spark.sinks.spark_sink_log import FileSink


@pytest.fixture(scope="module")
def delays(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    landed: Path = tmp_path_factory.mktemp("landed")
    assert land(landed, days=10).rows(Lateness.ON_TIME) > 0
    return batch_answer(landed)


def test_report_sums_windows_up_to_days(delays: pd.DataFrame) -> None:
    report = daily_report(delays)
    assert list(report.columns) == ["day", "flights", "cancelled", "mean_departure_delay"]
    assert list(report["day"].dt.day) == list(range(1, 11))
    assert report["flights"].sum() == delays["flights"].sum()
    assert report["cancelled"].sum() == delays["cancelled"].sum()
    departed = report["flights"] - report["cancelled"]
    total = (report["mean_departure_delay"] * departed).sum()
    assert total == pytest.approx(delays["dep_delay_sum"].sum())


def test_a_day_without_departures_has_no_mean(delays: pd.DataFrame) -> None:
    one = delays.head(1).assign(flights=4, cancelled=4, dep_delay_sum=None)
    assert daily_report(one)["mean_departure_delay"].isna().all()


def test_picture_is_a_small_png(delays: pd.DataFrame) -> None:
    png = picture(daily_report(delays))
    assert png.startswith(b"\x89PNG")
    assert len(png) < 150_000, "it is kept in Dagster's event log"


@pytest.mark.slow
def test_asset_reports_what_the_sink_has_committed(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    paths = DataPaths(tmp_path)
    land(paths.landed, days=12)
    query = (
        delays_query(spark, paths.landed, paths.delays)
        .option("checkpointLocation", str(tmp_path / "live"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(240)
    committed = FileSink(paths.delays).committed_files()
    # What a killed batch leaves: a data file that the sink's log does not list.
    shutil.copy(committed[-1], committed[-1].with_name("part-00000-left-behind.snappy.parquet"))

    with dg.DagsterInstance.ephemeral() as instance:
        result = dg.materialize([delay_report], instance=instance)
    (materialization,) = result.asset_materializations_for_node("delay_report")
    values = {key: value.value for key, value in materialization.metadata.items()}
    delays = read_delays(committed)
    assert values["flights"] == delays["flights"].sum() > 0
    assert values["cancelled"] == delays["cancelled"].sum()
    assert values["dagster/row_count"] == len(pd.read_parquet(paths.report)) == len(daily_report(delays))
    scheme, image = str(values["picture"]).removeprefix("![Delays per day](").removesuffix(")").split(",")
    assert scheme == "data:image/png;base64"
    assert base64.b64decode(image) == picture(daily_report(delays))


def test_asset_without_a_closed_window_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    with (
        dg.DagsterInstance.ephemeral() as instance,
        pytest.raises(dg.Failure, match="no closed window") as raised,
    ):
        dg.materialize([delay_report], instance=instance)
    assert "Materialize flight_delays" in str(raised.value.metadata["next"].value)
