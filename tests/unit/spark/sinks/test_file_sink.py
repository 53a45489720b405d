"""The file sink's log and its rollback, on directories laid out as Spark lays them out."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

import pytest

from dagster_ckpt.errors import CaptureIncomplete, InvalidConfiguration, SinkMismatch, SinkOverlap
from dagster_ckpt.spark.capture.from_disk import _copy
from dagster_ckpt.spark.files.checkpoint_location import CheckpointLocation
from dagster_ckpt.spark.files.compactible_log import log_files
from dagster_ckpt.spark.sinks import spark_sink_log
from dagster_ckpt.spark.sinks.own_entries import NotOwn
from dagster_ckpt.spark.sinks.sink import PlainQuery
from dagster_ckpt.spark.sinks.spark_file_sink import SparkFileSink, _Positions
from dagster_ckpt.spark.sinks.spark_sink_log import FileSink, SinkRollback
from tests.helpers.durability import Durability
from tests.helpers.spark.live_location import LiveLocation
from tests.helpers.spark.streaming import tree
from tests.unit.spark.run.test_fork_point import Conf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Output:
    """Writes what Spark's file sink would: a data file per partition and batch, the log, checksums."""

    def __init__(self, path: Path, compact_every: int = 3) -> None:
        self.path = path
        self.log = path / "_spark_metadata"
        self.log.mkdir(parents=True)
        self._compact_every = compact_every
        self._entries: list[str] = []
        self.data: dict[int, list[Path]] = {}

    def batch(self, number: int, partitions: int = 2) -> None:
        entries = []
        self.data[number] = []
        for partition in range(partitions):
            directory = self.path / f"day=a b%3A{partition}"
            directory.mkdir(exist_ok=True)
            file = directory / f"part-{partition:05}-{uuid.uuid4()}.c000.snappy.parquet"
            file.write_bytes(b"%d-%d" % (number, partition))
            file.with_name(f".{file.name}.crc").write_bytes(b"crc")
            modified = (1_700_000_000 + number) * 1000
            os.utime(file, (modified / 1000, modified / 1000))
            self.data[number].append(file)
            entries.append(self.entry(file, modified))
        self._entries += entries
        compact = (number + 1) % self._compact_every == 0
        name = f"{number}.compact" if compact else str(number)
        lines = self._entries if compact else entries
        (self.log / name).write_text("\n".join(["v1", *lines]), encoding="utf-8")
        (self.log / f".{name}.crc").write_bytes(b"crc")

    @staticmethod
    def entry(file: Path, modified: int = 0) -> str:
        content = {
            "path": "file://" + quote(str(file), safe="/="),
            "size": file.stat().st_size,
            "isDir": False,
            "modificationTime": modified,
            "blockReplication": 1,
            "blockSize": 33554432,
            "action": "add",
        }
        return json.dumps(content, separators=(",", ":"))


def _position(sink: FileSink, batch: int, target: Path) -> Path:
    target.mkdir()
    for file in sink.position_files(batch):
        shutil.copy(file, target)
    return target


@pytest.fixture
def output(tmp_path: Path) -> Output:
    written = Output(tmp_path / "out dir")
    for number in range(8):
        written.batch(number)
    return written


def test_position_counts_what_the_log_lists(output: Output, tmp_path: Path) -> None:
    sink = FileSink(output.path)
    assert sink.position(4) == {
        "kind": "file",
        "path": str(output.path),
        "batch": 4,
        "files": 10,
        "bytes": 30,
    }
    assert [file.name for file in sink.position_files(4)] == ["2.compact", "3", "4"]
    # the compaction before is kept, because two of them tell the interval
    assert [file.name for file in sink.position_files(6)] == ["2.compact", "5.compact", "6"]
    assert sink.last_batch() == 7
    assert sink.committed_files() == sorted(file for files in output.data.values() for file in files)
    with pytest.raises(CaptureIncomplete, match="8 is missing"):
        sink.position_files(8)
    with pytest.raises(CaptureIncomplete, match="does not exist"):
        FileSink(tmp_path / "nothing").position_files(0)


