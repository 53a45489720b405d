"""The records of a transactional file sink: which starts may have data in the sink, and which files were committed.

::

    {root}/line/{number}.json                  the starts whose data counts, and until which batch
    {root}/commits/{level}-{batch}-{unique}.json   data files that commits made visible

Only the line with the highest number counts. A start creates the line after the line that it has seen, exclusively. So
a start that was wrongly declared dead cannot change what counts: the creation fails, and the start was overtaken.

Lines and lists are JSON with a SHA-256 over the content, like ``_metadata``. (The first release wrote no SHA-256.)

A commit adds a list. Every hundred lists of a level are merged into one list of the next level, so a few hundred files
hold a million commits.
"""

from __future__ import annotations

import json
import math
import re
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from dagster_ckpt.errors import CheckpointFailure, PublishConflict, SinkMismatch
from dagster_ckpt.filesystem import PosixFileSystem, inside
from dagster_ckpt.stored_json import believed, component, is_sealed, parsed, seal, shown, whole

__all__ = ["DataFile", "Line", "TransactionLog", "decode_files", "encode_files", "newest_of", "start_name"]

_LINE = "line"
_COMMITS = "commits"
_JSON = ".json"
_VERSION = 2
#: The version of records without a checksum.
_UNSEALED = 1
_LINE_NAME = re.compile(r"([0-9]{10})\.json")
_MERGED_AT = 100
_BACKUP = "Put it back from a backup, or write elsewhere and start from nothing with restore_from: none."


class DataFile(NamedTuple):
    """A data file: its path in the sink, its bytes, and the start and batch that wrote it."""

    path: str
    size: int
    batch: int
    start: str


@dataclass(frozen=True, slots=True)
class Line:
    """The starts whose data counts.

    Attributes:
        number: the number of the record, 0 when there is no record.
        epoch: the epoch of the start that wrote the line.
        starts: starts by name, each with its last batch that counts, ``None`` for all batches.
    """

    number: int
    epoch: int
    starts: Mapping[str, int | None]

    def covers(self, start: str, batch: int) -> bool:
        """Whether the data that ``start`` wrote in ``batch`` counts."""
        until = self.starts.get(start, -1)
        return until is None or batch <= until

    def until(self, batch: int) -> dict[str, int | None]:
        """The starts of the line after a rollback to ``batch``."""
        return {start: batch if last is None else min(last, batch) for start, last in self.starts.items()}


class TransactionLog:
    """The records of one sink.

    Args:
        root: the directory of the records.
    """

    def __init__(self, root: Path) -> None:
        self._files = PosixFileSystem(root)

    def line(self) -> Line:
        """The line that counts now.

        Raises:
            SinkMismatch: the record of the line cannot be read.
        """
        while True:
            number = self.newest()
            if number == 0:
                return Line(0, 0, {})
            try:
                data = self._files.read(_line(number))
            except FileNotFoundError:  # a newer line has replaced this line
                continue
            what = f"{self._files.local(_line(number))}, which tells whose data counts,"
            with believed(what, _BACKUP, SinkMismatch):
                fields = _unsealed(data)
                return Line(number, whole(fields["epoch"], "an epoch"), _starts(fields["attempts"]))

    def newest(self) -> int:
        """The number of the line that counts now; needs one listing."""
        names = (_LINE_NAME.fullmatch(entry.name) for entry in self._files.list(_LINE) if not entry.is_directory)
        return max((int(match[1]) for match in names if match), default=0)

    def advance(self, seen: Line, starts: Mapping[str, int | None], epoch: int) -> Line:
        """Make a new line count, if ``seen`` still counts.

        Raises:
            CheckpointFailure: another line counts by now.
            StorageError: the disk failed.
        """
        line = Line(seen.number + 1, epoch, dict(starts))
        fields = {"epoch": epoch, "attempts": line.starts, "unique": uuid.uuid4().hex}
        if self.newest() != seen.number:
            raise self._overtaken()
        left = [name for directory in (_LINE, _COMMITS) for name in self._left_by_a_crash(directory)]
        try:
            self._files.create(_line(line.number), _sealed(fields))
        except (PublishConflict, FileNotFoundError):  # FileNotFoundError: a faster start has already tidied up
            raise self._overtaken() from None
        # Check again: the number may only have been free because a later start has removed the older records.
        if self.newest() != line.number:
            raise self._overtaken()
        older = [
            f"{_LINE}/{entry.name}" for entry in self._files.list(_LINE) if "0" <= entry.name < f"{line.number:010}"
        ]
        for name in (*left, *older):
            self._files.remove(name)
        return line

    def _left_by_a_crash(self, directory: str) -> list[str]:
        return [f"{directory}/{entry.name}" for entry in self._files.list(directory) if entry.name.startswith(".")]

    def _overtaken(self) -> CheckpointFailure:
        return CheckpointFailure(
            f"Another start has changed {self._files.url} meanwhile.",
            hint="If the job is still this run's, it is started again.",
        )

    def committed(self, line: Line, until: float = math.inf) -> list[DataFile]:
        """The committed files that count, of the batches up to ``until``."""
        return [file for file in self.listed() if line.covers(file.start, file.batch) and file.batch <= until]

    def listed(self) -> list[DataFile]:
        """All committed files, whether they count or not."""
        files = (file for listed in self._lists().values() for file in listed)
        return list({file.path: file for file in files}.values())

    def commit(self, files: Sequence[DataFile], batch: int) -> None:
        """List files as committed by the checkpoint of ``batch``, in the order of batches.

        Raises:
            StorageError: the disk failed.
        """
        self._list_files(0, files, batch)
        for level in (0, 1):
            names = [name for name in self._names() if name.startswith(f"{level}-")]
            if len(names) >= _MERGED_AT:
                lists = self._lists(only=names)
                self._list_files(level + 1, [file for listed in lists.values() for file in listed], batch)
                for name in lists:
                    self._files.remove(f"{_COMMITS}/{name}")

    def forget(self, starts: Collection[str], line: Line) -> None:
        """Remove the lists in which no file counts and all files are of ``starts``."""
        for name, files in self._lists().items():
            if all(file.start in starts and not line.covers(file.start, file.batch) for file in files):
                self._files.remove(f"{_COMMITS}/{name}")

    def _list_files(self, level: int, files: Iterable[DataFile], batch: int) -> None:
        name = f"{level}-{batch:012}-{uuid.uuid4().hex[:8]}{_JSON}"
        self._files.create(f"{_COMMITS}/{name}", encode_files(files))

    def _names(self) -> list[str]:
        names = (entry.name for entry in self._files.list(_COMMITS))
        return sorted(name for name in names if name.endswith(_JSON) and not name.startswith("."))

    def _lists(self, only: Sequence[str] | None = None) -> dict[str, list[DataFile]]:
        """The lists by name; a list that is merged meanwhile is never missed."""
        found: dict[str, list[DataFile]] = {}
        while True:
            names = [name for name in self._names() if only is None or name in only]
            vanished = False
            for name in names:
                if name not in found:
                    try:
                        found[name] = decode_files(self._files.read(f"{_COMMITS}/{name}"), self._where(name))
                    except FileNotFoundError:
                        vanished = True
            if not vanished:
                return {name: found[name] for name in names}

    def _where(self, name: str) -> str:
        return str(self._files.local(f"{_COMMITS}/{name}"))


