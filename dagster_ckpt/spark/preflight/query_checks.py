"""The preflight checks that compare a query with the checkpoint that it should resume from."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, TypeAlias

from dagster_ckpt.checkpoint import (
    CheckpointCatalog,
    CheckpointMetadata,
    Newest,
    Operator,
    PlannedBatch,
    job_names,
    materialize_checkpoint,
)
from dagster_ckpt.config import LATEST, StateBackend
from dagster_ckpt.errors import CheckpointError, SinkNotEmpty
from dagster_ckpt.shown_text import first_line
from dagster_ckpt.spark.files import key_names
from dagster_ckpt.spark.live import LOCATION
from dagster_ckpt.spark.preflight.another_sink import SinkName, another_sink
from dagster_ckpt.spark.preflight.checkpoint_checks import sink_finding
from dagster_ckpt.spark.preflight.named_sources import another_naming, have_names, named_sources_finding
from dagster_ckpt.spark.query import (
    StatefulKind,
    WriterPlan,
    another_query,
    check_partitions,
    check_state_backend,
    listed_sources,
    recorded_kind,
    sources_of,
    state_keys,
    stateful_kinds,
)
from dagster_ckpt.spark.sinks import Sink
from dagster_ckpt.spark.verdict import Finding, Verdict
from dagster_ckpt.stored_json import believed

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = [
    "empty_sink_finding",
    "operators_finding",
    "partitions_finding",
    "query_sink_finding",
    "removed_finding",
    "sources_finding",
    "state_finding",
    "state_keys_finding",
]

_MOST_NAMED = 20
#: Names that Spark makes: of a computed key, and of a column without a name. Releases may make others.
_MADE_BY_SPARK = re.compile(r"_groupingexpression|.*[(#]", re.IGNORECASE | re.DOTALL)
#: Kinds whose keys have no order of the user's.
_UNORDERED = frozenset({StatefulKind.DEDUPE, StatefulKind.DEDUPE_WITHIN_WATERMARK})
#: Where a store that is the only one of its operator has its schema.
_SCHEMA = re.compile(r"checkpoint/state/[^/]+/0/_metadata/schema")
_Keys: TypeAlias = tuple[Operator, StatefulKind, tuple[str, ...]]
_SESSIONS = "sessionWindowStateStoreSaveExec"


def state_finding(backend: StateBackend | None, restored: CheckpointMetadata) -> Finding:
    """Whether the job's state backend can read the checkpoint's state."""
    check = "state"
    try:
        check_state_backend(backend, restored)
    except CheckpointError as error:
        return Finding.of_error(check, error)
    provider = restored.facts.state_store_provider
    if provider is None:
        return Finding.fine(check, "the query has none.")
    return Finding.fine(check, f"{provider.rpartition('.')[2]}, format {restored.facts.state_format}.")


def partitions_finding(partitions: int | None, restored: CheckpointMetadata) -> Finding:
    """Whether the job asks for the number of partitions that the checkpoint has."""
    check = "partitions"
    try:
        fixed = check_partitions(partitions, restored)
    except CheckpointError as error:
        return Finding.of_error(check, error)
    return Finding.fine(check, "the checkpoint does not tell." if fixed is None else f"{fixed}, as they stay.")


def sources_finding(
    job_name: str, restored: CheckpointMetadata, writer: DataStreamWriter, again: Sequence[PlannedBatch]
) -> Finding:
    """Whether the query has the sources of the checkpoint: those of the same names, or as many without names.

    Args:
        job_name: of the job.
        restored: the checkpoint.
        writer: the query.
        again: the plans of the batches that run again as they were.

    Raises:
        CorruptCheckpoint: a plan is not what was written.
    """
    check = "sources"
    recorded = restored.facts.sources
    if not restored.facts.tells_sources:
        return Finding.fine(check, "not checked: the checkpoint does not tell.")
    if (why := another_naming(restored, listed := listed_sources(writer))) is not None:
        return Finding.of_error(check, another_query(job_name, restored, why))
    if have_names(listed):
        return named_sources_finding(check, restored, listed, again)
    now = sources_of(writer)
    if len(recorded) not in now:
        why = (
            f"It reads {now[0] if len(recorded) < now[0] else now[-1]} sources, and the checkpoint has {len(recorded)}."
        )
        return Finding.of_error(check, another_query(job_name, restored, why))
    return Finding.fine(check, f"{len(recorded)}, as the query has.")


def operators_finding(job_name: str, restored: CheckpointMetadata, writer: DataStreamWriter) -> Finding:
    """Whether the query has the checkpoint's stateful operators, as far as its plan tells before the query runs.

    Spark's optimizer may remove an aggregation, a join or a limit from the plan. So if the plan has more of these than
    the checkpoint, the decision is left to Spark. A query that lacks one of these kinds, or has another number of any
    other kind, is another query.
    """
    check = "stateful operators"
    names = [operator.name for operator in restored.facts.operators]
    kinds = [recorded_kind(name) for name in names]
    if None in kinds:
        return Finding.fine(check, f"not checked: {', '.join(names)} are not all known. Spark checks them itself.")
    was, now = Counter(kind for kind in kinds if kind is not None), stateful_kinds(writer)
    other = [
        kind
        for kind in StatefulKind
        if (was[kind] != now[kind] if kind.is_never_optimized_away else was[kind] > 0 and now[kind] == 0)
    ]
    if other:
        why = f"It has {_told(now)}, and the checkpoint {_told(was)}."
        return Finding.of_error(check, another_query(job_name, restored, why))
    return Finding.fine(check, f"{_told(was)}; their state schemas are checked by Spark.")


def state_keys_finding(
    origin: CheckpointCatalog, restored: CheckpointMetadata, writer: DataStreamWriter, unpacked: Path
) -> Finding:
    """Whether the query keeps its state by columns of the names that the checkpoint's state has.

    Spark compares the types of keys and not their names: grouped by another column of the same type, the query would
    go on with the state of the first. Names that Spark makes are left out, and so is what Spark refuses itself.

    Args:
        origin: the checkpoints of the job that took it.
        restored: the checkpoint.
        writer: the query.
        unpacked: the directory of the checkpoint's checkpointLocation.
    """
    from py4j.protocol import Py4JError  # noqa: PLC0415 - PySpark is loaded where it runs

    check = "state keys"
    try:
        with _schemas(origin, restored, unpacked) as location:
            recorded = [keys for each in restored.facts.operators if (keys := _keys(each, location)) is not None]
        query = state_keys(writer) if recorded else []
    except (CheckpointError, Py4JError) as error:
        return Finding.fine(check, f"not checked: {first_line(error)}")
    for operator, kind, names in recorded:
        now = [keys for other, keys in query if other is kind and len(keys) == len(names)]
        if now and not any(_may_be(names, keys, is_ordered=kind not in _UNORDERED) for keys in now):
            return Finding(
                check,
                Verdict.WITH_LOSS,
                f"operator {operator.id} ({operator.name}) has its state by {', '.join(names)}, and the query keeps "
                f"such state by {' and by '.join(', '.join(keys) for keys in now)}: Spark would take the one for the "
                "other, because it compares types only.",
                "Run the query as it was, or start from nothing into an empty sink with restore_from: none; or, if it "
                "is the same column under another name, accept that.",
            )
    return Finding.fine(check, "as in the checkpoint, where they have names.")


@contextmanager
def _schemas(origin: CheckpointCatalog, restored: CheckpointMetadata, unpacked: Path) -> Iterator[Path]:
    """A checkpointLocation with the schemas of the state, which is not unpacked here if its storage copies it."""
    schemas = [file for file in restored.files if _SCHEMA.fullmatch(file.path)]
    elsewhere = tuple(file for file in schemas if not (unpacked.parent / file.path).exists())
    if not elsewhere:
        yield unpacked
        return
    with TemporaryDirectory(prefix="dagster-ckpt-schemas-") as scratch:
        target = Path(scratch, "files")
        materialize_checkpoint(origin, replace(restored, files=elsewhere), target)
        yield target / LOCATION


def _keys(operator: Operator, location: Path) -> _Keys | None:
    """The names of an operator's keys, ``None`` if its stores have no schema of this form."""
    schema, kind = location / "state" / operator.id / "0" / "_metadata" / "schema", recorded_kind(operator.name)
    if kind is None or not schema.is_file():
        return None
    with believed(f"The schema of the state of operator {operator.id}", "Restore another checkpoint."):
        names = key_names(schema.read_bytes())
    return operator, kind, names[:-1] if operator.name == _SESSIONS else names  # the last is the session's beginning


