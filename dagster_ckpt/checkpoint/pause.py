"""The pause between two looks at a running query. The pause grows while nothing changes."""

from __future__ import annotations

from dagster_ckpt.checkpoint.clock import Clock

__all__ = ["Pause"]


class Pause:
    """Says when to look again. Each look that finds nothing new doubles the pause.

    Args:
        shortest: seconds to pause after a look that found something new.
        longest: seconds that a pause takes at most.
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
        """Begin a pause after a look; ``changed``: the look found something new."""
        self._seconds = self._shortest if changed else min(2 * self._seconds, self._longest)
        self._until = self._clock.monotonic() + self._seconds
