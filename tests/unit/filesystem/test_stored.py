"""What a bucket says about an object, and whether that proves that the bytes are the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dagster_ckpt.filesystem import server_side
from dagster_ckpt.filesystem.server_side import Stored, crc32c_of, md5_of
from tests.helpers.checkpoint.memory import CopyingMemory

BOTH = Stored(5, "1", "crc", "md5")
CRC, MD5, NONE = replace(BOTH, md5=None), replace(BOTH, crc32c=None), replace(BOTH, crc32c=None, md5=None)


@pytest.mark.parametrize(
    ("found", "pinned", "same_content", "is_copy", "is_still"),
    [
        (BOTH, BOTH, True, True, True),
        (replace(BOTH, version="2"), BOTH, True, True, True),
        (replace(BOTH, size=6), BOTH, False, False, False),
        (replace(BOTH, crc32c="other"), BOTH, False, False, False),
        (replace(BOTH, md5="other"), BOTH, False, False, False),
        (CRC, BOTH, True, True, True),
        (MD5, BOTH, True, True, True),
        (CRC, MD5, False, False, False),
        (NONE, BOTH, False, False, False),
        (BOTH, NONE, False, True, True),
        (NONE, NONE, False, True, True),
        (replace(NONE, version="2"), NONE, False, True, False),
        (replace(NONE, size=6), NONE, False, False, False),
    ],
)
def test_the_same_bytes(found: Stored, pinned: Stored, same_content: bool, is_copy: bool, is_still: bool) -> None:
    assert found.is_same_content(pinned) is same_content
    assert found.is_copy_of(pinned) is is_copy
    assert found.is_still(pinned) is is_still


def test_a_checksum_is_known() -> None:
    assert [stored.has_checksum for stored in (BOTH, CRC, MD5, NONE)] == [True, True, True, False]


def test_the_bytes_of_a_local_file(tmp_path: Path) -> None:
    data, file = b"first", tmp_path / "file"
    file.write_bytes(data)
    told = Stored(5, "1", crc32c_of(data), md5_of(data))
    for given in (data, file):
        assert told.is_of(given)
        assert replace(told, crc32c=None).is_of(given)
        assert replace(told, crc32c=None, md5=None).is_of(given), "the size is all that is told"
        assert not replace(told, size=6).is_of(given)
        assert not replace(told, crc32c="AAAAAA==").is_of(given)
        assert not replace(told, crc32c=None, md5="other").is_of(given)


@pytest.mark.parametrize("size", [0, 1, 4, 5, 8, 9])
def test_a_file_in_chunks(size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_side, "_CHUNK", 4)
    bucket, data, file = CopyingMemory(), bytes(range(size)), tmp_path / "file"
    file.write_bytes(data)
    assert (crc32c_of(file), md5_of(file)) == (crc32c_of(data), md5_of(data))
    bucket.replace("f", data)
    assert bucket.fetch_stored("f", bucket.stored("f"), tmp_path / "fetched")
    assert (tmp_path / "fetched").read_bytes() == data
    if size:
        assert not bucket.fetch_stored("f", replace(bucket.stored("f"), crc32c="AAAAAA=="), tmp_path / "other")
