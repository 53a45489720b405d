"""What Dagster's automation makes of a stream whose run goes on, which may be for months.

Dagster counts an asset as in progress until its run materializes it. So the run of a stream materializes its asset at
its end alone, an event without a run tells of the first checkpoint, and other assets follow the checkpoints.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import fields, replace
from datetime import timedelta
from pathlib import Path
from unittest.mock import Mock, call, create_autospec

import dagster as dg
import pytest
from dagster._core.events import DagsterEvent, DagsterEventType, StepMaterializationData
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from dagster_ckpt import (
    FileSystemCheckpointStorage,
    SparkSessionResource,
    build_checkpoint_definitions,
    checkpointed_streaming_asset,
)
from dagster_ckpt.checkpoint.control.epochs import Claim
from dagster_ckpt.clock import SystemClock
from dagster_ckpt.orchestration.attending.driver_report import DriverReport, Told
from dagster_ckpt.orchestration.attending.own_run import OwnRun
from dagster_ckpt.orchestration.events import JobEvents
from dagster_ckpt.orchestration.health import HealthWatch
from dagster_ckpt.orchestration.reporting import CheckpointReporter, FirstRows
from dagster_ckpt.orchestration.streaming_run import _told
from dagster_ckpt.spark import CheckpointCompleted, Preflight, Started
from tests.helpers.orchestration.stored_job import StoredJob, run_id

# Of Dagster itself, in its function that evaluates conditions.
pytestmark = pytest.mark.filterwarnings("ignore:Parameter .include_sources. of function")


@dg.asset
def landed() -> None: ...


@checkpointed_streaming_asset(deps=[landed], automation_condition=dg.AutomationCondition.eager())
def orders(context: dg.AssetExecutionContext, spark: SparkSession) -> DataStreamWriter:
    raise AssertionError("no test runs this query")


@dg.asset(deps=[orders.checkpoints_key], automation_condition=dg.AutomationCondition.eager())
def follower() -> None: ...


def _started(*, is_bounded: bool) -> Started:
    nothing = Preflight("nothing", ())
    return Started(1, "0" * 32, None, [], "of the test", "", 0.0, nothing, is_bounded=is_bounded)


def _completed(stored: StoredJob, batch: int) -> CheckpointCompleted:
    checkpoint = stored.checkpoint(stored.choose(stored.claim(run_id())), batch)
    return CheckpointCompleted(checkpoint, [checkpoint])


def _fail(_: object) -> None:
    raise OSError("the database is away")


def _attended(
    automation: Automation, stored: StoredJob, claim: Claim, reporter: CheckpointReporter | None = None
) -> DriverReport:
    """The report of a run that attends the driver which has claimed the job, told to whom a run tells it.

    The run itself was deleted in Dagster.
    """
    first_rows = FirstRows(automation.instance, orders.get_asset_spec(), orders.key)
    kinds = (dg.AssetExecutionContext, OwnRun, JobEvents, HealthWatch)
    context, own_run, events, health = (create_autospec(kind, instance=True) for kind in kinds)
    context.instance, context.run.run_id = automation.instance, claim.run_id
    told = _told(context, lambda: None, own_run, events, health, first_rows)
    reporter = reporter or create_autospec(CheckpointReporter)
    report = DriverReport(stored.catalog, claim.run_id, reporter, told, SystemClock(), time.sleep)
    report.claimed(claim)
    return report


class Automation:
    """Dagster's automation of the assets, evaluated when a test says so; it launches nothing."""

    def __init__(self, instance: dg.DagsterInstance, storage: Path) -> None:
        self.instance = instance
        resources = {
            "checkpoint_storage": FileSystemCheckpointStorage(checkpoint_path=str(storage)),
            "spark": SparkSessionResource(),
        }
        self.definitions = dg.Definitions.merge(
            build_checkpoint_definitions([orders], resources), dg.Definitions([landed, follower])
        )
        self._result = dg.evaluate_automation_conditions(self.definitions, instance)

    def land(self) -> set[str]:
        """Materialize the stream's input; returns the assets that Dagster launches then."""
        self.instance.report_runless_asset_event(dg.AssetMaterialization(landed.key))
        return self.evaluate()

    def evaluate(self) -> set[str]:
        self._result = dg.evaluate_automation_conditions(self.definitions, self.instance, cursor=self._result.cursor)
        return {found.key.to_user_string() for found in self._result.results if found.true_subset.size}


