"""A job's state backend and partitions, compared with what its checkpoint has fixed and what can still be changed."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_ckpt.checkpoint import CheckpointMetadata
from dagster_ckpt.config import (
    HDFS_PROVIDER,
    LAYOUTS,
    LOCAL_DIRECTORIES_CONF,
    ROCKSDB_PROVIDER,
    STATE_FORMAT_CONF,
    StateBackend,
    StateLayout,
)
from dagster_ckpt.errors import QueryMismatch, StateBackendMismatch
from dagster_ckpt.spark.files import PARTITIONS_CONF
from dagster_ckpt.spark.jvm import IN_THIS_PROCESS
from dagster_ckpt.stored_json import believed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "check_partitions",
    "check_state_backend",
    "ignored_partitions",
    "ignored_settings",
    "known_providers",
    "unload_state",
]

_BACKENDS = {HDFS_PROVIDER: "HashMapStateBackend()", ROCKSDB_PROVIDER: "EmbeddedRocksDBStateBackend()"}


def known_providers(backend: StateBackend | None) -> Mapping[str, StateLayout]:
    """The state store providers with capturable files, by class: Spark's own and the backend's."""
    if backend is None:
        return LAYOUTS
    return {**LAYOUTS, backend.provider: backend.state_layout}


def check_state_backend(backend: StateBackend | None, restored: CheckpointMetadata) -> None:
    """Make sure that the backend can read a checkpoint's state, and that a later capture will know its files.

    Spark fixes the provider when a query first starts, and then ignores any other.

    Raises:
        StateBackendMismatch: the backend cannot read the state.
    """
    began_with = restored.facts.state_store_provider
    if began_with is None:  # a query without state
        return
    if began_with in LAYOUTS if backend is None else began_with == backend.provider:
        return
    now = "no state backend that knows its files"
    if backend is not None:
        now = f"{type(backend).__name__} with {backend.provider}, which cannot read it"
    keep = _BACKENDS.get(began_with, f"CustomStateBackend({began_with!r}, layout=...)")
    raise StateBackendMismatch(
        f"{restored.name} has its state of {began_with}, and the job now has {now}.",
        hint=f"Keep the state backend, {keep}, or start from nothing into an empty sink with restore_from: none.",
    )


def check_partitions(partitions: int | None, restored: CheckpointMetadata) -> int | None:
    """The number of partitions that a checkpoint has fixed, ``None`` when the checkpoint does not tell.

    Args:
        partitions: the number the job should have; ``None`` for the session's setting.
        restored: the checkpoint to resume from.

    Raises:
        QueryMismatch: the checkpoint has another number, which Spark would silently keep.
    """
    text = restored.facts.sql_confs.get(PARTITIONS_CONF)
    if text is None:
        return None
    with believed(f"The number of partitions of {restored.name}", "Restore another checkpoint.", QueryMismatch):
        fixed = int(text)
    if partitions is not None and fixed != partitions:
        raise QueryMismatch(
            f"{restored.name} has {fixed} partitions, and the job is to have {partitions}. Spark fixes the number when "
            "a query first starts.",
            hint=f"Keep {fixed}, or launch once with state_partitions: {partitions}.",
        )
    return fixed


def ignored_partitions(session: SparkSession, restored: CheckpointMetadata | None) -> list[str]:
    """One sentence if the session of a restored query has another number of partitions than the checkpoint fixed."""
    fixed = None if restored is None else restored.facts.sql_confs.get(PARTITIONS_CONF)
    configured = session.conf.get(PARTITIONS_CONF)
    if fixed is None or fixed == configured:
        return []
    return [
        f"{PARTITIONS_CONF}={configured}: it stays {fixed}, as it is in the checkpoint. To change it, launch once with "
        f"state_partitions: {configured}."
    ]


def ignored_settings(
    backend: StateBackend | None, spark: SparkSession, restored: CheckpointMetadata | None
) -> list[str]:
    """The settings of the backend that cannot take effect for this query, one sentence each.

    Args:
        backend: the job's backend.
        spark: the session that Spark was started with.
        restored: the checkpoint to resume from.
    """
    if backend is None:
        return []
    reasons = list(backend.warnings())
    directories = backend.launch_conf().get(LOCAL_DIRECTORIES_CONF)
    if directories is not None and (why := _why_elsewhere(spark, directories)) is not None:
        reasons.append(f"db_storage_paths={directories}: {why}")
    if restored is not None:
        fixed = _fixed(restored)
        reasons += [
            f"{key}={value}: it stays {fixed[key]}, as it was when the query first started."
            for key, value in backend.spark_conf().items()
            if fixed.get(key, value) != value
        ]
    return reasons


def unload_state(spark: SparkSession) -> None:
    """Close the state stores that this JVM has loaded, with their memory, in a JVM without a running query.

    Executors elsewhere unload the state of an ended query by themselves.
    """
    with contextlib.suppress(Exception):  # what is still loaded is of files that are gone
        spark._jvm.org.apache.spark.sql.execution.streaming.state.StateStore.stop()  # type: ignore[union-attr]  # noqa: SLF001


def _why_elsewhere(spark: SparkSession, wanted: str) -> str | None:
    """Why state stores do not use the directories ``wanted``, ``None`` if they do."""
    context = spark.sparkContext
    if IN_THIS_PROCESS.match(str(context.master)) is None:
        return f"the executors of {context.master} work where their cluster manager says."
    # The first SparkContext of a JVM fixes the directories for all later ones.
    utils = getattr(getattr(context._jvm.org.apache.spark.util, "Utils$"), "MODULE$")  # type: ignore[union-attr]  # noqa: SLF001
    roots = utils.getOrCreateLocalRootDirs(context._jsc.sc().conf())  # noqa: SLF001
    used = {Path(root).parent.resolve() for root in roots}
    if used == {Path(directory).resolve() for directory in wanted.split(",")}:
        return None
    return f"Spark was started with {','.join(sorted(map(str, used)))} and stays there until its process ends."


def _fixed(restored: CheckpointMetadata) -> dict[str, str]:
    """The settings that Spark fixed when the checkpoint's query first started; empty for a query without state."""
    facts = restored.facts
    return {} if facts.state_store_provider is None else {**facts.sql_confs, STATE_FORMAT_CONF: str(facts.state_format)}
