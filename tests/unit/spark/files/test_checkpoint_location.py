"""Parsing the logs of a checkpointLocation."""

from __future__ import annotations

from pathlib import Path

import pytest

from dagster_ckpt.config.state_backend import StateLayout
from dagster_ckpt.errors import CaptureIncomplete, RestoreRefused
from dagster_ckpt.spark.files.checkpoint_location import CheckpointLocation
from dagster_ckpt.spark.files.log_entries import parse_commit, parse_offsets, parse_operator

_METADATA = '{"batchWatermarkMs":5,"batchTimestampMs":7,"conf":{"spark.sql.shuffle.partitions":"2"}}'


def test_offsets_v1() -> None:
    entry = parse_offsets(f'v1\n{_METADATA}\n{{"logOffset":3}}\n-\n{{"topic":{{"0":12}}}}\n1795173132305', "offsets/3")
    assert (entry.version, entry.watermark_ms, entry.timestamp_ms) == (1, 5, 7)
    assert entry.conf == {"spark.sql.shuffle.partitions": "2"}
    assert entry.sources == (
        ("0", '{"logOffset":3}'),
        ("1", None),
        ("2", '{"topic":{"0":12}}'),
        ("3", "1795173132305"),
    )
    assert [entry.file_source_offset(source) for source in "01239"] == [3, None, None, None, None]
    assert entry.provider() is StateLayout.HDFS
    assert entry.partitions == 2
    assert parse_offsets(f"v1\n{_METADATA}\n@12", "offsets/3").offset("0") == "@12"


def test_offsets_v2_name_their_sources() -> None:
    entry = parse_offsets(f'v2\n{_METADATA}\n0:{{"logOffset":3}}\norders:{{"topic":{{"0":12}}}}\n2:-', "offsets/3")
    assert entry.sources == (("0", '{"logOffset":3}'), ("orders", '{"topic":{"0":12}}'), ("2", None))
    assert entry.file_source_offset("0") == 3


@pytest.mark.parametrize(
    "text",
    ["", "v1", "{}", "v1\n{}", "v1\n[]", f"v2\n{_METADATA}\n12", 'v1\n{"batchWatermarkMs":"x"}', "v1\n{"],
)
def test_damaged_offsets(text: str) -> None:
    with pytest.raises(CaptureIncomplete, match="offsets/3 is not a whole entry"):
        parse_offsets(text, "offsets/3")


def test_newer_versions_are_refused_by_name() -> None:
    with pytest.raises(RestoreRefused, match="offsets/3 is of version 3"):
        parse_offsets(f"v3\n{_METADATA}", "offsets/3")
    with pytest.raises(RestoreRefused, match="commits/3 is of version 4"):
        parse_commit("v4\n{}", "commits/3")


def test_continuous_processing_is_refused() -> None:
    with pytest.raises(RestoreRefused, match="continuous processing"):
        parse_offsets('v1\n\n{"0":{"value":6,"runTimeMs":1}}', "offsets/3")


def test_unknown_provider_is_refused() -> None:
    text = f"v1\n{_METADATA.replace('shuffle.partitions', 'streaming.stateStore.providerClass')}"
    with pytest.raises(RestoreRefused, match="keeps its state with 2"):
        parse_offsets(text, "offsets/3").provider()


def test_commits() -> None:
    assert parse_commit('v1\n{"nextBatchWatermarkMs":0}', "commits/3").unique_ids is None
    entry = parse_commit('v2\n{"nextBatchWatermarkMs":0,"stateUniqueIds":{"0":[["a","b"],["c","d"]]}}', "commits/3")
    assert entry.unique_ids == {"0": (("a", "b"), ("c", "d"))}
    for text in ("", "v1", "v1\n", 'v2\n{"stateUniqueIds":[1]}'):
        with pytest.raises(CaptureIncomplete, match="commits/3"):
            parse_commit(text, "commits/3")


def test_operators() -> None:
    entry = parse_operator(
        'v2\n{"operatorInfo":{"operatorId":1,"operatorName":"x"},"stateStoreInfo":[{"storeName":"default",'
        '"numColsPrefixKey":0,"numPartitions":4,"stateSchemaFilePaths":["file:/_stateSchema/l/state/1/_stateSchema/'
        'default/0_u"]}]}',
        "state/1/_metadata/v2/0",
    )
    assert (entry.id, entry.name, entry.partitions, entry.stores) == ("1", "x", 4, ("default",))
    assert entry.schemas == ("_stateSchema/default/0_u",)
    for body in ("{}", '{"operatorInfo":{"operatorId":1,"operatorName":"x"},"stateStoreInfo":[]}'):
        with pytest.raises(CaptureIncomplete, match="metadata"):
            parse_operator(f"v1\n{body}", "state/1/_metadata/metadata")


def test_positions_of_a_location(tmp_path: Path) -> None:
    location = CheckpointLocation(tmp_path)
    assert (location.last_committed(), location.planned(), location.query_id()) == (None, None, None)
    for directory in ("offsets", "commits", "sources/0", "sources/.tmp"):
        (tmp_path / directory).mkdir(parents=True)
    (tmp_path / "metadata").write_text('{"id":"q"}', encoding="utf-8")
    (tmp_path / "offsets/0").touch()
    assert (location.last_committed(), location.planned(), location.query_id()) == (None, 0, "q")
    for name in ("commits/8", "commits/9", "offsets/9", "offsets/10", "commits/.11.crc", "offsets/.11.x.tmp"):
        (tmp_path / name).touch()
    assert (location.last_committed(), location.planned()) == (9, 10)
    assert location.previous_offsets(10) == 9
    assert location.previous_offsets(0) is None
    assert location.sources() == ["0"]
    (tmp_path / "commits/10").touch()
    assert (location.last_committed(), location.planned()) == (10, None)
    with pytest.raises(CaptureIncomplete, match="not written yet, or purged"):
        location.offsets(3)


def test_operator_metadata_as_a_batch_used_it(tmp_path: Path) -> None:
    location = CheckpointLocation(tmp_path)
    for name in ("state/0/_metadata/metadata", "state/10/_metadata/v2/0", "state/10/_metadata/v2/6"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert location.operators(5) == [("0", "state/0/_metadata/metadata"), ("10", "state/10/_metadata/v2/0")]
    assert location.operators(6)[1] == ("10", "state/10/_metadata/v2/6")
    (tmp_path / "state/10/_metadata/v2/0").unlink()
    with pytest.raises(CaptureIncomplete, match="state/10 has no metadata for batch 5"):
        location.operators(5)


def test_parses_are_remembered_by_content_not_by_name(tmp_path: Path) -> None:
    location = CheckpointLocation(tmp_path)
    file = tmp_path / "5.zip"
    reads: list[str] = []

    def parse(path: Path) -> str:
        reads.append(path.name)
        return path.read_text(encoding="utf-8")

    file.write_text("one", encoding="utf-8")
    assert [location.parsed(file, parse), location.parsed(file, parse)] == ["one", "one"]
    (tmp_path / "pin").hardlink_to(file)
    assert location.parsed(tmp_path / "pin", parse) == "one"
    assert reads == ["5.zip"]
    other = tmp_path / "other"
    other.write_text("other", encoding="utf-8")
    other.replace(file)
    assert location.parsed(file, parse) == "other"
