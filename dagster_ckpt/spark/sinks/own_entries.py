"""Proof that what is in the log of Spark's file sink was put there by one start of a query, and by no other.

Spark's sink asks only whether the id of a batch is in its log, and skips the batch if so. What a run that was declared
dead adds to the log would so stand for batches of the run that took over. No clock can tell such entries apart.

**The mark.** For each file the log tells the block size that the file system of the task had. On a local file system it
means nothing, but it can be set by options of the query's writer. So each start sets one that follows from the token of
its claim, and every file that it has committed says whose it is, for good.

**Batches without a file** carry no mark. Their entries are of this start if the query has run the batch: it adds the
entry after its job, and fails if there is one by then; a batch that it skips has no job. That is known in two ways.
The state of the batch exists: each version of it is made of the one before, by the job of the batch. Or Spark tells
that the batch had a job, as long as the query is alive. What is not known is not covered by a checkpoint.

An entry may be replaced even later: Spark's rename without overwriting first looks and then renames. So each entry is
remembered by its digest, and what is pinned must be what was proved.
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

#: What Hadoop's local file system says by itself.
_DEFAULT_BLOCK = 32 * 1024 * 1024
_MARK_BYTES = 5
#: A checkpoint is of one of the last batches, so that its log begins with one of the last compactions.
_COMPACTIONS = 4
#: So many times in a row, about a second apart, the query is asked whether it ran a batch.
_ASKED = 60


class _Seen(NamedTuple):
    key: tuple[int, ...]
    digest: bytes


class NotOwn(Exception):
    """An entry of the log is not of this start; the message says which, and how that is known."""


def mark_of(token: str) -> int:
    """The block size, in bytes, that files have which the start with this claim's token commits."""
    digest = hashlib.sha256(token.encode("utf-8")).digest()
    return _DEFAULT_BLOCK + 1 + int.from_bytes(digest[:_MARK_BYTES], "big")


def marking_options(token: str) -> dict[str, str]:
    """The options of a writer with which its files are marked."""
    # A file system of the cache has the settings of whoever asked for it first.
    return {"fs.file.impl.disable.cache": "true", "fs.local.block.size": str(mark_of(token))}


class OwnEntries:
    """What is known of the entries that came after the batch which one start of a query began with.

    Args:
        sink: whose log it is.
        start: of the query.
        restored: log files that the start began with, where they are at hand: a directory, which is empty or missing
            for a start from nothing.
    """

    def __init__(self, sink: FileSink, start: SinkStart, restored: Path | None) -> None:
        self._sink = sink
        self._start = start
        self._mark = b'"blockSize":%d,' % mark_of(start.token)
        self._restored = restored
        self._looked = start.after
        #: What was looked at by name, since one of the last compactions.
        self._seen: dict[str, _Seen] = {}
        self._compactions: list[int] = []
        #: Batches that have no file, or whose entries nobody has seen; how often it may still be asked who ran them.
        self._open: dict[int, int] = {}

    def look(self, newest: int) -> None:
        """Look at what has come to the log.

        Args:
            newest: the newest batch that has committed. The next one may be in the log already.

        Raises:
            NotOwn: something in it is not of this start.
        """
        while True:
            batch = self._looked + 1
            if not self._examine_batch(batch):
                if batch > newest:
                    break
                self._open[batch] = _ASKED  # Spark drops entries some time after their compaction
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
        """Make sure that everything up to ``batch`` is of this start; :meth:`look` has seen it.

        Args:
            batch: the last one.
            pinned: the log up to there, by name, where it cannot change any more.
            has_state: whether the query has state; that of ``batch`` is known to be whole.

        Raises:
            NotOwn: something in it is not of this start.
            CaptureIncomplete: that is not known.
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
        """How many files the log had when the start began, ``None`` where that is not at hand."""
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
        """All files of the log in the order of their batches, so that those of ``batch`` come last."""
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
        """Whether a file was in the log before ``batch``, ``None`` where that cannot be told any more."""
        path = line.split(b'","size":')[0]  # as it was written then
        try:
            return any(path in file.read_bytes() for file in self._sink.position_files(batch - 1))
        except (CaptureIncomplete, FileNotFoundError):
            return None


def _lines(content: bytes) -> list[bytes]:
    """One for each file; before them there is the version of the log."""
    return [line for line in content.split(b"\n")[1:] if line]


def _key(status: os.stat_result) -> tuple[int, ...]:
    """A pin is another name of the same file."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()
