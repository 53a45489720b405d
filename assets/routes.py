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

__all__ = ["SPARK_OF_DELTA", "Route", "files_to_parquet", "kafka_to_delta"]

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

    from dagster_ckpt.testing.kafka import connector, running  # noqa: PLC0415
    from dagster_ckpt.testing.maven import DELTA, beside_spark  # noqa: PLC0415

    home = paths.root / "kafka"
    home.mkdir(parents=True)
    say("Looking for the jars of Kafka and Delta ...")
    jars = [*connector(home), *beside_spark(home, DELTA[SPARK_OF_DELTA])]
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

        yield Route(
            job="flight_delays_table",
            workspace="workspace_kafka_to_delta.yaml",
            input=f"topic {TOPIC} of {broker.address}",
            output=paths.delays_table,
            read=lambda: normalized(DeltaTable(os.fspath(paths.delays_table)).to_pandas()),
            feed=feed,
            environment={KAFKA_VARIABLE: broker.address, JARS_VARIABLE: ",".join(map(os.fspath, jars))},
        )
