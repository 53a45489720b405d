"""The drill as an asset on a real Dagster instance, and the commands of the terminal."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from dagster_ckpt import (
    FileSystemCheckpointStorage,
    SparkSessionResource,
    SparkSubmitResource,
    build_checkpoint_definitions,
    build_restore_drill,
    checkpointed_streaming_asset,
)
from dagster_ckpt.cli import main
from tests.jobs.harness import Bench, tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dagster_ckpt import CheckpointedStreamingAsset

pytestmark = pytest.mark.quick

_DRILL = dg.AssetKey(["tiny_drill"])


class _Threshold(dg.Config):
    """What the query is told at each launch."""

    above: int = -1


def _asset(bench: Bench, asked: list[int]) -> CheckpointedStreamingAsset:
    @checkpointed_streaming_asset(name="tiny")
    def tiny(context: dg.AssetExecutionContext, spark: SparkSession, own: _Threshold) -> DataStreamWriter:
        rows = bench.read(spark).dropDuplicates(["id"]).select("id", "v")
        asked.append(own.above)
        return bench.write(rows)

    return tiny


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.local_temp(str(tmp_path)) as made:
        yield made


def _last(instance: dg.DagsterInstance) -> tuple[bool, str]:
    key = dg.AssetCheckKey(_DRILL, "drilled")
    (record, *_) = instance.event_log_storage.get_asset_check_execution_history(key, limit=1)
    assert record.event is not None
    assert record.event.dagster_event is not None
    evaluation = record.event.dagster_event.asset_check_evaluation_data
    return evaluation.passed, str(evaluation.description)


@pytest.mark.parametrize(
    "starts",
    [SparkSessionResource(class_archive=False), SparkSubmitResource(definitions="not_asked:for")],
    ids=["SparkSessionResource", "SparkSubmitResource"],
)
def test_a_drill_is_materialized_with_numbers_and_its_check_is_red_by_name(
    ticked: Bench, instance: dg.DagsterInstance, starts: SparkSessionResource | SparkSubmitResource
) -> None:
    asked: list[int] = []
    asset = _asset(ticked, asked)
    resources = {
        "checkpoint_storage": FileSystemCheckpointStorage(checkpoint_path=str(ticked.storage), deployment="tests"),
        "spark": starts,
    }
    definitions = dg.Definitions.merge(
        build_checkpoint_definitions([asset], resources),
        build_restore_drill(asset, cron_schedule="0 4 * * *", op_config={"above": 7}),
    )
    job = definitions.resolve_job_def("tiny_drill_job")
    ticked.land(1)
    before = tree(ticked.root)
    assert job.execute_in_process(instance=instance).success
    assert _last(instance)[0]
    assert asked == [7]
    event = instance.get_latest_materialization_event(_DRILL)
    assert event is not None
    assert event.asset_materialization is not None
    found = {name: value.value for name, value in event.asset_materialization.metadata.items()}
    assert found["checkpoint"] == ticked.checkpoints()[-1].reference
    assert (found["input_rows"], found["state_rows"], found["batches_behind"]) == (8, 38, 0)
    for name in ("recovery_seconds", "restore_seconds", "batch_seconds", "age_seconds"):
        figure = found[name]
        assert isinstance(figure, float)
        assert figure > 0
    assert tree(ticked.root) == before

    newest = ticked.checkpoints()[-1]
    state = next(file for file in newest.files if file.path.startswith("checkpoint/state/") and file.reference)
    (ticked.storage / ticked.catalog.stored_path(newest, state.reference or "")).unlink()
    assert not job.execute_in_process(instance=instance, raise_on_error=False).success
    passed, told = _last(instance)
    assert not passed
    assert newest.name in told
    assert "is gone" in told


def _run(*arguments: str, status: int = 0) -> str:
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == status, done.output
    return done.output


def _bars(monkeypatch: pytest.MonkeyPatch, command: str) -> list[tuple[str, int, int]]:
    """What each bar of a command is of, all bytes, and the bytes it was told; how a bar looks is tested elsewhere."""
    bars: list[tuple[str, int, int]] = []

    @contextmanager
    def progress(what: str, size: int) -> Iterator[Callable[[int], None]]:
        told: list[int] = []
        yield told.append
        bars.append((what, size, sum(told)))

    monkeypatch.setattr(f"dagster_ckpt.cli.proof.{command}.progress", progress)
    return bars


def test_the_state_in_a_terminal(ticked: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bars = _bars(monkeypatch, "state")
    path = ("--path", str(ticked.storage))
    (operator,) = json.loads(_run("state", "tiny", "--json", *path))
    assert (operator["operator"], operator["name"], operator["partitions"]) == ("0", "dedupe", 2)
    assert operator["keys"] == 33
    asked = ("state", "tiny", "--operator", "0", "--where", "key.id >= 30", *path)
    rows: list[dict[str, Any]] = json.loads(_run(*asked, "--json"))
    assert sorted(row["key"]["id"] for row in rows) == [30, 31, 32]
    assert len(json.loads(_run(*asked, "--json", "--limit", "2"))) == 2
    bars.clear()
    assert "3 rows of operator 0." in _run(*asked)
    ((what, size, copied),) = bars
    newest = ticked.checkpoints()[-1]
    assert what == f"Copying {newest.name}"
    assert 0 < copied == size <= newest.size
    assert (
        json.loads(_run("state", "tiny", "chk-1", "--operator", "0", "--where", "key.id > 99", "--json", *path)) == []
    )
    refused = _run("state", "tiny", "--operator", "0", "--where", "nosuch > 1", *path, status=1)
    assert "nosuch" in refused
    assert "The columns are: struct<key:struct<id:int>" in refused
    assert "It has 0 (dedupe)." in _run("state", "tiny", "--operator", "3", *path, status=1)


def test_a_drill_in_a_terminal(ticked: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    module = type(sys)("jobs_of_the_drill")
    module.tiny = _asset(ticked, [])  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(sys, "path", [*sys.path])
    bars = _bars(monkeypatch, "drill")
    ticked.land(1)
    before = tree(ticked.root)
    target = ("drill", f"{module.__name__}:tiny", "--path", str(ticked.storage))
    told = json.loads(_run(*target, "--json"))
    assert (told["job"], told["batch"], told["input_rows"]) == ("tiny", 6, 8)
    assert told["recovery_seconds"] >= told["batch_seconds"] > 0
    assert "can be restored from" in _run(*target)
    newest = ticked.checkpoints()[-1]
    assert bars == [(f"Copying {newest.name}", newest.size, newest.size)] * 2
    assert tree(ticked.root) == before
