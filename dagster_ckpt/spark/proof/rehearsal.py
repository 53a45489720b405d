"""A rehearsal: the job's query computes its next batch on a copy of the newest checkpoint, for nobody.

It runs in the session that will drive the query. What the first batch of a session loads, compiles and opens is there
afterwards: the code of the plan, Python's workers, the state store. Nothing of the job is touched, as by a restore
drill, and nothing of the query is left in the session.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from threading import Event as Flag
from time import monotonic
from typing import TYPE_CHECKING, Any

from dagster_ckpt.checkpoint import CheckpointCatalog, CheckpointMetadata
from dagster_ckpt.clock import SystemClock
from dagster_ckpt.config import LATEST
from dagster_ckpt.filesystem import make_working_directory
from dagster_ckpt.spark.files import CheckpointLocation
from dagster_ckpt.spark.job import StreamingJob
from dagster_ckpt.spark.jvm import IN_THIS_PROCESS
from dagster_ckpt.spark.live import LOCATION
from dagster_ckpt.spark.preflight import version_finding
from dagster_ckpt.spark.proof.batch_on_copy import BatchOnCopy
from dagster_ckpt.spark.proof.scratch_copy import copied
from dagster_ckpt.spark.query import check_state_backend, known_providers, make_active, notices_reading, unload_state
from dagster_ckpt.spark.run import Queries
from dagster_ckpt.spark.upgrading import Upgrading

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["NotRehearsedError", "Rehearsed", "rehearse"]

#: Bytes of the largest checkpoint that is rehearsed, and how many times as much room there must be for it.
_MOST_BYTES, _ROOM = 1 << 30, 3
#: How often the batch is computed, each time faster than before, and how long all of it may take.
_TIMES, _TIMEOUT = 3, timedelta(minutes=1)


class NotRehearsedError(Exception):
    """A rehearsal would cost or touch too much, or was cut; the text says so."""


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """A good rehearsal.

    Attributes:
        checkpoint: ``{job id}/chk-N``, which was copied.
        times: that the batch after it was computed, each time by a start of the query.
        seconds: of the whole.
    """

    checkpoint: str
    times: int
    seconds: float


def rehearse(job: StreamingJob, catalog: CheckpointCatalog, cut: Flag) -> Rehearsed:
    """Let the job's query compute the batch after its newest checkpoint a few times, aside.

    When this returns or raises, no task of the query runs, and its state is unloaded.

    Args:
        job: the job; ``session`` gives the session that will drive it.
        catalog: the job's checkpoints.
        cut: set when the session is needed.

    Raises:
        NotRehearsedError: nothing was rehearsed, or the rehearsal was cut.
        CheckpointError: the storage, the checkpoint or the query has failed.
    """
    began, spark, place = monotonic(), job.session(), job.working_directory
    master = str(spark.sparkContext.master)
    if not job.shares_disk and not IN_THIS_PROCESS.match(master):
        raise NotRehearsedError(f"no working_directory is named that the executors of {master} reach")
    make_working_directory(place, job.private_from)

    def check(metadata: CheckpointMetadata) -> None:
        _refuse_large(metadata, place)
        check_state_backend(job.state_backend, metadata)
        if (error := version_finding(metadata.facts.spark_version, spark.version).error) is not None:
            raise error

    def bar(_what: str, _size: int) -> AbstractContextManager[Callable[[int], object]]:
        return nullcontext(lambda _: _end_if(cut))

    prefer = job.config.prefer_checkpoint_for_recovery
    take = None if job.ahead is None else job.ahead.lend
    with (
        copied(catalog, LATEST, place, check=check, prefer_checkpoint=prefer, bar=bar, take=take) as (
            restored,
            directory,
        ),
        _nothing_left_in(spark),
    ):
        location = CheckpointLocation(directory / LOCATION, known_providers(job.state_backend))
        known = catalog.records.plans(restored.job_id).after(restored)
        _end_if(cut)
        writer = Queries(Upgrading(job, catalog, SystemClock()).job_of_next_start(), spark).for_trial(restored)
        if noticed := notices_reading(writer):
            raise NotRehearsedError(noticed)
        until = monotonic() + _TIMEOUT.total_seconds()

        def is_computed() -> bool:
            return (location.last_committed() or 0) > restored.batch

        def is_enough() -> bool:
            return cut.is_set() or is_computed() or monotonic() > until

        batch = BatchOnCopy(
            spark,
            writer,
            restored,
            location,
            name=f"rehearsal of {job.name}",
            timeout=2 * _TIMEOUT,
            in_batches=True,
            is_enough=is_enough,
        )
        times = 0
        with _unheard(writer):
            while times < _TIMES and monotonic() < until:
                batch.run(known)
                _end_if(cut)
                if not is_computed():
                    break
                times += 1
                batch.undo()
        if not times:
            raise NotRehearsedError(f"the batch was not done in {_TIMEOUT}")
    return Rehearsed(restored.reference, times, round(monotonic() - began, 1))


def _refuse_large(metadata: CheckpointMetadata, place: Path) -> None:
    free = shutil.disk_usage(place).free
    if metadata.size > min(_MOST_BYTES, free / _ROOM):
        raise NotRehearsedError(
            f"{metadata.name} has {metadata.size:,} bytes, and {place} has room for {free:,}; at most {_MOST_BYTES:,} "
            f"are copied, and only where there is {_ROOM} times the room"
        )


def _end_if(cut: Flag) -> None:
    if cut.is_set():
        raise NotRehearsedError("the session was needed")


@contextmanager
def _nothing_left_in(spark: SparkSession) -> Iterator[None]:
    """Unload the state and the cached tables of a query: those would be of another moment when the query runs."""
    jvm_state: Any = spark._jsparkSession.sharedState()  # noqa: SLF001 - PySpark has no way to see it
    if not jvm_state.cacheManager().isEmpty():
        raise NotRehearsedError("the session has cached tables, and those of the query could not be told from them")
    try:
        yield
    finally:
        make_active(spark)  # as it was before the query was built
        unload_state(spark)
        spark.catalog.clearCache()


@contextmanager
def _unheard(writer: DataStreamWriter) -> Iterator[None]:
    """Let no listener of the user's hear of a query of this session."""
    streams: Any = writer._spark._jsparkSession.streams()  # noqa: SLF001 - PySpark has no list of them
    listeners = list(streams.listListeners())
    for listener in listeners:
        streams.removeListener(listener)
    try:
        yield
    finally:
        for listener in listeners:
            streams.addListener(listener)
