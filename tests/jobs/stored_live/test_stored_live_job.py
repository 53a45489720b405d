"""A job whose live location lies in the bucket, by Hadoop's connector: killed, and gone on with on an empty machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.catalog.file_reader import verify_checkpoint
from dagster_ckpt.checkpoint.catalog.newest import find_newest
from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata
from dagster_ckpt.config.live_location import LiveLocationPlace
from dagster_ckpt.config.recovery import LATEST
from dagster_ckpt.filesystem import FileSystem
from dagster_ckpt.spark.live.choose import recorded_live
from dagster_ckpt.spark.sinks.spark_sink_log import FileSink
from tests.helpers.driving import driving
from tests.jobs.matrix.streams import land
from tests.jobs.stored_live.driver import JOB
from tests.jobs.stored_live.kinds import KINDS, Server
from tests.servers.gcs import BUCKET

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1500)]

_FILES = 9


@pytest.fixture(params=KINDS)
def which(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server(which: str, tmp_path: Path) -> Iterator[Server]:
    with KINDS[which].serving(tmp_path / "server") as running:
        yield running


@pytest.mark.exhaustive
def test_killed_and_gone_on_with_exactly_from_the_bucket_alone(
    which: str, server: Server, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """From bucket to bucket by a salvage on a machine without the disk of before; then to a disk, and back in time."""
    storage = KINDS[which].storage(server.url)
    catalog = CheckpointCatalog(storage, JOB)
    told = (which, server.url, KINDS[which].classpath(tmp_path_factory.mktemp("ivy")), str(tmp_path))
    for number in range(_FILES):
        land(tmp_path / "in", number)

    with driving("tests.jobs.stored_live.driver", *told, "one", LiveLocationPlace.STORAGE) as first:
        first.await_("two checkpoints", lambda: len(first.of("Completed")) >= 2)
        chosen = catalog.choice()
        assert chosen is not None
        assert chosen[1].live.startswith(f"{storage.url}/{JOB}/taskowned/")
        live = recorded_live(chosen[1], storage)
        assert live is not None
        acknowledged = first.of("Completed")[-1]["batch"]

        def is_ahead() -> bool:
            location = live.location()
            last, planned = location.last_committed(), location.planned()
            if planned is None:  # a busy machine takes checkpoints until all batches are done
                land(tmp_path / "in", _files(tmp_path))
            return last is not None and last > acknowledged and planned is not None

        first.await_("a batch that no checkpoint has, and one under way", is_ahead)
        first.kill()
    shutil.rmtree(tmp_path / "one")

    _goes_on(catalog, (*told, "two", LiveLocationPlace.STORAGE), acknowledged, tmp_path)
    newest = _verified(catalog)
    assert newest.facts.state_format == 2
    kinds = {file.path.rpartition(".")[2] for file in newest.files if file.stored is not None}
    assert "changelog" in kinds or "zip" in kinds
    names = set(server.objects(BUCKET))
    left = {name.split("/")[3] for name in names if f"/{JOB}/taskowned/" in name}
    assert len(left) <= 1, "only Spark's maintenance may still have written to the last one"

    shutil.rmtree(tmp_path / "two")
    land(tmp_path / "in", _files(tmp_path))
    _goes_on(catalog, (*told, "two", LiveLocationPlace.LOCAL), newest.batch, tmp_path)
    on_disk = _verified(catalog)
    assert not any(file.stored for file in on_disk.files)

    # Back, on a copy of the state first, and the batches after it run again as they were.
    shutil.rmtree(tmp_path / "two", ignore_errors=True)
    target = max((item for item in catalog.completed(newest.job_id)[0] if item.batch < newest.batch - 1), key=_batch)
    back = (*told, "two", LiveLocationPlace.STORAGE)
    _goes_on(catalog, back, target.batch, tmp_path, restore_from=target.reference)
    assert any(file.stored for file in _verified(catalog).files)

    _forked(storage, (*told, "three", LiveLocationPlace.STORAGE), catalog.pointer(target), target.batch, tmp_path)


@pytest.mark.parametrize(
    "key", [pytest.param("spark.jars", marks=pytest.mark.exhaustive), "spark.driver.extraClassPath"]
)
@pytest.mark.parametrize(
    "which", ["gs", *(pytest.param(which, marks=pytest.mark.exhaustive) for which in ("s3", "abfs"))]
)
def test_the_connector_is_found_wherever_it_is_named(
    which: str, key: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    kind = KINDS[which]
    classpath = kind.classpath(tmp_path_factory.mktemp("ivy"))
    conf = {name: value for name, value in kind.conf("http://127.0.0.1:1", classpath).items() if "hadoop" in name}
    script = """
