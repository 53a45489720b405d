"""What each of Flink's keys means here, and how its value is read from text."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from dagster_ckpt.config.quantities import milliseconds, parse_duration, parse_size

__all__ = [
    "BOOLEAN",
    "DURATION",
    "NUMBER",
    "PATH",
    "SIZE",
    "STRATEGY",
    "WHOLE",
    "Bounds",
    "ConfigurationOption",
    "Handling",
    "OptionType",
    "Place",
    "enumeration",
    "named_or_imported",
]


class Handling(StrEnum):
    """How a key that is set is handled."""

    TAKEN = "taken"
    WARNED = "warned"
    REFUSED = "refused"


class Place(StrEnum):
    """What a key with an effect belongs to."""

    JOB = "a job, for good or for one run"
    RUN = "one run of a job"
    STORAGE = "the checkpoint storage"
    STATE = "a job for good, with its state"
    PROGRAM = "the environment of a program of dagster_ckpt.datastream"


@dataclass(frozen=True, slots=True)
class OptionType:
    """How the text of a value is read.

    Attributes:
        name: the type's name in a reference.
        allowed: the allowed text, as the end of a sentence: ``a duration such as '10 s'``.
        read: turns the text into a value; raises ``ValueError``.
    """

    name: str
    allowed: str
    read: Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Values between ``least`` and ``most``; any other value warns, and ``otherwise`` is used, as in Flink."""

    least: int
    most: int | None
    otherwise: int

    def admit(self, value: int) -> bool:
        """Whether ``value`` is within the bounds."""
        return value >= self.least and (self.most is None or value <= self.most)


@dataclass(frozen=True, slots=True)
class ConfigurationOption:
    """One key.

    Attributes:
        key: Flink's newest spelling.
        type: how its value is read.
        handling: how the key is handled.
        effect: what the key does here; for a key that is warned about or refused, why it does nothing.
        old: older spellings, the newest first.
        sets: the field of ``CheckpointConfig``, or of the restart strategy, that the key sets.
        place: what the key belongs to.
        as_here: the value that asks for the behaviour here: this value is neither warned about nor refused.
        bounds: of the value.
    """

    key: str
    type: OptionType
    handling: Handling
    effect: str
    old: tuple[str, ...] = ()
    sets: str | None = None
    place: Place = Place.JOB
    as_here: object = None
    bounds: Bounds | None = None


def _duration(text: str) -> timedelta:
    # In Flink's configuration a number without a unit means milliseconds.
    return milliseconds(int(text)) if re.fullmatch(r"\s*[0-9]+\s*", text) else parse_duration(text)


def _boolean(text: str) -> bool:
    if text.strip().lower() not in {"true", "false"}:
        raise ValueError
    return text.strip().lower() == "true"


def _whole(text: str) -> int:
    if not re.fullmatch(r"\s*[+-]?[0-9]+\s*", text):
        raise ValueError
    return int(text)


def _number(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError
    return number


def _path(text: str) -> str:
    if not text.strip():
        raise ValueError
    return text.strip()


def _one_of(names: Mapping[str, object]) -> Callable[[str], object]:
    def read(text: str) -> object:
        try:
            return names[text.strip().lower()]
        except KeyError:
            raise ValueError from None

    return read


DURATION = OptionType("duration", "a duration such as '10 s' or '1 min', or milliseconds", _duration)
SIZE = OptionType("size", "a size such as '20 kb' or '5 mb', or bytes", parse_size)
BOOLEAN = OptionType("boolean", "true or false", _boolean)
WHOLE = OptionType("integer", "a whole number", _whole)
NUMBER = OptionType("number", "a number", _number)
PATH = OptionType("path", "a path or URL", _path)
STRATEGY = OptionType(
    "name",
    "one of none, off, disable, fixed-delay, fixeddelay, failure-rate, failurerate, exponential-delay, "
    "exponentialdelay",
    _one_of(
        {
            # YAML reads the word off as false.
            **dict.fromkeys(("none", "off", "disable", "false"), "none"),
            **dict.fromkeys(("fixed-delay", "fixeddelay"), "fixed-delay"),
            **dict.fromkeys(("failure-rate", "failurerate"), "failure-rate"),
            **dict.fromkeys(("exponential-delay", "exponentialdelay"), "exponential-delay"),
        }
    ),
)


def enumeration(members: type[StrEnum]) -> OptionType:
    """The members of an enumeration by their names, in any case."""
    names = {member.value.lower(): member for member in members}
    return OptionType("enum", f"one of {', '.join(member.value for member in members)}", _one_of(names))


def named_or_imported(*names: str) -> OptionType:
    """One of ``names``, in any case, or an import path, ``module:name`` or ``module.name``."""

    def read(text: str) -> str:
        stripped = text.strip()
        if stripped.lower() in names:
            return stripped.lower()
        if re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*[.:][A-Za-z_]\w*", stripped):
            return stripped
        raise ValueError

    return OptionType(
        "name or import path", f"one of {', '.join(names)}, or an import path such as 'package.module:name'", read
    )
