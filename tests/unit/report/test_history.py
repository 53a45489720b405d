"""What a report finds in a storage that runs have left behind."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.control.failures import Failure
from dagster_ckpt.checkpoint.control.heartbeat import FailedCheckpoints
from dagster_ckpt.checkpoint.control.quarantine import Quarantined
from dagster_ckpt.checkpoint.format.facts import Facts, Operator, Source, Topic
from dagster_ckpt.checkpoint.start_traces import MONOTONIC, StartTrace, Step
from dagster_ckpt.clock import SystemClock, iso
from dagster_ckpt.errors import StorageError
from dagster_ckpt.report.history import JobHistory, Trouble, read_history
from dagster_ckpt.testing import Fail, FaultInjectingFileSystem
from tests.helpers.orchestration.stored_job import StoredJob, run_id


@pytest.fixture
def job(tmp_path: Path) -> StoredJob:
    return StoredJob(tmp_path / "storage", "orders")


def _read(job: StoredJob, *known: Trouble) -> JobHistory:
    return read_history(job.catalog, SystemClock(), known)


def _with_facts(job: StoredJob, monkeypatch: pytest.MonkeyPatch, facts: Facts) -> None:
    made = job._snapshot
    monkeypatch.setattr(job, "_snapshot", lambda batch: replace(made(batch), facts=facts))


def test_a_job_that_never_took_a_checkpoint_has_a_history(job: StoredJob) -> None:
    claim = job.claim(run_id(), ago=60)
    found = _read(job)
    assert (found.job_name, found.checkpoints, found.newest, found.troubles) == ("orders", [], "", [])
    (start,) = found.starts
    assert (start.epoch, start.run_id, start.is_restart, start.seconds, start.end) == (
        claim.epoch,
        claim.run_id,
        False,
        None,
        "",
    )
    assert start.at is not None
    assert abs(time.time() - 60 - start.at) < 30


def test_checkpoints_of_all_lineages_are_there_in_order_of_time(job: StoredJob) -> None:
    first = job.choose(job.claim(run_id()))
    taken = [job.checkpoint(first, 3), job.checkpoint(first, 5)]
    second = job.choose(job.claim(run_id()))  # from nothing, so another lineage
    taken.append(job.checkpoint(second, 1))
    found = _read(job)
    assert [(row.lineage, row.name, row.epoch, row.batch) for row in found.checkpoints] == [
        (item.job_id, item.name, item.epoch, item.batch) for item in taken
    ]
    assert len({row.lineage for row in found.checkpoints}) == 2
    assert found.newest == taken[-1].reference
    row, metadata = found.checkpoints[0], taken[0]
    assert (row.bytes, row.new_bytes, row.seconds) == (metadata.size, metadata.new_bytes, metadata.duration_ms / 1000)
    assert row.bytes > 0
    assert row.state_rows == {"all operators": 5.0}


def test_rows_of_each_operator_and_the_lag_of_each_source_are_told(
    job: StoredJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    operators = [Operator(id=str(n), name=name, partitions=2, stores=[]) for n, name in enumerate(("agg", "join"))]
    topics = {"orders": Topic(id="t", latest={"0": 30, "1": 9})}
    sources = [
        Source(id="0", offset={"orders": {"0": 10, "1": 4}}, topics=topics),
        Source(id="1", offset={"logOffset": 3}),
    ]
    progress: dict[str, int | float | str | None] = {"operator_0_keys": 7, "operator_1_keys": 11, "state_rows": 18}
    _with_facts(job, monkeypatch, Facts(operators=operators, sources=sources, progress=progress))
    store = job.choose(job.claim(run_id()))
    job.checkpoint(store, 1)
    _with_facts(job, monkeypatch, Facts(operators=operators, progress={**progress, "operator_1_keys": None}))
    job.checkpoint(store, 2)
    one, other = _read(job).checkpoints
    assert one.state_rows == {"agg (0)": 7.0, "join (1)": 11.0}
    assert one.lag == {"orders (0)": 25.0}
    # The keys of one operator are not known, so their sum is told.
    assert (other.state_rows, other.lag) == ({"all operators": 18.0}, {})


def test_starts_tell_what_they_began_with_how_long_they_took_and_how_they_ended(job: StoredJob) -> None:
    first = job.claim(run_id())
    metadata = job.checkpoint(job.choose(first), 3)
    job.catalog.records.starts.add(
        StartTrace(first.epoch, first.run_id, iso(time.time()), True, (Step("session", 0.0, 4.5, MONOTONIC),))
    )
    job.fail(first, 1)
    job.end(first, "FAILING", "the query failed")
    second = job.claim(run_id(), series=first.series)
    job.choose(second, metadata)
    found = _read(job)
    one, other = found.starts
    assert (one.restored, one.seconds, one.committed, one.end, one.is_restart) == (
        "nothing",
        4.5,
        True,
        "FAILING: the query failed",
        False,
    )
    assert (other.restored, other.seconds, other.end, other.is_restart) == (metadata.reference, None, "", True)
    (trouble,) = found.troubles
    assert (trouble.what, trouble.where, trouble.reason) == ("failure", first.run_id, "failure 1")


def test_what_went_wrong_is_told_with_its_reason_and_the_newest_last(job: StoredJob) -> None:
    claim = job.claim(run_id())
    store = job.choose(claim)
    broken, metadata = job.checkpoint(store, 3), job.checkpoint(store, 4)
    manifest = job.root / "orders" / broken.reference / "_metadata"
    manifest.write_bytes(manifest.read_bytes()[:-20])
    now = time.time()
    quarantined = Quarantined(metadata.reference, "a file is gone", 1, claim.run_id, "here", iso(now - 30))
    job.catalog.records.quarantine.add(quarantined)
    job.beat(claim, alive=True)
    heartbeat = job.catalog.records.heartbeat
    beat = heartbeat.read()
    assert beat is not None
    heartbeat.write(replace(beat, failed_checkpoints=FailedCheckpoints(3, "disk\nfull", now - 10, 7)))
    found = _read(job, Trouble(now - 20, "failed checkpoint", claim.run_id, "of an hour ago"))
    *earlier, unreadable, newest = found.troubles
    assert (newest.at, newest.what) == (None, "newest checkpoint")
    assert (unreadable.at, unreadable.what, unreadable.where) == (None, "unreadable checkpoint", broken.reference)
    assert [(item.what, item.reason) for item in earlier] == [
        ("quarantined checkpoint", "a file is gone"),
        ("failed checkpoint", "of an hour ago"),
        ("failed checkpoint", "disk\\nfull (3 times)"),
    ]
    assert [row.name for row in found.checkpoints] == [metadata.name]


def test_what_is_wrong_now_is_told_after_any_number_of_failures(job: StoredJob) -> None:
    claim = job.claim(run_id())
    store = job.choose(claim)
    job.checkpoint(store, 3)
    garbage = job.checkpoint(store, 4)
    (job.root / "orders" / garbage.reference / "_metadata").write_bytes(b"garbage")
    now = time.time()
    for number in range(1, 221):
        # Of every second failure the time is not known; such a failure is over all the same.
        failure = Failure(claim.run_id, number, now + number if number % 2 else 0.0, None, f"failure {number}")
        job.failures.record(claim.series, failure)
    troubles = _read(job).troubles
    assert len(troubles) == 200
    assert [trouble.what for trouble in troubles[-2:]] == ["unreadable checkpoint", "newest checkpoint"]
    assert troubles[-3].reason == "failure 219"


def test_secrets_control_characters_and_endless_texts_do_not_get_into_a_report(job: StoredJob) -> None:
    claim = job.claim(run_id())
    reason = f"\x1b[31mGET https://user:secret-word@host/x failed\n{'x' * 5000}"
    job.failures.record(claim.series, Failure(claim.run_id, 1, time.time(), None, reason))
    (trouble,) = _read(job).troubles
    assert "secret-word" not in trouble.reason
    assert trouble.reason.isprintable()
    assert len(trouble.reason) == 500


def test_a_damaged_record_costs_no_other(job: StoredJob) -> None:
    claims = [job.claim(run_id()) for _ in range(2)]
    metadata = job.checkpoint(job.choose(claims[1]), 3)
    damaged = job.root / job.catalog.records.epochs.claim_path(claims[0].epoch)
    damaged.write_bytes(b"{")
    found = _read(job)
    assert [start.epoch for start in found.starts] == [claims[1].epoch]
    assert found.newest == metadata.reference


@pytest.mark.parametrize("part", ["/epochs", "/starts", "/failures", "/quarantine", "/heartbeat", "chk-1/_metadata"])
def test_a_storage_that_fails_is_an_error_and_no_empty_report(job: StoredJob, part: str) -> None:
    claim = job.claim(run_id())
    job.checkpoint(job.choose(claim), 3)
    job.beat(claim, alive=True)
    job.fail(claim, 1)
    storage = FaultInjectingFileSystem(
        job.catalog.filesystem, lambda operation: Fail() if part in operation.path else None
    )
    with pytest.raises(StorageError):
        read_history(CheckpointCatalog(storage, "orders"), SystemClock())


def test_the_last_starts_are_read_and_no_more(job: StoredJob) -> None:
    last = [job.claim(run_id()).epoch for _ in range(53)]
    assert [start.epoch for start in _read(job).starts] == last[-50:]
