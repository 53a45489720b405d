"""A tiny stream as a job: its input, its sink, its storage, and runs of it in threads of their own."""

from __future__ import annotations

import json
import os
import shutil
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import pyarrow.parquet as pq
import pytest

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.catalog.file_reader import verify_checkpoint
from dagster_ckpt.clock import SystemClock
from dagster_ckpt.config.checkpoint_config import CheckpointConfig, JobStatus
from dagster_ckpt.config.recovery import RestoreRequest
from dagster_ckpt.config.restart import NoRestart, RestartStrategy
from dagster_ckpt.errors import CheckpointError, CorruptRecord
from dagster_ckpt.filesystem import FileSystem, PosixFileSystem
from dagster_ckpt.spark.events import CheckpointCompleted, CheckpointFailed, Event, Restarting, Started
from dagster_ckpt.spark.files.checkpoint_location import CheckpointLocation
from dagster_ckpt.spark.job import RunResult, StreamingJob
from dagster_ckpt.spark.run.job_run import StreamingRun
from dagster_ckpt.spark.sinks.spark_sink_log import FileSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata

SCHEMA = "id int, k int, ts timestamp, v int"
ROWS_PER_FILE = 8
NEW_PER_FILE = 5

Row: TypeAlias = "tuple[Any, ...]"
Query: TypeAlias = "Callable[[Bench, SparkSession], DataStreamWriter]"
_Event = TypeVar("_Event")
_Error = TypeVar("_Error", bound=CheckpointError)

#: Longer than any test: a checkpoint is taken only where the run ends by itself. The first one is due after a random
#: part of the interval, but not before the pause.
NEVER = CheckpointConfig(interval="1 h", min_pause="1 h")
#: As often as batches allow.
OFTEN = CheckpointConfig(interval="50 ms", num_retained=50)
_DEADLINE = 600.0


def eventually(what: str, condition: Callable[[], bool], *, unless: Callable[[], None] | None = None) -> None:
    """Wait for ``condition``; ``unless`` may raise what makes waiting pointless."""
    give_up, pause = monotonic() + _DEADLINE, threading.Event()
    while not condition():
        if unless is not None:
            unless()
        assert monotonic() < give_up, f"waited {_DEADLINE:.0f} s in vain: {what}"
        pause.wait(0.02)


def new_run_id() -> str:
    return str(uuid.uuid4())


def deduplicated(bench: Bench, session: SparkSession) -> DataStreamWriter:
    """Stateful: each id once."""
    return bench.write(bench.read(session).dropDuplicates(["id"]).select("id", "v"))


def copied(bench: Bench, session: SparkSession) -> DataStreamWriter:
    """Stateless: each row as often as it was read."""
    return bench.write(bench.read(session).select("id", "v"))


