"""The rows of the rollback matrix whose sinks are tables, as far as there are any for the running release of Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dagster_ckpt.config.checkpoint_config import CheckpointingMode
from tests.jobs.matrix.cases import BY_FIVE, LOST, OTHER, Base, Case, Outcome
from tests.jobs.matrix.streams import FailureFree, table_sinks

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.servers.postgres import PostgresServer

pytestmark = [pytest.mark.exhaustive, pytest.mark.releases, pytest.mark.timeout(1200)]


@pytest.mark.parametrize("sink", table_sinks())
def test_a_restore_is_exact(spark: SparkSession, tmp_path: Path, postgres: PostgresServer, sink: str) -> None:
    """A rollback with batches of another size, and a crash without the live location; of a query with state."""
    base = ("dropDuplicates", "RocksDB changelog v2", sink)
    stopped = Base(spark, tmp_path, *base, postgres=postgres)
    failure_free = FailureFree(spark, tmp_path / "failure-free")
    for event in (BY_FIVE, LOST):
        case = Case(*base, event, OTHER, CheckpointingMode.EXACTLY_ONCE.value)
        assert stopped.go_on(case, failure_free) == Outcome(), case
