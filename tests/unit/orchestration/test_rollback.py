"""Runs of ``<job>_rollback``, in this process: what they check, change, and have launched."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import dagster as dg
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dagster_ckpt import (
    CheckpointConfig,
    FileSystemCheckpointStorage,
    SparkSessionResource,
    build_checkpoint_definitions,
)
from dagster_ckpt import spark as spark_door
from dagster_ckpt.checkpoint.catalog.newest import find_newest
from dagster_ckpt.checkpoint.cleanup.dead_runs import finish_deletions
from dagster_ckpt.checkpoint.cleanup.pinning import pin_checkpoint
from dagster_ckpt.checkpoint.cleanup.savepoint_history import SavepointHistory, delete_surplus_savepoints
from dagster_ckpt.checkpoint.control.epochs import End
from dagster_ckpt.checkpoint.control.savepoint_requests import TakenSavepoint
from dagster_ckpt.checkpoint.control.taken_savepoints import Label
from dagster_ckpt.checkpoint.format.facts import Facts
from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata
from dagster_ckpt.checkpoint.format.snapshot import PinnedFile, Snapshot
from dagster_ckpt.checkpoint.taking.savepoint_files import claim_savepoint
from dagster_ckpt.clock import SystemClock, iso
from dagster_ckpt.config import ExternalizedCheckpointCleanup
from dagster_ckpt.errors import (
    CheckpointError,
    CheckpointNotFound,
    InvalidConfiguration,
    JobAlreadyRunning,
    RestoreRefused,
    RestoreWithLoss,
    SinkNotEmpty,
    StorageError,
)
from dagster_ckpt.filesystem import FileSystem, open_filesystem
from dagster_ckpt.orchestration import names
from dagster_ckpt.orchestration.rollback import going_back
from dagster_ckpt.orchestration.rollback.handover import ask, check_wanted, settle
from dagster_ckpt.orchestration.rollback.launchpad import Launchpad
from dagster_ckpt.testing import Fail, FaultInjectingFileSystem
from tests.helpers.orchestration.stored_job import StoredJob, make_asset, run_id
from tests.helpers.spark.stored_query import StoredQuery

_DELETE = CheckpointConfig(cleanup=ExternalizedCheckpointCleanup.DELETE_ON_CANCELLATION)


class Operated:
    """A job with two checkpoints under a Dagster: ``whole``, and ``lossy``, whose next batch lacks an input file."""

    def __init__(self, instance: dg.DagsterInstance, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.instance = instance
        self.job = StoredJob(root / "checkpoints")
        self.root, self.monkeypatch = root, monkeypatch
        self.claim = self.job.claim(run_id())
        self.store = store = self.job.choose(self.claim)
        self.whole, self.lossy = (
            store.write(store.begin(), self._snapshot(batch, planned=planned))
            for batch, planned in ((1, False), (2, True))
        )
        self.job.beat(self.claim, alive=False)
        self.terminated: list[str] = []
        self.launched: list[dg.RunRequest] = []
        #: The run whose end is the driver's end, if it is not the run of the claim.
        self.drives: str | None = None
        self.on_launch: Callable[[dg.DagsterRun, str], object] = self.starts
        self.launches = dg.DagsterRunStatus.STARTED
        self.set_up()
        monkeypatch.setattr(going_back, "time", self)
        monkeypatch.setattr(type(instance.run_coordinator), "cancel_run", lambda _, run: self._cancel(run))
        monkeypatch.setattr(Launchpad, "of_run", lambda _, job: Launchpad("here.py", job))

    def set_up(self, config: CheckpointConfig | None = None) -> None:
        asset = make_asset(self.job.name, config=config)
        resources = {"checkpoint_storage": self.job.storage, "spark": SparkSessionResource()}
        self.definitions = build_checkpoint_definitions([asset], resources)

    def _snapshot(self, batch: int, *, planned: bool) -> Snapshot:
        live = self.root / f"live-{run_id()}"

        def put(path: str, data: bytes) -> None:
            (live / path).parent.mkdir(parents=True, exist_ok=True)
            (live / path).write_bytes(data)

        query = StoredQuery(put)
        query.begin()
        query.run(batch + 1)
        if planned:
            query.plan()
        files = tuple(
            PinnedFile(f"checkpoint/{path.relative_to(live)}", str(path), path.stat().st_size)
            for path in sorted(live.rglob("*"))
            if path.is_file()
        )
        return Snapshot(batch, files, Facts(), None, lambda: None)

    def sleep(self, seconds: float) -> None:
        """What the sensor and the queue do while a rollback waits."""
        del seconds
        for request in self.tick():
            self.launched.append(request)
            run = self.instance.create_run_for_job(
                self.definitions.resolve_job_def("orders_job"),
                run_config=request.run_config,
                tags=request.tags,
                status=self.launches,
            )
            self.on_launch(run, request.run_config["ops"]["orders"]["config"]["restore_from"])

    def starts(self, run: dg.DagsterRun, restore_from: str) -> None:
        """What the start of a launched run does in the storage."""
        catalog = self.job.catalog
        self.claim = self.job.claim(run.run_id)
        finish_deletions(catalog, self.claim.epoch)
        restored = find_newest(catalog).metadata if restore_from == "latest" else catalog.resolve(restore_from)
        self.job.choose(self.claim, restored)
        self.job.beat(self.claim, alive=True)

    def savepoint(self, *, claimed: bool) -> CheckpointMetadata:
        """A savepoint with the content of ``whole``; ``claimed``: that the job began with and may delete."""
        where = open_filesystem(str(self.root / "savepoints"))
        savepoint = self.store.write_savepoint(self.store.begin(), self._snapshot(1, planned=False), where)
        if claimed:
            choice = self.job.catalog.choice()
            assert choice is not None
            claim_savepoint(savepoint, savepoint.job_id, like=self.job.catalog.filesystem)
            self.claim = self.job.claim(run_id())
            began = replace(choice[1], restored=savepoint.reference, claimed=savepoint.reference)
            self.job.catalog.records.epochs.record_choice(self.claim.epoch, began)
        self.job.beat(self.claim, alive=False)
        return savepoint

    def series(self) -> tuple[CheckpointMetadata, CheckpointMetadata]:
        """Two savepoints of a series, of whose history one is too many."""
        where = open_filesystem(str(self.root / "savepoints"))
        old, new = (
            self.store.write_savepoint(
                self.store.begin(), self._snapshot(1, planned=False), where, label=Label(name, series="nightly")
            )
            for name in ("n-1", "n-2")
        )
        self.job.beat(self.claim, alive=False)
        return old, new

    def night(self) -> list[str]:
        """Somebody has taken the newest of the series, and sees to the history; returns what is deleted."""
        catalog, (*_, last) = self.job.catalog, self.job.catalog.records.taken_savepoints.all_named()
        return delete_surplus_savepoints(
            catalog, "nightly", SavepointHistory(keep=1), SystemClock(), print, taken=last.reference
        )

    def stops(self, *, discarded: bool) -> None:
        """From now on the job's run answers a stop: with a savepoint of ``whole``, and its end as FINISHED."""
        taken = self.savepoint(claimed=False)

        def answer(*_: object, stop: bool, **__: object) -> TakenSavepoint:
            assert stop
            end = End("FINISHED", "stopped with a savepoint", discarded, iso(0.0))
            self.job.catalog.records.epochs.record_end(self.claim.epoch, end)
            self.job.beat(self.claim, alive=False, stopped=True)
            self.instance.delete_run(self.claim.run_id)
            return TakenSavepoint.of(taken)

        self.monkeypatch.setattr(going_back, "take_savepoint", answer)

    def died(self) -> None:
        """The job's run has failed, and the sensor waits before it resumes the job."""
        self.instance.create_run_for_job(
            self.definitions.resolve_job_def("orders_job"),
            run_id=self.claim.run_id,
            tags={names.JOB_TAG: "orders"},
            status=dg.DagsterRunStatus.FAILURE,
        )

    def resumes(self, run: str) -> str:
        """The sensor has launched a run that continues ``run``; returns its id."""
        return self.instance.create_run_for_job(
            self.definitions.resolve_job_def("orders_job"),
            tags={names.JOB_TAG: "orders", names.RESUMES_TAG: run, names.PARENT_RUN_TAG: run},
            status=dg.DagsterRunStatus.STARTED,
        ).run_id

    def discarded(self) -> None:
        """The job is over, its policy has discarded the checkpoints, and the process died before it deleted them."""
        end = End("CANCELED", "of the test", True, iso(0.0))
        self.job.catalog.records.epochs.record_end(self.claim.epoch, end)

    def tick(self) -> list[dg.RunRequest]:
        (sensor,) = self.definitions.get_repository_def().sensor_defs
        resources = {"checkpoint_storage": self.job.storage}
        context = dg.build_sensor_context(instance=self.instance, definitions=self.definitions, resources=resources)
        return list(sensor.evaluate_tick(context).run_requests or ())

    def runs_now(self) -> str:
        """The job's run is alive; returns its id."""
        run = self.instance.create_run_for_job(
            self.definitions.resolve_job_def("orders_job"),
            run_id=self.claim.run_id,
            tags={names.JOB_TAG: "orders", "team": "payments"},
            status=dg.DagsterRunStatus.STARTED,
        )
        self.job.beat(self.claim, alive=True)
        return run.run_id

    def _cancel(self, run: str) -> bool:
        found = self.instance.get_run_by_id(run)
        assert found is not None
        self.terminated.append(run)
        self.instance.report_run_canceled(found)
        if run == (self.drives or self.claim.run_id):
            self.job.end(self.claim, "CANCELED")
            self.job.beat(self.claim, alive=False, stopped=True)
        return True

    def roll_back(self, to: str, **config: Any) -> dg.ExecuteInProcessResult:
        job = self.definitions.resolve_job_def("orders_rollback")
        return job.execute_in_process({"to": to, **config}, instance=self.instance)

    def tags_of_rollback(self, *tags: str) -> list[str | None]:
        """What these tags of the newest rollback say."""
        (run,) = self.instance.get_runs(dg.RunsFilter(job_name="orders_rollback"), limit=1)
        return [run.tags.get(tag) for tag in tags]

    def stored(self) -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in self.job.root.rglob("*") if path.is_file()}

    def told(self) -> dict[str, Any]:
        """What the newest verdict says."""
        (record,) = self.instance.fetch_observations(dg.AssetKey("orders_checkpoints"), limit=1).records
        assert record.asset_observation is not None
        return {key: value.value for key, value in record.asset_observation.metadata.items()}


