"""Spark's compactible logs, which file sources and file sinks keep.

``N`` holds what batch ``N`` added to the log. About every tenth entry is ``N.compact``, which repeats all earlier ones.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from dagster_ckpt.checkpoint import NEXT_BATCH
from dagster_ckpt.errors import CaptureIncomplete
from dagster_ckpt.stored_json import parsed

__all__ = [
    "COMPACT",
    "COMPACT_INTERVAL",
    "LOG_VERSION",
    "compact_interval",
    "is_file_entry",
    "log_files",
    "log_id",
    "require_id",
]

COMPACT = ".compact"
#: Entries from one compaction to the next, unless configured otherwise.
COMPACT_INTERVAL = 10
#: The first line of each entry.
LOG_VERSION = "v1"
_LOG_NAME = re.compile(r"(0|[1-9][0-9]{0,17})(\.compact)?")


def log_files(names: Collection[str], batch: int, where: str) -> list[str]:
    """The files of a compactible log that hold its content at ``batch``.

    These are the newest ``N.compact`` up to ``batch``, every later entry, and the ``N.compact`` before: Spark takes the
    interval of compaction from the two newest compact files. From a single one Spark guesses the interval, and looks
    for compact files where there are none (from ``19.compact``, every 20 entries by default, and every 5 if so
    configured; the log has one every 10).

    Args:
        names: the names in the log's directory.
        batch: the last entry; -1 for none.
        where: the log's name for errors.

    Raises:
        CaptureIncomplete: an entry is missing.
    """
    compacted = sorted(
        number for name in names if name.endswith(COMPACT) and (number := log_id(name)) is not None and number <= batch
    )
    newest = compacted[-1] if compacted else -1
    wanted = [f"{number}{COMPACT}" for number in compacted[-2:]]
    for number in range(newest + 1, batch + 1):
        if str(number) not in names:
            raise CaptureIncomplete(
                f"{where}/{number} is missing (newest compaction up to {batch}: {newest if compacted else 'none'})",
                hint=NEXT_BATCH,
            )
        wanted.append(str(number))
    return wanted


def compact_interval(configured: int, newest: int | None) -> int:
    """After how many entries Spark compacts a log, as its ``deriveCompactInterval`` tells.

    Args:
        configured: the setting.
        newest: the newest compacted entry, ``None`` for a log without one.
    """
    if newest is None:
        return configured
    entries = newest + 1
    if configured >= entries / 2:
        return entries
    return next(number for number in range(configured, entries + 1) if entries % number == 0)


def is_file_entry(text: str) -> bool:
    """Whether a text is an entry of a file source's log. Other sources note under such a name where they began."""
    version, _, lines = text.partition("\n")
    try:
        first = parsed(lines.partition("\n")[0])
    except ValueError:
        return False
    return version == LOG_VERSION and isinstance(first, dict) and {"path", "batchId"} <= first.keys()


def log_id(name: str) -> int | None:
    """The batch of a log file, ``None`` for any other name."""
    match = _LOG_NAME.fullmatch(name)
    return int(match[1]) if match else None


def require_id(name: str) -> int:
    """The batch of a log file; raises ``ValueError`` for any other name."""
    number = log_id(name)
    if number is None:
        raise ValueError(name)
    return number
