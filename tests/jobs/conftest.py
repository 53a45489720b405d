"""Jobs on the shared Spark session."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.jobs.harness import Bench, Pristine
from tests.jobs.savepoints import Take, take_into

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession


@pytest.fixture
def bench(spark: SparkSession, tmp_path: Path) -> Bench:
    """A job that never ran."""
    return Bench(spark, tmp_path / "job")


@pytest.fixture(scope="session")
def three_ticks(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Pristine:
    """A job that was run three times, two files each; each run left one checkpoint: batches 1, 3 and 5."""
    directory = tmp_path_factory.mktemp("three-ticks")
    bench = Bench(spark, directory / "job")
    for _ in range(3):
        bench.tick(2)
    return Pristine(bench, directory / "backup")


@pytest.fixture
def ticked(three_ticks: Pristine) -> Iterator[Bench]:
    """The job of ``three_ticks``, to be spoiled."""
    with three_ticks.borrowed() as bench:
        yield bench


@pytest.fixture
def take(tmp_path: Path) -> Take:
    """Takes savepoints of a job."""
    return take_into(tmp_path / "savepoints")
