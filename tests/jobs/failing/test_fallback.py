"""A newest checkpoint that is broken: quarantined, passed over where that was asked for, and the cost is said."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dagster_ckpt.checkpoint.catalog.file_reader import verify_checkpoint
from dagster_ckpt.checkpoint.catalog.newest import find_newest
from dagster_ckpt.checkpoint.control.quarantine import FellBack, Quarantined
from dagster_ckpt.errors import CorruptCheckpoint
from dagster_ckpt.spark.events import (
    CheckpointQuarantined,
    CheckpointReplaced,
    CheckpointsUnreadable,
    Replaying,
    Started,
    describe,
)
from tests.jobs.harness import NEVER, OFTEN, Bench, Launch, eventually

if TYPE_CHECKING:
    from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata

OPTED_IN = NEVER.model_copy(update={"fallback_to_older": True, "num_retained": 2})


def own_files(bench: Bench, metadata: CheckpointMetadata) -> list[Path]:
    """The stored files that no other checkpoint needs."""
    others = [item for item in bench.checkpoints() if item != metadata]
    names = metadata.references - frozenset().union(*(item.references for item in others))
    return [bench.storage / "tiny" / metadata.job_id / name.removeprefix("../") for name in sorted(names)]


def manifest(bench: Bench, metadata: CheckpointMetadata) -> Path:
    return Path(bench.catalog.pointer(metadata)) / "_metadata"


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def said(launch: Launch) -> str:
    return "\n".join(text for event in launch.events for _, text in describe(event))


def test_the_next_older_one_is_used_and_all_after_it_runs_again_as_it_was(ticked: Bench) -> None:
    first, second, third = ticked.checkpoints()
    (own,) = own_files(ticked, third)
    own.rename(own.with_name("elsewhere"))
    ticked.files_per_trigger = 100
    launch = ticked.tick(2, ticked.job(config=OPTED_IN))

    assert launch.started.restored == second
    assert launch.started.fell_back == FellBack((third.reference,), "chk-2", 3, 5, files=2, rows=None)
    assert launch.of(Replaying)[0].last == 5
    assert launch.completed[-1].batch == 6, "4 and 5 as they were, then the two new files together"
    ticked.assert_exact()

    (quarantined,) = launch.of(CheckpointQuarantined)
    record = quarantined.record
    assert ticked.catalog.records.quarantine.records() == {third.reference: record}
    assert (record.run_id, record.epoch, record.checkpoint) == (launch.run_id, 4, third.reference)
    assert str(own) in record.reason
    assert own.name in said(launch)
    assert "batches 4 to 5 are run again (2 batches, 2 files)" in said(launch)
    chosen = ticked.catalog.choice()
    assert chosen is not None
    assert chosen[1].fell_back == str(launch.started.fell_back)

    ticked.tick(1, ticked.job(config=OPTED_IN))
    assert manifest(ticked, third).exists(), "retention keeps two, and this one beside them"
    assert not manifest(ticked, first).exists()
    assert [item.name for item in ticked.tick(1).started.retained] == ["chk-4", "chk-5"]
    ticked.assert_exact()


def test_a_chain_past_a_manifest_that_cannot_be_read(ticked: Bench) -> None:
    first, second, third = ticked.checkpoints()
    for name in second.references - first.references:
        flip(ticked.storage / "tiny" / second.job_id / name.removeprefix("../"))
    flip(manifest(ticked, third))
    launch = ticked.tick(1, ticked.job(config=OPTED_IN))
    assert launch.started.restored == first
    assert launch.started.fell_back is not None
    assert launch.started.fell_back.passed_over == (third.reference, second.reference)
    assert (launch.started.fell_back.batch, launch.started.fell_back.last) == (1, 5)
    assert [event.record.checkpoint for event in launch.of(CheckpointQuarantined)] == [
        third.reference,
        second.reference,
    ]
    (unreadable,) = launch.of(CheckpointsUnreadable)
    assert [error.checkpoint for error in unreadable.errors] == [third.reference]
    assert said(launch).count(f"dagster-ckpt dispose {manifest(ticked, third).parent}`") == 1
    ticked.assert_exact()
    assert ticked.tick().started.fell_back is None, "it is past, and said once"


def test_none_is_left(ticked: Bench) -> None:
    """The run fails: it neither begins from nothing, nor goes back to one whose files have been put back since."""
    first, second, third = ticked.checkpoints()
    backup = ticked.root / "backup"
    shutil.copytree(ticked.storage / "tiny" / first.job_id, backup)
    for file in (ticked.storage / "tiny" / first.job_id / "shared").iterdir():
        file.unlink()
    opted_in = ticked.job(config=OPTED_IN)
    refusal = ticked.refused(CorruptCheckpoint, opted_in)
    assert ticked.catalog.records.quarantine.names() == {item.reference for item in (first, second, third)}
    assert f"restore_from: {third.reference}" in refusal.hint
    assert "restore_from: none" in refusal.hint
    shutil.copytree(backup, ticked.storage / "tiny" / first.job_id, dirs_exist_ok=True)
    ticked.refused(CorruptCheckpoint, opted_in)

    assert ticked.tick(1, restore_from="chk-3").started.restored == third
    assert ticked.catalog.records.quarantine.names() == {first.reference, second.reference}
    ticked.assert_exact()


def test_without_the_option_what_was_quarantined_is_not_passed_over(ticked: Bench) -> None:
    """Somebody had opted in, and the run died before its choice was on record."""
    _, second, third = ticked.checkpoints()
    ticked.catalog.records.quarantine.add(Quarantined(third.reference, "A file is gone.", 4, "run", "host", "then"))
    refusal = ticked.refused(CorruptCheckpoint)
    assert "A file is gone." in refusal.message
    for way in (f"restore_from: {third.reference}", f"restore_from: {second.reference}", "fallback_to_older: true"):
        assert way in refusal.hint


def checkpointed_and_canceled(bench: Bench) -> CheckpointMetadata:
    """A run whose last batch is in a checkpoint, and in the live location it has left."""
    bench.until_done = False
    launch = bench.launch(bench.job(config=OFTEN))
    eventually("the query starts", lambda: bool(launch.of(Started)), unless=launch.check)
    bench.land(2)
    bench.await_in_sink(launch)
    last = bench.await_committed(launch)
    eventually(
        "it is checkpointed", lambda: bool(launch.completed) and launch.completed[-1].batch == last, unless=launch.check
    )
    launch.run.cancel()
    launch.result()
    bench.until_done = True
    newest = find_newest(bench.catalog).metadata
    assert newest is not None
    assert newest.batch == last
    return newest


@pytest.mark.parametrize("what", ["the manifest", "a file"])
def test_with_the_live_location_there_nothing_older_is_needed(
    ticked: Bench, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Not even the option: no work is lost."""
    newest = checkpointed_and_canceled(ticked)
    shared = ticked.storage / "tiny" / newest.job_id / "shared"
    if what == "a file":
        for file in shared.iterdir():
            flip(file)
    else:
        flip(manifest(ticked, newest))
    with caplog.at_level(logging.INFO, "dagster_ckpt"):
        launch = ticked.tick(1)
    restored = launch.started.restored
    assert restored is not None
    assert (restored.kind, restored.batch) == ("salvage", newest.batch)
    assert "Salvaged batch" in caplog.text
    (replaced,) = launch.of(CheckpointReplaced)
    assert replaced.checkpoint == newest.reference
    assert f"{newest.reference} is broken" in said(launch)
    assert "whether the state fits the query, Spark says with the first batch" in said(launch)
    assert launch.started.fell_back is None
    assert not launch.started.sink, "the sink was where the salvaged batch is"
    assert not ticked.catalog.records.quarantine.names()
    for completed in (restored, *launch.completed):
        verify_checkpoint(ticked.catalog, completed)  # none of them leans on what is broken
    ticked.assert_exact()
