"""Spark's compactible logs: that of a file source, and that of a file sink.

``N`` holds what batch ``N`` added to the log. Every tenth entry or so is ``N.compact``, which repeats all before it.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from dagster_ckpt.checkpoint import NEXT_BATCH
from dagster_ckpt.errors import CaptureIncomplete

__all__ = ["COMPACT", "COMPACT_INTERVAL", "LOG_VERSION", "log_files", "log_id", "require_id"]

COMPACT = ".compact"
#: Entries from one compaction to the next, where nobody has set another interval.
COMPACT_INTERVAL = 10
#: The first line of each entry.
LOG_VERSION = "v1"
_LOG_NAME = re.compile(r"(0|[1-9][0-9]{0,17})(\.compact)?")


def log_files(names: Collection[str], batch: int, where: str) -> list[str]:
    """The files of one of Spark's compactible logs that make up its content at ``batch``.

    That is the newest ``N.compact`` up to ``batch`` and every entry after it. Spark derives the interval of
    compaction from the two newest compact files, or from one and its configuration; where the interval is
    not the default one, both are kept so that a changed configuration cannot mislead it.

    Args:
        names: what the log's directory lists.
        batch: the last entry; -1 for none.
        where: names the log in errors.

    Raises:
        CaptureIncomplete: an entry is missing.
    """
    compacted = sorted(
        number for name in names if name.endswith(COMPACT) and (number := log_id(name)) is not None and number <= batch
    )
    newest = compacted[-1] if compacted else -1
    wanted = [f"{number}{COMPACT}" for number in compacted[-1:]]
    if len(compacted) > 1 and newest - compacted[-2] != COMPACT_INTERVAL:
        wanted.insert(0, f"{compacted[-2]}{COMPACT}")
    for number in range(newest + 1, batch + 1):
        if str(number) not in names:
            raise CaptureIncomplete(
                f"{where}/{number} is missing (newest compaction up to {batch}: {newest if compacted else 'none'})",
                hint=NEXT_BATCH,
            )
        wanted.append(str(number))
    return wanted


def log_id(name: str) -> int | None:
    """The batch of a log file, ``None`` for what is no log file."""
    match = _LOG_NAME.fullmatch(name)
    return int(match[1]) if match else None


def require_id(name: str) -> int:
    """The batch of a log file; raises ``ValueError`` for what is no log file."""
    number = log_id(name)
    if number is None:
        raise ValueError(name)
    return number
