"""A query of plain Spark whose checkpointLocation was copied into a bucket becomes a job."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dagster_ckpt.spark.files.checkpoint_location import CheckpointLocation
from dagster_ckpt.testing.gcs.server import GcsServer
from tests.jobs.harness import tree
from tests.jobs.plain.plain import after_five_batches
from tests.jobs.storage.buckets import BucketBench
from tests.servers.gcs import BUCKET, bucket_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_COPY = "moved/plain"


@pytest.fixture
def server() -> Iterator[GcsServer]:
    with GcsServer() as running:
        running.create_bucket(BUCKET)
        yield running


def test_a_job_begins_with_a_location_in_a_bucket(spark: SparkSession, tmp_path: Path, server: GcsServer) -> None:
    """It goes on in the output that the query had, changes nothing in the copy, and needs the copy only once."""
    bench = BucketBench(spark, tmp_path / "job", bucket=bucket_of(server))
    plain = after_five_batches(bench, "rocksdb")
    last = CheckpointLocation(plain.location).last_committed()

    def copied() -> dict[str, bytes]:
        return {name: data for name, data in server.objects(BUCKET).items() if name.startswith(f"{_COPY}/")}

    for path, data in tree(plain.location).items():
        server.put(BUCKET, f"{_COPY}/{path}", data)
    before, pointer = (plain.photograph(), copied()), f"gs://{BUCKET}/{_COPY}"
    restored = bench.tick(2, fork_from=pointer).started.restored
    assert restored is not None
    assert (restored.kind, restored.batch, restored.restored_from) == ("fork", last, pointer)
    bench.assert_exact()
    assert (plain.photograph(), copied()) == before

    for name in copied():
        server.discard(BUCKET, name)
    bench.lose_local_disk()
    bench.tick(1)
    bench.assert_exact()
