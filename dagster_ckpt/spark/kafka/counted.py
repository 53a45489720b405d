"""Numbers of records, for people."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["by_partition", "records"]

_MOST_NAMED = 20


def records(count: int) -> str:
    """A number of records."""
    return "1 record" if count == 1 else f"{count} records"


def by_partition(numbers: Mapping[str, int]) -> str:
    """The number of each partition, in brackets after a space; an empty text for no partition."""
    if not numbers:
        return ""
    named = [f"partition {number}: {numbers[number]}" for number in sorted(numbers, key=int)]
    more = f" and {len(named) - _MOST_NAMED} more partitions" if len(named) > _MOST_NAMED else ""
    return f" ({', '.join(named[:_MOST_NAMED])}{more})"
