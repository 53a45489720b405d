"""Materializing ``<job>_savepoints``, in this process."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_ckpt import (
    FileSystemCheckpointStorage,
    SparkSessionResource,
    build_checkpoint_definitions,
    build_savepoint_schedule,
)
from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.catalog.file_reader import verify_checkpoint
from dagster_ckpt.checkpoint.catalog.newest import find_newest
from dagster_ckpt.checkpoint.cleanup.savepoint_history import kept_savepoint
from dagster_ckpt.checkpoint.control.savepoint_requests import Answer, SavepointRequests, TakenSavepoint
from dagster_ckpt.clock import SystemClock
from dagster_ckpt.errors import InvalidConfiguration
from dagster_ckpt.orchestration import names
from dagster_ckpt.orchestration.savepoints import checkpoint_job, savepoint_asset
from tests.helpers.orchestration.stored_job import StoredJob, make_asset, run_id


@pytest.fixture
def job(tmp_path: Path) -> StoredJob:
    return StoredJob(tmp_path / "checkpoints")


def materialize(job: StoredJob, config: Mapping[str, Any], savepoint_path: Path | None) -> dg.ExecuteInProcessResult:
    asset = make_asset(job.name)
    storage = FileSystemCheckpointStorage(
        checkpoint_path=str(job.root), savepoint_path=None if savepoint_path is None else str(savepoint_path)
    )
    return dg.materialize(
        [asset.savepoints],
        resources={"checkpoint_storage": storage},
        run_config={"ops": {asset.savepoints.op.name: {"config": dict(config)}}},
    )


def logged(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    (event,) = result.get_asset_materialization_events()
    return {key: value.value for key, value in event.materialization.metadata.items()}


def test_of_a_job_that_does_not_run(job: StoredJob, tmp_path: Path) -> None:
    job.die(run_id(), checkpoints=3)
    newest = find_newest(job.catalog).metadata
    assert newest is not None
    for config, parent in (({}, tmp_path / "default"), ({"to": str(tmp_path / "asked")}, tmp_path / "asked")):
        metadata = logged(materialize(job, config, tmp_path / "default"))
        assert Path(metadata["pointer"]).parent == parent
        savepoint = job.catalog.resolve(metadata["pointer"])
        verify_checkpoint(job.catalog, savepoint)
        assert metadata == {
            "pointer": savepoint.location,
            "checkpoint_id": newest.checkpoint_id,
            "batch": 2,
            "files": 1,
            "bytes": newest.size,
            "size": f"{newest.size} bytes",
            "duration_ms": pytest.approx(savepoint.timings_ms["write"]),
        }


def test_of_a_running_job(job: StoredJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claim = job.die(run_id())
    job.beat(claim, alive=True)
    requests = SavepointRequests(job.catalog.filesystem, job.name)

    class Driver:
        """Has its turn while the asset waits."""

        @staticmethod
        def sleep(seconds: float) -> None:
            del seconds
            for request in requests.open():
                assert (request.target, request.stop) == (None, True), "the driver knows its own default"
                savepoint = TakenSavepoint(str(tmp_path / "savepoint-x"), 5, 4, 3, 2, 1.5)
                assert requests.answer(claim.epoch, request, Answer(0.0, savepoint))

    monkeypatch.setattr(savepoint_asset, "time", Driver)
    metadata = logged(materialize(job, {"stop": True}, None))
    assert metadata == {
        "pointer": str(tmp_path / "savepoint-x"),
        "checkpoint_id": 5,
        "batch": 4,
        "files": 3,
        "bytes": 2,
        "size": "2 bytes",
        "duration_ms": 1500.0,
    }


def test_without_a_location_the_run_fails_with_the_reason(job: StoredJob) -> None:
    job.die(run_id())
    with pytest.raises(InvalidConfiguration, match="No savepoint location given"):
        materialize(job, {}, None)


def test_it_is_downstream_of_the_output_and_its_runs_are_not_the_jobs(tmp_path: Path) -> None:
    asset = make_asset("one")
    storage = FileSystemCheckpointStorage(checkpoint_path=str(tmp_path))
    definitions = build_checkpoint_definitions(
        [asset], {"checkpoint_storage": storage, "spark": SparkSessionResource()}
    )
    node = definitions.resolve_asset_graph().get(asset.savepoints_key)
    assert node.is_materializable
    assert node.parent_keys == {asset.key}
    assert names.JOB_TAG not in node.tags
    assert asset.savepoints.required_resource_keys >= {"checkpoint_storage"}
    assert "spark" not in asset.savepoints.required_resource_keys
    assert CheckpointCatalog(storage.filesystem(), "one").choice() is None


class Night(SystemClock):
    """The nights of a schedule, one after the other."""

    number = 0

    def time(self) -> float:
        return super().time() + self.number * 86_400


@pytest.mark.parametrize("limit", [{"keep": 2}, {"max_age": "36 h"}, {"max_age": timedelta(hours=36)}], ids=str)
def test_a_schedule_takes_savepoints_of_a_series_and_keeps_its_history(
    job: StoredJob, tmp_path: Path, limit: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(savepoint_asset, "SystemClock", Night)
    asset = make_asset(job.name)
    schedule = build_savepoint_schedule(asset, "0 3 * * *", name="nightly", note="by schedule", **limit)
    assert schedule.name == f"{job.name}_nightly_savepoints"
    storage = FileSystemCheckpointStorage(checkpoint_path=str(job.root), savepoint_path=str(tmp_path / "saved"))
    resources = {"checkpoint_storage": storage, "spark": SparkSessionResource()}
    definitions = dg.Definitions.merge(
        build_checkpoint_definitions([asset], resources), dg.Definitions(schedules=[schedule])
    )
    repository = definitions.get_repository_def()
    found = repository.get_schedule_def(schedule.name)
    pointers: list[Path] = []
    with dg.DagsterInstance.ephemeral() as instance:
        for night in range(4):
            monkeypatch.setattr(Night, "number", night)
            job.die(run_id())
            rollback = ExitStack()
            if night == 2:
                oldest = job.catalog.resolve(str(pointers[0]))
                rollback.enter_context(kept_savepoint(job.catalog, oldest, "rollback", SystemClock()))
            context = dg.build_schedule_context(instance, scheduled_execution_time=datetime(2026, 3, 1, 3, tzinfo=UTC))
            (request,) = found.evaluate_tick(context).run_requests or []
            launched = definitions.resolve_job_def(found.job_name)
            result = launched.execute_in_process(
                run_config=request.run_config, instance=instance, asset_selection=request.asset_selection
            )
            metadata = logged(result)
            assert metadata["name"].startswith("nightly-20")
            assert metadata["note"] == "by schedule"
            pointers.append(Path(metadata["pointer"]))
            assert pointers[0].exists() == (night < 3)
            rollback.close()
    assert [place.exists() for place in pointers] == [False, False, True, True]


def test_a_limit_without_a_series_and_a_schedule_with_a_bad_name_are_refused(job: StoredJob, tmp_path: Path) -> None:
    job.die(run_id())
    with pytest.raises(InvalidConfiguration, match="and no series"):
        materialize(job, {"keep": 2}, tmp_path)
    wrong: list[dict[str, Any]] = [
        {"name": "every night"},
        {"name": "nightly", "keep": 0},
        *({"name": "nightly", "max_age": age} for age in ("old", "0 s", timedelta(microseconds=1))),
    ]
    for given in wrong:
        with pytest.raises(InvalidConfiguration):
            build_savepoint_schedule(make_asset(job.name), "0 3 * * *", **given)


def test_a_click_asks_for_a_checkpoint(job: StoredJob, monkeypatch: pytest.MonkeyPatch) -> None:
    claim = job.die(run_id())
    job.beat(claim, alive=True)
    requests = SavepointRequests(job.catalog.filesystem, job.name)
    asked = []

    def sleep(seconds: float) -> None:
        del seconds
        for request in requests.open():
            asked.append(request.checkpoint)
            requests.answer(claim.epoch, request, Answer(0.0, TakenSavepoint("0" * 32 + "/chk-2", 2, 4, 3, 2, 1.5)))

    monkeypatch.setattr(checkpoint_job, "time", type("Driver", (), {"sleep": staticmethod(sleep)}))
    storage = FileSystemCheckpointStorage(checkpoint_path=str(job.root))
    resources = {"checkpoint_storage": storage, "spark": SparkSessionResource()}
    definitions = build_checkpoint_definitions([make_asset(job.name)], resources)
    launched = definitions.resolve_job_def(f"{job.name}_checkpoint")
    assert names.JOB_TAG not in launched.tags
    assert launched.execute_in_process().success
    assert asked == [True]
