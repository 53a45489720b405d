"""What would lose rows, or cannot be restored, is found before the sink or the live location is touched."""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

import dagster_ckpt.cli.spark_files  # noqa: F401 - commands are loaded when they are called
from dagster_ckpt.checkpoint.control.heartbeat import Heartbeat, HeartbeatFile
from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata, FileEntry
from dagster_ckpt.checkpoint.processes import ProcessIdentity
from dagster_ckpt.checkpoint.taking.shared_files import inline_entry
from dagster_ckpt.cli import main
from dagster_ckpt.clock import SystemClock
from dagster_ckpt.config.checkpoint_config import CheckpointConfig, CheckpointingMode, JobStatus
from dagster_ckpt.errors import (
    CheckpointError,
    CorruptCheckpoint,
    JobAlreadyRunning,
    QueryMismatch,
    RestoreWithLoss,
    SinkMismatch,
)
from dagster_ckpt.spark.events import Replaying, Started
from dagster_ckpt.spark.sinks.sink import sink_to
from dagster_ckpt.spark.sinks.transactional_file_sink import TransactionalFileSink
from dagster_ckpt.testing import Fail, FaultInjectingFileSystem, Operation
from tests.jobs.harness import NEVER, NEW_PER_FILE, ROWS_PER_FILE, Bench, Launch, Row, deduplicated, eventually
from tests.jobs.savepoints import Take, started

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

pytestmark = pytest.mark.quick

_AT_LEAST_ONCE = NEVER.model_copy(update={"mode": CheckpointingMode.AT_LEAST_ONCE})


def preflight(bench: Bench, *arguments: str) -> Result:
    return CliRunner(catch_exceptions=False).invoke(
        main, ["preflight", bench.name, *arguments, "--path", str(bench.storage)]
    )


def only_in(file: int, bench: Bench) -> Counter[Row]:
    """The rows that no other file has."""
    ids = set(range(file * NEW_PER_FILE, file * NEW_PER_FILE + ROWS_PER_FILE))
    for other in set(range(bench.landed)) - {file}:
        ids -= set(range(other * NEW_PER_FILE, other * NEW_PER_FILE + ROWS_PER_FILE))
    return Counter((key, key * 10) for key in ids)


# --- input that is gone ----------------------------------------------------------------------------------------------


def test_a_rollback_whose_input_is_gone(ticked: Bench) -> None:
    """Refused in both modes; with consent it goes on, says so from then on, and loses just these rows."""
    gone = ticked.source / "0003.json"
    gone.unlink()
    for config in (NEVER, _AT_LEAST_ONCE):
        refusal = ticked.refused(RestoreWithLoss, ticked.job(config=config), restore_from="chk-1", replay_to=5)
        assert f"{gone} (batch 3)" in refusal.message
        assert "lose rows" in refusal.message
        assert "allow_loss: true" in refusal.hint
    assert str(gone) in ticked.refused(RestoreWithLoss, restore_from="chk-1").message  # with new boundaries, too
    told = preflight(ticked, "chk-1")
    assert told.exit_code == 3
    assert f"{gone} (batch 3)" in told.stdout
    assert preflight(ticked).exit_code == 0  # the newest has been past it

    launch = ticked.tick(1, restore_from="chk-1", replay_to=5, allow_loss=True)
    assert not launch.of(Replaying)  # batch 2 as it was; 3 and those after it were planned anew
    assert ticked.seen_by_spark() == ticked.in_raw_directory() == ticked.expected() - only_in(3, ticked)
    (note,) = accepted(launch.completed[-1])
    assert f"{gone} (batch 3)" in note
    assert f"by run {launch.run_id}" in note
    (again,) = ticked.tick(1).completed
    assert accepted(again) == [note]
    described = CliRunner().invoke(main, ["describe", ticked.name, "--json", "--path", str(ticked.storage)])
    assert json.loads(described.stdout)["accepted_loss"] == [note]
    assert accepted(ticked.checkpoints()[0]) == []


# --- output that is gone ---------------------------------------------------------------------------------------------


def transactional(bench: Bench, session: SparkSession) -> DataStreamWriter:
    rows = bench.read(session).dropDuplicates(["id"]).select("id", "v")
    return sink_to(rows, TransactionalFileSink(bench.sink)).trigger(availableNow=True)


