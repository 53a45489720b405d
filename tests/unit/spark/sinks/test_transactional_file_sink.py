"""What a transactional sink promises, without Spark: rollbacks, refusals, durability, and what readers see."""

from __future__ import annotations

import os
import uuid
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from dagster_ckpt.checkpoint import Choice
from dagster_ckpt.errors import CaptureIncomplete, CheckpointFailure, Fenced, InvalidConfiguration, SinkMismatch
from dagster_ckpt.filesystem import PosixFileSystem
from dagster_ckpt.paths import local_path
from dagster_ckpt.spark.files import CheckpointLocation
from dagster_ckpt.spark.sinks import position_reader, recorded_sink, transactions
from dagster_ckpt.spark.sinks.transactional_file_sink import TransactionalFileSink
from dagster_ckpt.spark.sinks.transactions import _MERGED_AT, DataFile, Line, TransactionLog
from tests.jobs.harness import copy_tree, remove_tree, tree
from tests.unit.spark.sinks.transactional import Rows, TransactionalJob, intercepted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class NoRows(Rows):
    def save(self, path: str) -> None:
        local_path(path).mkdir(parents=True)


@pytest.fixture
def job(tmp_path: Path) -> TransactionalJob:
    return TransactionalJob(tmp_path)


def test_nothing_is_visible_before_its_checkpoint_completes(job: TransactionalJob) -> None:
    start = job.start(None)
    start.write(2)
    assert not job.visible()
    checkpoint = start.take()
    assert not job.visible()
    start.write()
    start.completed(checkpoint)
    job.assert_exact(checkpoint.rows)


def test_rollback_into_the_middle_of_a_commit_and_to_it_again(job: TransactionalJob) -> None:
    start = job.start(None)
    start.write(2)
    middle = start.take()  # the commit of the next checkpoint makes this one's batches visible, too
    start.write(2)
    start.checkpoint()
    assert len(job.visible()) == 8
    for _ in range(2):
        back = job.start(middle)
        job.assert_exact(middle.rows)
        job.assert_tidy(middle.rows)
    back.write()
    back.checkpoint()
    job.assert_exact(back.rows)


def test_rollback_by_several_and_then_to_nothing(job: TransactionalJob) -> None:
    start = job.start(None)
    kept = []
    for _ in range(5):
        start.write()
        kept.append(start.checkpoint())
    for checkpoint in reversed(kept):
        assert job.start(checkpoint).batch == checkpoint.batch
        job.assert_exact(checkpoint.rows)
    job.choice = None
    assert "2 data files" in job.new().sink.rollback_to_nothing(0.0, job.epoch)
    job.assert_exact(frozenset())


def test_an_abandoned_checkpoint_is_refused_even_if_its_last_batches_were_empty(job: TransactionalJob) -> None:
    """Everything that the checkpoint itself lists is there; what it does not list is gone."""
    start = job.start(None)
    start.write()
    early = start.checkpoint()
    start.write()
    start.checkpoint()
    start.sink.write_batch(cast("DataFrame", NoRows("")), 2)
    start.batch = 2
    late = start.checkpoint()
    job.start(early)
    before = tree(job.sink)
    with pytest.raises(SinkMismatch, match="rolled back to before batch 2"):
        job.new().sink.check(late.position, late.files)
    with pytest.raises(SinkMismatch):
        job.new().sink.rollback_to(late.position, late.files, job.epoch)
    assert tree(job.sink) == before


@pytest.mark.parametrize("dies", [False, True])
def test_an_older_copy_is_refused_even_if_the_last_batches_were_empty(job: TransactionalJob, *, dies: bool) -> None:
    """What the checkpoint itself lists is nothing, and what it does not list is gone, with the record of it."""
    start = job.start(None)
    start.write()
    early = start.checkpoint()
    backup = job.root / "backup"
    copy_tree(job.sink, backup)
    start.write()
    start.checkpoint()
    start.sink.write_batch(cast("DataFrame", NoRows("")), 2)
    start.batch = 2
    if dies:
        job.salvage()
        assert job.choice is not None
        late = job.choice
    else:
        late = start.checkpoint()
    newer = job.root / "newer"
    job.sink.rename(newer)
    copy_tree(backup, job.sink)
    told = "is an older copy: readers saw what batch 1 had written"
    with pytest.raises(SinkMismatch, match=told):
        TransactionalFileSink(job.sink).check(late.position, late.files)
    with pytest.raises(SinkMismatch, match=told):
        TransactionalFileSink(job.sink).rollback_to(late.position, late.files, job.epoch + 1)
    assert tree(job.sink) == tree(backup)
    TransactionalFileSink(job.sink).check(early.position, early.files)

    remove_tree(job.sink)
    newer.rename(job.sink)
    again = job.start(late)
    job.assert_exact(late.rows)
    assert late.position["visible_batch"] == again.take().position["visible_batch"] == 1


