"""A transactional sink driven as a job drives it, without Spark: starts, batches, checkpoints, crashes."""

from __future__ import annotations

import os
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from unittest import mock

from dagster_ckpt.errors import CheckpointError, RestoreWithLoss
from dagster_ckpt.paths import local_path
from dagster_ckpt.spark.files.checkpoint_location import CheckpointLocation
from dagster_ckpt.spark.sinks.sink import SinkRun
from dagster_ckpt.spark.sinks.transactional_file_sink import TransactionalFileSink
from dagster_ckpt.stored_json import Json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata

#: Everything the sink does to a disk but opening and writing a file, which shows when it is renamed, linked or synced.
OPERATIONS = ("rename", "replace", "link", "unlink", "mkdir", "rmdir", "fsync")


class Died(BaseException):
    """The process is gone."""


class Rows:
    """Writes as a DataFrame does: some files, one of them in a partition, and what Spark leaves beside them."""

    def __init__(self, label: str) -> None:
        self._label = label

    def __getattr__(self, name: str) -> Any:
        return self if name == "write" else lambda *_, **__: self

    def save(self, path: str) -> None:
        target = local_path(path)
        for file in (f"part-00000-{uuid.uuid4()}", f"k=1/part-00001-{uuid.uuid4()}"):
            (target / file).parent.mkdir(parents=True, exist_ok=True)
            (target / file).write_text(self._label)
            (target / file).with_name(f".{Path(file).name}.crc").write_text("")
        (target / "_SUCCESS").write_text("")


@dataclass(frozen=True)
class Checkpoint:
    """A completed checkpoint: where the sink was, and which rows it covers."""

    batch: int
    position: Mapping[str, Json]
    files: Path
    rows: frozenset[str]


class Start:
    """One start of the query."""

    def __init__(self, job: TransactionalJob, epoch: int, check_owner: Callable[[], None]) -> None:
        self.job = job
        self.epoch = epoch
        self.sink = TransactionalFileSink(job.sink)
        self.directory = job.root / "live" / f"{epoch:06}-{uuid.uuid4().hex[:8]}"
        self.batch = -1
        self.rows: frozenset[str] = frozenset()
        self._check_owner = check_owner

    def restore(self, checkpoint: Checkpoint | None) -> None:
        """Put the sink back, as `Start.prepare` does."""
        if checkpoint is not None:
            gone = self.sink.check(checkpoint.position, checkpoint.files)
            if gone and not self.job.allow_loss:
                raise RestoreWithLoss(gone, hint="")
        first = self.job.choice is _NEVER_STARTED
        if checkpoint is not None:
            self.batch, self.rows = checkpoint.batch, checkpoint.rows
        # From here on it is on record: what an older start left behind is not salvaged any more.
        self.job.choice, self.job.running = checkpoint, self
        if checkpoint is not None:
            self.sink.rollback_to(checkpoint.position, checkpoint.files, self.epoch)
        elif not first:
            self.sink.rollback_to_nothing(0.0, self.epoch)

    def begin(self) -> None:
        """Start the query."""
        position = None if self.batch < 0 else {"batch": self.batch}
        self.sink.begin(SinkRun(self.directory, self.epoch, position, self._check_owner, lambda _: None))

    def write(self, batches: int = 1) -> None:
        """Run batches."""
        for _ in range(batches):
            batch = self.batch + 1
            label = f"batch {batch} of {self.directory.name}"
            self.sink.write_batch(cast("DataFrame", Rows(label)), batch)
            self.batch, self.rows = batch, self.rows | {f"{label} 0", f"{label} 1"}

    def take(self) -> Checkpoint:
        """Complete a checkpoint, without telling the sink."""
        checkpoint = self.job.pinned(self.sink, self.directory, self.batch, self.rows)
        self.job.choice = checkpoint
        return checkpoint

    def completed(self, checkpoint: Checkpoint) -> None:
        """Tell the sink."""
        self.sink.completed(cast("CheckpointMetadata", SimpleNamespace(batch=checkpoint.batch, name="chk")))

    def checkpoint(self) -> Checkpoint:
        checkpoint = self.take()
        self.completed(checkpoint)
        return checkpoint


_NEVER_STARTED: Any = object()


