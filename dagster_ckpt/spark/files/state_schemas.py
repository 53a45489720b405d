"""The schema of a state store, which Spark keeps in the first partition of each store, as Java writes its data.

Version 1 is two texts of JSON, of key and value. Version 2 has each in pieces, after their number.
"""

from __future__ import annotations

import struct

from dagster_ckpt.stored_json import parsed

__all__ = ["key_names"]

_VERSIONS = ("v1", "v2")


def key_names(schema: bytes) -> tuple[str, ...]:
    """The names of the columns in a store's keys.

    Raises:
        ValueError: this is no schema of version 1 or 2.
        LookupError: the key has no names.
    """
    version, at = _text(schema, 0)
    if version not in _VERSIONS:
        raise ValueError(f"its version is {version[:20]!r}")
    pieces = 1
    if version != _VERSIONS[0]:
        pieces, at = _number(schema, at, ">i")
    key = ""
    for _ in range(pieces):
        piece, at = _text(schema, at)
        key += piece
    return tuple(str(field["name"]) for field in parsed(key)["fields"])


def _text(data: bytes, at: int) -> tuple[str, int]:
    """A text and where it ends. Java writes the two halves of a pair of surrogates as two characters."""
    length, at = _number(data, at, ">H")
    if at + length > len(data):
        raise ValueError("it is truncated")
    halves = data[at : at + length].decode("utf-8", "surrogatepass")
    return halves.encode("utf-16", "surrogatepass").decode("utf-16"), at + length


def _number(data: bytes, at: int, kind: str) -> tuple[int, int]:
    try:
        (number,) = struct.unpack_from(kind, data, at)
    except struct.error as error:
        raise ValueError("it is truncated") from error
    return int(number), at + struct.calcsize(kind)
