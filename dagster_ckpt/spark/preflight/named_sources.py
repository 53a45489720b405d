"""Sources to which the query gives names: Spark lets them come and go between two starts of a query."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from dagster_ckpt.checkpoint import CheckpointMetadata, PlannedBatch, Source
from dagster_ckpt.errors import CheckpointError, RestoreRefused
from dagster_ckpt.spark.batches import planned_offsets
from dagster_ckpt.spark.files import CheckpointLocation
from dagster_ckpt.spark.kafka import records
from dagster_ckpt.spark.query import QuerySource
from dagster_ckpt.spark.verdict import Finding, Verdict

__all__ = ["another_naming", "have_names", "named_sources_finding", "read_before"]

_LONGEST_PLACE = 500
#: Spark's names of the sources that write a log when they are first read.
_WITH_LOG = frozenset({"avro", "csv", "iceberg", "json", "kafka", "orc", "parquet", "text", "xml"})


def another_naming(restored: CheckpointMetadata, sources: Sequence[QuerySource]) -> str | None:
    """Why Spark would stop because only the query or only the checkpoint has names; ``None`` if both are alike.

    Without names Spark numbers the sources, and a number may be a name, too.
    """
    before, now = {source.id for source in restored.facts.sources}, {source.id for source in sources}
    is_numbered, is_named = all(map(str.isdecimal, before)), have_names(sources)
    if not before or is_numbered is not is_named or (is_named and before & now):
        return None
    who, other = ("The query", restored.name) if is_named else (restored.name, "the query")
    return f"{who} names its sources, and {other} does not: Spark would stop there."


def have_names(sources: Sequence[QuerySource]) -> bool:
    """Whether the query names its sources: Spark wants a name for each then."""
    return any(source.is_named for source in sources)


def named_sources_finding(
    check: str,
    restored: CheckpointMetadata,
    sources: Sequence[QuerySource],
    again: Sequence[PlannedBatch],
    location: Path | None,
) -> Finding:
    """What is lost or doubled because the query reads other sources than the checkpoint.

    Args:
        check: what is checked.
        restored: the checkpoint.
        sources: of the query.
        again: the plans of the batches that run again as they were.
        location: the unpacked checkpointLocation, ``None`` if a batch is run or laid out before the query plans one.

    Raises:
        CorruptCheckpoint: a plan is not what was written.
    """
    was, now = {source.id: source for source in restored.facts.sources}, {source.id: source for source in sources}
    for plan in again:
        planned = {source for source, _ in planned_offsets(plan).sources}
        if planned != now.keys():
            refusal = RestoreRefused(
                f"Batch {plan.batch} is to run again as it was, with the sources {_names(planned)}, and the query has "
                f"{_names(now)}.",
                hint="Nothing was touched. Launch with replay_to: none, or run the query as it was until it ends.",
            )
            return Finding.of_error(check, refusal)
    dropped = [source for name, source in was.items() if name not in now]
    added = sorted(now.keys() - was.keys())
    known = frozenset() if location is None or not added else _known_before(location, restored.batch)
    come_back = [name for name in added if name not in known and _was_read(restored, now[name])]
    told = _names(now)
    if added:
        told += f"; not in the checkpoint: {_names(added)}"
    parts = [f"the query does not read {_left(source)}" for source in dropped]
    if come_back:
        has = "may have" if restored.facts.read_sources is None else "has"
        parts.append(
            f"it {has} read {_names(come_back)} before, and after batch {restored.batch} Spark does not know how far: "
            "all that was read there may come again, and rows may be doubled"
        )
    if not parts:
        return Finding.fine(check, f"{told}.")
    hint = (
        "Name the source in the query as the checkpoint does."
        if dropped
        else "Leave the source out, or give it another name and an input without what was read."
    )
    if again and come_back:
        hint += " With replay_to: none Spark looks for the place in one batch more."
    return Finding(check, Verdict.WITH_LOSS, f"{told}; {'; '.join(parts)}.", hint, only_doubles=not dropped)


def _names(names: Sequence[str] | set[str] | dict[str, QuerySource]) -> str:
    return ", ".join(sorted(names))


def _known_before(location: Path, batch: int) -> frozenset[str]:
    """The sources whose places Spark finds in the entry of offsets before the entry of ``batch``.

    A query begins with the places in its last two entries, whatever the logs of its sources say. A source that is in
    neither begins anew; a source of files then reads its log from the first entry on.
    """
    logs = CheckpointLocation(location)
    previous = logs.previous_offsets(batch)
    if previous is None:
        return frozenset()
    try:
        return frozenset(source for source, offset in logs.offsets(previous).sources if offset is not None)
    except CheckpointError:  # the log has its own check, which reports the damage
        return frozenset()


def read_before(restored: CheckpointMetadata | None, sources: Sequence[QuerySource]) -> list[str] | None:
    """The names of the sources that earlier starts have read, ``None`` if they are not known or have no names.

    Args:
        restored: the checkpoint that the query goes on from.
        sources: of the query.
    """
    if not have_names(sources):
        return None
    return [] if restored is None else restored.facts.read_sources


def _was_read(restored: CheckpointMetadata, source: QuerySource) -> bool:
    """Whether a start before has read a source, as far as that is known.

    Spark keeps the log of a source that the query does not read. A checkpoint may not tell of a source without a log.
    """
    if any(file.path.startswith(f"checkpoint/sources/{source.id}/") for file in restored.files):
        return True
    read = restored.facts.read_sources
    return source.format not in _WITH_LOG if read is None else source.id in read


def _left(source: Source) -> str:
    """A source that the query does not read any more, with what it leaves out."""
    lag = sum(sum(partitions.values()) for partitions in source.lag.values())
    told = f", of which {records(lag)} were yet to be read at the checkpoint" if lag else ""
    place = json.dumps(source.offset)[:_LONGEST_PLACE]
    return f"{source.id} any more{told}: all that comes after the checkpoint, from {place} on, is left out"
