"""Drivers of a job that reads Kafka, killed at any moment."""

from __future__ import annotations

import json
import random
import shutil
import signal
import threading
from collections import Counter
from pathlib import Path

import pytest

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.catalog.file_reader import verify_checkpoint
from dagster_ckpt.checkpoint.catalog.newest import find_newest
from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata
from tests.helpers.driving import driving
from tests.helpers.local_spark import delta_conf, iceberg_conf
from tests.jobs.harness import Row
from tests.jobs.kafka.topics import TopicBench
from tests.jobs.stored_live.kinds import KINDS
from tests.jobs.tables import delta, iceberg

pytestmark = pytest.mark.timeout(3600)

#: What is exact with the running release of Spark.
_SINK = "delta" if delta_conf() else "iceberg" if iceberg_conf() else "parquet"
_KILLS = 25
_DEADLINE = 600.0


def _driver(bench: TopicBench) -> tuple[str, ...]:
    return ("tests.jobs.kafka.driver", bench.kafka.address, bench.topic, _SINK, str(bench.root))


def _seen(bench: TopicBench) -> Counter[Row]:
    """What a reader without Spark finds."""
    if _SINK == "parquet":
        assert bench.in_raw_directory() == bench.in_sink_log()
        return bench.in_sink_log()
    return delta.seen(bench) if _SINK == "delta" else iceberg.seen(bench)


@pytest.mark.exhaustive
def test_a_killed_driver_that_left_only_its_checkpoints_goes_on_exactly(bench: TopicBench) -> None:
    bench.land(3)
    with driving(*_driver(bench)) as killed:
        killed.await_("checkpoints", lambda: len(killed.of("Completed")) > 1)
        bench.land(1)
        killed.kill()
    shutil.rmtree(bench.root / "live")
    bench.land(1)
    with driving(*_driver(bench), "end") as driver:
        assert driver.ended() == "FINISHED"
        assert driver.of("Started")[0]["kind"] == "checkpoint"
    assert _seen(bench) == bench.expected()


@pytest.mark.exhaustive
def test_a_driver_that_is_killed_around_a_move_moves_once(bench: TopicBench) -> None:
    """Before the copy is published, after that, and after the next checkpoint; always with the same words."""

    def newest() -> CheckpointMetadata:
        metadata = find_newest(CheckpointCatalog(bench.filesystem, "driven")).metadata
        assert metadata is not None
        return metadata

    bench.land(2)
    with driving(*_driver(bench), "end", "all") as driver:
        assert driver.ended() == "FINISHED"
    before = newest()
    bench.land(2)  # offsets 8 to 15 of both partitions
    words = ("all", f"start_sources={json.dumps({bench.topic: {'0': 3, '1': 11}})}")
    for dies, kind in ((f"chk-{before.checkpoint_id + 1}/_metadata", "checkpoint"), (".choice", "moved")):
        with driving(*_driver(bench), *words, f"dies={dies}") as driver:
            assert driver.process.wait(_DEADLINE) == -signal.SIGKILL
            assert not driver.of("Started")
        assert newest().kind == kind
    moved = newest()
    assert moved.restored_from == before.reference
    with driving(*_driver(bench), *words) as driver:
        driver.await_("the next checkpoint", lambda: bool(driver.of("Completed")))
        assert driver.of("Started")[0]["restored"] == moved.reference
        driver.kill()
    bench.land(1)
    with driving(*_driver(bench), *words, "end") as driver:
        assert driver.ended() == "FINISHED"
        assert driver.of("Started")[0]["kind"] in {"checkpoint", "salvage"}
    again, skipped = Counter(range(3, 8)), Counter(range(15, 18))  # of the files 0 and 3
    files = sum((Counter(range(5 * file, 5 * file + 8)) for file in range(5)), Counter[int]())
    assert Counter(row[0] for row in _seen(bench).elements()) == files + again - skipped
    assert len(newest().facts.accepted_loss) == 1


@pytest.mark.exhaustive
def test_a_move_with_the_live_location_in_a_bucket(bench: TopicBench, tmp_path: Path) -> None:
    """And a kill after it, with the state in the bucket alone: it drops what is read twice."""
    kind = KINDS["gs"]
    with kind.serving(tmp_path / "server") as server:
        where = (f"bucket={server.url}", f"connector={kind.classpath(tmp_path)}")
        catalog = CheckpointCatalog(kind.storage(server.url), "driven")
        bench.land(2)
        with driving(*_driver(bench), "end", *where) as driver:
            assert driver.ended() == "FINISHED", driver.log()
        bench.land(2)  # offsets 8 to 15 of both partitions
        words = f"start_sources={json.dumps({bench.topic: {'0': 3, '1': 13}})}"
        with driving(*_driver(bench), words, *where) as driver:
            driver.await_("the next checkpoint", lambda: bool(driver.of("Completed")))
            assert driver.of("Started")[0]["kind"] == "moved"
            chosen = catalog.choice()
            assert chosen is not None
            assert chosen[1].live.startswith(f"{catalog.filesystem.url}/driven/taskowned/")
            driver.kill()
        shutil.rmtree(bench.root / "live", ignore_errors=True)
        bench.land(1)
        with driving(*_driver(bench), words, "end", *where) as driver:
            assert driver.ended() == "FINISHED", driver.log()
            assert driver.of("Started")[0]["kind"] in {"checkpoint", "salvage"}
        for metadata in catalog.completed(catalog.job_ids()[-1])[0]:
            verify_checkpoint(catalog, metadata)
    skipped = Counter({(key, key * 10): 1 for key in (18, 19)})  # the other three are in file 2, too
    assert _seen(bench) == bench.expected() - skipped


@pytest.mark.exhaustive
@pytest.mark.releases
def test_a_job_is_exact_after_kills_at_random_moments(bench: TopicBench) -> None:
    """In half of them the live location goes, too."""
    moments, pause = random.Random(14), threading.Event()
    for kill in range(_KILLS):
        bench.land(2)
        with driving(*_driver(bench)) as driver:
            driver.await_("it starts", lambda driver=driver: bool(driver.of("Started")))
            pause.wait(moments.uniform(0, 4))
            driver.kill()
        if kill % 2:
            shutil.rmtree(bench.root / "live")
    with driving(*_driver(bench), "end") as driver:
        assert driver.ended() == "FINISHED"
    assert _seen(bench) == bench.expected()
