"""Records of a transactional sink that somebody else has written: no file outside the sink is touched. No Spark."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dagster_ckpt.errors import CheckpointError, SinkMismatch
from dagster_ckpt.spark.sinks.transactional_file_sink import TransactionalFileSink
from dagster_ckpt.spark.sinks.transactions import DataFile, TransactionLog, decode_files, encode_files
from dagster_ckpt.stored_json import seal
from tests.jobs.harness import tree
from tests.unit.spark.sinks.transactional import Checkpoint, TransactionalJob


def written(fields: dict[str, Any], *, sealed: bool) -> bytes:
    """A record with the checksum that belongs to it, or as the first release wrote it."""
    if not sealed:
        return json.dumps({"version": 1, **fields}).encode()
    return seal(json.dumps({"version": 2, **fields}).removesuffix("}").encode())


@pytest.fixture
def job(tmp_path: Path) -> TransactionalJob:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "authorized_keys").write_text("the user's")
    return TransactionalJob(tmp_path)


#: What a list says of a file: everything that leads elsewhere, and everything of another type.
HOSTILE = [
    ["../home/authorized_keys", 4, 0, "{attempt}"],
    ["{root}/home/authorized_keys", 4, 0, "{attempt}"],
    ["a/../../home/authorized_keys", 4, 0, "{attempt}"],
    ["_transactions/line/9999999999.json", 4, 0, "{attempt}"],
    ["a/.hidden", 4, 0, "{attempt}"],
    ["", 4, 0, "{attempt}"],
    ["evil", 4, 0, "../../../../loot"],
    ["evil", 4, 0, "{root}/loot"],
    ["evil", 4, 0, ""],
    ["evil", 4, 0, "a.b"],
    ["evil", 4, "../../../../loot", "{attempt}"],
    ["evil", 4, -1, "{attempt}"],
    ["evil", True, 0, "{attempt}"],
    ["evil", "4", 0, "{attempt}"],
    ["evil", 4, 0, 7],
    ["evil", 4, 0],
    "evil",
    7,
    {"path": "evil"},
]


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize("entry", HOSTILE)
def test_a_savepoint_from_elsewhere_moves_no_file_that_is_not_of_its_sink(
    job: TransactionalJob, tmp_path: Path, entry: Any, sealed: bool
) -> None:
    """Its list was made to have a file moved from, or to, where the sink is not."""
    start = job.start(None)
    start.write()
    checkpoint = start.take()
    # What it asks for is there, with the size it says, so that nothing but its name is wrong with it.
    loot = tmp_path / "loot" / "0" / "evil"
    loot.parent.mkdir(parents=True)
    loot.write_text("loot")
    staged = job.sink / "_transactions" / "pending" / start.directory.name / "0"
    (staged / "evil").write_text("evil")
    shutil.copytree(tmp_path / "home", staged.parent / "home")
    (staged.parent / "home" / "authorized_keys").write_text("evil")
    text = json.dumps({"files": [entry]}).replace("{root}", str(tmp_path)).replace("{attempt}", start.directory.name)
    (checkpoint.files / "pending" / "0").write_bytes(written(json.loads(text), sealed=sealed))
    before = tree(tmp_path)
    sink = TransactionalFileSink(job.sink)
    with pytest.raises(SinkMismatch, match="a list of data files, is not what it must be"):
        sink.check(checkpoint.position, checkpoint.files)
    with pytest.raises(SinkMismatch, match="a list of data files, is not what it must be"):
        sink.rollback_to(checkpoint.position, checkpoint.files, 2)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("wrong", [{"batch": 5}, {"start": "000001-other"}])
def test_a_savepoint_lists_what_its_own_start_had_written_by_then(job: TransactionalJob, wrong: dict[str, Any]) -> None:
    start = job.start(None)
    start.write()
    checkpoint = start.take()
    listed = checkpoint.files / "pending" / "0"
    files = decode_files(listed.read_bytes(), "")
    listed.write_bytes(encode_files([files[0]._replace(**wrong), *files[1:]]))
    before = tree(job.root)
    with pytest.raises(SinkMismatch, match="which the sink had not written by then"):
        TransactionalFileSink(job.sink).rollback_to(checkpoint.position, checkpoint.files, 2)
    assert tree(job.root) == before


@pytest.mark.parametrize("member", ["batch", "attempt", "visible_batch"])
@pytest.mark.parametrize("value", [None, "", "../x", True, -7, 1.5, [], {}])
def test_a_position_that_is_none_is_refused(job: TransactionalJob, member: str, value: Any) -> None:
    start = job.start(None)
    start.write()
    checkpoint = start.take()
    before = tree(job.root)
    for position in ({**checkpoint.position, member: value}, {}):
        with pytest.raises(SinkMismatch, match="recorded position of the sink"):
            TransactionalFileSink(job.sink).rollback_to(position, checkpoint.files, 2)
    assert tree(job.root) == before


def test_what_is_a_directory_is_no_list(job: TransactionalJob) -> None:
    start = job.start(None)
    start.write()
    checkpoint = start.take()
    (checkpoint.files / "pending" / "1").mkdir()
    with pytest.raises(SinkMismatch, match="is a directory"):
        TransactionalFileSink(job.sink).check(checkpoint.position, checkpoint.files)


@pytest.mark.parametrize(
    "name", ["99.json", "00000000099.json", "0000000099.json.json", "\u0660" * 8 + "\u0669\u0669.json"]
)
def test_what_is_no_line_does_not_count(tmp_path: Path, name: str) -> None:
    """Such a name was taken for the newest line, which then could not be found, over and over."""
    log = TransactionLog(tmp_path)
    line = log.advance(log.line(), {"a": None}, 1)
    (tmp_path / "line" / name).write_text("")
    (tmp_path / "line" / "0000000077.json").mkdir()
    assert log.line() == line


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize(
    "fields",
    [
        {"epoch": "1"},
        {"epoch": True},
        {"epoch": -1},
        {"epoch": 10**30},
        {"attempts": []},
        {"attempts": None},
        {"attempts": {"../x": None}},
        {"attempts": {"a": "1"}},
        {"attempts": {"a": True}},
        {"attempts": {"a": -2}},
    ],
)
def test_a_line_that_says_what_cannot_be_is_refused(tmp_path: Path, fields: dict[str, Any], sealed: bool) -> None:
    log = TransactionLog(tmp_path)
    log.advance(log.line(), {"a": None}, 1)
    record = tmp_path / "line" / "0000000001.json"
    record.write_bytes(written({"epoch": 1, "attempts": {"a": None}, "unique": "", **fields}, sealed=sealed))
    with pytest.raises(SinkMismatch, match="which tells whose data counts"):
        log.line()
    record.write_bytes(written({"epoch": 1, "attempts": {"a": 3}, "unique": ""}, sealed=sealed))
    assert log.line().starts == {"a": 3}


def in_old_form(root: Path) -> int:
    """Every record below as the first release wrote it; returns how many."""
    count = 0
    for record in [*root.rglob("*.json"), *root.rglob("pending/[0-9]")]:
        if record.is_file():
            fields = json.loads(record.read_bytes())
            assert (fields.pop("version"), fields.pop("digest")[:7]) == (2, "sha256:")
            record.write_bytes(written(fields, sealed=False))
            count += 1
    return count


def test_a_sink_of_the_first_release_is_gone_on_with(job: TransactionalJob) -> None:
    start = job.start(None)
    start.write(2)
    start.checkpoint()
    start.write()
    checkpoint = start.take()
    assert in_old_form(job.root) >= 5
    again = job.start(checkpoint)
    job.assert_exact(checkpoint.rows)
    again.write()
    again.checkpoint()
    job.assert_exact(again.rows)


def records(job: TransactionalJob) -> tuple[Checkpoint, list[Path], Callable[[], object]]:
    start = job.start(None)
    start.write(2)
    start.checkpoint()
    start.write()
    checkpoint = start.take()

    def read() -> object:
        sink = TransactionalFileSink(job.sink)
        sink.check(checkpoint.position, checkpoint.files)
        return sink.committed_files()

    read()
    found = [*(job.sink / "_transactions").glob("line/*"), *(job.sink / "_transactions").glob("commits/*")]
    return checkpoint, [*found, checkpoint.files / "pending" / "2"], read


def test_every_flipped_bit_and_every_cut_is_found(job: TransactionalJob) -> None:
    _, found, read = records(job)
    assert len(found) == 3
    for record in found:
        sound = record.read_bytes()
        damaged = [sound[:at] for at in range(len(sound))]
        damaged += [
            sound[:at] + bytes([sound[at] ^ 1 << bit]) + sound[at + 1 :] for at in range(len(sound)) for bit in (0, 5)
        ]
        for data in damaged:
            record.write_bytes(data)
            with pytest.raises(SinkMismatch, match="is not what it must be"):
                read()
        record.write_bytes(sound)
    read()


@pytest.mark.exhaustive
def test_every_flipped_bit_is_found(job: TransactionalJob) -> None:
    _, found, read = records(job)
    for record in found:
        sound = record.read_bytes()
        for at in range(len(sound)):
            for bit in range(8):
                record.write_bytes(sound[:at] + bytes([sound[at] ^ 1 << bit]) + sound[at + 1 :])
                with pytest.raises(SinkMismatch, match="is not what it must be"):
                    read()
        record.write_bytes(sound)


def test_a_data_file_is_one_of_any_partition() -> None:
    made = [DataFile(path, 3, 0, "000001-ab") for path in ("a.parquet", "day=2026-01-01/k=_x/a", "name=\u00e4 b/a%20b")]
    assert decode_files(encode_files(made), "") == made
    with pytest.raises(CheckpointError):
        decode_files(encode_files([made[0]._replace(path="k=1/_x")]), "")
