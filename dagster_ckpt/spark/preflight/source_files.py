"""Whether the input files that a query must read again after a restore still exist.

This must be checked before the restore. When a planned batch names a file that is gone, Spark's file source silently
reads nothing, whatever ``spark.sql.files.ignoreMissingFiles`` says, and the rows of the file are missing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dagster_ckpt.checkpoint import Facts, PlannedBatch
from dagster_ckpt.errors import InvalidConfiguration
from dagster_ckpt.paths import local_path, unescaped
from dagster_ckpt.shown_text import counted, shortened
from dagster_ckpt.spark.batches import planned_files
from dagster_ckpt.spark.verdict import Finding, Verdict

__all__ = ["SourceFiles", "batches", "local_file", "lost_files_finding", "rows_of", "source_finding"]

CHECK = "source files"
#: How many Parquet footers are read at most to count rows: each takes a tenth of a millisecond on a local disk.
_MOST_FOOTERS = 1000
#: What an offset of Delta has, and one of Iceberg.
_TABLES = ({"reservoirId", "reservoirVersion"}, {"snapshot_id", "position"})


@dataclass(frozen=True, slots=True)
class SourceFiles:
    """The files of batches that must be read again.

    Attributes:
        present: the files that exist, by batch.
        missing: the files that are gone, by batch.
        elsewhere: URIs of the files that are not on a disk of this machine.
    """

    present: Mapping[int, Sequence[Path]]
    missing: Mapping[int, Sequence[Path]]
    elsewhere: Sequence[str]

    @classmethod
    def of(cls, plans: Iterable[PlannedBatch]) -> SourceFiles:
        """Look at the files of every plan."""
        present: dict[int, list[Path]] = {}
        missing: dict[int, list[Path]] = {}
        elsewhere: list[str] = []
        for plan in plans:
            for uri in planned_files(plan):
                file = local_file(uri)
                if file is None:
                    elsewhere.append(uri)
                    continue
                (present if _is_there(file) else missing).setdefault(plan.batch, []).append(file)
        return cls(present, missing, elsewhere)

    def rows(self) -> int | None:
        """The number of rows of all existing files, ``None`` if their footers do not tell."""
        files = {file for found in self.present.values() for file in found}
        if len(files) > _MOST_FOOTERS or any(file.suffix != ".parquet" for file in files):
            return None
        import pyarrow as pa  # noqa: PLC0415 - a third of a second that only Parquet has to pay
        import pyarrow.parquet as pq  # noqa: PLC0415

        try:
            return sum(int(pq.read_metadata(file).num_rows) for file in files)
        except (OSError, pa.ArrowException):
            return None


def source_finding(
    plans: Sequence[PlannedBatch], facts: Facts | None, elsewhere: Collection[str] | None = None
) -> Finding:
    """Which files a restore reads again, and which of these are gone.

    Args:
        plans: the plans of all batches that run again, as they were or with new boundaries.
        facts: the checkpoint's facts, which name the query's sources; ``None`` without a checkpoint.
        elsewhere: the ids of sources that have a check of their own at a start; ``None`` for a check without a query.
    """
    unchecked = [] if facts is None else _not_files(facts, elsewhere)
    also = f" Not checked: {'; '.join(unchecked)}." if unchecked else ""
    if not plans:
        return Finding.fine(CHECK, f"no batch after the checkpoint is known to be read again.{also}")
    found = SourceFiles.of(plans)
    if found.elsewhere:
        also += f" Not checked: {len(found.elsewhere)} files that are on no local disk, {found.elsewhere[0]} for one."
    here = sum(map(len, found.present.values()))
    gone = sum(map(len, found.missing.values()))
    which = batches(plan.batch for plan in plans)
    if not gone:
        rows = found.rows() if here else None
        counted = "" if rows is None else f" with {rows} rows"
        read = f"{which} {_are(len(plans))} read again from {_files(here)}{counted}, all there."
        return Finding.fine(CHECK, f"{read}{also}")
    named = shortened([f"{file} (batch {batch})" for batch in sorted(found.missing) for file in found.missing[batch]])
    return Finding(
        CHECK,
        Verdict.WITH_LOSS,
        f"{_files(gone)} of {batches(found.missing)} {_are(gone)} gone, and Spark would read nothing in "
        f"{'its' if gone == 1 else 'their'} place: {', '.join(named)}. {_files(here)} of {which} "
        f"{_are(here)} there.{also}",
        "Put the files back where they were.",
        # The number of batches that run again, and of files that are there, changes with each batch.
        stays=tuple(f" {name}" for name in named),
    )


def lost_files_finding(plan: PlannedBatch, told_by: str) -> Finding | None:
    """That files are gone which batches have read whose own plans are not known; ``None`` where all are there.

    Args:
        plan: all these files, as of the first of these batches.
        told_by: the checkpoint that lists them.
    """
    found = SourceFiles.of([plan])
    missing = [str(file) for files in found.missing.values() for file in files]
    if not missing:
        return None
    return Finding(
        CHECK,
        Verdict.WITH_LOSS,
        f"{_files(len(missing))} that batch {plan.batch} and later ones have read {_are(len(missing))} gone, as "
        f"{told_by} tells: {', '.join(shortened(missing))}.",
        "Put the files back where they were.",
    )


def rows_of(plans: Sequence[PlannedBatch], facts: Facts) -> int | None:
    """The number of rows that batches read, ``None`` unless all sources read files whose footers tell it.

    Args:
        plans: the plans of the batches.
        facts: the facts of a checkpoint of the query, which name its sources.
    """
    if not plans:
        return 0
    found = SourceFiles.of(plans)
    return None if found.missing or found.elsewhere or _not_files(facts) else found.rows()


def batches(numbers: Iterable[int]) -> str:
    """``batch 3``, ``batches 3 to 7``, or ``batches 3, 5 and 6``."""
    known = sorted(set(numbers))
    if len(known) == 1:
        return f"batch {known[0]}"
    if known and known[-1] - known[0] == len(known) - 1 and len(known) > 2:
        return f"batches {known[0]} to {known[-1]}"
    return f"batches {', '.join(map(str, known[:-1]))} and {known[-1]}" if known else "no batch"


def _not_files(facts: Facts, elsewhere: Collection[str] | None = None) -> list[str]:
    """The sources of a checkpoint that are not file sources, or of unknown kind."""
    if not facts.tells_sources:
        return ["the checkpoint does not tell its sources"]
    told = []
    for source in facts.sources:
        offset = source.offset
        if source.id in (elsewhere or ()) or (isinstance(offset, dict) and offset.keys() == {"logOffset"}):
            continue
        if source.offsets and elsewhere is None:
            told.append(f"source {source.id} has offsets like Kafka's, whose brokers only a start of the job asks")
            continue
        if elsewhere is None and isinstance(offset, dict) and any(offset.keys() >= keys for keys in _TABLES):
            told.append(f"source {source.id} has offsets like those of a table, at which only a start of the job looks")
            continue
        why = "had no data yet" if offset is None else "is no file source, and only its own system knows what it keeps"
        told.append(f"source {source.id} {why}")
    return told


def local_file(uri: str) -> Path | None:
    """The file of this machine that an (escaped) URI names, ``None`` for other URIs."""
    try:
        return local_path(unescaped(uri))
    except InvalidConfiguration:
        return None


def _is_there(file: Path) -> bool:
    try:
        return file.exists()
    except (OSError, ValueError):  # no file can have this name, or the file cannot be looked up
        return False


def _files(count: int) -> str:
    return counted(count, "file")


def _are(count: int) -> str:
    return "is" if count == 1 else "are"
