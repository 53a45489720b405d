"""Checkpoints kept whole in ``_metadata``: in the memory of the driver, or below a path."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dagster_ckpt.checkpoint.catalog.catalog import NOT_ADDRESSABLE, CheckpointCatalog
from dagster_ckpt.checkpoint.format.layout import CONTROL_DIR
from dagster_ckpt.config.checkpoint_config import CheckpointConfig, ExternalizedCheckpointCleanup, JobStatus
from dagster_ckpt.config.restart import FixedDelayRestart
from dagster_ckpt.errors import CheckpointsLost, ToleranceExceeded
from dagster_ckpt.filesystem import DriverMemory, PosixFileSystem
from dagster_ckpt.spark.events import CheckpointCompleted, Started
from tests.helpers.spark.streaming import discard
from tests.jobs.harness import OFTEN, Bench, eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata
    from dagster_ckpt.spark.job import StreamingJob
    from tests.jobs.harness import Query

_AT_ONCE = FixedDelayRestart(3, timedelta(milliseconds=1))
_BAD_ID = 22  # of the fourth and the fifth file
_MAX = 5 << 20


def failing_once(gate: Path) -> Query:
    """A query that stops at a certain row until ``gate`` is gone, and then fails; the second time it does not."""

    def query(bench: Bench, session: SparkSession) -> DataStreamWriter:
        from pyspark.sql import functions as F  # noqa: N812, PLC0415

        path = str(gate)

        @F.udf(returnType="int", useArrow=False)
        def checked(key: int, value: int) -> int:
            import time  # noqa: PLC0415 - on the worker
            from pathlib import Path  # noqa: PLC0415 - on the worker

            failed = Path(f"{path}.failed")
            if key == _BAD_ID and not failed.exists():
                Path(f"{path}.reached").touch()
                while Path(path).exists():
                    time.sleep(0.05)
                failed.touch()
                raise ValueError(f"row {key} is bad")
            return value

        rows = bench.read(session).dropDuplicates(["id"])
        return bench.write(rows.select("id", checked("id", "v").alias("v")))

    return query


def in_memory(bench: Bench, **options: object) -> StreamingJob:
    job = bench.job(config=OFTEN, restart=_AT_ONCE, max_state_size=_MAX)
    return replace(job, filesystem=DriverMemory(PosixFileSystem(bench.storage), CONTROL_DIR), **options)  # type: ignore[arg-type]


def restarted_from_memory(bench: Bench, **options: object) -> CheckpointMetadata:
    """Let a query fail in mid-run, its live location lost, and end exact; what it was restarted from."""
    gate = bench.root / "gate"
    bench.land(6)
    gate.touch()
    job = replace(in_memory(bench, **options), query=lambda session: failing_once(gate)(bench, session))
    launch = bench.launch(job)
    catalog = CheckpointCatalog(job.filesystem, job.name)
    eventually("the row is reached", Path(f"{gate}.reached").exists, unless=launch.check)
    eventually("a checkpoint is there", lambda: len(launch.completed) > 0, unless=launch.check)
    chosen = catalog.choice()
    assert chosen is not None
    discard(Path(chosen[1].live))
    gate.unlink()
    assert launch.result().status is JobStatus.FINISHED

    before = launch.events[: launch.events.index(launch.of(Started)[1])]
    newest = max(event.metadata.batch for event in before if isinstance(event, CheckpointCompleted))
    restored = launch.of(Started)[1].restored
    assert restored is not None, "not from nothing"
    assert restored.kind == "checkpoint", "not salvaged from the live location, which is gone"
    assert restored.batch == newest
    bench.assert_exact()
    assert catalog.pointer(restored) == NOT_ADDRESSABLE
    beat = catalog.records.heartbeat.read()
    assert beat is not None
    assert beat.due_since is None, "the last checkpoint has completed"
    return restored


def test_a_failing_query_is_restarted_from_the_drivers_memory_alone(bench: Bench) -> None:
    restarted_from_memory(bench)
    assert not list(bench.storage.rglob("_metadata")), "only what runs know of each other is on the disk"
    assert list((bench.storage / "tiny").iterdir()) == [bench.storage / "tiny" / "control"]


def test_what_died_with_its_driver_is_told_and_nothing_is_touched(bench: Bench) -> None:
    first = bench.tick(2, in_memory(bench))
    assert first.completed
    bench.land(1)
    # Another driver: its memory begins empty.
    refusal = bench.refused(CheckpointsLost, in_memory(bench))
    assert first.run_id in refusal.message
    assert "restore_from: none" in refusal.hint
    assert "checkpoint_path" in refusal.hint
    assert "FileSystemCheckpointStorage" in refusal.hint
    # The way on that it names.
    shutil.rmtree(bench.sink)
    bench.tick(0, in_memory(bench), restore_from="none")
    bench.assert_exact()


def test_what_its_cleanup_policy_gave_up_is_not_missed(bench: Bench) -> None:
    given_up = CheckpointConfig(
        interval="50 ms",
        retain_on_success=False,
        cleanup=ExternalizedCheckpointCleanup.NO_EXTERNALIZED_CHECKPOINTS,
    )
    bench.tick(2, in_memory(bench, config=given_up))
    shutil.rmtree(bench.sink)
    again = bench.tick(1, in_memory(bench, config=given_up))
    assert again.started.restored is None
    bench.assert_exact()


def test_with_a_path_a_checkpoint_is_one_file_that_another_driver_restores(bench: Bench) -> None:
    bench.tick(3, bench.job(max_state_size=_MAX))
    shutil.rmtree(bench.working)
    (checkpoint,) = bench.checkpoints()
    directory = bench.storage / "tiny" / checkpoint.job_id
    assert [path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()] == [
        "chk-1/_metadata"
    ]
    document = json.loads((directory / "chk-1" / "_metadata").read_text())
    assert document["totals"]["inline_files"] == document["totals"]["files"] > 10
    again = bench.tick(2, bench.job(max_state_size=_MAX))
    assert again.started.restored == checkpoint
    bench.assert_exact()


@pytest.mark.parametrize("in_files_first", [False, True])
def test_state_that_is_too_large_is_refused_with_the_fields_message(bench: Bench, in_files_first: bool) -> None:
    if in_files_first:  # what another storage has stored as files counts as well
        bench.tick(1)
    bench.land(2)
    config = CheckpointConfig(interval="50 ms", tolerable_failed_checkpoints=0)
    launch = bench.launch(bench.job(config=config, max_state_size=100))
    with pytest.raises(Exception, match="maximum permitted memory-backed state") as caught:
        launch.result()
    told = str(caught.value)
    assert "maxSize=100" in told
    assert isinstance(caught.value, ToleranceExceeded) or "FileSystemCheckpointStorage" in told
    assert not launch.completed


def test_a_change_of_storage_goes_on_from_what_the_other_left(bench: Bench) -> None:
    bench.tick(2)
    inline = bench.tick(1, bench.job(max_state_size=_MAX)).completed[-1]
    assert all(file.inline is not None for file in inline.files)
    files = bench.tick(1, bench.job(inline_threshold=1)).completed[-1]
    assert any(file.reference is not None for file in files.files)
    assert [metadata.batch for metadata in bench.checkpoints()] == [1, 2, 3]
    bench.assert_exact()
