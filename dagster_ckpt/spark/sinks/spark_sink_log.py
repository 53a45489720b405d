"""The log of Spark's file sink (parquet, orc, json, csv, text, xml) in a local directory, and rolling it back.

The sink keeps a log, ``_spark_metadata``: ``N`` lists the files of batch ``N``, and at intervals ``N.compact`` lists
all files up to batch ``N``. A reader sees exactly the files of the log, and Spark skips a batch whose id is in the log.
So going back to batch ``N`` takes the log of batch ``N``, and the removal of every data file that this log does not
list. The log cannot be cut out of a later ``.compact``, whose entries have no batch, so a checkpoint holds the log
files.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from dagster_ckpt.errors import CaptureIncomplete, InvalidConfiguration, SinkMismatch
from dagster_ckpt.filesystem import make_durable
from dagster_ckpt.paths import local_path, split_location, unescaped
from dagster_ckpt.spark.files import COMPACT, SinkFile, log_files, log_id, read_sink_log, require_id
from dagster_ckpt.spark.sinks.file_rows import told_gone
from dagster_ckpt.spark.sinks.pending_files import data_files
from dagster_ckpt.stored_json import Json

__all__ = ["LOGGED", "FileSink", "SinkRollback", "effective_files"]

#: In the position of a log that lists no file: when its newest entry was written, milliseconds since the epoch.
LOGGED = "logged_ms"
_LOG = "_spark_metadata"
#: A directory with one of these is an output by itself.
_LOGS = frozenset({_LOG, "_delta_log", "_transactions"})
_REMEMBERED_TOTALS = 64  # the log of one position has at most one interval of files
# part-<task>-<uuid><-c or .c><file>.<codec and format>
_DATA_NAME = re.compile(r"part-\d{5,}-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}[-.]c\d{3,}(?:\.[0-9A-Za-z]+)+")
_OTHER_CHECKPOINT = (
    "Nothing was touched. Restore a checkpoint whose data is still there, put the file back, or start with "
    "restore_from=none into an empty output directory."
)


@dataclass(frozen=True, slots=True)
class SinkRollback:
    """What :meth:`FileSink.rollback_to` changed; all zero when there was nothing left to do.

    Attributes:
        log_entries_restored: log files put back.
        log_entries_removed: log files of later batches removed.
        data_files_removed: removed data files, which the log no longer lists.
        bytes_removed: the size of these data files.
        data_files_left: data files that the log does not list and that stay, because nothing tells if they are older.
    """

    log_entries_restored: int
    log_entries_removed: int
    data_files_removed: int
    bytes_removed: int
    data_files_left: int = 0


class FileSink:
    """The output directory of a file sink.

    Keep one object for the life of a query: the object remembers the totals of immutable log files.

    Args:
        path: the query's output path, as given to Spark, with or without ``file:``.

    Raises:
        InvalidConfiguration: the path is not on a local (or mounted) disk.
    """

    def __init__(self, path: Path | str) -> None:
        if not split_location(str(path)).is_local:
            raise InvalidConfiguration(
                f"{path} is no local directory; a file sink is checkpointed on a local or mounted disk only",
                hint="Mount it and write to the path it is mounted at.",
            )
        self.path = local_path(str(path))
        self.log = self.path / _LOG
        self._totals: dict[tuple[int, ...], tuple[int, int]] = {}
        #: The data files that were gone when a position was checked.
        self._gone: frozenset[SinkFile] = frozenset()

    def last_batch(self) -> int | None:
        """The newest batch in the log, ``None`` when the log is empty."""
        return max((number for name in _names(self.log) if (number := log_id(name)) is not None), default=None)

    def first_data(self) -> Path | None:
        """Any visible file of the sink, or the log; ``None`` when there is neither."""
        if self.last_batch() is not None:
            return self.log
        return next(iter(data_files(self.path)), None)

    def position_files(self, batch: int) -> list[Path]:
        """The log files with the sink's content at ``batch``, for a checkpoint to keep.

        Raises:
            CaptureIncomplete: the log does not reach back (or forward) to ``batch``.
        """
        names = _names(self.log)
        if not names:
            raise CaptureIncomplete(
                f"{self.log} does not exist, so no file sink has committed batch {batch} there",
                hint="Name the output path of the query's file sink.",
            )
        return [self.log / name for name in log_files(names, batch, str(self.log))]

    def files_at(self, batch: int) -> list[Path]:
        """The data files of the batches up to ``batch``.

        Raises:
            CaptureIncomplete: the log does not reach back (or forward) to ``batch``.
            SinkMismatch: the log cannot be read.
        """
        return [_local(path) for path in _listed(self.position_files(batch))]

    def position(self, batch: int) -> dict[str, Json]:
        """The sink's position at ``batch``: ``kind``, ``path``, ``batch``, ``files`` and ``bytes``.

        Raises:
            CaptureIncomplete: the log does not reach back (or forward) to ``batch``.
            SinkMismatch: the log cannot be read.
        """
        return self.position_of({file.name: file for file in self.position_files(batch)}, batch)

    def position_of(self, files: Mapping[str, Path], batch: int, logged_ms: Json = None) -> dict[str, Json]:
        """:meth:`position` from given log files by name, wherever they lie (pinned, or in a checkpoint).

        Of a log that lists no file, the position tells when the newest entry was written, ``logged_ms`` if that is
        known: data files of later batches are newer, and the sink's ``retention`` has unlisted older ones.
        """
        count = total = 0
        for file in _effective(files):
            status = file.stat()
            key = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
            if key not in self._totals:
                entries = read_sink_log(file)
                if len(self._totals) >= _REMEMBERED_TOTALS:
                    del self._totals[next(iter(self._totals))]
                self._totals[key] = (len(entries), sum(entry.size for entry in entries))
            files_here, bytes_here = self._totals[key]
            count += files_here
            total += bytes_here
        position: dict[str, Json] = {"kind": "file", "path": str(self.path), "batch": batch}
        position |= {"files": count, "bytes": total}
        if not count:
            position[LOGGED] = _logged_ms(files) if logged_ms is None else logged_ms
        return position

    def check(self, position_log: Path) -> str:
        """Tell which data files that ``position_log`` lists are gone: :meth:`rollback_to` goes on without them.

        Args:
            position_log: a directory with the log files of a checkpoint.

        Raises:
            SinkMismatch: a data file has another size, the log cannot be read, or the sink has lost its log, too.
        """
        _, gone = self._look(_listed(_position(position_log).values()))
        self._gone = frozenset(gone if self.last_batch() is not None else ())
        self._refuse(gone)
        return told_gone([(str(_local(entry.path)), entry.size) for entry in gone], self.path)

    def rollback_to(self, position_log: Path, batch: int, logged_ms: int | None = None) -> SinkRollback:
        """Put the sink back to its content after ``batch``.

        First everything is checked. Then missing log files are put back, log files of later batches are removed from
        the highest down, and last the data files that the log does not list are removed. Repeating an interrupted
        rollback completes it; repeating a complete rollback changes nothing. No query may write to the sink meanwhile.

        Only files with names as the file sink gives them are removed, here and in directories of partitions. Files
        older than the oldest listed file stay: the sink's ``retention`` option has unlisted them. Where no file is
        listed, files older than the newest entry stay; if that is not known either, every file does.

        Args:
            position_log: a directory with the log files of the checkpoint (see :meth:`position_files`).
            batch: the checkpoint's batch.
            logged_ms: when the newest entry of a log that lists no file was written, milliseconds since the epoch;
                positions of earlier releases do not tell, and what the sink's own log has of the entry counts then.

        Raises:
            SinkMismatch: the position has another batch than ``batch``, cannot be read, or lists data that is missing
                and was not when :meth:`check` looked. Nothing was touched.
        """
        wanted = _position(position_log)
        if max(map(require_id, wanted)) != batch:
            raise SinkMismatch(
                f"{position_log} is not the log of the file sink {self.path} at batch {batch}",
                hint="Nothing was touched. Restore another checkpoint.",
            )
        listed = _listed(wanted.values())
        keep, gone = self._look(listed)
        self._refuse(gone)
        if logged_ms is None:
            own = {name: self.log / name for name in wanted if require_id(name) == batch}
            logged_ms = _logged_ms({name: entry for name, entry in own.items() if entry.is_file()})
        oldest_ns = _oldest_ns(listed, logged_ms)
        restored = self._put_back(wanted)
        removed = self._remove_later_entries(wanted)
        data = self._remove_unlisted(keep, oldest_ns=oldest_ns)
        left = sum(1 for _ in self._unlisted(keep, oldest_ns=0)) if math.isinf(oldest_ns) else 0
        return SinkRollback(restored, removed, len(data), sum(data), left)

    def rollback_to_nothing(self, began: float) -> SinkRollback:
        """Put the sink back to its content before its first batch.

        Like :meth:`rollback_to`, this may be interrupted and repeated. Only data files written since the job began are
        removed; files that were there before stay.

        Args:
            began: when the job began, seconds since the epoch. The sink had no log at that time.
        """
        removed = self._remove_later_entries({}) if self.log.is_dir() else 0
        data = self._remove_unlisted(frozenset(), oldest_ns=int(began * 1e9)) if self.path.is_dir() else []
        return SinkRollback(0, removed, len(data), sum(data))

    def committed_files(self) -> list[Path]:
        """The data files that a reader of the log sees now, sorted.

        Raises:
            CaptureIncomplete: the log has gaps.
            SinkMismatch: the log cannot be read.
        """
        last = self.last_batch()
        return [] if last is None else sorted(self.files_at(last))

    def unlisted(self, log: Iterable[Path], *, but: Iterable[Path]) -> list[tuple[Path, int]]:
        """The data files that a rollback to a position would remove, sorted, each with its modification time in ns.

        Args:
            log: the log files of the position.
            but: later log files, whose data files are left out.

        Raises:
            SinkMismatch: a data file of the position has another size, or the log cannot be read.
        """
        entries = {file.name: file for file in log}
        listed, logged_ms = _listed(entries.values()), _logged_ms(entries)
        later = {_local(path).resolve() for path in _listed(but)}
        found = self._unlisted(self._look(listed)[0], oldest_ns=_oldest_ns(listed, logged_ms))
        return sorted((file, status.st_mtime_ns) for file, status in found if file.resolve() not in later)

    def _look(self, listed: Mapping[str, SinkFile]) -> tuple[frozenset[tuple[int, int]], list[SinkFile]]:
        """The listed data files that are there, and those that are gone, the oldest first.

        Each file is told by (device, inode), because several paths may reach the same directory.
        """
        found: set[tuple[int, int]] = set()
        gone: list[SinkFile] = []
        for entry in listed.values():
            local = _local(entry.path)
            try:
                status = local.stat()
            except (FileNotFoundError, NotADirectoryError):
                gone.append(entry)
                continue
            if status.st_size != entry.size:
                raise SinkMismatch(
                    f"{local} has {status.st_size} bytes; the file sink had written {entry.size}",
                    hint=_OTHER_CHECKPOINT,
                )
            found.add((status.st_dev, status.st_ino))
        return frozenset(found), sorted(gone, key=lambda entry: (entry.modified_ms, entry.path))

    def _refuse(self, gone: Iterable[SinkFile]) -> None:
        for entry in gone:
            if entry not in self._gone:
                raise SinkMismatch(
                    f"{_local(entry.path)}, which the file sink had written by then, is missing", hint=_OTHER_CHECKPOINT
                )

    def _put_back(self, wanted: dict[str, Path]) -> int:
        self.log.mkdir(parents=True, exist_ok=True)
        restored = 0
        for name in sorted(wanted, key=require_id):
            content = wanted[name].read_bytes()
            target = self.log / name
            if target.is_file() and target.read_bytes() == content:
                continue
            # The name is fixed, so the next rollback overwrites what a crash leaves here.
            temporary = self.log / f".{name}.rollback.tmp"
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            (self.log / f".{name}.crc").unlink(missing_ok=True)  # it describes other bytes
            temporary.replace(target)
            restored += 1
        make_durable(self.log)
        return restored

    def _remove_later_entries(self, wanted: dict[str, Path]) -> int:
        """Remove later entries, and wanted batches under the other of their two names (after a changed interval)."""
        first = min((require_id(file.name) for file in _effective(wanted)), default=0)
        later = [
            name
            for name in _names(self.log)
            if name not in wanted and (number := log_id(name)) is not None and number >= first
        ]
        for name in sorted(later, key=require_id, reverse=True):
            (self.log / f".{name}.crc").unlink(missing_ok=True)
            (self.log / name).unlink(missing_ok=True)
        make_durable(self.log)
        return len(later)

    def _remove_unlisted(self, keep: frozenset[tuple[int, int]], *, oldest_ns: float) -> list[int]:
        sizes: list[int] = []
        for file, status in self._unlisted(keep, oldest_ns=oldest_ns):
            # The data file goes last: as long as it exists, a repeated rollback also removes its checksum file.
            file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
            file.unlink(missing_ok=True)
            sizes.append(status.st_size)
        return sizes

    def _unlisted(self, keep: frozenset[tuple[int, int]], *, oldest_ns: float) -> Iterator[tuple[Path, os.stat_result]]:
        for directory, children, names in os.walk(self.path):
            if Path(directory) != self.path and not _LOGS.isdisjoint(children):
                children.clear()
                continue  # another query's output, or a table
            # The sink writes here and in the directories of its partition columns; any other directory is another's.
            children[:] = [child for child in children if "=" in child and not child.startswith(".")]
            for name in filter(_DATA_NAME.fullmatch, names):
                file = Path(directory, name)
                status = file.lstat()
                if (status.st_dev, status.st_ino) not in keep and status.st_mtime_ns >= oldest_ns:
                    yield file, status


def _oldest_ns(listed: Mapping[str, SinkFile], logged_ms: int | None) -> float:
    """From when on a file that is not listed is of a later batch: ``retention`` may have unlisted older ones."""
    if listed:
        return min(entry.modified_ms for entry in listed.values()) * 1_000_000
    return math.inf if logged_ms is None else logged_ms * 1_000_000


def _logged_ms(log: Mapping[str, Path]) -> int | None:
    """When the newest of some log files was written, ``None`` without any: no batch after that had begun by then.

    Args:
        log: the files by their names in the log; a pin has a name of its own.
    """
    newest = max(log, key=require_id, default=None)
    return None if newest is None else log[newest].stat().st_mtime_ns // 1_000_000


def _local(path: str) -> Path:
    """The file that a log entry names by its (escaped) URI."""
    try:
        return local_path(unescaped(path))
    except InvalidConfiguration as error:
        raise SinkMismatch(
            f"The log of the file sink lists {path[:160]!r}, which cannot be a file: {error.message}",
            hint=_OTHER_CHECKPOINT,
        ) from error


def _position(directory: Path) -> dict[str, Path]:
    """The log files of a checkpoint by name: at least one, and no gap."""
    names = frozenset(name for name in _names(directory) if log_id(name) is not None and (directory / name).is_file())
    try:
        complete = log_files(names, max(map(require_id, names), default=-1), str(directory))
    except CaptureIncomplete as error:
        raise SinkMismatch(error.message, hint="Nothing was touched. Restore another checkpoint.") from error
    if not complete:
        raise SinkMismatch(
            f"{directory} holds no log of the file sink, so its position is not known",
            hint="Nothing was touched. Restore another checkpoint.",
        )
    return {name: directory / name for name in sorted(names)}


def effective_files(directory: Path) -> list[Path]:
    """The log files in a directory that tell the content; empty if the directory does not exist."""
    return list(_effective({name: directory / name for name in _names(directory) if log_id(name) is not None}))


def _effective(files: Mapping[str, Path]) -> Iterator[Path]:
    """The log files that tell the content: the newest compact file and all later entries."""
    newest = max((require_id(name) for name in files if name.endswith(COMPACT)), default=-1)
    for name in sorted(files, key=require_id):
        number = require_id(name)
        if number > newest or name == f"{newest}{COMPACT}":
            yield files[name]


def _listed(files: Iterable[Path]) -> dict[str, SinkFile]:
    listed: dict[str, SinkFile] = {}
    for file in _effective({file.name: file for file in files}):
        for entry in read_sink_log(file):
            listed[entry.path] = entry
    return listed


def _names(directory: Path) -> frozenset[str]:
    try:
        return frozenset(path.name for path in directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return frozenset()