def rows_in(file: Path) -> Counter[Row]:
    return Counter((row["id"], row["v"]) for row in pq.read_table(file).to_pylist())


@pytest.mark.parametrize("query", [deduplicated, transactional])
def test_output_that_retention_has_deleted(bench: Bench, query: Any) -> None:
    """Somebody deletes old files from the output directory. With consent the job goes on, and is not asked again."""
    bench.query = query
    for _ in range(3):
        bench.tick(1)
    visible = [file for file in bench.sink.rglob("part-*.parquet") if "_transactions" not in file.parts]
    oldest, older, *_ = sorted((file for file in visible if rows_in(file)), key=lambda file: min(rows_in(file)))
    lost = rows_in(oldest)
    oldest.unlink()
    for config in (NEVER, _AT_LEAST_ONCE):
        refusal = bench.refused(RestoreWithLoss, bench.job(config=config))
        assert "1 file with " in refusal.message
        assert str(oldest) in refusal.message
        assert "launch with allow_loss: true" in refusal.hint
    told = preflight(bench)
    assert told.exit_code == 3
    assert str(oldest) in told.stdout

    launch = bench.tick(1, allow_loss=True)
    (note,) = accepted(launch.completed[-1])
    assert str(oldest) in note
    assert f"by run {launch.run_id}" in note
    assert accepted(bench.tick(1).completed[-1]) == [note], "it has been accepted"
    assert bench.in_raw_directory() == bench.expected() - lost
    bench.tick(1, restore_from=launch.completed[-1].reference)
    assert bench.in_raw_directory() == bench.expected() - lost, "what was written after the checkpoint comes anew"

    lost += rows_in(older)
    older.unlink()
    assert "2 files with " in bench.refused(RestoreWithLoss).message
    (first, second) = accepted(bench.tick(1, allow_loss=True).completed[-1])
    assert first == note
    assert str(older) in second
    assert bench.in_raw_directory() == bench.expected() - lost


def test_output_that_others_may_delete(bench: Bench) -> None:
    def query(bench: Bench, session: SparkSession, *, others_delete: bool = True) -> DataStreamWriter:
        rows = bench.read(session).dropDuplicates(["id"]).select("id", "v")
        return sink_to(rows, TransactionalFileSink(bench.sink, others_delete=others_delete)).trigger(availableNow=True)

    bench.query = query
    launch = bench.tick(1)
    bench.tick(1)
    visible = [file for file in bench.sink.rglob("part-*.parquet") if "_transactions" not in file.parts]
    oldest = min((file for file in visible if rows_in(file)), key=lambda file: min(rows_in(file)))
    lost = rows_in(oldest)
    oldest.unlink()
    assert preflight(bench).exit_code == 0, "a position tells whoever does not have the query"
    assert accepted(bench.tick(1).completed[-1]) == []
    _, choice = bench.catalog.choice() or (0, None)
    assert choice is not None
    assert choice.others_delete, "or a salvage would not know it"
    bench.query = partial(query, others_delete=False)
    assert str(oldest) in bench.refused(RestoreWithLoss).message, "the query says it no more"
    bench.query = query
    bench.tick(1, restore_from=launch.completed[-1].reference)
    assert bench.in_raw_directory() == bench.expected() - lost
    changed = next(file for file in visible if file != oldest and file.exists())
    changed.write_bytes(b"")
    assert str(changed) in bench.refused(SinkMismatch).message, "it is there, and is not what was written"


def test_input_that_goes_before_the_first_checkpoint(bench: Bench) -> None:
    """The job would begin again from nothing, take its rows out of the sink, and not find the input of some of them."""
    bench.run_and_cancel(2)
    assert not bench.checkpoints()
    shutil.rmtree(bench.working)  # with its host, so that nothing can be salvaged
    gone = bench.source / "0000.json"
    gone.unlink()
    assert f"{gone} (batch 0)" in bench.refused(RestoreWithLoss).message
    launch = bench.tick(1, allow_loss=True)
    assert launch.started.restored is None
    assert bench.seen_by_spark() == bench.in_raw_directory() == bench.expected() - only_in(0, bench)
    (note,) = accepted(launch.completed[-1])
    assert f"{gone} (batch 0)" in note


def is_captured(launch: Launch, batch: int) -> bool:
    return bool(launch.completed) and launch.completed[-1].batch == batch


