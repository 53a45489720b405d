"""What the driver and its test both know."""

from __future__ import annotations

import json
import os
from pathlib import Path

SCHEMA = "id int, v int"
TABLE_ROWS = 1000
#: Of the driver's files, in the bucket.
DIRECTORY = "files"
LARGE = "of three parts"
#: An object that our file system wrote.
OURS = "ours/of all/object"
OURS_CONTENT = "written without Hadoop"
_ROWS, _NEW = 8, 5


def large_content() -> bytes:
    """More than one request carries."""
    return bytes(range(256)) * (5 << 11)


def land(directory: Path, numbers: range) -> None:
    """Files of which each repeats three ids of the one before."""
    directory.mkdir(exist_ok=True)
    for number in numbers:
        rows = [{"id": key, "v": key * 10} for key in range(number * _NEW, number * _NEW + _ROWS)]
        hidden = directory / f".{number:04}.json"  # the source must never see half a file
        hidden.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
        os.utime(hidden, (1_700_000_000 + number, 1_700_000_000 + number))
        hidden.rename(directory / f"{number:04}.json")


def expected(files: int) -> list[list[int]]:
    """What is right after so many files: each id once."""
    return [[key, key * 10] for key in range((files - 1) * _NEW + _ROWS)]
