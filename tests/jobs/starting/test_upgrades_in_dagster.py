"""A changed job on a Dagster instance: the sensor returns to the version before, once, and resumes nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg
import pytest

from dagster_ckpt.checkpoint.format.code_versions import CodeVersion
from tests.jobs.harness import Bench
from tests.jobs.starting.upgraded import Location

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Status = dg.DagsterRunStatus


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    home = tmp_path / "home"
    home.mkdir()
    with dg.DagsterInstance.local_temp(str(home)) as made:
        yield made


@pytest.fixture
def bench(spark: SparkSession, tmp_path: Path, instance: dg.DagsterInstance) -> Bench:
    """A job whose version 1 has read one file of three."""
    bench = Bench(spark, tmp_path / "job")
    bench.land(1)
    assert Location(bench.root, "1").launch(instance) is Status.SUCCESS
    bench.land(2)
    return bench


def _undisturbed(bench: Bench) -> Bench:
    """The same job without an upgrade."""
    other = Bench(bench.spark, bench.root.with_name("undisturbed"))
    other.tick(1)
    other.tick(bench.landed - 1)
    return other


def _assert_returns(bench: Bench, location: Location, instance: dg.DagsterInstance) -> None:
    """The sensor asks for one run, however often it looks, and that run is exact."""
    tick = location.sensor(instance)
    keys = set()
    for _ in range(3):
        (request,) = tick()[0]
        keys.add(request.run_key)
    assert len(keys) == 1, "Dagster launches no key twice"
    assert location.launch(instance, request) is Status.SUCCESS
    assert [tick()[0] for _ in range(3)] == [[], [], []]
    assert bench.in_raw_directory() == _undisturbed(bench).in_raw_directory()
    bench.assert_exact()


def _assert_not_resumed(location: Location, instance: dg.DagsterInstance) -> None:
    tick = location.sensor(instance)
    said = [tick() for _ in range(3)]
    assert [requests for requests, _ in said] == [[], [], []]
    assert "it ended FAILED" in said[-1][1]


def _code(bench: Bench) -> CodeVersion:
    chosen = bench.catalog.choice()
    assert chosen is not None
    return chosen[1].code


@pytest.mark.exhaustive
@pytest.mark.parametrize("version", ["hanging", "deadly"])
def test_the_old_code_goes_on_by_itself_as_soon_as_it_is_there(
    bench: Bench, instance: dg.DagsterInstance, version: str
) -> None:
    """Of a version that completes no checkpoint in time, and of one whose end only the sensor can tell."""
    new = Location(bench.root, version)
    status = new.launch(instance)
    assert status is (Status.FAILURE if version == "hanging" else Status.STARTED)
    _assert_not_resumed(new, instance)
    _assert_not_resumed(Location(bench.root, "another"), instance)
    assert len(instance.get_runs()) == 2
    _assert_returns(bench, Location(bench.root, "1"), instance)
    assert _code(bench) == CodeVersion("1")


@pytest.mark.exhaustive
def test_a_function_of_the_version_before_goes_on_at_once(bench: Bench, instance: dg.DagsterInstance) -> None:
    new = Location(bench.root, "failing", has_previous=True)
    assert new.launch(instance) is Status.FAILURE
    _assert_returns(bench, new, instance)
    assert _code(bench) == CodeVersion("1", None, "failing")
    bench.land(1)
    assert new.launch(instance) is Status.SUCCESS, "by a schedule, say"
    bench.assert_exact()
