"""The release of Spark that runs these tests: what the table says of it, and whole jobs under it."""

from __future__ import annotations

import shutil
from inspect import signature
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.streaming.readwriter import DataStreamWriter

from dagster_ckpt.config.state_backend import STATE_FORMAT_CONF, StateLayout
from dagster_ckpt.errors import InvalidConfiguration, UnsupportedSpark
from dagster_ckpt.spark.capture.from_disk import capture
from dagster_ckpt.spark.capture.state_files import StateStore, unplanned
from dagster_ckpt.spark.files.checkpoint_location import CheckpointLocation
from dagster_ckpt.spark.releases import EVERY_FORMAT, release_of
from tests.helpers.spark.streaming import VARIANTS, Job, confs, discard, materialize, write_input
from tests.jobs.harness import Bench, copied

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.releases, pytest.mark.quick]
_STREAMING = "org.apache.spark.sql.execution.streaming"


def _greatest(spark: SparkSession, log: str) -> int | None:
    """The greatest version of a log that Spark says to read, ``None`` where Spark has no such constant."""
    jvm: Any = spark._jvm
    for name in (f"{_STREAMING}.checkpointing.{log}$", f"{_STREAMING}.{log}$"):
        try:
            companion = jvm.java.lang.Class.forName(name)
        except Exception:
            continue
        named = {method.getName() for method in companion.getMethods()}
        return int(companion.getField("MODULE$").get(None).MAX_VERSION()) if "MAX_VERSION" in named else None
    raise AssertionError(f"{log} is not there")


def _is_known(spark: SparkSession, key: str) -> bool:
    """Whether Spark has a setting; only of those that it has it tells a default."""
    try:
        spark.conf.get(key)
    except PySparkException:
        return False
    return True


def test_the_table_is_what_this_spark_says(spark: SparkSession) -> None:
    release = release_of(spark.version)
    assert spark.version.startswith(f"{release.name}.")
    for log, read in (("OffsetSeqLog", release.formats.offset_log), ("CommitLog", release.formats.commit_log)):
        # Older releases have no constant, and the commit log follows the state format.
        greatest = _greatest(spark, log)
        assert read == ((1,) if log == "OffsetSeqLog" else (1, 2)) if greatest is None else max(read) == greatest
        assert (greatest is None) == release.commit_log_is_state_format
    has = {
        "spark.sql.streaming.checkpoint.fileChecksum.enabled": bool(release.file_checksums),
        "spark.sql.streaming.stateStore.rowChecksum.enabled": release.row_checksums,
        "spark.sql.streaming.queryEvolution.enableSourceEvolution": release.named_sources,
    }
    assert {key: _is_known(spark, key) for key in has} == has
    assert ("realTime" in signature(DataStreamWriter.trigger).parameters) == release.real_time
    assert hasattr(type(spark), "_streamingCheckpointManager") == release.repartitions_state
    assert set(release.formats.commit_log) <= set(EVERY_FORMAT.commit_log)


@pytest.mark.parametrize("provider", ["hdfs", "rocksdb"])
def test_state_in_the_files_that_the_table_says_goes_on(spark: SparkSession, tmp_path: Path, provider: str) -> None:
    """RocksDB in the newest format that this Spark has. A capture has checksum files for format 2 only."""
    release = release_of(spark.version)
    state_format = 1 if provider == "hdfs" else max(release.formats.state)
    variant = {"hdfs1": "hdfs", "rocksdb1": "rocks+changelog", "rocksdb2": "rocks-v2+changelog"}[
        f"{provider}{state_format}"
    ]
    write_input(tmp_path / "in", range(4))
    job = Job(spark, "aggregation", VARIANTS[variant], tmp_path / "in")
    expected = job.run(tmp_path / "whole")
    shutil.rmtree(tmp_path / "in")
    write_input(tmp_path / "in", range(2))
    job.run(tmp_path / "live")
    state = tmp_path / "live" / "state" / "0" / "0"
    has = any(not file.name.startswith(".") for file in state.glob("*.crc"))
    assert has == (state_format in release.file_checksums)
    names = [file.name for file in state.iterdir()]
    assert not unplanned(StateStore("state/0/0", names, 2), StateLayout(provider))
    snapshot = capture(CheckpointLocation(tmp_path / "live"), 1, tmp_path / "pins")
    assert any(file.path.endswith(".crc") for file in snapshot.files) == (has and state_format == 2)
    discard(tmp_path / "live")
    write_input(tmp_path / "in", range(2, 4))
    went_on = job.run(materialize(snapshot, tmp_path / "restored"))
    assert {batch: went_on[batch] for batch in (2, 3)} == {batch: expected[batch] for batch in (2, 3)}


@pytest.mark.parametrize("state_format", ["1", "2"])
def test_a_query_without_state_goes_on_and_goes_back(bench: Bench, spark: SparkSession, state_format: str) -> None:
    """Under the commit log of either version, which some releases read by the session's state format alone."""
    bench.query = copied
    with confs(spark, {STATE_FORMAT_CONF: state_format}):
        if int(state_format) not in release_of(spark.version).formats.state:
            assert "set it to 1" in bench.refused(InvalidConfiguration).hint
            return
        bench.tick(2)
    assert bench.checkpoints()[0].facts.commit_log == int(state_format)
    bench.tick(1)
    bench.assert_exact()
    bench.files_per_trigger = 2
    bench.tick(1, restore_from="chk-1")
    bench.assert_exact()


def test_another_spark_is_refused_by_name(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(bench.spark), "version", property(lambda _: "3.5.7"))
    refusal = bench.refused(UnsupportedSpark)
    assert refusal.message == "This is Spark 3.5.7, and dagster-ckpt works with Spark 4.0 to 4.3."
    assert 'pip install "pyspark==4.3.*"' in refusal.hint
    assert not refusal.recoverable
