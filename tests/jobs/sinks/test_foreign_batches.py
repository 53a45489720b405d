"""Another query that writes to the file sink of a running one: found at the batch, and never covered by a checkpoint.

Spark's sink skips a batch whose id is in its log, so what a run that was declared dead adds there costs rows.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dagster_ckpt.checkpoint.control.epochs import Choice
from dagster_ckpt.config.checkpoint_config import JobStatus
from dagster_ckpt.errors import SinkOverlap
from dagster_ckpt.spark.events import Started
from dagster_ckpt.spark.sinks.own_entries import mark_of
from dagster_ckpt.spark.sinks.spark_file_sink import SparkFileSink
from tests.jobs.harness import NEW_PER_FILE, OFTEN, ROWS_PER_FILE, Bench, Launch, Row, copied, eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter


def split(bench: Bench, session: SparkSession) -> DataStreamWriter:
    """Stateless and partitioned, so that a batch of which no row is left has no file: that of the second file."""
    rows = bench.read(session).where("id < 5 OR id >= 15").selectExpr("id", "v", "id % 2 AS half")
    return bench.write(rows).partitionBy("half")


def every(bench: Bench) -> Counter[Row]:
    """Each row as often as it has landed."""
    files = range(bench.landed)
    return Counter(
        (key, key * 10) for file in files for key in range(file * NEW_PER_FILE, file * NEW_PER_FILE + ROWS_PER_FILE)
    )


def running(bench: Bench, files: int, **of_job: object) -> Launch:
    """A run without end, which has written so many files."""
    bench.until_done = False
    launch = bench.launch(bench.job(**of_job))  # type: ignore[arg-type]
    eventually("the query starts", lambda: bool(launch.of(Started)), unless=launch.check)
    bench.land(files)
    eventually("they are committed", lambda: committed(bench) == bench.landed - 1, unless=launch.check)
    return launch


def committed(bench: Bench) -> int:
    return max((int(path.name) for path in (bench.live() / "commits").glob("[0-9]*")), default=-1)


def entry(bench: Bench, batch: int) -> Path:
    return bench.sink / "_spark_metadata" / str(batch)


def put_foreign(bench: Bench, like: int, batch: int, *, files: bool = True) -> None:
    """What a start of another token would add as ``batch``: the entry of another batch with files of its own."""
    head, *lines = entry(bench, like).read_text(encoding="utf-8").splitlines()
    assert lines
    foreign = [head]
    for line in lines if files else []:
        told = json.loads(line)
        file = Path(told["path"].removeprefix("file://"))
        own = f"part-00000-{uuid.uuid4()}-c000.snappy.parquet"
        shutil.copy(file, file.with_name(own))
        told |= {"path": f"file://{file.with_name(own)}", "blockSize": mark_of("of another start")}
        foreign.append(json.dumps(told, separators=(",", ":")))
    temporary = bench.sink / "_spark_metadata" / f".{batch}.tmp"
    temporary.write_text("\n".join(foreign), encoding="utf-8")
    temporary.rename(entry(bench, batch))


def overlap(launch: Launch) -> str:
    eventually("the run ends", lambda: launch.ended)
    with pytest.raises(SinkOverlap) as caught:
        launch.result()
    return caught.value.message


@pytest.mark.parametrize("files", [pytest.param(True, marks=pytest.mark.releases), False])
def test_a_batch_that_another_start_has_put_in_the_log_is_found_without_a_checkpoint(bench: Bench, files: bool) -> None:
    bench.query = copied if files else split
    launch = running(bench, 1)
    put_foreign(bench, 0, 1, files=files)
    bench.land(3)
    assert "batch 1" in overlap(launch)
    assert not launch.completed
    bench.until_done = True
    again = bench.tick(1)
    assert again.started.restored is None
    assert "data files" in again.started.sink
    left = Counter({row: count for row, count in every(bench).items() if files or not 5 <= row[0] < 15})
    assert bench.seen_by_spark() == bench.in_raw_directory() == left


def test_a_batch_without_a_file_is_covered_if_the_query_ran_it(bench: Bench) -> None:
    bench.query = split
    launch = running(bench, 3, config=OFTEN)  # the second file has no row that is left
    assert entry(bench, 1).read_text(encoding="utf-8") == "v1"
    eventually(
        "all is checkpointed",
        lambda: bool(launch.completed) and launch.completed[-1].batch == bench.landed - 1,
        unless=launch.check,
    )
    assert not launch.failed
    launch.run.cancel()
    assert launch.result().status is JobStatus.CANCELED


def test_a_query_may_end_with_a_batch_without_a_file(bench: Bench) -> None:
    bench.query = split
    launch = bench.tick(2)
    assert [metadata.batch for metadata in launch.completed] == [1]
    assert not launch.failed


def test_a_salvage_does_not_cover_what_another_start_wrote(bench: Bench) -> None:
    bench.query = copied
    bench.tick(2)
    bench.run_and_cancel(2)
    put_foreign(bench, 3, 3)
    restored = bench.tick(1).started.restored
    assert restored is not None
    assert (restored.kind, restored.batch) == ("checkpoint", 1)
    bench.assert_exact()


def test_what_a_dead_start_wrote_is_salvaged_although_its_clock_was_set_back(bench: Bench) -> None:
    """Files of a batch that are older than those of the batch before say nothing about who wrote them."""
    bench.query = copied
    bench.tick(2)
    bench.run_and_cancel(2)
    log = entry(bench, 2)
    head, *lines = log.read_text(encoding="utf-8").splitlines()
    later = [
        json.dumps(json.loads(line) | {"modificationTime": 4_000_000_000_000}, separators=(",", ":")) for line in lines
    ]
    log.write_text("\n".join([head, *later]), encoding="utf-8")
    launch = bench.tick(2)
    restored = launch.started.restored
    assert restored is not None
    assert (restored.kind, restored.batch) == ("salvage", 3)
    assert launch.completed
    bench.assert_exact()


def test_what_an_earlier_release_left_is_salvaged(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its entries have no mark, and its record of the choice does not say that there is one."""
    bench.query = copied
    bench.tick(2)
    with monkeypatch.context() as release:
        release.setattr(SparkFileSink, "writer_options", lambda _self, _token: {})
        bench.run_and_cancel(2)
    chosen = bench.catalog.choice()
    assert chosen is not None
    assert not chosen[1].marks
    assert '"blockSize":33554432,' in entry(bench, 3).read_text(encoding="utf-8")
    restored = bench.tick(1).started.restored
    assert restored is not None
    assert (restored.kind, restored.batch) == ("salvage", 3)
    assert bench.catalog.choice() is not None
    assert Choice.__dataclass_fields__["marks"].default is False
    bench.assert_exact()
