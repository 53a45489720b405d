"""What goes wrong with a real job is seen on its asset in Dagster: while it happens, and later what Dagster missed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest

from dagster_ckpt import (
    CheckpointConfig,
    CheckpointedStreamingAsset,
    FileSystemCheckpointStorage,
    RestartStrategies,
    SparkSessionResource,
    checkpointed_streaming_asset,
    run,
)
from dagster_ckpt.checkpoint.taking.store import CompletedCheckpointStore
from dagster_ckpt.errors import CheckpointNotFound, QueryNotBuilt, SinkNotEmpty, StorageError
from dagster_ckpt.orchestration.events.occurrence import EVENT
from dagster_ckpt.orchestration.health import CHECK
from dagster_ckpt.orchestration.reporting import CheckpointReporter
from tests.jobs.harness import Bench, deduplicated

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_OFTEN = CheckpointConfig(interval="50 ms", num_retained=10, tolerable_failed_checkpoints=None)


def _asset(
    bench: Bench, errors: list[Exception], name: str | None = None, job_name: str | None = None
) -> CheckpointedStreamingAsset:
    """The job, whose function raises these errors first."""

    @checkpointed_streaming_asset(
        name=name or bench.name,
        job_name=job_name,
        config=_OFTEN,
        restart=RestartStrategies.fixed_delay_restart(1, "1 ms"),
    )
    def stream(context: dg.AssetExecutionContext, spark: SparkSession) -> DataStreamWriter:
        if errors:
            raise errors.pop(0)
        return deduplicated(bench, spark)

    return stream


def _storage(bench: Bench) -> FileSystemCheckpointStorage:
    return FileSystemCheckpointStorage(checkpoint_path=str(bench.storage), working_directory=str(bench.working))


def _under_dagster(bench: Bench, instance: dg.DagsterInstance, errors: list[Exception], **config: Any) -> None:
    _run_asset(bench, instance, _asset(bench, errors), config)


def _run_asset(
    bench: Bench, instance: dg.DagsterInstance, asset: CheckpointedStreamingAsset, config: dict[str, Any]
) -> None:
    resources = {"checkpoint_storage": _storage(bench), "spark": SparkSessionResource()}
    job = dg.Definitions([asset], jobs=[asset.job], resources=resources).resolve_job_def(asset.job_name)
    job.execute_in_process({"ops": {asset.op_name: {"config": config}}}, instance=instance)


def _told(asset: str, instance: dg.DagsterInstance) -> list[tuple[str, str]]:
    records = instance.fetch_observations(dg.AssetKey([asset]), limit=100, ascending=True).records
    observations = [record.asset_observation for record in records if record.asset_observation is not None]
    return [
        (item.tags[EVENT], f"{item.metadata['reason'].value} {item.metadata['next_step'].value}")
        for item in observations
        if EVENT in item.tags
    ]


def _second_fails(write: Callable[..., Any]) -> Callable[..., Any]:
    """Each second checkpoint cannot be written."""
    calls: list[None] = []

    def failing(*arguments: Any, **options: Any) -> Any:
        calls.append(None)
        if len(calls) % 2:
            raise StorageError("no space left on device")
        return write(*arguments, **options)

    return failing


def _refused(*_: Any) -> None:
    raise ConnectionError("the database of Dagster is busy")


def test_each_thing_that_goes_wrong_is_seen(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        bench.land(1)
        with pytest.raises(QueryNotBuilt):  # Dagster is away
            run(_asset(bench, [KeyError("no such table")] * 2), storage=_storage(bench))
        assert _told(bench.name, instance) == []

        bench.land(3)
        with monkeypatch.context() as patch:
            patch.setattr(CompletedCheckpointStore, "write", _second_fails(CompletedCheckpointStore.write))
            patch.setattr(CheckpointReporter, "began", _refused)  # one report that fails costs no other
            _under_dagster(bench, instance, [ConnectionError("the catalog is away")])
        told = _told(bench.name, instance)
        assert [event for event, _ in told[:3]] == ["restart", "failed", "restart"], "what Dagster missed comes first"
        assert sum("no such table" in text for _, text in told) == 2
        assert any("the catalog is away" in text for event, text in told if event == "restart")
        failed = [text for event, text in told if event == "failed_checkpoint"]
        assert failed
        assert all("no space left on device" in text for text in failed)
        (healthy,) = instance.event_log_storage.get_asset_check_execution_history(
            dg.AssetCheckKey(dg.AssetKey([bench.name]), CHECK), limit=9
        )
        assert healthy.status.value == "SUCCEEDED"

        with pytest.raises(CheckpointNotFound):
            _under_dagster(bench, instance, [], restore_from="chk-999")
        event, text = _told(bench.name, instance)[-1]
        assert event == "refused_start"
        assert "chk-999" in text
        bench.assert_exact()


def test_an_asset_that_was_renamed_is_told_how_it_goes_on(bench: Bench) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        bench.land(2)
        _under_dagster(bench, instance, [])
        bench.land(1)
        with pytest.raises(SinkNotEmpty):
            _run_asset(bench, instance, _asset(bench, [], name="orders"), {})
        ((event, text),) = _told("orders", instance)
        assert event == "refused_start"
        assert "give it the job_name that it had, and it goes on from its checkpoints." in text
        assert f"Jobs in this storage: {bench.name}." in text
        _run_asset(bench, instance, _asset(bench, [], name="orders", job_name=bench.name), {})
        assert instance.get_latest_materialization_event(dg.AssetKey(["orders"])) is not None
        assert instance.get_latest_materialization_event(dg.AssetKey(["orders_checkpoints"])) is not None
    bench.assert_exact()
    assert len({metadata.job_id for metadata in bench.checkpoints()}) == 1, "it began anew"