@pytest.fixture
def operated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Operated]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield Operated(instance, tmp_path, monkeypatch)


def test_where_rows_are_lost_nothing_is_changed_without_a_confirmation(operated: Operated) -> None:
    run = operated.runs_now()
    before = operated.stored()
    with pytest.raises(RestoreWithLoss, match=r"/in/3\.json"):
        operated.roll_back(operated.lossy.reference)
    assert operated.told()["verdict"].startswith("WITH_LOSS at ")
    assert operated.tags_of_rollback(names.VERDICT_TAG, names.ROLLBACK_TAG) == ["WITH_LOSS", None]
    assert (operated.stored(), operated.terminated, operated.tick()) == (before, [], [])

    link = re.search(r"\[go back to \S+ nevertheless\]\((\S+)\)", operated.told()["go_on"])
    assert link is not None
    confirmed = yaml.safe_load(unquote(link[1].partition("?config=")[2]))
    assert confirmed == {"to": operated.lossy.reference, "allow_loss": True}
    assert operated.roll_back(**confirmed).success
    assert operated.tags_of_rollback(names.VERDICT_TAG, names.ROLLBACK_TAG) == ["WITH_LOSS", "settled"]
    assert operated.terminated == [run]
    (request,) = operated.launched
    assert request.run_config["ops"]["orders"]["config"]["allow_loss"] is True