def encode_files(files: Iterable[DataFile]) -> bytes:
    """A list of data files in its stored form."""
    return _sealed({"files": list(files)})


def decode_files(data: bytes, where: str) -> list[DataFile]:
    """The reverse of :func:`encode_files`.

    Raises:
        SinkMismatch: the data is not such a list, or names files that no query would write into a sink.
    """
    with believed(f"{where}, a list of data files,", _BACKUP, SinkMismatch):
        return [_data_file(*file) for file in _unsealed(data)["files"]]


def newest_of(files: Iterable[DataFile]) -> int:
    """The newest batch that wrote one of the files, -1 for none."""
    return max((file.batch for file in files), default=-1)


def start_name(value: object) -> str:
    """``value`` as the name of a start, which is also the name of the start's directory.

    Raises:
        ValueError: the name may lead to another directory.
    """
    name = component(value)
    if "." in name:  # a directory that was moved aside has a suffix after the dot
        raise ValueError(f"{shown(name)} names no start of a query")
    return name


def _data_file(path: object, size: object, batch: object, start: object) -> DataFile:
    name = inside(path)
    # Spark ignores paths with such a part, and the records lie at such paths.
    if any(part.startswith(("_", ".")) for part in name.split("/")):
        raise ValueError(f"{shown(name)} is no data file")
    return DataFile(name, whole(size, "a size"), whole(batch, "a batch"), start_name(start))


def _starts(value: Any) -> dict[str, int | None]:
    return {
        start_name(start): None if last is None else whole(last, "a batch", least=-1) for start, last in value.items()
    }


def _sealed(fields: Mapping[str, object]) -> bytes:
    return seal(json.dumps({"version": _VERSION, **fields}).removesuffix("}").encode())


def _unsealed(data: bytes) -> Any:
    """The content of a record, verified.

    Raises:
        ValueError: the content is not what was written.
        KeyError: the data is not a record.
        TypeError: the data is not a record.
    """
    fields = parsed(data)
    if fields["version"] not in (_UNSEALED, _VERSION) or type(fields["version"]) is not int:
        raise ValueError(f"version {shown(fields['version'])} is not known to this release")
    if (fields["version"] != _UNSEALED or "digest" in fields) and not is_sealed(data):
        raise ValueError("it is truncated or was changed: its checksum does not match its content")
    return fields


def _line(number: int) -> str:
    return f"{_LINE}/{number:010}{_JSON}"
