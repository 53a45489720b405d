"""The entries in the log of Spark's file sink: which data files the batches have written."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from dagster_ckpt.errors import SinkMismatch
from dagster_ckpt.spark.files.compactible_log import LOG_VERSION
from dagster_ckpt.stored_json import parsed

__all__ = ["SinkFile", "read_sink_log"]


class SinkFile(NamedTuple):
    """A data file, by its escaped URI."""

    path: str
    size: int
    modified_ms: int


def read_sink_log(file: Path) -> list[SinkFile]:
    """The data files that one file of the log lists.

    Raises:
        SinkMismatch: the file is no such log.
    """
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except (IsADirectoryError, UnicodeDecodeError) as error:
        raise _unreadable(file, str(error)) from error
    if lines[0] != LOG_VERSION:
        raise _unreadable(file, f"it is of version {lines[0][:20]!r}, this release reads {LOG_VERSION!r}")
    entries: list[SinkFile] = []
    for number, line in enumerate(lines[1:], start=2):
        if not line:
            continue
        try:
            value = parsed(line)
            action = value.get("action", "add")
            if action != "add":
                raise ValueError(f"action {action!r}")
            entries.append(SinkFile(str(value["path"]), int(value["size"]), int(value["modificationTime"])))
        except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
            raise _unreadable(file, f"line {number}: {error}") from error
    return entries


def _unreadable(file: Path, why: str) -> SinkMismatch:
    return SinkMismatch(
        f"{file} is not a log of the file sink that can be read ({why})",
        hint="Nothing was touched. If a newer Spark wrote it, upgrade dagster-ckpt; else restore another checkpoint.",
    )
