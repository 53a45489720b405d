"""Reading RocksDB's own files: the LZ4 blocks of a changelog, the metadata inside a snapshot zip."""

from __future__ import annotations

import contextlib
import itertools
import json
import struct
import zipfile
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_ckpt.spark.capture.rocksdb_files import (
    LineageItem,
    SnapshotMember,
    _lz4_pieces,
    changelog_lineage,
    snapshot_members,
)
from dagster_ckpt.spark.files.bucket_location import UnreadableStateFile

_BLOCK = 32 * 1024  # Spark's spark.io.compression.lz4.blockSize


def _stream(plain: bytes, *, raw: bool = False) -> bytes:
    """As lz4-java's LZ4BlockOutputStream writes it."""
    blocks = []
    for start in range(0, len(plain), _BLOCK):
        block = plain[start : start + _BLOCK]
        packed = block if raw else pa.compress(block, codec="lz4_raw", asbytes=True)
        token = (0x10 if raw else 0x20) | 5
        blocks.append(b"LZ4Block" + struct.pack("<BiiI", token, len(packed), len(block), 0) + packed)
    return b"".join(blocks) + b"LZ4Block" + struct.pack("<BiiI", 0x15, 0, 0, 0)


def _block(packed: bytes, size: int) -> bytes:
    return b"".join(_lz4_pieces(packed, size))


def _utf(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode()


def _changelog(version: str, lineage: list[tuple[int, str]]) -> bytes:
    items = [{"version": number, "checkpointUniqueId": uid} for number, uid in lineage]
    return _utf(version) + _utf(json.dumps(items)) + b"\x00\x00\x00\x01records" * 50


@given(
    st.lists(st.tuples(st.binary(max_size=40), st.integers(1, 300)), max_size=20).map(
        lambda parts: b"".join(part * times for part, times in parts)
    )
)
def test_lz4_block_is_the_inverse_of_arrows_compressor(plain: bytes) -> None:
    packed = pa.compress(plain, codec="lz4_raw", asbytes=True)
    assert _block(packed, len(plain)) == plain


@given(st.binary(max_size=60), st.integers(0, 200))
def test_whatever_is_no_lz4_block_of_the_size_is_refused(packed: bytes, size: int) -> None:
    with contextlib.suppress(ValueError, IndexError):
        assert len(_block(packed, size)) == size


def test_each_bit_of_an_lz4_block_counts() -> None:
    """The text has each byte once before its match, so that another distance or length is another text."""
    last = b"the last one"
    plain = bytes(range(64)) + bytes(range(8, 40)) + last
    packed = pa.compress(plain, codec="lz4_raw", asbytes=True)
    assert len(packed) < len(plain)
    same = set()
    for place, bit in itertools.product(range(len(packed)), range(8)):
        flipped = bytearray(packed)
        flipped[place] ^= 1 << bit
        with contextlib.suppress(ValueError, IndexError):
            if _block(bytes(flipped), len(plain)) == plain:
                same.add((place, bit))
    token = len(packed) - len(last) - 1
    no_match = {(token, bit) for bit in range(4)}
    longer = {(token, bit) for bit in (4, 5)}  # than the block, at whose end the literals end all the same
    assert same == no_match | longer


@pytest.mark.parametrize("version", ["v3", "v4"])
@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("length", [0, 1, 800])
def test_lineage_of_a_changelog(tmp_path: Path, version: str, raw: bool, length: int) -> None:
    """800 versions are more than one block of the stream."""
    lineage = [(number, f"{number:08}-aaaa-bbbb-cccc-{number:012}") for number in range(1, length + 1)]
    file = tmp_path / "9_uid.changelog"
    file.write_bytes(_stream(_changelog(version, lineage), raw=raw))
    assert changelog_lineage(file) == tuple(LineageItem(*item) for item in lineage)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x28\xb5\x2f\xfd a zstd frame",
        _stream(_utf("v9") + _utf("[]")),
        _stream(_utf("v2") + b"records without lineage"),
        _stream(_utf("v3") + _utf("[{}]")),
        _stream(_utf("v3") + _utf("no json")),
        _stream(_changelog("v3", [(1, "a"), (2, "b")]))[:60],
        _stream(b"\x00"),
    ],
)
def test_unreadable_changelog(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "9_uid.changelog"
    file.write_bytes(content)
    with pytest.raises(UnreadableStateFile, match=r"9_uid\.changelog"):
        changelog_lineage(file)


def _archive(path: Path, metadata: str | None) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("CURRENT", "MANIFEST-000005\n")
        if metadata is not None:
            archive.writestr("metadata", metadata)
    return path


def test_members_of_a_snapshot(tmp_path: Path) -> None:
    body = {
        "sstFiles": [{"localFileName": "1.sst", "dfsSstFileName": "1-u.sst", "sizeBytes": 12}],
        "logFiles": [{"dfsLogFileName": "2-u.log", "sizeBytes": 3}],
        "numKeys": 2,
    }
    archive = _archive(tmp_path / "3.zip", "v1\n" + json.dumps(body))
    assert snapshot_members(archive) == (
        SnapshotMember("SSTs/1-u.sst", 12),
        SnapshotMember("logs/2-u.log", 3),
    )
    assert snapshot_members(_archive(tmp_path / "4.zip", 'v1\n{"sstFiles": [], "numKeys": 0}')) == ()


@pytest.mark.parametrize("metadata", [None, "v7\n{}", "v1\n", "v1\n[]", 'v1\n{"sstFiles": [{}]}'])
def test_unreadable_snapshot(tmp_path: Path, metadata: str | None) -> None:
    with pytest.raises(UnreadableStateFile, match=r"3\.zip"):
        snapshot_members(_archive(tmp_path / "3.zip", metadata))


def test_truncated_snapshot(tmp_path: Path) -> None:
    archive = _archive(tmp_path / "3.zip", "v1\n{}")
    archive.write_bytes(archive.read_bytes()[:-30])
    with pytest.raises(UnreadableStateFile, match=r"3\.zip"):
        snapshot_members(archive)