import json, sys
from dagster_ckpt.spark.live.choose import connector_of
from dagster_ckpt.spark.query.session import start_session
print("found", connector_of(start_session("asks", "local[1]", json.loads(sys.argv[1])), sys.argv[2]))
"""
    more = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    named = classpath.replace(os.pathsep, ",") if key == "spark.jars" else classpath
    asked = json.dumps({**conf, **more, key: named})
    command = [sys.executable, "-c", script, asked, kind.scheme]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert f"found {kind.connector}" in done.stdout, done.stderr[-3000:]


def _forked(storage: FileSystem, arguments: tuple[str, ...], pointer: str, batch: int, root: Path) -> None:
    """A job of its own that begins with a checkpoint in the bucket has the rows after it, each once."""
    with driving("tests.jobs.stored_live.driver", *arguments, pointer, "forked") as driver:
        assert driver.ended() == "FINISHED", driver.log()
    before = _expected(batch + 1)  # a file in each batch
    assert _rows(root / "forked") == _expected(_files(root)) - before
    catalog = CheckpointCatalog(storage, "forked")
    chosen = catalog.choice()
    assert chosen is not None
    assert chosen[1].live.startswith(f"{storage.url}/forked/taskowned/")
    assert any(file.stored for file in _verified(catalog).files)


def _batch(metadata: CheckpointMetadata) -> int:
    return metadata.batch


def _goes_on(
    catalog: CheckpointCatalog, arguments: tuple[str, ...], least: int, root: Path, restore_from: str = LATEST
) -> None:
    """To the end of the data, from no earlier than ``least``, and every row is there once."""
    with driving("tests.jobs.stored_live.driver", *arguments, restore_from) as driver:
        assert driver.ended() == "FINISHED", driver.log()
        (started,) = driver.of("Started")
        assert started["batch"] >= least
        assert restore_from in {LATEST, started["restored"]}
        assert driver.of("Completed")
        assert not driver.of("Failed")
    assert _rows(root / "out") == _expected(_files(root))
    chosen = catalog.choice()
    assert chosen is not None
    assert chosen[1].live.startswith(catalog.filesystem.url) == (LiveLocationPlace.STORAGE in arguments)


def _verified(catalog: CheckpointCatalog) -> CheckpointMetadata:
    """The newest checkpoint; every file of all of them is what was written."""
    newest = find_newest(catalog).metadata
    assert newest is not None
    completed, broken = catalog.completed(newest.job_id)
    assert not broken
    for metadata in completed:
        verify_checkpoint(catalog, metadata)
    return newest


def _files(root: Path) -> int:
    return len(list((root / "in").iterdir()))


def _rows(output: Path) -> Counter[tuple[int, int]]:
    files = FileSink(output).committed_files()
    return Counter((row["id"], row["v"]) for file in files for row in pq.ParquetFile(file).read().to_pylist())


def _expected(files: int) -> Counter[tuple[int, int]]:
    """Each id once, as the first file had it."""
    found: dict[int, int] = {}
    for number in range(files):
        for row in range(8):
            key = number * 5 + row
            found.setdefault(key, key * 10 + number)
    return Counter(dict.fromkeys(found.items(), 1))
