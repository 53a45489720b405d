"""How a job is doing when its storage fails for a moment, or its newest checkpoint is damaged."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_ckpt import FileSystemCheckpointStorage
from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.catalog.newest import find_newest
from dagster_ckpt.checkpoint.control.epochs import Claim
from dagster_ckpt.checkpoint.control.quarantine import Quarantined
from dagster_ckpt.checkpoint.format import CheckpointMetadata
from dagster_ckpt.checkpoint.job_states import JobState, job_state, states_of_jobs
from dagster_ckpt.clock import SystemClock
from dagster_ckpt.errors import CheckpointError, StorageError
from dagster_ckpt.testing import Fail, FaultInjectingFileSystem, Operation
from dagster_ckpt.testing.gcs.server import GcsServer
from tests.helpers.orchestration.stored_job import StoredJob, run_id


@pytest.fixture
def job(tmp_path: Path) -> StoredJob:
    return StoredJob(tmp_path / "storage")


def _damage_newest(job: StoredJob) -> Path:
    newest = job_state(job.catalog, SystemClock()).newest
    assert newest is not None
    metadata = job.root / job.name / newest.reference / "_metadata"
    metadata.write_bytes(metadata.read_bytes()[:-20])
    return metadata


def _running(job: StoredJob) -> Claim:
    claim = job.claim(run_id())
    job.checkpoint(job.choose(claim), 3)
    job.fail(claim, 1)
    job.beat(claim, alive=True)
    return claim


def _dead(job: StoredJob) -> Claim:
    claim = _running(job)
    job.beat(claim, alive=False)
    return claim


def _interrupted(job: StoredJob) -> Claim:
    claim = _running(job)
    job.beat(claim, alive=False, stopped=True, interrupted=True)
    return claim


def _claimed(job: StoredJob) -> Claim:
    return job.claim(run_id())


def _ended(status: str) -> Callable[[StoredJob], Claim]:
    def end(job: StoredJob) -> Claim:
        claim = _interrupted(job)
        job.end(claim, status, f"why it is {status}")
        return claim

    return end


@pytest.mark.parametrize(
    ("begin", "state", "needs_help", "is_stuck"),
    [
        (_running, "RUNNING", False, False),
        (_dead, "DEAD", False, True),
        (_interrupted, "INTERRUPTED", False, True),
        (_ended("FAILING"), "RESTARTING", False, True),
        (_ended("FINISHED"), "FINISHED", False, False),
        (_ended("CANCELED"), "CANCELED", False, False),
        (_ended("FAILED"), "FAILED", True, False),
    ],
)
def test_a_damaged_newest_checkpoint_hides_nothing_else(
    job: StoredJob, begin: Callable[[StoredJob], Claim], state: str, needs_help: bool, is_stuck: bool
) -> None:
    claim = begin(job)
    before = job_state(job.catalog, SystemClock())
    assert (before.state, before.damage, before.is_stuck) == (state, "", False)
    metadata = _damage_newest(job)
    found = job_state(job.catalog, SystemClock())
    assert (found.state, found.reason, found.failures) == (state, before.reason, before.failures)
    assert (found.epoch, found.run_id, found.token) == (claim.epoch, claim.run_id, claim.token)
    assert (found.needs_help, found.is_stuck, found.newest) == (needs_help, is_stuck, None)
    assert found.has_failed is (state == "FAILED")
    assert str(metadata) in found.damage
    assert "checksum" in found.damage


def test_a_damaged_record_makes_a_job_unreadable(job: StoredJob) -> None:
    claim = _ended("FAILED")(job)
    record = job.root / job.name / "control" / "epochs" / f"e-{claim.epoch:010}.end"
    record.write_text("this is no record")
    found = job_state(job.catalog, SystemClock())
    assert (found.state, found.epoch, found.needs_help) == ("UNREADABLE", claim.epoch, True)
    assert str(record) in found.reason


@pytest.mark.parametrize("failing", ["control/epochs", "control/heartbeat", "_metadata"])
def test_a_storage_that_fails_for_a_moment_is_no_damage(job: StoredJob, failing: str) -> None:
    _running(job)
    storage = FaultInjectingFileSystem(job.catalog.filesystem)
    catalog = CheckpointCatalog(storage, job.name)
    storage.plan = lambda operation: Fail() if operation.path.endswith(failing) else None
    with pytest.raises(StorageError):
        job_state(catalog, SystemClock())
    storage.plan = lambda _: None
    assert job_state(catalog, SystemClock()).state == "RUNNING"


def test_a_look_asks_for_nothing_twice_and_for_nothing_that_a_listing_lacks(job: StoredJob) -> None:
    claim = _running(job)
    storage = FaultInjectingFileSystem(job.catalog.filesystem)
    found = job_state(CheckpointCatalog(storage, job.name), SystemClock())
    assert found.state == "RUNNING"
    assert found.newest is not None
    asked = [operation.path.removeprefix(f"{job.name}/") for operation in storage.operations]
    assert sorted(asked) == sorted(
        [
            "control",
            "control/epochs",
            "control/epochs/e-0000000001",
            "control/epochs/e-0000000001.choice",
            f"control/failures/s-{claim.series:010}",
            f"control/failures/s-{claim.series:010}/{claim.run_id}-000001",
            "control/heartbeat",
            found.newest.job_id,
            f"{found.newest.reference}/_metadata",
        ]
    )


def test_a_checkpoint_that_is_replaced_during_a_look_is_no_damage(job: StoredJob) -> None:
    choice = job.choose(job.claim(run_id()))
    job.checkpoint(choice, 3)
    storage = FaultInjectingFileSystem(job.catalog.filesystem)

    def replaces(operation: Operation) -> None:
        manifest = job.root / operation.path
        if manifest.name == "_metadata" and manifest.exists() and "chk-1" in operation.path:
            job.checkpoint(choice, 4)
            shutil.rmtree(manifest.parent)

    storage.plan = replaces
    found = job_state(CheckpointCatalog(storage, job.name), SystemClock())
    assert found.damage == ""
    assert found.newest is not None
    assert found.newest.name == "chk-2"


def test_a_damaged_choice_of_a_living_run_is_told(job: StoredJob) -> None:
    """The run does not need the choice any more, but nobody could resume the job."""
    claim = job.claim(run_id())
    job.beat(claim, alive=True, completed=job.checkpoint(job.choose(claim), 3))
    (choice,) = job.root.rglob("*.choice")
    choice.write_bytes(b"{}")
    found = job_state(job.catalog, SystemClock())
    assert found.state == "RUNNING"
    assert str(choice) in found.damage


def test_a_living_run_that_has_told_its_newest_checkpoint_costs_six_requests_of_a_bucket(job: StoredJob) -> None:
    claim = job.claim(run_id())
    store = job.choose(claim)
    job.checkpoint(store, 3)
    job.beat(claim, alive=True, completed=job.checkpoint(store, 4))
    with GcsServer() as server:
        catalog = _in_bucket(server, job.root).catalog(job.name)
        server.log.clear()
        found = job_state(catalog, SystemClock())
        # The listings of `control` and of the epochs, the claim, the choice, the heartbeat, and one manifest.
        assert len(server.log) == 6, server.log
    assert (found.state, found.token) == ("RUNNING", claim.token)
    assert found.newest is not None
    assert found.newest.name == "chk-2"


class TestManyJobs:
    """What is asked for together for all jobs tells of each job what a look at it alone tells."""

    #: Without the seconds of a look.
    @staticmethod
    def _told(found: JobState | None) -> JobState | None:
        return found and replace(found, due_seconds=None)

    @pytest.mark.parametrize("is_distant", [False, True], ids=["a directory", "a bucket"])
    def test_each_is_told_as_alone(self, tmp_path: Path, *, is_distant: bool) -> None:
        ended = map(_ended, ("FAILING", "FINISHED", "CANCELED", "FAILED"))
        begins = [_running, _dead, _interrupted, *ended, _running, _claimed]
        jobs = {f"job-{number}": begin for number, begin in enumerate(begins)}
        for name, begin in jobs.items():
            begin(StoredJob(tmp_path, name))
        _damage_newest(StoredJob(tmp_path, "job-7"))
        (tmp_path / "nobodys" / "files").mkdir(parents=True)
        storage = FaultInjectingFileSystem(StoredJob(tmp_path, "any").catalog.filesystem)
        storage.is_distant = is_distant
        *found, nobody, missing = states_of_jobs(storage, [*jobs, "nobodys", "missing"], SystemClock())
        alone = [job_state(CheckpointCatalog(storage, name), SystemClock()) for name in jobs]
        assert list(map(self._told, found)) == list(map(self._told, alone))
        assert {item.state for item in alone} == {
            *("RUNNING", "DEAD", "INTERRUPTED", "RESTARTING", "FINISHED", "CANCELED", "FAILED", "STARTING")
        }
        assert (nobody, missing) == (None, None)

    def test_one_that_changes_between_the_requests_is_looked_at_again(self, job: StoredJob) -> None:
        claim = _running(job)
        storage = FaultInjectingFileSystem(job.catalog.filesystem)
        changed: list[Operation] = []

        def ends(operation: Operation) -> None:
            if operation.path.endswith("control/heartbeat") and not changed:
                changed.append(operation)
                job.beat(claim, alive=False, stopped=True)
                job.end(claim, "FINISHED")

        storage.plan = ends
        (found,) = states_of_jobs(storage, [job.name], SystemClock())
        assert changed
        assert found is not None
        assert found.state == "FINISHED"

    @pytest.mark.parametrize("failing", ["control/epochs", "control/heartbeat", "_metadata"])
    def test_a_storage_that_fails_is_no_damage(self, job: StoredJob, failing: str) -> None:
        _running(job)
        storage = FaultInjectingFileSystem(job.catalog.filesystem)
        storage.plan = lambda operation: Fail() if operation.path.endswith(failing) else None
        with pytest.raises(StorageError):
            states_of_jobs(storage, [job.name], SystemClock())

    @pytest.mark.parametrize("failing", ["control", "control/epochs", "control/heartbeat", "_metadata"])
    @pytest.mark.parametrize("is_distant", [False, True], ids=["a directory", "a bucket"])
    def test_one_at_which_the_storage_fails_leaves_the_others_be(
        self, tmp_path: Path, failing: str, *, is_distant: bool
    ) -> None:
        for name in ("one", "two", "three"):
            _running(StoredJob(tmp_path, name))
        storage = FaultInjectingFileSystem(StoredJob(tmp_path, "any").catalog.filesystem)
        storage.is_distant = is_distant
        (tmp_path / "nobodys" / "files").mkdir(parents=True)
        storage.plan = lambda asked: Fail() if asked.path.startswith("two/") and asked.path.endswith(failing) else None
        one, two, three, nobody = states_of_jobs(storage, ["one", "two", "three", "nobodys"], SystemClock())
        alone = [job_state(CheckpointCatalog(storage, name), SystemClock()) for name in ("one", "three")]
        assert list(map(self._told, (one, three))) == list(map(self._told, alone))
        assert nobody is None
        assert two is not None
        assert (two.state, two.needs_help, two.newest) == ("UNREADABLE", True, None)
        assert f"{failing}) failed" in two.reason

    def test_a_storage_that_is_away_is_asked_for_no_job_by_itself(self, tmp_path: Path) -> None:
        names = ["one", "two", "three"]
        for name in names:
            _running(StoredJob(tmp_path, name))
        storage = FaultInjectingFileSystem(StoredJob(tmp_path, "any").catalog.filesystem, lambda _: Fail())
        with pytest.raises(StorageError):
            states_of_jobs(storage, names, SystemClock())
        assert len(storage.operations) <= 2, storage.operations

    def test_those_that_run_cost_six_requests_of_a_bucket_each(self, tmp_path: Path) -> None:
        names = [f"job-{number}" for number in range(5)]
        for name in names:
            job = StoredJob(tmp_path, name)
            claim = job.claim(run_id())
            job.beat(claim, alive=True, completed=job.checkpoint(job.choose(claim), 3))
        with GcsServer() as server:
            bucket = _in_bucket(server, tmp_path)
            server.log.clear()
            found = states_of_jobs(bucket.filesystem(), names, SystemClock())
            assert len(server.log) == 6 * len(names), server.log
        assert [item.state for item in found if item is not None] == ["RUNNING"] * len(names)


def _in_bucket(server: GcsServer, root: Path) -> FileSystemCheckpointStorage:
    """A bucket with the files of a directory."""
    server.create_bucket("checkpoints")
    for file in root.rglob("*"):
        if file.is_file():
            server.put("checkpoints", f"base/{file.relative_to(root)}", file.read_bytes())
    connect = {"endpoint_url": server.url, "token": "anon", "project": "p"}
    return FileSystemCheckpointStorage(checkpoint_path="gs://checkpoints/base", storage_options=connect)


def test_a_run_that_may_have_died_after_a_checkpoint_is_not_taken_at_its_word(job: StoredJob) -> None:
    claim = job.claim(run_id())
    store = job.choose(claim)
    told = job.checkpoint(store, 3)
    job.checkpoint(store, 4)
    job.beat(claim, alive=True, completed=told)
    beat = job.catalog.records.heartbeat.read()
    assert beat is not None
    elsewhere = replace(beat.processes[0], host="elsewhere/1")
    for ago, newest in ((0.0, "chk-1"), (beat.lease.timeout + 1, "chk-2")):
        job.catalog.records.heartbeat.write(replace(beat, processes=(elsewhere,), beat_at=beat.beat_at - ago))
        found = job_state(job.catalog, SystemClock())
        assert found.state == "RUNNING", "nobody who has not watched can tell"
        assert found.newest is not None
        assert found.newest.name == newest


_STEPS = st.sampled_from(["begin", "complete", "complete", "beat", "quarantine", "damage", "lose", "die", "end"])


@settings(deadline=None, max_examples=40)
@given(st.lists(_STEPS, min_size=2, max_size=12))
def test_a_look_finds_the_checkpoint_that_a_search_finds(steps: list[str]) -> None:
    with tempfile.TemporaryDirectory() as home:
        job = StoredJob(Path(home) / "storage")
        claim, store, told = job.claim(run_id()), None, None
        for step in ["begin", *steps]:
            newest = _searched(job)
            if step == "begin" and not isinstance(newest, str):
                claim = job.claim(run_id(), series=claim.series)
                store = job.choose(claim, newest)
                job.beat(claim, alive=True, completed=told)
            elif step == "complete" and store is not None:
                told = job.checkpoint(store, 1)
                job.beat(claim, alive=True, completed=told)
            elif step == "beat":
                job.beat(claim, alive=True, completed=told)
            elif step == "quarantine" and newest is not None and not isinstance(newest, str):
                record = Quarantined(newest.reference, "by the test", claim.epoch, claim.run_id, "h", newest.written_at)
                job.catalog.records.quarantine.add(record)
            elif step == "damage" and newest is not None and not isinstance(newest, str):
                (job.root / job.name / newest.reference / "_metadata").write_bytes(b"x")
            elif step == "lose" and newest is not None and not isinstance(newest, str):
                shutil.rmtree(job.root / job.name / newest.reference)
            elif step == "die":
                job.beat(claim, alive=False, completed=told)
            elif step == "end":
                job.end(claim, "FAILING")
            found = job_state(job.catalog, SystemClock())
            assert (found.damage or found.newest) == _searched(job)


def _searched(job: StoredJob) -> CheckpointMetadata | str | None:
    """The newest checkpoint by a search, or what is damaged."""
    try:
        return find_newest(job.catalog).metadata
    except CheckpointError as error:
        return f"{error.message} {error.hint}".strip()