def _may_be(was: Sequence[str], now: Sequence[str], *, is_ordered: bool) -> bool:
    """Whether keys may be the same; Spark takes upper and lower case for one, unless it is told otherwise."""
    made_by_spark = [_MADE_BY_SPARK.match(name) is not None for name in (*was, *now)]
    if not is_ordered:
        return any(made_by_spark) or sorted(map(str.lower, was)) == sorted(map(str.lower, now))
    pairs = zip(was, now, made_by_spark, made_by_spark[len(was) :], strict=False)
    return all(one.lower() == other.lower() or made or also for one, other, made, also in pairs)


def query_sink_finding(restored: CheckpointMetadata, plan: WriterPlan, sink: Sink | None, directory: Path) -> Finding:
    """Whether the query writes to the checkpoint's sink, and that sink can be rolled back to its position.

    Args:
        restored: the checkpoint.
        plan: the plan of the query's writer.
        sink: the query's sink, ``None`` if checkpoints do not cover it.
        directory: where the checkpoint was unpacked.
    """
    check = "sink position"
    if not SinkName.of(sink).is_same(SinkName.of_position(restored.sink)):
        now = plan.format if sink is None else str(SinkName.of(sink))
        present = sink.first_data() if sink is not None and sink.tells_data else None
        return Finding.of_error(check, another_sink(restored, now, present))
    if sink is None:
        return Finding.fine(check, f"checkpoints do not cover a {plan.format} sink.")
    return sink_finding(restored, sink, directory / "sink")


