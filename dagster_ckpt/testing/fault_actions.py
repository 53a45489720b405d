"""The operations of a file system, and their possible faults: the values of :mod:`~dagster_ckpt.testing.faults`."""

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
    """The process died at this operation. The base class keeps error handlers from catching it."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of a file system.

    Attributes:
        sequence: its number within the file system instance, from 0.
        name: the method of :class:`~dagster_ckpt.filesystem.FileSystem`, or of its ``copies``.
        path: the method's path; for ``sync_directories`` the sorted paths joined by ``,``.
        size: bytes to be stored, ``None`` for an operation that stores none.
    """

    sequence: int
    name: str
    path: str
    size: int | None = None

    @property
    def changes(self) -> bool:
        """Whether the operation changes the stored files (or which of them would survive a power cut)."""
        return self.name in _CHANGING

    def __str__(self) -> str:
        return f"{self.sequence}:{self.name}({self.path})"


@dataclass(frozen=True, slots=True)
class Fail:
    """The operation has no effect, and ``error`` is raised, by default :class:`StorageError`."""

    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class FailAfter:
    """The operation takes effect, but the reply is lost and ``error`` is raised.

    The default is the port's error for an unknown outcome: :class:`PublishUnknown` from ``create``,
    :class:`StorageError` from all other operations.
    """

    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class Torn:
    """Only the first ``size`` bytes of a data file are stored (operation ``write``).

    Then ``error`` is raised. Without ``error`` success is reported, as by a disk that lost its cache. With
    :class:`ProcessDied` the process dies in the middle of the file.
    """

    size: int
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Late:
    """The network holds a change back: the change has no effect yet, and ``error`` is raised (default: `FailAfter`'s).

    The change is added to ``held`` and takes effect when that function is called. The caller is gone by then, so the
    outcome is reported to nobody.
    """

    held: list[Callable[[], None]] = field(compare=False)
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class Hang:
    """The operation waits until ``until`` returns, such as ``threading.Event().wait``."""

    until: Callable[[], object]


@dataclass(frozen=True, slots=True)
class Lie:
    """The operation reports success and does nothing; a listing returns ``listing``, by default empty."""

    listing: tuple[Entry, ...] = ()


@dataclass(frozen=True, slots=True)
class Flip:
    """One bit (modulo the size) is flipped: in the bytes that a write stores, or that a read returns."""

    bit: int = 0


@dataclass(frozen=True, slots=True)
class Crash:
    """The process dies before the operation."""


@dataclass(frozen=True, slots=True)
class CrashAfter:
    """The operation takes effect, and the process dies before it gets the reply."""


Action: TypeAlias = Fail | FailAfter | Late | Hang | Torn | Lie | Flip | Crash | CrashAfter
Plan: TypeAlias = Callable[[Operation], Action | None]
