"""Headers name a record: the same ones whenever, and however divided, its batch runs."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING

from dagster_ckpt.spark.kafka.headers import with_kafka_headers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def _named(rows: DataFrame) -> Counter[tuple[str, str, int]]:
    """Key, value and ordinal of each record."""
    named = []
    for row in with_kafka_headers(rows, "orders", 7).collect():
        *_, job, batch, ordinal = row["headers"]
        assert (job["key"], bytes(job["value"])) == ("dagster_ckpt.job", b"orders")
        assert (batch["key"], bytes(batch["value"])) == ("dagster_ckpt.batch", b"7")
        assert ordinal["key"] == "dagster_ckpt.ordinal"
        named.append((row["key"], row["value"], int(bytes(ordinal["value"]))))
    return Counter(named)


def test_ordinals_follow_from_the_values_alone(spark: SparkSession) -> None:
    values = [(f"k{number % 5}", None if number % 7 == 0 else f"v{number // 3}") for number in range(300)]
    first = _named(spark.createDataFrame(values, "key string, value string").repartition(3))
    random.Random(1).shuffle(values)
    assert _named(spark.createDataFrame(values, "key string, value string").coalesce(1)) == first
    assert len({ordinal for *_, ordinal in first}) == 300


def test_headers_that_a_record_has_stay_before_them(spark: SparkSession) -> None:
    schema = "key string, value string, headers array<struct<key: string, value: binary>>"
    rows = spark.createDataFrame([("a", "b", [("mine", bytearray(b"1"))]), ("c", "d", None)], schema)
    headers = {row["key"]: row["headers"] for row in with_kafka_headers(rows, "orders", 0).collect()}
    assert [header["key"] for header in headers["a"]] == ["mine", *(header["key"] for header in headers["c"])]
    assert len(headers["c"]) == 3
