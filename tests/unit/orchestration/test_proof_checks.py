"""The checks ``restorable``, ``fresh`` and ``drilled``, as Dagster runs them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path
from unittest import mock

import dagster as dg
import pytest

from dagster_ckpt import CheckpointConfig, SparkSessionResource, build_checkpoint_definitions, build_restore_drill
from dagster_ckpt.checkpoint.catalog.spot_checks import spot_check
from dagster_ckpt.checkpoint.control.plan_archive import PlanArchiveWriter, PlannedBatch
from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata
from dagster_ckpt.errors import CheckpointNotFound, InvalidConfiguration
from dagster_ckpt.orchestration.proof import checks, drilling
from dagster_ckpt.spark.job import StreamingJob
from tests.helpers.orchestration.stored_job import StoredJob, launched, make_asset, run_id

_KEY = dg.AssetKey(["orders"])
_DRILL = dg.AssetKey(["orders_drill"])
_CONFIG = CheckpointConfig(interval="1 min", timeout="1 min", tolerable_failed_checkpoints=1)  # so 3 minutes


@pytest.fixture
def job(tmp_path: Path) -> StoredJob:
    return StoredJob(tmp_path / "storage", "orders")


def _run_check(job: StoredJob, name: str, instance: dg.DagsterInstance | None = None) -> dg.AssetCheckEvaluation:
    resources = {"checkpoint_storage": job.storage, "spark": SparkSessionResource()}
    definitions = build_checkpoint_definitions([make_asset(config=_CONFIG)], resources)
    job_of_dagster = definitions.resolve_implicit_global_asset_job_def()
    only = job_of_dagster.get_subset(asset_check_selection={dg.AssetCheckKey(_KEY, name)}, asset_selection=set())
    (found,) = only.execute_in_process(instance=instance).get_asset_check_evaluations()
    return found


def _stored(job: StoredJob, metadata: CheckpointMetadata) -> Path:
    (file,) = metadata.files
    return job.root / job.catalog.stored_path(metadata, file.reference or "_metadata")


def test_restorable_is_red_as_long_as_a_file_is_damaged(job: StoredJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever an evaluation may read: here a single file of it."""
    monkeypatch.setattr(checks, "_MOST_FILES", 1)
    with dg.DagsterInstance.ephemeral() as instance:
        nothing = _run_check(job, "restorable", instance)
        assert nothing.passed
        assert "nothing to restore" in str(nothing.description)
        store = job.choose(job.claim(run_id()))
        metadata = job.checkpoint(store, 3)
        green = _run_check(job, "restorable", instance)
        assert green.passed
        assert green.metadata["files_read"].value == 1
        assert green.metadata["checkpoint"].value == metadata.reference
        stored = _stored(job, metadata)
        content = stored.read_bytes()
        stored.write_bytes(content[::-1])
        for _ in range(3):
            red = _run_check(job, "restorable", instance)
            assert not red.passed
            assert red.severity is dg.AssetCheckSeverity.ERROR
            assert stored.name in str(red.description)
        stored.write_bytes(content)
        assert _run_check(job, "restorable", instance).passed


