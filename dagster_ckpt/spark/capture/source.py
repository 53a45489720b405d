"""A running streaming query as the coordinator sees it: the query's progress, and how to pin a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from dagster_ckpt.checkpoint import Facts, Progress, Snapshot, Source
from dagster_ckpt.clock import Clock, Pause
from dagster_ckpt.spark.capture.from_bucket import capture_stored
from dagster_ckpt.spark.capture.from_disk import capture
from dagster_ckpt.spark.files import CheckpointLocation, StoredCheckpointLocation
from dagster_ckpt.spark.sinks import PositionReader
from dagster_ckpt.stored_json import Json

__all__ = ["StreamingSource"]


class StreamingSource:
    """A live location and the sink of its query.

    Args:
        location: the live location.
        pins: a directory for pinned files, on the same disk.
        sink: tells the position of the query's sink, if checkpoints cover that sink.
        spark_version: written into each checkpoint.
        last_progress: returns the last fetched progress report of Spark, if any; called at each capture.
        clock: monotonic time.
        accepted_loss: losses and duplicates in this lineage that the user accepted; recorded in each checkpoint.
        observed: adds to the sources of a capture what their own systems tell.
        query: what the session and the plan of the query tell, written into each checkpoint.
    """

    def __init__(
        self,
        location: CheckpointLocation,
        pins: Path,
        sink: PositionReader | None,
        spark_version: str | None,
        last_progress: Callable[[], Mapping[str, Any] | None],
        clock: Clock,
        accepted_loss: Sequence[str] = (),
        observed: Callable[[Sequence[Source]], list[Source]] = list,
        query: Facts | None = None,
    ) -> None:
        self._query = query or Facts()
        self._observed = observed
        self._accepted_loss = list(accepted_loss)
        self._location = location
        self._pins = pins
        self._sink = sink
        self._spark_version = spark_version
        self._last_progress = last_progress
        self._numbers = count(1)
        self._pause = Pause(*location.pauses, clock)
        self._looked: Progress | None = None

    def progress(self) -> Progress:
        """The last committed batch and the batch in flight; in a storage, as of a moment ago.

        Raises:
            StorageError: the batches cannot be listed.
        """
        if self._looked is None or self._pause.is_over:
            before, self._looked = self._looked, Progress(*self._location.how_far())
            self._pause.begin(changed=self._looked != before)
        return self._looked

    def look_again(self) -> None:
        """Forget earlier observations."""
        self._looked = None

    def pin(self, batch: int) -> Snapshot:
        """Pin ``batch``; raises as :func:`~dagster_ckpt.spark.capture.from_disk.capture`."""
        pins = self._pins / str(next(self._numbers))
        if isinstance(self._location, StoredCheckpointLocation):
            snapshot = capture_stored(self._location, batch, pins, sink=self._sink)
        else:
            snapshot = capture(self._location, batch, pins, sink=self._sink)
        try:
            sources = self._observed(snapshot.facts.sources)
        except BaseException:
            snapshot.release()
            raise
        facts: dict[str, Any] = {"spark_version": self._spark_version, "sources": sources}
        if (read := self._query.read_sources) is not None:
            facts["read_sources"] = sorted({*read, *(source.id for source in sources if source.offset is not None)})
        if self._accepted_loss:
            facts["accepted_loss"] = [*self._accepted_loss]
        if report := self._last_progress():
            facts["progress"] = _numbers(report, snapshot.facts)
        return replace(snapshot, facts=snapshot.facts.and_of_query(self._query).model_copy(update=facts))


def _numbers(report: Mapping[str, Any], facts: Facts) -> dict[str, Json]:
    """The parts of a progress report worth keeping. The report may be of a batch near the captured batch."""
    operators = report.get("stateOperators") or []
    return {
        **_by_operator(operators, facts),
        "batch": report.get("batchId"),
        "input_rows": report.get("numInputRows"),
        "rows_per_second": report.get("processedRowsPerSecond"),
        "batch_ms": report.get("batchDuration"),
        "state_rows": sum(int(operator.get("numRowsTotal") or 0) for operator in operators),
        "state_memory_bytes": sum(int(operator.get("memoryUsedBytes") or 0) for operator in operators),
        "rows_dropped_by_watermark": sum(int(operator.get("numRowsDroppedByWatermark") or 0) for operator in operators),
    }


def _by_operator(reported: Sequence[Mapping[str, Any]], facts: Facts) -> dict[str, Json]:
    """The keys of each operator whose name no other operator of the query has: Spark reports names, and no ids."""
    ids = {item.name: item.id for item in facts.operators}
    if len(ids) < len(facts.operators) or len({item.get("operatorName") for item in reported}) < len(reported):
        return {}
    known = ((ids.get(str(item.get("operatorName"))), item.get("numRowsTotal")) for item in reported)
    return {f"operator_{id_}_keys": keys for id_, keys in known if id_ is not None}
