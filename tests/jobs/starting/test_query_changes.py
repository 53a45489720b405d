"""A query that is not the one the checkpoint was taken of."""

from __future__ import annotations

import logging
import shutil
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import pytest

from dagster_ckpt.checkpoint import StateKeys, materialize_checkpoint
from dagster_ckpt.config import JobStatus
from dagster_ckpt.errors import QueryMismatch, RestoreWithLoss
from dagster_ckpt.spark.events import Started
from dagster_ckpt.spark.files.checkpoint_location import CheckpointLocation
from dagster_ckpt.spark.run import built_query
from tests.jobs.harness import SCHEMA, Bench, Pristine, Row, copied, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from dagster_ckpt.spark.job import StreamingJob
    from tests.jobs.harness import Launch, Query

Rows: TypeAlias = "Callable[[DataFrame], DataFrame]"


def _counted(rows: DataFrame, key: str = "k", *more: Column) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    window = F.window("ts", "1 minute")
    counts = rows.withWatermark("ts", "0 seconds").groupBy(window, F.expr(key).alias("k"))
    # `id` and `v` are what the tests read; a file's rows are in the window of its minute.
    return counts.agg(F.sum("id").alias("id"), F.sum("v").alias("v"), *more)


def counted(bench: Bench, session: SparkSession) -> DataStreamWriter:
    """Sums per minute and ``k``: each file is a window, written when the next file but one is read."""
    return bench.write(_counted(bench.read(session)).select("id", "v"))


def _another_operator(bench: Bench, session: SparkSession) -> DataStreamWriter:
    return bench.write(_counted(bench.read(session).dropDuplicates(["id", "ts"])).select("id", "v"))


def _without_state(bench: Bench, session: SparkSession) -> DataStreamWriter:
    return bench.write(bench.read(session).select("id", "v"))


def _another_value(bench: Bench, session: SparkSession) -> DataStreamWriter:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    return bench.write(_counted(bench.read(session), "k", F.avg("v").alias("mean")).selectExpr("id", "mean AS v"))


def _another_key(bench: Bench, session: SparkSession) -> DataStreamWriter:
    return bench.write(_counted(bench.read(session), "CAST(k AS STRING)").select("id", "v"))


def _another_column(bench: Bench, session: SparkSession) -> DataStreamWriter:
    """By ``v`` in the place of ``k``, which has the same type."""
    return bench.write(_counted(bench.read(session), "v").select("id", "v"))


def _the_column_in_capitals(bench: Bench, session: SparkSession) -> DataStreamWriter:
    return bench.write(_counted(bench.read(session), "K").select("id", "v"))


def _the_column_renamed(bench: Bench, session: SparkSession) -> DataStreamWriter:
    rows = bench.read(session).withColumnRenamed("k", "airline")
    return bench.write(_counted(rows, "airline").select("id", "v"))


def _another_source(bench: Bench, session: SparkSession) -> DataStreamWriter:
    more = session.readStream.format("rate").load().selectExpr("CAST(value AS INT) id", "0 k", "timestamp ts", "0 v")
    return bench.write(_counted(bench.read(session).unionByName(more)).select("id", "v"))


def _doubled(bench: Bench, session: SparkSession) -> DataStreamWriter:
    return bench.write(_counted(bench.read(session)).selectExpr("id", "v * 2 AS v"))