@dataclass
class Bench:
    """One job in a directory of its own.

    File ``f`` of its input has the ids ``5f`` to ``5f + 7``, so three of them come again in the next file, and
    ``v`` is ``10 * id``: what is right does not depend on where a batch ends.
    """

    spark: SparkSession
    root: Path
    name: str = "tiny"
    query: Query = deduplicated
    files_per_trigger: int = 1
    until_done: bool = True
    landed: int = 0

    @property
    def source(self) -> Path:
        return self.root / "in"

    @property
    def sink(self) -> Path:
        return self.root / "out"

    @property
    def storage(self) -> Path:
        return self.root / "storage"

    @property
    def working(self) -> Path:
        return self.root / "live"

    @property
    def filesystem(self) -> FileSystem:
        return PosixFileSystem(self.storage)

    @property
    def catalog(self) -> CheckpointCatalog:
        return CheckpointCatalog(self.filesystem, self.name)

    def land(self, count: int) -> None:
        """Add the next ``count`` files to the input."""
        self.source.mkdir(parents=True, exist_ok=True)
        for number in range(self.landed, self.landed + count):
            rows = [
                {"id": key, "k": key % 3, "ts": f"2024-01-01T00:{number:02}:{row:02}Z", "v": key * 10}
                for row, key in enumerate(range(number * NEW_PER_FILE, number * NEW_PER_FILE + ROWS_PER_FILE))
            ]
            hidden = self.source / f".{number:04}.json"  # the source must never see half a file
            hidden.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
            os.utime(hidden, (1_700_000_000 + number, 1_700_000_000 + number))
            hidden.rename(self.source / f"{number:04}.json")
        self.landed += count

    def read(self, session: SparkSession) -> DataFrame:
        stream = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", self.files_per_trigger)
        return stream.json(str(self.source))

    def write(self, rows: DataFrame) -> DataStreamWriter:
        writer = rows.writeStream.format("parquet").option("path", str(self.sink))
        return writer.trigger(availableNow=True) if self.until_done else writer

    def expected(self) -> Counter[Row]:
        """What the sink must hold when everything landed was read."""
        every = [
            (key, key * 10)
            for number in range(self.landed)
            for key in range(number * NEW_PER_FILE, number * NEW_PER_FILE + ROWS_PER_FILE)
        ]
        return Counter(every if self.query is copied else set(every))

    def seen_by_spark(self) -> Counter[Row]:
        return Counter(tuple(row) for row in self.spark.read.parquet(str(self.sink)).select("id", "v").collect())

    def lost(self) -> Counter[Row]:
        """What everything landed has and the sink has not; the sink has nothing else."""
        seen = self.seen_by_spark()
        assert not seen - self.expected()
        return self.expected() - seen

    def in_raw_directory(self) -> Counter[Row]:
        return _rows(self.sink.rglob("part-*.parquet"))

    def assert_exact(self) -> None:
        assert self.in_raw_directory() == self.expected()
        assert self.seen_by_spark() == self.expected()

    def job(
        self,
        *,
        config: CheckpointConfig = NEVER,
        restart: RestartStrategy | None = None,
        filesystem: FileSystem | None = None,
        query: Query | None = None,
        deployment: str = "tests",
        inline_threshold: int = 20 * 1024,
        max_state_size: int | None = None,
    ) -> StreamingJob:
        build = query or self.query
        return StreamingJob(
            name=self.name,
            query=lambda session: build(self, session),
            session=lambda: self.spark,
            config=config,
            restart=restart or NoRestart(),
            filesystem=filesystem or self.filesystem,
            working_directory=self.working,
            deployment=deployment,
            inline_threshold=inline_threshold,
            max_state_size=max_state_size,
        )

    def launch(
        self,
        job: StreamingJob | None = None,
        **asked: Any,
    ) -> Launch:
        """Start a run of the job, with what is ``asked`` of its restore; it goes on in its thread."""
        self.land(0)  # Spark wants the directory to be there
        return Launch(job or self.job(), RestoreRequest(**asked))

    def tick(
        self,
        files: int = 0,
        job: StreamingJob | None = None,
        **asked: Any,
    ) -> Launch:
        """Land files and read them in a run to its end, which must be a good one."""
        self.land(files)
        launch = self.launch(job, **asked)
        assert launch.result().status is JobStatus.FINISHED
        return launch

    def run_and_cancel(
        self,
        files: int,
        job: StreamingJob | None = None,
        **asked: Any,
    ) -> Launch:
        """Land files, let a run without end commit them all, and cancel it: no checkpoint, but a live location."""
        before, self.until_done = self.until_done, False
        try:
            launch = self.launch(job, **asked)
            eventually("the query starts", lambda: bool(launch.of(Started)), unless=launch.check)
            self.land(files)
            self.await_in_sink(launch)
            launch.run.cancel()
            assert launch.result().status is JobStatus.CANCELED
        finally:
            self.until_done = before
        return launch

    def await_committed(self, launch: Launch) -> int:
        """Wait until no batch is in flight; the last one committed."""
        location = CheckpointLocation(self.live())

        def settled() -> bool:
            return location.last_committed() is not None and location.planned() is None

        eventually("the batch in flight commits", settled, unless=launch.check)
        committed = location.last_committed()
        assert committed is not None
        return committed

    def await_in_sink(self, launch: Launch) -> None:
        """Wait until everything landed is in the sink, and no batch is in flight any more."""
        wanted = self.expected()
        eventually("the files are read", lambda: self.in_sink_log() == wanted, unless=launch.check)
        self.await_committed(launch)

    def in_sink_log(self) -> Counter[Row]:
        """What a reader of the sink's log sees now, read without Spark."""
        return _rows(FileSink(self.sink).committed_files())

    def live(self) -> Path:
        """The live checkpointLocation of the newest run."""
        chosen = self.catalog.choice()
        assert chosen is not None
        return Path(chosen[1].live)

    def checkpoints(self) -> list[CheckpointMetadata]:
        """All completed checkpoints of the newest lineage, each of them verified."""
        chosen = self.catalog.choice()
        assert chosen is not None
        completed, broken = self.catalog.completed(chosen[1].job_id)
        assert not broken
        for metadata in completed:
            verify_checkpoint(self.catalog, metadata)
        return completed

    def refused(
        self,
        error: type[_Error],
        job: StreamingJob | None = None,
        **asked: Any,
    ) -> _Error:
        """A launch that must end with ``error`` and leave everything as it was."""
        before = self.photograph()
        launch = self.launch(job, **asked)
        with pytest.raises(error) as caught:
            launch.result()
        assert type(caught.value) is error
        assert not launch.completed
        before.assert_untouched(self)
        return caught.value

    def read_again(self) -> str | None:
        """The directory below ``live`` that the next start may read; empty for any of them, ``None`` for none."""
        try:
            chosen, live = self.catalog.choice(), self.root / "live"
        except CorruptRecord:
            return ""
        if chosen is None:
            return None
        found = Path(chosen[1].live)
        return found.relative_to(live).parts[0] if found.is_relative_to(live) else ""

    def photograph(self) -> Photograph:
        return Photograph({name: tree(self.root / name) for name in ("in", "out", "storage", "live")})


