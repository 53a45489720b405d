"""The rows of the rollback matrix whose sinks are tables, as far as there are any for the running release of Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dagster_ckpt.config.checkpoint_config import CheckpointingMode
from tests.jobs.matrix.cases import BY_FIVE, LOST, OTHER, Base, Case, Outcome
from tests.jobs.matrix.plain_spark import SINKS as PLAIN_SINKS
from tests.jobs.matrix.plain_spark import PlainBase
from tests.jobs.matrix.streams import CHANGELOG, FailureFree, table_sinks
from tests.jobs.matrix.topics import SOURCES

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from dagster_ckpt.testing.kafka import KafkaServer
    from tests.servers.postgres import PostgresServer

pytestmark = [pytest.mark.exhaustive, pytest.mark.releases, pytest.mark.timeout(3000)]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("sink", table_sinks())
def test_a_restore_is_exact(
    spark: SparkSession, tmp_path: Path, postgres: PostgresServer, kafka: KafkaServer, sink: str, source: str
) -> None:
    """A rollback with batches of another size, and a crash without the live location; of a query with state."""
    base = ("dropDuplicates", CHANGELOG, sink, source)
    stopped = Base(spark, tmp_path, *base, postgres=postgres, kafka=kafka)
    failure_free = FailureFree(spark, tmp_path / "failure-free")
    for event in (BY_FIVE, LOST):
        case = Case(*base, event, OTHER, CheckpointingMode.EXACTLY_ONCE.value)
        assert stopped.go_on(case, failure_free) == Outcome(), case


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("sink", [sink for sink in table_sinks() if sink in PLAIN_SINKS])
def test_spark_alone_is_not(spark: SparkSession, tmp_path: Path, kafka: KafkaServer, sink: str, source: str) -> None:
    """What the row above proves: of a table that nobody rolls back, the comparison finds what is lost or doubled."""
    base = ("stateless", CHANGELOG, sink, source)
    case = Case(*base, BY_FIVE, OTHER, CheckpointingMode.EXACTLY_ONCE.value)
    outcome = PlainBase(spark, tmp_path, *base, kafka=kafka).go_on(case, FailureFree(spark, tmp_path / "failure-free"))
    assert outcome.lost + outcome.doubled > 0
