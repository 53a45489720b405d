"""Which files a version of a store needs, by provider and format."""

from __future__ import annotations

from pathlib import Path

import pytest

from dagster_ckpt.config.state_backend import StateLayout
from dagster_ckpt.errors import CaptureIncomplete
from dagster_ckpt.spark.capture.rocksdb_files import LineageItem, SnapshotMember
from dagster_ckpt.spark.capture.state_files import StateFile, StateStore, StoreReader, plan_store, unplanned


class _Reader:
    """Answers what the files name; remembers what was pinned, in order."""

    def __init__(self, lineage: list[tuple[int, str]] | None = None) -> None:
        self.pinned: list[str] = []
        self._lineage = lineage or []

    def reader(self) -> StoreReader:
        return StoreReader(
            pin=self._pin,
            snapshot_members=lambda file: [SnapshotMember(f"SSTs/of-{file.name}.sst", 7)],
            lineage=lambda _: [LineageItem(*item) for item in self._lineage],
        )

    def _pin(self, name: str) -> Path:
        self.pinned.append(name)
        return Path("pins") / name


def _plan(
    provider: StateLayout,
    names: str,
    version: int,
    unique_id: str | None = None,
    lineage: list[tuple[int, str]] | None = None,
) -> list[str]:
    store = StateStore("state/0/1", frozenset(names.split()), version, unique_id)
    return [file.name for file in plan_store(store, provider, _Reader(lineage).reader())]


def _deltas(first: int, last: int, suffix: str = "delta") -> str:
    return " ".join(f"{number}.{suffix}" for number in range(first, last + 1))


def test_version_0_is_empty() -> None:
    assert _plan(StateLayout.HDFS, "", 0) == []
    assert _plan(StateLayout.ROCKSDB, "", 0) == []


@pytest.mark.parametrize(
    ("names", "version", "files"),
    [
        (_deltas(1, 9), 3, "1.delta 2.delta 3.delta"),
        (_deltas(1, 12) + " 3.snapshot 10.snapshot", 12, "10.snapshot 11.delta 12.delta"),
        (_deltas(1, 12) + " 3.snapshot 10.snapshot", 9, "3.snapshot " + _deltas(4, 9)),
        (_deltas(1, 12) + " 10.snapshot", 10, "10.snapshot"),
        # the delta of the snapshot's own version may be gone, hidden and foreign files do not count
        (
            "10.snapshot 11.delta .11.delta.crc .12.delta.x.tmp x.snapshot _metadata",
            11,
            "10.snapshot 11.delta",
        ),
    ],
)
def test_hdfs_backed(names: str, version: int, files: str) -> None:
    assert _plan(StateLayout.HDFS, names, version) == files.split()


@pytest.mark.parametrize(
    ("names", "version", "missing"),
    [
        (_deltas(1, 4), 5, "5.delta"),
        (_deltas(2, 5), 5, "1.delta"),
        ("3.snapshot 4.delta 6.delta", 6, "5.delta"),
        ("7.snapshot", 6, "1.delta"),
        ("", 1, "1.delta"),
    ],
)
def test_hdfs_backed_with_a_gap(names: str, version: int, missing: str) -> None:
    with pytest.raises(CaptureIncomplete, match=f"state/0/1/{missing} is missing"):
        _plan(StateLayout.HDFS, names, version)


@pytest.mark.parametrize(
    ("names", "version", "files"),
    [
        ("1.zip 2.zip 3.zip SSTs", 2, "2.zip SSTs/of-2.zip.sst"),
        (_deltas(1, 5, "changelog"), 2, "1.changelog 2.changelog"),
        ("3.zip " + _deltas(1, 5, "changelog"), 5, "3.zip SSTs/of-3.zip.sst 4.changelog 5.changelog"),
        ("3.zip 5.zip " + _deltas(1, 5, "changelog"), 4, "3.zip SSTs/of-3.zip.sst 4.changelog"),
        # a checksum beside a name that can be overwritten may be of other bytes
        ("3.zip 3.zip.crc 4.changelog 4.changelog.crc", 4, "3.zip SSTs/of-3.zip.sst 4.changelog"),
    ],
)
def test_rocksdb_v1(names: str, version: int, files: str) -> None:
    assert _plan(StateLayout.ROCKSDB, names, version) == files.split()


