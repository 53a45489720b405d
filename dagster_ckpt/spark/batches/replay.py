"""Running batches again with their earlier boundaries, whatever the session's batch sizes are now.

Spark runs a planned batch as planned, but only the last planned batch that it finds. So the plans are laid out one at a
time, and a separate query runs each batch and ends with it.

Each query loads the state anew. Where RocksDB stores only a batch's changes, Spark stores the whole state now and then
in the background, but none of these queries lives long enough for that: every batch would apply all changes since the
checkpoint again. So at intervals a batch of a replay stores the whole state.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Event as Flag
from typing import TYPE_CHECKING

from dagster_ckpt.checkpoint import PlannedBatch
from dagster_ckpt.config import CHANGELOG_CONF
from dagster_ckpt.errors import CheckpointFailure
from dagster_ckpt.spark.batches.plans import lay_out
from dagster_ckpt.spark.live import LiveLocation
from dagster_ckpt.spark.query import bounded

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["replay_batches"]

_LOOK = 1
#: So few remaining batches do not justify storing the whole state.
_FEW = 3
#: Batches from one that stores the whole state to the next, the same as for Spark's own snapshots.
_WHOLE_STATE_EVERY = 10


def replay_batches(
    session: SparkSession,
    writer: DataStreamWriter,
    live: LiveLocation,
    plans: Sequence[PlannedBatch],
    cancel: Flag,
    raise_failure: Callable[[StreamingQuery], None],
    begun: Callable[[StreamingQuery], None],
    progress: Callable[[int], None],
) -> bool:
    """Run all of ``plans`` but the last, which is laid out for the next start of the query to run.

    Args:
        session: the query's session.
        writer: the query's writer, with ``live`` as its checkpointLocation.
        live: the live location; its last batch is the one before ``plans``.
        plans: the batches in order, without a gap.
        cancel: set when the run should stop.
        raise_failure: raises if the query has failed.
        begun: called with each query that was started for a batch. The caller stops the last one, if not all has run.
        progress: called with each batch that is done.

    Returns:
        ``False`` when the replay was canceled.

    Raises:
        CheckpointFailure: a query ended without an error and without running its batch.
    """
    from pyspark.errors import StreamingQueryException  # noqa: PLC0415 - PySpark is loaded where it runs

    if not plans:
        return True
    location = live.location()
    with bounded(writer):
        for number, plan in enumerate(plans[:-1]):
            if cancel.is_set():
                return False
            with live.edited() as logs:
                lay_out(plan, logs)
            with _whole_state(session, wanted=number % _WHOLE_STATE_EVERY == 0 and len(plans) - number > _FEW):
                query = writer.start()
            begun(query)
            with contextlib.suppress(StreamingQueryException):  # `raise_failure` raises it in order
                while not query.awaitTermination(_LOOK) and not cancel.is_set():
                    pass
            if cancel.is_set():
                return False
            raise_failure(query)
            if location.last_committed() != plan.batch:
                raise CheckpointFailure(f"Batch {plan.batch} was laid out for a replay and did not run.")
            progress(plan.batch)
    with live.edited() as logs:
        lay_out(plans[-1], logs)
    return True


@contextmanager
def _whole_state(session: SparkSession, *, wanted: bool) -> Iterator[None]:
    """Make a query that starts within this context store its whole state; a query copies its session's settings."""
    kept = session.conf.get(CHANGELOG_CONF, None)
    if not wanted or kept != "true":
        yield
        return
    session.conf.set(CHANGELOG_CONF, "false")
    try:
        yield
    finally:
        session.conf.set(CHANGELOG_CONF, kept)