@pytest.mark.exhaustive
@pytest.mark.slow
def test_input_that_is_gone_after_a_savepoint_older_than_every_checkpoint(bench: Bench, take: Take) -> None:
    """Nobody keeps the plans of its next batches any more; the sink would give up rows that nothing brings back."""
    few = CheckpointConfig(interval="50 ms", num_retained=1)
    bench.tick(1, bench.job(config=few))
    savepoint = take(bench).pointer
    launch = started(bench, 1, few)
    archive = bench.catalog.records.plans(bench.checkpoints()[-1].job_id)
    for _ in range(20):
        bench.land(1)
        bench.await_in_sink(launch)
        last = bench.await_committed(launch)
        eventually("its last batch is captured", partial(is_captured, launch, last), unless=launch.check)
        if last > 2 and not {1, 2} & set(archive.batches()):
            break
    assert not {1, 2} & set(archive.batches()), "each checkpoint that is retained covers them"
    launch.run.cancel()
    launch.result()
    bench.until_done = True
    assert preflight(bench, savepoint).exit_code == 0
    gone = bench.source / "0002.json"  # the savepoint may have the plan of batch 1, which was in flight
    gone.rename(bench.root / "archived.json")
    told = preflight(bench, savepoint)
    assert told.exit_code == 3
    assert str(gone) in told.stdout
    refusal = bench.refused(RestoreWithLoss, restore_from=savepoint)
    assert "1 file that batch 1 and later ones have read is gone" in refusal.message
    (bench.root / "archived.json").rename(gone)
    bench.tick(restore_from=savepoint)
    bench.assert_exact()


def accepted(metadata: CheckpointMetadata) -> list[str]:
    notes = metadata.facts.accepted_loss
    assert isinstance(notes, list)
    return [str(note) for note in notes]


@pytest.mark.slow
def test_a_batch_in_flight_whose_input_is_gone(bench: Bench) -> None:
    """Consent outlives a crash before the next checkpoint: what was accepted need not be accepted again."""
    bench.tick(1)
    bench.run_and_cancel(2)
    for file in bench.live().glob("commits/*2*"):  # as after a kill in batch 2
        file.unlink()
    gone = bench.source / "0002.json"
    gone.unlink()
    with pytest.raises(RestoreWithLoss, match=r"0002\.json \(batch 2\)"):
        bench.launch().result()  # it salvages batch 1, which is no loss
    bench.refused(RestoreWithLoss)

    bench.until_done = False
    launch = bench.launch(allow_loss=True)
    eventually("the query starts", lambda: bool(launch.of(Started)), unless=launch.check)
    bench.land(1)
    wanted = bench.expected() - only_in(2, bench)
    eventually("the next file is read", lambda: bench.in_sink_log() == wanted, unless=launch.check)
    launch.run.cancel()
    assert launch.result().status is JobStatus.CANCELED
    assert not launch.completed
    shutil.rmtree(bench.live().parent)
    bench.until_done = True
    on = bench.tick(1)
    assert bench.seen_by_spark() == bench.in_raw_directory() == bench.expected() - only_in(2, bench)
    (note,) = accepted(on.completed[-1])
    assert f"by run {launch.run_id}" in str(note)


