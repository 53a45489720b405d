"""The clock that the protocol is given, so that tests can control time; and a pause measured by it."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol

from dagster_ckpt.errors import CorruptRecord

__all__ = [
    "EARLIEST",
    "LATEST",
    "Clock",
    "Pause",
    "SystemClock",
    "iso",
    "milliseconds",
    "seconds_of",
    "slept",
    "told_ms",
]

#: Seconds since 1970: these moments have a date in every time zone, from the year 1 to the year 9999.
EARLIEST = datetime(1, 1, 2, tzinfo=UTC).timestamp()
LATEST = datetime(9999, 12, 31, tzinfo=UTC).timestamp()


class Clock(Protocol):
    """Wall time for records, monotonic time for intervals."""

    def time(self) -> float:
        """Seconds since 1970."""

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back, and stands still while the machine sleeps."""


#: The clock that goes on while the machine sleeps. Where there is no CLOCK_BOOTTIME, CLOCK_MONOTONIC goes on, and the
#: clock of Python stands still.
_SLEEPLESS = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """The machine's clocks."""

    def time(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


def slept() -> float:
    """Seconds for which this machine has been suspended since it booted.

    What others see of a run goes on meanwhile: the run's lease runs out. What this machine sees of others does not:
    nobody here has looked.
    """
    return max(time.clock_gettime(_SLEEPLESS) - time.monotonic(), 0.0)


class Pause:
    """Says when to look again. Each look that finds nothing new makes the pause twice as long.

    Args:
        shortest: seconds, after a look that has found something.
        longest: seconds.
        clock: monotonic time.
    """

    def __init__(self, shortest: float, longest: float, clock: Clock) -> None:
        self._shortest = shortest
        self._longest = longest
        self._clock = clock
        self._seconds = shortest
        self._until = clock.monotonic()

    @property
    def is_over(self) -> bool:
        """Whether it is time to look."""
        return self._clock.monotonic() >= self._until

    def begin(self, *, changed: bool) -> None:
        """Somebody has looked; ``changed``: there was something new."""
        self._seconds = self._shortest if changed else min(2 * self._seconds, self._longest)
        self._until = self._clock.monotonic() + self._seconds


def iso(seconds: float) -> str:
    """ISO 8601 in UTC with milliseconds.

    Args:
        seconds: since 1970, from :data:`EARLIEST` to :data:`LATEST`.
    """
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def told_ms(milliseconds: float) -> str:
    """A moment of Spark's, which may be of any year: ISO 8601, and the bare milliseconds where there is no date."""
    # The division of a great integer overflows, too.
    return iso(milliseconds / 1000) if EARLIEST * 1000 <= milliseconds <= LATEST * 1000 else f"{milliseconds} ms"


def milliseconds(seconds: float) -> float:
    """Seconds as milliseconds, to the microsecond."""
    return round(seconds * 1000, 3)


def seconds_of(text: str) -> float:
    """Seconds since 1970 of a time that :func:`iso` wrote.

    Raises:
        CorruptRecord: ``text`` is not a time that :func:`iso` can write.
    """
    try:
        seconds = datetime.fromisoformat(text).timestamp()
        iso(seconds)
    except (ValueError, OverflowError) as error:
        raise CorruptRecord(
            f"A record of the job says {text[:80]!r} where a time must be.",
            hint="Something else has changed the records of the job's epochs: put them back from a backup.",
        ) from error
    return seconds
