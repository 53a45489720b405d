"""Names with characters that mean something to URLs and shells: Spark, Hadoop and the storage open one place."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dagster_ckpt.errors import InvalidConfiguration
from dagster_ckpt.filesystem import FileSystem, open_filesystem
from dagster_ckpt.paths import hadoop_path, local_path
from dagster_ckpt.spark.query import check_characters, plan_of
from tests.jobs.harness import SCHEMA, Bench, Row

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

#: Each is another directory: a name that is decoded, cut or globbed would mean one of the others.
NAMES = ["a b#c?d%20e", "a b", "a%20b", "a+b", "a#1", "a#2", "a?1", "a%2520b", "é\t\n", "*[x]{y}:;,\\'\"&="]


@dataclass
class OddBench(Bench):
    """A job whose storage, live location and sink lie below an odd name; the storage is given as a URL."""

    odd: str = ""

    @property
    def sink(self) -> Path:
        return self.root / self.odd / "out"

    @property
    def storage(self) -> Path:
        return self.root / self.odd / "storage"

    @property
    def working(self) -> Path:
        return self.root / self.odd / "live"

    def read(self, session: SparkSession) -> DataFrame:
        stream = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", self.files_per_trigger)
        return stream.json(hadoop_path(self.source))

    def seen_by_spark(self) -> Counter[Row]:
        rows = self.spark.read.parquet(hadoop_path(self.sink)).select("id", "v").collect()
        return Counter(tuple(row) for row in rows)

    def write(self, rows: DataFrame) -> DataStreamWriter:
        return super().write(rows).option("path", hadoop_path(self.sink))

    @property
    def filesystem(self) -> FileSystem:
        return open_filesystem(f"file://{self.storage}")


@pytest.fixture
def elsewhere(spark: SparkSession) -> Iterator[None]:
    """Hadoop's default file system is another."""
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    before = hadoop.get("fs.defaultFS")
    hadoop.set("fs.defaultFS", "hdfs://127.0.0.1:9")
    yield
    hadoop.set("fs.defaultFS", before)


@pytest.mark.usefixtures("elsewhere")
def test_a_job_below_an_odd_name(bench: Bench) -> None:
    """Its live location is a path of this machine, whatever Hadoop's default file system is."""
    odd = OddBench(bench.spark, bench.root, odd="a b#c?d%20e\té*[x]{y}:;&=")
    for decoy in ("a b", "a b#c", "a b#c?d e"):
        (bench.root / decoy).mkdir(parents=True)
    (first,) = odd.tick(1).completed
    odd.assert_exact()
    back = odd.tick(1, restore_from=f"file:{odd.catalog.pointer(first)}/_metadata")
    assert back.started.restored == first
    odd.assert_exact()
    assert {entry.name for entry in bench.root.iterdir()} == {"in", odd.odd, "a b", "a b#c", "a b#c?d e"}
    for decoy in ("a b", "a b#c", "a b#c?d e"):
        assert not any((bench.root / decoy).iterdir())


def test_hadoop_means_the_same_directory(spark: SparkSession, tmp_path: Path) -> None:
    hadoop = spark._jvm.org.apache.hadoop.fs  # type: ignore[union-attr]
    local = hadoop.FileSystem.getLocal(spark._jsparkSession.sessionState().newHadoopConf())
    for name in NAMES:
        directory = tmp_path / name
        assert local.mkdirs(hadoop.Path(hadoop_path(directory)))
        assert local_path(f"file://{directory}").is_dir(), name
        assert local_path(str(hadoop.Path(f"file://{directory}/").toString())) == directory
        listed = local.listStatus(hadoop.Path(hadoop_path(tmp_path)))
        assert hadoop_path(directory) in {str(found.getPath().toString()) for found in listed}
    assert {found.name for found in tmp_path.iterdir()} == set(NAMES)
    shutil.rmtree(tmp_path)


def test_the_path_of_a_sink_is_what_hadoop_makes_of_it(spark: SparkSession, tmp_path: Path) -> None:
    def path(text: str) -> str | None:
        return plan_of(spark.readStream.format("rate").load().writeStream.format("parquet").option("path", text)).path

    assert path(f"{tmp_path}/a%20b#c?d") == f"file:{tmp_path}/a%20b#c?d"
    assert path(f"{tmp_path}/link/../out/") == f"file:{tmp_path}/out"


def test_what_the_jvm_has_no_characters_for_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Such a JVM (``LC_ALL=C``) makes the directory ``?`` of ``é`` and of ``è``."""
    system = spark._jvm.java.lang.System  # type: ignore[union-attr]
    before = system.setProperty("sun.jnu.encoding", "ANSI_X3.4-1968")
    try:
        with pytest.raises(InvalidConfiguration, match=r"would open '.*/[?]'") as raised:
            check_characters(spark, f"{tmp_path}/é")
        writer = spark.readStream.format("rate").load().writeStream.format("parquet")
        with pytest.raises(InvalidConfiguration, match="would open"):
            plan_of(writer.option("path", f"{tmp_path}/é"))
        check_characters(spark, str(tmp_path))
    finally:
        system.setProperty("sun.jnu.encoding", before)
    assert "LC_ALL=C.UTF-8" in raised.value.hint
    check_characters(spark, f"{tmp_path}/é")


@pytest.mark.usefixtures("elsewhere")
def test_a_sink_in_another_default_file_system_is_not_taken_for_a_local_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    writer = spark.readStream.format("rate").load().writeStream.format("parquet")
    assert plan_of(writer.option("path", f"file:{tmp_path}/out")).path == f"file:{tmp_path}/out"
    with pytest.raises(InvalidConfiguration, match=r"hdfs://127\.0\.0\.1:9/.* is no local directory"):
        plan_of(writer.option("path", str(tmp_path))).sink()