@pytest.mark.parametrize("batch", range(8))
def test_rollback_leaves_exactly_what_was_there(output: Output, tmp_path: Path, batch: int) -> None:
    sink = FileSink(output.path)
    position = _position(sink, batch, tmp_path / "position")
    result = sink.rollback_to(position, batch)
    kept = [file for number in range(batch + 1) for file in output.data[number]]
    assert sink.committed_files() == sorted(kept)
    assert sorted(output.path.rglob("part-*")) == sorted(kept)
    assert sorted(output.path.rglob(".part-*")) == sorted(file.with_name(f".{file.name}.crc") for file in kept)
    assert sink.last_batch() == batch
    assert not [path for path in output.log.iterdir() if path.name.strip(".")[0].isdigit() and _id(path) > batch]
    assert result == SinkRollback(0, 7 - batch, 2 * (7 - batch), 6 * (7 - batch))
    assert sink.rollback_to(position, batch) == SinkRollback(0, 0, 0, 0)


def _id(path: Path) -> int:
    return int(path.name.strip(".").split(".")[0])


def test_missing_log_files_are_put_back(output: Output, tmp_path: Path) -> None:
    """Spark deletes old entries once a compaction covers them."""
    sink = FileSink(output.path)
    position = _position(sink, 4, tmp_path / "position")
    for name in ("0", "1", "2.compact", "3", "4"):
        (output.log / name).unlink()
        (output.log / f".{name}.crc").unlink()
    assert sink.rollback_to(position, 4).log_entries_restored == 3
    assert {path.name for path in output.log.iterdir()} == {"2.compact", "3", "4"}


def test_foreign_files_stay(output: Output, tmp_path: Path) -> None:
    sink = FileSink(output.path)
    position = _position(sink, 3, tmp_path / "position")
    name = f"part-00000-{uuid.uuid4()}.c000.snappy.parquet"
    foreign = [
        output.path / "notes.txt",
        output.path / "part-00000.parquet",
        output.path / "part-00000-mine.c000.parquet",
        output.path / "_SUCCESS",
        output.path / "_staging" / name,
        output.path / ".hidden" / name,
        output.path / ".hidden=1" / name,
        output.path / "late" / name,
        output.path / "late" / "day=1" / name,
        *(output.path / "day=2" / log / "0" for log in ("_spark_metadata", "_delta_log", "_transactions")),
        output.path / "day=2" / name,
        output.path / "day=2" / "hour=1" / name,
        output.path / "day=a b%3A0" / "README",
    ]
    for file in foreign:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"mine")
    orphans = [output.path / "day=new" / name, output.path / "_day=new" / "hour=1" / name]
    for orphan in orphans:
        orphan.parent.mkdir(parents=True)
        orphan.write_bytes(b"of a batch that never committed")
    sink.rollback_to(position, 3)
    assert all(file.read_bytes() == b"mine" for file in foreign)
    assert not any(orphan.exists() for orphan in orphans)


def test_files_that_the_retention_option_unlisted_stay(output: Output, tmp_path: Path) -> None:
    expired = output.path / f"part-00000-{uuid.uuid4()}-c000.snappy.parquet"
    expired.write_bytes(b"old")
    os.utime(expired, (1_600_000_000, 1_600_000_000))
    sink = FileSink(output.path)
    sink.rollback_to(_position(sink, 3, tmp_path / "position"), 3)
    assert expired.exists()


