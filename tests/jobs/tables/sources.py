"""Jobs that read a table: what another has in a file of its input is a commit of the table."""

from __future__ import annotations

import shutil
from abc import abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from dagster_ckpt.spark.preflight.table_sources import CHECK
from tests.jobs.harness import NEW_PER_FILE, ROWS_PER_FILE, Bench, copied

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["TableBench", "having_read_four", "is_exact_after_a_rollback"]


@dataclass
class TableBench(Bench):
    """A job whose input is a table; the query reads one file a batch.

    Attributes:
        options: of the query's source.
    """

    options: dict[str, str] = field(default_factory=dict)

    def land(self, count: int) -> None:
        for number in range(self.landed, self.landed + count):
            keys = range(number * NEW_PER_FILE, number * NEW_PER_FILE + ROWS_PER_FILE)
            rows = self.spark.createDataFrame([(key, key * 10) for key in keys], "id int, v int")
            self.append(rows.coalesce(1))
        self.landed += count

    @abstractmethod
    def append(self, rows: DataFrame) -> None:
        """Write rows as one file in one commit."""


_Bench = TypeVar("_Bench", bound=TableBench)


def having_read_four(kind: type[_Bench], spark: SparkSession, directory: Path) -> _Bench:
    """A job that has read the four commits of its table, whose query reads each row as often as it is there."""
    bench = kind(spark, directory, query=copied)
    bench.tick(4)
    return bench


def is_exact_after_a_rollback(bench: TableBench, told: str) -> None:
    """Two commits more, and back to the oldest checkpoint: what preflight says of the table has ``told``."""
    bench.tick(2)
    bench.assert_exact()
    oldest = bench.checkpoints()[0]
    shutil.rmtree(bench.working)
    launch = bench.tick(0, restore_from=oldest.reference)
    (finding,) = [item for item in launch.started.preflight.findings if item.check == CHECK]
    assert told in finding.reason
    bench.assert_exact()
