"""The charts of a job's report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from dagster_ckpt.config import format_size
from dagster_ckpt.report.charts import Bar, Chart, Point, Series, moment
from dagster_ckpt.report.history import CheckpointRow, JobHistory

__all__ = ["charts_of", "count_text", "seconds_text"]

_COUNTS = (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3))


def charts_of(history: JobHistory) -> list[Chart]:
    """The charts that have something to show: of durations, sizes, the state, the lag, and starts."""
    rows = history.checkpoints
    marks = [start.at for start in history.starts if start.at is not None]
    found = [
        Chart("Duration of a checkpoint", seconds_text, _series(rows, {"pinning and writing": _seconds}), marks=marks),
        Chart(
            "Bytes of a checkpoint",
            _bytes_text,
            _series(rows, {"all": _bytes, "new": _new_bytes}),
            marks=marks,
            kilo=1024,
        ),
        Chart("Rows in the state", count_text, _by_name(rows, lambda row: row.state_rows), marks=marks),
        Chart("Lag: records of Kafka to be read", count_text, _by_name(rows, lambda row: row.lag), marks=marks),
        Chart(
            "Seconds of a start, by epoch",
            seconds_text,
            bars=[
                Bar(
                    str(start.epoch),
                    start.seconds,
                    not start.committed,
                    f"{moment(start.at)}{'' if start.committed else ', no batch was committed'}",
                )
                for start in history.starts
                if start.seconds is not None
            ],
        ),
    ]
    return [chart for chart in found if not chart.is_empty]


def seconds_text(value: float) -> str:
    """Seconds for people, such as ``1.5 s`` or ``20 min``."""
    if value >= 600:
        return f"{value / 60:,.0f} min"
    return f"{value:.3g} s" if value < 100 else f"{value:.0f} s"


def count_text(value: float) -> str:
    """A number for people, such as ``12`` or ``1.5 M``."""
    return next((f"{value / size:.3g} {unit}" for unit, size in _COUNTS if value >= size), f"{value:.3g}")


def _bytes_text(value: float) -> str:
    return format_size(int(value))


def _seconds(row: CheckpointRow) -> float:
    return row.seconds


def _bytes(row: CheckpointRow) -> float:
    return row.bytes


def _new_bytes(row: CheckpointRow) -> float:
    return row.new_bytes


def _series(rows: Sequence[CheckpointRow], values: Mapping[str, Callable[[CheckpointRow], float]]) -> list[Series]:
    return [Series(name, [_point(row, value(row)) for row in rows]) for name, value in values.items()]


def _by_name(rows: Sequence[CheckpointRow], values: Callable[[CheckpointRow], Mapping[str, float]]) -> list[Series]:
    """A series for each name that occurs, those that reach highest first."""
    highest: dict[str, float] = {}
    for row in rows:
        for name, value in values(row).items():
            highest[name] = max(value, highest.get(name, value))
    names = sorted(highest, key=lambda name: (-highest[name], name))
    return [Series(name, [_point(row, values(row)[name]) for row in rows if name in values(row)]) for name in names]


def _point(row: CheckpointRow, value: float) -> Point:
    return Point(row.written_at, value, row.lineage, f"{row.name} of {row.lineage[:8]}, {moment(row.written_at)}")
