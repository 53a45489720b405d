"""The interval at which Spark compacts its logs."""

from __future__ import annotations

import pytest

from dagster_ckpt.spark.files.compactible_log import compact_interval


@pytest.mark.parametrize(
    ("configured", "newest", "interval"),
    [
        (10, None, 10),
        (10, 9, 10),
        (5, 4, 5),
        (10, 4, 5),  # fewer entries than the setting now wants
        (4, 5, 6),  # no smaller number divides six that is at least four
        (3, 4, 5),
        (3, 59, 3),
        (7, 59, 10),
        (31, 59, 60),
    ],
)
def test_the_interval_is_the_one_that_spark_derives(configured: int, newest: int | None, interval: int) -> None:
    assert compact_interval(configured, newest) == interval
