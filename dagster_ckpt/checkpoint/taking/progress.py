"""Checkpoints under way: which of publish and expiry wins, and how far storing and restoring are."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from dagster_ckpt.checkpoint.clock import Clock
from dagster_ckpt.filesystem import Stopped

__all__ = ["TELL_EVERY", "CheckpointInProgress", "Gauge", "PendingCheckpoint", "RestoreInProgress"]

#: Seconds between two reports, and before the first.
TELL_EVERY = 10.0
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class CheckpointInProgress:
    """A checkpoint or savepoint takes long to store.

    Attributes:
        number: its id.
        stored: bytes of the files that are stored whole, without what is kept in ``_metadata``.
        total: bytes of all files that are to be stored: what no retained checkpoint has.
        seconds: since they began to be.
    """

    number: int
    stored: int
    total: int
    seconds: float

    def __str__(self) -> str:
        stored, total = self.stored / _MIB, self.total / _MIB
        return f"Checkpoint {self.number}: {stored:,.1f} of {total:,.1f} MiB are stored after {self.seconds:.0f} s"


@dataclass(frozen=True, slots=True)
class RestoreInProgress:
    """A checkpoint takes long to restore.

    Attributes:
        checkpoint: its reference.
        restored: bytes of the files that are laid out and verified.
        total: bytes of all its files.
        seconds: since they began to be.
    """

    checkpoint: str
    restored: int
    total: int
    seconds: float

    def __str__(self) -> str:
        restored, total = self.restored / _MIB, self.total / _MIB
        return f"{self.checkpoint}: {restored:,.1f} of {total:,.1f} MiB are restored after {self.seconds:.0f} s"


class Gauge:
    """Files on their way. Thread-safe: they go side by side.

    Args:
        clock: monotonic time decides.
        tell: is told every :data:`TELL_EVERY` seconds the bytes that have arrived, all bytes, and the seconds it took
            so far; on the threads that move them.
    """

    def __init__(self, clock: Clock, tell: Callable[[int, int, float], object]) -> None:
        self._clock = clock
        self._tell = tell
        self._lock = threading.Lock()
        self._arrived = self._total = 0
        self._began = self._told = clock.monotonic()

    @classmethod
    def of_checkpoint(cls, number: int, clock: Clock, tell: Callable[[CheckpointInProgress], object]) -> Gauge:
        """That of the attempt with this id."""
        return cls(clock, lambda stored, total, seconds: tell(CheckpointInProgress(number, stored, total, seconds)))

    def begin(self, total: int) -> None:
        """So many bytes are to be moved."""
        with self._lock:
            self._arrived, self._total = 0, total
            self._began = self._told = self._clock.monotonic()

    def add(self, size: int) -> None:
        """So many of them have arrived."""
        with self._lock:
            self._arrived += size
        self.look()

    def look(self) -> None:
        """Called between any two pieces, also of one large file: tell, if it is time."""
        now = self._clock.monotonic()
        with self._lock:
            if now - self._told < TELL_EVERY:
                return
            self._told = now
            arrived, total, seconds = self._arrived, self._total, now - self._began
        self._tell(arrived, total, seconds)


@dataclass(slots=True)
class PendingCheckpoint:
    """A checkpoint attempt: it has an id, and either its publish or its expiry wins.

    Attributes:
        number: its id.
        triggered_at: seconds since the epoch.
        started: monotonic seconds; the timeout counts from here.
        storing: its files on their way.
    """

    number: int
    triggered_at: float
    started: float
    storing: Gauge
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _state: str = "writing"

    def expire(self) -> bool:
        """Give the attempt up; ``False`` when it is already being published."""
        with self._lock:
            if self._state == "publishing":
                return False
            self._state = "expired"
            return True

    def seal(self) -> None:
        """Begin to publish.

        Raises:
            Stopped: the attempt was given up before.
        """
        with self._lock:
            if self._state == "expired":
                raise Stopped
            self._state = "publishing"

    @property
    def expired(self) -> bool:
        """Whether the attempt was given up."""
        with self._lock:
            return self._state == "expired"
