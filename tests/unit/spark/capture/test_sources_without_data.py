"""What a capture keeps of sources that have no data yet at its batch. Some may have planned their first since."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dagster_ckpt.checkpoint.format.snapshot import Snapshot
from dagster_ckpt.spark.capture.from_bucket import capture_stored
from dagster_ckpt.spark.capture.from_disk import capture
from dagster_ckpt.spark.files.bucket_location import StoredCheckpointLocation
from dagster_ckpt.spark.files.checkpoint_location import CheckpointLocation
from tests.helpers.spark.copying_directory import CopyingDirectory
from tests.helpers.spark.live_location import LiveLocation
from tests.helpers.spark.streaming import materialize

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LISTED = '{"path":"file:///in/0.json","timestamp":1,"batchId":0}'


def _on_disk(root: Path) -> Snapshot:
    return capture(CheckpointLocation(root / "live"), 0, root / "pins")


def _in_bucket(root: Path) -> Snapshot:
    store = CopyingDirectory(root)
    return capture_stored(StoredCheckpointLocation(store, store, "live"), 0, root / "pins")


@pytest.mark.parametrize("take", [_on_disk, _in_bucket])
@pytest.mark.parametrize(
    ("file", "content", "kept"),
    [
        ("0", f"v1\n{_LISTED}".encode(), False),
        ("9.compact", f"v1\n{_LISTED}\n{_LISTED}".encode(), False),
        ("0", b'\0v1\n{"rows":{"0":7}}', True),  # Kafka: where it began
        ("0", b"v1\n1700000000000", True),  # a rate
        ("0", b"\xff\xfe", True),
        ("0/shard", b"v1\n{}", True),
        ("begins", f"v1\n{_LISTED}".encode(), True),
    ],
)
def test_only_the_files_of_later_batches_are_left_out(
    tmp_path: Path, take: Callable[[Path], Snapshot], file: str, content: bytes, kept: bool
) -> None:
    one = LiveLocation(tmp_path / "live")
    one.run(1)
    (one.path / "metadata").write_text(json.dumps({"id": "2f2bba4c-0f7d-4f35-98ca-5894486d6b34"}))
    with (one.path / "offsets" / "0").open("a") as offsets:
        offsets.write("\n-")
    later = one.path / "sources" / "1" / file
    later.parent.mkdir(parents=True)
    later.write_bytes(content)
    names = {pinned.path for pinned in take(tmp_path).files}
    assert (f"checkpoint/sources/1/{file}" in names) == kept
    assert "checkpoint/sources/0/0" in names


@pytest.mark.parametrize("take", [_on_disk, _in_bucket])
@pytest.mark.parametrize("name", ["flights", "2024"])
def test_the_log_of_a_source_that_is_left_out_is_kept(
    tmp_path: Path, take: Callable[[Path], Snapshot], name: str
) -> None:
    one = LiveLocation(tmp_path / "live")
    one.run(1)
    (one.path / "metadata").write_text(json.dumps({"id": "2f2bba4c-0f7d-4f35-98ca-5894486d6b34"}))
    log = one.path / "sources" / name / "0"
    log.parent.mkdir(parents=True)
    log.write_text(f"v1\n{_LISTED}")
    assert f"checkpoint/sources/{name}/0" in {pinned.path for pinned in take(tmp_path).files}


def test_files_that_a_source_got_after_the_cut_are_not_read_at_once(spark: SparkSession, tmp_path: Path) -> None:
    """The other source has data at the cut, and one file a batch is what the query asks for."""
    live = tmp_path / "live"

    def put(source: str, *numbers: int) -> None:
        (tmp_path / source).mkdir(exist_ok=True)
        for number in numbers:
            (tmp_path / source / f"{number}.json").write_text(json.dumps({"v": number}))

    def run(location: Path) -> dict[int, int]:
        reader = spark.readStream.schema("v int").option("maxFilesPerTrigger", 1)
        rows = reader.json(str(tmp_path / "in")).union(reader.json(str(tmp_path / "late")))
        writer = rows.writeStream.format("noop").option("checkpointLocation", str(location))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        return {report["batchId"]: report["numInputRows"] for report in query.recentProgress}

    put("in", 0)
    put("late")
    assert run(live) == {0: 1}
    put("in", 1)
    assert run(live) == {1: 1}
    put("late", 0, 1, 2)
    assert run(live) == {2: 1, 3: 1, 4: 1}
    snapshot = capture(CheckpointLocation(live), 0, tmp_path / "pins")
    assert snapshot.facts.planned_batch == 1
    restored = run(materialize(snapshot, tmp_path / "restored"))
    assert {batch: rows for batch, rows in restored.items() if rows} == {1: 1, 2: 1, 3: 1, 4: 1}
