from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from assets.batch_answer import COLUMNS, batch_answer, compare, read_delays
from assets.flights import SCHEMA, Lateness, land, landing_plan


def landed(directory: Path, rows: list[dict[str, Any]]) -> Path:
    """A landing directory of one file; rows as dictionaries with the columns of the schema."""
    directory.mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), directory / "flights-2013-05-10.parquet")
    return directory


def row(day: int, hour: int, *, delay: int | None = 0, arrival: int | None = 0) -> dict[str, Any]:
    """A flight of May 2013 that lands on the 10th."""
    return {
        "time_hour": datetime(2013, 5, day, hour, tzinfo=UTC),
        "carrier": "UA",
        "origin": "JFK",
        "dep_delay": delay,
        "arr_delay": arrival,
        "landed": date(2013, 5, 10),
    }


def test_windows_counts_and_sums(tmp_path: Path) -> None:
    rows = [
        row(10, 5, delay=3, arrival=-4),
        row(10, 6, delay=10, arrival=None),
        row(10, 11, delay=None, arrival=None),
        row(10, 12, delay=None, arrival=None),
    ]
    answer = batch_answer(landed(tmp_path / "landed", rows))
    assert tuple(answer.columns) == COLUMNS
    assert list(answer["window_start"].dt.hour) == [0, 6, 12]
    assert list(answer["window_end"].dt.hour) == [6, 12, 18]
    assert list(answer["flights"]) == [1, 2, 1]
    assert list(answer["cancelled"]) == [0, 1, 1]
    assert list(answer["dep_delay_sum"].astype(object).where(answer["dep_delay_sum"].notna(), None)) == [
        3,
        10,
        None,
    ]
    assert list(answer["arr_delay_sum"].isna()) == [False, True, True]


@pytest.mark.parametrize(("day", "counted"), [(10, 1), (9, 1), (7, 1), (6, 0)])
def test_three_days_late_is_counted_four_are_not(tmp_path: Path, day: int, counted: int) -> None:
    assert len(batch_answer(landed(tmp_path / "landed", [row(day, 0)]))) == counted


def test_markers_are_no_flights(tmp_path: Path) -> None:
    marker = landing_plan()[-1].table.to_pylist()
    assert batch_answer(landed(tmp_path / "landed", [row(10, 0), *marker]))["flights"].sum() == 1


def test_the_year_counts_all_but_the_too_late(tmp_path: Path) -> None:
    landing = land(tmp_path)
    answer = batch_answer(tmp_path)
    assert answer["flights"].sum() == landing.rows(Lateness.ON_TIME) + landing.rows(Lateness.LATE)
    assert answer["cancelled"].sum() > 0


def test_nothing_landed_names_the_next_step(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="materialize landed_flights"):
        batch_answer(tmp_path)


def test_comparison_sees_lost_doubled_and_changed_rows(tmp_path: Path) -> None:
    answer = batch_answer(landed(tmp_path / "landed", [row(10, hour) for hour in (0, 6, 12)]))
    assert compare(answer, answer.iloc[::-1]).identical

    lost = compare(answer, answer.iloc[1:])
    assert (lost.identical, len(lost.missing), len(lost.surplus)) == (False, 1, 0)

    doubled = compare(answer, pd.concat([answer, answer.iloc[:1]]))
    assert (doubled.identical, len(doubled.missing), len(doubled.surplus)) == (False, 0, 1)

    changed = compare(answer, answer.assign(arr_delay_sum=answer["arr_delay_sum"] + [0, 0, 1]))
    assert (changed.identical, len(changed.missing), len(changed.surplus)) == (False, 1, 1)


def test_no_files_are_no_rows(tmp_path: Path) -> None:
    nothing = read_delays([])
    assert len(nothing) == 0
    answer = batch_answer(landed(tmp_path / "landed", [row(10, 0)]))
    assert compare(answer, nothing).missing == (tuple(answer.astype(object).iloc[0]),)
