"""A job whose checkpoints are in a bucket of S3, and whose local disk may go at any time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.jobs.savepoints import take_into
from tests.jobs.storage.buckets import BucketBench
from tests.servers.s3 import BUCKET, S3Server, bucket_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def server() -> Iterator[S3Server]:
    with S3Server() as running:
        running.create_bucket(BUCKET)
        yield running


@pytest.fixture
def bench(spark: SparkSession, tmp_path: Path, server: S3Server) -> BucketBench:
    return BucketBench(spark, tmp_path, bucket=bucket_of(server, "of all"))


def test_a_job_goes_on_from_the_bucket_alone(bench: BucketBench, server: S3Server) -> None:
    first = bench.tick(2)
    taken = take_into(f"s3a://{BUCKET}/savepoints")(bench)
    assert taken.pointer.startswith(f"s3://{BUCKET}/savepoints/savepoint-")
    bench.lose_local_disk()
    second = bench.tick(1)
    assert second.started.restored == first.completed[-1]
    bench.assert_exact()
    bench.lose_local_disk()
    back = bench.tick(1, restore_from=taken.pointer)
    assert back.started.restored is not None
    assert back.started.restored.location == taken.pointer
    bench.assert_exact()
    assert {name.split("/")[0] for name in server.objects(BUCKET)} == {"of all", "savepoints"}
    assert server.unfinished_uploads(BUCKET) == 0
