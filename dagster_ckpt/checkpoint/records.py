"""Control records: small JSON files that one writer creates or replaces and others read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from dagster_ckpt.errors import CorruptCheckpoint
from dagster_ckpt.filesystem import FileSystem

__all__ = ["encode_record", "read_record"]

_T = TypeVar("_T")


def encode_record(fields: Mapping[str, Any]) -> bytes:
    """The bytes of a record."""
    return (json.dumps(fields, indent=1) + "\n").encode()


def read_record(filesystem: FileSystem, path: str, make: type[_T]) -> _T | None:
    """The record at ``path`` as ``make(**fields)``; ``None`` when there is none.

    Fields that this release does not know are ignored: a newer one may have written the record.

    Raises:
        CorruptCheckpoint: it cannot be read as such.
    """
    try:
        data = filesystem.read(path)
    except FileNotFoundError:
        return None
    try:
        fields = json.loads(data)
        known = make.__dataclass_fields__  # type: ignore[attr-defined]
        return make(**{name: value for name, value in fields.items() if name in known})
    except (AttributeError, TypeError, ValueError) as error:
        raise CorruptCheckpoint(
            f"{filesystem.url}/{path} cannot be read: {error}.",
            hint="Something else has changed it. Make sure that no run of the job is alive, and put the file back "
            "from a backup; a file called heartbeat may simply be deleted.",
        ) from error
