"""A run that has a stream and its savepoints: the savepoint is of what the stream has come to in this run."""

# No `from __future__ import annotations`: Dagster must find real types on the functions of the assets.

import os
from collections.abc import Mapping
from pathlib import Path

import dagster as dg
import pytest

from dagster_ckpt import SparkSessionResource
from dagster_ckpt import spark as spark_door
from dagster_ckpt.config.checkpoint_config import JobStatus
from dagster_ckpt.orchestration.one_run import BEHIND, wait_for_stream
from dagster_ckpt.spark.job import RunResult
from tests.helpers.orchestration.stored_job import StoredJob, make_asset

_SPARK = SparkSessionResource()


@dg.asset
def stream(context: dg.AssetExecutionContext) -> None:
    """Ends when the other step has begun, however the executor orders them."""
    place = Path(context.run.tags["place"])
    while not (place / "begun").exists():
        os.sched_yield()
    if "fails" in context.run.tags:
        raise RuntimeError("the stream fails")
    (place / "ended").touch()


@dg.asset(op_tags={"dagster/priority": "1"})
def saved(context: dg.AssetExecutionContext) -> None:
    place = Path(context.run.tags["place"])
    (place / "begun").touch()
    wait_for_stream(context, stream.key, "stream")
    (place / ("behind" if (place / "ended").exists() else "too early")).touch()


def both() -> dg.JobDefinition:
    definitions = dg.Definitions([stream, saved], jobs=[dg.define_asset_job("both", [stream, saved])])
    return definitions.resolve_job_def("both")


@pytest.mark.parametrize(("tags", "found"), [({}, {"begun", "ended", "behind"}), ({"fails": ""}, {"begun"})])
def test_a_step_beside_the_streams_waits_for_its_end(
    tmp_path: Path, tags: Mapping[str, str], found: set[str], instance_of_files: dg.DagsterInstance
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    with dg.execute_job(dg.reconstructable(both), instance_of_files, tags={"place": str(place), **tags}) as result:
        assert result.success is not bool(tags)
    assert {path.name for path in place.iterdir()} == found


@pytest.fixture
def instance_of_files(tmp_path: Path) -> dg.DagsterInstance:
    """An instance that several processes share."""
    return dg.DagsterInstance.local_temp(str(tmp_path))


@pytest.mark.parametrize("fails", [False, True])
def test_one_step_after_the_other_takes_the_stream_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    job = StoredJob(tmp_path / "checkpoints", "a_stream")
    job.die("0" * 32, checkpoints=1)

    def drive(*_: object, **__: object) -> RunResult:
        job.die("1" * 32, checkpoints=3)
        if fails:
            raise RuntimeError("the stream fails")
        return RunResult(JobStatus.FINISHED, None)

    monkeypatch.setattr(spark_door, "supervise", drive)
    asset = make_asset("a_stream")
    with dg.DagsterInstance.ephemeral() as instance:
        done = dg.materialize(
            [asset.savepoints, asset],
            resources={"checkpoint_storage": job.storage, "spark": _SPARK},
            run_config={"ops": {asset.savepoints.op.name: {"config": {"to": str(tmp_path / "savepoints")}}}},
            instance=instance,
            raise_on_error=False,
        )
        taken = [event.materialization for event in done.get_asset_materialization_events()]
    batches = [one.metadata["batch"].value for one in taken if one.asset_key == asset.savepoints_key]
    assert batches == ([] if fails else [2]), "the checkpoints before this run end with batch 0"


def test_an_asset_that_waits_goes_behind() -> None:
    assert make_asset("one").savepoints.op.tags.items() >= BEHIND.items()
