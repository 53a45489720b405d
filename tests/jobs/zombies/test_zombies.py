"""A driver that is declared dead and is not: stopped with its JVM, overtaken as if from another host, and woken up."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.catalog.file_reader import verify_checkpoint
from dagster_ckpt.checkpoint.catalog.newest import find_newest
from dagster_ckpt.filesystem import PosixFileSystem
from dagster_ckpt.spark.files.checkpoint_location import CheckpointLocation
from dagster_ckpt.spark.sinks.spark_sink_log import FileSink
from tests.helpers.driving import ELSEWHERE, Driver, driving
from tests.jobs.matrix.streams import FILE, FOREACH_BATCH, TRANSACTIONAL, Row, Target
from tests.jobs.zombies.driver import JOB
from tests.jobs.zombies.landing import Landing
from tests.system.cluster.standalone import eventually

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1500)]

EARLY, LATE = "before it has come to the zombie's batch", "when it is past the zombie's batch"


@pytest.mark.parametrize(
    ("sink", "woken"),
    [
        (FILE, LATE),
        pytest.param(FILE, EARLY, marks=pytest.mark.exhaustive),
        pytest.param(TRANSACTIONAL, LATE, marks=pytest.mark.exhaustive),
        pytest.param(FOREACH_BATCH, EARLY, marks=pytest.mark.exhaustive),
    ],
)
def test_a_zombie_changes_nothing(sink: str, woken: str, tmp_path: Path) -> None:
    assert shutil.which("unshare"), "unshare (package util-linux) is needed to drive as if from another host"
    landing = Landing(tmp_path / "in", 1)
    catalog = CheckpointCatalog(PosixFileSystem(tmp_path / "storage"), JOB)

    with driving("tests.jobs.zombies.driver", sink, str(tmp_path), "unwatched") as zombie:
        zombie.await_("it starts", lambda: bool(zombie.of("Started")))
        with landing.going_on(0.5):
            zombie.await_("two checkpoints", lambda: len(zombie.of("Completed")) >= 2)
            live = _live(catalog)
            zombie.await_("a batch is under way", lambda: live.planned() is not None)
            zombie.pause()
        landing.more(4)
        under_way = live.planned() or live.last_committed()
        assert under_way is not None
        with driving("tests.jobs.zombies.driver", sink, str(tmp_path), "end", **ELSEWHERE) as driver:
            driver.await_("it goes on", lambda: bool(driver.of("Started")))
            if woken == LATE:
                past = under_way + 2
                driver.await_(
                    "it is past the zombie's batch",
                    lambda: any(completed["batch"] >= past for completed in driver.of("Completed")),
                )
            zombie.wake()
            ended = _ended(driver)
        eventually("the zombie ends by itself", lambda: zombie.process.poll() is not None)
        assert zombie.process.returncode != 0
        assert "Fenced" in zombie.log() or "taken" in zombie.log()

    if "SinkOverlap" in ended:
        assert sink == FILE
        assert "declared dead" in ended
        with driving("tests.jobs.zombies.driver", sink, str(tmp_path), "end") as again:
            assert again.ended() == "FINISHED"
    else:
        assert ended == "FINISHED"

    newest = find_newest(catalog)
    assert newest.job_id is not None
    completed, broken = catalog.completed(newest.job_id)
    assert not broken
    for metadata in completed:
        verify_checkpoint(catalog, metadata)
    assert _rows(sink, tmp_path / "out") == landing.first_rows()


def _live(catalog: CheckpointCatalog) -> CheckpointLocation:
    chosen = catalog.choice()
    assert chosen is not None
    return CheckpointLocation(Path(chosen[1].live))


def _ended(driver: Driver) -> str:
    eventually("the driver ends", lambda: driver.process.poll() is not None)
    return driver.ended() if driver.process.returncode == 0 else driver.log()


def _rows(sink: str, output: Path) -> Counter[Row]:
    if sink != FILE:
        return Counter(row[:2] for row in Target(sink, output).rows().elements())
    # Files that a zombie left are not in the log of Spark's sink; whoever reads the bare directory sees them.
    files = FileSink(output).committed_files()
    return Counter((row["id"], row["v"]) for file in files for row in pq.ParquetFile(file).read().to_pylist())
