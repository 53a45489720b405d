"""A batch that fails each time it is tried: told, shown, ended with, and gone on from."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from dagster_ckpt.checkpoint.catalog.newest import find_newest
from dagster_ckpt.checkpoint.control.failures import FailureLog
from dagster_ckpt.checkpoint.control.plan_archive import PlanArchive
from dagster_ckpt.cli import main
from dagster_ckpt.config.checkpoint_config import JobStatus
from dagster_ckpt.config.restart import FixedDelayRestart
from dagster_ckpt.errors import PoisonBatch, QueryFailed
from dagster_ckpt.spark.batches.plans import planned_files
from dagster_ckpt.spark.events import Started

if TYPE_CHECKING:
    from typing import Any

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from dagster_ckpt.checkpoint.control.failures import Failure
    from dagster_ckpt.spark.job import StreamingJob
    from tests.jobs.harness import Bench, Query

_ALWAYS = FixedDelayRestart(100, timedelta(milliseconds=1))
_BAD_ID = 22  # of the fourth and the fifth file


def poisoned(errors: list[str], memory: Path, bad: int = _BAD_ID) -> Query:
    """A query that fails when it meets a certain row, with the next of ``errors`` each time, until they are used up."""

    def query(bench: Bench, session: SparkSession) -> DataStreamWriter:
        from pyspark.sql import functions as F  # noqa: N812, PLC0415

        path = str(memory)

        @F.udf(returnType="int", useArrow=False)
        def checked(key: int, value: int) -> int:
            from pathlib import Path  # noqa: PLC0415 - on the worker

            failed = len(Path(path).read_text()) if Path(path).exists() else 0
            if key == bad and failed < len(errors):
                Path(path).write_text("x" * (failed + 1))
                raise ValueError(errors[failed])
            return value

        rows = bench.read(session).dropDuplicates(["id"])
        return bench.write(rows.select("id", checked("id", "v").alias("v")))

    return query


def job_of(bench: Bench, errors: list[str], attempts: int | None) -> StreamingJob:
    job = bench.job(query=poisoned(errors, bench.root / "failed"), restart=_ALWAYS)
    return replace(job, poison_batch_attempts=attempts)


def failures_of(bench: Bench, series: int = 1) -> list[Failure]:
    return FailureLog(bench.filesystem, bench.name).of(series)


def shown(bench: Bench, *arguments: str) -> dict[str, Any]:
    found = CliRunner(catch_exceptions=False).invoke(
        main, ["batch", bench.name, *arguments, "--path", str(bench.storage), "--json"]
    )
    assert found.exit_code == 0, found.stderr
    document: dict[str, Any] = json.loads(found.stdout)
    return document


def files_of(bench: Bench, document: dict[str, Any]) -> list[str]:
    (source,) = document["sources"]
    assert all(item["bytes"] == (bench.source / Path(item["path"]).name).stat().st_size for item in source["files"])
    return [Path(item["path"]).name for item in source["files"]]


def test_the_loop_ends_the_batch_is_told_and_the_mended_job_is_exact(bench: Bench) -> None:
    bench.files_per_trigger = 2
    bench.land(6)
    launch = bench.launch(job_of(bench, [f"row {_BAD_ID} is bad, seen {n} times" for n in range(99)], 3))
    with pytest.raises(PoisonBatch) as caught:
        launch.result()
    assert len(launch.restarts) == 2
    assert "after batch 1 failed 2 times in a row with the same error (3 end the job)" in launch.restarts[-1].reason
    failures = failures_of(bench)
    assert [(failure.batch, failure.kind) for failure in failures] == [(1, "QueryFailed")] * 3
    (plan,) = {failure.plan for failure in failures}
    assert plan is not None
    before = find_newest(bench.catalog).metadata
    assert before is not None
    assert (before.kind, before.batch) == ("salvage", 0)
    said = str(caught.value)
    assert "Batch 1 of job 'tiny' is poison: it failed 3 times" in said
    assert f"row {_BAD_ID} is bad" in said
    assert f"The checkpoint before it is {before.reference}." in said
    assert f"dagster-ckpt batch tiny 1 --path {bench.filesystem.url}" in said
    assert isinstance(caught.value.__cause__, QueryFailed)
    end = bench.catalog.records.epochs.read_end(3)
    assert end is not None
    assert (end.status, end.reason) == ("FAILED", caught.value.in_one_line)

    document = shown(bench)
    assert document == shown(bench, "1")
    assert (document["batch"], document["plan"], document["committed"]) == (1, plan, False)
    assert document["checkpoint"] is None
    assert files_of(bench, document) == ["0002.json", "0003.json"]
    assert len(document["failures"]) == 3
    (source,) = document["sources"]
    assert (source["start"], source["end"]) == ({"logOffset": 0}, {"logOffset": 1})

    # As the hint says: the code is mended, and the batch runs again as it was, whatever the batch size is now.
    bench.files_per_trigger = 100
    bench.tick()
    bench.assert_exact()
    again = shown(bench, "1")
    assert files_of(bench, again) == ["0002.json", "0003.json"]
    assert again["committed"]
    assert again["checkpoint"] == bench.checkpoints()[-1].reference
    assert files_of(bench, shown(bench)) == ["0004.json", "0005.json"]


@pytest.mark.exhaustive
def test_a_batch_that_is_planned_anew_is_another_one(bench: Bench) -> None:
    """With a smaller batch size, the good half of a poison batch gets through; and the count begins again."""
    bench.files_per_trigger = 2
    bench.land(4)
    bad = bench.source / "0003.json"
    good = bad.read_text()
    bad.write_text(f'{good}\n{{"id": -1, "v": -10}}')
    build = poisoned(["bad"] * 99, bench.root / "failed", bad=-1)
    job = replace(bench.job(query=build, restart=_ALWAYS), poison_batch_attempts=2)
    with pytest.raises(PoisonBatch):
        bench.launch(job).result()
    bench.files_per_trigger = 1
    launch = bench.launch(job, replay_to="none")
    with pytest.raises(PoisonBatch, match="Batch 2 "):
        launch.result()
    assert len(launch.restarts) == 1
    assert bench.in_sink_log().keys() == {(key, key * 10) for key in range(18)}
    assert files_of(bench, shown(bench, "1")) == ["0002.json"]
    assert files_of(bench, shown(bench)) == ["0003.json"]
    # Not the code is mended this time, but the file: the batch reads what has its name now.
    bad.write_text(good)
    bench.tick(job=job)
    bench.assert_exact()


@pytest.mark.exhaustive
def test_errors_that_differ_or_pass_do_not_end_the_loop(bench: Bench) -> None:
    bench.land(4)
    errors = ["one", "another", "one", "Connection refused", "Connection refused", "Connection refused", "one"]
    launch = bench.launch(job_of(bench, errors, 2))
    assert launch.result().status is JobStatus.FINISHED
    assert len(launch.restarts) == len(errors)
    assert {failure.batch for failure in failures_of(bench)} == {3}
    bench.assert_exact()


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_replay_that_fails_is_told_by_the_batch_that_failed(bench: Bench) -> None:
    """The live location is lost, and batches are run again one by one: the one that fails is in the midst of them."""
    bench.tick(1)
    bench.run_and_cancel(6)
    shutil.rmtree(bench.working)
    launch = bench.launch(job_of(bench, ["bad"] * 99, 2))
    with pytest.raises(PoisonBatch, match="Batch 3 "):
        launch.result()
    assert len(launch.of(Started)) == 2
    assert [failure.batch for failure in failures_of(bench, bench.catalog.records.epochs.highest() - 1)] == [3, 3]
    chosen = bench.catalog.choice()
    assert chosen is not None
    plan = PlanArchive(bench.filesystem, bench.name, chosen[1].job_id).planned(3)
    assert plan is not None
    assert [Path(uri).name for uri in planned_files(plan)] == ["0003.json"]
    bench.tick()
    bench.assert_exact()


@pytest.mark.slow
def test_a_query_that_fails_before_it_comes_to_the_batch_is_not_poison(bench: Bench) -> None:
    """A batch is planned and waits to be run again, but what fails is the start of the query."""
    bench.land(5)
    with pytest.raises(QueryFailed):
        bench.launch(bench.job(query=poisoned(["bad"] * 99, bench.root / "failed"))).result()
    assert [failure.batch for failure in failures_of(bench)] == [3]
    bench.files_per_trigger = -1
    job = bench.job(restart=FixedDelayRestart(2, timedelta(milliseconds=1)))
    launch = bench.launch(replace(job, poison_batch_attempts=2))
    with pytest.raises(QueryFailed, match="maxFilesPerTrigger") as caught:
        launch.result()
    assert not isinstance(caught.value, PoisonBatch)
    assert [(failure.batch, failure.kind) for failure in failures_of(bench, 2)] == [(None, "QueryFailed")] * 3
    bench.files_per_trigger = 1
    bench.tick()
    bench.assert_exact()
