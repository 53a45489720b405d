"""Tells by a file's name whether a run of the job wrote the file. Every other file is foreign and is never deleted.

People put notes, exports and copies where there is room, and restore backups to the wrong place. A sweep that deleted
every file that it cannot explain would destroy data that nobody can bring back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from dagster_ckpt.checkpoint.format.layout import METADATA_FILE_NAME
from dagster_ckpt.filesystem import Entry, FileSystem

__all__ = ["foreign", "is_checkpoint_file", "is_record", "is_records_directory", "left_alone", "written_by"]

#: A file of :class:`~dagster_ckpt.checkpoint.taking.data_files.DataFiles`; the group is its epoch.
_DATA = re.compile(r"(\d{6,})-[0-9a-f]{12}-.+")
#: What an interrupted write to a disk leaves of a file.
_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{32}\.tmp")
_EPOCH = r"e-\d{10}"
_LINEAGE = r"[0-9a-f]{32}"
_CHECKPOINT = rf"{_LINEAGE}-chk-[1-9]\d*"
#: The records below ``control/``, by their directory.
_RECORDS = {
    re.compile(directory): re.compile(names)
    for directory, names in {
        "": "owner|heartbeat|silent|reserve|submission|attendant",
        "epochs": rf"{_EPOCH}(\.(choice|end|settled))?",
        "issued": "",
        rf"issued/{_LINEAGE}": rf"{_EPOCH}(-\d{{15}})?",
        "deletions": r"[dx]-\d{10}-[0-9a-f]{32}",
        "failures": "",
        r"failures/s-\d{10}": r".+-\d{6}",
        "messages": r"m-\d{10}-\d{10}",
        "pins": rf"p-{_CHECKPOINT}-[0-9a-f]{{32}}",
        "quarantine": f"q-{_CHECKPOINT}",
        "requests": r"bell|cancel|r-[0-9a-f]{32}(\.(answer|begun))?",
        "savepoints": r"s-\d{10}-\d{10}|n-\d{6}-[A-Za-z0-9][A-Za-z0-9._-]{0,99}",
        "standbys": r"[A-Za-z0-9_-]+",
        "starts": _EPOCH,
        "submissions": r"s-\d{10}(\.outcome)?",
        "wal": "",
        f"wal/{_LINEAGE}": "",
        f"wal/{_LINEAGE}/{_EPOCH}": r"begin|\d{12}-\d{12}-[0-9a-f]{8}",
    }.items()
}


def written_by(name: str) -> int | None:
    """The epoch that wrote a file in ``shared/``, ``None`` for a foreign file."""
    match = _DATA.fullmatch(_meant(name))
    return int(match[1]) if match else None


def is_checkpoint_file(name: str) -> bool:
    """Whether a run gives this name to a file in ``chk-N``."""
    return _meant(name) == METADATA_FILE_NAME


def is_record(path: str) -> bool:
    """Whether a run writes a file with this path below ``control/``."""
    directory, _, name = path.rpartition("/")
    names = next((names for known, names in _RECORDS.items() if known.fullmatch(directory)), None)
    return names is not None and names.fullmatch(_meant(name)) is not None


def is_records_directory(path: str) -> bool:
    """Whether runs keep records in the directory with this path below ``control/``."""
    return any(known.fullmatch(path) for known in _RECORDS)


def foreign(entries: Iterable[Entry], is_own: Callable[[str], object]) -> list[str]:
    """The foreign names of a listing: files that no run wrote, and every directory, with a slash after its name."""
    return sorted(
        f"{entry.name}/" if entry.is_directory else entry.name
        for entry in entries
        if entry.is_directory or not is_own(entry.name)
    )


def left_alone(storage: FileSystem, directory: str, names: Iterable[str]) -> str:
    """The message about foreign files."""
    return f"Left alone, because no run of the job wrote it: {storage.url}/{directory}: {', '.join(names)}."


def _meant(name: str) -> str:
    match = _TEMPORARY.fullmatch(name)
    return match[1] if match else name
