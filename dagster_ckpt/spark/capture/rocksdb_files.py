"""Reading the two kinds of files of Spark's RocksDB state store that name other files.

A snapshot ``V.zip`` names the SST files it needs; a changelog of state format v2 names the versions it builds on. Both
are read without a JVM, so any process that sees the checkpointLocation can plan a checkpoint.
"""

from __future__ import annotations

import errno
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from dagster_ckpt.spark.files import UnreadableStateFile
from dagster_ckpt.spark.releases import EVERY_FORMAT
from dagster_ckpt.stored_json import component, parsed, whole

__all__ = [
    "LineageItem",
    "SnapshotMember",
    "changelog_lineage",
    "snapshot_members",
]

_MAGIC = b"LZ4Block"
_BLOCK_HEADER = struct.Struct("<BiiI")  # token, compressed length, original length, checksum
_RAW = 0x10
_LZ4 = 0x20
_PIECE = 512
#: Limit in bytes for a snapshot's metadata, which lists thousands of files at most.
_LONGEST_METADATA = 64 << 20


class SnapshotMember(NamedTuple):
    """A file that a RocksDB snapshot needs besides its zip.

    Attributes:
        path: relative to the directory of the state store, for example ``SSTs/000012-<uuid>.sst``.
        size: in bytes, as the snapshot recorded it at its commit.
    """

    path: str
    size: int


class LineageItem(NamedTuple):
    """One earlier version that a changelog of state format v2 builds on."""

    version: int
    unique_id: str


def snapshot_members(archive: Path) -> tuple[SnapshotMember, ...]:
    """The SST and log files that ``archive``, a RocksDB snapshot ``V.zip``, needs.

    Raises:
        UnreadableStateFile: the zip is truncated or its inner ``metadata`` is of an unknown kind.
    """
    try:
        with zipfile.ZipFile(archive) as opened:
            if (size := opened.getinfo("metadata").file_size) > _LONGEST_METADATA:
                raise UnreadableStateFile(f"{archive.name}: its metadata has {size} bytes")
            header, _, body = opened.read("metadata").decode().partition("\n")
        if header != "v1":
            raise UnreadableStateFile(f"{archive.name}: snapshot metadata of version {header!r}, known is 'v1'")
        metadata = parsed(body)
        ssts = [
            SnapshotMember(f"SSTs/{component(entry['dfsSstFileName'])}", whole(entry["sizeBytes"], "a size"))
            for entry in metadata.get("sstFiles") or []
        ]
        logs = [
            SnapshotMember(f"logs/{component(entry['dfsLogFileName'])}", whole(entry["sizeBytes"], "a size"))
            for entry in metadata.get("logFiles") or []
        ]
    except (
        zipfile.BadZipFile,
        zlib.error,
        AttributeError,
        KeyError,
        TypeError,
        ValueError,
        EOFError,
        ArithmeticError,
        struct.error,
        RuntimeError,  # the zip has a password, or an unknown method of compression
        OSError,
    ) as error:
        if isinstance(error, OSError) and error.errno != errno.EINVAL:  # EINVAL: an offset before the file's start
            raise
        raise UnreadableStateFile(f"{archive.name}: not a RocksDB snapshot ({error})") from error
    return (*ssts, *logs)


def changelog_lineage(changelog: Path) -> tuple[LineageItem, ...]:
    """The versions that ``changelog`` (``V_<uid>.changelog``) builds on, back to the last snapshot.

    Raises:
        UnreadableStateFile: not an LZ4 block stream, truncated, or a changelog version without lineage.
    """
    try:
        head = _Head(changelog.read_bytes(), changelog.name)
        version = head.utf()
        if version not in EVERY_FORMAT.changelog:
            raise UnreadableStateFile(f"{changelog.name}: changelog of version {version!r} carries no lineage")
        return tuple(
            LineageItem(whole(item["version"], "a version"), component(item["checkpointUniqueId"]))
            for item in parsed(head.utf())
        )
    except (AttributeError, KeyError, TypeError, ValueError, struct.error, IndexError) as error:
        raise UnreadableStateFile(f"{changelog.name}: unreadable changelog header ({error})") from error


class _Head:
    """The beginning of an LZ4 block stream, decompressed no further than the reads need."""

    def __init__(self, data: bytes, name: str) -> None:
        self._name = name
        self._pieces = _pieces(data, name)
        self._plain = bytearray()
        self._position = 0

    def utf(self) -> str:
        """One string as Java's ``DataOutputStream.writeUTF`` wrote it (ids and JSON are ASCII)."""
        (length,) = struct.unpack(">H", self._take(2))
        return self._take(length).decode()

    def _take(self, count: int) -> bytes:
        end = self._position + count
        while len(self._plain) < end:
            self._plain += next(self._pieces)
        taken = bytes(self._plain[self._position : end])
        self._position = end
        return taken


def _pieces(data: bytes, name: str) -> Iterator[bytes]:
    """The content of an LZ4 block stream; raises at the end of the stream instead of stopping."""
    at = 0
    while True:
        start = at + len(_MAGIC)
        if data[at:start] != _MAGIC:
            raise UnreadableStateFile(f"{name}: truncated, or not compressed with lz4")
        token, compressed, original, _ = _BLOCK_HEADER.unpack_from(data, start)
        body = start + _BLOCK_HEADER.size
        at = body + compressed
        block = data[body:at]
        method = token & 0xF0
        if len(block) != compressed or original == 0 or method not in (_RAW, _LZ4):
            raise UnreadableStateFile(f"{name}: truncated")
        if method == _RAW:
            yield block
        else:
            yield from _lz4_pieces(block, original)


def _lz4_pieces(source: bytes, size: int) -> Iterator[bytes]:
    """One LZ4 block of ``size`` original bytes, piece by piece: a lineage needs a few hundred bytes of 32 KiB.

    Raises:
        ValueError: the block is damaged.
        IndexError: the block is truncated.
    """
    plain = bytearray()
    yielded = at = 0
    while at < len(source):
        token = source[at]
        at += 1
        literals, at = _length(source, at, token >> 4)
        plain += source[at : at + literals]
        at += literals
        if at >= len(source):  # the last sequence has literals only
            break
        distance = source[at] | (source[at + 1] << 8)
        matched, at = _length(source, at + 2, token & 0x0F)
        matched += 4
        if not 0 < distance <= len(plain):
            raise ValueError(f"match distance {distance} at {len(plain)} bytes")
        # A match may overlap its own output (distance < length): the pattern then repeats.
        pattern = plain[-distance:][:matched]
        plain += (pattern * (matched // len(pattern) + 1))[:matched]
        if len(plain) - yielded >= _PIECE:
            yield bytes(plain[yielded:])
            yielded = len(plain)
    if len(plain) != size:
        raise ValueError(f"block of {size} bytes decompressed to {len(plain)}")
    yield bytes(plain[yielded:])


def _length(source: bytes, at: int, nibble: int) -> tuple[int, int]:
    length = nibble
    if nibble == 15:
        while True:
            byte = source[at]
            at += 1
            length += byte
            if byte != 255:
                break
    return length, at
