"""The interval at which Spark compacts its logs."""

from __future__ import annotations

from pathlib import Path

import pytest

from dagster_ckpt.spark.files.checkpoint_location import CheckpointLocation
from dagster_ckpt.spark.files.compactible_log import compact_interval, log_files
from tests.helpers.spark.live_location import LiveLocation


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


@pytest.mark.parametrize("batch", [19, 24, 28, 29, 36])
@pytest.mark.parametrize("configured", [3, 5, 10, 20])
def test_a_captured_log_goes_on_with_its_interval_whatever_is_configured(
    tmp_path: Path, batch: int, configured: int
) -> None:
    """From 19.compact alone, Spark would compact every 20 entries, or every 5 and miss 24.compact."""
    one = LiveLocation(tmp_path / "checkpoint", interval=10)
    one.run(batch + 1)
    before = one.read()
    one.keep(log_files(CheckpointLocation(one.path).names("sources/0"), batch, "sources/0"))
    one.interval = configured
    assert one.read() == before
    for later in range(batch + 1, batch + 12):
        one.plan(later)
    log = one.path / "sources" / "0"
    compacted = {int(file.stem) for file in log.glob("*.compact")}
    assert compacted == {entry for entry in range(min(compacted), batch + 12) if entry % 10 == 9}
    assert one.read() == [*before, *(f"file:///in/{later}.json" for later in range(batch + 1, batch + 12))]