def test_evaluations_go_on_where_the_last_one_stopped(job: StoredJob, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def seen(*args: object, after: str, **budget: object) -> object:
        asked.append(after)
        return spot_check(*args, after=after, **budget)  # type: ignore[arg-type]

    monkeypatch.setattr(checks, "spot_check", seen)
    job.checkpoint(job.choose(job.claim(run_id())), 3)
    with dg.DagsterInstance.ephemeral() as instance:
        for _ in range(3):
            assert _run_check(job, "restorable", instance).passed
    assert asked == ["", "checkpoint/state/0/0/1.delta", "checkpoint/state/0/0/1.delta"]


def _plan(job: StoredJob, job_id: str, epoch: int, batch: int, *, ago: float) -> None:
    """Archive the plan of a batch, as the run of an epoch does."""
    at = int((time.time() - ago) * 1000)
    text = "v1\n" + json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": at, "conf": {}}) + '\n{"logOffset":1}'
    writer = PlanArchiveWriter(job.catalog.filesystem, job.name, job_id, epoch, lambda: None)
    if not job.catalog.records.plans(job_id).has_begun(epoch):
        writer.begin(-1, None, [])
    writer.append([PlannedBatch(batch, {f"offsets/{batch}": text})])


def test_fresh_knows_an_idle_stream_from_one_whose_batches_wait(job: StoredJob) -> None:
    assert _run_check(job, "fresh").passed, "it has never run"
    claim = job.claim(run_id(), ago=86_400)
    store = job.choose(claim)
    metadata = job.checkpoint(store, 3)
    job.beat(claim, alive=True)
    idle = _run_check(job, "fresh")
    assert idle.passed
    assert idle.metadata["behind_seconds"].value == 0
    assert "idle" in str(idle.description)

    _plan(job, metadata.job_id, claim.epoch, 3, ago=90_000)
    assert _run_check(job, "fresh").passed, "batch 3 has its checkpoint"
    _plan(job, metadata.job_id, claim.epoch, 4, ago=60)
    waiting = _run_check(job, "fresh")
    assert waiting.passed
    assert waiting.metadata["batches_behind"].value == 1
    _plan(job, metadata.job_id, claim.epoch, 5, ago=20)
    job.checkpoint(store, 4)
    behind = _run_check(job, "fresh").metadata["behind_seconds"].value
    assert isinstance(behind, float)
    assert behind < 60

    _plan(job, metadata.job_id, claim.epoch, 6, ago=20)
    job.end(claim, "FINISHED")
    assert _run_check(job, "fresh").passed, "nobody runs it"


def test_fresh_is_red_when_a_batch_waits_too_long(job: StoredJob) -> None:
    claim = job.claim(run_id(), ago=86_400)
    metadata = job.checkpoint(job.choose(claim), 3)
    job.beat(claim, alive=True)
    _plan(job, metadata.job_id, claim.epoch, 4, ago=181)
    red = _run_check(job, "fresh")
    assert not red.passed
    assert "Batch 4 has waited" in str(red.description)
    assert red.metadata["allowed_seconds"].value == 180


@pytest.mark.parametrize(
    ("given", "ago", "allowed"),
    [
        ({"interval": "2 h", "timeout": "1 min"}, 600, 6 * 3600),
        ({"interval": "10 s", "timeout": "10 s"}, 100, 30),
        ({"interval": "-1 s"}, 100, 180),
    ],
    ids=["a longer interval", "a shorter interval", "settings that nobody can use any more"],
)
def test_fresh_goes_by_what_the_run_was_launched_with(
    job: StoredJob, given: dict[str, str], ago: int, allowed: int
) -> None:
    settings = {f"execution.checkpointing.{key}": text for key, text in given.items()}
    with dg.DagsterInstance.ephemeral() as instance:
        claim = job.claim(launched(instance, {"configuration": settings}), ago=86_400)
        metadata = job.checkpoint(job.choose(claim), 3)
        job.beat(claim, alive=True)
        _plan(job, metadata.job_id, claim.epoch, 4, ago=ago)
        found = _run_check(job, "fresh", instance)
    assert found.metadata["allowed_seconds"].value == allowed
    assert found.passed is (ago < allowed)


def test_a_drill_restores_by_what_the_last_run_was_launched_with(
    job: StoredJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the run that goes on with the job restores it."""
    drilled: list[StreamingJob] = []
    monkeypatch.setattr(drilling, "drill_restore", lambda job, *_, **__: drilled.append(job))
    resources = {"checkpoint_storage": job.storage, "spark": SparkSessionResource()}
    with dg.DagsterInstance.ephemeral() as instance:
        given = {"configuration": {"execution.checkpointing.mode": "AT_LEAST_ONCE"}}
        for run in (run_id(), launched(instance, given)):
            job.die(run)
            with dg.build_asset_context(resources=resources, instance=instance) as context:
                drilling.run_drill(make_asset(), context, {}, scratch_directory=None, timeout=timedelta(1))
    assert [str(drill.config.mode.value) for drill in drilled] == ["EXACTLY_ONCE", "AT_LEAST_ONCE"]


def test_fresh_is_red_when_a_job_is_dead_for_long_or_has_failed(job: StoredJob) -> None:
    claim = job.claim(run_id(), ago=86_400)
    job.checkpoint(job.choose(claim), 3)
    job.beat(claim, alive=False, ago=100)
    assert _run_check(job, "fresh").passed, "the sensor resumes it"
    job.beat(claim, alive=False, ago=200)
    assert not _run_check(job, "fresh").passed
    job.end(claim, "FAILED", "the third failure")
    failed = _run_check(job, "fresh")
    assert not failed.passed
    assert "the third failure" in str(failed.description)


def _of_drills(**options: str) -> dg.Definitions:
    definitions = build_restore_drill(make_asset(), **options)  # type: ignore[arg-type]
    return dg.Definitions.merge(definitions, dg.Definitions(resources={"checkpoint_storage": 1, "spark": 1}))


def _drill(instance: dg.DagsterInstance, drill: Callable[..., object]) -> None:
    """A run of the drill in which ``drill`` does the work."""
    with mock.patch("dagster_ckpt.orchestration.proof.drilling.run_drill", drill):
        job = _of_drills().resolve_job_def("orders_drill_job")
        job.execute_in_process(instance=instance, raise_on_error=False)


def _raising(error: BaseException) -> Callable[..., object]:
    def drill(*_: object, **__: object) -> None:
        raise error

    return drill


def _killed(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _drill_in_process_of_its_own(home: str) -> None:
    with dg.DagsterInstance.from_config(home) as instance:
        _drill(instance, _killed)


def _drilled(instance: dg.DagsterInstance, **options: str) -> dg.AssetCheckEvaluation:
    whole = _of_drills(**options).resolve_implicit_global_asset_job_def()
    key = dg.AssetCheckKey(_DRILL, "drilled")
    only = whole.get_subset(asset_check_selection={key}, asset_selection=set())
    (found,) = only.execute_in_process(instance=instance).get_asset_check_evaluations()
    return found


def test_drilled_is_red_without_a_good_and_recent_drill() -> None:
    key = _DRILL
    with dg.DagsterInstance.ephemeral() as instance:
        assert not _drilled(instance).passed, "there was none"
        instance.report_runless_asset_event(dg.AssetMaterialization(key))
        assert _drilled(instance).passed
        stale = _drilled(instance, max_age="1 ms")
        assert not stale.passed
        assert "old" in str(stale.description)
        instance.report_runless_asset_event(dg.AssetObservation(key, description="chk-3 cannot be restored"))
        failed = _drilled(instance)
        assert not failed.passed
        assert "chk-3 cannot be restored" in str(failed.description)
        instance.report_runless_asset_event(dg.AssetMaterialization(key))
        assert _drilled(instance).passed


def test_drilled_stays_red_after_a_drill_that_failed() -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        instance.report_runless_asset_event(dg.AssetMaterialization(_DRILL))
        _drill(instance, _raising(CheckpointNotFound("chk-3 is gone")))
        for _ in range(2):
            failed = _drilled(instance)
            assert not failed.passed
            assert failed.description == "The last restore drill failed: chk-3 is gone"


@pytest.mark.parametrize("interrupt", [dg.DagsterExecutionInterruptedError, KeyboardInterrupt])
def test_drilled_stays_as_it_was_after_a_drill_that_was_interrupted(interrupt: type[BaseException]) -> None:
    """Though Dagster counts its run as failed: nobody has asked it to terminate the run."""
    with dg.DagsterInstance.ephemeral() as instance:
        instance.report_runless_asset_event(dg.AssetMaterialization(_DRILL))
        with contextlib.suppress(interrupt):
            _drill(instance, _raising(interrupt()))
        assert _drilled(instance).passed
        assert not _drilled(instance, timeout="1 ms").passed, "it had taken too long, whoever ended it"
        _drill(instance, _raising(CheckpointNotFound("chk-3 is gone")))
        with contextlib.suppress(interrupt):
            _drill(instance, _raising(interrupt()))
        assert not _drilled(instance).passed, "the drill before has failed"


@pytest.mark.slow
def test_drilled_is_red_after_a_drill_that_was_killed(tmp_path: Path) -> None:
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        instance.report_runless_asset_event(dg.AssetMaterialization(_DRILL))
        process = get_context("spawn").Process(target=_drill_in_process_of_its_own, args=(str(tmp_path),))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        (run,) = instance.get_runs(filters=dg.RunsFilter(job_name="orders_drill_job"))
        assert not run.is_finished, "Dagster does not know yet"
        assert _drilled(instance).passed, "it may be going on"
        late = _drilled(instance, timeout="1 ms")
        assert not late.passed
        assert f"run {run.run_id} has not ended in" in str(late.description)
        instance.report_run_failed(run)
        killed = _drilled(instance)
        assert not killed.passed
        assert f"run {run.run_id} ended without a word" in str(killed.description)
        instance.report_runless_asset_event(dg.AssetMaterialization(_DRILL))
        assert _drilled(instance, timeout="1 ms").passed


@pytest.mark.slow
@pytest.mark.exhaustive
def test_drilled_stays_as_it_was_after_a_drill_that_was_terminated(tmp_path: Path) -> None:
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        instance.report_runless_asset_event(dg.AssetMaterialization(_DRILL))
        process = get_context("spawn").Process(target=_drill_in_process_of_its_own, args=(str(tmp_path),))
        process.start()
        process.join()
        (run,) = instance.get_runs(filters=dg.RunsFilter(job_name="orders_drill_job"))
        instance.report_run_canceled(run)
        assert _drilled(instance, timeout="1 ms").passed


def test_schedules_of_drills_and_checks_and_what_they_run(job: StoredJob) -> None:
    asset = make_asset()
    resources = {"checkpoint_storage": job.storage, "spark": SparkSessionResource()}
    definitions = dg.Definitions.merge(
        build_checkpoint_definitions([asset], resources),
        build_restore_drill(asset, cron_schedule="0 4 * * *", check_schedule="0 * * * *", max_age=timedelta(days=2)),
    )
    repository = definitions.get_repository_def()
    schedules = {schedule.job_name: schedule.cron_schedule for schedule in repository.schedule_defs}
    assert schedules == {"orders_drill_job": "0 4 * * *", "orders_checks_job": "0 * * * *"}
    checked = definitions.resolve_job_def("orders_checks_job").asset_layer.asset_graph.asset_check_keys
    assert {str(key.name) for key in checked} == {"restorable", "fresh", "drilled"}
    with pytest.raises(InvalidConfiguration, match="max_age"):
        build_restore_drill(asset, max_age="soon")
