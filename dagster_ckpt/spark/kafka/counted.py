"""Numbers of records, for people."""

from __future__ import annotations

from collections.abc import Mapping

from dagster_ckpt.shown_text import shortened

__all__ = ["by_partition", "records"]


def records(count: int) -> str:
    """A number of records."""
    return "1 record" if count == 1 else f"{count} records"


def by_partition(numbers: Mapping[str, int]) -> str:
    """The number of each partition, in brackets after a space; an empty text for no partition."""
    if not numbers:
        return ""
    named = [f"partition {number}: {numbers[number]}" for number in sorted(numbers, key=int)]
    return f" ({', '.join(shortened(named, noun='partitions'))})"
