"""What a job is forked from, and the copy of it, without Spark: found, verified, whole, or nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.catalog.newest import find_newest
from dagster_ckpt.checkpoint.control.epochs import Choice
from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata
from dagster_ckpt.checkpoint.taking.savepoint_files import copy_to_savepoint
from dagster_ckpt.checkpoint.taking.store import CompletedCheckpointStore
from dagster_ckpt.config.retention import Retention
from dagster_ckpt.errors import (
    CheckpointFileChanged,
    CheckpointNotFound,
    CorruptMetadata,
    RestoreRefused,
    SinkMismatch,
    SinkNotEmpty,
)
from dagster_ckpt.filesystem import PosixFileSystem
from dagster_ckpt.spark.files.compactible_log import log_files
from dagster_ckpt.spark.run.fork import ForkPoint, fork_point, lay_out_fork, publish_fork
from dagster_ckpt.spark.sinks.sink import Sink
from dagster_ckpt.spark.sinks.spark_file_sink import SparkFileSink
from dagster_ckpt.spark.sinks.spark_sink_log import FileSink
from dagster_ckpt.spark.sinks.user_sinks import CustomSink, ForeachBatchSink
from dagster_ckpt.testing import FaultInjectingFileSystem, Operation
from tests.helpers.checkpoint.driver import JOB, Ledger, ManualClock, Pins, Run, content, state

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass
class Conf:
    """As much of a session as a sink asks for."""

    interval: str = "10"

    @property
    def conf(self) -> Conf:
        return self

    def get(self, key: str, default: str) -> str:
        assert key == "spark.sql.streaming.fileSink.log.compactInterval"
        assert default == "10"
        return self.interval


SESSION = cast("SparkSession", Conf())


@dataclass
class NewJob:
    """A job that is about to begin."""

    directory: Path

    def __post_init__(self) -> None:
        self.catalog = CheckpointCatalog(PosixFileSystem(self.directory / "ckpt"), "other")
        self.claim = self.catalog.records.epochs.claim(token="t", series=None, run_id="r", host="h", pid=1, now="now")
        self.job_id = "f" * 32

    def fork(self, point: ForkPoint, sink: Sink | None = None) -> CheckpointMetadata:
        directory = self.directory / "attempt"
        laid_out, _ = lay_out_fork(point, directory, sink, SESSION, "other", self.job_id)
        store = CompletedCheckpointStore(
            self.catalog,
            self.claim,
            job_id=self.job_id,
            first_id=self.catalog.next_id(self.job_id, laid_out),
            restored_from=laid_out.restored_from,
            mode="EXACTLY_ONCE",
            clock=ManualClock(),
            inline_threshold=16,
        )
        published = publish_fork(laid_out, directory, store)
        assert (published.facts, published.sink, published.restored_from) == (
            laid_out.facts,
            laid_out.sink,
            laid_out.restored_from,
        ), "what was checked before is what is published"
        return published

    def choose(self, restored: CheckpointMetadata) -> None:
        choice = Choice(self.job_id, restored.reference, restored.checkpoint_id + 1, 0, "/l", "h", None, "forked")
        self.catalog.records.epochs.record_choice(self.claim.epoch, choice)


@pytest.fixture
def first(tmp_path: Path) -> Run:
    (tmp_path / "pins").mkdir()
    run = Run(
        FaultInjectingFileSystem(PosixFileSystem(tmp_path / "storage")), Ledger(), Pins(tmp_path / "pins")
    ).start()
    for step in range(3):
        run.checkpoint({**state(step), "checkpoint/metadata": b'{"id":"of the first"}', "sink/log": b"x"}, batch=step)
    return run


@pytest.fixture
def new(tmp_path: Path) -> NewJob:
    return NewJob(tmp_path / "new")


def pointed_to(run: Run) -> str:
    newest = find_newest(run.catalog).metadata
    assert newest is not None
    return run.catalog.pointer(newest)


def resolved(new: NewJob, pointer: str) -> ForkPoint:
    point = fork_point(new.catalog, pointer)
    assert isinstance(point, ForkPoint)
    return point


def test_every_spelling_of_it(first: Run, new: NewJob, tmp_path: Path) -> None:
    pointer = pointed_to(first)
    newest = find_newest(first.catalog).metadata
    for spelling in (pointer, f"{pointer}/", f"{pointer}/_metadata", f"file://{pointer}"):
        assert resolved(new, spelling).metadata == newest
        assert resolved(new, spelling).pointer == pointer
    here = fork_point(CheckpointCatalog(PosixFileSystem(tmp_path / "storage"), "other"), pointer)
    assert here is not None
    assert (here.metadata, here.pointer) == (newest, pointer), "in the storage that the new job has, too"
    for nothing in (f"{pointer}0", str(tmp_path), "chk-1"):
        with pytest.raises(CheckpointNotFound):
            fork_point(new.catalog, nothing)


def test_the_copy_is_whole_and_of_its_own(first: Run, new: NewJob) -> None:
    point = resolved(new, pointed_to(first))
    copy = new.fork(point)
    expected = content(point.catalog.filesystem, point.metadata)
    found = content(new.catalog.filesystem, copy)
    query_id = json.loads(found.pop("checkpoint/metadata"))["id"]
    assert query_id == copy.facts.query_id != "of the first"
    assert expected.pop("checkpoint/metadata") == b'{"id":"of the first"}'
    assert expected.pop("sink/log") == b"x"
    assert found == expected
    assert (copy.kind, copy.batch, copy.checkpoint_id, copy.restored_from) == ("fork", 2, 4, point.pointer)
    assert copy.sink is None
    second = NewJob(new.directory.with_name("second"))
    assert second.fork(point).facts.query_id not in {query_id, "of the first"}


def test_of_a_savepoint(first: Run, new: NewJob, tmp_path: Path) -> None:
    newest = find_newest(first.catalog).metadata
    assert newest is not None
    saved = copy_to_savepoint(first.catalog, newest, PosixFileSystem(tmp_path / "saved"), ManualClock())
    assert saved.location is not None
    point = resolved(new, saved.location)
    assert point.pointer == saved.location
    assert new.fork(point).batch == 2


def test_the_first_job_subsumes_it_while_it_is_read(first: Run, new: NewJob) -> None:
    newest = find_newest(first.catalog).metadata
    assert newest is not None
    storage = FaultInjectingFileSystem(first.filesystem, _once(lambda: _go_on(first)))
    of_first = CheckpointCatalog(storage, JOB)
    point = ForkPoint(of_first, of_first.resolve(newest.reference))
    with pytest.raises(CheckpointNotFound, match="was deleted while it was read") as caught:
        new.fork(point)
    assert f"dagster-ckpt pin {JOB} latest" in caught.value.hint
    assert not new.catalog.job_ids()


def _go_on(run: Run) -> None:
    for step in range(20, 23):
        run.checkpoint({path: data + b"0" for path, data in state(step).items()}, batch=step)
    run.store.subsume(Retention(1))


def _once(do: Callable[[], None]) -> Callable[[Operation], None]:
    left = [do]

    def plan(operation: Operation) -> None:
        if operation.name == "fetch" and left:
            left.pop()()

    return plan


def test_what_was_changed_is_not_copied(first: Run, new: NewJob, tmp_path: Path) -> None:
    point = resolved(new, pointed_to(first))
    for file in (tmp_path / "storage" / JOB / point.metadata.job_id / "shared").iterdir():
        file.write_bytes(file.read_bytes()[:-1] + b"?")
    with pytest.raises(CheckpointFileChanged) as caught:
        new.fork(point)
    assert f"dagster-ckpt verify {JOB}" in caught.value.hint
    assert not new.catalog.job_ids()
    (Path(point.pointer) / "_metadata").write_bytes(b"{}")
    with pytest.raises(CorruptMetadata):
        fork_point(new.catalog, point.pointer)


def test_once_forked_it_goes_on_until_it_has_a_checkpoint_of_its_own(first: Run, new: NewJob) -> None:
    older = first.catalog.pointer(first.catalog.resolve("chk-1"))
    point = resolved(new, pointed_to(first))
    new.choose(new.fork(point))
    assert fork_point(new.catalog, point.pointer) is None, "the same launch again goes on"
    assert fork_point(new.catalog, older) is not None, "another one is a new fork, if the sink is empty"
    _go_on(first)
    assert fork_point(new.catalog, f"{point.pointer}/_metadata") is None, "the job has its copy"
    with pytest.raises(CheckpointNotFound):
        fork_point(new.catalog, older)
    store = CompletedCheckpointStore(
        new.catalog,
        new.claim,
        job_id=new.job_id,
        first_id=new.catalog.next_id(new.job_id),
        restored_from=f"{new.job_id}/chk-4",
        mode="EXACTLY_ONCE",
        clock=ManualClock(),
    )
    store.write(store.begin(), first.pins.snapshot(3, state(3)))
    for pointer in (point.pointer, pointed_to(first)):
        with pytest.raises(RestoreRefused, match="has checkpoints of its own") as caught:
            fork_point(new.catalog, pointer)
        assert "without fork_from" in caught.value.hint


def test_its_sink_is_another_one_and_empty(first: Run, new: NewJob, tmp_path: Path) -> None:
    point = resolved(new, pointed_to(first))
    out = tmp_path / "out"
    out.mkdir()
    (tmp_path / "alias").symlink_to(out)
    taken = ForkPoint(point.catalog, _with_sink(point.metadata, out))
    for same in (out, f"file://{out}", tmp_path / "alias"):
        with pytest.raises(SinkMismatch, match="write over each other"):
            new.fork(taken, SparkFileSink(same))
    (out / "part-of-another").write_text("rows")
    with pytest.raises(SinkNotEmpty, match="part-of-another"):
        new.fork(point, SparkFileSink(out))
    assert not (new.directory / "attempt").exists()
    copy = new.fork(point, SparkFileSink(tmp_path / "fresh"))
    nothing = {"files": 0, "bytes": 0, "logged_ms": 0}
    assert copy.sink == {"kind": "file", "path": str(tmp_path / "fresh"), "batch": 2, **nothing}
    assert not (tmp_path / "fresh").exists(), "a rollback prepares it, when the choice is on record"


def test_a_sink_that_may_have_data_is_not_emptied(first: Run, new: NewJob) -> None:
    """A fork puts its sink back to nothing, and without `newest_batch` nobody knows what that removes."""
    point = resolved(new, pointed_to(first))
    told: list[int | None] = [7, None]

    def rollback_to(batch: int, value: object) -> None:
        raise AssertionError((batch, value))

    for unknown in (
        ForeachBatchSink("rows", print, rollback_to=rollback_to),
        CustomSink("rows", position=print, rollback_to=rollback_to),
    ):
        with pytest.raises(SinkNotEmpty, match="to rows, which is not known to be empty") as caught:
            new.fork(point, unknown)
        assert "newest_batch" in caught.value.hint
    telling = ForeachBatchSink("rows", print, rollback_to=rollback_to, newest_batch=lambda: told[0])
    with pytest.raises(SinkNotEmpty, match="has data, batch 7 for example"):
        new.fork(point, telling)
    assert not (new.directory / "attempt").exists()
    told.pop(0)
    assert new.fork(point, telling).sink is not None


def test_a_sink_that_cannot_go_back_is_left_as_it_is(first: Run, new: NewJob) -> None:
    point = resolved(new, pointed_to(first))
    copy = new.fork(point, ForeachBatchSink("rows", print))
    assert copy.sink is not None
    assert copy.sink["batch"] == copy.batch


def _with_sink(metadata: CheckpointMetadata, path: Path) -> CheckpointMetadata:
    return replace(metadata, sink={"kind": "file", "path": str(path), "batch": 2})


@pytest.mark.parametrize(
    ("batch", "interval", "names"),
    [
        (0, "10", ["0"]),
        (8, "10", [*map(str, range(9))]),
        (9, "10", ["9.compact"]),
        (12, "10", ["9.compact", "10", "11", "12"]),
        (23, "5", ["19.compact", "20", "21", "22", "23"]),
        (3, "1", ["3.compact"]),
    ],
)
def test_the_log_of_a_sink_that_begins_in_the_middle(
    tmp_path: Path, batch: int, interval: str, names: list[str]
) -> None:
    """Compacted where Spark would have, so that it finds every entry since then when it compacts next."""
    sink = SparkFileSink(tmp_path / "out")
    position = sink.seed(batch, tmp_path / "pinned", cast("SparkSession", Conf(interval)))
    assert {file.name for file in (tmp_path / "pinned" / "_spark_metadata").iterdir()} == set(names)
    assert "put back" in sink.rollback_to(position, tmp_path / "pinned", 1)
    log = tmp_path / "out" / "_spark_metadata"
    assert log_files([file.name for file in log.iterdir()], batch, "log") == names
    assert {file.read_text() for file in log.iterdir()} == {"v1"}
    assert FileSink(tmp_path / "out").last_batch() == batch
    assert sink.rollback_to(position, tmp_path / "pinned", 2) == ""
