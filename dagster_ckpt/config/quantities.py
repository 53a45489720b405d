"""Durations and sizes as people write them, with Flink's units.

A duration (Flink: ``TimeUtils``) is a ``timedelta``, or text such as ``"10 s"`` or ``"1 min 30 s"``. A bare number is
refused, where Flink would read milliseconds silently: only under Flink's own keys, and in the setters that have
PyFlink's names, a number is milliseconds, as :func:`milliseconds` reads it. No duration is longer than
:data:`LONGEST_DURATION`.

A size (Flink: ``MemorySize``) is a number of bytes, or text such as ``"20 kb"`` or ``"5 MiB"``: a whole number and a
unit; without a unit the number means bytes. Every unit is a power of 1024, ``mb`` and ``m`` too.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer

from dagster_ckpt.errors import InvalidConfiguration

__all__ = [
    "GREATEST_INT",
    "LONGEST_DURATION",
    "Duration",
    "TooLong",
    "duration_of",
    "format_duration",
    "format_size",
    "measured_duration",
    "milliseconds",
    "parse_duration",
    "parse_size",
]

#: Of an ``int`` of Java, in which Spark keeps numbers of rows and partitions.
GREATEST_INT = 2**31 - 1
#: A hundred years. Python cannot sleep, nor wait for another thread, for three times as long, and no calendar has the
#: end of what is much longer.
LONGEST_DURATION = timedelta(days=36_500)
_DURATIONS = {
    **dict.fromkeys(("ms", "milli", "millis", "millisecond", "milliseconds"), 1),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1_000),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60_000),
    **dict.fromkeys(("h", "hour", "hours"), 3_600_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000),
}
_TERM = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", re.IGNORECASE)
_SIZES = {
    **dict.fromkeys(("", "b", "bytes"), 1),
    **dict.fromkeys(("k", "kb", "kib", "kibibytes"), 1 << 10),
    **dict.fromkeys(("m", "mb", "mib", "mebibytes"), 1 << 20),
    **dict.fromkeys(("g", "gb", "gib", "gibibytes"), 1 << 30),
    **dict.fromkeys(("t", "tb", "tib", "tebibytes"), 1 << 40),
}
_SIZE = re.compile(r"\s*([0-9]+)\s*([a-z]*)\s*", re.IGNORECASE)


class TooLong(ValueError):
    """A duration is longer than :data:`LONGEST_DURATION`."""


def parse_duration(value: object) -> timedelta:
    """Read a duration.

    Raises:
        ValueError: ``value`` is not a duration, or has no unit.
        TooLong: ``value`` is longer than :data:`LONGEST_DURATION`, and not ``timedelta.max``, which is that long.
    """
    if isinstance(value, timedelta):
        return LONGEST_DURATION if value == timedelta.max else _bounded(value, value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        raise ValueError(
            f"{value!r} has no unit: write a number and a unit, such as '{value} s' or '{value} min', or a timedelta"
        )
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a duration: use a timedelta, or text such as '10 s'")
    position, total = 0, 0.0
    while position < len(value):
        term = _TERM.match(value, position)
        if term is None or term[2].lower() not in _DURATIONS:
            break
        total += float(term[1]) * _DURATIONS[term[2].lower()]
        position = term.end()
    if not value.strip() or position < len(value):
        raise ValueError(
            f"{value!r} is not a duration: write a number and a unit, such as '500 ms', '10 s' or '10 min'"
        )
    return _bounded(_in_milliseconds(total), repr(value))


def duration_of(name: str, given: object, example: str) -> timedelta:
    """The duration that an option or argument of this name has; ``example`` is one that it takes.

    Raises:
        InvalidConfiguration: ``given`` is no duration.
    """
    try:
        return parse_duration(given)
    except ValueError as error:
        raise InvalidConfiguration(f"{name}: {error}.", hint=f"Write it as {example!r}, for example.") from None


def format_duration(value: timedelta) -> str:
    """The shortest text that :func:`parse_duration` reads back, such as ``"90 s"`` or ``"1 h"``."""
    milliseconds = round(value / timedelta(milliseconds=1))
    for unit, factor in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000)):
        if milliseconds and milliseconds % factor == 0:
            return f"{milliseconds // factor} {unit}"
    return f"{milliseconds} ms"


def measured_duration(milliseconds: float) -> str:
    """A measured time for people, in its largest unit: ``1.5 ms``, ``2.61 s`` or ``12.00 min``."""
    for unit, factor in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000)):
        if abs(milliseconds) >= factor:
            return f"{milliseconds / factor:,.2f} {unit}"
    return f"{round(milliseconds, 3) if abs(milliseconds) < 1 else round(milliseconds, 1):g} ms"


def format_size(value: int) -> str:
    """A number of bytes for people, such as ``512 bytes`` or ``1.4 MiB``."""
    for unit, size in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if value >= size:
            return f"{value / size:,.1f} {unit}"
    return f"{value} bytes"


def parse_size(value: object) -> int:
    """Read a size as bytes.

    Raises:
        ValueError: ``value`` is not a size.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    size = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if size is None or size[2].lower() not in _SIZES:
        raise ValueError(
            f"{value!r} is not a size: write bytes, or a whole number and a unit, such as '20 kb' or '5 MiB'"
        )
    return int(size[1]) * _SIZES[size[2].lower()]


def milliseconds(value: float) -> timedelta:
    """A number that is milliseconds, because a key or a setter of Flink's gives it.

    Raises:
        TooLong: it is longer than :data:`LONGEST_DURATION`.
    """
    return _bounded(_in_milliseconds(value), f"{value} ms")


def _in_milliseconds(value: float) -> timedelta:
    try:
        return timedelta(milliseconds=value)
    except OverflowError:
        return timedelta.max


def _bounded(value: timedelta, given: object) -> timedelta:
    if abs(value) > LONGEST_DURATION:
        raise TooLong(f"{given} is longer than {format_duration(LONGEST_DURATION)}, the longest duration")
    return value


Duration = Annotated[timedelta, BeforeValidator(parse_duration), PlainSerializer(format_duration, return_type=str)]