@pytest.fixture(scope="module")
def counting(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Pristine:
    directory = tmp_path_factory.mktemp("counting")
    bench = Bench(spark, directory / "job", query=counted)
    for _ in range(2):
        bench.tick(3)
    return Pristine(bench, directory / "backup")


@pytest.fixture(scope="module")
def undisturbed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Counter[Row]:
    """What the query puts out over the files of all three ticks when it is run by itself, with the same boundaries."""
    bench = Bench(spark, tmp_path_factory.mktemp("undisturbed") / "job", query=counted)
    for files in (3, 3, 1):
        bench.tick(files)
    return bench.seen_by_spark()


@pytest.fixture
def counts(counting: Pristine) -> Iterator[Bench]:
    with counting.borrowed() as bench:
        yield bench


@pytest.mark.parametrize(
    "query",
    [
        _another_operator,
        *(
            pytest.param(query, marks=pytest.mark.exhaustive)
            for query in (_without_state, _another_value, _another_key)
        ),
        _another_source,
    ],
)
@pytest.mark.parametrize("older", [False, pytest.param(True, marks=pytest.mark.exhaustive)], ids=["newest", "older"])
def test_another_query_is_refused(counts: Bench, undisturbed: Counter[Row], query: Query, *, older: bool) -> None:
    first, second = counts.checkpoints()
    counts.land(1)
    refusal = counts.refused(QueryMismatch, counts.job(query=query), restore_from=first.name if older else "latest")
    named = first if older else second
    assert f"is not the one {named.name} was taken of" in refusal.message
    assert "'tiny'" in refusal.message
    # What the plan tells is not left to Spark to find out; state schemas are.
    assert ("Spark says" in refusal.message) == (query in {_another_value, _another_key})
    assert "Run the query as it was" in refusal.hint
    assert not refusal.recoverable
    went_on = counts.tick()  # the old query goes on as if the other had never been launched
    assert went_on.started.restored == second
    assert counts.in_raw_directory() == counts.seen_by_spark() == undisturbed


@pytest.mark.parametrize("query", [_another_value, pytest.param(_another_key, marks=pytest.mark.exhaustive)])
def test_another_query_is_refused_before_batches_after_the_checkpoint_leave_the_sink(
    counts: Bench, undisturbed: Counter[Row], query: Query
) -> None:
    _, second = counts.checkpoints()
    _read_without_checkpoint(counts)
    chosen = counts.catalog.choice()
    counts.refused(QueryMismatch, counts.job(query=query))
    assert counts.catalog.choice() == chosen
    went_on = counts.tick()
    assert went_on.started.restored == second
    assert counts.in_raw_directory() == counts.seen_by_spark() == undisturbed


def test_a_query_that_has_not_changed_is_not_tried(counts: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dagster_ckpt")
    _read_without_checkpoint(counts)
    counts.tick()
    assert "Trying the query" not in caplog.text
    _read_without_checkpoint(counts)
    counts.tick(0, counts.job(query=_doubled))
    assert "Trying the query" in caplog.text


def _read_without_checkpoint(bench: Bench) -> None:
    """Read one more file, and lose the run's live location before any checkpoint has the file."""
    bench.until_done = False
    shutil.rmtree(_read_one_more(bench, bench.launch()))
    bench.until_done = True


def _read_one_more(bench: Bench, launch: Launch) -> Path:
    """Cancel a run without end before any checkpoint has the file; returns its live location."""
    (newest, *_) = reversed(bench.checkpoints())
    eventually("the query starts", lambda: bool(launch.of(Started)), unless=launch.check)
    location = CheckpointLocation(bench.live())
    bench.land(1)
    eventually("the file is read", lambda: (location.last_committed() or 0) > newest.batch, unless=launch.check)
    launch.run.cancel()
    assert launch.result().status is JobStatus.CANCELED
    return location.path


def test_state_by_another_column_of_the_same_type_is_refused_without_consent(
    counts: Bench, undisturbed: Counter[Row]
) -> None:
    another = counts.job(query=_another_column)
    refusal = counts.refused(RestoreWithLoss, another)
    told = "by 'window', 'v', and the checkpoint has it by 'window', 'k': Spark would take the one for the other"
    assert f"the query keeps the state of aggregation (stateful operator 1) {told}" in refusal.message
    assert "allow_loss: true" in refusal.hint
    counts.tick(1, counts.job(query=_the_column_in_capitals))
    assert counts.in_raw_directory() == undisturbed

    (taken,) = counts.tick(1, another, allow_loss=True).completed
    assert told.replace("'k'", "'K'") in taken.facts.accepted_loss[0]
    counts.tick(1, another)
    assert "by 'window', 'k', and the checkpoint has it by 'window', 'v'" in counts.refused(RestoreWithLoss).message


def test_a_column_that_was_renamed_long_ago_is_no_other_column(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark has the old name in its schema of the state for ever: only what checkpoints have recorded counts."""
    bench = Bench(spark, tmp_path / "job", query=counted)
    with monkeypatch.context() as released:
        released.setattr(built_query, "state_keys", lambda _: None)  # as a release did, and a Spark that tells nothing
        (first,) = bench.tick(2).completed
        assert first.facts.state_keys is None
    renamed = bench.job(query=_the_column_renamed)
    for _ in range(2):
        (taken,) = bench.tick(1, renamed).completed
        assert taken.facts.state_keys == [StateKeys(operator="aggregation", columns=["window", "airline"])]
        assert taken.facts.accepted_loss == []
    materialize_checkpoint(bench.catalog, taken, tmp_path / "unpacked")
    schemas = [file.read_bytes() for file in (tmp_path / "unpacked").rglob("_metadata/schema")]
    assert schemas
    assert not any(b"airline" in schema for schema in schemas)
    bench.refused(RestoreWithLoss)


def test_a_salvage_keeps_the_columns_that_the_dead_run_had(counts: Bench) -> None:
    """A consent to another column counts at once: the run that it was given to may die before its first checkpoint."""
    another = counts.job(query=_another_column)
    counts.until_done = False
    _read_one_more(counts, counts.launch(another, allow_loss=True))
    counts.until_done = True
    restored = counts.tick(0, another).started.restored
    assert restored is not None
    assert restored.kind == "salvage"
    assert restored.facts.state_keys == [StateKeys(operator="aggregation", columns=["window", "v"])]


def test_a_changed_projection_is_not_another_query(counts: Bench) -> None:
    """State that fits is used; what the query does with it is the user's."""
    before = counts.seen_by_spark()
    went_on = counts.tick(2, counts.job(query=_doubled))
    assert went_on.started.restored is not None
    after = counts.seen_by_spark()
    assert not before - after
    assert all(v == 20 * key for key, v in after - before)


def test_a_file_source_that_reads_elsewhere_is_refused_without_consent(spark: SparkSession, tmp_path: Path) -> None:
    """Spark reads every file of the copy as a new one."""

    def at(path: str) -> StreamingJob:
        def query(bench: Bench, session: SparkSession) -> DataStreamWriter:
            return bench.write(session.readStream.schema(SCHEMA).json(f"{bench.root}/{path}").select("id", "v"))

        return bench.job(query=query)

    bench = Bench(spark, tmp_path / "job", query=copied)
    bench.tick(2)
    bench.tick(1, at("i*/"))  # the same files
    once = bench.expected()
    assert bench.in_raw_directory() == once

    shutil.copytree(bench.source, bench.root / "copy")
    refusal = bench.refused(RestoreWithLoss, at("copy/*"))
    assert f"source 0 reads {bench.root}/copy/*, where none of the files is that it has read" in refusal.message
    assert "allow_loss: true" in refusal.hint
    assert "Wrong basePath" in bench.refused(QueryMismatch, at("copy")).message

    (taken,) = bench.tick(0, at("copy/*"), allow_loss=True).completed
    assert "source directories: source 0 reads" in taken.facts.accepted_loss[0]
    bench.tick(0, at("copy/*"))
    assert bench.in_raw_directory() == once + once
