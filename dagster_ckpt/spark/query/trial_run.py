"""Trying a query on a copy of a checkpoint, where the query can do no harm."""

from __future__ import annotations

import time
from threading import Event as Flag
from typing import TYPE_CHECKING

from dagster_ckpt.spark.query.tasks import stop_query
from dagster_ckpt.spark.query.writer_plan import bounded

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["try_query"]

_LOOK = 0.1
#: Seconds of computing after which a batch counts as computable: a mismatch shows at once.
_LONG_ENOUGH = 60.0


class TrialIsOver(Exception):
    """Ends the trial before its batch commits, so before any source is told that it may clean up.

    Spark logs this end as an error of the query, so the name and the text say that it is none.
    """


def try_query(writer: DataStreamWriter, location: str, cancel: Flag) -> Exception | None:
    """Compute one batch of a query from ``location`` and discard the result; returns the query's error, if any.

    Args:
        writer: a writer of the query; its sink and trigger are replaced.
        location: a checkpointLocation that may be damaged.
        cancel: ends the trial early.
    """
    computed = Flag()

    def compute(batch: DataFrame, _number: int) -> None:
        batch.write.format("noop").mode("overwrite").save()
        computed.set()
        raise TrialIsOver("the query was tried on a copy, and its batch can be computed: nothing is wrong")

    try:
        with bounded(writer, available_now=True):
            query = writer.foreachBatch(compute).option("checkpointLocation", location).start()
        try:
            until = time.monotonic() + _LONG_ENOUGH
            while query.isActive and not computed.is_set() and not cancel.wait(_LOOK) and time.monotonic() < until:
                pass
            return None if computed.is_set() or query.isActive else query.exception()
        finally:
            stop_query(query)
    except Exception as error:  # whatever Spark raises is the answer
        return error