class TestALogThatListsNothing:
    """The ``retention`` option has unlisted every file, and no batch has emitted a row since."""

    @pytest.fixture
    def emptied(self, tmp_path: Path) -> Output:
        """Files of three old batches, and a log of later batches without a row."""
        output = Output(tmp_path / "out", compact_every=100)
        for number in range(3):
            output.batch(number)
            (output.log / str(number)).unlink()
        for name in ("9.compact", "19.compact", "20", "21"):
            (output.log / name).write_text("v1", encoding="utf-8")
            os.utime(output.log / name, (1_700_000_100, 1_700_000_100))
        return output

    @staticmethod
    def old(output: Output) -> list[Path]:
        return sorted(file for files in output.data.values() for file in files)

    @staticmethod
    def later(output: Output, modified: int = 1_700_000_101) -> Path:
        """A file of the batch after the position, whose entry is in the log."""
        output._entries.clear()
        output.batch(22, partitions=1)
        (later,) = output.data.pop(22)
        os.utime(later, (modified, modified))
        return later

    @staticmethod
    def pinned(sink: SparkFileSink, live: LiveLocation, target: Path, *, copied: bool) -> dict[str, Any]:
        def pin(source: Path, name: str) -> Path:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            if copied:
                _copy(source, target / name)
            else:
                os.link(source, target / name)
            own = target / f"{len(list(target.iterdir()))}-{source.name}"  # as a capture names its pins
            os.link(target / name, own)
            return own

        return sink.position_reader(target, CheckpointLocation(live.path)).pin_position(21, pin)

    @pytest.mark.parametrize("copied", [False, True], ids=["pinned by a link", "pinned on another disk"])
    def test_old_files_stay_and_those_of_later_batches_go(self, emptied: Output, tmp_path: Path, copied: bool) -> None:
        sink, live = SparkFileSink(emptied.path), LiveLocation(tmp_path / "live")
        live.run(23)
        position = self.pinned(sink, live, tmp_path / "pins", copied=copied)
        assert position["files"] == 0
        later = self.later(emptied)
        restored = shutil.copytree(tmp_path / "pins", tmp_path / "restored", copy_function=shutil.copyfile)
        shutil.rmtree(emptied.log)  # what a rollback puts back has another time
        for _ in range(2):
            sink.rollback_to(position, restored, 1)
            assert not later.exists()
            assert sorted(emptied.path.rglob("part-*")) == self.old(emptied)

    def test_a_position_of_an_earlier_release_goes_by_the_entry_that_is_there(
        self, emptied: Output, tmp_path: Path
    ) -> None:
        sink = FileSink(emptied.path)
        position, later = _position(sink, 21, tmp_path / "position"), self.later(emptied)
        sink.rollback_to(position, 21)
        assert not later.exists()
        assert sorted(emptied.path.rglob("part-*")) == self.old(emptied)

    def test_a_position_of_an_earlier_release_removes_nothing_where_that_is_gone(
        self, emptied: Output, tmp_path: Path
    ) -> None:
        sink = FileSink(emptied.path)
        position, later = _position(sink, 21, tmp_path / "position"), self.later(emptied)
        (emptied.log / "21").unlink()
        sink.rollback_to(position, 21)
        assert sorted(emptied.path.rglob("part-*")) == sorted([later, *self.old(emptied)])
        assert sink.committed_files() == [], "readers of the log do not see it"

    def test_a_query_of_plain_spark_moves_in(self, emptied: Output, tmp_path: Path) -> None:
        sink, later = SparkFileSink(emptied.path), self.later(emptied)
        (emptied.log / "22").unlink()
        taken_over = sink.take_over(PlainQuery(21, 1_700_000_100_500), tmp_path / "files")
        assert taken_over is not None
        assert taken_over.removes == [str(later)], "the old files are nobody's"
        sink.rollback_to(taken_over.position, tmp_path / "files", 1)
        assert sorted(emptied.path.rglob("part-*")) == self.old(emptied)

    def test_a_batch_without_a_file_is_put_after_the_position(self, emptied: Output, tmp_path: Path) -> None:
        sink, live = SparkFileSink(emptied.path), LiveLocation(tmp_path / "live")
        live.run(23)
        position = self.pinned(sink, live, tmp_path / "pins", copied=False)
        restored = shutil.copytree(tmp_path / "pins", tmp_path / "restored", copy_function=shutil.copyfile)
        later = self.later(emptied)
        skipped = sink.skipped(position, restored, 22, cast("SparkSession", Conf()))
        sink.rollback_to(skipped, restored, 1)
        assert not later.exists()
        assert sorted(emptied.path.rglob("part-*")) == self.old(emptied)

    def test_a_time_that_is_none_is_refused(self, emptied: Output, tmp_path: Path) -> None:
        sink, before = SparkFileSink(emptied.path), tree(emptied.path)
        log = tmp_path / "files" / "_spark_metadata"
        log.parent.mkdir()
        _position(FileSink(emptied.path), 21, log)
        for value in (-1, 1.5, "0", True, None):
            with pytest.raises(SinkMismatch, match="the time of its newest entry"):
                sink.rollback_to({"batch": 21, "logged_ms": value}, tmp_path / "files", 1)
        assert tree(emptied.path) == before


