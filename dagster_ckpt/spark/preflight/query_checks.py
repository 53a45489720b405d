"""The preflight checks that compare a query with the checkpoint that it should resume from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_ckpt.checkpoint import CheckpointCatalog, CheckpointMetadata, Newest, PlannedBatch, StateKeys, job_names
from dagster_ckpt.config import LATEST, StateBackend
from dagster_ckpt.errors import CheckpointError, SinkNotEmpty
from dagster_ckpt.shown_text import shortened
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
    stateful_kinds,
)
from dagster_ckpt.spark.sinks import Sink
from dagster_ckpt.spark.verdict import Finding, Verdict
from dagster_ckpt.stored_json import shown

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
    job_name: str,
    restored: CheckpointMetadata,
    writer: DataStreamWriter,
    again: Sequence[PlannedBatch],
    location: Path | None,
) -> Finding:
    """Whether the query has the sources of the checkpoint: those of the same names, or as many without names.

    Args:
        job_name: of the job.
        restored: the checkpoint.
        writer: the query.
        again: the plans of the batches that run again as they were.
        location: the unpacked checkpointLocation, ``None`` if a batch is run or laid out before the query plans one.

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
        return named_sources_finding(check, restored, listed, again, location)
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


def state_keys_finding(restored: CheckpointMetadata, now: Sequence[StateKeys] | None) -> Finding:
    """Whether each operator keeps its state by the columns that it had at the checkpoint.

    Spark compares the types of keys and not their names: grouped by another column of the same type, the query would go
    on with the state of the first. The names are those of the query's plan at the checkpoint. Spark has names in the
    schema of the state, too, but of the query's first start: it keeps them when a column gets another name.

    Args:
        restored: the checkpoint.
        now: by what the query keeps state; ``None`` if its plan does not tell.
    """
    check, was = "state keys", restored.facts.state_keys
    if was is None or now is None:
        return Finding.fine(check, f"not checked: the {'checkpoint' if was is None else 'plan'} does not tell.")
    if [item.operator for item in was] != [item.operator for item in now]:
        return Finding.fine(check, "not checked: the stateful operators are others, and Spark checks them itself.")
    for number, (before, after) in enumerate(zip(was, now, strict=True), 1):
        if _may_be_same(before, after):
            continue
        return Finding(
            check,
            Verdict.WITH_LOSS,
            f"the query keeps the state of {before.operator} (stateful operator {number}) by {_columns(after)}, and "
            f"the checkpoint has it by {_columns(before)}: Spark would take the one for the other, because it compares "
            "types only.",
            "Run the query as it was, or start over with restore_from: none into an empty sink; or, if it is the same "
            "column under another name, accept that.",
        )
    return Finding.fine(check, "the columns of the checkpoint, as far as they have names.")


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
    return Finding(
        "unlisted files",
        Verdict.WITH_LOSS,
        f"{len(removes)} files that the log of the sink does not list would be removed. They were written since the "
        "batch in flight was planned, so they are most likely of that batch, which runs again: "
        f"{', '.join(shortened(removes))}.",
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
            f"this storage: {', '.join(shortened(others))}."
        )
    error = SinkNotEmpty(
        f"Job {catalog.job_name!r} would start from nothing ({target.reason}), but its sink {sink.path} has "
        f"data, {present} for example: the batches of a new lineage have the same numbers, and rows would "
        "be lost or doubled.",
        hint=f"To start from nothing, {sink.to_empty} or write elsewhere.{go_on}",
    )
    return Finding.of_error(check, error)


def _may_be_same(before: StateKeys, after: StateKeys) -> bool:
    """Whether keys may be the same; Spark finds a column in upper and lower case, and refuses another number itself."""
    pairs = [*zip(before.columns, after.columns, strict=False)]
    return len(before.columns) != len(after.columns) or all(
        one is None or other is None or one.lower() == other.lower() for one, other in pairs
    )


def _columns(keys: StateKeys) -> str:
    return ", ".join("a computed key" if name is None else shown(name) for name in keys.columns)


def _told(kinds: Counter[StatefulKind]) -> str:
    told = [kind.value if count == 1 else f"{count} x {kind.value}" for kind, count in sorted(kinds.items()) if count]
    return f"the stateful operators {', '.join(told)}" if told else "no stateful operator"
