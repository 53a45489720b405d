"""A file sink whose readers see what completed checkpoints cover, and nothing else.

Flink's file sink does the same: what a batch writes is *pending* until the checkpoint that covers it completes.

::

    {path}/part-*.parquet                               visible: moved here by the commit of a checkpoint
    {path}/_transactions/commits/{epoch}-{id}.json      what the commit of that checkpoint made visible
    {path}/_transactions/rollbacks/{epoch}.json         from this epoch on, later batches of older epochs are void
    {path}/_transactions/pending/{attempt}/{batch}/     data files of one batch, not visible
    {path}/_transactions/pending/{attempt}/{batch}.json their list, written when they are durable

Spark, pandas and pyarrow do not look into directories that begin with ``_``. A commit moves files one by one, each at
once; the list of a commit, written last, tells those of a checkpoint together. A commit that was broken off is
completed by the next start, and a rollback first says what is void and then removes it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_ckpt.checkpoint.metadata import CheckpointMetadata
from dagster_ckpt.checkpoint.snapshot import Json
from dagster_ckpt.errors import CaptureIncomplete, CheckpointFailure, InvalidConfiguration, RestoreRefused, SinkMismatch
from dagster_ckpt.spark.file_sink import FileSink
from dagster_ckpt.spark.sinks.sink import BatchSink, Pin, PositionReader, SinkRun

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["TransactionalFileSink"]

_TRANSACTIONS = "_transactions"
_PINNED = "pending"
_OTHER = "Restore a checkpoint whose data is still there, or put the file back."
_FORMATS = frozenset({"parquet", "orc", "json", "csv", "text"})


@dataclass(frozen=True, slots=True)
class _File:
    """One data file: relative to the sink, its bytes, and the batch that wrote it."""

    path: str
    size: int
    batch: int


@dataclass(frozen=True, slots=True)
class _Rollback:
    """From ``epoch`` on, what older epochs wrote after ``batch`` is void."""

    epoch: int
    batch: int


class TransactionalFileSink(BatchSink):
    """Data files that become visible when the checkpoint that covers them completes.

    .. code-block:: python

        return sink_to(rows, TransactionalFileSink("/data/delays", partition_by=["day"]))

    Args:
        path: the output directory, local or mounted, and shared with the executors.
        format: ``parquet``, ``orc``, ``json``, ``csv`` or ``text``.
        partition_by: columns to partition by.
        options: of Spark's ``DataFrameWriter``.

    Raises:
        InvalidConfiguration: another format, or a path that is not on a local (or mounted) disk.
    """

    kind = "transactional"

    def __init__(
        self,
        path: Path | str,
        *,
        format: str = "parquet",  # noqa: A002 - Spark's name of it
        partition_by: Sequence[str] = (),
        options: Mapping[str, str] | None = None,
    ) -> None:
        if format not in _FORMATS:
            raise InvalidConfiguration(
                f"A TransactionalFileSink cannot write {format!r}.", hint=f"Use one of {', '.join(sorted(_FORMATS))}."
            )
        self._root = FileSink(path).path
        self._transactions = self._root / _TRANSACTIONS
        self._format = format
        self._partition_by = tuple(partition_by)
        self._options = dict(options or {})
        self._run: SinkRun | None = None

    @property
    def path(self) -> str:
        return str(self._root)

    def committed_files(self) -> list[Path]:
        """What readers see by the lists of the commits, sorted: always whole checkpoints."""
        return sorted(self._root / file.path for file in self._committed())

    # --- writing -----------------------------------------------------------------------------------------------------

    def begin(self, run: SinkRun) -> None:
        self._run = run
        self._pending(run.directory.name).mkdir(parents=True, exist_ok=True)

    def write_batch(self, rows: DataFrame, batch: int) -> None:
        """Write one batch as pending, durably.

        Raises:
            Fenced: a newer run has taken the job over.
            RestoreRefused: the query was not started by this library.
        """
        run = self._run
        if run is None:
            raise RestoreRefused(
                f"The transactional sink {self.path} is written by a query that was started by hand, and nothing would "
                "ever commit it.",
                hint="Return the writer of sink_to() from the function of a checkpointed streaming asset.",
            )
        run.check_owner()
        pending = self._pending(run.directory.name)
        target = pending / str(batch)
        writer = rows.write.format(self._format).options(**self._options).mode("overwrite")
        (writer.partitionBy(*self._partition_by) if self._partition_by else writer).save(str(target))
        files = [_File(str(file.relative_to(target)), _sync_file(file), batch) for file in _data_files(target)]
        for directory in {(target / file.path).parent for file in files} | {target}:
            _sync_directory(directory)
        _write_durably(_manifest(pending, batch), _to_json(files))

    def completed(self, metadata: CheckpointMetadata) -> None:
        """Make visible what the checkpoint covers.

        Raises:
            Fenced: a newer run has taken the job over.
            CheckpointFailure: the disk does not do it; the next start will.
        """
        run = self._run
        if run is None:
            return
        run.check_owner()
        attempt = run.directory.name
        pending = self._pending(attempt)
        manifests = [batch for batch in _batches(pending) if batch <= metadata.batch]
        try:
            files = [file for batch in manifests for file in _read(_manifest(pending, batch))]
            self._commit(files, attempt, metadata.batch)
            for batch in manifests:
                _manifest(pending, batch).unlink(missing_ok=True)
                shutil.rmtree(pending / str(batch), ignore_errors=True)
        except OSError as error:
            raise CheckpointFailure(
                f"{metadata.name} is complete, but what it covers could not be made visible in {self.path}: {error}",
                hint="The next start of the job does it.",
            ) from error

    def _commit(self, files: Sequence[_File], attempt: str, batch: int) -> int:
        """Move files where readers see them, then list them; returns how many were moved now."""
        moved = [file for file in files if self._move(file, attempt)]
        for directory in {(self._root / file.path).parent for file in moved}:
            _sync_directory(directory)
        commit = self._transactions / "commits" / f"{batch:012}-{attempt}.json"
        if files and not commit.exists():
            _write_durably(commit, _to_json(files))
        return len(moved)

    def _move(self, file: _File, attempt: str) -> bool:
        """Make one file visible; ``False`` when it already is."""
        target = self._root / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            (self._pending(attempt) / str(file.batch) / file.path).rename(target)
        except FileNotFoundError:
            if _size(target) == file.size:
                return False
            raise SinkMismatch(
                f"{target} was written by batch {file.batch} and is neither there nor pending.", hint=_OTHER
            ) from None
        return True

    # --- the position, and going back to it --------------------------------------------------------------------------

    def position_reader(self, directory: Path) -> PositionReader:
        return _Position(self, directory.name)

    def pin_position(self, attempt: str, batch: int, pin: Pin) -> dict[str, Json]:
        """The position of an attempt after ``batch``: the lists of what is pending."""
        pending = self._pending(attempt)
        batches = [number for number in _batches(pending) if number <= batch]
        files = [file for number in batches for file in _read(pin(_manifest(pending, number), f"{_PINNED}/{number}"))]
        return {
            "kind": self.kind,
            "path": self.path,
            "batch": batch,
            "attempt": attempt,
            "files": len(files),
            "bytes": sum(file.size for file in files),
        }

    def check(self, position: Mapping[str, Json], files: Path) -> None:
        batch, attempt = int(str(position["batch"])), str(position["attempt"])
        pending = _pinned(files)
        listed = {file.path for file in pending}
        for file in pending:
            staged = self._pending(attempt) / str(file.batch) / file.path
            if file.size not in {_size(staged), _size(self._root / file.path)}:
                raise SinkMismatch(
                    f"{self._root / file.path}, which batch {file.batch} had written by then, is gone.", hint=_OTHER
                )
        for file in self._committed():
            if file.batch <= batch and file.path not in listed and _size(self._root / file.path) != file.size:
                raise SinkMismatch(
                    f"{self._root / file.path}, which batch {file.batch} had written and which was committed, is gone "
                    "or has another size.",
                    hint=_OTHER,
                )

    def rollback_to(self, position: Mapping[str, Json], files: Path, epoch: int) -> str:
        self.check(position, files)
        batch, attempt = int(str(position["batch"])), str(position["attempt"])
        self._void(_Rollback(epoch, batch))
        pending = _pinned(files)
        completed = self._commit(pending, attempt, batch)
        return _describe(completed, *self._retract(keep={file.path for file in pending}))

    def rollback_to_nothing(self, began: float, epoch: int) -> str:
        del began  # the lists tell what is of this sink
        self._void(_Rollback(epoch, -1))
        return _describe(0, *self._retract(keep=set()))

    def seed(self, batch: int, files: Path, session: SparkSession) -> dict[str, Json]:
        """Nothing is pending, and nothing was committed."""
        position = super().seed(batch, files, session)
        return {**position, "attempt": "fork", "files": 0, "bytes": 0}

    def newest_batch(self) -> int | None:
        pending = [
            batch
            for attempt in _subdirectories(self._transactions / "pending")
            for batch in _batches(self._transactions / "pending" / attempt)
        ]
        return max([*pending, *(file.batch for file in self._committed())], default=None)

    def first_data(self) -> str | None:
        return next((str(file) for file in _data_files(self._root)), None)

    def _void(self, rollback: _Rollback) -> None:
        """Say, before anything is removed, what is void from now on."""
        _write_durably(
            self._transactions / "rollbacks" / f"{rollback.epoch:010}.json", json.dumps(asdict(rollback)).encode()
        )

    def _retract(self, keep: set[str]) -> tuple[int, int]:
        """Remove what is visible and void, and everything that is pending; returns the files and bytes removed.

        Pending files are moved aside first and together: a writer that was declared dead and is not can make none of
        them visible any more.
        """
        pending = self._transactions / "pending"
        if pending.is_dir():
            pending.rename(self._transactions / f"dropped-{os.urandom(6).hex()}")
            _sync_directory(self._transactions)
        dropped = [self._transactions / name for name in _subdirectories(self._transactions) if name.startswith("drop")]
        void = {
            file.path
            for directory in dropped
            for attempt in _subdirectories(directory)
            for batch in _batches(directory / attempt)
            for file in _read(_manifest(directory / attempt, batch))
        }
        valid = {file.path for file in self._committed()}
        commits = {commit: _read(commit) for commit in self._commits()}
        void |= {file.path for files in commits.values() for file in files}
        void -= valid | keep
        removed = [size for path in sorted(void) if (size := self._remove(path)) is not None]
        for commit, files in commits.items():
            if files and not any(file.path in valid for file in files):
                commit.unlink(missing_ok=True)
        for directory in dropped:
            shutil.rmtree(directory, ignore_errors=True)
        return len(removed), sum(removed)

    def _remove(self, path: str) -> int | None:
        target = self._root / path
        size = _size(target)
        target.unlink(missing_ok=True)
        return size

    def _committed(self) -> list[_File]:
        """Everything that was committed and is not void."""
        rollbacks = [_Rollback(**json.loads(file.read_bytes())) for file in _entries(self._transactions / "rollbacks")]
        found: list[_File] = []
        for commit in self._commits():
            epoch = int(commit.stem.split("-")[1])
            until = min((item.batch for item in rollbacks if item.epoch > epoch), default=None)
            found += [file for file in _read(commit) if until is None or file.batch <= until]
        return found

    def _commits(self) -> list[Path]:
        return _entries(self._transactions / "commits")

    def _pending(self, attempt: str) -> Path:
        return self._transactions / "pending" / attempt


@dataclass(frozen=True, slots=True)
class _Position:
    """Tells the positions of one start of a query."""

    sink: TransactionalFileSink
    attempt: str

    def pin_position(self, batch: int, pin: Pin) -> dict[str, Json]:
        return self.sink.pin_position(self.attempt, batch, pin)


def _describe(completed: int, removed: int, size: int) -> str:
    told = [f"{completed} pending data files committed"] if completed else []
    told += [f"{removed} data files ({size} bytes) removed"] if removed else []
    return ", ".join(told)


def _manifest(pending: Path, batch: int) -> Path:
    return pending / f"{batch}.json"


def _batches(pending: Path) -> list[int]:
    """The batches that are pending whole, ascending."""
    return sorted(int(file.stem) for file in _entries(pending))


def _entries(directory: Path) -> list[Path]:
    try:
        return sorted(path for path in directory.iterdir() if path.suffix == ".json" and not path.name.startswith("."))
    except FileNotFoundError:
        return []


def _subdirectories(directory: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in os.scandir(directory) if entry.is_dir())
    except FileNotFoundError:
        return []


def _pinned(files: Path) -> list[_File]:
    """What was pending at a checkpoint, from the files that were pinned with it."""
    directory = files / _PINNED
    if not directory.is_dir():
        return []
    return [file for manifest in sorted(directory.iterdir()) for file in _read(manifest)]


def _data_files(directory: Path) -> Iterable[Path]:
    """The files that readers see, in order."""
    for place, children, names in os.walk(directory):
        children[:] = sorted(child for child in children if not child.startswith(("_", ".")))
        yield from (Path(place, name) for name in sorted(names) if not name.startswith(("_", ".")))


def _to_json(files: Sequence[_File]) -> bytes:
    return json.dumps({"files": [asdict(file) for file in files]}).encode()


def _read(manifest: Path) -> list[_File]:
    try:
        return [_File(**file) for file in json.loads(manifest.read_bytes())["files"]]
    except FileNotFoundError:
        raise CaptureIncomplete(
            f"{manifest} is not there (any more)", hint="The next committed batch can be captured."
        ) from None
    except (KeyError, TypeError, ValueError) as error:
        raise SinkMismatch(f"{manifest} is not a list of data files: {error}", hint=_OTHER) from error


def _size(file: Path) -> int | None:
    try:
        return file.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        return None


def _write_durably(target: Path, data: bytes) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.urandom(4).hex()}.tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(target)
    _sync_directory(target.parent)


def _sync_file(file: Path) -> int:
    """Make a file durable; returns its bytes."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
