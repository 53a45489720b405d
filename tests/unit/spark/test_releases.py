from __future__ import annotations

import re
from collections.abc import Collection
from itertools import pairwise
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from dagster_ckpt.config.state_backend import _OPTIONS
from dagster_ckpt.errors import InvalidConfiguration, RestoreRefused, UnsupportedSpark
from dagster_ckpt.spark.releases import (
    RELEASES,
    Release,
    newest_version,
    oldest_writer,
    refuse_unknown_options,
    release_of,
)

_ROOT = Path(__file__).resolve().parents[3]
_ROCKSDB = "spark.sql.streaming.stateStore.rocksdb."


def test_a_newer_release_reads_all_that_an_older_one_does() -> None:
    """What lets a job move to a newer Spark at any restart."""
    for older, newer in pairwise(RELEASES):
        assert older.minor < newer.minor
        for name in ("offset_log", "commit_log", "operator", "changelog", "state"):
            assert set(getattr(older.formats, name)) <= set(getattr(newer.formats, name))


def test_the_bounds_of_the_package_are_those_of_the_table() -> None:
    (line,) = re.findall(r'^    "(pyspark[^"]*)",$', (_ROOT / "pyproject.toml").read_text(), flags=re.MULTILINE)
    (_, newest), admitted = RELEASES[-1].minor, Requirement(line).specifier
    assert all(admitted.contains(f"{release.name}.7") for release in RELEASES)
    assert not admitted.contains("3.5.7")
    assert not admitted.contains(f"4.{newest + 1}.0")


@pytest.mark.parametrize("version", ["3.5.7", "4.4.0-SNAPSHOT", "40.1", "main", ""])
def test_any_other_spark_is_refused_with_the_ones_that_work(version: str) -> None:
    with pytest.raises(UnsupportedSpark, match=r"works with Spark 4\.0 to 4\.3") as refused:
        release_of(version)
    assert f"This is Spark {version}," in refused.value.message
    assert "pip install" in refused.value.hint
    assert ("newer release of dagster-ckpt" in refused.value.hint) == (version in {"4.4.0-SNAPSHOT", "40.1"})


@pytest.mark.parametrize("version", ["4.1.3", "4.1", "4.1.0-amzn-1"])
def test_a_patch_and_a_vendor_change_nothing(version: str) -> None:
    assert release_of(version).name == "4.1"


def test_the_newest_of_some_versions() -> None:
    assert newest_version(["4.9.0", None, "4.10.1", "main"]) == "4.10.1"
    assert newest_version([None, "main"]) is None


def test_an_option_of_a_newer_spark_is_refused_by_an_older_one() -> None:
    for position, release in enumerate(RELEASES):
        for newer in RELEASES[position + 1 :]:
            for option in newer.rocksdb_options:
                with pytest.raises(
                    InvalidConfiguration, match=f"Spark {release.name} has no RocksDB option '{option}'"
                ):
                    refuse_unknown_options({f"{_ROCKSDB}{option}": "1"}, release)
        known = set(_OPTIONS) - {option for newer in RELEASES[position + 1 :] for option in newer.rocksdb_options}
        refuse_unknown_options({f"{_ROCKSDB}{option}": "1" for option in known}, release)


def test_a_log_of_a_newer_spark_is_refused_by_an_older_one() -> None:
    for release in RELEASES:
        release.refuse_newer(release.formats.offset_log, release.formats.commit_log, "chk-3")
    with pytest.raises(RestoreRefused, match=r"chk-3 has offsets/ of version 2, and Spark 4\.1 reads up to 1"):
        release_of("4.1.3").refuse_newer({1, 2}, {1}, "chk-3")
    with pytest.raises(RestoreRefused, match=r"chk-3 has commits/ of version 3, and Spark 4\.0 reads up to 2"):
        release_of("4.0.5").refuse_newer({1}, {3}, "chk-3")


def test_the_oldest_release_that_writes_such_files() -> None:
    """By settings, formats, or both; what a release does not know does not make it older."""
    older, newer = RELEASES[2].offset_confs, RELEASES[3].offset_confs
    assert oldest_writer([], None, None) == oldest_writer(["spark.sql.shuffle.partitions"], 2, 1) == "4.0"
    assert oldest_writer([], 2, 2) == "4.1"
    assert oldest_writer([], 3, None) == oldest_writer(older, 1, 2) == "4.2"
    assert oldest_writer([*older, *newer], 1, None) == oldest_writer(newer, 3, 2) == "4.3"


def test_the_page_has_the_table() -> None:
    text = (_ROOT / "docs/reference/spark-releases.md").read_text(encoding="utf-8")
    for release in RELEASES:
        assert f"\n{_row(release)}\n" in text


def _row(release: Release) -> str:
    def told(values: Collection[object]) -> str:
        return ", ".join(map(str, values)) or "-"

    formats = release.formats
    cells = (
        release.name,
        told(formats.offset_log),
        told(formats.commit_log),
        told(formats.state),
        told(release.file_checksums),
        "yes" if release.row_checksums else "no",
        "yes" if release.named_sources else "no",
        told([f"`{option}`" for option in release.rocksdb_options]),
    )
    return f"| {' | '.join(cells)} |"
