"""Trying a query on a copy of a checkpoint, where it can do no harm."""

from __future__ import annotations

import time
from threading import Event as Flag
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["try_query"]

_LOOK = 0.1
#: Seconds after which a batch that still computes counts as one the query can compute: a mismatch shows at once.
_LONG_ENOUGH = 60.0


class _Enough(Exception):
    """Ends the trial before its batch is committed, and so before any source is told that it may clean up."""


def try_query(writer: DataStreamWriter, location: str, cancel: Flag) -> Exception | None:
    """Compute one batch of a query from ``location`` and throw it away; returns the error it ended with, if any.

    Args:
        writer: a writer of the query; its sink and trigger are replaced.
        location: a checkpointLocation that may be spoilt.
        cancel: gives up early.
    """
    computed = Flag()

    def compute(batch: DataFrame, _number: int) -> None:
        batch.write.format("noop").mode("overwrite").save()
        computed.set()
        raise _Enough

    try:
        query = writer.foreachBatch(compute).trigger(availableNow=True).option("checkpointLocation", location).start()
        try:
            until = time.monotonic() + _LONG_ENOUGH
            while query.isActive and not computed.is_set() and not cancel.wait(_LOOK) and time.monotonic() < until:
                pass
            return None if computed.is_set() or query.isActive else query.exception()
        finally:
            query.stop()
    except Exception as error:  # whatever Spark raises is the answer
        return error
