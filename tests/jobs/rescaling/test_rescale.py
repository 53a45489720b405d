"""A restore with another number of state partitions, by Spark's own offline repartition."""

from __future__ import annotations

import itertools
import shutil
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from dagster_ckpt.checkpoint.catalog.newest import find_newest
from dagster_ckpt.cli import main
from dagster_ckpt.config import STATE_FORMAT_CONF
from dagster_ckpt.errors import (
    CheckpointError,
    InvalidConfiguration,
    RestoreRefused,
    SinkMismatch,
    StorageError,
)
from dagster_ckpt.spark.releases import release_of
from dagster_ckpt.spark.sinks.sink import sink_to
from dagster_ckpt.spark.sinks.user_sinks import ForeachBatchSink
from tests.helpers.spark.streaming import confs
from tests.jobs.fails_once import FailsOnce
from tests.jobs.harness import NEVER, Bench, copied
from tests.jobs.matrix.streams import (
    BACKENDS,
    CHANGELOG,
    FILE,
    FOREACH_BATCH,
    JOIN,
    NO_DATA,
    POSTGRES,
    QUERIES,
    REPLACING,
    TRANSACTIONAL,
    FailureFree,
    Row,
    Target,
    rescaled_tables,
)
from tests.servers.postgres import rows as table_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata
    from tests.jobs.savepoints import Take
    from tests.servers.postgres import PostgresServer

_PARTITIONS = "spark.sql.shuffle.partitions"
_FOUR = {_PARTITIONS: "4", NO_DATA[0]: NO_DATA[1]}
#: The formats of tables for this Spark; the older releases of Spark have some, and the newest has none yet.
_FORMATS = [sink for sink in rescaled_tables() if sink != POSTGRES]


@dataclass
class Job:
    """A stateful query with an exactly-once sink; one file of its input is one batch."""

    spark: SparkSession
    root: Path
    query: str = "dropDuplicates"
    sink: str = TRANSACTIONAL
    bench: Bench = field(init=False)

    def __post_init__(self) -> None:
        self.bench = Bench(self.spark, self.root, query=self._build)

    def _build(self, bench: Bench, session: SparkSession) -> DataStreamWriter:
        rows = QUERIES[self.query](partial(bench.read, session))
        return self.target.writer(rows).trigger(availableNow=True)

    @property
    def target(self) -> Target:
        return Target(self.sink, self.root / "out")

    def newest(self) -> CheckpointMetadata:
        return self.bench.checkpoints()[-1]

    def rows(self) -> Counter[Row]:
        return self.target.rows()


def _writing_to(sink: str, spark: SparkSession, root: Path, postgres: PostgresServer) -> Job:
    """A job with a sink of a kind, in PostgreSQL with a table for its rows."""
    job = Job(spark, root, sink=sink)
    if sink == POSTGRES:
        root.mkdir(parents=True)
        job.target.reach.write_text(postgres.database())
        table_rows(job.target.reach.read_text(), "CREATE TABLE rows (id int, v int, at bigint, batch bigint)")
    return job


#: What of all ways to break off is tried each time.
_TRIED = ((".choice", None, TRANSACTIONAL), ("/begin", 7, REPLACING))


@pytest.fixture
def four(spark: SparkSession) -> Iterator[SparkSession]:
    """The session, with four partitions for the queries that start from nothing."""
    with confs(spark, {**BACKENDS[CHANGELOG], **_FOUR}):
        yield spark


def _partitions(metadata: CheckpointMetadata) -> tuple[set[int], set[str]]:
    """The recorded number of partitions of each operator, and the partitions that have files."""
    files = [file.path.split("/") for file in metadata.files]
    return (
        {operator.partitions for operator in metadata.facts.operators},
        {parts[3] for parts in files if parts[:2] == ["checkpoint", "state"] and parts[3].isdigit()},
    )


