"""Plans, logs and state files that somebody else has written: no file outside their directory is touched. No Spark."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from dagster_ckpt.checkpoint.control.plan_archive import PlannedBatch
from dagster_ckpt.errors import CaptureIncomplete, CheckpointError, CorruptCheckpoint
from dagster_ckpt.spark.batches.plans import PlannedBatches, forget_plan, lay_out
from dagster_ckpt.spark.capture.rocksdb_files import snapshot_members
from dagster_ckpt.spark.files.bucket_location import UnreadableStateFile
from dagster_ckpt.spark.files.checkpoint_location import CheckpointLocation
from dagster_ckpt.spark.files.log_entries import parse_offsets, parse_operator
from dagster_ckpt.spark.files.prepare import prepare_location
from tests.helpers.spark.live_location import LiveLocation
from tests.jobs.harness import tree

#: Names that a file source's plan never has, relative to the checkpointLocation `{root}/live/checkpoint`.
ELSEWHERE = [
    "../../home/authorized_keys",
    "{root}/home/authorized_keys",
    "sources/0/../../../../home/authorized_keys",
    "sources/../../../home/authorized_keys",
    "offsets/../../../home/authorized_keys",
    "metadata",
    "commits/3",
    "offsets/2",
    "offsets/4",
    "state/0/0/1.delta",
    "sources/0/99",
    "sources/1/1",
    "sources/0/3.compact.compact",
    "sources/0/.3.crc",
    "sources/0/03",
    "sources/3",
    "",
    ".",
    "sources/0/3\0",
    f"sources/0/{'3' * 5000}",
]


@pytest.fixture
def live(tmp_path: Path) -> LiveLocation:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "authorized_keys").write_text("the user's")
    made = LiveLocation(tmp_path / "live" / "checkpoint", interval=10)
    made.run(3)
    return made


def plan_of(live: LiveLocation) -> PlannedBatch:
    """The plan of batch 3 as Spark wrote it; it is taken out again."""
    live.plan(3)
    plan = PlannedBatches(CheckpointLocation(live.path), 2).new(3)[0]
    forget_plan(live.path, 3)
    return plan


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_plan_writes_no_file_that_spark_did_not_plan(live: LiveLocation, tmp_path: Path, name: str) -> None:
    plan = plan_of(live)
    before = tree(tmp_path)
    evil = PlannedBatch(3, {**plan.files, name.replace("{root}", str(tmp_path)): "ssh-rsa evil"})
    with pytest.raises(CorruptCheckpoint, match="The plan of batch 3") as caught:
        lay_out(evil, live.path)
    assert "replay_to: none" in caught.value.hint
    assert tree(tmp_path) == before
    lay_out(plan, live.path)
    assert tree(tmp_path) != before, "the sound one is laid out"


def test_the_plan_of_another_batch_is_not_laid_out(live: LiveLocation, tmp_path: Path) -> None:
    plan, before = plan_of(live), tree(tmp_path)
    with pytest.raises(CorruptCheckpoint, match="The plan of batch 4"):
        lay_out(PlannedBatch(4, plan.files), live.path)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("source", ["../../home", "..", ".", "", "a/b", ".hidden", "a\0"])
def test_a_source_is_one_directory(live: LiveLocation, tmp_path: Path, source: str) -> None:
    """Else the log of another directory would be cut: its entries are files whose names are numbers."""
    for number in range(5):
        (tmp_path / "home" / str(number)).write_text("the user's")
    text = (live.path / "offsets" / "2").read_text()
    head = text.split("\n")[:2]
    evil = "\n".join(["v2", head[1], f'{source}:{{"logOffset":1}}'])
    with pytest.raises(CaptureIncomplete, match="offsets/3 is not a whole entry"):
        parse_offsets(evil, "offsets/3")
    (live.path / "offsets" / "3").write_text(evil)
    before = tree(tmp_path / "home")
    forget_plan(live.path, 3)
    assert tree(tmp_path / "home") == before


@pytest.mark.parametrize(
    ("member", "value"),
    [("operatorId", "../1"), ("storeName", "../../../x"), ("storeName", ""), ("numPartitions", float("inf"))],
)
def test_an_operator_is_one_directory(member: str, value: object) -> None:
    store = {"storeName": "default", "numPartitions": 2}
    info = {"operatorId": 0, "operatorName": "x"}
    (store if member in store else info)[member] = value
    text = "v1\n" + json.dumps({"operatorInfo": info, "stateStoreInfo": [store]}).replace("Infinity", "1e999")
    with pytest.raises(CaptureIncomplete, match="here is not a whole entry"):
        parse_operator(text, "here")


@pytest.mark.parametrize("name", ["../../../../etc/passwd", "a/b", "", "..", 3, None])
def test_a_snapshot_names_files_of_its_store(tmp_path: Path, name: object) -> None:
    """A capture links what it names into a checkpoint, where others read it."""
    archive = tmp_path / "1.zip"
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("metadata", "v1\n" + json.dumps({"sstFiles": [{"dfsSstFileName": name, "sizeBytes": 3}]}))
    with pytest.raises(UnreadableStateFile, match="not a RocksDB snapshot"):
        snapshot_members(archive)


@pytest.mark.parametrize("recorded", ["/x/_stateSchema/../../../../../../home/authorized_keys", "/x/_stateSchema//etc"])
def test_a_state_schema_is_one_of_the_operator(tmp_path: Path, recorded: str) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "authorized_keys").write_text("the user's")
    metadata = tmp_path / "live" / "checkpoint" / "state" / "0" / "_metadata" / "v2" / "0"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("v2\n" + json.dumps({"stateStoreInfo": [{"stateSchemaFilePaths": [recorded]}]}))
    with pytest.raises(CorruptCheckpoint, match="operator metadata as Spark writes it"):
        prepare_location(tmp_path / "live" / "checkpoint")


@pytest.mark.parametrize(
    "text",
    ["", "v2", "v2\n7", "v2\n{}", 'v2\n{"stateStoreInfo": 3}', "v2\n" + "[" * 100_000, 'v2\n{"stateStoreInfo": [[]]}'],
)
def test_metadata_that_spark_did_not_write_is_refused(tmp_path: Path, text: str) -> None:
    metadata = tmp_path / "state" / "0" / "_metadata" / "v2" / "0"
    metadata.parent.mkdir(parents=True)
    metadata.write_text(text)
    (tmp_path / ".a.crc").mkdir()
    (tmp_path / "state" / "0" / "_metadata" / "v2" / "1").mkdir()
    if text == 'v2\n{"stateStoreInfo": [[]]}':
        prepare_location(tmp_path)
        return
    with pytest.raises(CheckpointError, match="operator metadata as Spark writes it"):
        prepare_location(tmp_path)
