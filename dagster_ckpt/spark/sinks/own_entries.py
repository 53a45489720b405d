"""Proof that the entries in the log of Spark's file sink were written by one start of a query alone.

Spark's sink only checks whether the id of a batch is in its log, and skips the batch if so. So entries that a run adds
after it was declared dead would replace batches of the new run. No clock can tell such entries apart.

**The mark.** For each file the log records the block size of the task's file system. On a local file system the block
size has no meaning, but the query's writer can set it by options. So each start sets a block size that follows from the
token of its claim, which permanently marks every file that the start commits.

**Batches without a file** carry no mark. Their entries belong to this start if the query has run the batch: the query
adds the entry after its job, and fails if the entry exists by then; a batch that the query skips has no job. Two facts
prove that the batch ran. Either the batch's state exists: the job of each batch makes its state version from the
version before. Or Spark tells that the batch had a job, as long as the query is alive. A checkpoint covers proven
batches only.

Even later, an entry may be replaced: Spark's rename without overwriting first looks and then renames. So the digest of
each proven entry is remembered, and a pinned entry must have that digest.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from dagster_ckpt.checkpoint import NEXT_BATCH
from dagster_ckpt.errors import CaptureIncomplete
from dagster_ckpt.spark.files import COMPACT, require_id
from dagster_ckpt.spark.sinks.sink import SinkStart
from dagster_ckpt.spark.sinks.spark_sink_log import FileSink, effective_files

__all__ = ["NotOwn", "OwnEntries", "mark_of", "marking_options"]

#: The default block size of Hadoop's local file system.
_DEFAULT_BLOCK = 32 * 1024 * 1024
_MARK_BYTES = 5
#: A checkpoint covers one of the last batches, so its log begins with one of the last compactions.
_COMPACTIONS = 4
#: How many times in a row, about a second apart, Spark is asked whether the query ran a batch.
_ASKED = 60


class _Seen(NamedTuple):
    key: tuple[int, ...]
    digest: bytes


class NotOwn(Exception):
    """An entry of the log is not of this start; the message names the entry and the evidence."""


def mark_of(token: str) -> int:
    """The block size, in bytes, of files that the start with this claim's token commits."""
    digest = hashlib.sha256(token.encode("utf-8")).digest()
    return _DEFAULT_BLOCK + 1 + int.from_bytes(digest[:_MARK_BYTES], "big")


def marking_options(token: str) -> dict[str, str]:
    """The writer options that mark the files of a start."""
    # Hadoop caches file systems with the settings of the first caller, so the cache is disabled.
    return {"fs.file.impl.disable.cache": "true", "fs.local.block.size": str(mark_of(token))}


