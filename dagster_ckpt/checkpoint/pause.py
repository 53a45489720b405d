"""The pause between two looks at a running query, which grows while there is nothing to be seen."""

from __future__ import annotations

from dagster_ckpt.checkpoint.clock import Clock

__all__ = ["Pause"]


class Pause:
    """Says when to look again. Each look that finds nothing new makes the pause twice as long.

    Args:
        shortest: seconds, after a look that has found something.
        longest: seconds.
        clock: monotonic time.
    """

    def __init__(self, shortest: float, longest: float, clock: Clock) -> None:
        self._shortest = shortest
        self._longest = longest
        self._clock = clock
        self._seconds = shortest
        self._until = clock.monotonic()

    @property
    def is_over(self) -> bool:
        """Whether it is time to look."""
        return self._clock.monotonic() >= self._until

    def begin(self, *, changed: bool) -> None:
        """Somebody has looked; ``changed``: there was something new."""
        self._seconds = self._shortest if changed else min(2 * self._seconds, self._longest)
        self._until = self._clock.monotonic() + self._seconds
