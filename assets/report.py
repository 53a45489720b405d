"""The daily report: what the stream has committed so far, as a table and a picture."""

# No `from __future__ import annotations`: Dagster reads the class of `context` from the annotation itself.

import base64
import io
import os

import dagster as dg
import pandas as pd
from matplotlib.figure import Figure

from assets.batch_answer import read_delays
from assets.settings import DataPaths
from assets.streams import flight_delays
from dagster_ckpt.spark.sinks.spark_sink_log import FileSink

__all__ = ["daily_report", "delay_report", "picture"]

_WORST_DAYS = 10


@dg.asset(
    deps=[flight_delays.key],
    group_name="flights",
    kinds={"pandas", "parquet"},
    description="Flights, cancellations and mean delays per day, from the windows the stream has closed.",
)
def delay_report(context: dg.AssetExecutionContext) -> dg.MaterializeResult[None]:
    """Flights, cancellations and mean delays per day, from the windows the stream has closed.

    Only files that the sink's log lists are read: what a killed batch left behind is not there for a reader.

    Raises:
        dagster.Failure: the stream has not closed a window yet.
    """
    paths = DataPaths.from_environment()
    delays = read_delays(FileSink(paths.delays).committed_files())
    if delays.empty:
        raise dg.Failure(
            f"{paths.delays} holds no closed window yet.",
            metadata={"next": "Materialize flight_delays and let it commit a few batches."},
            allow_retries=False,
        )
    report = daily_report(delays)
    temporary = paths.report.with_name(f".{paths.report.name}.tmp")
    report.to_parquet(temporary, index=False)
    temporary.replace(paths.report)
    context.log.info("Reported %d days from %d windows", len(report), len(delays))
    image = base64.b64encode(picture(report)).decode("ascii")
    worst = report.nlargest(_WORST_DAYS, "mean_departure_delay")
    return dg.MaterializeResult(
        metadata={
            "picture": dg.MetadataValue.md(f"![Delays per day](data:image/png;base64,{image})"),
            "worst_days": dg.MetadataValue.table(_records(worst)),
            "dagster/row_count": dg.MetadataValue.int(len(report)),
            "flights": dg.MetadataValue.int(int(report["flights"].sum())),
            "cancelled": dg.MetadataValue.int(int(report["cancelled"].sum())),
            "path": dg.MetadataValue.path(os.fspath(paths.report)),
        }
    )


def daily_report(delays: pd.DataFrame) -> pd.DataFrame:
    """Sum the windows up to days (UTC).

    Args:
        delays: rows as :func:`assets.batch_answer.read_delays` gives them.

    Returns:
        One row per day, in order: ``day`` (timestamp), ``flights``, ``cancelled``, ``mean_departure_delay``
        (minutes per flight that departed; NaN on a day without one).
    """
    days = delays.groupby(delays["window_start"].dt.floor("D").rename("day"))
    report = days[["flights", "cancelled", "dep_delay_sum"]].sum().astype("float64").reset_index()
    departed = report["flights"] - report["cancelled"]
    report["mean_departure_delay"] = report.pop("dep_delay_sum") / departed.where(departed > 0)
    return report.astype({"flights": "int64", "cancelled": "int64"})


def picture(report: pd.DataFrame) -> bytes:
    """Draw a daily report as a PNG: flights and cancellations above, mean departure delay below."""
    figure = Figure(figsize=(9, 4.5), dpi=90, layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    days = report["day"].dt.tz_localize(None).to_numpy()
    above.fill_between(days, report["flights"], step="mid", color="#9ecae1", label="scheduled")
    above.fill_between(days, report["cancelled"], step="mid", color="#de2d26", label="cancelled")
    above.set_ylabel("flights per day")
    above.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, frameon=False)
    below.plot(days, report["mean_departure_delay"], color="#08519c", linewidth=1)
    below.margins(x=0)
    figure.autofmt_xdate(rotation=0, ha="center")
    below.axhline(0, color="grey", linewidth=0.5)
    below.set_ylabel("mean departure\ndelay (minutes)")
    above.set_title("Flights from New York", loc="left")
    png = io.BytesIO()
    figure.savefig(png, format="png")
    return png.getvalue()


def _records(report: pd.DataFrame) -> list[dg.TableRecord]:
    """Days as Dagster shows them in a table."""
    days = zip(report["day"], report["flights"], report["cancelled"], report["mean_departure_delay"], strict=True)
    return [
        dg.TableRecord(
            {
                "day": f"{day:%Y-%m-%d}",
                "flights": int(flights),
                "cancelled": int(cancelled),
                "mean departure delay (minutes)": round(float(delay), 1),
            }
        )
        for day, flights, cancelled, delay in days
    ]