def test_a_version_that_the_asset_lacks_changes_nothing(operated: Operated) -> None:
    operated.runs_now()
    before = operated.stored()
    with pytest.raises(InvalidConfiguration, match="is to run version 2 of its code, and has no version only"):
        operated.roll_back("now", code_version="2")
    assert (operated.stored(), operated.terminated, operated.launched) == (before, [], [])


def test_now_is_the_newest_checkpoint_of_a_job_that_does_not_run(operated: Operated) -> None:
    assert operated.roll_back("now", allow_loss=True).success
    (request,) = operated.launched
    assert request.run_config["ops"]["orders"]["config"]["restore_from"] == "latest"
    assert operated.terminated == []


@pytest.mark.parametrize("is_owned", [True, False])
@pytest.mark.parametrize("retains", [True, False])
def test_now_goes_on_from_the_savepoint_where_the_end_discards_the_checkpoints(
    operated: Operated, retains: bool, is_owned: bool
) -> None:
    operated.set_up(CheckpointConfig(retain_on_success=retains))
    operated.stops(discarded=not retains)
    if is_owned:
        operated.savepoint(claimed=True)
    operated.runs_now()
    assert operated.roll_back("now", allow_loss=True).success
    choice = operated.job.catalog.choice()
    assert choice is not None
    assert choice[1].restored is not None, "a start from nothing"
    (request,) = operated.launched
    to = request.run_config["ops"]["orders"]["config"]["restore_from"]
    assert to == ("latest" if retains else choice[1].restored)
    assert ("without retain_on_success" in operated.told()["verdict"]) != retains
    assert not operated.job.catalog.records.pins.pinned()


def test_now_discards_nothing_where_a_cancellation_would(operated: Operated) -> None:
    operated.set_up(_DELETE)
    operated.stops(discarded=False)
    operated.runs_now()
    assert operated.roll_back("now", allow_loss=True).success
    assert operated.terminated == []
    assert "cleanup" not in operated.told()["verdict"]


