"""A topic of Kafka as the input of a case, with the records of one file to a batch."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_ckpt.spark.files.checkpoint_location import CheckpointLocation
from dagster_ckpt.testing.kafka import KafkaServer
from tests.jobs.matrix.streams import ROWS, SCHEMA, rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["FILES", "KAFKA", "SOURCES", "Topic"]

FILES, KAFKA = "files", "Kafka"
SOURCES = (FILES, KAFKA)


@dataclass(frozen=True)
class Topic:
    """A topic with one partition. All cases of a stopped job share the topic, and what was sent stays in it.

    Attributes:
        kafka: the broker.
        name: of the topic.
        sent: the numbers of the files whose rows were sent, in order.
    """

    kafka: KafkaServer
    name: str = field(default_factory=lambda: f"matrix-{uuid.uuid4().hex[:8]}")
    sent: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.kafka.create(self.name)

    def send(self, number: int) -> None:
        """Send the rows of a file, unless they were sent before."""
        if number not in self.sent:
            self.kafka.send(self.name, rows_of(number))
            self.sent.append(number)

    def read(self, session: SparkSession, files: int, *, at_once: bool) -> DataFrame:
        """A stream of the rows.

        Args:
            session: to read in.
            files: of how many files a batch has the rows.
            at_once: whether a batch waits until all these rows are there.
        """
        from pyspark.sql import functions as f  # noqa: PLC0415

        size = ROWS * files
        reader = (
            session.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self.kafka.address)
            .option("subscribe", self.name)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", size)
        )
        if at_once:
            reader = reader.option("minOffsetsPerTrigger", size).option("maxTriggerDelay", "1h")
        value = f.from_json(f.col("value").cast("string"), SCHEMA).alias("row")
        return reader.load().select(value).select("row.*")

    def batches(self, read: Path, directory: Path) -> list[list[Path]]:
        """A file for each batch, with the rows that the batch has read.

        Args:
            read: has the directory ``offsets`` of all batches. The first batch may have read nothing, when the query
                looked before there was a row.
            directory: for the files.
        """
        rows = [row for number in self.sent for row in rows_of(number)]
        location = CheckpointLocation(read)
        entries = [int(file.name) for file in (read / "offsets").iterdir() if file.name.isdigit()]
        ends = {batch: _end(location, batch) for batch in entries}
        assert sorted(ends) == list(range(len(ends))), "each batch has told what it has read"
        directory.mkdir()
        found, begin = [], 0
        for _, end in sorted(ends.items()):
            file = directory / f"{begin:04}-{end:04}.json"
            file.write_text("\n".join(rows[begin:end]), encoding="utf-8")
            found.append([file])
            begin = end
        return found


def _end(location: CheckpointLocation, batch: int) -> int:
    """The offset after the batch, which all sources of the query have alike."""
    (end,) = {at["0"] for source, _ in location.offsets(batch).sources for at in _topics(location, batch, source)}
    return end


def _topics(location: CheckpointLocation, batch: int, source: str) -> list[dict[str, int]]:
    offset = location.offsets(batch).offset(source)
    assert isinstance(offset, dict)
    return list(offset.values())  # type: ignore[arg-type]