def _of(number: int) -> tuple[set[int], set[str]]:
    return {number}, {str(partition) for partition in range(number)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("query", "backend", "sink"),
    [
        pytest.param("window aggregation", CHANGELOG, TRANSACTIONAL, marks=pytest.mark.exhaustive),
        pytest.param("window aggregation", "RocksDB", FOREACH_BATCH, marks=pytest.mark.exhaustive),
        pytest.param("dropDuplicates", "RocksDB", TRANSACTIONAL, marks=pytest.mark.exhaustive),
        pytest.param(JOIN, CHANGELOG, TRANSACTIONAL, marks=pytest.mark.exhaustive),
        pytest.param("transformWithStateInPandas", CHANGELOG, TRANSACTIONAL, marks=pytest.mark.exhaustive),
        ("dropDuplicates", CHANGELOG, REPLACING),
        *(
            pytest.param(query, CHANGELOG, sink, marks=(pytest.mark.exhaustive, pytest.mark.releases))
            for sink in _FORMATS
            for query in ("window aggregation", "dropDuplicates", JOIN, "transformWithStateInPandas")
        ),
    ],
)
def test_the_rows_are_those_of_an_uninterrupted_run(
    query: str, backend: str, sink: str, spark: SparkSession, tmp_path: Path
) -> None:
    """Of plain Spark, with the same batches."""
    with confs(spark, {**BACKENDS[backend], **_FOUR}):
        job = Job(spark, tmp_path / "job", query, sink)
        job.bench.tick(2)
        before = job.newest()
        assert _partitions(before) == _of(4)
        for number in (2, 7):
            launch = job.bench.tick(2, state_partitions=number)
            restored = launch.started.restored
            assert restored is not None
            assert (restored.kind, restored.facts.partitions, _partitions(restored)) == ("rescale", number, _of(number))
            assert _partitions(job.newest()) == _of(number)
        assert job.newest().batch == 7  # six with data, and two repartitions
        if sink == REPLACING:
            # What the sink has last comes of the repartitioned state, and not of this checkpoint.
            job.bench.refused(RestoreRefused, restore_from=before.reference, state_partitions=7)
            job.bench.tick(2)
        else:
            went_back = job.bench.tick(restore_from=before.reference)
            assert went_back.started.restored == before
            assert (job.newest().batch, _partitions(job.newest())) == (5, _of(4))
            job.bench.tick(2, restore_from=before.reference, state_partitions=7)
            assert _partitions(job.newest()) == _of(7)
        rows = job.rows()
        assert rows
        batches = [[file] for file in sorted(job.bench.source.glob("*.json"))]
        assert rows == FailureFree(spark, tmp_path / "plain").answer(query, batches)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sink", "interval"),
    [
        pytest.param(FILE, 3, marks=pytest.mark.exhaustive),
        pytest.param(FILE, 10, marks=pytest.mark.exhaustive),
        pytest.param(POSTGRES, 10, marks=pytest.mark.exhaustive),
        *(pytest.param(sink, 10, marks=(pytest.mark.exhaustive, pytest.mark.releases)) for sink in _FORMATS),
    ],
)
def test_a_sink_goes_without_the_batch_of_the_repartition(
    sink: str, interval: int, spark: SparkSession, tmp_path: Path, postgres: PostgresServer
) -> None:
    """With a checkpoint of nothing but the repartition, and a rollback to it."""
    compacts = {"spark.sql.streaming.fileSink.log.compactInterval": str(interval)}
    with confs(spark, {**BACKENDS[CHANGELOG], **_FOUR, **compacts}):
        whole = _writing_to(sink, spark, tmp_path / "whole", postgres)
        whole.bench.files_per_trigger = 7
        whole.bench.tick(7)
        job = _writing_to(sink, spark, tmp_path / "job", postgres)
        job.bench.tick(2)
        job.bench.tick(0, state_partitions=2)  # its number is that of a compaction, if the interval is 3
        rescaled = job.newest()
        assert rescaled.batch == 2
        job.bench.tick(1)
        job.bench.tick(1, restore_from=rescaled.reference)
        job.bench.tick(1, state_partitions=7)
        job.bench.tick(2)
        assert _partitions(job.newest()) == _of(7)
        assert job.rows() == whole.rows()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ends", "again", "sink"),
    [
        pytest.param(*how, marks=() if how in _TRIED else pytest.mark.exhaustive)
        for how in itertools.product([".choice", "/begin"], [None, 7], [TRANSACTIONAL, REPLACING])
    ],
)
def test_it_breaks_off_before_the_query_starts(
    ends: str, again: int | None, sink: str, four: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The repartitioned copy is a checkpoint already, and the job goes on from there."""
    whole = Job(four, tmp_path / "whole", sink=sink)
    whole.bench.tick(6)
    job = Job(four, tmp_path / "job", sink=sink)
    job.bench.tick(2)
    monkeypatch.setattr(FailsOnce, "ends", ends)
    failing = job.bench.job(filesystem=FailsOnce(job.bench.storage))
    launch = job.bench.launch(failing, state_partitions=7)
    with pytest.raises(StorageError, match="full"):
        launch.result()
    rescaled = find_newest(job.bench.catalog).metadata
    assert rescaled is not None
    assert (rescaled.kind, rescaled.batch) == ("rescale", 2)

    assert job.bench.tick(2, state_partitions=again).started.restored == rescaled
    # The batches after it belong to it, also where the start that has made it never began.
    plans = job.bench.catalog.records.plans(rescaled.job_id)
    assert [plan.batch for plan in plans.after(rescaled)] == [3, 4]
    job.bench.tick(2)
    assert _partitions(job.newest()) == _of(7)
    assert job.rows() == whole.rows()


@pytest.mark.exhaustive
def test_the_same_number_again_keeps_the_batches_after_the_repartition(
    four: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a driver that is always started with the same words. Its sink only replaces what has the same number."""
    whole = Job(four, tmp_path / "whole", sink=REPLACING)
    whole.bench.tick(6)
    job = Job(four, tmp_path / "job", sink=REPLACING)
    job.bench.tick(2)
    job.bench.land(3)
    monkeypatch.setattr(FailsOnce, "ends", "chk-3/_metadata")  # the second is of the repartition
    with pytest.raises(CheckpointError, match="full"):
        job.bench.launch(job.bench.job(filesystem=FailsOnce(job.bench.storage)), state_partitions=7).result()
    assert len(list(job.target.path.glob("*.json"))) == 5
    shutil.rmtree(job.bench.live())
    job.bench.files_per_trigger = 4
    job.bench.tick(1, state_partitions=7)
    assert job.rows() == whole.rows()


@pytest.mark.exhaustive
def test_batches_of_the_line_before_are_not_replayed(four: SparkSession, tmp_path: Path) -> None:
    """The batch that the repartition has taken the number of is another one on each line."""
    whole = Job(four, tmp_path / "whole", "window aggregation")
    whole.bench.tick(6)
    job = Job(four, tmp_path / "job", "window aggregation")
    job.bench.tick(1)
    first = job.newest()
    job.bench.tick(2)
    job.bench.tick(2, restore_from=first.reference, state_partitions=2)
    plans = job.bench.catalog.records.plans(first.job_id)
    assert [plan.batch for plan in plans.after(first)] == [1, 2]  # as they were before the repartition
    job.bench.tick(1, restore_from=first.reference, replay_to="latest")
    assert job.rows() == whole.rows()


@pytest.mark.exhaustive
def test_a_savepoint_begins_a_lineage_with_another_number(four: SparkSession, tmp_path: Path, take: Take) -> None:
    whole = Job(four, tmp_path / "whole")
    whole.bench.tick(4)
    job = Job(four, tmp_path / "job")
    job.bench.tick(2)
    savepoint = take(job.bench)
    job.bench.tick(1)
    launch = job.bench.tick(1, restore_from=savepoint.pointer, state_partitions=3)
    restored = launch.started.restored
    assert restored is not None
    assert (restored.kind, restored.job_id, restored.restored_from) == (
        "rescale",
        launch.started.job_id,
        savepoint.pointer,
    )
    assert _partitions(job.newest()) == _of(3)
    assert job.rows() == whole.rows()


@pytest.mark.exhaustive
def test_an_older_checkpoint_than_a_broken_repartition(four: SparkSession, tmp_path: Path) -> None:
    """A sink that goes back falls back to it; one that replaces batches holds those after the repartition."""
    opted_in = NEVER.model_copy(update={"fallback_to_older": True})
    for directory, sink in (("back", TRANSACTIONAL), ("replacing", REPLACING)):
        whole = Job(four, tmp_path / directory / "whole", sink=sink)
        whole.bench.tick(4)
        job = Job(four, tmp_path / directory / "job", sink=sink)
        job.bench.tick(2)
        before = job.newest()
        job.bench.tick(1, state_partitions=2)
        for broken in job.bench.checkpoints()[1:]:
            (job.bench.storage / job.bench.name / broken.job_id / broken.name / "_metadata").write_text("{")
        job.bench.land(1)
        launch = job.bench.launch(job.bench.job(config=opted_in))
        if sink == REPLACING:
            with pytest.raises(SinkMismatch):
                launch.result()
            continue
        launch.result()
        assert launch.started.restored == before
        assert job.rows() == whole.rows()


@pytest.mark.slow
@pytest.mark.releases
def test_a_spark_without_it_refuses(spark: SparkSession, tmp_path: Path) -> None:
    release = release_of(spark.version)
    state_format = {STATE_FORMAT_CONF: str(max(release.formats.state))}
    with confs(spark, {**BACKENDS[CHANGELOG], **_FOUR, **state_format}):
        job = Job(spark, tmp_path / "job")
        job.bench.tick(1)
        if release.repartitions_state:
            job.bench.tick(1, state_partitions=2)
            assert _partitions(job.newest()) == _of(2)
        else:
            refused = job.bench.refused(RestoreRefused, state_partitions=2)
            assert f"this is Spark {spark.version}, and Spark repartitions state from 4.2 on" in refused.message


@pytest.mark.slow
def test_what_is_impossible_is_refused_by_name(four: SparkSession, tmp_path: Path) -> None:
    job = Job(four, tmp_path / "job")
    assert "no checkpoint" in job.bench.refused(RestoreRefused, state_partitions=2).message
    job.bench.tick(1)
    assert "has 4 already" in job.bench.refused(RestoreRefused, state_partitions=4).message
    for number, status, told in ((4, 4, "has 4 already"), (2, 0, "2 in the copy that is restored")):
        arguments = [job.bench.name, "latest", "--state-partitions", str(number), "--path", str(job.bench.storage)]
        checked = CliRunner().invoke(main, ["preflight", *arguments])
        assert (checked.exit_code, told in checked.stdout) == (status, True), checked.output

    spaced = Job(four, tmp_path / "a job")
    spaced.bench.tick(1)
    assert "characters that a URL escapes" in spaced.bench.refused(RestoreRefused, state_partitions=2).message

    stateless = Bench(four, tmp_path / "stateless", query=copied)
    stateless.tick(1)
    assert "keeps none" in stateless.refused(RestoreRefused, state_partitions=2).message

    with confs(four, BACKENDS["HDFSBacked"]):
        hdfs = Job(four, tmp_path / "hdfs")
        hdfs.bench.tick(1)
        assert "HDFSBackedStateStoreProvider" in hdfs.bench.refused(RestoreRefused, state_partitions=2).message


@pytest.mark.slow
@pytest.mark.parametrize(("number", "what"), [(1, "count"), (4, "limit")])
def test_state_in_one_partition_is_refused(number: int, what: str, spark: SparkSession, tmp_path: Path) -> None:
    """Spark would look for it in the first partition, and may have moved it elsewhere."""

    def query(bench: Bench, session: SparkSession) -> DataStreamWriter:
        rows = bench.read(session).select("id")
        rows = rows.groupBy().count() if what == "count" else rows.limit(20)
        writer = sink_to(rows, ForeachBatchSink("rows", lambda some, _: some.collect(), rollback_to=lambda *_: None))
        return writer.outputMode("update" if what == "count" else "append").trigger(availableNow=True)

    with confs(spark, {**BACKENDS[CHANGELOG], _PARTITIONS: str(number)}):
        bench = Bench(spark, tmp_path / "job", query=query)
        bench.tick(1)
        assert "one partition" in bench.refused(RestoreRefused, state_partitions=2).message


@pytest.mark.slow
def test_a_sink_that_cannot_go_back_has_a_batch_already(four: SparkSession, tmp_path: Path) -> None:
    """The batch would come again, under another number."""
    job = Job(four, tmp_path / "job", sink=REPLACING)
    job.bench.tick(1)
    first = job.newest()
    job.bench.tick(1)
    refused = job.bench.refused(RestoreRefused, restore_from=first.reference, state_partitions=2)
    assert "cannot go back" in refused.message


def test_a_number_is_asked_for_alone(bench: Bench) -> None:
    for asked in (
        {"state_partitions": 0},
        {"state_partitions": 2, "restore_from": "none"},
        {"state_partitions": 2, "replay_to": "latest"},
        {"state_partitions": 2, "fork_from": "/somewhere"},
    ):
        with pytest.raises(InvalidConfiguration):
            bench.launch(**asked)
