"""Which entries of a file sink's log count as those of one start, on logs laid out as Spark lays them out."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dagster_ckpt.errors import CaptureIncomplete
from dagster_ckpt.spark.sinks.own_entries import NotOwn, OwnEntries, mark_of, marking_options
from dagster_ckpt.spark.sinks.sink import SinkStart
from dagster_ckpt.spark.sinks.spark_sink_log import FileSink

OURS, OTHER = "ours", "other"


@dataclass
class Log:
    """A sink's log, compacted every five batches, to which several starts write."""

    path: Path
    entries: dict[int, list[str]] = field(default_factory=dict)
    ran: dict[int, bool] = field(default_factory=dict)
    asked: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        (self.path / "_spark_metadata").mkdir(parents=True)

    def add(self, batch: int, token: str, files: int = 1, *, lines: list[str] | None = None) -> Path:
        """The entry of a batch as Spark writes it, which copies what is in the log."""
        own = [self.line(batch, token, number) for number in range(files)] if lines is None else lines
        self.entries[batch] = own
        name = str(batch)
        if (batch + 1) % 5 == 0:
            name, own = f"{batch}.compact", [line for number in sorted(self.entries) for line in self.entries[number]]
        entry = self.path / "_spark_metadata" / name
        temporary = entry.with_name(f".{name}.tmp")
        temporary.write_text("\n".join(["v1", *own]), encoding="utf-8")
        temporary.rename(entry)
        return entry

    def line(self, batch: int, token: str, number: int) -> str:
        told = {
            "path": f"file://{self.path}/part-{number}-{token}-{batch}.parquet",
            "size": 1,
            "isDir": False,
            "modificationTime": 1_700_000_000_000 - batch,  # a clock that goes back
            "blockReplication": 1,
            "blockSize": mark_of(token),
            "action": "add",
        }
        return json.dumps(told, separators=(",", ":"))

    def own(self, after: int = -1, restored: Path | None = None) -> OwnEntries:
        def ran(batch: int) -> bool | None:
            self.asked.append(batch)
            return self.ran.get(batch)

        return OwnEntries(FileSink(self.path), SinkStart(OURS, after, ran), restored)

    def prove(self, own: OwnEntries, batch: int, *, has_state: bool = False) -> None:
        pinned = {file.name: file for file in FileSink(self.path).position_files(batch)}
        own.prove(batch, pinned, lambda: has_state)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "out")


def restored(log: Log, directory: Path) -> Path:
    return Path(shutil.copytree(log.path / "_spark_metadata", directory))


def test_what_a_start_wrote_is_its_own_whatever_the_clock_said(log: Log, tmp_path: Path) -> None:
    for batch in range(7):
        log.add(batch, OTHER, 2)
    own = log.own(6, restored(log, tmp_path / "restored"))
    for batch in range(7, 40):
        log.add(batch, OURS, 3)
        own.look(batch)
        log.prove(own, batch)
    assert not log.asked


@pytest.mark.parametrize("batch", [8, 9, 10, 14])
def test_an_entry_of_another_start_is_found(log: Log, tmp_path: Path, batch: int) -> None:
    """As an entry, and as a compaction, whether the own query has committed the batch or not."""
    for earlier in range(7):
        log.add(earlier, OTHER)
    own = log.own(6, restored(log, tmp_path / "restored"))
    for earlier in range(7, batch):
        log.add(earlier, OURS)
    own.look(batch - 1)
    log.add(batch, OTHER)
    with pytest.raises(NotOwn, match=f"of batch {batch}|up to batch {batch}"):
        own.look(batch - 1)
    fresh = log.own(6)  # as a salvage elsewhere, without the log that the start began with
    with pytest.raises(NotOwn, match=f"of batch {batch}|up to batch {batch}"):
        fresh.look(batch)


def test_an_entry_with_one_foreign_file_among_its_own_is_found(log: Log) -> None:
    own = log.own()
    log.add(0, OURS)
    own.look(0)
    log.add(1, OURS, lines=[log.line(1, OURS, 0), log.line(1, OTHER, 0), log.line(1, OURS, 1)])
    with pytest.raises(NotOwn):
        own.look(1)


