"""What the stream has counted and not written yet, read from the state of its newest checkpoint."""

# No `from __future__ import annotations`: Dagster reads the classes of the parameters from the annotations themselves.

from typing import Any

import dagster as dg

from assets.streams import flight_delays
from dagster_ckpt import FileSystemCheckpointStorage, SparkSessionResource

__all__ = ["open_windows"]

#: The state is small: one processor of this machine reads it beside the stream's own Spark.
_SPARK = SparkSessionResource(
    master="local[1]", conf={"spark.ui.enabled": "false", "spark.sql.session.timeZone": "UTC"}
)


@dg.asset(
    deps=[flight_delays.checkpoints_key],
    group_name="flights",
    kinds={"pyspark"},
    description="The windows that late flights may still change, from the state of the newest checkpoint.",
)
def open_windows(checkpoint_storage: FileSystemCheckpointStorage) -> dg.MaterializeResult[None]:
    """The windows that the watermark has not closed, with their carriers and flights. The stream may be running.

    Raises:
        CheckpointNotFound: the stream has no checkpoint yet.
    """
    from dagster_ckpt import read_state  # noqa: PLC0415 - Spark's part, which only a run needs

    spark = _SPARK.session("open_windows")
    with read_state(spark, checkpoint_storage, flight_delays.name) as state:
        windows = _windows(state)
    return dg.MaterializeResult(
        metadata={
            "windows": dg.MetadataValue.table([dg.TableRecord(row.asDict()) for row in windows]),
            "flights": sum(row.flights for row in windows),
        }
    )


def _windows(state: Any) -> list[Any]:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - PySpark, which only a run needs

    # The fields of the value are called as Spark calls them; in their order they are the sums of the query.
    sums = F.col("value").cast("struct<flights: long, cancelled: long, departure: long, arrival: long>")
    groups = state.select(
        F.date_format("key.window.start", "yyyy-MM-dd HH:mm").alias("window"), "key.carrier", sums.alias("sums")
    )
    windows = groups.groupBy("window").agg(
        F.countDistinct("carrier").alias("carriers"), F.sum("sums.flights").alias("flights")
    )
    found: list[Any] = windows.orderBy("window").collect()
    return found
