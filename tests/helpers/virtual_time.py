"""Threads in virtual time: one runs at a time, and time passes only while all of them sleep."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable

_STUCK = 60.0


class VirtualTime:
    """The clock, and the threads that sleep by it."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._sleeping: list[tuple[float, int, threading.Event]] = []
        self._count = itertools.count()
        self._back = threading.Event()
        self._is_over = False
        self._failed: list[BaseException] = []

    def time(self) -> float:
        return 1_700_000_000.0 + self.now

    def monotonic(self) -> float:
        return self.now

    def spawn(self, work: Callable[[], object]) -> None:
        """Let a thread do something, beginning now."""
        turn = self._at(self.now)

        def run() -> None:
            try:
                self._wait_for(turn)
                work()
            except SystemExit:
                pass
            except BaseException as error:
                self._failed.append(error)
            self._back.set()

        threading.Thread(target=run, daemon=True).start()

    def sleep(self, seconds: float) -> None:
        """Sleep, in a spawned thread."""
        turn = self._at(self.now + max(seconds, 0.0))
        self._back.set()
        self._wait_for(turn)

    def pass_by(self, seconds: float) -> None:
        """Let time pass, and end every thread."""
        until = self.now + seconds
        while self._sleeping and self._sleeping[0][0] <= until and not self._failed:
            self.now, _, turn = heapq.heappop(self._sleeping)
            self._give(turn)
        self._is_over = True
        for _, _, turn in list(self._sleeping):
            self._give(turn)
        if self._failed:
            raise self._failed[0]

    def _at(self, moment: float) -> threading.Event:
        turn = threading.Event()
        heapq.heappush(self._sleeping, (moment, next(self._count), turn))
        return turn

    def _wait_for(self, turn: threading.Event) -> None:
        assert turn.wait(_STUCK)
        if self._is_over:
            raise SystemExit

    def _give(self, turn: threading.Event) -> None:
        self._back.clear()
        turn.set()
        assert self._back.wait(_STUCK)
