"""A job whose checkpoints are in a bucket, and whose local disk may go at any time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dagster_ckpt.checkpoint.catalog.file_reader import verify_checkpoint
from dagster_ckpt.config.checkpoint_config import JobStatus
from dagster_ckpt.errors import CheckpointError, StorageUnusable
from dagster_ckpt.filesystem import GcsFileSystem
from dagster_ckpt.spark.events import CheckpointFailed
from dagster_ckpt.testing.gcs.server import Answer, GcsServer, Request
from tests.jobs.harness import OFTEN, Launch, eventually
from tests.jobs.savepoints import started, take_into
from tests.jobs.storage.buckets import BucketBench
from tests.servers.gcs import BUCKET, BucketServer, bucket_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def server() -> Iterator[GcsServer]:
    with GcsServer(latency=0.002) as running:
        running.create_bucket(BUCKET)
        yield running


@pytest.fixture
def bench(spark: SparkSession, tmp_path: Path, server: GcsServer) -> BucketBench:
    return BucketBench(spark, tmp_path, bucket=bucket_of(server, "of all"))


@pytest.fixture
def any_bench(spark: SparkSession, tmp_path: Path, any_server: BucketServer) -> BucketBench:
    return BucketBench(spark, tmp_path, bucket=bucket_of(any_server, "of all"))


@pytest.mark.quick
def test_a_job_goes_on_from_the_bucket_alone(any_bench: BucketBench, any_server: BucketServer) -> None:
    bench = any_bench
    first = bench.tick(2)
    bench.lose_local_disk()
    second = bench.tick(1)
    assert second.started.restored == first.completed[-1]
    bench.assert_exact()
    bench.lose_local_disk()
    target = first.completed[-1]
    pointer = f"gs://{BUCKET}/of all/tiny/{target.reference}/_metadata"
    back = bench.tick(1, restore_from=pointer)
    assert back.started.restored == target
    bench.assert_exact()
    assert {name.split("/")[1] for name in any_server.objects(BUCKET)} == {"tiny"}


def test_a_savepoint_in_a_bucket_and_a_fork_of_it(spark: SparkSession, any_bench: BucketBench, tmp_path: Path) -> None:
    bench = any_bench
    bench.tick(2)
    taken = take_into(f"gs://{BUCKET}/savepoints")(bench)
    assert taken.pointer.startswith(f"gs://{BUCKET}/savepoints/savepoint-")
    bench.tick(1)
    bench.lose_local_disk()
    again = bench.tick(1, restore_from=taken.pointer)
    assert again.started.restored is not None
    assert again.started.restored.location == taken.pointer
    bench.assert_exact()
    other = BucketBench(
        spark, tmp_path / "other", name="fork", bucket=bench.bucket, reads=bench.source, landed=bench.landed
    )
    # Options are those of the storage: the pointer says nothing of where the bucket is.
    other.tick(1, fork_from=f"{taken.pointer}/_metadata")
    (start,) = [item for item in other.checkpoints() if item.kind == "fork"]
    assert start.restored_from == taken.pointer
    assert start.batch == taken.batch


def test_the_stream_outlives_a_bucket_that_fails(bench: BucketBench, server: GcsServer) -> None:
    """No checkpoint for a while; the query goes on, and what was acknowledged before is there."""
    patient = OFTEN.model_copy(update={"tolerable_failed_checkpoints": 1_000_000})
    launch = started(bench, 2, patient)
    eventually("a checkpoint of batch 1", lambda: _newest_batch(launch) == 1, unless=launch.check)
    acknowledged = launch.completed[-1]

    def refuse(request: Request) -> Answer | None:
        # Its heartbeat and its claim are the run's own; what a quota hits is the uploads.
        own = "wal" in request.name or request.name.endswith("heartbeat")
        return Answer(403, message="quota exceeded") if request.kind == "insert" and not own else None

    server.plan = refuse
    bench.land(2)
    bench.await_in_sink(launch)
    eventually("a checkpoint fails", lambda: bool(launch.of(CheckpointFailed)), unless=launch.check)
    assert _newest_batch(launch) == 1
    verify_checkpoint(bench.catalog, bench.catalog.load(acknowledged.job_id, acknowledged.checkpoint_id))
    failed = launch.of(CheckpointFailed)[0]
    assert f"bucket '{BUCKET}'" in failed.reason
    server.plan = lambda request: None
    eventually("a checkpoint of batch 3", lambda: _newest_batch(launch) == 3, unless=launch.check)
    launch.run.cancel()
    assert launch.result().status is JobStatus.CANCELED
    bench.until_done = True
    bench.lose_local_disk()
    bench.tick(1)
    bench.assert_exact()


def test_a_run_without_tolerance_names_the_bucket_and_the_way_on(bench: BucketBench, server: GcsServer) -> None:
    launch = started(bench, 1, OFTEN)
    eventually("a checkpoint of batch 0", lambda: _newest_batch(launch) == 0, unless=launch.check)
    server.plan = lambda request: Answer(403) if request.kind == "insert" else None
    bench.land(1)
    with pytest.raises(CheckpointError, match=f"permission denied on bucket '{BUCKET}'") as caught:
        launch.result()
    assert "roles/storage.objectUser" in str(caught.value)
    server.plan = lambda request: None
    bench.until_done = True
    bench.lose_local_disk()
    bench.tick(1)
    bench.assert_exact()


def test_a_bucket_that_is_not_there_is_refused_before_anything_is_touched(any_bench: BucketBench) -> None:
    bench = any_bench
    assert bench.bucket is not None
    missing = GcsFileSystem("no-such-bucket", options=bench.bucket.storage_options)
    bench.land(1)
    with pytest.raises(StorageUnusable, match="there is no bucket 'no-such-bucket'"):
        bench.launch(bench.job(filesystem=missing)).result()
    assert not bench.sink.exists()
    bench.tick(1)
    bench.assert_exact()


def _newest_batch(launch: Launch) -> int | None:
    return launch.completed[-1].batch if launch.completed else None
