"""The state of a checkpoint as a DataFrame, read by Spark's own reader from a copy of the checkpoint."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from dagster_ckpt.checkpoint import CheckpointCatalog, CheckpointMetadata, FileEntry, Operator
from dagster_ckpt.config import LATEST
from dagster_ckpt.errors import InvalidConfiguration
from dagster_ckpt.paths import hadoop_path
from dagster_ckpt.shown_text import first_line
from dagster_ckpt.spark.live import LOCATION
from dagster_ckpt.spark.preflight import version_finding
from dagster_ckpt.spark.proof.scratch_copy import Bar, copied, no_bar, scratch_place
from dagster_ckpt.spark.query import streaming_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["HasCatalogs", "read_state", "read_state_metadata", "state_operator"]

#: A file of an operator's state: the operator, and the partition where the file is of one.
_STATE = re.compile(r"checkpoint/state/([^/]+)/(?:([0-9]+)/)?")
_SINK = "sink/"
_DEFAULT_STORE = "default"
_JOIN_SIDE = "joinSide"


class HasCatalogs(Protocol):
    """A storage of checkpoints, as the resources of Dagster are one."""

    def catalog(self, job_name: str) -> CheckpointCatalog: ...


@contextmanager
def read_state(
    spark: SparkSession,
    storage: HasCatalogs,
    job: str,
    checkpoint: str = LATEST,
    *,
    operator: int = 0,
    store: str | None = None,
    options: Mapping[str, str] | None = None,
    scratch_directory: str | Path | None = None,
    bar: Bar = no_bar,
) -> Iterator[DataFrame]:
    """Read the state of one operator as a DataFrame.

    The checkpoint is copied, and Spark's ``statestore`` reader reads the copy. The DataFrame is of use inside the
    ``with`` block; then the copy is removed. The job may be running, and is not touched.

    .. code-block:: python

        with read_state(spark, storage, "turnover", "chk-12", operator=0) as state:
            state.where("value.count > 100").show()

    Args:
        spark: a session; the DataFrame gets a session of its own beside it.
        storage: where the job's checkpoints are kept.
        job: the job's name.
        checkpoint: ``latest``, ``chk-N``, ``{job id}/chk-N``, or the path of a checkpoint or savepoint.
        operator: the id of a stateful operator; :func:`read_state_metadata` tells them.
        store: the name of a state store, for an operator with several.
        options: more options of Spark's reader, such as ``{"joinSide": "left"}``, ``{"stateVarName": "count"}`` or
            ``{"readRegisteredTimers": "true"}``.
        scratch_directory: where to put the copy: a directory that driver and executors share. By default the temporary
            directory of this machine, for a local Spark.
        bar: shows how far the copy is: called with a text and all bytes, it returns a context manager for what is told
            the bytes of each file. By default nothing is shown.

    Returns:
        a context manager for the DataFrame: ``key`` and ``value`` (structs), and ``partition_id``; with other columns
        for some options.

    Raises:
        CheckpointNotFound: there is no such checkpoint.
        CorruptCheckpoint: the checkpoint is not what was written.
        InvalidConfiguration: there is no such operator or store, the query has no state, or Spark's reader refuses.
        RestoreRefused: the checkpoint is of a newer Spark.
        StorageError: the storage failed.
    """
    chosen = {"operatorId": str(operator), **({} if store is None else {"storeName": store}), **(options or {})}

    def check(metadata: CheckpointMetadata) -> None:
        _check_store(state_operator(metadata, str(operator)), store, options or {}, metadata)

    def wanted(file: FileEntry) -> bool:
        state = _STATE.match(file.path)
        return not file.path.startswith(_SINK) and (state is None or state[1] == str(operator))

    with _read(spark, storage, job, checkpoint, "statestore", chosen, scratch_directory, check, wanted, bar) as state:
        yield state


@contextmanager
def read_state_metadata(
    spark: SparkSession,
    storage: HasCatalogs,
    job: str,
    checkpoint: str = LATEST,
    *,
    scratch_directory: str | Path | None = None,
) -> Iterator[DataFrame]:
    """The stateful operators of a query as a DataFrame, by Spark's ``state-metadata`` reader; no state is read.

    Arguments and errors are those of :func:`read_state`.

    Returns:
        a context manager for the DataFrame: a row for each state store, with ``operatorId``, ``operatorName``,
        ``stateStoreName``, ``numPartitions``, ``minBatchId``, ``maxBatchId`` and ``operatorProperties``.
    """

    def wanted(file: FileEntry) -> bool:
        state = _STATE.match(file.path)
        return not file.path.startswith(_SINK) and (state is None or state[2] is None)

    with _read(
        spark, storage, job, checkpoint, "state-metadata", {}, scratch_directory, _check_stateful, wanted
    ) as operators:
        yield operators


@contextmanager
def _read(
    spark: SparkSession,
    storage: HasCatalogs,
    job: str,
    checkpoint: str,
    reader: str,
    options: Mapping[str, str],
    scratch_directory: str | Path | None,
    check: Callable[[CheckpointMetadata], object],
    wanted: Callable[[FileEntry], bool],
    bar: Bar = no_bar,
) -> Iterator[DataFrame]:
    def usable(metadata: CheckpointMetadata) -> None:
        check(metadata)
        if (error := version_finding(metadata.facts.spark_version, spark.version).error) is not None:
            raise error

    place = scratch_place(spark, scratch_directory)
    with copied(storage.catalog(job), checkpoint, place, check=usable, wanted=wanted, bar=bar) as (metadata, copy):
        # Spark's reader finds the format of the state in the settings of its session.
        session = streaming_session(spark, metadata.facts)
        try:
            found = session.read.format(reader).options(**options).load(hadoop_path(copy / LOCATION))
        except Exception as error:
            from pyspark.errors import PySparkException  # noqa: PLC0415 - PySpark is loaded where it runs

            if not isinstance(error, PySparkException):
                raise
            said = first_line(error)
            raise InvalidConfiguration(
                f"Spark's {reader} reader does not read {metadata.reference} of job {job!r}: {said}",
                hint="Check store and options. An operator of transformWithState needs the option stateVarName or "
                "readRegisteredTimers, and a state store of another class needs its jar in the session.",
            ) from error
        yield found


def state_operator(metadata: CheckpointMetadata, operator: str) -> Operator:
    """The stateful operator with an id.

    Raises:
        InvalidConfiguration: there is none; the error names those that exist.
    """
    _check_stateful(metadata)
    for found in metadata.facts.operators:
        if found.id == operator:
            return found
    raise InvalidConfiguration(
        f"{metadata.reference} of job {metadata.job_name!r} has no stateful operator {operator}.",
        hint=f"It has {', '.join(f'{item.id} ({item.name})' for item in metadata.facts.operators)}.",
    )


def _check_stateful(metadata: CheckpointMetadata) -> None:
    if not metadata.facts.operators:
        raise InvalidConfiguration(
            f"The query of job {metadata.job_name!r} has no state in {metadata.reference}.",
            hint="Aggregations, joins of streams, deduplication and transformWithState keep state. `dagster-ckpt "
            "describe` shows the operators of a checkpoint.",
        )


def _check_store(
    operator: Operator, store: str | None, options: Mapping[str, str], metadata: CheckpointMetadata
) -> None:
    if not operator.stores:  # a manifest may not tell them
        return
    if store is None and (_DEFAULT_STORE in operator.stores or _JOIN_SIDE in options):
        return
    if store not in operator.stores:
        what = "needs a store" if store is None else f"has no state store {store!r}"
        sides = " Or give the option joinSide, left or right." if operator.name == "symmetricHashJoin" else ""
        raise InvalidConfiguration(
            f"Operator {operator.id} ({operator.name}) of {metadata.reference} {what}.",
            hint=f"Its state stores are {', '.join(operator.stores)}.{sides}",
        )
