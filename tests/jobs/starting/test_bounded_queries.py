"""Which queries end by themselves."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from dagster_ckpt.spark.query import plan_of


@pytest.mark.parametrize(
    ("trigger", "is_bounded"),
    [({"availableNow": True}, True), ({"once": True}, True), ({"processingTime": "1 second"}, False), ({}, False)],
)
def test_the_trigger_tells(spark: SparkSession, trigger: dict[str, Any], is_bounded: bool) -> None:
    writer = spark.readStream.format("rate").load().writeStream.format("noop")
    assert plan_of(writer.trigger(**trigger) if trigger else writer).is_bounded is is_bounded
