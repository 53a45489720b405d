"""A query of plain Spark beside the jobs of the tests: the same input, sink and rows, and no library."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from click.testing import CliRunner, Result

from dagster_ckpt.cli import main
from dagster_ckpt.config.state_backend import CHANGELOG_CONF, HDFS_PROVIDER, PROVIDER_CONF, ROCKSDB_PROVIDER
from tests.helpers.spark.streaming import confs
from tests.jobs.harness import ROWS_PER_FILE, Bench, Row, deduplicated, tree

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

#: The settings of a query by the state store that it has.
BACKENDS: Mapping[str, Mapping[str, str]] = {
    "hdfs": {PROVIDER_CONF: HDFS_PROVIDER},
    "rocksdb": {PROVIDER_CONF: ROCKSDB_PROVIDER, CHANGELOG_CONF: "true"},
}


def counted(bench: Bench, session: SparkSession) -> DataStreamWriter:
    """How many rows each minute has, told when the next minute has begun. Each file has the rows of one minute."""
    from pyspark.sql import functions  # noqa: PLC0415

    windows = bench.read(session).withWatermark("ts", "0 seconds").groupBy(functions.window("ts", "1 minute")).count()
    return bench.write(windows.selectExpr("minute(window.start) AS id", "CAST(count AS INT) AS v"))


class Counting(Bench):
    """A job that counts the rows of each minute."""

    def expected(self) -> Counter[Row]:
        return Counter({(number, ROWS_PER_FILE): 1 for number in range(self.landed - 1)})


def bench_of(bench: Bench, what: str) -> Bench:
    """A job of this kind in the same place: ``counted``, or any other for deduplication."""
    if what == "counted":
        return Counting(bench.spark, bench.root, query=counted)
    return replace(bench, query=deduplicated)


@dataclass
class Plain:
    """The query of a job's bench, run by Spark alone.

    Attributes:
        bench: the job, of which nothing but input, output and rows is used.
        settings: of the session in which the query is started.
        location: the checkpointLocation.
    """

    bench: Bench
    settings: Mapping[str, str]
    location: Path

    def begin(self) -> StreamingQuery:
        """Start the query."""
        self.bench.land(0)
        with confs(self.bench.spark, dict(self.settings)):
            writer = self.bench.query(self.bench, self.bench.spark)
            return writer.option("checkpointLocation", str(self.location)).start()

    def tick(self, files: int) -> None:
        """Read new files to the end of the data."""
        self.bench.land(files)
        query = self.begin()
        try:
            query.awaitTermination()
        finally:
            query.stop()

    def photograph(self) -> Mapping[str, bytes]:
        """The location with its bytes. Spark's maintenance may still upload and delete state of a stopped query."""
        return {path: data for path, data in tree(self.location).items() if not path.startswith("state/")}


def after_five_batches(bench: Bench, backend: str) -> Plain:
    """A query of plain Spark that was stopped after it has read five files."""
    plain = Plain(bench, BACKENDS[backend], bench.root / "plain")
    plain.tick(5)
    return plain


def export(bench: Bench, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["export", bench.name, *arguments, "--path", str(bench.storage)])


def exported(bench: Bench, to: Path, *arguments: str) -> Plain:
    """Spark alone, with what the command says that Spark needs."""
    done = export(bench, *arguments, "--to", str(to), "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["location"] == str(to)
    assert f'.option("path", "{bench.sink}").option("checkpointLocation", "file:{to}")' in told["code"][-1]
    return Plain(bench, told["settings"], to)


def leaves(bench: Bench, to: Path) -> None:
    """Of a job whose sink is one of this library: Spark alone goes on with its state, in an output of its own."""
    done = export(bench, "--to", str(to), "--json")
    assert done.exit_code == 0, done.output
    output, before = to.parent / "of Spark alone", bench.expected()

    def write(rows: DataFrame, _: int) -> None:
        rows.write.mode("append").parquet(str(output))

    def alone(of: Bench, session: SparkSession) -> DataStreamWriter:
        rows = of.read(session).dropDuplicates(["id"]).select("id", "v")
        return rows.writeStream.foreachBatch(write).trigger(availableNow=True)

    plain = Plain(replace(bench, query=alone), json.loads(done.stdout)["settings"], to)
    plain.tick(2)
    written = Counter(tuple(row) for row in bench.spark.read.parquet(str(output)).select("id", "v").collect())
    assert written == plain.bench.expected() - before
    assert written