def test_a_position_of_a_release_that_did_not_tell_what_was_visible(job: TransactionalJob) -> None:
    start = job.start(None)
    start.write(2)
    late = start.checkpoint()
    before = {name: value for name, value in late.position.items() if name != "visible_batch"}
    job.start(replace(late, position=before))
    job.assert_exact(late.rows)


def test_a_missing_file_is_refused_and_nothing_is_touched(job: TransactionalJob) -> None:
    start = job.start(None)
    start.write()
    start.checkpoint()
    start.write()
    checkpoint = start.take()
    for file in (next(job.sink.glob("part-*")), next(job.sink.rglob("_transactions/pending/*/1/part-*"))):
        content = file.read_bytes()
        for damage in (file.unlink, lambda file=file: file.write_bytes(b"short")):
            damage()
            before = tree(job.sink)
            with pytest.raises(SinkMismatch, match=file.name):
                job.new().sink.rollback_to(checkpoint.position, checkpoint.files, job.epoch)
            assert tree(job.sink) == before
            file.write_bytes(content)
    job.latest()
    job.assert_exact(checkpoint.rows)


def written_by(job: TransactionalJob, batch: int) -> list[Path]:
    """What readers see of a batch."""
    files = (file for file in job.sink.rglob("part-*") if "_transactions" not in file.parts)
    return sorted(file for file in files if file.read_text().startswith(f"batch {batch} "))


def test_files_that_retention_has_deleted_are_told_and_a_rollback_goes_on_without(job: TransactionalJob) -> None:
    """The remaining files are exact: later batches are taken back, and what was pending is committed."""
    start = job.start(None)
    for _ in range(3):
        start.write()
        start.checkpoint()
    start.write()
    middle = start.take()
    start.write()
    late = start.checkpoint()
    later = written_by(job, 4)
    later[0].unlink()
    assert job.new().sink.check(middle.position, middle.files) == "", "a rollback would remove that file anyway"

    deleted = [*written_by(job, 0), *written_by(job, 1)]
    for file in deleted:
        file.unlink()
    told = job.new().sink.check(middle.position, middle.files)
    size = 4 * len(f"batch 0 of {start.directory.name}")
    assert told == (
        f"4 files with {size} bytes that batches had written to {job.sink} are gone; the oldest is "
        f"{deleted[0]} (batch 0), the newest {deleted[-1]} (batch 1)."
    )
    later[0].write_text(later[1].read_text())
    assert job.new().sink.check(late.position, late.files) == told, "whoever accepted it is not asked again"

    job.allow_loss = True
    left = sorted(row for row in middle.rows if not row.startswith(("batch 0 ", "batch 1 ")))
    for _ in range(2):
        back = job.start(middle)
        assert job.visible() == left
    reader = TransactionalFileSink(job.sink, others_delete=True)
    assert len(reader.committed_files()) == len(left), "a reader of the list finds each file"
    assert len(TransactionalFileSink(job.sink).committed_files()) > len(left), "a loss that nobody has planned shows"
    back.write()
    again = back.checkpoint()
    assert job.new().sink.check(again.position, again.files) == told
    assert len(job.visible()) == len(left) + 2


@pytest.mark.parametrize("spoil", ["another file is damaged", "a pending file is gone", "a file goes after the check"])
def test_files_that_are_gone_are_no_retention_where_more_is_wrong(job: TransactionalJob, spoil: str) -> None:
    start = job.start(None)
    for _ in range(2):
        start.write()
        start.checkpoint()
    start.write()
    checkpoint = start.take()
    written_by(job, 0)[0].unlink()
    sink, spoiled = job.new().sink, written_by(job, 1)[0]
    if spoil == "a file goes after the check":
        assert "1 file with" in sink.check(checkpoint.position, checkpoint.files)
        spoiled.unlink()
    else:
        if spoil == "a pending file is gone":
            spoiled = next(job.sink.rglob("_transactions/pending/*/2/part-*"))
            spoiled.unlink()
        else:
            spoiled.write_text("short")
        with pytest.raises(SinkMismatch, match=spoiled.name):
            sink.check(checkpoint.position, checkpoint.files)
    before = tree(job.sink)
    with pytest.raises(SinkMismatch, match=spoiled.name):
        sink.rollback_to(checkpoint.position, checkpoint.files, job.epoch)
    assert tree(job.sink) == before


