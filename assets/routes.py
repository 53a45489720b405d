"""The two ways that the main job can send the flights: from files to Parquet, and through Kafka into a Delta table."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from assets.batch_answer import normalized, read_delays
from assets.flights import records
from assets.killed_stream import say
from assets.settings import JARS_VARIABLE, KAFKA_VARIABLE, TOPIC, DataPaths
from dagster_ckpt.spark.sinks.spark_sink_log import FileSink

__all__ = ["SPARK_OF_DELTA", "FlightTopic", "Route", "files_to_parquet", "flights_in_kafka", "kafka_to_delta"]

SPARK_OF_DELTA = "4.2"
"""The newest release of Spark that Delta is for."""


@dataclass(frozen=True, slots=True)
class Route:
    """One way of the flights.

    Attributes:
        job: that streams them.
        workspace: the file of the code location that has the job.
        input: what the job reads, for the report.
        output: where the job writes.
        read: the rows that a reader finds in the output.
        read_raw: the rows in all files of the output; ``None`` where more than the rows may be there.
        feed: brings the landed flights to the input.
        environment: more variables for the code location.
        then: assets that are made when the stream has ended.
    """

    job: str
    workspace: str
    input: str
    output: Path
    read: Callable[[], pd.DataFrame]
    read_raw: Callable[[], pd.DataFrame] | None = None
    feed: Callable[[], None] = lambda: None
    environment: Mapping[str, str] = field(default_factory=dict)
    then: Sequence[str] = ()


@contextmanager
def files_to_parquet(paths: DataPaths) -> Iterator[Route]:
    """The job reads the landed files."""
    yield Route(
        job="flight_delays",
        workspace="workspace.yaml",
        input=str(paths.landed),
        output=paths.delays,
        read=lambda: read_delays(FileSink(paths.delays).committed_files()),
        read_raw=lambda: read_delays(paths.delays.rglob("part-*.parquet")),
        then=["delay_report"],
    )


@contextmanager
def kafka_to_delta(paths: DataPaths) -> Iterator[Route]:
    """The job reads a broker that is there until the end of the context; jars that are missing are fetched first."""
    # Of the extra `dev`.
    from deltalake import DeltaTable  # noqa: PLC0415

    from dagster_ckpt.testing.maven import DELTA  # noqa: PLC0415

    with flights_in_kafka(paths, DELTA[SPARK_OF_DELTA]) as topic:
        yield Route(
            job="flight_delays_table",
            workspace="workspace_kafka_to_delta.yaml",
            input=topic.name,
            output=paths.delays_table,
            read=lambda: normalized(DeltaTable(os.fspath(paths.delays_table)).to_pandas()),
            feed=topic.feed,
            environment=topic.environment,
        )


@dataclass(frozen=True, slots=True)
class FlightTopic:
    """The topic of the flights, and how a job gets at it.

    Attributes:
        name: of the topic and its broker, for people.
        feed: sends the landed flights.
        environment: variables for the job.
    """

    name: str
    feed: Callable[[], None]
    environment: Mapping[str, str]


@contextmanager
def flights_in_kafka(paths: DataPaths, *tables: tuple[str, str, str]) -> Iterator[FlightTopic]:
    """A broker until the end of the context; jars that are missing are fetched first.

    Args:
        paths: the directories of the example.
        tables: what the job needs to write its table, as organisation, module and revision in Maven's repository.
    """
    from dagster_ckpt.testing.kafka import connector, running  # noqa: PLC0415 - of the extra `dev`
    from dagster_ckpt.testing.maven import beside_spark  # noqa: PLC0415

    home = paths.root / "kafka"
    home.mkdir(parents=True)
    say("Looking for the jars of Kafka and the table ...")
    jars = [*connector(home), *(jar for artifact in tables for jar in beside_spark(home, artifact))]
    say("Starting a broker of Kafka ...")
    with running(home) as broker:

        def feed() -> None:
            say("Sending the flights to Kafka, one record per flight ...")
            broker.create(TOPIC)
            sent = 0
            for values in records(paths.landed):
                broker.send(TOPIC, values)
                sent += len(values)
            say(f"  {sent:,} records")

        yield FlightTopic(
            name=f"topic {TOPIC} of {broker.address}",
            feed=feed,
            environment={KAFKA_VARIABLE: broker.address, JARS_VARIABLE: ",".join(map(os.fspath, jars))},
        )
