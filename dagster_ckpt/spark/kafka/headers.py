"""Headers by which a consumer of a topic knows a record that comes again."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["with_kafka_headers"]

_HEADERS = "headers"
_BUCKET = "dagster_ckpt_bucket"
_ORDINAL = "dagster_ckpt_ordinal"
#: How many tasks may number the rows of a batch; fixed, because ordinals depend on the number.
_BUCKETS = 64


def with_kafka_headers(rows: DataFrame, job: str, batch: int) -> DataFrame:
    """The records of a batch, with job, batch and ordinal in their headers.

    A batch that runs again gives each record the ordinal that the record had, on whichever machine the batch runs:
    ordinals follow from the values alone. So job, batch and ordinal together name a record of a topic, and a consumer
    can drop a record that comes again. The order of the records of a batch is not kept.

    .. code-block:: python

        def write(rows, batch):
            records = rows.selectExpr("CAST(id AS STRING) AS key", "to_json(struct(*)) AS value")
            with_kafka_headers(records, "delays", batch).write.format("kafka").options(**options).save()

    Args:
        rows: the columns of Spark's Kafka sink, such as ``key`` and ``value``. A query that runs a batch again must
            find the same values: no random numbers, no time of day.
        job: names the job for consumers. A job that starts over needs another name, because its batches count from 0,
            and so does code that makes other records of the same rows.
        batch: the number of the batch.

    Returns:
        the rows with the headers ``dagster_ckpt.job``, ``dagster_ckpt.batch`` and ``dagster_ckpt.ordinal``, each as
        text, after the headers that the rows have.
    """
    from pyspark.sql import Window  # noqa: PLC0415 - PySpark is loaded where it runs
    from pyspark.sql import functions as f  # noqa: PLC0415

    names = rows.columns
    numbered = rows.withColumn(_BUCKET, f.pmod(f.xxhash64(*names), f.lit(_BUCKETS)))
    place = f.row_number().over(Window.partitionBy(_BUCKET).orderBy(*names)) - 1
    numbered = numbered.withColumn(_ORDINAL, place * _BUCKETS + f.col(_BUCKET))
    told = {"job": f.lit(job), "batch": f.lit(batch), "ordinal": f.col(_ORDINAL)}
    ours = f.array(
        *(
            f.struct(f.lit(f"dagster_ckpt.{name}").alias("key"), value.cast("string").cast("binary").alias("value"))
            for name, value in told.items()
        )
    )
    headers = f.concat(f.coalesce(_HEADERS, f.slice(ours, 1, 0)), ours) if _HEADERS in names else ours
    return numbered.withColumn(_HEADERS, headers).drop(_BUCKET, _ORDINAL)
