"""A query stops although its batch does not heed the first interrupt."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from dagster_ckpt.spark.query import await_tasks, stop_query, streaming_session
from tests.jobs.harness import Bench, eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Spark's ``stop()`` ends one of these attempts by canceling its job, and one by interrupting its thread.
_ATTEMPTS = 4


def test_a_function_that_tries_again_after_its_interrupt_is_interrupted_again(bench: Bench) -> None:
    """Spark's own ``stop()`` waits for such a batch as long as the batch takes."""
    bench.land(1)
    attempts: list[int] = []
    released = bench.root / "released"
    path = str(released)

    def held(rows: object) -> object:
        import os  # noqa: PLC0415 - in Spark's worker

        while not os.path.exists(path):  # noqa: PTH110
            time.sleep(0.05)
        return rows

    def stubborn(batch: DataFrame, _number: int) -> None:
        for attempt in range(_ATTEMPTS):
            attempts.append(attempt)
            try:
                batch.rdd.map(held).count()
            except Exception as error:
                last = error
            else:
                return
        raise last

    session = streaming_session(bench.spark, None)
    session.conf.set("spark.sql.streaming.stopTimeout", "500ms")
    writer = bench.read(session).writeStream.foreachBatch(stubborn)
    query = writer.option("checkpointLocation", str(bench.root / "location")).start()
    stop = threading.Thread(target=stop_query, args=(query,), daemon=True)
    try:
        eventually("the batch runs", lambda: bool(attempts))
        stop.start()
        eventually("the query has stopped", lambda: not stop.is_alive())
        assert not query.isActive
        assert await_tasks(bench.spark, str(query.runId))
        assert attempts == list(range(_ATTEMPTS)), "each attempt needed an interrupt of its own"
    finally:
        released.touch()


def test_a_session_of_a_query_lets_stop_return_unless_the_user_says_otherwise(bench: Bench) -> None:
    assert streaming_session(bench.spark, None).conf.get("spark.sql.streaming.stopTimeout") == "5s"