def test_what_others_may_delete_is_no_loss_for_a_record_either_and_a_query_says_it_for_itself(
    job: TransactionalJob,
) -> None:
    """A checkpoint that was salvaged from what a dead start left says it, too."""
    start = job.start(None)
    for _ in range(2):
        start.write()
        start.checkpoint()
    start.write()
    choice = Choice(
        "job", None, 1, 0, "live", "host", str(job.sink), "for a test", sink_kind="transactional", others_delete=True
    )
    location = CheckpointLocation(start.directory / "checkpoint")
    reader = position_reader(choice, start.directory, location, None)
    assert reader is not None
    position = reader.pin_position(2, lambda source, _: source)
    gone = written_by(job, 0)[0]
    gone.unlink()
    of_record = recorded_sink(position)
    assert of_record is not None
    assert of_record.check(position, job.root / "none") == ""
    with_it = TransactionalFileSink(job.sink, others_delete=True)
    assert with_it.check(position, job.root / "none") == ""
    assert gone.name in TransactionalFileSink(job.sink).check(position, job.root / "none"), "the query says it no more"

    silent = position_reader(replace(choice, others_delete=False), start.directory, location, None)
    assert silent is not None
    position = silent.pin_position(2, lambda source, _: source)
    of_record = recorded_sink(position)
    assert of_record is not None
    assert gone.name in of_record.check(position, job.root / "none")


def test_a_savepoint_is_restored_under_a_new_storage_whose_epochs_begin_again(job: TransactionalJob) -> None:
    for _ in range(3):
        start = job.latest()
        start.write()
        savepoint = start.checkpoint()
    start.write(2)
    start.checkpoint()
    job.epoch = 0
    start = job.start(savepoint)
    assert start.epoch == 1
    job.assert_exact(savepoint.rows)
    start.write()
    start.checkpoint()
    job.assert_exact(start.rows)


def test_a_batch_without_its_list_is_not_captured(job: TransactionalJob) -> None:
    start = job.start(None)
    start.write()
    first = start.take()
    start.completed(first)
    assert start.take().position["pending_files"] == 0  # committed, so that nothing of it is pending any more
    again = job.latest()
    assert again.take().position["batch"] == 0  # restored, and nothing written since
    again.write(3)
    (manifest,) = job.sink.rglob("pending/*/2.json")
    kept = manifest.read_bytes()
    manifest.unlink()
    again.batch = 3
    with pytest.raises(CaptureIncomplete, match=r"2\.json"):
        again.take()
    with pytest.raises(CaptureIncomplete, match=r"2\.json"):  # and in a process that knows nothing of it
        job.pinned(TransactionalFileSink(job.sink), again.directory, 3, again.rows)
    manifest.write_bytes(kept)
    again.batch = 4
    with pytest.raises(CaptureIncomplete, match=r"4\.json"):
        again.take()
    again.batch = 3
    again.checkpoint()
    job.assert_exact(again.rows)


def test_a_sink_with_nothing_but_hidden_files_is_not_empty(job: TransactionalJob) -> None:
    assert TransactionalFileSink(job.sink).first_data() is None
    job.start(None).write()
    assert not job.visible()
    assert TransactionalFileSink(job.sink).first_data() == str(job.sink / "_transactions")
    assert TransactionalFileSink(job.sink).newest_batch() == 0


def test_a_fenced_start_writes_and_commits_nothing(job: TransactionalJob) -> None:
    """Also where the check of the epoch has passed just before."""
    old = job.start(None)
    old.write()
    checkpoint = old.take()
    new = job.start(checkpoint)
    before = tree(job.sink)
    with pytest.raises(Fenced, match="taken over"):
        old.write()
    with pytest.raises(Fenced, match="taken over"):
        old.completed(checkpoint)
    with pytest.raises(CheckpointFailure, match="Another start"):
        old.begin()
    assert tree(job.sink) == before
    new.write()
    new.checkpoint()
    job.assert_exact(new.rows)