def test_now_is_refused_beside_a_dead_run_whose_resumed_run_would_be_canceled(operated: Operated) -> None:
    operated.set_up(_DELETE)
    operated.died()
    with pytest.raises(RestoreRefused, match="under DELETE_ON_CANCELLATION that deletes"):
        operated.roll_back("now", allow_loss=True)
    assert operated.launched == []


@pytest.mark.parametrize("checkpoint", ["whole", "lossy"])
@pytest.mark.parametrize("runs", [True, False])
def test_a_check_changes_nothing(operated: Operated, checkpoint: str, runs: bool) -> None:
    if runs:
        operated.runs_now()
    target: CheckpointMetadata = getattr(operated, checkpoint)
    before = operated.stored()
    operated.roll_back(names.partition_key(target), check_only=True)
    verdict = {"whole": "RESTORABLE", "lossy": "WITH_LOSS"}[checkpoint]
    assert operated.told()["verdict"].startswith(f"{verdict} at ")
    assert operated.tags_of_rollback(names.VERDICT_TAG, names.ROLLBACK_TAG) == [verdict, None]
    assert ("nevertheless" in operated.told()["go_on"]) == (checkpoint == "lossy")
    assert (operated.stored(), operated.terminated, operated.launched) == (before, [], [])
    assert not operated.instance.fetch_materializations(dg.AssetKey("orders_checkpoints"), limit=1).records


def test_the_run_is_terminated_before_the_one_that_goes_back_is_launched(operated: Operated) -> None:
    run = operated.runs_now()
    tick = operated.tick

    def checked() -> list[dg.RunRequest]:
        assert operated.terminated == [run], "never two writers"
        return tick()

    operated.tick = checked  # type: ignore[method-assign]
    assert operated.roll_back(names.partition_key(operated.whole)).success
    (request,) = operated.launched
    config = request.run_config["ops"]["orders"]["config"]
    assert (config["restore_from"], config["allow_loss"]) == (operated.whole.reference, False)
    assert request.tags["team"] == "payments", "as the run before"
    assert request.tags[names.JOB_TAG] == "orders"
    assert not operated.job.catalog.records.pins.pinned()
    assert tick() == [], "a rollback is launched once"


def test_a_run_that_attends_the_driver_of_another_is_terminated(operated: Operated) -> None:
    submitter = operated.claim.run_id
    run = operated.instance.create_run_for_job(
        operated.definitions.resolve_job_def("orders_job"),
        tags={names.JOB_TAG: "orders", names.ATTENDS_TAG: submitter, names.PARENT_RUN_TAG: submitter},
        status=dg.DagsterRunStatus.STARTED,
    )
    operated.job.beat(operated.claim, alive=True)
    operated.drives = run.run_id
    assert operated.roll_back(operated.whole.reference).success
    assert operated.terminated == [run.run_id]
    (request,) = operated.launched
    assert request.run_config["ops"]["orders"]["config"]["restore_from"] == operated.whole.reference


def test_it_is_launched_before_a_dead_run_is_resumed(operated: Operated) -> None:
    operated.instance.create_run_for_job(
        operated.definitions.resolve_job_def("orders_job"),
        run_id=operated.claim.run_id,
        tags={names.JOB_TAG: "orders"},
        status=dg.DagsterRunStatus.FAILURE,
    )
    assert operated.roll_back("latest", allow_loss=True).success
    (request,) = operated.launched
    assert names.RESUMES_TAG not in request.tags
    assert request.run_config["ops"]["orders"]["config"]["restore_from"] == "latest"


def test_a_checkpoint_that_the_end_of_the_run_deletes_is_kept_first(operated: Operated) -> None:
    operated.set_up(_DELETE)
    operated.runs_now()
    for to in (operated.whole.reference, "latest"):
        with pytest.raises(RestoreRefused, match="under DELETE_ON_CANCELLATION that deletes"):
            operated.roll_back(to, allow_loss=True)
    assert operated.terminated == []
    pin_checkpoint(operated.job.catalog, operated.whole, "of the test", SystemClock())
    assert operated.roll_back(operated.whole.reference).success
    assert operated.job.catalog.records.pins.pinned() == {operated.whole.reference}, "the user's pin stays"