@pytest.fixture
def automation(tmp_path: Path) -> Iterator[Automation]:
    with dg.DagsterInstance.ephemeral() as instance:
        found = Automation(instance, tmp_path)
        assert found.land() == {"orders"}
        yield found


@pytest.fixture
def stored(tmp_path: Path) -> StoredJob:
    return StoredJob(tmp_path / "of-the-stream")


@pytest.fixture
def run(automation: Automation) -> dg.DagsterRun:
    """A run of the stream that has started."""
    job = automation.definitions.resolve_job_def(orders.job_name)
    run = automation.instance.create_run_for_job(job, status=dg.DagsterRunStatus.STARTED)
    assert automation.evaluate() == set()
    return run


@pytest.mark.usefixtures("run")
def test_a_running_stream_is_not_launched_again(automation: Automation) -> None:
    assert automation.land() == set()
    assert automation.land() == set()


def test_a_stream_that_its_run_had_materialized_would_be_launched_beside_that_run(
    automation: Automation, run: dg.DagsterRun
) -> None:
    materialized = StepMaterializationData(dg.AssetMaterialization(orders.key))
    event = DagsterEvent(
        DagsterEventType.ASSET_MATERIALIZATION.value, orders.job_name, event_specific_data=materialized
    )
    automation.instance.report_dagster_event(event, run.run_id)
    assert automation.evaluate() == set()
    assert automation.land() == {"orders"}


@pytest.mark.usefixtures("run")
def test_the_first_checkpoint_materializes_a_stream_that_stays_in_progress(
    automation: Automation, stored: StoredJob
) -> None:
    first_rows = FirstRows(automation.instance, orders.get_asset_spec(), orders.key)
    for event in (_started(is_bounded=False), _completed(stored, 0), _completed(stored, 1)):
        first_rows.happened(event)
    (told,) = automation.instance.fetch_materializations(orders.key, limit=10).records
    assert told.asset_materialization is not None
    assert told.asset_materialization.metadata["batch"].value == 0
    assert not told.run_id, "with a run the asset would not be in progress any more"
    assert automation.evaluate() == set()
    assert automation.land() == set()
    again = FirstRows(automation.instance, orders.get_asset_spec(), orders.key)
    again.happened(_started(is_bounded=False))
    again.happened(_completed(stored, 2))
    assert len(automation.instance.fetch_materializations(orders.key, limit=10).records) == 1
    assert automation.definitions.resolve_asset_graph().get(orders.savepoints_key).parent_keys == {orders.key}


@pytest.mark.usefixtures("run")
def test_a_bounded_query_is_not_materialized_before_its_end(automation: Automation, stored: StoredJob) -> None:
    first_rows = FirstRows(automation.instance, orders.get_asset_spec(), orders.key)
    for event in (_completed(stored, 0), _started(is_bounded=True), _completed(stored, 1)):
        first_rows.happened(event)
    assert not automation.instance.fetch_materializations(orders.key, limit=10).records


def test_a_driver_of_its_own_tells_by_its_choice_that_its_query_goes_on(
    automation: Automation, stored: StoredJob
) -> None:
    """A run that attends reads the job's records alone; a driver of an earlier release does not tell."""
    for is_bounded in (None, True, False):
        claim = stored.claim(run_id())
        stored.checkpoint(stored.choose(claim, is_bounded=is_bounded), 1)
        report = _attended(automation, stored, claim)
        report.look(None)
        report.look(None)
        stored.end(claim, "FINISHED")
        found = automation.instance.fetch_materializations(orders.key, limit=10).records
        assert [not event.run_id for event in found] == ([] if is_bounded in {None, True} else [True])