@pytest.mark.parametrize(
    ("names", "version", "missing"),
    [
        ("1.zip 2.zip", 3, "3.changelog"),
        ("", 2, "1.changelog"),
        ("3.zip 4.changelog 6.changelog", 6, "5.changelog"),
        ("4.zip", 3, "1.changelog"),
    ],
)
def test_rocksdb_v1_with_a_gap(names: str, version: int, missing: str) -> None:
    with pytest.raises(CaptureIncomplete, match=f"state/0/1/{missing} is missing"):
        _plan(StateLayout.ROCKSDB, names, version)


_LINEAGE = [(3, "c"), (4, "d"), (5, "e")]


@pytest.mark.parametrize(
    ("names", "version", "uid", "lineage", "files"),
    [
        ("6_f.zip 6_g.zip 6_f.zip.crc", 6, "f", None, "6_f.zip SSTs/of-6_f.zip.sst 6_f.zip.crc"),
        (
            "3_c.zip 4_d.changelog 5_e.changelog 6_f.changelog 5_x.zip 6_y.changelog",
            6,
            "f",
            _LINEAGE,
            "3_c.zip SSTs/of-3_c.zip.sst 4_d.changelog 5_e.changelog 6_f.changelog",
        ),
        (
            "3_c.zip 5_e.zip 5_e.zip.crc 4_d.changelog 5_e.changelog 6_f.changelog 6_f.changelog.crc",
            6,
            "f",
            _LINEAGE,
            "5_e.zip SSTs/of-5_e.zip.sst 6_f.changelog 5_e.zip.crc 6_f.changelog.crc",
        ),
        ("1_a.changelog 2_b.changelog", 2, "b", [(1, "a")], "1_a.changelog 2_b.changelog"),
        ("1_a.changelog", 1, "a", [], "1_a.changelog"),
    ],
)
def test_rocksdb_v2(names: str, version: int, uid: str, lineage: list[tuple[int, str]] | None, files: str) -> None:
    assert _plan(StateLayout.ROCKSDB, names, version, uid, lineage) == files.split()


@pytest.mark.parametrize(
    ("names", "why"),
    [
        ("5_e.changelog", "6_f.changelog is missing"),
        ("6_x.zip 6_x.changelog", "6_f.changelog is missing"),
        ("6_f.changelog 3_c.zip 4_d.changelog", "5_e.changelog is missing"),
        ("6_f.changelog 5_e.changelog 4_d.changelog 3_c.changelog", "builds on version 1"),
    ],
)
def test_rocksdb_v2_with_a_gap(names: str, why: str) -> None:
    with pytest.raises(CaptureIncomplete, match=why):
        _plan(StateLayout.ROCKSDB, names, 6, "f", _LINEAGE)


def test_what_names_others_is_pinned_before_it_is_read_and_sizes_are_told() -> None:
    reader = _Reader()
    store = StateStore("state/0/1", frozenset({"2.zip"}), 2)
    files = plan_store(store, StateLayout.ROCKSDB, reader.reader())
    assert reader.pinned == ["2.zip"]
    assert files == [StateFile("2.zip"), StateFile("SSTs/of-2.zip.sst", size=7)]


def test_checksums_are_optional() -> None:
    store = StateStore("state/0/1", frozenset({"2_b.zip", "2_b.zip.crc"}), 2, "b")
    files = plan_store(store, StateLayout.ROCKSDB, _Reader().reader())
    assert [file.name for file in files if file.optional] == ["2_b.zip.crc"]


def test_names_that_a_provider_would_not_write_are_found() -> None:
    common = {"_metadata", ".4.zip.1f0e.tmp", ".4.delta.crc"}
    hdfs = {"4.delta", "4.delta.crc", "3.snapshot"}  # the checksum file by Spark 4.1
    rocksdb = {"4.zip", "4_1f0e-ab.zip", "4_1f0e-ab.zip.crc", "5.changelog", "5_1f0e-ab.changelog", "SSTs", "logs"}
    strange = {"4.idx", "MANIFEST", "left-keyToNumValues", "4.delta.bak", "x.zip"}
    store = StateStore("state/0/0", common | hdfs | rocksdb | strange, 4)
    assert unplanned(store, StateLayout.HDFS) == sorted(rocksdb | strange)
    assert unplanned(store, StateLayout.ROCKSDB) == sorted(hdfs | strange)