@pytest.mark.parametrize("cleanup", ["DELETE_ON_CANCELLATION", "NO_EXTERNALIZED_CHECKPOINTS"])
@pytest.mark.parametrize("to", ["whole", "latest"])
def test_a_checkpoint_of_a_dead_run_that_is_to_be_resumed_is_kept_first(
    operated: Operated, cleanup: str, to: str
) -> None:
    operated.set_up(CheckpointConfig(cleanup=ExternalizedCheckpointCleanup[cleanup]))
    operated.died()
    before = operated.stored()
    with pytest.raises(RestoreRefused, match=rf"not over.* under {cleanup} that deletes") as refused:
        operated.roll_back(operated.whole.reference if to == "whole" else to, allow_loss=True)
    assert "dagster-ckpt pin orders" in str(refused.value)
    assert (operated.stored(), operated.launched) == (before, [])


def test_the_target_of_a_discarded_job_is_kept_until_the_run_that_goes_back_has_chosen(operated: Operated) -> None:
    operated.set_up(_DELETE)
    operated.discarded()
    assert operated.roll_back(operated.whole.reference).success
    choice = operated.job.catalog.choice()
    assert choice is not None
    assert choice[1].restored == operated.whole.reference
    numbers = operated.job.catalog.numbers(operated.whole.job_id)
    assert [operated.whole.checkpoint_id] == list(numbers), "the other checkpoint was deleted by the start"
    assert not operated.job.catalog.records.pins.pinned()


@pytest.mark.parametrize("state", ["runs", "died", "discarded"])
def test_a_savepoint_that_the_job_owns_is_not_gone_back_to_where_the_end_deletes_it(
    operated: Operated, state: str
) -> None:
    operated.set_up(_DELETE)
    savepoint = operated.savepoint(claimed=True)
    {"runs": operated.runs_now, "died": operated.died, "discarded": operated.discarded}[state]()
    before = operated.stored()
    elsewhere = operated.root / "elsewhere"
    for to in (savepoint.reference, f"{operated.root}/checkpoints/../savepoints/{Path(savepoint.reference).name}"):
        with pytest.raises(RestoreRefused, match="owns") as refused:
            operated.roll_back(to, allow_loss=True)
        assert "Copy the directory" in str(refused.value)
    assert Path(savepoint.reference).is_dir()
    assert (operated.stored(), operated.terminated, operated.launched) == (before, [], [])
    shutil.copytree(savepoint.reference, elsewhere)
    assert operated.roll_back(str(elsewhere)).success, "the hint works"


@pytest.mark.parametrize("target", ["pinned", "savepoint"])
@pytest.mark.parametrize("runs", [True, False])
def test_the_verdict_says_that_the_end_deletes_the_other_checkpoints(
    operated: Operated, target: str, runs: bool
) -> None:
    operated.set_up(_DELETE)
    if target == "pinned":
        to = operated.whole.reference
        pin_checkpoint(operated.job.catalog, operated.whole, "of the test", SystemClock())
    else:
        to = operated.savepoint(claimed=False).reference
    (operated.runs_now if runs else operated.died)()
    assert operated.roll_back(to, check_only=True).success
    assert re.fullmatch(r"RESTORABLE at .*cleanup: .*deletes the job's other checkpoints.*", operated.told()["verdict"])
    assert operated.roll_back(to).success


def test_latest_is_refused_where_the_end_deletes_what_it_means_though_a_savepoint_is_the_newest(
    operated: Operated,
) -> None:
    operated.set_up(_DELETE.model_copy(update={"prefer_checkpoint_for_recovery": False}))
    savepoint = operated.savepoint(claimed=False)
    operated.runs_now()
    with pytest.raises(RestoreRefused, match="a start from nothing") as refused:
        operated.roll_back("latest", allow_loss=True)
    assert f"go back to {savepoint.reference} by that name" in str(refused.value)
    assert operated.roll_back(savepoint.reference).success


