"""Spark's plans of batches: reading them while a query runs, and laying them out again for a replay.

A file source writes what a batch will read into a log of its own, ``sources/<source>/<entry>``, and only the number
of the entry into ``offsets/<batch>``. Every tenth entry or so is a ``.compact`` one, which repeats all before it; of
such a one a plan keeps what it added, and the rest is put before it again when it is laid out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from dagster_ckpt.checkpoint.write_ahead_archive import PlannedBatch
from dagster_ckpt.errors import CaptureIncomplete, CorruptCheckpoint
from dagster_ckpt.spark.checkpoint_location import CheckpointLocation, OffsetEntry, parse_offsets
from dagster_ckpt.spark.file_sink import log_files

__all__ = ["PlannedBatches", "lay_out", "planned_files", "planned_offsets"]

_COMPACT = ".compact"
_HEADER = "v1"


class PlannedBatches:
    """The plans of a running query, each read once.

    Args:
        location: the live checkpointLocation.
        after: the last batch whose plan is not wanted, -1 for none.
    """

    def __init__(self, location: CheckpointLocation, after: int) -> None:
        self._location = location
        self.last = after

    def new(self, until: int | None = None) -> list[PlannedBatch]:
        """The plans that were written since this was last asked, in order.

        Args:
            until: the last batch that is wanted; by default whatever is planned.

        """
        if until is None:
            planned, committed = self._location.planned(), self._location.last_committed()
            until = max(-1 if planned is None else planned, -1 if committed is None else committed)
        found = []
        for batch in range(self.last + 1, until + 1):
            try:
                found.append(PlannedBatch(batch, dict(self._files(batch))))
            except CaptureIncomplete:
                if batch == until:
                    break
                # Purged already, or never written: asynchronous progress tracking leaves gaps.
            self.last = batch
        return found

    def _files(self, batch: int) -> Iterator[tuple[str, str]]:
        where = f"offsets/{batch}"
        text = self._text(where)
        offsets = parse_offsets(text, where)
        before = self._location.previous_offsets(batch)
        previous = None if before is None else self._location.offsets(before)
        for source, _ in offsets.sources:
            last = offsets.file_source_offset(source)
            if last is None:
                continue
            first = -1 if previous is None else previous.file_source_offset(source)
            for entry in range((-1 if first is None else first) + 1, last + 1):
                yield self._entry(source, entry)
        yield where, text

    def _entry(self, source: str, entry: int) -> tuple[str, str]:
        plain = f"sources/{source}/{entry}"
        try:
            return plain, self._text(plain)
        except CaptureIncomplete:
            compacted = self._text(f"{plain}{_COMPACT}")
        added = [line for line in compacted.split("\n")[1:] if line and json.loads(line).get("batchId") == entry]
        return f"{plain}{_COMPACT}", "\n".join([_HEADER, *added])

    def _text(self, where: str) -> str:
        try:
            return (self._location.path / where).read_text(encoding="utf-8")
        except FileNotFoundError as error:
            raise CaptureIncomplete(
                f"{self._location.path / where} is not there (yet, or any more)",
                hint="Raise spark.sql.streaming.minBatchesToRetain if it was purged already.",
            ) from error


def lay_out(plan: PlannedBatch, location: Path) -> None:
    """Write the plan of a batch into a checkpointLocation whose last batch is the one before.

    The location may hold a plan of the batch already, the same or (when it was planned anew since) another one.

    Raises:
        CorruptCheckpoint: the location is not such a one.
    """
    _forget_later(plan, location)
    # The plan itself last: when it is there, all it refers to is.
    for name, text in sorted(plan.files.items(), key=lambda item: item[0].startswith("offsets/")):
        target = location / name
        target.parent.mkdir(parents=True, exist_ok=True)
        content = _compacted(target, text) if name.endswith(_COMPACT) else text
        temporary = target.with_name(f".{target.name}.replay.tmp")
        temporary.write_text(content, encoding="utf-8")
        target.with_name(f".{target.name}.crc").unlink(missing_ok=True)  # it would describe other bytes
        temporary.replace(target)


def _forget_later(plan: PlannedBatch, location: Path) -> None:
    """Entries of a source's log after those of the batch would be read with the batch that follows it."""
    offsets = planned_offsets(plan)
    for source, _ in offsets.sources:
        last = offsets.file_source_offset(source)
        directory = location / "sources" / source
        if last is not None and directory.is_dir():
            for file in list(directory.iterdir()):
                entry = file.name.removesuffix(_COMPACT)
                if entry.isdigit() and int(entry) > last:
                    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
                    file.unlink()


def planned_files(plan: PlannedBatch) -> list[str]:
    """The URIs of the files that a batch reads from file sources, sorted."""
    return sorted(
        str(json.loads(line)["path"])
        for name, text in plan.files.items()
        if name.startswith("sources/")
        for line in text.split("\n")[1:]
        if line.startswith("{")
    )


def planned_offsets(plan: PlannedBatch) -> OffsetEntry:
    """The entry of the write-ahead log."""
    where = f"offsets/{plan.batch}"
    return parse_offsets(plan.files[where], where)


def _compacted(target: Path, added: str) -> str:
    """The text of a compacted entry: all there is before it, and what it added."""
    directory, entry = target.parent, int(target.name.removesuffix(_COMPACT))
    names = frozenset(path.name for path in directory.iterdir())
    try:
        # An entry that is there already repeats those before it, which a checkpoint then does not have.
        before = [target.name] if target.name in names else log_files(names, entry - 1, str(directory))
    except CaptureIncomplete as error:
        raise CorruptCheckpoint(
            f"The batch of {target.name} cannot be replayed: {error.message}", hint="Launch with replay_to: none."
        ) from error
    newest = max((number for number, file in enumerate(before) if file.endswith(_COMPACT)), default=0)
    lines = [
        line
        for file in before[newest:]
        for line in (directory / file).read_text(encoding="utf-8").split("\n")[1:]
        if line and json.loads(line).get("batchId", -1) < entry
    ]
    return "\n".join([_HEADER, *lines, *added.split("\n")[1:]])
