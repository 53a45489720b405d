"""The example's stream on a real standalone cluster: an executor is killed, then the driver; identical."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from assets.batch_answer import batch_answer, compare, read_delays
from assets.cluster import Cluster, standalone_cluster
from assets.flights import CLOSING_FILES, _write, land, landing_plan
from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.catalog.file_reader import verify_checkpoint
from dagster_ckpt.checkpoint.catalog.newest import find_newest
from dagster_ckpt.filesystem import PosixFileSystem
from dagster_ckpt.spark.files.checkpoint_location import CheckpointLocation
from dagster_ckpt.spark.sinks.spark_sink_log import FileSink
from tests.helpers.driving import Driver, driving
from tests.helpers.local_spark import JVM_OPTIONS
from tests.jobs.harness import eventually
from tests.system.cluster.layout import FILES_PER_TRIGGER, JOB, Shared

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

pytestmark = [pytest.mark.integration, pytest.mark.timeout(3000)]

_DAYS = 24


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    small = {"SPARK_DAEMON_JAVA_OPTS": JVM_OPTIONS}
    with standalone_cluster(tmp_path / "cluster", environment=lambda _: small) as running:
        yield running


def _driving(cluster: Cluster, shared: Shared) -> AbstractContextManager[Driver]:
    return driving("tests.system.cluster.driver", cluster.master, str(shared.root), environment=cluster.environment)


@pytest.mark.exhaustive
def test_an_executor_and_then_the_driver_are_killed(cluster: Cluster, tmp_path: Path) -> None:
    shared = Shared(tmp_path / "shared")
    land(shared.landed, days=_DAYS)
    for file in landing_plan()[-CLOSING_FILES:]:
        _write(shared.landed, file)
    files = _DAYS + CLOSING_FILES
    last = -(-files // FILES_PER_TRIGGER) - 1
    catalog = CheckpointCatalog(PosixFileSystem(shared.storage), JOB)

    with _driving(cluster, shared) as driver:
        driver.await_("two checkpoints", lambda: len(driver.of("Completed")) >= 2)
        executors = cluster.executors()
        assert executors, "no executor of the cluster runs the job"
        before = _committed(catalog)
        assert before < last
        executors[0].kill()
        driver.await_("batches commit after the executor is lost", lambda: _committed(catalog) >= before + 3)
        checkpoints = len(driver.of("Completed"))
        driver.await_("a checkpoint after it", lambda: len(driver.of("Completed")) > checkpoints)
        assert not driver.of("Failed")

        driver.kill()
        killed_at = _committed(catalog)
        assert killed_at < last, "the job had ended before it was killed: there was nothing to show"
        # They hear of its end by a message, and their tasks write until then.
        eventually("its executors end", lambda: not cluster.executors())
        shutil.rmtree(shared.live)

    with _driving(cluster, shared) as driver:
        driver.await_("the query starts again", lambda: bool(driver.of("Started")))
        (started,) = driver.of("Started")
        assert started["kind"] == "checkpoint"
        assert started["batch"] <= killed_at
        assert driver.ended() == "FINISHED"
        assert not driver.of("Restarting")
        assert driver.of("Completed")[-1]["batch"] >= last

    expected = batch_answer(shared.landed)
    assert len(expected) > 1000
    assert compare(expected, read_delays(FileSink(shared.output).committed_files())).identical
    assert compare(expected, read_delays(shared.output.rglob("part-*.parquet"))).identical
    (job_id,) = catalog.job_ids()
    completed, broken = catalog.completed(job_id)
    assert not broken
    assert len(completed) == 4
    for metadata in completed:
        verify_checkpoint(catalog, metadata)


@pytest.mark.exhaustive  # salvages are many, on one machine
def test_a_driver_killed_in_a_batch_is_salvaged(tmp_path: Path) -> None:
    """Without a cluster, and with its live location kept: no committed batch is computed again."""
    shared = Shared(tmp_path / "shared")
    land(shared.landed, days=_DAYS)
    for file in landing_plan()[-CLOSING_FILES:]:
        _write(shared.landed, file)
    catalog = CheckpointCatalog(PosixFileSystem(shared.storage), JOB)
    local = Cluster("local[2]", psutil.Process(), dict(os.environ))

    with _driving(local, shared) as driver:
        driver.await_("a checkpoint", lambda: bool(driver.of("Completed")))
        chosen = catalog.choice()
        assert chosen is not None
        location = CheckpointLocation(Path(chosen[1].live))
        saved = int(driver.of("Completed")[-1]["batch"])
        driver.await_(
            "a batch is in flight, others committed since",
            lambda: location.planned() is not None and (location.last_committed() or 0) > saved,
        )
        driver.kill()
        committed = location.last_committed()
        newest = find_newest(catalog).metadata
        assert committed is not None
        assert newest is not None

    with _driving(local, shared) as driver:
        assert driver.ended() == "FINISHED"
        (started,) = driver.of("Started")
        assert started["batch"] == committed
        assert started["kind"] == ("salvage" if committed > newest.batch else "checkpoint")

    expected = batch_answer(shared.landed)
    assert compare(expected, read_delays(FileSink(shared.output).committed_files())).identical
    assert compare(expected, read_delays(shared.output.rglob("part-*.parquet"))).identical


def _committed(catalog: CheckpointCatalog) -> int:
    chosen = catalog.choice()
    assert chosen is not None
    committed = CheckpointLocation(Path(chosen[1].live)).last_committed()
    return -1 if committed is None else committed
