"""The ways that the main job can send the flights: from files to Parquet, and through Kafka into a Delta table."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pandas as pd
import psutil

from assets.batch_answer import normalized, read_delays
from assets.cluster import standalone_cluster, tree
from assets.flights import records
from assets.killed_stream import driver_and_jvm, say
from assets.settings import CLUSTER_VARIABLE, JARS_VARIABLE, KAFKA_VARIABLE, TOPIC, DataPaths
from dagster_ckpt.spark.sinks.spark_sink_log import FileSink

__all__ = [
    "SPARK_OF_DELTA",
    "FlightTopic",
    "Route",
    "files_on_cluster",
    "files_to_parquet",
    "flights_in_kafka",
    "kafka_to_delta",
]

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
        lost: the processes that are killed with the driver.
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
    lost: Callable[[psutil.Process], Sequence[psutil.Process]] = driver_and_jvm


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
def files_on_cluster(paths: DataPaths, environment: Mapping[str, str]) -> Iterator[Route]:
    """The job reads the landed files, and one of two Workers of a cluster starts its driver.

    Args:
        paths: of the example.
        environment: of the code location, which the driver needs, too.
    """
    say("Starting a standalone cluster of Spark: a Master and two Workers ...")
    with (
        standalone_cluster(
            paths.root / "cluster", workers=2, environment=lambda master: {**environment, CLUSTER_VARIABLE: master}
        ) as cluster,
        files_to_parquet(paths) as route,
    ):
        say(f"Its master is {cluster.master}")

        def lost(driver: psutil.Process) -> Sequence[psutil.Process]:
            """All that the driver's Worker runs, and the Worker: what is lost with its host."""
            (worker,) = (each for each in driver.parents() if "deploy.worker.Worker" in " ".join(each.cmdline()))
            say(f"Worker {worker.pid} runs the driver, and is lost with all that it runs.")
            return tree(worker)

        yield replace(route, environment={CLUSTER_VARIABLE: cluster.master}, lost=lost)


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
