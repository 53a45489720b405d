"""What is on record in a transactional file sink: which starts may have data in it, and which files were committed.

::

    {root}/line/{number}.json                  the starts of the query whose data counts, and until which batch
    {root}/commits/{level}-{batch}-{unique}.json   data files that commits made visible

Only the line with the highest number counts, and it is created exclusively as the one after the line that its writer
has seen. So a start that was declared dead and is not cannot change what counts: it is told that it was overtaken.

Both are JSON with a SHA-256 over it, as ``_metadata`` is. (The first release wrote them without.)

A commit adds a list. Every hundred lists of a level are merged into one of the next, so that a sink with a million
commits is read from a few hundred files.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from dagster_ckpt.errors import CheckpointFailure, PublishConflict, SinkMismatch
from dagster_ckpt.filesystem import PosixFileSystem, inside
from dagster_ckpt.stored_json import believed, component, is_sealed, parsed, seal, shown, whole

__all__ = ["DataFile", "Line", "TransactionLog", "decode_files", "encode_files", "start_name"]

_LINE = "line"
_COMMITS = "commits"
_JSON = ".json"
_VERSION = 2
#: Of records without a checksum.
_UNSEALED = 1
_LINE_NAME = re.compile(r"([0-9]{10})\.json")
_MERGED_AT = 100
_BACKUP = "Put it back from a backup, or write elsewhere and start from nothing with restore_from: none."


class DataFile(NamedTuple):
    """A data file: its path in the sink, its bytes, and which start of the query wrote it in which batch."""

    path: str
    size: int
    batch: int
    start: str


@dataclass(frozen=True, slots=True)
class Line:
    """Whose data counts.

    Attributes:
        number: of the record, 0 when there is none yet.
        epoch: of the start that wrote it.
        starts: starts of the query by name; each with the last of its batches that counts, ``None`` for all.
    """

    number: int
    epoch: int
    starts: Mapping[str, int | None]

    def covers(self, start: str, batch: int) -> bool:
        """Whether data counts that ``start`` wrote in ``batch``."""
        until = self.starts.get(start, -1)
        return until is None or batch <= until

    def until(self, batch: int) -> dict[str, int | None]:
        """The starts of the line that goes back to what it was after ``batch``."""
        return {start: batch if last is None else min(last, batch) for start, last in self.starts.items()}


class TransactionLog:
    """The records of one sink.

    Args:
        root: the directory they are in.
    """

    def __init__(self, root: Path) -> None:
        self._files = PosixFileSystem(root)

    def line(self) -> Line:
        """The line that counts now.

        Raises:
            SinkMismatch: its record cannot be read.
        """
        while True:
            number = self.newest()
            if number == 0:
                return Line(0, 0, {})
            try:
                data = self._files.read(_line(number))
            except FileNotFoundError:  # overtaken by the next since
                continue
            what = f"{self._files.local(_line(number))}, which tells whose data counts,"
            with believed(what, _BACKUP, SinkMismatch):
                fields = _unsealed(data)
                return Line(number, whole(fields["epoch"], "an epoch"), _starts(fields["attempts"]))

    def newest(self) -> int:
        """The number of the line that counts now; one listing."""
        names = (_LINE_NAME.fullmatch(entry.name) for entry in self._files.list(_LINE) if not entry.is_directory)
        return max((int(match[1]) for match in names if match), default=0)

    def advance(self, seen: Line, starts: Mapping[str, int | None], epoch: int) -> Line:
        """Make another line count, if ``seen`` still does.

        Raises:
            CheckpointFailure: it does not any more.
            StorageError: the disk does not do it.
        """
        line = Line(seen.number + 1, epoch, dict(starts))
        fields = {"epoch": epoch, "attempts": line.starts, "unique": uuid.uuid4().hex}
        if self.newest() != seen.number:
            raise self._overtaken()
        left = [name for directory in (_LINE, _COMMITS) for name in self._left_by_a_crash(directory)]
        try:
            self._files.create(_line(line.number), _sealed(fields))
        except (PublishConflict, FileNotFoundError):  # in the second case whoever was faster has tidied up already
            raise self._overtaken() from None
        # Again: the number may have been free only because who is further on has removed the older records.
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

    def committed(self, line: Line) -> list[DataFile]:
        """What was committed and counts."""
        return [file for file in self.listed() if line.covers(file.start, file.batch)]

    def listed(self) -> list[DataFile]:
        """What was committed, whether it counts or not."""
        files = (file for listed in self._lists().values() for file in listed)
        return list({file.path: file for file in files}.values())

    def commit(self, files: Sequence[DataFile], batch: int) -> None:
        """List files as committed, in order with a checkpoint of ``batch``.

        Raises:
            StorageError: the disk does not do it.
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
        """Drop the lists in which nothing counts and all is of ``starts``."""
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
        """The lists by name. What one of them held is never missed because it was merged into another meanwhile."""
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
    """A list of data files as it is stored."""
    return _sealed({"files": list(files)})


def decode_files(data: bytes, where: str) -> list[DataFile]:
    """The reverse of :func:`encode_files`.

    Raises:
        SinkMismatch: it is not such a list, or names files that no query writes into a sink.
    """
    with believed(f"{where}, a list of data files,", _BACKUP, SinkMismatch):
        return [_data_file(*file) for file in _unsealed(data)["files"]]


def start_name(value: object) -> str:
    """``value``, the name of a start of a query, which is that of its directory.

    Raises:
        ValueError: it may lead elsewhere.
    """
    name = component(value)
    if "." in name:  # what is moved aside has something else after it
        raise ValueError(f"{shown(name)} names no start of a query")
    return name


def _data_file(path: object, size: object, batch: object, start: object) -> DataFile:
    name = inside(path)
    # What Spark itself would not look at, where the records are, too.
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
    """What a record says, if it is what was written.

    Raises:
        ValueError: it is not.
        KeyError: it is no record.
        TypeError: it is no record.
    """
    fields = parsed(data)
    if fields["version"] not in (_UNSEALED, _VERSION) or type(fields["version"]) is not int:
        raise ValueError(f"version {shown(fields['version'])} is not known to this release")
    if (fields["version"] != _UNSEALED or "digest" in fields) and not is_sealed(data):
        raise ValueError("it is truncated or was changed: its checksum does not match its content")
    return fields


def _line(number: int) -> str:
    return f"{_LINE}/{number:010}{_JSON}"