def test_a_storage_that_fails_after_every_file_was_verified_is_no_verdict(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The small files are unpacked after that, and tell of the log, the sink and the input."""
    bench.tick(2, bench.job(inline_threshold=0))
    asked: list[str] = []

    def plan(operation: Operation) -> Fail | None:
        asked.append(operation.name)
        return Fail() if operation.name == "fetch" else None

    storage = FaultInjectingFileSystem(bench.filesystem, plan)
    monkeypatch.setattr(sys.modules["dagster_ckpt.cli.spark_files"], "storage_at", lambda _: storage)
    told = preflight(bench)
    assert (told.exit_code, told.stdout) == (1, "")
    assert "checksum" in asked[: asked.index("fetch")]


# --- checkpoints that cannot be restored -----------------------------------------------------------------------------


def rewritten(bench: Bench, change: Callable[[CheckpointMetadata], CheckpointMetadata]) -> None:
    """Make the newest checkpoint another, sound one."""
    newest = bench.checkpoints()[-1]
    (Path(bench.catalog.pointer(newest)) / "_metadata").write_bytes(change(newest).encode())


def test_all_that_is_wrong_is_told_at_once(ticked: Bench) -> None:
    def elsewhere(bench: Bench, session: SparkSession) -> DataStreamWriter:
        return deduplicated(bench, session).option("path", str(bench.root / "elsewhere"))

    job = ticked.job(query=elsewhere)
    assert "Also found" not in ticked.refused(RestoreWithLoss, job).message
    refusal = ticked.refused(QueryMismatch, replace(job, partitions=3))
    assert "chk-3 has 2 partitions, and the job is to have 3" in refusal.message
    assert "another sink: WITH_LOSS" in refusal.message
    assert str(ticked.root / "elsewhere") in refusal.message


def test_a_run_that_takes_the_job_over_while_this_one_prepares(ticked: Bench) -> None:
    def slowly(bench: Bench, session: SparkSession) -> DataStreamWriter:
        alive = Heartbeat(
            9, "the-other-run", (ProcessIdentity.current(),), 1, SystemClock().time(), uptime=SystemClock().monotonic()
        )
        HeartbeatFile(bench.filesystem, bench.name).write(alive)
        return deduplicated(bench, session)

    refusal = ticked.refused(JobAlreadyRunning, ticked.job(query=slowly))
    assert "Run the-other-run drives job 'tiny' now" in refusal.message


@pytest.mark.slow
def test_a_log_with_a_gap_and_a_newer_spark(ticked: Bench) -> None:
    """Sound by its checksums; Spark would start from it, and skip batches."""

    def spoiled(metadata: CheckpointMetadata) -> CheckpointMetadata:
        (five,) = (file for file in metadata.files if file.path == "checkpoint/offsets/5")
        assert five.inline is not None
        ahead = inline_entry("checkpoint/offsets/9", five.inline)
        return replace(
            metadata, files=(*metadata.files, ahead), facts=metadata.facts.model_copy(update={"spark_version": "9.1.0"})
        )

    rewritten(ticked, spoiled)
    refusal = ticked.refused(CorruptCheckpoint)
    assert "skip batches 6 to 8" in refusal.message
    assert "Spark version: NOT_RESTORABLE, The checkpoint is of Spark 9.1.0" in refusal.message
    told = preflight(ticked)
    assert told.exit_code == 4
    assert "skip batches 6 to 8" in told.stdout
    assert "The checkpoint is of Spark 9.1.0" in told.stdout


def _tear(data: bytes, start: int, size: int) -> bytes:
    return data[: start + size // 2]


def _flip(data: bytes, start: int, size: int) -> bytes:
    place = start + size // 2
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def _empty(data: bytes, start: int, size: int) -> bytes:
    return b""


def _remove(data: bytes, start: int, size: int) -> None:
    return None


_DAMAGES = [_tear, _flip, _empty, _remove]


def stored(bench: Bench, metadata: CheckpointMetadata) -> list[tuple[Path, FileEntry | None]]:
    """Every file of a checkpoint and where it is stored; one without an entry is ``_metadata`` itself."""
    home = Path(bench.catalog.pointer(metadata))
    found: list[tuple[Path, FileEntry | None]] = [(home / "_metadata", None)]
    for entry in metadata.files:
        path = home / "_metadata" if entry.reference is None else home / entry.reference
        found.append((path.resolve(), entry))
    return found


def damage(path: Path, entry: FileEntry | None, how: Callable[[bytes, int, int], bytes | None]) -> bytes:
    """Spoil one file of a checkpoint where it is stored; returns what was there."""
    whole = path.read_bytes()
    start, size = 0, len(whole)
    if entry is not None and entry.reference is not None:
        start, size = entry.offset or 0, entry.size
    elif entry is not None and entry.inline:
        start, size = max(whole.find(json.dumps(entry.path).encode()), 0), len(entry.path)
    spoiled = how(whole, start, size)
    if spoiled is None:
        path.unlink()
    else:
        path.write_bytes(spoiled)
    return whole


@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.exhaustive)], ids=["packed", "whole"])
def test_damage_anywhere_in_a_checkpoint_is_found_by_the_command(ticked: Bench, *, whole: bool) -> None:
    """Every file of a real checkpoint in turn, each damaged in every way, wherever it is stored."""
    ticked.tick(1, ticked.job(inline_threshold=1 if whole else 20 * 1024))
    newest = ticked.checkpoints()[-1]
    assert preflight(ticked).exit_code == 0
    places = stored(ticked, newest)
    assert len({path for path, _ in places}) > (10 if whole else 2)
    for path, entry in places:
        for how in _DAMAGES:
            if entry is not None and not entry.size:
                continue
            before = damage(path, entry, how)
            told = preflight(ticked, newest.reference, "--json")
            path.write_bytes(before)
            assert told.exit_code == 4, (how, path, entry)
            (found,) = (item for item in json.loads(told.stdout)["findings"] if item["verdict"] == "NOT_RESTORABLE")
            assert (newest.reference if path.name == "_metadata" else path.name) in found["reason"]
            if entry is not None and path.name != "_metadata":
                assert entry.path in found["reason"]
    assert preflight(ticked).exit_code == 0


@pytest.mark.slow
def test_every_broken_file_is_named_and_nothing_was_touched(ticked: Bench) -> None:
    """As a run finds them: all at once, each damaged in another way."""
    ticked.tick(1, ticked.job(inline_threshold=1))
    newest = ticked.checkpoints()[-1]
    broken = {path: entry for path, entry in stored(ticked, newest) if path.name != "_metadata"}
    for number, (path, entry) in enumerate(broken.items()):
        damage(path, entry, _DAMAGES[number % len(_DAMAGES)])
    before = ticked.photograph()
    with pytest.raises(CorruptCheckpoint, match=rf"of its {len(newest.files)} files are broken") as refused:
        ticked.launch().result()
    before.assert_untouched(ticked)
    for path, entry in broken.items():
        assert entry is not None
        assert f"{path} ({entry.path})" in refused.value.message


@pytest.mark.slow
@pytest.mark.parametrize(
    "how", [_flip, *(pytest.param(how, marks=pytest.mark.exhaustive) for how in _DAMAGES if how is not _flip)]
)
def test_damage_anywhere_in_a_checkpoint_is_found_by_a_run(
    ticked: Bench, how: Callable[[bytes, int, int], bytes | None]
) -> None:
    """Before the sink or a live location is touched."""
    ticked.tick(1, ticked.job(inline_threshold=1))
    newest = ticked.checkpoints()[-1]
    for path, entry in stored(ticked, newest):
        before = damage(path, entry, how)
        photograph = ticked.photograph()
        launch = ticked.launch(restore_from=newest.reference)
        with pytest.raises(CheckpointError):
            launch.result()
        photograph.assert_untouched(ticked)
        path.write_bytes(before)
    ticked.tick(1)
    ticked.assert_exact()


# --- what the command says -------------------------------------------------------------------------------------------


def test_the_command_tells_each_check_and_changes_nothing(ticked: Bench) -> None:
    before = ticked.photograph()
    told = preflight(ticked)
    newest = ticked.checkpoints()[-1]
    assert told.exit_code == 0
    lines = told.stdout.splitlines()
    assert lines[-1] == f"{newest.reference}: RESTORABLE"
    for check in ("files", "Spark version", "write-ahead log", "sink position", "source files", "other runs"):
        assert any(line.startswith(check) and "RESTORABLE" in line for line in lines), check
    document = json.loads(preflight(ticked, "chk-1", "--json").stdout)
    assert document["verdict"] == "RESTORABLE"
    again = next(item for item in document["findings"] if item["check"] == "source files")
    assert "batches 2 to 5 are read again from 4 files, all there" in again["reason"]
    lost = min(ticked.sink.glob("part-*.parquet"))
    lost.rename(ticked.root / "lost")
    told = preflight(ticked)
    assert told.exit_code == 3
    assert f"that a batch had written to {ticked.sink} is gone: {lost}" in told.stdout
    (ticked.root / "lost").rename(lost)
    assert ticked.photograph() == before
    alive = Heartbeat(
        9, "the-other-run", (ProcessIdentity.current(),), 1, SystemClock().time(), uptime=SystemClock().monotonic()
    )
    HeartbeatFile(ticked.filesystem, ticked.name).write(alive)
    told = preflight(ticked)
    assert told.exit_code == 4
    assert "Run the-other-run drives job 'tiny' now" in told.stdout
    assert preflight(ticked, "chk-99").exit_code == 4


def _alive() -> Heartbeat:
    """Of a run of this very process."""
    clock = SystemClock()
    me = ProcessIdentity.current()
    return Heartbeat(9, "the-other-run", (me,), 1, clock.time(), uptime=clock.monotonic())
