"""The checksums that Hadoop keeps beside each file on a local disk, in ``.<name>.crc``."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

__all__ = ["differs_from_checksum"]

_MAGIC = b"crc\0"
_HEAD = struct.Struct(">4sI")


def differs_from_checksum(file: Path, content: Path) -> bool:
    """Whether Spark would refuse to read a file, because its checksum file is of other bytes.

    Args:
        file: the name, beside which the checksum file lies, if there is one.
        content: the bytes.
    """
    try:
        checksums = file.with_name(f".{file.name}.crc").read_bytes()
    except FileNotFoundError:
        return False
    if len(checksums) < _HEAD.size:
        return True
    magic, chunk = _HEAD.unpack_from(checksums)
    if magic != _MAGIC or not chunk:
        return True
    at = _HEAD.size
    with content.open("rb") as reading:
        while data := reading.read(chunk):
            if checksums[at : at + 4] != zlib.crc32(data).to_bytes(4, "big"):
                return True
            at += 4
    return at != len(checksums)
