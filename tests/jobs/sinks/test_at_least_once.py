"""What a sink that cannot be rolled back sees: nothing lost, and doubled only what came after the checkpoint."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from dagster_ckpt.config.checkpoint_config import CheckpointingMode, JobStatus
from dagster_ckpt.spark.events import Started
from dagster_ckpt.spark.files.checkpoint_location import CheckpointLocation
from dagster_ckpt.spark.verdict import Verdict
from tests.jobs.harness import NEVER, Bench, Launch, Row, eventually, remove_tree

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_AT_LEAST_ONCE = NEVER.model_copy(update={"mode": CheckpointingMode.AT_LEAST_ONCE})


def appending(bench: Bench, session: SparkSession) -> DataStreamWriter:
    """Every batch's rows are appended to a file of all that the sink ever saw."""
    path = bench.root / "seen.jsonl"

    def append(frame: DataFrame, batch: int) -> None:
        rows = [list(row) for row in frame.collect()]
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"batch": batch, "rows": rows}) + "\n")

    writer = bench.read(session).dropDuplicates(["id"]).select("id", "v").writeStream.foreachBatch(append)
    return writer.trigger(availableNow=True) if bench.until_done else writer


def seen(bench: Bench) -> list[tuple[int, Counter[Row]]]:
    path = bench.root / "seen.jsonl"
    if not path.exists():
        return []
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [(line["batch"], Counter(tuple(row) for row in line["rows"])) for line in lines]


@pytest.mark.parametrize("salvaged", [True, False])
def test_rows_after_the_checkpoint_come_again(bench: Bench, *, salvaged: bool) -> None:
    job = bench.job(config=_AT_LEAST_ONCE, query=appending)
    bench.tick(2, job)
    before = seen(bench)
    assert [batch for batch, _ in before] == [0, 1]
    (checkpoint,) = bench.checkpoints()
    assert checkpoint.mode == "AT_LEAST_ONCE"
    assert checkpoint.sink is None

    bench.until_done = False
    launch = bench.launch(job)
    bench.land(2)
    _await_batch(bench, launch, 3)
    launch.run.cancel()
    assert launch.result().status is JobStatus.CANCELED
    lost = seen(bench)[2:]
    assert [batch for batch, _ in lost] == [2, 3]
    if not salvaged:
        remove_tree(bench.live())

    bench.until_done = True
    again = bench.tick(1, job)
    told = again.started.preflight
    assert told.verdict is (Verdict.RESTORABLE if salvaged else Verdict.WITH_LOSS)
    assert [item.only_doubles for item in told.losses] == ([] if salvaged else [True])
    assert all("batches 2 and 3 may have been written" in item.reason for item in told.losses)
    assert not again.completed[-1].facts.accepted_loss
    batches = [batch for batch, _ in seen(bench)]
    assert batches == ([0, 1, 2, 3, 4] if salvaged else [0, 1, 2, 3, 2, 3, 4])
    if not salvaged:
        assert seen(bench)[4:6] == lost  # the same rows under the same batch ids: an idempotent sink is exact
    rows = sum((rows for _, rows in seen(bench)), Counter[Row]())
    doubled = Counter[Row]() if salvaged else sum((rows for _, rows in lost), Counter[Row]())
    assert rows == bench.expected() + doubled


def test_a_file_sink_is_exact_even_so(bench: Bench) -> None:
    job = bench.job(config=_AT_LEAST_ONCE)
    bench.tick(2, job)
    bench.run_and_cancel(2, job)
    remove_tree(bench.live())
    bench.tick(1, job)
    bench.assert_exact()


def test_a_memory_sink_runs(bench: Bench) -> None:
    """Complete mode, the one in which Spark lets a memory sink go on from a checkpoint."""

    def counts(bench: Bench, session: SparkSession) -> DataStreamWriter:
        rows = bench.read(session).groupBy("k").count()
        return rows.writeStream.format("memory").outputMode("complete").trigger(availableNow=True)

    job = bench.job(config=_AT_LEAST_ONCE, query=counts)
    bench.tick(2, job)
    again = bench.tick(1, job)
    assert again.started.restored is not None
    assert again.completed[-1].batch == 2


def _await_batch(bench: Bench, launch: Launch, batch: int) -> None:
    """Wait for the commit of a batch of this launch (the choice of the one before is on record, too)."""
    eventually("the query starts", lambda: bool(launch.of(Started)), unless=launch.check)
    location = CheckpointLocation(bench.live())
    eventually(
        f"batch {batch} commits",
        lambda: location.last_committed() == batch and location.planned() is None,
        unless=launch.check,
    )