class OwnEntries:
    """Proof for the log entries after the batch that one start of a query began with.

    Args:
        sink: the sink that has the log.
        start: the start of the query.
        restored: a directory with the log files that the start began with, if available; empty or missing for a start
            from nothing.
    """

    def __init__(self, sink: FileSink, start: SinkStart, restored: Path | None) -> None:
        self._sink = sink
        self._start = start
        self._mark = b'"blockSize":%d,' % mark_of(start.token)
        self._restored = restored
        self._looked = start.after
        #: The examined entries by name, since one of the last compactions.
        self._seen: dict[str, _Seen] = {}
        self._compactions: list[int] = []
        #: Batches without a file or an examined entry; how often Spark may still be asked whether the query ran them.
        self._open: dict[int, int] = {}

    def look(self, newest: int) -> None:
        """Examine the new entries of the log.

        Args:
            newest: the newest committed batch. The next batch may already be in the log.

        Raises:
            NotOwn: an entry is not of this start.
        """
        while True:
            batch = self._looked + 1
            if not self._examine_batch(batch):
                if batch > newest:
                    break
                self._open[batch] = _ASKED  # Spark removes entries some time after their compaction
            self._looked = batch
        for batch in [other for other, asked in self._open.items() if other <= newest and asked]:
            ran = self._start.ran(batch)
            if ran:
                del self._open[batch]
            elif ran is None:
                self._open[batch] -= 1
            else:
                raise NotOwn(f"batch {batch} was in its log before this query ran it")

    def prove(self, batch: int, pinned: Mapping[str, Path], has_state: Callable[[], bool]) -> None:
        """Make sure that all entries up to ``batch`` are of this start; call :meth:`look` before.

        Args:
            batch: the last batch to prove.
            pinned: the log up to ``batch``, by name, where the files cannot change.
            has_state: whether the query has state; the state of ``batch`` is known to be whole.

        Raises:
            NotOwn: an entry is not of this start.
            CaptureIncomplete: an entry's origin is unknown.
        """
        for name, file in pinned.items():
            if require_id(name) <= self._start.after:
                continue
            before = self._seen.get(name)
            if before is None:
                self._examine(name, file)
            elif before.key != _key(file.stat()) and before.digest != _digest(file.read_bytes()):
                raise NotOwn(f"entry {name} of its log was replaced")
        unknown = [other for other in self._open if other <= batch]
        if unknown and has_state():
            for other in unknown:
                del self._open[other]
        elif unknown:
            raise CaptureIncomplete(
                f"Batch {min(unknown)} has no file in the log of {self._sink.path}, and it is not known (yet) whether "
                "this query ran it or found it there.",
                hint=NEXT_BATCH,
            )

    @cached_property
    def _files_before(self) -> int | None:
        """How many files the log had when the start began, ``None`` when that log is not available."""
        if self._restored is None:
            return None
        return sum(len(_lines(file.read_bytes())) for file in effective_files(self._restored))

    def _examine_batch(self, batch: int) -> bool:
        for name in (f"{batch}{COMPACT}", str(batch)):
            try:
                self._examine(name, self._sink.log / name)
            except FileNotFoundError:
                continue
            return True
        return False

    def _examine(self, name: str, entry: Path) -> None:
        with entry.open("rb") as file:
            key, content = _key(os.fstat(file.fileno())), file.read()
        batch = require_id(name)
        lines = _lines(content)
        marked = [self._mark in line for line in lines]
        if name.endswith(COMPACT):
            self._examine_compacted(batch, lines, marked)
        elif not all(marked):
            raise NotOwn(f"files of batch {batch} are not of this query")
        elif not lines:
            self._open[batch] = _ASKED
        self._seen[name] = _Seen(key, _digest(content))

    def _examine_compacted(self, batch: int, lines: list[bytes], marked: list[bool]) -> None:
        """Examine a compacted entry, which lists all files in the order of their batches, ``batch`` last."""
        others = marked.count(False)
        first = marked.index(True) if True in marked else len(marked)
        if others > first or (self._files_before is not None and others > self._files_before):
            raise NotOwn(f"files that are not of this query are among those up to batch {batch}")
        before = self._known_before(batch, lines[-1]) if lines else True
        if before is not False:
            self._open[batch] = _ASKED
        elif not marked[-1]:
            raise NotOwn(f"files of batch {batch} are not of this query")
        self._compactions = [*self._compactions, batch][-_COMPACTIONS:]
        self._seen = {name: seen for name, seen in self._seen.items() if require_id(name) >= self._compactions[0]}

    def _known_before(self, batch: int, line: bytes) -> bool | None:
        """Whether a file was in the log before ``batch``, ``None`` when that is no longer known."""
        path = line.split(b'","size":')[0]  # the path as the entry was written
        try:
            return any(path in file.read_bytes() for file in self._sink.position_files(batch - 1))
        except (CaptureIncomplete, FileNotFoundError):
            return None


def _lines(content: bytes) -> list[bytes]:
    """One line for each file; the first line, the version of the log, is left out."""
    return [line for line in content.split(b"\n")[1:] if line]


def _key(status: os.stat_result) -> tuple[int, ...]:
    """Identifies the file: a pin has the same key, because it is a hard link."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()