def test_a_deleted_run_reports_the_next_start_of_its_driver(automation: Automation, stored: StoredJob) -> None:
    first = stored.claim(run_id())
    checkpoint = stored.checkpoint(stored.choose(first), 0)
    reporter = create_autospec(CheckpointReporter)
    report = _attended(automation, stored, first, reporter)
    report.look(None)
    second = stored.claim(first.run_id)
    report.claimed(second)
    stored.choose(second, checkpoint)
    report.look(None)
    report.look(None)
    assert reporter.began.call_args_list == [call([checkpoint])] * 2


def test_a_report_that_fails_again_and_again_is_told_of_once(stored: StoredJob) -> None:
    log, reporter, claim = Mock(), create_autospec(CheckpointReporter), stored.claim(run_id())
    told = replace(Told(*(Mock() for _ in fields(Told))), log=log)
    stored.choose(claim)
    report = DriverReport(stored.catalog, claim.run_id, reporter, told, SystemClock(), time.sleep)
    report.claimed(claim)
    for trouble in ("the database is away", "the database is away", "", "the database is away"):
        reporter.tick.side_effect = OSError(trouble) if trouble else None
        report.look(None)
    lines = [line for _, line in (entry.args for entry in log.call_args_list) if "could not be reported" in line]
    assert lines == ["The job could not be reported now: the database is away"] * 2


def test_what_a_driver_of_its_own_has_found_is_no_work_of_its_query(automation: Automation, stored: StoredJob) -> None:
    """Such as the checkpoint that a fork begins with: its sink is empty until its query has run."""
    found = stored.checkpoint(stored.choose(stored.claim(run_id())), 1)
    claim = stored.claim(run_id())
    store = stored.choose(claim, found, is_bounded=False)
    report = _attended(automation, stored, claim)
    report.look(None)
    report.look(None)
    assert not automation.instance.fetch_materializations(orders.key, limit=10).records
    stored.beat(claim, alive=True, completed=stored.checkpoint(store, 2))
    report.look(stored.catalog.records.heartbeat.read())
    (told,) = automation.instance.fetch_materializations(orders.key, limit=10).records
    assert told.asset_materialization is not None
    assert told.asset_materialization.metadata["batch"].value == 2


def test_a_freshness_policy_does_not_begin_with_the_first_checkpoint(stored: StoredJob) -> None:
    policy = dg.FreshnessPolicy.time_window(fail_window=timedelta(days=1))
    spec = orders.get_asset_spec().replace_attributes(freshness_policy=policy)
    with dg.DagsterInstance.ephemeral() as instance:
        first_rows = FirstRows(instance, spec, orders.key)
        first_rows.happened(_started(is_bounded=False))
        first_rows.happened(_completed(stored, 0))
        assert not instance.fetch_materializations(orders.key, limit=10).records


def test_an_instance_that_fails_costs_the_run_nothing(stored: StoredJob, caplog: pytest.LogCaptureFixture) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        first_rows = FirstRows(instance, orders.get_asset_spec(), orders.key)
    first_rows.happened(_started(is_bounded=False))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(instance, "get_latest_materialization_event", _fail)
        first_rows.happened(_completed(stored, 0))
    assert "orders still counts as never materialized: the database is away" in caplog.text


@pytest.mark.usefixtures("run")
def test_an_asset_that_depends_on_the_checkpoints_is_launched_at_each_of_them(automation: Automation) -> None:
    for key in ("0123abcd.chk-1", "0123abcd.chk-2"):
        automation.instance.report_runless_asset_event(dg.AssetMaterialization(orders.checkpoints_key, partition=key))
        automation.instance.add_dynamic_partitions(orders.partitions_name, [key])
        assert automation.evaluate() == {"follower"}
        assert automation.evaluate() == set()