@dataclass(frozen=True)
class Photograph:
    """Every file of a job, with its bytes."""

    trees: dict[str, dict[str, bytes]]

    def assert_untouched(self, bench: Bench) -> None:
        """Nothing was lost or changed. A refused run may leave notes about itself, and what it unpacked.

        And it may delete what earlier ones have unpacked: only the newest choice's live location is read again.
        """
        now = bench.photograph()
        assert now.trees["in"] == self.trees["in"]
        assert now.trees["out"] == self.trees["out"]
        before, after = self._checkpoints(), now._checkpoints()
        assert after.keys() == before.keys()
        assert after == before
        # What Spark's maintenance still uploads in the background gets another name when it is done.
        read = bench.read_again()
        # Where no start has come to choose, only what standbys have fetched is still wanted.
        kept = {
            path: data
            for path, data in self.trees["live"].items()
            if read is not None or "dagster-ckpt-scratch-" in path
        }
        live = {path: data for path, data in kept.items() if ".tmp" not in path and path.startswith(read or "")}
        touched = sorted(path for path, data in live.items() if now.trees["live"].get(path) != data)
        assert not touched, touched

    def _checkpoints(self) -> dict[str, bytes]:
        """The storage without ``control/``, where a run writes down that it was there."""
        return {path: data for path, data in self.trees["storage"].items() if "/control/" not in path}


class Launch:
    """A run of a job in a thread of its own."""

    def __init__(
        self,
        job: StreamingJob,
        request: RestoreRequest,
        series: int | None = None,
        told: Callable[[Event], None] = lambda _: None,
    ) -> None:
        self.events: list[Event] = []
        self._told = told
        self.run_id = new_run_id()
        self.run = StreamingRun(
            job,
            run_id=self.run_id,
            request=request,
            series=series,
            clock=SystemClock(),
            emit=self._hear,
        )
        self._outcome: RunResult | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._drive, name="a run of the tests", daemon=True)
        self._thread.start()

    def result(self) -> RunResult:
        """Wait for the end; raises what the run raised."""
        self._thread.join(_DEADLINE)
        assert not self._thread.is_alive(), f"the run did not end within {_DEADLINE:.0f} s"
        self.check()
        assert self._outcome is not None
        return self._outcome

    def check(self) -> None:
        """Raise what the run raised, if it has ended so."""
        if self._error is not None:
            raise self._error

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()

    def of(self, kind: type[_Event]) -> list[_Event]:
        """The events of one kind so far."""
        return [event for event in list(self.events) if isinstance(event, kind)]

    @property
    def started(self) -> Started:
        """The first start of the query."""
        return self.of(Started)[0]

    @property
    def completed(self) -> list[CheckpointMetadata]:
        return [event.metadata for event in self.of(CheckpointCompleted)]

    @property
    def failed(self) -> list[CheckpointFailed]:
        return self.of(CheckpointFailed)

    @property
    def restarts(self) -> list[Restarting]:
        return self.of(Restarting)

    def _hear(self, event: Event) -> None:
        self.events.append(event)
        self._told(event)

    def _drive(self) -> None:
        try:
            self._outcome = self.run.run()
        except BaseException as error:
            self._error = error


@dataclass
class Pristine:
    """A job that was run a few times, put back after every test at the very place where it was run.

    The file sink's log names its files by absolute paths, so a copy elsewhere would not do.
    """

    bench: Bench
    backup: Path
    landed: int = field(init=False)

    def __post_init__(self) -> None:
        self.landed = self.bench.landed
        copy_tree(self.bench.root, self.backup)

    @contextmanager
    def borrowed(self) -> Iterator[Bench]:
        """A fresh view of the job, to be spoiled."""
        try:
            yield replace(self.bench, landed=self.landed)
        finally:
            remove_tree(self.bench.root)
            copy_tree(self.backup, self.bench.root)


def copy_tree(source: Path, target: Path) -> None:
    """Copy a directory, again from the beginning if a file vanishes: Spark may still upload state of an ended query."""

    def is_copied() -> bool:
        try:
            shutil.copytree(source, target, symlinks=True)
        except (shutil.Error, FileNotFoundError):
            remove_tree(target)
            return False
        return True

    eventually(f"a copy of {source}", is_copied)


def remove_tree(directory: Path) -> None:
    """Remove a directory, also if Spark still uploads state of an ended query into it."""

    def is_gone() -> bool:
        shutil.rmtree(directory, ignore_errors=True)
        return not directory.exists()

    eventually(f"{directory} to be gone", is_gone)


def _rows(files: Iterable[Path]) -> Counter[Row]:
    found: Counter[Row] = Counter()
    for file in files:
        rows = pq.ParquetFile(file).read(columns=["id", "v"]).to_pydict()
        found.update(zip(rows["id"], rows["v"], strict=True))
    return found


def tree(directory: Path) -> dict[str, bytes]:
    """Every file below a directory with its bytes."""
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }
