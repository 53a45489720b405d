"""What writes the log of a Delta table: on S3, Delta's default lets two drivers overwrite each other's commits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from dagster_ckpt.errors import InvalidConfiguration
from dagster_ckpt.spark.sinks.delta import DeltaSink
from dagster_ckpt.spark.sinks.delta.table import DeltaTable
from tests.jobs.harness import Bench
from tests.jobs.tables.common import into
from tests.jobs.tables.delta import seen

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.releases

_OF_ONE_DRIVER = "io.delta.storage.S3SingleDriverLogStore"


@contextmanager
def spark_conf(session: SparkSession, name: str, value: str) -> Iterator[None]:
    """A setting as if Spark had been started with it."""
    java: Any = session._jvm
    conf = java.org.apache.spark.SparkEnv.get().conf()
    conf.set(name, value)
    try:
        yield
    finally:
        conf.remove(name)
        java.org.apache.spark.sql.delta.DeltaLog.clearCache()


@pytest.mark.parametrize(
    ("scheme", "is_of_one_driver"),
    [
        *((scheme, True) for scheme in ("s3", "s3a", "s3n")),
        *((scheme, False) for scheme in ("abfss", "file", "gs", "hdfs")),
    ],
)
def test_which_log_stores_are_of_one_driver(bench: Bench, scheme: str, is_of_one_driver: bool) -> None:
    """By Delta's own choice for a scheme."""
    table = DeltaTable(bench.spark, str(bench.sink))
    assert table.written_by_one_driver(f"{scheme}://bucket/table") == is_of_one_driver


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["spark.delta.logStore.file.impl", "spark.delta.logStore.class"])
def test_a_log_of_one_driver_is_refused_by_name(bench: Bench, name: str) -> None:
    """Unless the user makes sure that there is one driver."""
    with spark_conf(bench.spark, name, _OF_ONE_DRIVER):
        bench.query = lambda bench, session: into(DeltaSink(bench.sink), bench, session)
        refusal = bench.refused(InvalidConfiguration)
        assert "S3SingleDriverLogStore" in refusal.message
        assert "spark.delta.logStore.file.impl=io.delta.storage.S3DynamoDBLogStore" in refusal.hint
        assert "single_driver=True" in refusal.hint
        assert not bench.sink.exists()
        bench.query = lambda bench, session: into(DeltaSink(bench.sink, single_driver=True), bench, session)
        bench.tick(1)
        assert seen(bench) == bench.expected()
