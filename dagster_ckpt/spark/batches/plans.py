"""Spark's batch plans: reading them while a query runs, and laying them out again for a replay.

A file source lists the files of a batch in a log of its own, ``sources/<source>/<entry>``, and puts only the number of
the entry into ``offsets/<batch>``. About every tenth entry is a ``.compact`` entry, which repeats all earlier lines.
From a ``.compact`` entry the plan keeps only this batch's lines; replay restores the earlier ones.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from dagster_ckpt.checkpoint import PlannedBatch
from dagster_ckpt.errors import CaptureIncomplete, CorruptCheckpoint
from dagster_ckpt.spark.files import (
    COMPACT,
    COMPACT_INTERVAL,
    LOG_VERSION,
    CheckpointLocation,
    OffsetEntry,
    log_files,
    parse_offsets,
)
from dagster_ckpt.stored_json import believed, parsed, shown

__all__ = ["PlannedBatches", "forget_plan", "lay_out", "planned_files", "planned_offsets"]

#: How many entries are rewritten at most; a log that Spark compacts never needs more.
_MOST_ENTRIES = 100_000
_ENTRY = re.compile(r"(0|[1-9][0-9]{0,17})(\.compact)?")
_OTHER = "Restore another checkpoint, or launch with replay_to: none."


class PlannedBatches:
    """The batch plans of a running query, each read once.

    Args:
        location: the live location.
        after: the last batch whose plan is not needed, -1 for none.
    """

    def __init__(self, location: CheckpointLocation, after: int) -> None:
        self._location = location
        self.last = after

    def new(self, until: int | None = None) -> list[PlannedBatch]:
        """The plans that were written since the last call, in order.

        Args:
            until: the last batch to return; by default the newest planned batch.
        """
        if until is None:
            until = self._location.newest()
        found = []
        for batch in range(self.last + 1, until + 1):
            try:
                found.append(PlannedBatch(batch, dict(self._files(batch))))
            except CaptureIncomplete:
                if batch == until:
                    break
                # Purged or never written: asynchronous progress tracking leaves gaps.
            self.last = batch
        return found

    def _files(self, batch: int) -> Iterator[tuple[str, str]]:
        where = f"offsets/{batch}"
        text = self._location.text(where)
        offsets = parse_offsets(text, where)
        for source, before, last in _added(self._location, batch, offsets):
            for entry in range(before + 1, last + 1):
                yield self._entry(source, entry)
        yield where, text

    def _entry(self, source: str, entry: int) -> tuple[str, str]:
        plain = f"sources/{source}/{entry}"
        try:
            return plain, self._location.text(plain)
        except CaptureIncomplete:
            compacted = self._location.text(f"{plain}{COMPACT}")
        with _believed(f"{plain}{COMPACT} in {self._location.shown}"):
            added = [line for line in compacted.split("\n")[1:] if line and parsed(line).get("batchId") == entry]
        return f"{plain}{COMPACT}", "\n".join([LOG_VERSION, *added])


def _added(location: CheckpointLocation, batch: int, offsets: OffsetEntry) -> Iterator[tuple[str, int, int]]:
    """For each file source of a batch the last entry of its log before the batch, and the last that the batch reads.

    Raises:
        CaptureIncomplete: no earlier batch is left to tell where this batch begins.
    """
    lasts = {source: last for source, _ in offsets.sources if (last := offsets.file_source_offset(source)) is not None}
    if not lasts:
        return
    earlier = location.previous_offsets(batch)
    if earlier is None and batch > 0:
        raise location.purged(f"offsets/{batch - 1}")
    previous = None if earlier is None else location.offsets(earlier)
    for source, last in lasts.items():
        before = None if previous is None else previous.file_source_offset(source)
        yield source, -1 if before is None else before, last


def lay_out(plan: PlannedBatch, location: Path) -> None:
    """Write a batch plan into a checkpointLocation whose last batch is the previous one.

    The location may already hold a plan of the batch: the same plan, or another one if Spark planned the batch anew.

    Raises:
        CorruptCheckpoint: the location has another last batch, or the plan has a file that Spark would not write. The
            plan is then not written at all.
    """
    with _believed(f"The plan of batch {plan.batch}"):
        _check_names(plan)
    forget_plan(location, plan.batch)
    # The plan itself comes last: when the plan exists, everything that the plan refers to exists.
    for name, text in sorted(plan.files.items(), key=lambda item: item[0].startswith("offsets/")):
        target = location / name
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.replay.tmp")
        with _believed(f"The log that {name} of the plan of batch {plan.batch} continues"):
            content = _compacted(target, text) if name.endswith(COMPACT) else text
        temporary.write_text(content, encoding="utf-8")
        target.with_name(f".{target.name}.crc").unlink(missing_ok=True)  # it describes other bytes
        temporary.replace(target)


def forget_plan(location: Path, batch: int) -> None:
    """Remove the plan of a batch that did not run from a checkpointLocation, so that Spark plans the batch anew.

    The batch's files become unread again. If they stayed in the source's log, Spark would read them all as one batch,
    whatever the current batch size is.

    Args:
        location: a checkpointLocation that no query uses.
        batch: the batch after the last committed batch; nothing happens when that batch has no plan.

    Raises:
        CorruptCheckpoint: a source's log is not as Spark writes it, or what was read before is not known.
    """
    live = CheckpointLocation(location)
    try:
        planned = live.offsets(batch)
    except CaptureIncomplete:
        return
    try:
        added = list(_added(live, batch, planned))
    except CaptureIncomplete as error:
        raise CorruptCheckpoint(f"Batch {batch} cannot be planned anew: {error.message}.", hint=_OTHER) from error
    for source, before, _ in added:
        with _believed(f"sources/{source} in {location}"):
            _cut(location / "sources" / source, before)
    for name in (str(batch), f".{batch}.crc"):
        (location / "offsets" / name).unlink(missing_ok=True)


def planned_files(plan: PlannedBatch) -> list[str]:
    """The URIs of the files that a batch reads from file sources, sorted.

    Raises:
        CorruptCheckpoint: the plan is damaged.
    """
    with _believed(f"The plan of batch {plan.batch}"):
        return sorted(
            str(parsed(line)["path"])
            for name, text in plan.files.items()
            if name.startswith("sources/")
            for line in text.split("\n")[1:]
            if line.startswith("{")
        )


def planned_offsets(plan: PlannedBatch) -> OffsetEntry:
    """The plan's entry of the write-ahead log.

    Raises:
        CorruptCheckpoint: the entry is missing or incomplete.
    """
    where = f"offsets/{plan.batch}"
    with _believed(f"The plan of batch {plan.batch}"):
        text = plan.files[where]
    try:
        return parse_offsets(text, where)
    except CaptureIncomplete as error:
        raise CorruptCheckpoint(f"The plan of batch {plan.batch}: {error.message}.", hint=_OTHER) from error


def _check_names(plan: PlannedBatch) -> None:
    """Make sure that a plan has only files that Spark wrote for the batch.

    Raises:
        ValueError: the plan has another file.
    """
    offsets = planned_offsets(plan)
    last = {source: offsets.file_source_offset(source) for source, _ in offsets.sources}
    for name in plan.files.keys() - {f"offsets/{plan.batch}"}:
        directory, _, rest = name.partition("/")
        source, _, entry = rest.rpartition("/")
        match = _ENTRY.fullmatch(entry)
        newest = last.get(source)
        if directory != "sources" or match is None or newest is None or int(match[1]) > newest:
            raise ValueError(f"it has a file {shown(name)}, which is no entry of a log of its sources")


def _believed(what: str) -> contextlib.AbstractContextManager[None]:
    return believed(what, _OTHER)


def _cut(directory: Path, last: int) -> None:
    """Remove the entries after ``last`` from a source's log."""
    numbers = {path: int(path.name.split(".")[0]) for path in directory.iterdir() if path.name[0].isdigit()}
    later = sorted(path for path, number in numbers.items() if number > last)
    compacted = [path for path in later if path.name.endswith(COMPACT)]
    kept = frozenset(path.name for path in numbers if path not in later)
    try:
        log_files(kept, last, str(directory))
    except CaptureIncomplete:
        # A later compaction has replaced the entries that it repeats: restore these entries from it.
        first = min(compacted, key=numbers.__getitem__, default=None)
        if first is None:
            raise
        before = [number for path, number in numbers.items() if path.name.endswith(COMPACT) and path not in later]
        interval = numbers[first] - max(before) if before else _first_interval(numbers[first])
        base = numbers[first] - interval * -(-(numbers[first] - last) // interval)
        if last - base > _MOST_ENTRIES:
            raise ValueError(f"{last - base} of its entries have only {first.name}") from None
        _split(first, [base - interval, base], last)
    for path in later:
        for name in (path.name, f".{path.name}.crc"):
            (directory / name).unlink(missing_ok=True)


def _first_interval(compacted: int) -> int:
    """After how many entries a log is compacted, told by one compacted entry: the default, or it is the log's first."""
    entries = compacted + 1
    return entries if entries % COMPACT_INTERVAL else COMPACT_INTERVAL


def _split(compacted: Path, compact: Sequence[int], last: int) -> None:
    """Restore the entries up to ``last`` from a compacted entry.

    The entries in ``compact`` become compact files: two, because Spark takes the interval from them. A negative entry
    is before the log's first, and no file. All later entries become single files.
    """
    lines = [line for line in compacted.read_text(encoding="utf-8").split("\n")[1:] if line]
    numbered = [(int(parsed(line)["batchId"]), line) for line in lines]
    added: dict[int, list[str]] = {}
    for number, line in numbered:
        added.setdefault(number, []).append(line)
    texts = {f"{entry}{COMPACT}": [line for number, line in numbered if number <= entry] for entry in compact}
    texts |= {str(entry): added.get(entry, []) for entry in range(compact[-1] + 1, last + 1)}
    for name, text in texts.items():
        if not name.startswith("-"):
            compacted.with_name(f".{name}.crc").unlink(missing_ok=True)
            compacted.with_name(name).write_text("\n".join([LOG_VERSION, *text]), encoding="utf-8")


def _compacted(target: Path, added: str) -> str:
    """The text of a compacted entry: all earlier lines, and the lines that the entry added."""
    directory, entry = target.parent, int(target.name.removesuffix(COMPACT))
    names = frozenset(path.name for path in directory.iterdir())
    try:
        before = log_files(names, entry - 1, str(directory))
    except CaptureIncomplete as error:
        raise CorruptCheckpoint(
            f"The batch of {target.name} cannot be replayed: {error.message}", hint="Launch with replay_to: none."
        ) from error
    newest = max((number for number, file in enumerate(before) if file.endswith(COMPACT)), default=0)
    lines = [
        line
        for file in before[newest:]
        for line in (directory / file).read_text(encoding="utf-8").split("\n")[1:]
        if line
    ]
    return "\n".join([LOG_VERSION, *lines, *added.split("\n")[1:]])
