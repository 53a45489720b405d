"""What Dagster's automation makes of a stream whose run goes on, which may be for months.

Dagster counts an asset as in progress until its run materializes it. So the run of a stream materializes its asset at
its end alone, and other assets follow the checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

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

# Of Dagster itself, in its function that evaluates conditions.
pytestmark = pytest.mark.filterwarnings("ignore:Parameter .include_sources. of function")


@dg.asset
def landed() -> None: ...


@checkpointed_streaming_asset(deps=[landed], automation_condition=dg.AutomationCondition.eager())
def orders(context: dg.AssetExecutionContext, spark: SparkSession) -> DataStreamWriter:
    raise AssertionError("no test runs this query")


@dg.asset(deps=[orders.checkpoints_key], automation_condition=dg.AutomationCondition.eager())
def follower() -> None: ...


class Automation:
    """Dagster's automation of the three assets, evaluated when a test says so; it launches nothing."""

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
def test_an_asset_that_depends_on_the_checkpoints_is_launched_at_each_of_them(automation: Automation) -> None:
    for key in ("0123abcd.chk-1", "0123abcd.chk-2"):
        automation.instance.report_runless_asset_event(dg.AssetMaterialization(orders.checkpoints_key, partition=key))
        automation.instance.add_dynamic_partitions(orders.partitions_name, [key])
        assert automation.evaluate() == {"follower"}
        assert automation.evaluate() == set()
