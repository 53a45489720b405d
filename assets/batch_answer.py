"""The same question answered in one go, without Spark, to hold the stream's answer against.

What the watermark does to a row can be said without it. A file of day ``d`` holds flights of day ``d``, late
ones of ``d - 1`` and too late ones of ``d - 30``, and batches take at most eight files in the order of their
days. In the batch that begins with day ``a`` (so that ``a <= d <= a + 7``), Spark drops a row when its window
ended at or before the watermark that the batch before, or the one before that, had left behind:

* that watermark is at most three days before the last event of day ``a - 1``, thus before ``a - 3``, and a
  row of day ``d - 3`` or later is in a window that ends after ``a - 3``: it is counted, wherever the batches
  begin;
* it is at least three days before the first event of day ``a - 9``, thus at or after ``a - 12``, and a window
  of day ``d - 30`` ends at or before ``d - 29 <= a - 22``: it is dropped, wherever the batches begin. The
  first two batches have no watermark yet, but they end before the 31st day, the first one with such rows.

A batch of records of Kafka begins and ends within a day, and takes records of at most eight files, too. Its rows of
day ``d`` and ``d - 1`` are counted, and those of day ``d - 30`` are dropped, for the same reasons.

So the rule is: counted if and only if the row landed at most three days after its event day (in UTC).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from assets.delays import WATERMARK_DAYS, WINDOW_HOURS
from assets.flights import END_OF_DATA

__all__ = ["COLUMNS", "Comparison", "batch_answer", "compare", "normalized", "read_delays"]

COLUMNS = (
    "window_start",
    "window_end",
    "carrier",
    "origin",
    "flights",
    "cancelled",
    "dep_delay_sum",
    "arr_delay_sum",
)
_KEYS = ["window_start", "carrier", "origin"]
_MEASURES = ["flights", "cancelled", "dep_delay_sum", "arr_delay_sum"]
Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two answers compared as multisets of rows: order is free, a doubled or lost row is not.

    Attributes:
        expected: rows the batch computation has.
        actual: rows the stream wrote.
        missing: rows the stream should have written (more often).
        surplus: rows the stream should not have written (so often).
    """

    expected: int
    actual: int
    missing: tuple[Row, ...]
    surplus: tuple[Row, ...]

    @property
    def identical(self) -> bool:
        """Whether both hold the same rows, each as often."""
        return not self.missing and not self.surplus


def batch_answer(landed: Path) -> pd.DataFrame:
    """The rows the stream must have written when it has read every file of ``landed``, markers included.

    Columns and meaning are those of :func:`assets.delays.delays_query`; timestamps are in UTC, in order.

    Raises:
        FileNotFoundError: nothing has landed there.
    """
    rows = _read(sorted(landed.glob("flights-*.parquet")), landed)
    rows = rows[rows["time_hour"] < END_OF_DATA]
    event_day = rows["time_hour"].dt.floor("D").dt.tz_localize(None)
    rows = rows[pd.to_datetime(rows["landed"]) - event_day <= pd.Timedelta(days=WATERMARK_DAYS)]
    answer = (
        rows.assign(
            window_start=rows["time_hour"].dt.floor(f"{WINDOW_HOURS}h"),
            dep_delay=rows["dep_delay"].astype("Int64"),
            arr_delay=rows["arr_delay"].astype("Int64"),
            is_cancelled=rows["dep_delay"].isna(),
        )
        .groupby(_KEYS)
        .agg(
            flights=("time_hour", "size"),
            cancelled=("is_cancelled", "sum"),
            # A sum over nothing but nulls is null, as in SQL.
            dep_delay_sum=("dep_delay", lambda delays: delays.sum(min_count=1)),
            arr_delay_sum=("arr_delay", lambda delays: delays.sum(min_count=1)),
        )
        .reset_index()
    )
    answer["window_end"] = answer["window_start"] + pd.Timedelta(hours=WINDOW_HOURS)
    return normalized(answer)


def read_delays(files: Iterable[Path]) -> pd.DataFrame:
    """What a stream wrote, from the files its sink has committed (possibly none), in order."""
    paths = sorted(files)
    if not paths:
        return normalized(pd.DataFrame(columns=list(COLUMNS)))
    return normalized(_read(paths, paths[0].parent))


def compare(expected: pd.DataFrame, actual: pd.DataFrame) -> Comparison:
    """Compare two answers, each with the columns :data:`COLUMNS`, as multisets of rows."""
    wanted, found = _multiset(expected), _multiset(actual)
    return Comparison(
        expected=len(expected),
        actual=len(actual),
        missing=tuple((wanted - found).elements()),
        surplus=tuple((found - wanted).elements()),
    )


def normalized(rows: pd.DataFrame) -> pd.DataFrame:
    """The same rows with one type per column, whoever wrote them, sorted."""
    rows = rows.loc[:, list(COLUMNS)]
    times = {name: pd.to_datetime(rows[name], utc=True).dt.as_unit("us") for name in COLUMNS[:2]}
    measures = {name: rows[name].astype("Int64") for name in _MEASURES}
    return rows.assign(**times, **measures).sort_values(_KEYS, ignore_index=True)


def _multiset(rows: pd.DataFrame) -> Counter[Row]:
    """Rows and how often each occurs; every null is the same null."""
    plain = rows.loc[:, list(COLUMNS)].astype(object)
    return Counter(plain.where(plain.notna(), None).itertuples(index=False, name=None))


def _read(paths: list[Path], directory: Path) -> pd.DataFrame:
    """The rows of several Parquet files."""
    if not paths:
        raise FileNotFoundError(f"No flights have landed in {directory}: materialize landed_flights first.")
    return pd.concat([pd.read_parquet(path) for path in paths], ignore_index=True)
