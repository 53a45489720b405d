"""What the port of a storage takes and returns."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Entry", "Part", "Stopped", "Written", "unheard"]


class Stopped(Exception):
    """A transfer was asked to stop and did."""


class Entry(NamedTuple):
    """One name in a directory listing. A tuple, because a directory can have 10^5 names."""

    name: str
    is_directory: bool


@dataclass(frozen=True, slots=True)
class Written:
    """What a transfer moved: bytes and the SHA-256 of exactly these bytes, in hex."""

    size: int
    sha256: str

    @classmethod
    def of(cls, data: bytes) -> Written:
        """What a transfer of these bytes moved."""
        return cls(len(data), hashlib.sha256(data).hexdigest())


@dataclass(frozen=True, slots=True)
class Part:
    """A run of bytes within a file."""

    offset: int
    size: int

    def of(self, data: bytes) -> bytes:
        """This part of all bytes of a file."""
        return data[self.offset : self.offset + self.size]


def unheard(told: object) -> None:
    """Default progress callback: does nothing."""
    del told
