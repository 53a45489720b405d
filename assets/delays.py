"""The streaming query of the example; all its pipelines share it."""

from __future__ import annotations

import os
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark user knows it by
from pyspark.sql.streaming.readwriter import DataStreamWriter

from assets.flights import END_OF_DATA, MAX_FILES_PER_TRIGGER, MAX_RECORDS_PER_TRIGGER
from assets.settings import KAFKA_VARIABLE, TOPIC

__all__ = [
    "FLIGHT_SCHEMA",
    "WATERMARK_DAYS",
    "WINDOW_HOURS",
    "delays_from_kafka",
    "delays_of",
    "delays_query",
    "flights_of",
]

FLIGHT_SCHEMA = "time_hour TIMESTAMP, carrier STRING, origin STRING, dep_delay INT, arr_delay INT, landed DATE"
"""The landed files' columns as Spark reads them; a record of Kafka has the same."""

WATERMARK_DAYS = 3
WINDOW_HOURS = 6


def delays_query(
    spark: SparkSession, landed: Path, output: Path, *, max_files_per_trigger: int = 4
) -> DataStreamWriter:
    """The rows of :func:`delays_of` from landed files into Parquet files.

    Args:
        spark: the session to run in; the result does not depend on its time zone.
        landed: directory of landed files.
        output: directory of the Parquet file sink.
        max_files_per_trigger: landed files (days) per micro-batch, 1 to 8.

    Returns:
        A writer that is not started and has no checkpoint location.

    Raises:
        ValueError: ``max_files_per_trigger`` is out of its range; the rows dropped as too late would depend
            on where the batches begin and end.
    """
    if not 1 <= max_files_per_trigger <= MAX_FILES_PER_TRIGGER:
        raise ValueError(f"max_files_per_trigger is {max_files_per_trigger}; it must be 1 to {MAX_FILES_PER_TRIGGER}")
    flights = (
        spark.readStream.schema(FLIGHT_SCHEMA).option("maxFilesPerTrigger", max_files_per_trigger).parquet(str(landed))
    )
    return delays_of(flights).writeStream.format("parquet").option("path", str(output)).outputMode("append")


def delays_of(flights: DataFrame) -> DataFrame:
    """Flights, cancellations and sums of delays (minutes) per 6-hour window, carrier and origin.

    A window's row is written once, when the watermark (3 days) has passed its end: columns ``window_start``,
    ``window_end`` (timestamps), ``carrier``, ``origin``, ``flights``, ``cancelled``, ``dep_delay_sum``,
    ``arr_delay_sum`` (bigint; a sum is null where no flight of the group has the delay).

    Args:
        flights: a stream with the columns of :data:`FLIGHT_SCHEMA`.
    """
    return (
        flights.withWatermark("time_hour", f"{WATERMARK_DAYS} days")
        # The markers move the watermark and are no flights. Only a predicate on the event time itself stays
        # above the watermark operator; one on another column would be pushed below it, and the markers with
        # it out of its sight.
        .where(F.col("time_hour") < F.lit(END_OF_DATA))
        .groupBy(F.window("time_hour", f"{WINDOW_HOURS} hours"), "carrier", "origin")
        .agg(
            F.count("*").alias("flights"),
            F.count_if(F.col("dep_delay").isNull()).alias("cancelled"),
            F.sum("dep_delay").alias("dep_delay_sum"),
            F.sum("arr_delay").alias("arr_delay_sum"),
        )
        .select(
            F.col("window.start").alias("window_start"),
            F.col("window.end").alias("window_end"),
            "carrier",
            "origin",
            "flights",
            "cancelled",
            "dep_delay_sum",
            "arr_delay_sum",
        )
    )


def delays_from_kafka(spark: SparkSession) -> DataFrame:
    """The rows of :func:`delays_of` from the example's topic, whose records :func:`assets.flights.records` gives.

    Args:
        spark: the session to run in.
    """
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", os.environ[KAFKA_VARIABLE])
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", MAX_RECORDS_PER_TRIGGER)
        .load()
    )
    return delays_of(flights_of(records))


def flights_of(records: DataFrame) -> DataFrame:
    """The flights in records of Kafka as :func:`assets.flights.records` gives them: JSON in the column ``value``."""
    return records.select(F.from_json(F.col("value").cast("string"), FLIGHT_SCHEMA).alias("flight")).select("flight.*")