def test_data_is_durable_before_its_list_and_visible_files_before_they_are_listed(job: TransactionalJob) -> None:
    synced: set[Path] = set()
    lists: list[Path] = []
    really_link = os.link

    def fsync(descriptor: int) -> None:
        synced.add(Path(f"/proc/self/fd/{descriptor}").readlink())

    def link(source: Path, target: Path) -> None:
        if target.parent.parent.name == "pending":
            files = [path for path in target.with_suffix("").rglob("part-*") if not path.name.startswith(".")]
            assert len(files) == 2
            assert {*files, *(file.parent for file in files), target.with_suffix("")} <= synced
            lists.append(target)
        elif target.parent.name == "commits":
            assert {job.sink, job.sink / "k=1"} <= synced
            lists.append(target)
        really_link(source, target)

    start = job.start(None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        patch.setattr(os, "link", link)
        start.write()
        assert len(lists) == 1
        synced.clear()
        start.checkpoint()
    assert len(lists) == 2


def test_many_commits_are_read_from_few_lists(tmp_path: Path) -> None:
    log = TransactionLog(tmp_path)
    with intercepted(lambda _: None):
        for batch in range(1_050):
            log.commit([DataFile(f"part-{batch}", 1, batch, "1-a")], batch)
    assert len(list((tmp_path / "commits").iterdir())) < 80
    assert len(log.committed(Line(1, 1, {"1-a": 900}))) == 901
    assert len(log.listed()) == 1_050


@pytest.mark.parametrize("columns", [["_day"], ["k", ".hidden"], "day"])
def test_partitions_that_readers_pass_over_are_refused(tmp_path: Path, columns: Any) -> None:
    with pytest.raises(InvalidConfiguration, match="cannot be partitioned"):
        TransactionalFileSink(tmp_path, partition_by=columns)


class Parquet(Rows):
    """One row, as Spark writes it."""

    def __init__(self, number: int, *, partitioned: bool) -> None:
        self.number = number
        self._where = f"day={number % 2}/" if partitioned else ""

    def save(self, path: str) -> None:
        target = local_path(path) / f"{self._where}part-00000-{uuid.uuid4()}.snappy.parquet"
        target.parent.mkdir(parents=True)
        pq.write_table(pa.table({"number": [self.number]}), target)


@pytest.mark.parametrize("partitioned", [False, True])
def test_pandas_and_pyarrow_see_what_is_committed(job: TransactionalJob, partitioned: bool) -> None:
    start = job.start(None)
    for batch in range(4):
        start.sink.write_batch(cast("DataFrame", Parquet(batch, partitioned=partitioned)), batch)
        start.batch = batch
        if batch == 0:
            # Before the first commit there is a directory without any file in it.
            assert ds.dataset(job.sink, partitioning="hive").to_table().num_rows == 0
            assert pd.read_parquet(job.sink).empty
        if batch == 1:
            start.checkpoint()
        if batch >= 1:
            assert sorted(pd.read_parquet(job.sink)["number"]) == [0, 1]
            table = ds.dataset(job.sink, partitioning="hive").to_table()
            assert sorted(table["number"].to_pylist()) == [0, 1]
            assert ("day" in table.column_names) is partitioned


def test_a_list_of_commits_that_is_merged_while_it_is_read_is_read_where_it_went(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = TransactionLog(tmp_path)
    commits = [DataFile(f"part-{batch}", 1, batch, "start") for batch in range(_MERGED_AT)]
    for file in commits[:-1]:
        log.commit([file], file.batch)
    read = PosixFileSystem.read

    def merged_before(files: PosixFileSystem, path: str) -> bytes:
        monkeypatch.undo()
        log.commit(commits[-1:], _MERGED_AT - 1)
        return read(files, path)

    monkeypatch.setattr(PosixFileSystem, "read", merged_before)
    found = TransactionLog(tmp_path).listed()
    assert sorted(found, key=lambda file: file.batch) == commits


def test_lists_of_commits_are_merged_level_by_level(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file is listed again a few times in the life of a sink, not at every merge."""
    monkeypatch.setattr(transactions, "_MERGED_AT", 3)
    log = TransactionLog(tmp_path)
    for batch in range(14):
        log.commit([DataFile(f"part-{batch}", 1, batch, "start")], batch)
    assert [name[0] for name in log._names()] == ["0", "0", "1", "2"]
    assert sorted(file.batch for file in log.listed()) == list(range(14))


def test_the_lists_of_abandoned_starts_are_forgotten(job: TransactionalJob) -> None:
    start = job.start(None)
    start.write()
    start.checkpoint()
    records = TransactionLog(job.sink / "_transactions")
    assert records.listed()
    job.start(None)
    assert records.listed() == []


def test_a_sink_without_records_has_the_line_of_nobody(tmp_path: Path) -> None:
    assert TransactionLog(tmp_path).line() == Line(0, 0, {})


@pytest.mark.parametrize("format_", ["parquet", "orc", "json", "csv"])
def test_formats(tmp_path: Path, format_: str) -> None:
    TransactionalFileSink(tmp_path, format=format_)
    with pytest.raises(InvalidConfiguration, match=f"cannot write '{format_}x'") as refused:
        TransactionalFileSink(tmp_path, format=f"{format_}x")
    assert format_ in refused.value.hint


def test_only_a_newer_epoch_stops_a_start_from_nothing(job: TransactionalJob) -> None:
    """A start that died in its rollback makes the rollback again, under the same epoch."""
    start = job.start(None)
    start.write(2)
    start.completed(start.take())
    again = TransactionalFileSink(job.sink)
    for epoch in (start.epoch, start.epoch, start.epoch + 1):
        again.rollback_to_nothing(0.0, epoch)
    assert not job.visible()
    with pytest.raises(CheckpointFailure, match=f"was begun by epoch {start.epoch + 1}, which is newer than"):
        again.rollback_to_nothing(0.0, start.epoch)
