"""Jobs that read a topic of their own."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dagster_ckpt.testing.kafka import KafkaServer
from tests.jobs.kafka.topics import TopicBench

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def bench(spark: SparkSession, kafka: KafkaServer, tmp_path: Path) -> TopicBench:
    """A job that never ran, and its empty topic."""
    bench = TopicBench(spark, tmp_path / "job", server=kafka, topic=f"rows-{uuid.uuid4().hex[:8]}")
    kafka.create(bench.topic, bench.partitions)
    return bench
