"""What a capture pins, and that it leaves nothing when something is missing. On state that Spark wrote."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dagster_ckpt.errors import CaptureIncomplete, CheckpointFileMissing, CorruptCheckpoint, RestoreRefused
from dagster_ckpt.spark.capture.from_disk import capture
from dagster_ckpt.spark.files.checkpoint_location import CheckpointLocation
from dagster_ckpt.spark.files.prepare import prepare_location
from tests.helpers.spark.streaming import VARIANTS, Job, tree, write_input

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LAST = 3


@pytest.fixture(scope="module")
def written(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Locations of finished queries by variant; every batch of theirs is still there."""
    home = tmp_path_factory.mktemp("written")
    write_input(home / "in", range(_LAST + 1))
    locations = {variant: home / variant for variant in ("hdfs", "rocks", "rocks-v2+changelog")}
    for variant, location in locations.items():
        Job(spark, "aggregation", VARIANTS[variant], home / "in").run(location)
    locations["transformWithState"] = home / "transformWithState"
    Job(spark, "transformWithState", VARIANTS["rocks"], home / "in").run(home / "transformWithState")
    return locations


@pytest.fixture
def live(written: dict[str, Path], tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A copy of one of them to damage."""
    return Path(shutil.copytree(written[request.param], tmp_path / "live"))


_each = pytest.mark.parametrize("live", ["hdfs", "rocks", "rocks-v2+changelog", "transformWithState"], indirect=True)


@_each
def test_a_snapshot_is_pinned_whole_and_released(live: Path, tmp_path: Path) -> None:
    snapshot = capture(CheckpointLocation(live), _LAST, tmp_path / "pins")
    assert snapshot.batch == _LAST
    assert snapshot.sink is None
    assert len({file.path for file in snapshot.files}) == len(snapshot.files)
    assert {str(path) for path in (tmp_path / "pins").iterdir()} == {file.local for file in snapshot.files}
    for file in snapshot.files:
        name = file.path.removeprefix("checkpoint/")
        status = (live / name).stat()
        assert Path(file.local).read_bytes() == (live / name).read_bytes()
        assert file.size == status.st_size
        assert file.identity == (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        base = name.rpartition("/")[2]
        assert not base.startswith(".")
        assert not base.endswith(".tmp")
    names = {file.path for file in snapshot.files}
    assert {f"checkpoint/{name}" for name in ("metadata", "commits/3", "offsets/3", "offsets/2")} <= names
    assert not names & {"checkpoint/commits/2", "checkpoint/offsets/1"}
    snapshot.release()
    assert not (tmp_path / "pins").exists()
    snapshot.release()


@pytest.mark.parametrize("live", ["rocks-v2+changelog"], indirect=True)
def test_facts(live: Path, tmp_path: Path) -> None:
    location = CheckpointLocation(live)
    facts = capture(location, 2, tmp_path / "pins").facts.to_json()
    confs = facts.pop("sql_confs")
    assert isinstance(confs, dict)
    assert confs["spark.sql.shuffle.partitions"] == "2"
    assert facts.pop("timestamp_ms") == location.offsets(2).timestamp_ms
    assert facts == {
        "query_id": location.query_id(),
        "batch": 2,
        "planned_batch": 3,
        "watermark_ms": 0,
        "state_store_provider": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        "state_format": 2,
        "commit_log": 2,
        "partitions": 2,
        "operators": [{"id": "0", "name": "stateStoreSave", "partitions": 2, "stores": ["default"]}],
        "sources": [{"id": "0", "offset": {"logOffset": 2}}],
    }


def _files_needed(live: Path, pins: Path) -> list[str]:
    snapshot = capture(CheckpointLocation(live), _LAST, pins)
    snapshot.release()
    return [file.path.removeprefix("checkpoint/") for file in snapshot.files]


@_each
def test_without_any_one_file_nothing_is_captured(live: Path, tmp_path: Path) -> None:
    """Unless Spark does without it too: a visible checksum, the schema it writes again."""
    for name in _files_needed(live, tmp_path / "pins"):
        if name.endswith((".crc", "/_metadata/schema")):
            continue
        hidden = tmp_path / "hidden"
        (live / name).rename(hidden)
        with pytest.raises(CaptureIncomplete):
            capture(CheckpointLocation(live), _LAST, tmp_path / "pins")
        assert not (tmp_path / "pins").exists(), name
        hidden.rename(live / name)


@_each
def test_a_file_that_vanishes_after_the_listing(live: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark deletes between our look at the directory and the pin."""
    link = os.link
    for name in _files_needed(live, tmp_path / "pins"):
        if name.endswith(".crc"):
            continue
        hidden = tmp_path / "hidden"

        def racing(source: str, target: str, victim: Path = live / name, aside: Path = hidden) -> None:
            if Path(source) == victim:
                victim.rename(aside)
            link(source, target)

        monkeypatch.setattr(os, "link", racing)
        with pytest.raises(CaptureIncomplete):
            capture(CheckpointLocation(live), _LAST, tmp_path / "pins")
        monkeypatch.undo()
        assert not (tmp_path / "pins").exists(), name
        hidden.rename(live / name)


@pytest.mark.parametrize("live", ["rocks"], indirect=True)
def test_short_sst(live: Path, tmp_path: Path) -> None:
    """Spark writes SSTs in place; one of another size than the zip says is not whole."""
    name = next(name for name in _files_needed(live, tmp_path / "pins") if name.endswith(".sst"))
    (live / name).write_bytes((live / name).read_bytes()[:-1])
    with pytest.raises(CaptureIncomplete, match=r"its snapshot says \d+"):
        capture(CheckpointLocation(live), _LAST, tmp_path / "pins")
    assert not (tmp_path / "pins").exists()


@pytest.mark.parametrize("live", ["rocks"], indirect=True)
def test_ssts_are_those_of_the_pinned_zip(live: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A retried task puts another zip with other SSTs under the same name, here right after the pin."""
    zips = [f"state/0/0/{version}.zip" for version in (_LAST, _LAST + 1)]
    before = _files_needed(live, tmp_path / "pins")
    original = os.link

    def racing(source: Path, target: Path) -> None:
        original(source, target)
        if source == live / zips[1]:
            shutil.copyfile(live / zips[0], live / "other")
            (live / "other").replace(live / zips[1])

    monkeypatch.setattr(os, "link", racing)
    assert _files_needed(live, tmp_path / "pins") == before


@pytest.mark.parametrize("code", [errno.EXDEV, errno.EPERM])
@pytest.mark.parametrize("live", ["rocks"], indirect=True)
def test_copies_where_links_are_impossible(
    live: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    linked = capture(CheckpointLocation(live), _LAST, tmp_path / "linked")

    def refuse(source: str, target: str) -> None:
        raise OSError(code, os.strerror(code), str(source), None, str(target))

    monkeypatch.setattr(os, "link", refuse)
    copied = capture(CheckpointLocation(live), _LAST, tmp_path / "copied")
    assert tree(tmp_path / "copied") == tree(tmp_path / "linked")
    assert [file.identity for file in copied.files] == [file.identity for file in linked.files]
    assert all(Path(file.local).stat().st_nlink == 1 for file in copied.files)


@pytest.mark.parametrize("live", ["hdfs"], indirect=True)
def test_other_errors_are_not_hidden(live: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: str, target: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(OSError, match="No space"):
        capture(CheckpointLocation(live), _LAST, tmp_path / "pins")
    assert not (tmp_path / "pins").exists()


@pytest.mark.parametrize("live", ["hdfs"], indirect=True)
def test_pins_are_never_mixed(live: Path, tmp_path: Path) -> None:
    (tmp_path / "pins").mkdir()
    (tmp_path / "pins" / "of another").touch()
    with pytest.raises(FileExistsError):
        capture(CheckpointLocation(live), _LAST, tmp_path / "pins")
    assert (tmp_path / "pins" / "of another").exists()


@pytest.mark.parametrize("live", ["rocks"], indirect=True)
def test_unknown_provider(live: Path, tmp_path: Path) -> None:
    offsets = live / "offsets" / str(_LAST)
    text = offsets.read_text(encoding="utf-8").replace("RocksDBStateStoreProvider", "TheirStateStoreProvider")
    offsets.write_text(text, encoding="utf-8")
    with pytest.raises(RestoreRefused, match="TheirStateStoreProvider"):
        capture(CheckpointLocation(live), _LAST, tmp_path / "pins")
    assert not (tmp_path / "pins").exists()


@pytest.mark.parametrize("live", ["rocks-v2+changelog"], indirect=True)
def test_whole_partition_or_operator_gone(live: Path, tmp_path: Path) -> None:
    for name in ("state/0/1", "state/0", "state"):
        (live / name).rename(tmp_path / "hidden")
        with pytest.raises(CaptureIncomplete):
            capture(CheckpointLocation(live), _LAST, tmp_path / "pins")
        (tmp_path / "hidden").rename(live / name)


@pytest.mark.parametrize("live", ["transformWithState"], indirect=True)
def test_prepared_location_names_its_own_schemas(live: Path, tmp_path: Path) -> None:
    snapshot = capture(CheckpointLocation(live), _LAST, tmp_path / "pins")
    target = tmp_path / "with state" / "state" / "0" / "_stateSchema"  # a path to be confused by
    for file in snapshot.files:
        path = target / file.path.removeprefix("checkpoint/")
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file.local, path)
    snapshot.release()
    (target / "state" / "0" / "0" / ".4.zip.crc").write_bytes(b"of other bytes")
    prepare_location(target)
    (metadata,) = (target / "state" / "0" / "_metadata" / "v2").iterdir()
    schema = next((target / "state/0/_stateSchema/default").iterdir())
    assert f'"file:{schema}"' in metadata.read_text(encoding="utf-8")
    assert not list(target.rglob(".*"))
    once = tree(target)
    prepare_location(target)
    assert tree(target) == once


@pytest.mark.parametrize("live", ["transformWithState"], indirect=True)
def test_location_that_cannot_be_prepared(live: Path) -> None:
    (schema,) = (live / "state/0/_stateSchema/default").glob("[!.]*")
    text = schema.read_bytes()
    schema.unlink()
    with pytest.raises(CheckpointFileMissing, match=schema.name):
        prepare_location(live)
    schema.write_bytes(text)
    (metadata,) = (live / "state/0/_metadata/v2").glob("[!.]*")
    for body in ("", "{}", '{"stateStoreInfo":[{"stateSchemaFilePaths":["/elsewhere"]}]}'):
        metadata.write_text(f"v2\n{body}", encoding="utf-8")
        with pytest.raises(CorruptCheckpoint, match="operator metadata as Spark writes it"):
            prepare_location(live)