def test_no_history_deletes_the_savepoint_that_a_rollback_goes_to(
    operated: Operated, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, _ = operated.series()
    run = operated.runs_now()
    deleted: list[str] = []
    cancel, starts = operated._cancel, operated.starts

    def cancels(canceled: str) -> bool:
        deleted.extend(operated.night())
        return cancel(canceled)

    def before_it_starts(launched: dg.DagsterRun, to: str) -> None:
        deleted.extend(operated.night())
        starts(launched, to)
        deleted.extend(operated.night())

    monkeypatch.setattr(operated, "_cancel", cancels)
    operated.on_launch = before_it_starts
    assert operated.roll_back("savepoint:n-1").success
    assert (operated.terminated, deleted) == ([run], [])
    assert operated.night() == [], "the job may go back to it by itself"
    assert Path(target.reference).is_dir()
    assert not operated.job.catalog.records.pins.pinned()


def test_a_target_that_a_history_has_deleted_meanwhile_is_missed_before_the_job_is_stopped(
    operated: Operated, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, _ = operated.series()
    operated.runs_now()
    monkeypatch.setattr(going_back.Rollback, "_refuse_beside_another", lambda _: operated.night())
    with pytest.raises(CheckpointNotFound):
        operated.roll_back(target.reference)
    assert (operated.terminated, operated.launched) == ([], [])
    assert not operated.job.catalog.records.pins.pinned()


def test_a_target_that_is_not_there_is_told_as_one_that_cannot_be_restored(operated: Operated) -> None:
    operated.series()
    with pytest.raises(CheckpointNotFound):
        operated.roll_back("chk-999")
    run = operated.instance.get_runs()[0]
    assert run.tags[names.VERDICT_TAG] == "NOT_RESTORABLE"


def test_a_start_from_nothing_asks_for_the_end_of_the_run(operated: Operated) -> None:
    operated.runs_now()
    with pytest.raises(JobAlreadyRunning, match="a start from nothing needs an empty sink"):
        operated.roll_back("none")
    assert operated.terminated == []


def test_a_storage_that_fails_is_no_verdict(operated: Operated, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plans cannot be read, whose check makes a finding of the error."""
    operated.runs_now()
    storage = FileSystemCheckpointStorage.filesystem

    def failing(resource: FileSystemCheckpointStorage) -> FileSystem:
        return FaultInjectingFileSystem(storage(resource), lambda asked: Fail() if "/wal/" in asked.path else None)

    monkeypatch.setattr(FileSystemCheckpointStorage, "filesystem", failing)
    with pytest.raises(StorageError, match="control/wal"):
        operated.roll_back(operated.whole.reference)
    assert operated.tags_of_rollback(names.VERDICT_TAG, names.ROLLBACK_TAG) == [None, None]
    assert (operated.terminated, operated.launched) == ([], [])


def test_a_process_that_is_no_run_of_this_dagster_is_left_alone(operated: Operated) -> None:
    operated.job.beat(operated.claim, alive=True)
    with pytest.raises(JobAlreadyRunning, match="drives job 'orders' now"):
        operated.roll_back(operated.whole.reference)
    assert operated.launched == []


def test_without_the_sensor_the_rollback_says_so_and_asks_no_longer(
    operated: Operated, monkeypatch: pytest.MonkeyPatch
) -> None:
    operated.runs_now()
    monkeypatch.setattr(going_back, "_PATIENCE", 0.0)
    with pytest.raises(RestoreRefused, match="the resume sensor has not launched a run"):
        operated.roll_back(operated.whole.reference)
    assert operated.tick() == []


def test_a_run_that_dagster_launches_after_the_rollback_has_failed_changes_nothing(
    operated: Operated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dagster keeps what a tick has requested, and launches it when the code server is back."""
    requested: list[dg.RunRequest] = []
    driven: list[object] = []

    def code_server_goes_away(_: float) -> None:
        requested.extend(operated.tick())
        monkeypatch.setattr(going_back, "_PATIENCE", 0.0)

    monkeypatch.setattr(operated, "sleep", code_server_goes_away)
    monkeypatch.setattr(spark_door, "supervise", lambda *_, **__: driven.append("the job"))
    with pytest.raises(RestoreRefused, match="the resume sensor has not launched a run"):
        operated.roll_back(operated.whole.reference)
    (request,) = requested
    job, before = operated.definitions.resolve_job_def("orders_job"), operated.stored()
    with pytest.raises(RestoreRefused, match="is over"):
        job.execute_in_process(request.run_config, instance=operated.instance, tags=request.tags)
    assert (driven, operated.stored()) == ([], before)


def test_a_run_is_wanted_while_its_rollback_waits_and_once_it_has_chosen(operated: Operated) -> None:
    launched: list[dg.DagsterRun] = []

    def check(run: dg.DagsterRun) -> None:
        check_wanted(operated.instance, operated.job.catalog, run)

    def starts(run: dg.DagsterRun, to: str) -> None:
        check(run)
        launched.append(run)
        operated.starts(run, to)

    operated.on_launch = starts
    assert operated.roll_back(operated.whole.reference).success
    (run,) = launched
    check(run)
    late = dg.DagsterRun(run.job_name, run_id=run_id(), tags=run.tags)
    with pytest.raises(RestoreRefused, match="is over"):
        check(late)
    check(late.with_tags({**run.tags, names.PARENT_RUN_TAG: run.run_id}))
    operated.instance.delete_run(run.tags[names.ASKED_BY_TAG])
    check(run)
    with pytest.raises(RestoreRefused, match="is over"):
        check(late)


def _raises(operated: Operated, run: dg.DagsterRun) -> None:
    @dg.op
    def fails() -> None:
        raise SinkNotEmpty("the sink has data", hint="Empty it.")

    @dg.job
    def failing() -> None:
        fails()

    operated.instance.delete_run(run.run_id)
    failing.execute_in_process(instance=operated.instance, tags=dict(run.tags), raise_on_error=False)


def _fails(operated: Operated, run: dg.DagsterRun) -> None:
    operated.instance.report_run_failed(run, "its host is gone")


def _is_canceled(operated: Operated, run: dg.DagsterRun) -> None:
    operated.instance.report_run_canceled(run, "by a user")


@pytest.mark.parametrize(
    ("ends", "why", "chosen"),
    [
        (_raises, "FAILURE: .*SinkNotEmpty: the sink has data Empty it", False),
        (_fails, "FAILURE: its host is gone", False),
        (_fails, "FAILURE: its host is gone", True),
        (_is_canceled, "CANCELED: by a user", False),
        (_is_canceled, "CANCELED: by a user", True),
    ],
)
def test_a_rollback_fails_with_the_run_that_was_to_go_back(
    operated: Operated, ends: Callable[[Operated, dg.DagsterRun], object], why: str, chosen: bool
) -> None:
    operated.died()
    resumed = []

    def over(run: dg.DagsterRun, to: str) -> None:
        if chosen:
            operated.starts(run, to)
        ends(operated, run)
        resumed.append(operated.resumes(run.run_id))

    operated.on_launch = over
    with pytest.raises(CheckpointError, match=why) as failed:
        operated.roll_back(operated.whole.reference)
    next_step = "restart strategy" if chosen else "roll back again"
    assert next_step in str(failed.value)
    assert len(resumed) == 1
    assert operated.terminated == [], "the sensor may resume what has gone back"
    assert not operated.job.catalog.records.pins.pinned()


def test_a_run_that_ends_before_it_has_chosen_has_not_gone_back(operated: Operated) -> None:
    operated.launches = dg.DagsterRunStatus.SUCCESS
    operated.on_launch = lambda *_: None
    with pytest.raises(CheckpointError, match=r"was to go back to .*: SUCCESS"):
        operated.roll_back(operated.whole.reference)


def test_a_run_that_waits_for_too_long_is_terminated(operated: Operated, monkeypatch: pytest.MonkeyPatch) -> None:
    operated.died()
    operated.launches = dg.DagsterRunStatus.NOT_STARTED
    waiting = []

    def waits(run: dg.DagsterRun, _: str) -> None:
        waiting.append(run.run_id)
        monkeypatch.setattr(going_back, "_PATIENCE", 0.0)

    operated.on_launch = waits
    with pytest.raises(RestoreRefused, match="has waited for more than"):
        operated.roll_back(operated.whole.reference)
    assert operated.terminated == waiting
    assert not operated.job.catalog.records.pins.pinned()


def test_a_rollback_is_over_when_no_resumed_run_is_left(operated: Operated) -> None:
    operated.died()
    dead, resumed = operated.claim.run_id, []

    def beside(run: dg.DagsterRun, to: str) -> None:
        resumed.append(operated.resumes(dead))
        operated.starts(run, to)

    operated.on_launch = beside
    assert operated.roll_back(operated.whole.reference).success
    assert operated.terminated == resumed
    assert len(resumed) == 1


def test_a_resumed_run_that_does_not_stop_fails_the_rollback(
    operated: Operated, monkeypatch: pytest.MonkeyPatch
) -> None:
    operated.died()
    resumed = operated.resumes(operated.claim.run_id)
    monkeypatch.setattr(type(operated.instance.run_coordinator), "cancel_run", lambda *_: False)
    # It begins after the runs were terminated that were there before.
    monkeypatch.setattr(going_back, "terminate_all", lambda *_: None)

    def starts(run: dg.DagsterRun, to: str) -> None:
        operated.starts(run, to)
        monkeypatch.setattr(going_back, "_PATIENCE", 0.0)

    operated.on_launch = starts
    with pytest.raises(JobAlreadyRunning, match=f"Run {resumed} .* has not stopped"):
        operated.roll_back(operated.whole.reference)


def test_two_rollbacks_of_a_job_do_not_run_at_once(operated: Operated) -> None:
    run = operated.runs_now()
    operated.instance.create_run_for_job(
        operated.definitions.resolve_job_def("orders_rollback"),
        run_config={"to": "latest"},
        tags={names.ROLLBACK_OF_TAG: "orders"},
        status=dg.DagsterRunStatus.STARTED,
    )
    with pytest.raises(JobAlreadyRunning, match="is rolling job 'orders' back"):
        operated.roll_back(operated.lossy.reference, allow_loss=True)
    assert operated.tags_of_rollback(names.VERDICT_TAG, names.ROLLBACK_TAG) == ["WITH_LOSS", "accepted"]
    assert operated.instance.get_run_by_id(run) in operated.instance.get_runs(
        dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED])
    )


@pytest.mark.parametrize(("status", "launched"), [("STARTED", 1), ("FAILURE", 0)])
@pytest.mark.parametrize("re_executed", [False, True])
def test_only_a_rollback_that_itself_asks_and_waits_is_launched(
    operated: Operated, status: str, launched: int, re_executed: bool
) -> None:
    operated.runs_now()
    job = operated.definitions.resolve_job_def("orders_rollback")

    def rollback(**tags: str) -> dg.DagsterRun:
        return operated.instance.create_run_for_job(
            job,
            run_config={"to": "latest"},
            tags={names.ROLLBACK_OF_TAG: "orders", **tags},
            status=dg.DagsterRunStatus(status),
        )

    first = rollback()
    ask(operated.instance, first.run_id, "latest")
    if re_executed:
        asked = operated.instance.get_run_by_id(first.run_id)
        assert asked is not None
        rollback(**asked.tags)
        settle(operated.instance, first.run_id)
    assert len(operated.tick()) == (0 if re_executed else launched)


def test_a_number_of_state_partitions_is_checked_first_and_goes_to_the_run(operated: Operated) -> None:
    before = operated.stored()
    with pytest.raises(RestoreRefused, match=r"cannot have 7 partitions: the query of chk-\d+ keeps none"):
        operated.roll_back(operated.whole.reference, state_partitions=7)  # its query keeps no state
    with pytest.raises(InvalidConfiguration, match="restore_from: none"):
        operated.roll_back("none", state_partitions=7)
    assert (operated.stored(), operated.terminated, operated.launched) == (before, [], [])

    rollback = operated.instance.create_run_for_job(
        operated.definitions.resolve_job_def("orders_rollback"),
        run_config={"to": "latest", "state_partitions": 7},
        tags={names.ROLLBACK_OF_TAG: "orders"},
        status=dg.DagsterRunStatus.STARTED,
    )
    ask(operated.instance, rollback.run_id, "latest")
    (request,) = operated.tick()
    assert request.run_config["ops"]["orders"]["config"]["state_partitions"] == 7


def test_places_of_topics_are_checked_first_and_go_to_the_run(operated: Operated) -> None:
    before = operated.stored()
    with pytest.raises(RestoreRefused, match="only topics of Kafka can start elsewhere"):
        operated.roll_back(operated.whole.reference, start_sources={"orders": "latest"})  # its query reads files
    with pytest.raises(InvalidConfiguration, match="partition of orders in start_sources is '01'"):
        operated.roll_back(operated.whole.reference, start_sources={"orders": {"01": 7}})
    assert (operated.stored(), operated.terminated, operated.launched) == (before, [], [])

    rollback = operated.instance.create_run_for_job(
        operated.definitions.resolve_job_def("orders_rollback"),
        run_config={"to": "latest", "start_sources": {"orders": {"0": 7}}},
        tags={names.ROLLBACK_OF_TAG: "orders"},
        status=dg.DagsterRunStatus.STARTED,
    )
    ask(operated.instance, rollback.run_id, "latest")
    (request,) = operated.tick()
    assert request.run_config["ops"]["orders"]["config"]["start_sources"] == {"orders": {"0": 7}}


@given(st.text(st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"])), st.text(min_size=1))
def test_a_link_says_what_it_was_made_of(to: str, location: str) -> None:
    link = Launchpad(location, "orders").link("words", to, check_only=True)
    path, _, config = link.removeprefix("[words](").removesuffix(")").partition("?config=")
    assert yaml.safe_load(unquote(config)) == {"to": to, "check_only": True}
    assert not set(" ()[]\n") & set(path + config), "Markdown ends a link there"
    assert unquote(path.split("/")[2]) == location


def test_the_ways_back_are_one_below_the_other_and_shown_without_a_click() -> None:
    """The UI cuts off what is wider than a page, and hides Markdown of 1000 characters and more behind a link."""
    told = Launchpad("here.py", "orders").ways_back(f"/data/{'deep/' * 40}savepoint-1", "this savepoint").value
    assert told is not None
    heading, empty, *ways = told.split("\n")
    assert (heading, empty) == ("Click one, then Launch Run:", "")
    assert [way.partition("](")[0] for way in ways] == [
        "- [go back to this savepoint",
        "- [check only whether that is possible",
        "- [restart from the newest checkpoint",
        "- [start from nothing",
    ]
