"""The numbers of the daily report, their picture and their table."""

from __future__ import annotations

import io

import dagster as dg
import pandas as pd
from matplotlib.figure import Figure

__all__ = ["daily_report", "picture", "table_records"]


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


def table_records(report: pd.DataFrame) -> list[dg.TableRecord]:
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
