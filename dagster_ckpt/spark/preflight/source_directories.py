"""Whether each file source reads where it has read before.

Spark knows a file by its whole path. Under another path it reads every file as a new one. Spark notices that only if
the last batch has read files and the path is no pattern.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain, takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_ckpt.checkpoint import CheckpointMetadata
from dagster_ckpt.errors import CheckpointError
from dagster_ckpt.paths import Location, split_location, unescaped
from dagster_ckpt.shown_text import redacted
from dagster_ckpt.spark.files import CheckpointLocation, log_id, require_id
from dagster_ckpt.spark.query import QuerySource, another_query, listed_sources, qualified
from dagster_ckpt.spark.verdict import Finding, Verdict
from dagster_ckpt.stored_json import believed, parsed

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["directories_finding"]

CHECK = "source directories"
#: What makes a path a pattern for Spark.
_OF_PATTERNS = re.compile(r"[{}\[\]*?\\]")
#: The log of a file sink. Spark reads the files that such a log lists, wherever they lie.
_SINK_LOG = "_spark_metadata"


def directories_finding(
    job_name: str,
    restored: CheckpointMetadata,
    writer: DataStreamWriter,
    unpacked: Path,
    *,
    gives_up_in_flight: bool = False,
) -> Finding:
    """Whether a file source of the query has a path at which none of the files is that it has read.

    Where it is not certain that Spark would read the files again, nothing is said: the scheme of a path does not count,
    and a source may read the output of a file sink, or have a number that is not known before the query starts.

    Args:
        job_name: of the job.
        restored: the checkpoint.
        writer: the query.
        unpacked: the directory of the checkpoint's checkpointLocation.
        gives_up_in_flight: whether the plan of a batch in flight is forgotten before the query starts.
    """
    sources = listed_sources(writer)
    if len(sources) != len(restored.facts.sources) and not any(source.is_named for source in sources):
        return Finding.fine(CHECK, "not checked: Spark may run equal sources as one.")
    location = CheckpointLocation(unpacked)
    for source in sources:
        try:
            file = _left(location, restored.batch, writer, source)
            last = restored.batch if gives_up_in_flight else location.newest()
            is_noticed = file is not None and _is_noticed(location, restored.batch, last, writer, source, file)
        except CheckpointError as error:
            return Finding.fine(CHECK, f"not checked: {error.message}")
        if file is None:
            continue
        told = f"{redacted(source.table)}, where none of the files is that it has read, {redacted(file)} for one"
        if is_noticed:
            why = f"Source {source.id} reads {told}: Spark would stop with 'Wrong basePath'."
            return Finding.of_error(CHECK, another_query(job_name, restored, why))
        return Finding(
            CHECK,
            Verdict.WITH_LOSS,
            f"source {source.id} reads {told}: Spark would read each file there as a new one, and none of those that "
            "are yet to be read where it was.",
            "Give the source the path that it had, or start over with restore_from: none into an empty sink.",
        )
    return Finding.fine(CHECK, "each file source reads where it did, as far as that is known.")


def _left(location: CheckpointLocation, batch: int, writer: DataStreamWriter, source: QuerySource) -> str | None:
    """A file that a source has read and would not find again, ``None`` if it would find any of its files."""
    is_of_files = location.offsets(batch).file_source_offset(source.id) is not None
    if not is_of_files or not source.table or (source.option("fileNameOnly") or "").lower() == "true":
        return None
    logged = _logged(location, f"sources/{source.id}")
    newest = next(logged, None)
    if newest is None or (place := _place(writer, source.table)) is None:
        return None
    if any(_is_below(file, place) for file in chain([newest], logged)):
        return None
    return None if _is_output(writer, source.table) else newest


def _logged(location: CheckpointLocation, log: str) -> Iterator[str]:
    """The files in the log of a file source, the newest first; none for another source."""
    with believed(f"{log} in {location.shown}", "Restore another checkpoint."):
        names = [name for name in location.names(log) if log_id(name) is not None]
        for name in sorted(names, key=require_id, reverse=True):
            _, _, left = location.text(f"{log}/{name}").partition("\n")
            while left:  # an entry may be long, and its last line is mostly enough
                left, _, line = left.rpartition("\n")
                if line:
                    yield unescaped(str(parsed(line)["path"]))


def _is_noticed(
    location: CheckpointLocation, batch: int, last: int, writer: DataStreamWriter, source: QuerySource, file: str
) -> bool:
    """Whether Spark opens the files of ``batch`` up to ``last`` again, and finds that they are not below the path."""
    before = location.previous_offsets(batch)
    read = None if before is None else location.offsets(before).file_source_offset(source.id)
    if location.offsets(last).file_source_offset(source.id) == read or _is_pattern(source.table):
        return False
    below = split_location(qualified(writer, source.table)).path.rstrip("/")
    return not split_location(file).path.startswith(below)  # as Spark compares: /in is above /input for it


def _place(writer: DataStreamWriter, path: str) -> Location | None:
    """The directory that a path begins with, before its first pattern; ``None`` where that may be anywhere.

    Patterns are not compared: one that is made of today's date has other files each day.
    """
    from py4j.protocol import Py4JError  # noqa: PLC0415 - PySpark is loaded where it runs
    from pyspark.errors import PySparkException  # noqa: PLC0415

    fixed = "/".join(takewhile(lambda name: not _is_pattern(name), path.split("/")))
    try:
        return _absolute(writer, fixed) if fixed else None
    except (CheckpointError, Py4JError, PySparkException, ValueError):
        return None


def _is_below(file: str, place: Location) -> bool:
    """Whether a file is a directory's, at any depth, whatever the scheme of either."""
    location = split_location(file)
    is_there = not (place.authority and location.authority) or place.authority == location.authority
    above = _names(place)
    return is_there and _names(location)[: len(above)] == above


def _absolute(writer: DataStreamWriter, path: str) -> Location:
    """Where a path leads.

    Raises:
        ValueError: the path begins at the working directory of a file system that is not local.
    """
    given, location = split_location(path), split_location(qualified(writer, path))
    if not (given.scheme or given.path.startswith("/") or location.is_local):
        raise ValueError(path)
    return location


def _is_pattern(path: str) -> bool:
    return _OF_PATTERNS.search(path) is not None


def _is_output(writer: DataStreamWriter, path: str) -> bool:
    """Whether a directory is the output of a file sink, or cannot be looked at."""
    from py4j.protocol import Py4JError  # noqa: PLC0415 - PySpark is loaded where it runs
    from pyspark.errors import PySparkException  # noqa: PLC0415

    if _is_pattern(path):
        return False  # Spark looks for no log there
    session = writer._spark  # noqa: SLF001
    try:
        log = session._jvm.org.apache.hadoop.fs.Path(path, _SINK_LOG)  # type: ignore[union-attr]  # noqa: SLF001
        return bool(log.getFileSystem(session._jsparkSession.sessionState().newHadoopConf()).exists(log))  # noqa: SLF001
    except (Py4JError, PySparkException):
        return True


def _names(location: Location) -> list[str]:
    return [name for name in location.path.split("/") if name]
