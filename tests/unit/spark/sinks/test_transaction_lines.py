"""Whose data counts in a sink, by the line of its starts."""

from __future__ import annotations

import pytest

from dagster_ckpt.spark.sinks.transactions import Line

LINE = Line(3, 2, {"first": 4, "second": None})


@pytest.mark.parametrize(
    ("start", "batch", "counts"),
    [
        ("first", 0, True),
        ("first", 4, True),
        ("first", 5, False),
        ("second", 99, True),
        ("another", 0, False),
        ("another", -1, True),
    ],
)
def test_what_counts(start: str, batch: int, counts: bool) -> None:
    assert LINE.covers(start, batch) is counts


@pytest.mark.parametrize(("batch", "first", "second"), [(3, 3, 3), (4, 4, 4), (7, 4, 7)])
def test_a_rollback_cuts_every_start(batch: int, first: int, second: int) -> None:
    assert LINE.until(batch) == {"first": first, "second": second}