def test_a_directory_reached_another_way_keeps_its_data(output: Output, tmp_path: Path) -> None:
    """The log has Spark's path; the sink may have been named through a link."""
    (tmp_path / "link").symlink_to(output.path)
    sink = FileSink(tmp_path / "link")
    sink.rollback_to(_position(sink, 3, tmp_path / "position"), 3)
    kept = sorted(file for number in range(4) for file in output.data[number])
    assert sorted(output.path.rglob("part-*")) == kept


def test_an_entry_under_its_other_name_is_removed(output: Output, tmp_path: Path) -> None:
    """The interval of compaction changed after a rollback: `4` of the checkpoint became `4.compact`."""
    sink = FileSink(output.path)
    position = _position(sink, 4, tmp_path / "position")
    (output.log / "4").rename(output.log / "4.compact")
    sink.rollback_to(position, 4)
    assert (output.log / "4").exists()
    assert not (output.log / "4.compact").exists()


def _delete(output: Output) -> str:
    output.data[1][0].unlink()
    return "is missing"


def _truncate(output: Output) -> str:
    output.data[1][0].write_bytes(b"1")
    return "has 1 bytes"


@pytest.mark.parametrize("damage", [_delete, _truncate])
def test_lost_data_is_named_and_nothing_touched(
    output: Output, tmp_path: Path, damage: Callable[[Output], str]
) -> None:
    sink = FileSink(output.path)
    position = _position(sink, 4, tmp_path / "position")
    sink.check(position)
    why = damage(output)
    before = tree(output.path)
    with pytest.raises(SinkMismatch, match=why) as caught:
        sink.rollback_to(position, 4)
    assert output.data[1][0].name in str(caught.value)
    assert "Restore" in caught.value.hint
    assert tree(output.path) == before


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("4", "v2\n{}"),
        ("4", ""),
        ("4", "v1\nnot json"),
        ("4", 'v1\n{"path": "file:///x"}'),
        ("4", 'v1\n{"path": "file:///x", "size": 1, "modificationTime": 1, "action": "move"}'),
        ("4", "v1\n[]"),
        ("2.compact", "\x00\x01"),
    ],
)
def test_unknown_log_is_refused_and_nothing_touched(output: Output, tmp_path: Path, name: str, text: str) -> None:
    sink = FileSink(output.path)
    position = _position(sink, 4, tmp_path / "position")
    (position / name).write_text(text, encoding="utf-8")
    before = tree(output.path)
    with pytest.raises(SinkMismatch, match="is not a log of the file sink that can be read"):
        sink.rollback_to(position, 4)
    assert tree(output.path) == before


@pytest.mark.parametrize("missing", [["2.compact", "3", "4"], ["4"], ["3"], ["2.compact"]])
def test_incomplete_position_is_refused_and_nothing_touched(output: Output, tmp_path: Path, missing: list[str]) -> None:
    """Above all the empty one, by which every file would be unlisted."""
    sink = FileSink(output.path)
    position = _position(sink, 4, tmp_path / "position")
    for name in missing:
        (position / name).unlink()
    before = tree(output.path)
    with pytest.raises(SinkMismatch):
        sink.rollback_to(position, 4)
    assert tree(output.path) == before


class Crash(BaseException):
    """The process dies here."""


