"""When the driver looks for requests, and what a look asks of the storage."""

from __future__ import annotations

from collections.abc import Sequence

from dagster_ckpt.checkpoint.control import Asked, SavepointRequests
from dagster_ckpt.checkpoint.seen import unchanged_for
from dagster_ckpt.clock import Clock

__all__ = ["LOOK", "RequestWatch"]

#: Seconds between two looks where a look costs nothing, and while a request is open.
LOOK = 1.0
#: After so many looks, and so many seconds, the requests are listed though nobody has rung: an earlier release does not
#: ring, nor does an asker that dies before.
_UNRUNG, _UNRUNG_LOOKS = 60.0, 60


class RequestWatch:
    """Looks for open requests.

    Args:
        requests: the job's requests.
        clock: wall and monotonic time.
        every: seconds between two looks while no request is open.
    """

    def __init__(self, requests: SavepointRequests, clock: Clock, every: float) -> None:
        self._requests = requests
        self._clock = clock
        self._every = every
        self._look_at = self._list_at = clock.monotonic()
        #: The bell when no request was open; ``None`` if one is, or where nobody rings.
        self._heard: bytes | None = None
        #: Tokens of requests whose answers were looked at.
        self._answered: set[str] = set()

    @property
    def left(self) -> float:
        """Seconds until the next look; 0 or less: it is due."""
        return self._look_at - self._clock.monotonic()

    def is_due(self) -> bool:
        """Whether to look now; if so, the next look is due in a while, even if this one fails before :meth:`look`."""
        if self.left > 0:
            return False
        self._look_at = self._clock.monotonic() + LOOK
        return True

    def look(self) -> Sequence[Asked]:
        """The open requests, and those that were answered since the last look, the oldest first.

        Empty without a listing if nobody has rung since the last one.

        Raises:
            OSError: the storage failed; the next look, soon, asks again.
        """
        now = self._clock.monotonic()
        bell = self._requests.bell()
        if bell is not None:
            unchanged_for(self._requests.heard_as, bell, self._clock)
        found: Sequence[Asked] = ()
        if bell is None or bell != self._heard or now >= self._list_at:
            self._heard = None
            found = self.listed()
        if all(asked.answer is not None for asked in found):
            if self._heard is None:
                self._heard, self._list_at = bell, now + max(_UNRUNG, _UNRUNG_LOOKS * self._every)
            self._look_at = now + self._every
        return found

    def listed(self) -> Sequence[Asked]:
        """As :meth:`look`, but with a listing in any case."""
        found = self._requests.unread(self._answered, answer_at=self._clock.time())
        self._answered.update(asked.request.token for asked in found if asked.answer is not None)
        return found