@dataclass
class TransactionalJob:
    """A job: its sink, and which checkpoint the next start goes on from."""

    root: Path
    epoch: int = 0
    choice: Checkpoint | None = _NEVER_STARTED
    running: Start | None = None
    covered: set[str] = field(default_factory=set)
    allow_loss: bool = False

    @property
    def sink(self) -> Path:
        return self.root / "out"

    def new(self, check_owner: Callable[[], None] = lambda: None) -> Start:
        """A start that has claimed its epoch and done nothing yet."""
        self.epoch += 1
        return Start(self, self.epoch, check_owner)

    def start(self, checkpoint: Checkpoint | None) -> Start:
        """A start that goes on from a checkpoint, up to the first batch."""
        start = self.new()
        start.restore(checkpoint)
        start.begin()
        return start

    def latest(self) -> Start:
        """A start that goes on from the newest."""
        return self.start(None if self.choice is _NEVER_STARTED else self.choice)

    def salvage(self) -> None:
        """Checkpoint the last batch of a start that died, from what it left behind, as a new process does."""
        dead = self.running
        if dead is None or (self.choice is not None and self.choice.batch >= dead.batch):
            return
        try:
            self.choice = self.pinned(TransactionalFileSink(self.sink), dead.directory, dead.batch, dead.rows)
        except CheckpointError:
            return

    def pinned(self, sink: TransactionalFileSink, directory: Path, batch: int, rows: frozenset[str]) -> Checkpoint:
        files = self.root / "checkpoints" / uuid.uuid4().hex

        def pin(source: Path, name: str) -> Path:
            (files / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, files / name)
            return files / name

        position = sink.position_reader(directory, CheckpointLocation(directory / "checkpoint")).pin_position(
            batch, pin
        )
        self.covered |= rows
        return Checkpoint(batch, position, files, rows)

    def visible(self) -> list[str]:
        """What readers see."""
        return sorted(
            f"{file.read_text()} {int(file.parent != self.sink)}"
            for file in self.sink.rglob("*")
            if file.is_file() and not any(part.startswith(("_", ".")) for part in file.relative_to(self.sink).parts)
        )

    def assert_exact(self, rows: frozenset[str]) -> None:
        """Readers see these rows, each once, and the lists say the same."""
        assert self.visible() == sorted(rows)
        committed = TransactionalFileSink(self.sink).committed_files()
        assert sorted(f"{file.read_text()} {int(file.parent != self.sink)}" for file in committed) == sorted(rows)

    def assert_covered(self) -> None:
        """Readers see nothing that no completed checkpoint covers, and nothing twice."""
        visible = self.visible()
        assert len(visible) == len(set(visible))
        assert set(visible) <= self.covered

    def assert_tidy(self, rows: frozenset[str]) -> None:
        """Nothing is left of anything that is over; a start has just begun and has written nothing."""
        hidden = self.sink / "_transactions"
        left = [path for path in hidden.rglob("*") if path.is_file() and path.parent.name != "line"]
        assert not [path for path in left if path.parent.name != "commits"]
        assert not [path for path in left if path.name.startswith(".")]
        assert len(list((hidden / "line").iterdir())) == 1
        assert not list((hidden / "dropped").glob("*"))
        assert len(left) <= len(rows)

    def examine(self) -> None:
        """As the next process finds it: exact from the start on, and with what it then adds."""
        self.assert_covered()
        start = self.latest()
        self.assert_exact(start.rows)
        self.assert_tidy(start.rows)
        start.write(2)
        self.assert_exact(start.rows if start.batch < 0 else frozenset(self.choice.rows if self.choice else ()))
        start.checkpoint()
        self.assert_exact(start.rows)
        start.write()
        again = self.latest()
        assert again.rows < start.rows
        self.assert_exact(again.rows)
        self.assert_tidy(again.rows)


@contextmanager
def intercepted(step: Callable[[str], None], *zombies: Paused) -> Iterator[None]:
    """``step`` is called before every operation of this thread, and zombies pause. Nothing is really synced."""
    steps = {threading.current_thread(): step} | {zombie.thread: zombie.step for zombie in zombies}

    def wrapped(name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def operation(*args: Any, **options: Any) -> Any:
            if own := steps.get(threading.current_thread()):
                own(name)
            return None if name == "fsync" else real(*args, **options)

        return operation

    with ExitStack() as patched:
        for name in OPERATIONS:
            patched.enter_context(mock.patch.object(os, name, wrapped(name)))
        yield


def count(scenario: Callable[[], object]) -> int:
    """How many operations a scenario takes."""
    names: list[str] = []
    with intercepted(names.append):
        scenario()
    return len(names)


def die_at(operation: int, scenario: Callable[[], object]) -> bool:
    """Run a scenario in a process that dies before an operation: what would tidy up after it does nothing either.

    Returns:
        ``False`` when it has no such operation.
    """
    done = 0

    def step(_: str) -> None:
        nonlocal done
        if done >= operation:
            raise Died
        done += 1

    with intercepted(step):
        try:
            scenario()
        except Died:
            return True
    return False


class Paused:
    """Something that a thread of its own does, operation by operation, as far as it is let."""

    def __init__(self, scenario: Callable[[], object]) -> None:
        self.error: BaseException | None = None
        self._scenario = scenario
        self._budget = threading.Semaphore(0)
        self._arrived = threading.Semaphore(0)
        self._free = False
        self.thread = threading.Thread(target=self._run, name="a zombie of the tests", daemon=True)

    def step(self, _: str) -> None:
        """For :func:`intercepted`."""
        if not self._free:
            self._arrived.release()
            self._budget.acquire()

    def advance(self, operations: int) -> bool:
        """Let it go on until it is about to do one operation more than that; ``False`` when it ended before."""
        if not self.thread.ident:
            self.thread.start()
        else:
            self._budget.release()
        for left in range(operations, -1, -1):
            self._arrived.acquire()
            if not self.thread.is_alive() or self._done:
                return False
            if left:
                self._budget.release()
        return True

    def finish(self) -> None:
        """Let it go on to its end."""
        self._free = True
        self._budget.release()
        if not self.thread.ident:
            self.thread.start()
        self.thread.join()

    _done = False

    def _run(self) -> None:
        try:
            self._scenario()
        except (CheckpointError, OSError) as error:
            self.error = error
        finally:
            self._done = True
            self._arrived.release()