class CrashPoints:
    """Lets so many changes to the file system happen, then dies before (or right after) the next one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left: int | None = None
        self.after = False
        self.seen = 0
        for name in ("unlink", "replace", "mkdir"):
            monkeypatch.setattr(Path, name, self._wrapped(getattr(Path, name)))
        monkeypatch.setattr(os, "fsync", self._wrapped(os.fsync))

    def _wrapped(self, change: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **options: Any) -> Any:
            self.seen += 1
            if self.left is not None:
                if self.left == 0:
                    if self.after:
                        change(*args, **options)
                    raise Crash
                self.left -= 1
            return change(*args, **options)

        return counted


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_crash_at_any_step_is_completed_by_the_next_rollback(
    output: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    sink = FileSink(output.path)
    position = _position(sink, 4, tmp_path / "position")
    (output.log / "3").unlink()  # so that there is something to put back
    (output.log / "4").write_text("v1", encoding="utf-8")  # and something to replace
    saved = tmp_path / "saved"
    shutil.copytree(output.path, saved)
    points = CrashPoints(monkeypatch)
    sink.rollback_to(position, 4)
    steps, clean = points.seen, tree(output.path)
    assert steps > 20

    points.after = after
    for step in range(steps):
        points.left = None
        shutil.rmtree(output.path)
        shutil.copytree(saved, output.path)
        points.left = step
        with pytest.raises(Crash):
            sink.rollback_to(position, 4)
        points.left = None
        sink.check(position)  # whatever the crash left, no listed data is gone
        sink.rollback_to(position, 4)
        assert tree(output.path) == clean, f"after a crash at step {step}"


def test_paths_as_spark_takes_them(tmp_path: Path) -> None:
    assert FileSink("file:///data/a%20b").path == Path("/data/a%20b")
    assert FileSink("file:/data/out").path == Path("/data/out")
    assert FileSink(tmp_path).path == tmp_path
    for elsewhere in ("s3a://bucket/out", "hdfs:///out", "gs://bucket/out"):
        with pytest.raises(InvalidConfiguration, match="no local directory"):
            FileSink(elsewhere)


def test_log_files_of_a_source_up_to_an_offset() -> None:
    names = {"9.compact", "10", "11", "12", ".12.crc", ".13.tmp"}
    assert log_files(names, 11, "sources/0") == ["9.compact", "10", "11"]
    assert log_files(names, 9, "sources/0") == ["9.compact"]
    assert log_files(names, -1, "sources/0") == []
    later = {"19.compact", "29.compact"}
    assert log_files(names | later, 19, "sources/0") == ["9.compact", "19.compact"]
    assert log_files(names | later, 29, "sources/0") == ["19.compact", "29.compact"]
    with pytest.raises(CaptureIncomplete, match="sources/0/0 is missing"):
        log_files(names, 8, "sources/0")


def test_what_a_rollback_puts_back_is_durable_before_it_is_visible(
    output: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = FileSink(output.path)
    position = _position(sink, 4, tmp_path / "position")
    for name in ("2.compact", "4"):
        (output.log / name).write_bytes(b"torn")
    durability = Durability(monkeypatch)
    sink.rollback_to(position, 4)
    for name in ("2.compact", "4"):
        durability.require(output.log / name, output.log)
        assert not (output.log / f".{name}.crc").exists(), "it describes other bytes"


def test_a_batch_that_the_query_itself_runs_during_the_look_is_nobody_elses(
    output: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = LiveLocation(tmp_path / "live")
    live.run(8)
    following = iter([8, 9])

    def then_a_batch(look: Callable[..., int | None]) -> Callable[..., int | None]:
        def looked(of: object) -> int | None:
            found = look(of)
            batch = next(following)
            live.plan(batch)
            output.batch(batch)
            live.commit(batch)
            return found

        return looked

    monkeypatch.setattr(FileSink, "last_batch", then_a_batch(FileSink.last_batch))
    monkeypatch.setattr(CheckpointLocation, "newest", then_a_batch(CheckpointLocation.newest))
    reader = SparkFileSink(output.path).position_reader(tmp_path / "restored", CheckpointLocation(live.path))
    position = reader.pin_position(7, lambda source, name: Path(shutil.copy(source, tmp_path / Path(name).name)))
    assert position["batch"] == 7
    assert next(following, None) is None, "both looks were made"


def test_a_batch_that_the_query_has_not_come_to_is_another_querys(output: Output, tmp_path: Path) -> None:
    live = LiveLocation(tmp_path / "live")
    live.run(7)
    reader = SparkFileSink(output.path).position_reader(tmp_path / "restored", CheckpointLocation(live.path))
    with pytest.raises(SinkOverlap, match="its log has batch 7, and this query has come to batch 6"):
        reader.pin_position(6, lambda source, name: source)


def test_few_totals_are_remembered(output: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_sink_log, "_REMEMBERED_TOTALS", 2)
    sink = FileSink(output.path)
    assert [sink.position(batch)["files"] for batch in range(8)] == [2 * (batch + 1) for batch in range(8)]
    assert len(sink._totals) == 2


def test_data_that_retention_has_deleted_is_told_and_a_rollback_goes_on_without(output: Output, tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    _position(FileSink(output.path), 4, tmp_path / "files" / "_spark_metadata")
    sink = SparkFileSink(output.path)
    output.data[5][0].unlink()
    assert sink.check({}, tmp_path / "files") == "", "a rollback would remove that file anyway"
    deleted = [output.data[0][1], *output.data[2]]
    for file in reversed(deleted):
        file.unlink()
    told = sink.check({}, tmp_path / "files")
    assert told == (
        f"3 files with 9 bytes that batches had written to {output.path} are gone; the oldest is {deleted[0]}, "
        f"the newest {max(deleted[1:])}."
    )
    assert SparkFileSink(output.path).check({}, tmp_path / "files") == told, "whoever accepted it is not asked again"
    kept = sorted(file for number in range(5) for file in output.data[number] if file not in deleted)
    sink.rollback_to({"batch": 4}, tmp_path / "files", 1)
    assert sorted(output.path.rglob("part-*")) == kept
    assert FileSink(output.path).last_batch() == 4


@pytest.mark.parametrize("spoil", ["another file is damaged", "the log is gone, too"])
def test_data_that_is_gone_is_no_retention_where_more_is_wrong(output: Output, tmp_path: Path, spoil: str) -> None:
    (tmp_path / "files").mkdir()
    _position(FileSink(output.path), 4, tmp_path / "files" / "_spark_metadata")
    output.data[0][0].unlink()
    if spoil == "the log is gone, too":
        shutil.rmtree(output.log)
    else:
        output.data[3][0].write_bytes(b"short of it")
    before, sink = tree(output.path), SparkFileSink(output.path)
    with pytest.raises(SinkMismatch, match=r"is missing|has 11 bytes"):
        sink.check({}, tmp_path / "files")
    with pytest.raises(SinkMismatch, match=r"is missing|has 11 bytes"):
        sink.rollback_to({"batch": 4}, tmp_path / "files", 1)
    assert tree(output.path) == before


def test_a_query_of_plain_spark_moves_in_where_retention_has_deleted_data(output: Output, tmp_path: Path) -> None:
    sink = SparkFileSink(output.path)
    output.data[0][0].unlink()
    taken_over = sink.take_over(PlainQuery(7, None), tmp_path / "files")
    assert taken_over is not None
    assert taken_over.removes == []
    assert str(output.data[0][0]) in sink.check(taken_over.position, tmp_path / "files")


def test_only_files_of_the_batch_in_flight_go_when_a_query_of_plain_spark_moves_in(tmp_path: Path) -> None:
    """Its log tells them; without its log, every file since its plan is told; and any other file is refused by name."""
    output = Output(tmp_path / "out")
    for number in range(3):
        output.batch(number)
    sink, query = SparkFileSink(output.path), PlainQuery(1, 1_700_000_002_000)

    def strange(modified: int) -> Path:
        file = output.path / f"part-00000-{uuid.uuid4()}.c000.snappy.parquet"
        file.write_bytes(b"of another writer")
        os.utime(file, (modified, modified))
        return file

    logged = sink.take_over(query, tmp_path / "logged")
    assert logged is not None
    assert logged.removes == []
    later = strange(1_700_000_003)
    with pytest.raises(SinkMismatch, match=f"has 1 files that its log does not list .*{later.name}"):
        sink.take_over(query, tmp_path / "refused")

    (output.log / "2.compact").unlink()
    told = sink.take_over(query, tmp_path / "told")
    assert told is not None
    assert told.removes == sorted(map(str, [*output.data[2], later]))
    before = tree(output.path)
    sink.rollback_to(told.position, tmp_path / "told", 1)
    gone = {str(output.path / path) for path in before.keys() - tree(output.path).keys()}
    assert {path for path in gone if not Path(path).name.startswith(".")} == set(told.removes), "and no other"
    older = strange(1_700_000_001)
    with pytest.raises(SinkMismatch, match=f"has 1 files that its log does not list .*{older.name}"):
        sink.take_over(query, tmp_path / "older")


class TestDataThatIsThere:
    def test_any_visible_file_tells_that_a_sink_has_data(self, tmp_path: Path) -> None:
        sink = SparkFileSink(tmp_path / "out")
        assert sink.first_data() is None, "there is no directory"
        for hidden in ("_temporary/part-0", ".staging/part-0", "day=1/_SUCCESS", "day=1/.part-0.crc"):
            (tmp_path / "out" / hidden).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "out" / hidden).touch()
        assert sink.first_data() is None
        for name in ("b", "a"):
            (tmp_path / "out" / "day=1" / name).touch()
        assert sink.first_data() == str(tmp_path / "out" / "day=1" / "a")
        (tmp_path / "out" / "_spark_metadata").mkdir()
        (tmp_path / "out" / "_spark_metadata" / "0").touch()
        assert sink.first_data() == str(tmp_path / "out" / "_spark_metadata")

    def test_back_to_nothing_removes_what_was_written_since_the_job_began(self, output: Output, tmp_path: Path) -> None:
        sink = FileSink(output.path)
        began = 1_700_000_003.0
        stays = {file for number in range(3) for file in output.data[number]}
        assert sink.rollback_to_nothing(began) == SinkRollback(0, 8, 10, 30)
        assert {file for files in output.data.values() for file in files if file.exists()} == stays
        assert not any(output.log.iterdir())
        assert sink.rollback_to_nothing(began) == SinkRollback(0, 0, 0, 0)
        assert FileSink(tmp_path / "nothing").rollback_to_nothing(began) == SinkRollback(0, 0, 0, 0)

    def test_a_log_that_lists_what_cannot_be_a_file(self, output: Output) -> None:
        entry = {**json.loads(output.entry(output.data[0][0])), "path": "hdfs://namenode/part"}
        (output.log / "7").write_text(f"v1\n{json.dumps(entry)}", encoding="utf-8")
        with pytest.raises(SinkMismatch, match="lists 'hdfs://namenode/part', which cannot be a file"):
            FileSink(output.path).committed_files()


class TestMovingIn:
    @pytest.mark.parametrize(
        ("query", "accepted"),
        [
            (PlainQuery(7, None), True),
            (PlainQuery(6, 1), True),
            (PlainQuery(6, None), False),
            (PlainQuery(8, None), False),
            (PlainQuery(5, 1), False),
        ],
    )
    def test_the_log_ends_where_the_query_does(
        self, output: Output, tmp_path: Path, query: PlainQuery, accepted: bool
    ) -> None:
        sink = SparkFileSink(output.path)
        if accepted:
            taken_over = sink.take_over(query, tmp_path / "files")
            assert taken_over is not None
            assert taken_over.position["batch"] == query.batch
            return
        with pytest.raises(
            SinkMismatch, match=f"ends with batch 7, and the query has come to batch {query.batch}"
        ) as said:
            sink.take_over(query, tmp_path / "files")
        assert (", with the next one planned:" in said.value.message) is (query.planned_ms is not None)
        assert not (tmp_path / "files").exists()

    def test_a_log_with_a_gap_is_refused(self, output: Output, tmp_path: Path) -> None:
        (output.log / "6").unlink()
        with pytest.raises(SinkMismatch, match="missing") as said:
            SparkFileSink(output.path).take_over(PlainQuery(7, None), tmp_path / "files")
        assert "Put the log back" in said.value.hint

    @pytest.mark.parametrize(("count", "more"), [(20, False), (21, True)])
    def test_twenty_files_are_named(self, output: Output, tmp_path: Path, count: int, more: bool) -> None:
        for number in range(count):
            (output.path / f"part-{number:05}-{uuid.uuid4()}.c000.parquet").touch()
        with pytest.raises(SinkMismatch, match=f"has {count} files") as said:
            SparkFileSink(output.path).take_over(PlainQuery(7, None), tmp_path / "files")
        assert said.value.message.count(".c000.parquet") == 20
        assert ("and more" in said.value.message) is more


def test_entries_of_another_query_are_an_overlap(output: Output, tmp_path: Path) -> None:
    """When the entries are looked at, and when a position is pinned."""

    class Own:
        def look(self, committed: int) -> None:
            if committed == 6:
                raise NotOwn("batch 6 is of another query")

        def prove(self, *_: object) -> None:
            raise NotOwn("files of batch 7 are not of this query")

    live = LiveLocation(tmp_path / "live")
    live.run(8)
    reader = _Positions(FileSink(output.path), CheckpointLocation(live.path), Own())  # type: ignore[arg-type]
    with pytest.raises(SinkOverlap, match=f"Another query writes to {output.path}: batch 6 is of another"):
        reader.look(6)
    with pytest.raises(SinkOverlap, match="files of batch 7 are not of this query"):
        reader.pin_position(7, lambda source, name: Path(shutil.copy(source, tmp_path / Path(name).name)))
    reader.look(7)
