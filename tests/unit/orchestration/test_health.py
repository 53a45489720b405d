"""The check ``healthy``."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from dagster_ckpt import (
    CheckpointConfig,
    CheckpointedStreamingAsset,
    RestartStrategies,
    SparkSessionResource,
    SparkSubmitResource,
    build_checkpoint_definitions,
    checkpointed_streaming_asset,
)
from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.catalog.newest import find_newest
from dagster_ckpt.checkpoint.control.failures import Failure
from dagster_ckpt.checkpoint.control.heartbeat import FailedCheckpoints, HeartbeatFile
from dagster_ckpt.checkpoint.submissions import Submission
from dagster_ckpt.clock import SystemClock
from dagster_ckpt.errors import NotRestarted, SparkNotStarted
from dagster_ckpt.orchestration import names
from dagster_ckpt.orchestration.health import CHECK, HealthWatch, evaluation
from dagster_ckpt.spark import CheckpointCompleted, CheckpointDue, CheckpointFailed
from dagster_ckpt.testing import Fail, FaultInjectingFileSystem
from tests.helpers.checkpoint.driver import ManualClock
from tests.helpers.checkpoint.submitting import submitted
from tests.helpers.orchestration.stored_job import StoredJob, launched, make_asset, run_id

_KEY = dg.AssetKey(["orders"])


@pytest.fixture
def job(tmp_path: Path) -> StoredJob:
    return StoredJob(tmp_path, "orders")


def _run_check(job: StoredJob, instance: dg.DagsterInstance | None = None) -> dg.AssetCheckEvaluation:
    """As an operator runs the check in Dagster."""
    resources = {"checkpoint_storage": job.storage, "spark": SparkSessionResource()}
    definitions = build_checkpoint_definitions([make_asset()], resources)
    job_of_dagster = definitions.resolve_implicit_global_asset_job_def()
    only = job_of_dagster.get_subset(asset_check_selection={dg.AssetCheckKey(_KEY, CHECK)}, asset_selection=set())
    (found,) = only.execute_in_process(instance=instance).get_asset_check_evaluations()
    return found


def test_the_check_is_red_only_while_a_job_needs_help(job: StoredJob) -> None:
    assert _run_check(job).passed, "it has never run"
    claim = job.claim(run_id())
    metadata = job.checkpoint(job.choose(claim), 3)
    job.beat(claim, alive=True)
    running = _run_check(job)
    assert running.passed
    assert running.metadata["checkpoint"].value == metadata.reference
    job.beat(claim, alive=False)
    assert _run_check(job).passed, "the sensor resumes it"
    job.end(claim, "FAILED", "the third failure")
    failed = _run_check(job)
    assert not failed.passed
    assert failed.severity is dg.AssetCheckSeverity.ERROR
    assert "the third failure" in str(failed.description)
    assert "restore_from: latest" in str(failed.description)
    job.beat(job.claim(run_id()), alive=True)
    assert _run_check(job).passed


class TestTheRunsOwnSettings:
    """A run that was launched with settings of its own is judged by these, as the run judges itself."""

    @pytest.fixture
    def instance(self) -> Iterator[dg.DagsterInstance]:
        with dg.DagsterInstance.ephemeral() as ephemeral:
            yield ephemeral

    def test_a_run_that_may_fall_back_is_resumed(self, job: StoredJob, instance: dg.DagsterInstance) -> None:
        job.die(launched(instance, {"fallback_to_older": True}), checkpoints=2)
        _damage_newest(job)
        found = _run_check(job, instance)
        assert (found.passed, found.severity) == (False, dg.AssetCheckSeverity.WARN)
        job.beat(job.claim(run_id()), alive=False)  # of a run that Dagster does not know
        assert str(_run_check(job, instance).description).startswith("Nothing resumes the job: ")

    @pytest.mark.parametrize(("interval", "passed"), [("2 h", True), ("10 s", False)])
    def test_a_checkpoint_may_be_due_for_as_long_as_the_run_bears(
        self, job: StoredJob, instance: dg.DagsterInstance, interval: str, *, passed: bool
    ) -> None:
        """The asset bears 20 minutes, a run with 2 h bears 4 h, and one with 10 s and its timeout bears 20 s."""
        settings = {"execution.checkpointing.interval": interval, "execution.checkpointing.timeout": "10 s"}
        claim = job.claim(launched(instance, {"configuration": settings}))
        job.checkpoint(job.choose(claim), 3)
        job.beat(claim, alive=True)
        file = HeartbeatFile(job.catalog.filesystem, job.name)
        beat = file.read()
        assert beat is not None
        file.write(replace(beat, due_since=beat.beat_at - (3600 if passed else 60)))
        assert _run_check(job, instance).passed is passed


class TestAJobThatRuns:
    """As Flink's operator judges a job that it does not have to resume."""

    @staticmethod
    def _evaluate(job: StoredJob, config: CheckpointConfig, most: int | None = None) -> dg.AssetCheckEvaluation:
        return evaluation(_KEY, job.catalog, SystemClock(), lambda _: config, most)

    @pytest.mark.parametrize(
        ("options", "longest"),
        [
            ({"interval": "1 min", "timeout": "10 min", "tolerable_failed_checkpoints": 0}, 20),
            ({"interval": "30 min", "timeout": "10 min", "tolerable_failed_checkpoints": 2}, 120),
            ({"interval": "1 min", "timeout": "2 min", "tolerable_failed_checkpoints": None}, 4),
        ],
    )
    def test_no_checkpoint_for_too_long(self, job: StoredJob, options: dict[str, Any], longest: int) -> None:
        config = CheckpointConfig(**options)
        claim = job.claim(run_id())
        job.checkpoint(job.choose(claim), 3)
        job.beat(claim, alive=True)
        file = HeartbeatFile(job.catalog.filesystem, job.name)
        beat = file.read()
        assert beat is not None
        for minutes, passed in ((longest - 1, True), (longest + 1, False)):
            file.write(replace(beat, due_since=beat.beat_at - 60 * minutes))
            found = self._evaluate(job, config)
            assert found.passed is passed
            assert self._evaluate(job, config.model_copy(update={"interval": None})).passed, "none is ever due"
        assert found.severity is dg.AssetCheckSeverity.WARN
        file.write(
            replace(beat, due_since=beat.beat_at - 7300, failed_checkpoints=FailedCheckpoints(4, "full", 1.0, 9))
        )
        assert "4 in a row failed, the last one because: full." in str(self._evaluate(job, config).description)
        file.write(replace(beat, due_since=None, beat_at=beat.beat_at + 90 * 24 * 3600))
        assert self._evaluate(job, config).passed, "the stream is idle"

    def test_too_many_restarts_in_an_hour(self, job: StoredJob) -> None:
        claim = job.claim(run_id())
        job.choose(claim)
        job.beat(claim, alive=True)
        for sequence in range(1, 5):
            job.fail(claim, sequence)
        old = Failure(claim.run_id, 9, time.time() - 4000, None, "long ago")
        job.failures.record(claim.series, old)
        assert self._evaluate(job, CheckpointConfig(), 4).passed
        found = self._evaluate(job, CheckpointConfig(), 3)
        assert not found.passed
        assert found.severity is dg.AssetCheckSeverity.WARN
        assert "failed 4 times in the last hour" in str(found.description)
        assert "failure 4" in str(found.description)
        assert self._evaluate(job, CheckpointConfig(), None).passed
        job.end(claim, "FAILED", "the last failure")
        assert self._evaluate(job, CheckpointConfig(), 3).severity is dg.AssetCheckSeverity.ERROR

    def test_a_run_reports_what_it_sees_when_that_changes(self, job: StoredJob) -> None:
        verdicts = iter([True, True, False, False, True])
        reported: list[bool] = []
        clock = ManualClock()

        def evaluate() -> dg.AssetCheckEvaluation:
            return dg.AssetCheckEvaluation(asset_key=_KEY, check_name=CHECK, passed=next(verdicts), metadata={})

        watch = HealthWatch(evaluate, lambda found: reported.append(found.passed), clock)
        watch.tick()
        assert reported == [], "the query has not started"
        watch.began()
        for _ in range(5):
            watch.tick()
            clock.advance(59)
            watch.tick()
            clock.advance(2)
        assert reported == [True, False, True]

    @pytest.mark.parametrize("distant", [False, True], ids=["a directory", "a bucket"])
    def test_while_nothing_happens_a_bucket_is_looked_at_twice_an_hour(self, job: StoredJob, *, distant: bool) -> None:
        storage, clock, looks = FaultInjectingFileSystem(job.catalog.filesystem), ManualClock(), list[float]()
        storage.is_distant = distant

        def evaluate() -> dg.AssetCheckEvaluation:
            looks.append(clock.now)
            return dg.AssetCheckEvaluation(asset_key=_KEY, check_name=CHECK, passed=True, metadata={})

        def looks_within(seconds: int) -> int:
            before = len(looks)
            for _ in range(seconds // 10):
                clock.advance(10)
                watch.tick()
            return len(looks) - before

        watch = HealthWatch(evaluate, lambda _: None, clock)
        watch.hears_all(storage)
        watch.happened(CheckpointFailed(1, "", 1))
        assert looks_within(3600) == 0, "the query has not started"
        watch.began()
        assert looks_within(3600) == (1 if distant else 60)
        watch.happened(CheckpointDue())
        assert looks_within(600) >= 9, "a checkpoint that is due may be late"
        watch.happened(CheckpointFailed(1, "", 1))
        assert looks_within(600) >= 9
        watch.happened(CheckpointCompleted(job.checkpoint(job.choose(job.claim(run_id())), 1), ()))
        assert looks_within(60) == 1, "soon after the checkpoint"
        assert looks_within(3600) == (1 if distant else 60)
        watch.beaten(True)
        assert looks_within(600) >= 9, "a driver elsewhere tells by its beats that a checkpoint is due"
        watch.beaten(False)
        assert looks_within(60) == 1
        assert looks_within(3600) == (1 if distant else 60)

    def test_a_storage_that_fails_for_a_moment_is_looked_at_again(self, job: StoredJob) -> None:
        job.beat(job.claim(run_id()), alive=True)
        storage, reported, clock = FaultInjectingFileSystem(job.catalog.filesystem), list[bool](), ManualClock()
        catalog = CheckpointCatalog(storage, job.name)
        watch = HealthWatch(
            lambda: evaluation(_KEY, catalog, SystemClock(), lambda _: CheckpointConfig(), None),
            lambda found: reported.append(found.passed),
            clock,
        )
        watch.began()
        storage.plan = lambda _: Fail()
        watch.tick()
        assert reported == []
        storage.plan = lambda _: None
        clock.advance(61)
        watch.tick()
        assert reported == [True]


def _damage_newest(job: StoredJob) -> Path:
    newest = find_newest(job.catalog).metadata
    assert newest is not None
    metadata = job.root / job.name / newest.reference / "_metadata"
    metadata.write_bytes(metadata.read_bytes()[:-20])
    return metadata


class TestADamagedNewestCheckpoint:
    """The check tells of the damage, and is red only where nobody goes on."""

    @staticmethod
    def _evaluate(job: StoredJob, *, fallback_to_older: bool = False) -> dg.AssetCheckEvaluation:
        config = CheckpointConfig(fallback_to_older=fallback_to_older)
        return evaluation(_KEY, job.catalog, SystemClock(), lambda _: config, None)

    def test_a_job_that_runs_is_yellow(self, job: StoredJob) -> None:
        claim = job.claim(run_id())
        store = job.choose(claim)
        job.checkpoint(store, 3)
        job.beat(claim, alive=True)
        metadata = _damage_newest(job)
        found = self._evaluate(job)
        assert (found.passed, found.severity) == (False, dg.AssetCheckSeverity.WARN)
        assert str(metadata) in str(found.description)
        job.checkpoint(store, 4)
        assert self._evaluate(job).passed, "a newer checkpoint takes its place"

    def test_a_job_that_is_to_be_resumed_is_red_unless_a_run_may_go_past_it(self, job: StoredJob) -> None:
        job.die(run_id())
        metadata = _damage_newest(job)
        found = self._evaluate(job)
        assert (found.passed, found.severity) == (False, dg.AssetCheckSeverity.ERROR)
        assert str(found.description).startswith("Nothing resumes the job: ")
        assert str(metadata) in str(found.description)
        yellow = (False, dg.AssetCheckSeverity.WARN)
        past = self._evaluate(job, fallback_to_older=True)
        assert (past.passed, past.severity) == yellow
        (job.root.parent / "live").mkdir()
        salvaged = self._evaluate(job)
        assert (salvaged.passed, salvaged.severity) == yellow

    def test_a_job_that_has_failed_stays_failed(self, job: StoredJob) -> None:
        claim = job.die(run_id())
        job.end(claim, "FAILED", "the third failure")
        metadata = _damage_newest(job)
        found = self._evaluate(job, fallback_to_older=True)
        assert (found.passed, found.severity) == (False, dg.AssetCheckSeverity.ERROR)
        assert "FAILED: the third failure" in str(found.description)
        assert str(metadata) in str(found.description)


def test_the_check_is_not_planned_with_the_run_of_the_stream(job: StoredJob) -> None:
    definitions = build_checkpoint_definitions([make_asset()], {"checkpoint_storage": job.storage, "spark": 1})
    assert not definitions.resolve_job_def("orders_job").asset_layer.asset_graph.asset_check_keys
    assert dg.AssetCheckKey(_KEY, CHECK) in definitions.resolve_asset_graph().asset_check_keys


class _NeverStarts(SparkSessionResource):
    """Spark that cannot start: from the second start on it waits for what Dagster is told of the check."""

    def session(self, job_name: str, required: Mapping[str, str] | None = None) -> SparkSession:
        _starts.append(job_name)
        if len(_starts) > 1:
            assert _told.wait(60), "nobody reports the check"
        raise SparkNotStarted("there is no Spark here")


_starts: list[str] = []
_told = threading.Event()


@pytest.fixture
def strict() -> CheckpointedStreamingAsset:
    """An asset whose job is not well after one restart."""

    @checkpointed_streaming_asset(
        name="orders", restart=RestartStrategies.fixed_delay_restart(1, "1 ms"), most_restarts_per_hour=0
    )
    def never_run(context: dg.AssetExecutionContext, spark: SparkSession) -> DataStreamWriter:
        raise AssertionError("Spark never starts")

    return never_run


def _reports(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, then: Callable[[], object]
) -> list[dg.AssetCheckEvaluation]:
    """What runs report of the check from now on; after each report ``then`` is called."""
    found: list[dg.AssetCheckEvaluation] = []
    report = instance.report_runless_asset_event

    def reported(event: Any) -> None:
        report(event)
        if isinstance(event, dg.AssetCheckEvaluation):
            found.append(event)
            then()

    monkeypatch.setattr(instance, "report_runless_asset_event", reported)
    return found


def _is_yellow(found: dg.AssetCheckEvaluation) -> bool:
    told = "it failed 1 times in the last hour" in str(found.description)
    return told and not found.passed and found.severity is dg.AssetCheckSeverity.WARN


def test_a_run_whose_query_never_starts_reports_the_check(
    job: StoredJob, strict: CheckpointedStreamingAsset, monkeypatch: pytest.MonkeyPatch
) -> None:
    _starts.clear()
    _told.clear()
    with dg.DagsterInstance.ephemeral() as instance:
        found = _reports(instance, monkeypatch, _told.set)
        with pytest.raises(SparkNotStarted):
            dg.materialize(
                [strict], resources={"checkpoint_storage": job.storage, "spark": _NeverStarts()}, instance=instance
            )
    assert _is_yellow(found[0])


def test_a_run_that_attends_a_driver_whose_query_never_starts_reports_the_check(
    job: StoredJob, strict: CheckpointedStreamingAsset, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = job.claim(run_id())
    submitted(job.catalog.records, Submission(first.run_id, 0, None, "{}", 1.0))
    job.fail(first, 1)
    job.end(first, "FAILING")
    second = job.claim(first.run_id, series=first.series)
    job.beat(second, alive=True)

    def end() -> None:
        job.end(second, "FAILED")
        job.beat(second, alive=False, stopped=True)

    spark = SparkSubmitResource(definitions="some_project.definitions:defs")
    tags = {names.ATTENDS_TAG: first.run_id, names.PARENT_RUN_TAG: first.run_id}
    with dg.DagsterInstance.ephemeral() as instance:
        found = _reports(instance, monkeypatch, end)
        with pytest.raises(NotRestarted):
            dg.materialize(
                [strict], resources={"checkpoint_storage": job.storage, "spark": spark}, instance=instance, tags=tags
            )
    assert _is_yellow(found[0])
