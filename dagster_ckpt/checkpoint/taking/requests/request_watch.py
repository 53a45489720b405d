"""When the driver looks for requests, and what a look asks of the storage."""

from __future__ import annotations

from collections.abc import Sequence

from dagster_ckpt.checkpoint.control import SavepointRequest, SavepointRequests
from dagster_ckpt.clock import Clock

__all__ = ["LOOK", "RequestWatch"]

#: Seconds between two looks where a look costs nothing, and while a request is open.
LOOK = 1.0
#: After so many looks, and so many seconds, the requests are listed though nobody has rung: an earlier release does not
#: ring, nor does an asker that dies before.
_UNRUNG, _UNRUNG_LOOKS = 60.0, 10


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

    def look(self) -> Sequence[SavepointRequest]:
        """The open requests, the oldest first; empty without a listing if nobody has rung since the last one.

        Raises:
            OSError: the storage failed; the next look, soon, asks again.
        """
        now = self._clock.monotonic()
        bell = self._requests.bell()
        found: Sequence[SavepointRequest] = ()
        if bell is None or bell != self._heard or now >= self._list_at:
            self._heard = None
            found = self._requests.open(self._clock.time())
            if not found:
                self._heard, self._list_at = bell, now + max(_UNRUNG, _UNRUNG_LOOKS * self._every)
        if not found:
            self._look_at = now + self._every
        return found
