"""What is asked of a file system, and what can come of it: the values of :mod:`~dagster_ckpt.testing.faults`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from dagster_ckpt.filesystem import Entry

__all__ = [
    "Action",
    "Crash",
    "CrashAfter",
    "Fail",
    "FailAfter",
    "Flip",
    "Hang",
    "Late",
    "Lie",
    "Operation",
    "Plan",
    "ProcessDied",
    "Torn",
]

_CHANGING = frozenset(
    {"copy", "create", "remove", "remove_below", "remove_directory", "replace", "sync_directories", "write"}
)


class ProcessDied(BaseException):
    """The process died at this operation. No handler of errors may survive it, hence the base class."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of a file system.

    Attributes:
        sequence: its number within the file system instance, from 0.
        name: the method of :class:`~dagster_ckpt.filesystem.FileSystem`, or of its ``copies``.
        path: what it concerns; the sorted paths joined by ``,`` for ``sync_directories``.
        size: bytes to be stored, ``None`` for what stores none.
    """

    sequence: int
    name: str
    path: str
    size: int | None = None

    @property
    def changes(self) -> bool:
        """Whether it changes what is stored (or what would survive a power cut)."""
        return self.name in _CHANGING

    def __str__(self) -> str:
        return f"{self.sequence}:{self.name}({self.path})"


@dataclass(frozen=True, slots=True)
class Fail:
    """Nothing happens, and ``error`` is raised; without one, :class:`StorageError`."""

    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class FailAfter:
    """It happens, but the reply is lost and ``error`` is raised.

    Without one, what the port promises for an unknown outcome: :class:`PublishUnknown` from ``create``,
    :class:`StorageError` from everything else.
    """

    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class Torn:
    """Only the first ``size`` bytes of a data file are stored (operation ``write``).

    Then ``error`` is raised; without one success is reported, as by a disk that lost its cache. With
    :class:`ProcessDied` the process dies in the middle of the file.
    """

    size: int
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Late:
    """The network holds a change back: nothing happens yet, and ``error`` is raised (else as by `FailAfter`).

    What was asked for is added to ``held``; it happens when that is called. Whoever asked is not there any more, so
    what comes of it then is told to nobody.
    """

    held: list[Callable[[], None]] = field(compare=False)
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class Hang:
    """It does not happen before ``until`` returns, such as ``threading.Event().wait``."""

    until: Callable[[], object]


@dataclass(frozen=True, slots=True)
class Lie:
    """Success is reported and nothing is done; a listing comes back as ``listing``, by default empty."""

    listing: tuple[Entry, ...] = ()


@dataclass(frozen=True, slots=True)
class Flip:
    """One bit (modulo the size) is flipped: of what is stored by a write, of what is returned by a read."""

    bit: int = 0


@dataclass(frozen=True, slots=True)
class Crash:
    """The process dies before it happens."""


@dataclass(frozen=True, slots=True)
class CrashAfter:
    """It happens, and the process dies before it learns so."""


Action: TypeAlias = Fail | FailAfter | Late | Hang | Torn | Lie | Flip | Crash | CrashAfter
Plan: TypeAlias = Callable[[Operation], Action | None]
