"""JSON that was read from a storage: the checks before a value is used, and the seal of a document.

Anyone who can write to a storage can write any content there, even with a right checksum. The seal is the last member
of a document: a SHA-256 over every byte before that member. So a truncated, flipped or spliced document is found before
any of its content is used.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

from pydantic_core import from_json, to_json

from dagster_ckpt.errors import CheckpointError, CorruptCheckpoint
from dagster_ckpt.filesystem import inside

__all__ = [
    "LONGEST_TEXT",
    "SIGNED_64",
    "Json",
    "believed",
    "check_tree",
    "component",
    "hex_digits",
    "is_sealed",
    "parsed",
    "seal",
    "shown",
    "text",
    "whole",
]

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

#: The greatest batch number, number of bytes and the like.
SIGNED_64: Final = 2**63 - 1
#: Most characters of a name, a checksum or a time.
LONGEST_TEXT: Final = 4096
#: Most levels of nested lists and objects.
_DEEPEST: Final = 100
_LONGEST_SHOWN: Final = 160
_DIGEST = b',\n "digest": "sha256:'
_END = b'"\n}\n'
_SHA256 = re.compile(r"[0-9a-f]{64}").fullmatch


def parsed(content: str | bytes) -> Any:
    """The JSON value in ``content``, without NaN. :func:`check_tree` tells whether the value can be stored again.

    Raises:
        ValueError: ``content`` is not a JSON value, or is nested too deep.
    """
    return from_json(content, allow_inf_nan=False)


def whole(value: object, what: str, least: int = 0) -> int:
    """``value`` if it is a whole number, at least ``least``, of at most 63 bits: a batch, a number of bytes.

    Raises:
        ValueError: ``value`` is something else.
    """
    if type(value) is not int or not least <= value <= SIGNED_64:
        raise ValueError(f"{what} is {shown(value)}, not a whole number from {least} to {SIGNED_64}")
    return value


def text(value: object, what: str) -> str:
    """``value`` if it is a text of at most 4096 characters that can be written as UTF-8.

    Raises:
        ValueError: ``value`` is something else.
    """
    if not isinstance(value, str) or len(value) > LONGEST_TEXT:
        raise ValueError(f"{what} is {shown(value)}, not a text of at most {LONGEST_TEXT} characters")
    value.encode()
    return value


def hex_digits(value: object) -> str:
    """``value`` if it is a SHA-256 in hex.

    Raises:
        ValueError: ``value`` is something else.
    """
    if not isinstance(value, str) or _SHA256(value) is None:
        raise ValueError(f"{shown(value)} is no SHA-256")
    return value


def component(value: object) -> str:
    """``value`` if it can name an entry of a directory, directly in the directory and not hidden.

    Raises:
        ValueError: ``value`` may lead elsewhere.
    """
    name = inside(value)
    if "/" in name or name.startswith("."):
        raise ValueError(f"{shown(name)} does not name what lies directly in a directory")
    return name


def check_tree(document: object) -> None:
    """Check that JSON can be read and written again: not nested too deep, finite numbers, encodable texts.

    Raises:
        ValueError: a check failed.
    """
    if _is_plain(document):
        return
    left = [(document, 0)]
    while left:
        value, depth = left.pop()
        if depth > _DEEPEST:
            raise ValueError(f"lists and objects are nested more than {_DEEPEST} deep")
        if isinstance(value, dict):
            left += [(item, depth + 1) for pair in value.items() for item in pair]
        elif isinstance(value, list):
            left += [(item, depth + 1) for item in value]
        elif isinstance(value, str):
            value.encode()
        elif isinstance(value, float) and not math.isfinite(value):
            raise ValueError("a number is not finite")


def _is_plain(document: object) -> bool:
    """Whether the serializer in C finds nothing wrong with a document of few lists and objects: as nearly always."""
    try:
        told = to_json(document)
    except ValueError:
        return False
    return told.count(b"[") + told.count(b"{") <= _DEEPEST and b"NaN" not in told and b"Infinity" not in told


def shown(value: object) -> str:
    """A value for a message, shortened."""
    if isinstance(value, int) and abs(value) > SIGNED_64:
        return "a number of many digits"
    if not isinstance(value, (str, int, float)):
        return f"a {type(value).__name__}"
    told = repr(value)
    return told if len(told) <= _LONGEST_SHOWN else f"{told[:_LONGEST_SHOWN]}..."


@contextmanager
def believed(what: str, hint: str, error: type[CheckpointError] = CorruptCheckpoint) -> Iterator[None]:
    """Around code that reads and uses ``what``: invalid content is raised as ``error``.

    Raises:
        CheckpointError: ``error``, or an error of this package that the code raised.
    """
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as reason:
        if isinstance(reason, CheckpointError):
            raise
        raise error(f"{what} is not what it must be: {type(reason).__name__}: {reason}.", hint=hint) from reason


def seal(body: bytes) -> bytes:
    """The document whose text is ``body``, a JSON object of at least one member without its closing brace."""
    return body + _DIGEST + _checksum(body) + _END


def is_sealed(data: bytes) -> bool:
    """Whether ``data`` is an unchanged document of :func:`seal`."""
    body, mark, tail = data.rpartition(_DIGEST)
    return bool(mark) and tail == _checksum(body) + _END


def _checksum(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest().encode("ascii")
