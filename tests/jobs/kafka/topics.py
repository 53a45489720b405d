"""Jobs that read a topic of Kafka."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dagster_ckpt.testing.kafka import KafkaServer
from tests.jobs.harness import NEW_PER_FILE, ROWS_PER_FILE, SCHEMA, Bench

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["TopicBench", "rows_of", "topic_of"]


def rows_of(number: int) -> list[str]:
    """The rows of the file with a number, as a topic has them."""
    keys = range(number * NEW_PER_FILE, number * NEW_PER_FILE + ROWS_PER_FILE)
    moment = f"2024-01-01T00:{number:02}:00Z"
    return [json.dumps({"id": key, "k": key % 3, "ts": moment, "v": key * 10}) for key in keys]


def topic_of(session: SparkSession, address: str, **options: str | int) -> DataFrame:
    """A stream of such rows from what the options subscribe to; about a file a batch."""
    from pyspark.sql import functions as f  # noqa: PLC0415

    reader = session.readStream.format("kafka").option("kafka.bootstrap.servers", address)
    reader = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", ROWS_PER_FILE)
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load().select(f.from_json(f.col("value").cast("string"), SCHEMA).alias("row")).select("row.*")


@dataclass
class TopicBench(Bench):
    """A job whose input is a topic: what another has in file ``f`` goes to partition ``f`` modulo their number."""

    server: KafkaServer | None = None
    topic: str = "rows"
    partitions: int = 2
    lenient: bool = False
    subscribe: dict[str, str] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)

    @property
    def kafka(self) -> KafkaServer:
        assert self.server is not None
        return self.server

    def land(self, count: int, key: str | None = None) -> None:
        for number in range(self.landed, self.landed + count):
            self.kafka.send(self.topic, rows_of(number), number % self.partitions, key)
        self.landed += count

    def read(self, session: SparkSession) -> DataFrame:
        strict = str(not self.lenient).lower()
        options = {"failOnDataLoss": strict, **(self.subscribe or {"subscribe": self.topic}), **self.options}
        return topic_of(session, self.kafka.address, **options)
