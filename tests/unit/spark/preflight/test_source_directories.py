"""Whether a file source is found to read elsewhere, for every way to write a path."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dagster_ckpt.checkpoint import materialize_checkpoint
from dagster_ckpt.errors import QueryMismatch
from dagster_ckpt.spark.preflight.source_directories import directories_finding
from dagster_ckpt.spark.verdict import Finding, Verdict
from tests.jobs.harness import SCHEMA, Bench, copied

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FINE = "each file source reads where it did, as far as that is known."


@pytest.fixture(scope="module")
def bench(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """A job that has read two files, in a batch each, and a copy of its input beside it."""
    bench = Bench(spark, tmp_path_factory.mktemp("a b%c") / "job", query=copied)
    bench.tick(2)
    shutil.copytree(bench.source, bench.root / "input")
    shutil.copytree(bench.source, bench.root / "of a sink")
    (bench.root / "of a sink" / "_spark_metadata").mkdir()
    (bench.root / "link").symlink_to(bench.source)
    materialize_checkpoint(bench.catalog, bench.checkpoints()[-1], bench.root / "unpacked")
    return bench


def _unpacked(bench: Bench) -> Path:
    return bench.root / "unpacked" / "checkpoint"


def _found(bench: Bench, path: str, **options: str) -> Finding:
    rows = bench.spark.readStream.schema(SCHEMA).options(**options).json(path)
    return directories_finding(bench.name, bench.checkpoints()[-1], rows.writeStream, _unpacked(bench))


@pytest.mark.parametrize(
    "path",
    [
        "{root}/in",
        "{root}//in/",
        "file:{root}/in",
        "file://{root}/in/",
        "{root}/link/../in",
        "{relative}/in",
        "{root}",
        "{root}/in/0001.json",
        "{root}/i*",
        "{root}/[h-j]n/*.json",
        "{root}/{{input,in}}",
        "{{{root}/input,{root}/in}}",
        "{root}/{{nowhere,*/0000.json}}",
        "{root}/?n",
        "{root}/of a sink",
        "{root}/[!i]*",
        "{root}/{{input,link}}",
        "{root}/in/*.csv",
        "{root}/*/in",
    ],
)
def test_a_path_that_has_files_of_the_log_is_fine(bench: Bench, path: str) -> None:
    found = _found(bench, path.format(root=bench.root, relative=os.path.relpath(bench.root)))
    assert (found.verdict, found.reason) == (Verdict.RESTORABLE, FINE)


def test_a_source_that_knows_files_by_their_names_may_move(bench: Bench) -> None:
    assert _found(bench, f"{bench.root}/input", fileNameOnly="true").reason == FINE


@pytest.mark.parametrize("path", ["input/*", "input/{a,b}/c", "link/i?/*.json"])
def test_a_pattern_that_begins_elsewhere_loses_and_doubles_rows(bench: Bench, path: str) -> None:
    found = _found(bench, f"{bench.root}/{path}")
    assert found.verdict is Verdict.WITH_LOSS
    assert not found.only_doubles
    newest = f"file://{bench.source}/0001.json"
    assert f"source 0 reads {bench.root}/{path}, where none of the files is that it has read, {newest}" in found.reason


@pytest.mark.parametrize("path", ["input", "link"])
def test_spark_would_stop_where_the_last_batch_has_read_files(bench: Bench, path: str) -> None:
    found = _found(bench, f"{bench.root}/{path}")
    assert isinstance(found.error, QueryMismatch)
    assert "Wrong basePath" in found.reason


def test_spark_would_not_stop_where_its_comparison_of_texts_is_mistaken(bench: Bench) -> None:
    Path(bench.root, "i").mkdir()
    assert _found(bench, f"{bench.root}/i").verdict is Verdict.WITH_LOSS


def test_spark_would_not_stop_for_a_plan_that_is_given_up(bench: Bench, tmp_path: Path) -> None:
    """The last batch has read nothing, and Spark opens the files of the batch in flight, if its plan stays."""
    live = tmp_path / "live"
    shutil.copytree(_unpacked(bench), live)
    offsets = live / "offsets"
    (offsets / "1").rename(offsets / "2")
    shutil.copy(offsets / "0", offsets / "1")
    rows = bench.spark.readStream.schema(SCHEMA).json(f"{bench.root}/input")
    taken = bench.checkpoints()[-1]
    stays, given_up = (
        directories_finding(bench.name, taken, rows.writeStream, live, gives_up_in_flight=gives_up)
        for gives_up in (False, True)
    )
    assert isinstance(stays.error, QueryMismatch)
    assert given_up.verdict is Verdict.WITH_LOSS


def test_sources_whose_numbers_are_not_known_are_left_out(bench: Bench) -> None:
    rows = bench.spark.readStream.schema(SCHEMA).json(f"{bench.root}/input")
    found = directories_finding(bench.name, bench.checkpoints()[-1], rows.union(rows).writeStream, _unpacked(bench))
    assert found.reason == "not checked: Spark may run equal sources as one."


def test_a_damaged_log_is_left_to_the_check_of_the_log(bench: Bench, tmp_path: Path) -> None:
    live = tmp_path / "live"
    shutil.copytree(_unpacked(bench), live)
    (live / "sources" / "0" / "1").write_text("v1\n[]")
    rows = bench.spark.readStream.schema(SCHEMA).json(f"{bench.root}/input")
    found = directories_finding(bench.name, bench.checkpoints()[-1], rows.writeStream, live)
    assert found.verdict is Verdict.RESTORABLE
    assert found.reason.startswith("not checked: sources/0 in ")
