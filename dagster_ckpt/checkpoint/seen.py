"""What this process has seen, and for how long: the state of things that are looked at again and again."""

from __future__ import annotations

import math

from dagster_ckpt.clock import Clock

__all__ = ["last_seen", "unchanged_for"]

#: The state seen last, since when and when last in monotonic seconds, by the name of what was looked at.
_seen: dict[tuple[str, ...], tuple[object, float, float]] = {}


def unchanged_for(
    what: tuple[str, ...], state: object, clock: Clock, asked: float | None = None, *, within: float = math.inf
) -> float:
    """For how many seconds this process has seen the same state of something at each look; 0 at the first look.

    Args:
        what: names the thing.
        state: the state that the last look has shown.
        clock: of this host.
        asked: when that look began, on the monotonic clock: the answer may have been long on its way. By default now.
        within: a look that follows the look before it after more seconds is a first look.
    """
    asked = clock.monotonic() if asked is None else asked
    before, since, last = _seen.get(what, (None, asked, asked))
    if before != state or asked - last > within:
        asked = since = clock.monotonic()
    _seen[what] = (state, since, asked)
    return max(asked - since, 0.0)


def last_seen(what: tuple[str, ...]) -> tuple[float, float] | None:
    """Since when the last state of something was seen, and when it was looked at last; ``None`` for never.

    Args:
        what: names the thing, as for :func:`unchanged_for`.

    Returns:
        two times on the monotonic clock.
    """
    found = _seen.get(what)
    return None if found is None else (found[1], found[2])
