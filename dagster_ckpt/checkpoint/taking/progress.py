"""Checkpoints in progress: whether publish or expiry wins, and how far storing and restoring are."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from dagster_ckpt.clock import Clock
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
        stored: bytes stored so far, without files that are kept in ``_metadata``.
        total: bytes of all files to store: those that no retained checkpoint has.
        seconds: since storing began.
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
        seconds: since restoring began.
    """

    checkpoint: str
    restored: int
    total: int
    seconds: float

    def __str__(self) -> str:
        restored, total = self.restored / _MIB, self.total / _MIB
        return f"{self.checkpoint}: {restored:,.1f} of {total:,.1f} MiB are restored after {self.seconds:.0f} s"


class Gauge:
    """Measures the progress of files that are moved. Thread-safe: files are moved in parallel.

    Args:
        clock: monotonic time decides.
        tell: called every :data:`TELL_EVERY` seconds with the bytes that have arrived, all bytes, and the seconds so
            far; on the threads that move the files.
    """

    def __init__(self, clock: Clock, tell: Callable[[int, int, float], object]) -> None:
        self._clock = clock
        self._tell = tell
        self._lock = threading.Lock()
        self._arrived = self._total = 0
        self._began = self._told = clock.monotonic()

    @classmethod
    def of_checkpoint(cls, number: int, clock: Clock, tell: Callable[[CheckpointInProgress], object]) -> Gauge:
        """The gauge of the attempt with id ``number``."""
        return cls(clock, lambda stored, total, seconds: tell(CheckpointInProgress(number, stored, total, seconds)))

    def begin(self, total: int) -> None:
        """Begin to move ``total`` bytes."""
        with self._lock:
            self._arrived, self._total = 0, total
            self._began = self._told = self._clock.monotonic()

    def add(self, size: int) -> None:
        """Note that ``size`` more bytes have arrived."""
        with self._lock:
            self._arrived += size
        self.look()

    def look(self) -> None:
        """Report if it is time; called between any two pieces, also of one large file."""
        now = self._clock.monotonic()
        with self._lock:
            if now - self._told < TELL_EVERY:
                return
            self._told = now
            arrived, total, seconds = self._arrived, self._total, now - self._began
        self._tell(arrived, total, seconds)


@dataclass(slots=True)
class PendingCheckpoint:
    """A checkpoint attempt with its id. Either its publish or its expiry wins.

    Attributes:
        number: its id.
        triggered_at: seconds since 1970.
        started: monotonic seconds; the timeout counts from here.
        storing: the progress of storing its files.
    """

    number: int
    triggered_at: float
    started: float
    storing: Gauge
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _state: str = "writing"

    def expire(self) -> bool:
        """Abandon the attempt; ``False`` when it is already being published."""
        with self._lock:
            if self._state == "publishing":
                return False
            self._state = "expired"
            return True

    def seal(self) -> None:
        """Begin to publish.

        Raises:
            Stopped: the attempt was abandoned before.
        """
        with self._lock:
            if self._state == "expired":
                raise Stopped
            self._state = "publishing"

    @property
    def expired(self) -> bool:
        """Whether the attempt was abandoned."""
        with self._lock:
            return self._state == "expired"
