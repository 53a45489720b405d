"""No kind of sink is forgotten where only records tell of it."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from dagster_ckpt.checkpoint import Choice
from dagster_ckpt.errors import CaptureIncomplete
from dagster_ckpt.spark import sinks
from dagster_ckpt.spark.files import CheckpointLocation
from dagster_ckpt.spark.sinks import recorded_sinks
from dagster_ckpt.spark.sinks.sink import Sink
from dagster_ckpt.spark.sinks.spark_file_sink import SparkFileSink
from dagster_ckpt.spark.sinks.transactional_file_sink import TransactionalFileSink
from dagster_ckpt.spark.sinks.user_sinks import CustomSink, ForeachBatchSink
from tests.unit.spark.run.test_fork_point import Conf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def concrete(kind: Any) -> Iterator[type[Sink]]:
    for below in kind.__subclasses__():
        if not inspect.isabstract(below) and not below.__name__.startswith("_"):
            yield below
        yield from concrete(below)


def test_every_sink_of_the_package_is_in_the_table() -> None:
    for module in pkgutil.walk_packages(sinks.__path__, f"{sinks.__name__}."):
        importlib.import_module(module.name)
    own = {kind for kind in concrete(Sink) if kind.__module__.startswith("dagster_ckpt.")}
    assert set(recorded_sinks._SINKS.values()) == own
    assert {kind.kind for kind in own} == set(recorded_sinks._SINKS), "two sinks share a kind"


@pytest.mark.parametrize("kind", ["of a newer release", None])
def test_a_kind_that_is_not_known_is_passed_over_by_name(kind: str | None, tmp_path: Path) -> None:
    choice = Choice("job", None, 1, 0, "live", "host", "out", "for a test", sink_kind=kind)
    with pytest.raises(CaptureIncomplete, match=f"does not know its kind, {kind}"):
        recorded_sinks.position_reader(choice, tmp_path, CheckpointLocation(tmp_path), None)
    assert recorded_sinks.recorded_sink({"kind": kind, "path": "out"}) is None


def test_sinks_whose_first_position_does_not_depend_on_what_they_hold(tmp_path: Path) -> None:
    """A restart before a moved job's first checkpoint there seeds again, and must take back what was written since."""
    out, newest = tmp_path / "out", [3]
    user: dict[str, Any] = {"rollback_to": print, "position": lambda batch: newest[-1] + batch}
    alike: list[Sink] = [
        SparkFileSink(out),
        TransactionalFileSink(out),
        CustomSink("own", newest_batch=newest.pop, **user),
        ForeachBatchSink("own", print, newest_batch=newest.pop, **user),
    ]
    assert {type(sink) for sink in alike} == {kind for kind in recorded_sinks._SINKS.values() if kind.seeds_alike}
    session = cast("SparkSession", Conf())
    before = [sink.seed(5, tmp_path / f"before {number}", session) for number, sink in enumerate(alike)]
    for file in ("part-0.parquet", "_spark_metadata/6", "_transactions/line/1", "_transactions/pending/start/6.json"):
        (out / file).parent.mkdir(parents=True, exist_ok=True)
        (out / file).write_text("v1\n")
    newest.append(6)
    assert [sink.seed(5, tmp_path / f"after {number}", session) for number, sink in enumerate(alike)] == before