@pytest.mark.parametrize("same_size", [True, False])
def test_an_entry_that_is_replaced_after_it_was_proved_is_found(log: Log, tmp_path: Path, same_size: bool) -> None:
    """Spark's rename without overwriting is not atomic: a process may be stopped between its two halves."""
    for batch in range(6):
        log.add(batch, OTHER)
    own = log.own(5, restored(log, tmp_path / "restored"))
    for batch in (6, 7):
        log.add(batch, OURS)
    own.look(7)
    log.prove(own, 7)
    before = (log.path / "_spark_metadata" / "6").stat()
    entry = log.add(6, OTHER, 1 if same_size else 0)
    os.utime(entry, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(NotOwn, match="replaced"):
        log.prove(own, 7)


def test_a_replaced_entry_is_found_in_the_compaction_that_copied_it(log: Log, tmp_path: Path) -> None:
    for batch in range(6):
        log.add(batch, OTHER)
    own = log.own(5, restored(log, tmp_path / "restored"))
    for batch in (6, 7, 8):
        log.add(batch, OURS)
    own.look(8)
    log.add(6, OTHER)  # just after the restored ones, so that only their number tells
    log.add(9, OURS)
    with pytest.raises(NotOwn, match="up to batch 9"):
        own.look(9)


@pytest.mark.parametrize("batch", [7, 9])
def test_a_batch_without_a_file_is_own_if_the_query_ran_it(log: Log, tmp_path: Path, batch: int) -> None:
    for earlier in range(7):
        log.add(earlier, OTHER)
    own = log.own(6, restored(log, tmp_path / "restored"))
    for earlier in range(7, batch):
        log.add(earlier, OURS)
    log.add(batch, OURS, 0)
    own.look(batch - 1)
    assert not log.asked, "it is not committed, so it may not have been run yet"
    own.look(batch)
    assert log.asked == [batch]
    with pytest.raises(CaptureIncomplete, match=f"Batch {batch} has no file"):
        log.prove(own, batch)
    log.ran[batch] = True
    own.look(batch)
    log.prove(own, batch)
    log.add(batch + 1, OURS)
    own.look(batch + 1)
    log.prove(own, batch + 1)
    assert log.asked == [batch, batch]


@pytest.mark.parametrize("batch", [7, 9])
def test_a_batch_without_a_file_is_not_own_if_the_query_skipped_it(log: Log, tmp_path: Path, batch: int) -> None:
    for earlier in range(7):
        log.add(earlier, OTHER)
    own = log.own(6, restored(log, tmp_path / "restored"))
    for earlier in range(7, batch):
        log.add(earlier, OURS)
    log.add(batch, OTHER, 0)
    log.ran[batch] = False
    with pytest.raises(NotOwn, match=f"batch {batch} was in its log before"):
        own.look(batch)


def test_whole_state_proves_batches_without_a_file(log: Log) -> None:
    own = log.own()
    for batch in range(3):
        log.add(batch, OURS, batch % 2)
    own.look(2)
    with pytest.raises(CaptureIncomplete):
        log.prove(own, 2)
    log.prove(own, 2, has_state=True)
    log.prove(own, 2)


def test_a_dead_query_that_cannot_be_asked_is_not_believed(log: Log) -> None:
    """And is not asked for ever."""
    own = log.own()
    log.add(0, OURS, 0)
    log.add(1, OURS)
    for _ in range(200):
        own.look(1)
    assert 1 < len(log.asked) < 100
    with pytest.raises(CaptureIncomplete, match="Batch 0"):
        log.prove(own, 1)


def test_entries_that_nobody_has_seen_have_to_be_told_by_the_query(log: Log) -> None:
    """Spark removes entries some time after a compaction, at once if it is told to."""
    own = log.own()
    for batch in range(5):
        entry = log.add(batch, OURS)
        if batch < 4:
            entry.unlink()
    own.look(4)
    with pytest.raises(CaptureIncomplete):
        log.prove(own, 4)
    log.ran.update(dict.fromkeys(range(5), True))
    own.look(4)
    log.prove(own, 4)


def test_the_sinks_retention_may_unlist_what_was_restored(log: Log, tmp_path: Path) -> None:
    for batch in range(7):
        log.add(batch, OTHER, 2)
    own = log.own(6, restored(log, tmp_path / "restored"))
    for batch in (0, 1, 2, 3):
        log.entries[batch] = []
    for batch in range(7, 16):
        log.add(batch, OURS)
        own.look(batch)
        log.prove(own, batch)


@pytest.mark.parametrize("ran", [True, False])
def test_of_an_entry_that_spark_removed_before_the_look_spark_tells_who_ran_it(log: Log, ran: bool) -> None:
    for batch in range(7):
        log.add(batch, OURS)
    (log.path / "_spark_metadata" / "2").unlink()
    log.ran = dict.fromkeys(range(7), True) | {2: ran}
    own = log.own()
    if ran:
        own.look(6)
        log.prove(own, 6)
    else:
        with pytest.raises(NotOwn, match="batch 2 was in its log before this query ran it"):
            own.look(6)
    assert 2 in log.asked


def test_the_mark_of_a_start_is_the_same_in_every_release() -> None:
    """And greater than any block size that Hadoop has by itself."""
    assert mark_of("token") == 258_916_392_301
    assert mark_of("token") > 32 << 20


def test_a_pinned_entry_that_no_look_has_seen_is_examined(log: Log) -> None:
    own = log.own()
    log.add(0, OURS)
    own.look(0)
    log.add(1, OTHER)
    with pytest.raises(NotOwn, match="of batch 1"):
        log.prove(own, 1)


def test_a_compaction_without_any_file_is_own_if_the_query_ran_its_batch(log: Log) -> None:
    own = log.own()
    log.ran = dict.fromkeys(range(5), True)
    for batch in range(5):
        log.add(batch, OURS, 0)
        own.look(batch)
    own.look(4)
    log.prove(own, 4)
    assert 4 in log.asked


def test_a_start_marks_its_files_alike_in_every_release() -> None:
    """Else a release could not tell the entries that another release of the same start has committed."""
    assert mark_of("token") == 258916392301
    assert marking_options("token") == {
        "fs.file.impl.disable.cache": "true",
        "fs.local.block.size": "258916392301",
    }
