"""The rows in some data files of a sink, as a DataFrame, and what is said of data files that are gone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_ckpt.errors import InvalidConfiguration, SinkMismatch
from dagster_ckpt.paths import hadoop_path
from dagster_ckpt.shown_text import counted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["rows_in", "told_gone"]

_TYPED = frozenset({"parquet", "orc"})
#: What Spark takes for a part of a pattern in a path that it reads, and for itself after a backslash.
_PATTERN = re.compile(r"[\\\[\]{}*?]")


def rows_in(files: Sequence[Path], root: Path, session: SparkSession) -> DataFrame:
    """The rows of ``files``, with a column for each directory that a sink is partitioned by.

    Parquet and ORC tell their columns; of JSON, CSV and text a row is a line. No file means no row and no column.

    Raises:
        InvalidConfiguration: the files are of several formats, or of one that Spark cannot tell the rows of.
        SinkMismatch: a file is gone.
    """
    if missing := [file for file in files if not file.is_file()]:
        raise SinkMismatch(
            f"{missing[0]}, which a batch has written, is gone.", hint="Put the file back, or compare later batches."
        )
    formats = {suffix for file in files for suffix in file.suffixes[-1:]}
    if len(formats) > 1 or not formats <= {".parquet", ".orc", ".json", ".csv", ".txt"}:
        raise InvalidConfiguration(
            f"The files of {root} are of the kinds {', '.join(sorted(formats))}, and cannot be read as one.",
            hint="Compare parquet, ORC, JSON, CSV or text that is not compressed.",
        )
    if not files:
        return session.createDataFrame([], "")
    found = formats.pop().lstrip(".")
    reader = session.read.option("basePath", hadoop_path(root)).format(found if found in _TYPED else "text")
    return reader.load([_PATTERN.sub(r"\\\g<0>", hadoop_path(file)) for file in files])


def told_gone(files: Sequence[tuple[str, int]], root: Path) -> str:
    """What is said of data files that are gone, with their bytes, from the oldest to the newest; empty for none.

    The text is the same as long as the same files are gone: whoever has accepted that is not asked again.
    """
    if not files:
        return ""
    which = f"{counted(len(files), 'file')} with {counted(sum(size for _, size in files), 'byte')}"
    if len(files) == 1:
        return f"{which} that a batch had written to {root} is gone: {files[0][0]}."
    return (
        f"{which} that batches had written to {root} are gone; the oldest is {files[0][0]}, the newest {files[-1][0]}."
    )
