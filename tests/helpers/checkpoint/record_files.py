"""Control records as files: as an earlier release wrote them, and changed by somebody who can seal them again."""

from __future__ import annotations

import json
from typing import Any

from dagster_ckpt.stored_json import seal


def fields_of(data: bytes) -> dict[str, Any]:
    """What a record says, without what makes it one of version 2."""
    found: dict[str, Any] = json.loads(data)
    return {name: value for name, value in found.items() if name not in {"version", "place", "digest"}}


def as_version_1(data: bytes, *without: str) -> bytes:
    """The record as the releases before version 2 wrote it, without these members."""
    fields = {name: value for name, value in fields_of(data).items() if name not in without}
    return (json.dumps(fields, indent=1) + "\n").encode()


def resealed(data: bytes, **changes: object) -> bytes:
    """The record with other members and a digest that matches them."""
    fields = {**json.loads(data), **changes}
    del fields["digest"]
    return seal(json.dumps(fields, indent=1).removesuffix("\n}").encode())
