"""Programs in PyFlink's spelling on the shared Spark session."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING

import pytest

from tests.jobs.harness import Bench

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


@pytest.fixture
def bench(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """The input and output of a job; its live locations are where they are by default, below a temporary directory."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return Bench(spark, tmp_path / "job")
