"""Whether a job that was forked has written the same rows as the first job, batch by batch.

The fork has run the first job's batches again with their boundaries (``fork_from`` with ``replay_to``). So the rows
must be the same, whatever the query does with time, with late rows or with updates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from dagster_ckpt.checkpoint import CheckpointCatalog, CheckpointMetadata, PlannedBatch, find_newest
from dagster_ckpt.errors import InvalidConfiguration
from dagster_ckpt.shown_text import first_line
from dagster_ckpt.spark.batches import planned_files
from dagster_ckpt.spark.proof.state_reader import HasCatalogs
from dagster_ckpt.spark.sinks import recorded_sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Comparison", "ReadRows", "compare_rows", "find_common"]

#: Reads what the batches after one batch up to another have written of a job, by the name of the job.
ReadRows: TypeAlias = "Callable[[SparkSession, str, int, int], DataFrame]"
_EXAMPLES = 20


@dataclass(frozen=True, slots=True)
class Comparison:
    """What two jobs have written in the same batches.

    Attributes:
        blue: the name of the first job.
        green: the name of its fork.
        first: the first batch that was compared.
        last: the last one.
        rows: how many rows the first job has written.
        only_in_blue: how many of them the fork has not written.
        only_in_green: how many rows the fork alone has written.
        examples: some of the rows that differ as JSON, each after ``-`` (blue only) or ``+`` (green only).
    """

    blue: str
    green: str
    first: int
    last: int
    rows: int
    only_in_blue: int
    only_in_green: int
    examples: Sequence[str]

    @property
    def is_same(self) -> bool:
        """Whether both have written the same rows, each as often."""
        return not self.only_in_blue and not self.only_in_green

    def __str__(self) -> str:
        batches = f"batches {self.first} to {self.last}"
        if self.is_same:
            return f"{self.blue} and {self.green} have written the same {self.rows:,} rows in {batches}."
        return (
            f"{self.blue} has written {self.rows:,} rows in {batches}: {self.only_in_blue:,} of them are not in "
            f"{self.green}, and {self.only_in_green:,} are in {self.green} alone."
        )


def compare_rows(
    spark: SparkSession,
    storage: HasCatalogs,
    blue: str,
    green: str,
    *,
    green_storage: HasCatalogs | None = None,
    columns: Sequence[str] | None = None,
    read: ReadRows | None = None,
) -> Comparison:
    """Compare what a job and its fork have written in the batches that both have run, up to their newest checkpoints.

    .. code-block:: python

        found = compare_rows(spark, storage, "turnover", "turnover_green")
        assert found.is_same, found

    Args:
        spark: a session.
        storage: where the checkpoints of the first job are kept.
        blue: the name of the first job, which may be running.
        green: the name of its fork, which may be running.
        green_storage: where the checkpoints of the fork are kept; by default in ``storage``.
        columns: compare these columns only; by default all of them.
        read: reads the rows of batches, for a sink that does not tell them by itself.

    Raises:
        InvalidConfiguration: the jobs have no batch in common that a checkpoint of both covers, or a sink does not
            tell its rows, or the rows have other columns.
        SinkMismatch: rows of these batches are no longer there.
        CheckpointError: a storage failed, or a record is damaged.
    """
    newest, after, until = find_common(storage, blue, green, green_storage)
    try:
        both = [
            _rows(metadata, spark, after, until) if read is None else read(spark, metadata.job_name, after, until)
            for metadata in newest
        ]
        ours, theirs = both
        if ours.columns and theirs.columns:
            if columns is None and sorted(ours.columns) != sorted(theirs.columns):
                raise InvalidConfiguration(
                    f"{blue} has the columns {', '.join(ours.columns)}, and {green} has {', '.join(theirs.columns)}.",
                    hint="Name the columns that are to be compared.",
                )
            ours, theirs = (_selected(rows, columns or sorted(ours.columns)) for rows in both)
        return _compared(blue, green, after + 1, until, ours, theirs)
    except Exception as error:
        from pyspark.errors import PySparkException  # noqa: PLC0415 - PySpark is loaded where it runs

        if not isinstance(error, PySparkException):
            raise
        raise InvalidConfiguration(
            f"Spark does not compare the rows of {blue} and {green}: {first_line(error)}",
            hint="Name columns that both have with one type; maps cannot be compared.",
        ) from error


def find_common(
    storage: HasCatalogs, blue: str, green: str, green_storage: HasCatalogs | None = None
) -> tuple[list[CheckpointMetadata], int, int]:
    """What can be compared, which needs no Spark: both newest checkpoints, the batch before the first, and the last.

    Arguments and errors are those of :func:`compare_rows`.
    """
    catalogs = storage.catalog(blue), (green_storage or storage).catalog(green)
    newest = [_newest(catalog) for catalog in catalogs]
    return newest, *_common(*catalogs, min(metadata.batch for metadata in newest))


def _compared(blue: str, green: str, first: int, last: int, ours: DataFrame, theirs: DataFrame) -> Comparison:
    if not (ours.columns and theirs.columns):  # one of them has no file
        lost, new = ours, theirs
    else:
        lost, new = ours.exceptAll(theirs), theirs.exceptAll(ours)
    examples = [f"{sign} {text}" for sign, rows in (("-", lost), ("+", new)) for text in _as_json(rows)]
    return Comparison(blue, green, first, last, ours.count(), lost.count(), new.count(), examples)


def _selected(rows: DataFrame, names: Sequence[str]) -> DataFrame:
    """These columns; ``a.b`` is the column of that name, or else the field of a column ``a``."""
    there = set(rows.columns)
    return rows.select(*("`{}`".format(name.replace("`", "``")) if name in there else name for name in names))


def _as_json(rows: DataFrame) -> list[str]:
    from pyspark.sql import functions  # noqa: PLC0415 - PySpark is loaded where it runs

    as_text = functions.to_json(functions.struct("*"), {"ignoreNullFields": "false"})
    return [row[0] for row in rows.limit(_EXAMPLES).select(as_text).collect()] if rows.columns else []


def _newest(catalog: CheckpointCatalog) -> CheckpointMetadata:
    newest = find_newest(catalog).metadata
    if newest is None:
        raise InvalidConfiguration(
            f"Job {catalog.job_name!r} has no checkpoint, so no batch of it is final.",
            hint="Let it take a checkpoint: `dagster-ckpt checkpoint`, or its interval.",
        )
    return newest


def _rows(newest: CheckpointMetadata, spark: SparkSession, after: int, until: int) -> DataFrame:
    job = newest.job_name
    sink = None if newest.sink is None else recorded_sink(newest.sink)
    if sink is None:
        kind = "a sink that checkpoints do not cover" if newest.sink is None else f"a {newest.sink.get('kind')} sink"
        raise InvalidConfiguration(
            f"Job {job!r} writes to {kind}, which cannot be read without its query.",
            hint="In Python, give compare_rows a function `read` that returns the rows of these batches.",
        )
    return sink.rows_of(spark, after, until)


def _common(blue: CheckpointCatalog, green: CheckpointCatalog, covered: int) -> tuple[int, int]:
    """The batch before the first one that both have run with the same boundaries, and the last such batch."""
    fork, begins = _begins(green)
    theirs = {plan.batch: plan for plan in fork}
    ours = {plan.batch: plan for plan in _plans(blue, begins)}
    name = green.job_name
    way = (
        f"Pin a checkpoint of {blue.job_name} (`dagster-ckpt pin`), and launch {name}, which has no checkpoint yet, "
        "with fork_from: that checkpoint and replay_to: latest."
    )
    if not theirs or begins + 1 not in ours:
        whose = blue.job_name if theirs else name
        raise InvalidConfiguration(f"How {whose} has planned batch {begins + 1} is not known (any more).", hint=way)
    last = begins
    while last + 1 in ours and last + 1 in theirs and _is_same(ours[last + 1], theirs[last + 1]):
        last += 1
    if last == begins:
        raise InvalidConfiguration(
            f"Batch {begins + 1} of {name} has other boundaries than that of {blue.job_name}: {name} did not begin "
            "there with its batches.",
            hint=way,
        )
    if covered <= begins:
        raise InvalidConfiguration(
            f"{blue.job_name} and {name} have no checkpoint yet that covers batch {begins + 1}.",
            hint="Wait for the next checkpoint of both, or ask for one with `dagster-ckpt checkpoint`.",
        )
    return begins, min(last, covered)


def _begins(green: CheckpointCatalog) -> tuple[list[PlannedBatch], int]:
    """The plans of the fork, and the batch that it was forked at."""
    chosen = green.choice()
    plans = None if chosen is None else green.records.plans(chosen[1].job_id)
    first = None if plans is None else next(iter(plans.epochs()), None)
    begins = None if plans is None or first is None else plans.began_after(first)
    if plans is None or begins is None or begins < 0:
        raise InvalidConfiguration(
            f"Job {green.job_name!r} is no fork.", hint="Launch it with fork_from and replay_to: latest."
        )
    return plans.newest_after(begins), begins


def _plans(catalog: CheckpointCatalog, after: int) -> list[PlannedBatch]:
    chosen = catalog.choice()
    return [] if chosen is None else catalog.records.plans(chosen[1].job_id).newest_after(after)


def _is_same(one: PlannedBatch, other: PlannedBatch) -> bool:
    """Whether two plans read the same, at the same time and with the same watermark."""
    offsets = f"offsets/{one.batch}"
    return one.files[offsets] == other.files[offsets] and planned_files(one) == planned_files(other)