def removed_finding(removes: Sequence[str]) -> Finding:
    """That files in the sink, which may or may not be of the batch in flight, go at the start."""
    more = f" and {len(removes) - _MOST_NAMED} more" * (len(removes) > _MOST_NAMED)
    return Finding(
        "unlisted files",
        Verdict.WITH_LOSS,
        f"{len(removes)} files that the log of the sink does not list would be removed. They were written since the "
        "batch in flight was planned, so they are most likely of that batch, which runs again: "
        f"{', '.join(removes[:_MOST_NAMED])}{more}.",
        "If others wrote any of these files, move them elsewhere.",
    )


def empty_sink_finding(catalog: CheckpointCatalog, target: Newest, sink: Sink | None, *, asked: str) -> Finding:
    """Whether the sink is empty at a start from nothing."""
    check = "sink position"
    if sink is None or (present := sink.first_data()) is None:
        return Finding.fine(check, "the sink is empty, or not covered by checkpoints.")
    go_on = "" if asked == LATEST else " To go on instead, launch with restore_from: latest."
    others = [name for name in job_names(catalog.filesystem) if name != catalog.job_name]
    if target.job_id is None and asked == LATEST and others:
        go_on = (
            " If the asset was renamed, give it the job_name that it had, and it goes on from its checkpoints. Jobs in "
            f"this storage: {', '.join(others[:_MOST_NAMED])}."
        )
    error = SinkNotEmpty(
        f"Job {catalog.job_name!r} would start from nothing ({target.reason}), but its sink {sink.path} has "
        f"data, {present} for example: the batches of a new lineage have the same numbers, and rows would "
        "be lost or doubled.",
        hint=f"To start from nothing, {sink.to_empty} or write elsewhere.{go_on}",
    )
    return Finding.of_error(check, error)


def _told(kinds: Counter[StatefulKind]) -> str:
    told = [kind.value if count == 1 else f"{count} x {kind.value}" for kind, count in sorted(kinds.items()) if count]
    return f"the stateful operators {', '.join(told)}" if told else "no stateful operator"
