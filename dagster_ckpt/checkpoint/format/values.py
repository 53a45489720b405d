"""Values that were read from a storage as JSON, and what each must be before it is used.

Whoever can write to a storage can write anything there, with a right checksum, too.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NoReturn

from dagster_ckpt.errors import CheckpointError, CorruptCheckpoint
from dagster_ckpt.filesystem.names import inside

__all__ = [
    "LONGEST_TEXT",
    "SIGNED_64",
    "believed",
    "check_tree",
    "component",
    "hex_digits",
    "parsed",
    "shown",
    "text",
    "whole",
]

#: The greatest number of a batch, of bytes and the like.
SIGNED_64: Final = 2**63 - 1
#: Characters of a text that is a name, a checksum or a time.
LONGEST_TEXT: Final = 4096
#: Lists and objects within each other.
_DEEPEST: Final = 100
_LONGEST_SHOWN: Final = 160
_SHA256 = re.compile(r"[0-9a-f]{64}").fullmatch


def _no_number(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number")


#: Of JSON as the standard has it: without NaN and Infinity.
_DECODER = json.JSONDecoder(parse_constant=_no_number)


def parsed(content: str | bytes) -> Any:
    """The JSON value that ``content`` is. :func:`check_tree` tells whether it is fit to be kept.

    Raises:
        ValueError: ``content`` is no JSON value, or is nested too deep.
    """
    try:
        return _DECODER.decode(content if isinstance(content, str) else content.decode())
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def whole(value: object, what: str, least: int = 0) -> int:
    """``value``, a number of bytes, of a batch and the like: whole, at least ``least``, of at most 63 bits.

    Raises:
        ValueError: ``value`` is something else.
    """
    if type(value) is not int or not least <= value <= SIGNED_64:
        raise ValueError(f"{what} is {shown(value)} and no whole number from {least} to {SIGNED_64}")
    return value


def text(value: object, what: str) -> str:
    """``value``, a text of at most 4096 characters that can be written as UTF-8.

    Raises:
        ValueError: ``value`` is something else.
    """
    if not isinstance(value, str) or len(value) > LONGEST_TEXT:
        raise ValueError(f"{what} is {shown(value)} and no text of at most {LONGEST_TEXT} characters")
    value.encode()
    return value


def hex_digits(value: object) -> str:
    """``value``, a SHA-256 in hex.

    Raises:
        ValueError: ``value`` is something else.
    """
    if not isinstance(value, str) or _SHA256(value) is None:
        raise ValueError(f"{shown(value)} is no SHA-256")
    return value


def component(value: object) -> str:
    """``value``, the name of something that lies directly in a directory and is not hidden.

    Raises:
        ValueError: it may lead elsewhere.
    """
    name = inside(value)
    if "/" in name or name.startswith("."):
        raise ValueError(f"{shown(name)} does not name what lies directly in a directory")
    return name


def check_tree(document: object) -> None:
    """JSON that is not too deep for those who read it, with finite numbers and texts that can be written.

    Raises:
        ValueError: it is not.
    """
    left = [(document, 0)]
    while left:
        value, depth = left.pop()
        if depth > _DEEPEST:
            raise ValueError(f"more than {_DEEPEST} lists and objects lie within each other")
        if isinstance(value, dict):
            left += [(item, depth + 1) for pair in value.items() for item in pair]
        elif isinstance(value, list):
            left += [(item, depth + 1) for item in value]
        elif isinstance(value, str):
            value.encode()
        elif isinstance(value, float) and not math.isfinite(value):
            raise ValueError("a number is not finite")


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
    """Within it ``what`` is read and used: what it says that cannot be is told as ``error``.

    Raises:
        CheckpointError: ``error``, or another one that was raised within.
    """
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as reason:
        if isinstance(reason, CheckpointError):
            raise
        raise error(f"{what} is not what it must be: {type(reason).__name__}: {reason}.", hint=hint) from reason
