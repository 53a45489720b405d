"""Whether Spark can repartition the state of a checkpoint, and the query then go on exactly."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dagster_ckpt.checkpoint import RESCALE, CheckpointMetadata
from dagster_ckpt.config import ROCKSDB_PROVIDER, RestoreRequest
from dagster_ckpt.errors import RestoreRefused
from dagster_ckpt.spark.files import PARTITIONS_CONF
from dagster_ckpt.spark.query import StatefulKind, recorded_kind
from dagster_ckpt.spark.releases import release_of
from dagster_ckpt.spark.sinks import IcebergSink, Sink
from dagster_ckpt.spark.verdict import Finding

__all__ = ["RESCALE_CHECK", "Rescale", "rescale_finding", "still_asked"]

RESCALE_CHECK = "state partitions"
#: The schema of a key without a column, as Spark writes it at the beginning of a state schema.
_NO_KEY = b'{"type":"struct","fields":[]}'
#: Bytes of a state schema that hold its version and, if the key has no column, the schema of the key.
_BEGINS = 64
#: Spark opens the logs of any other path under its escaped name, and takes the location for an empty one.
_PLAIN_PATH = re.compile(r"[A-Za-z0-9/._~-]*")
_WITHOUT = "Launch without state_partitions."


@dataclass(frozen=True, slots=True)
class Rescale:
    """What a start would repartition, as far as it is known.

    Attributes:
        number: the number of partitions that was asked for.
        spark_version: of the Spark that would do it; ``None`` when unknown.
        job_partitions: the number that the job itself asks for, ``None`` if it asks for none.
        on_disk: whether the live location is on a disk.
        location: the unpacked checkpointLocation, ``None`` where its state was not unpacked.
        sink: the query's sink, ``None`` if it is not known or checkpoints do not cover it.
        later: the batches that are known to have been planned after the checkpoint.
    """

    number: int
    spark_version: str | None
    job_partitions: int | None = None
    on_disk: bool = True
    location: Path | None = None
    sink: Sink | None = None
    later: Sequence[int] = ()


def rescale_finding(asked: Rescale, restored: CheckpointMetadata | None) -> Finding:
    """Whether the state of a checkpoint can have another number of partitions in the restored copy."""
    if restored is None:
        refusal: tuple[str, str] | None = (
            "there is no checkpoint whose state could be repartitioned",
            f"{_WITHOUT} A query that starts from nothing has as many partitions as {PARTITIONS_CONF} of its session.",
        )
    else:
        if _is_rescaled(restored, asked.number):
            return Finding.fine(RESCALE_CHECK, f"{asked.number}: a start before this one has repartitioned the state.")
        refusal = _of_state(asked, restored) or _of_start(asked, restored)
    if refusal is not None:
        why, hint = refusal
        return Finding.of_error(
            RESCALE_CHECK,
            RestoreRefused(
                f"The state cannot have {asked.number} partitions: {why}.", hint=f"Nothing was touched. {hint}"
            ),
        )
    was = None if restored is None else _fixed(restored)
    return Finding.fine(RESCALE_CHECK, f"{was} in the checkpoint, and {asked.number} in the copy that is restored.")


def still_asked(request: RestoreRequest, restored: CheckpointMetadata | None) -> RestoreRequest:
    """The request without the number of partitions if a start before this one has repartitioned the state already.

    That start may have run batches, which keep their numbers and boundaries.
    """
    number = request.state_partitions
    if restored is None or number is None or not _is_rescaled(restored, number):
        return request
    return replace(request, state_partitions=None, replay_to=None)


def _is_rescaled(restored: CheckpointMetadata, partitions: int) -> bool:
    return restored.kind == RESCALE and _fixed(restored) == partitions


def _of_state(asked: Rescale, restored: CheckpointMetadata) -> tuple[str, str] | None:
    """Why Spark cannot repartition the state, and what to do; ``None`` if it can."""
    facts, name = restored.facts, restored.name
    if not facts.operators:
        return (
            f"the query of {name} keeps none",
            f"{_WITHOUT} The partitions of a query without state follow {PARTITIONS_CONF} at each start.",
        )
    if facts.state_store_provider != ROCKSDB_PROVIDER:
        return (
            f"{name} has its state of {facts.state_store_provider}, and Spark repartitions the state of "
            f"{ROCKSDB_PROVIDER} only",
            f"{_WITHOUT} Another state backend needs a start from nothing into an empty sink with restore_from: none.",
        )
    if asked.spark_version is not None and not release_of(asked.spark_version).repartitions_state:
        iceberg = (restored.sink or {}).get("kind") == IcebergSink.kind
        later = "Spark 4.2 or later" + (", once Iceberg has a release for that Spark" if iceberg else "")
        return (
            f"this is Spark {asked.spark_version}, and Spark repartitions state from 4.2 on",
            f"Run the job with {later}; or launch without state_partitions to keep {_fixed(restored)}.",
        )
    if _fixed(restored) in {None, asked.number}:
        has = "does not tell how many it has" if _fixed(restored) is None else f"has {asked.number} already"
        return f"{name} {has}", _WITHOUT
    if _has_one_partition(asked, restored):
        return (
            f"an operator of {name} keeps all its state in one partition, whatever the number is (an aggregation "
            "without keys, or a limit), and a repartition by Spark fails or loses that state",
            _WITHOUT,
        )
    return None


def _of_start(asked: Rescale, restored: CheckpointMetadata) -> tuple[str, str] | None:
    """Why the query cannot go on exactly after a repartition, and what to do; ``None`` if it can."""
    sink = asked.sink
    if not asked.on_disk:
        return (
            "the live location is in a bucket, where Spark may leave half a repartition",
            "Give the storage a working_directory and a live location on a disk for one launch. Later launches may "
            "have it in the bucket again.",
        )
    if asked.location is not None and _PLAIN_PATH.fullmatch(path := str(asked.location.absolute())) is None:
        return (
            f"Spark does not find {path!r} for a repartition, because the path has characters that a URL escapes",
            "Give the storage a working_directory with letters, digits, and the characters / . _ - only.",
        )
    if asked.job_partitions not in {None, asked.number}:
        return (
            f"the job itself is to have {asked.job_partitions}",
            f"Set the parallelism of the job to {asked.number}, or launch with state_partitions: "
            f"{asked.job_partitions}.",
        )
    if sink is not None and not sink.can_skip_a_batch:
        return (
            f"the repartition takes the number of batch {restored.batch + 1}, and the {sink.kind} sink {sink.path} "
            "is not known to do without a batch",
            f"{_WITHOUT} Or write to a sink that can do without a batch, such as a TransactionalFileSink.",
        )
    if sink is not None and not sink.can_roll_back and asked.later:
        return (
            f"batch {asked.later[0]} may have been written to {sink.path}, which cannot go back, and would be written "
            "again under another number",
            "Launch without state_partitions, and end the job with `dagster-ckpt stop`, whose savepoint covers every "
            "batch; then launch with state_partitions. Or give the sink a rollback_to.",
        )
    return None


def _fixed(restored: CheckpointMetadata) -> int | None:
    text = restored.facts.sql_confs.get(PARTITIONS_CONF, "")
    return int(text) if text.isdecimal() else None


def _has_one_partition(asked: Rescale, restored: CheckpointMetadata) -> bool:
    if any(recorded_kind(operator.name) is StatefulKind.LIMIT for operator in restored.facts.operators):
        return True
    if any(operator.partitions != _fixed(restored) for operator in restored.facts.operators):
        return True
    schemas = () if asked.location is None else asked.location.glob("state/*/0/_metadata/schema")
    return any(_NO_KEY in schema.read_bytes()[:_BEGINS] for schema in schemas)
