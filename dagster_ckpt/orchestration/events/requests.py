"""Tells Dagster how far each request for a savepoint or a checkpoint is: each change once, whoever sees it first."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterator

import dagster as dg

from dagster_ckpt.checkpoint import (
    CheckpointCatalog,
    CheckpointMetadata,
    RequestState,
    SavepointRequest,
    request_next_step,
)
from dagster_ckpt.clock import Clock
from dagster_ckpt.errors import CheckpointError, StorageError
from dagster_ckpt.orchestration.events.occurrence import EVENT_ID, told_ids
from dagster_ckpt.shown_text import in_one_line, redacted

__all__ = ["RequestEvents", "savepoint_observation"]

_log = logging.getLogger(__name__)

#: States that a request never leaves.
_FINAL = frozenset({RequestState.COMPLETED, RequestState.FAILED, RequestState.ABANDONED})
#: Seconds between two looks beside a driver that tells nothing itself; in a bucket, between two looks at the bell. A
#: look at a bucket is four listings, so it follows the bell, and comes seldom besides.
_LOOK, _LOOK_AT_BELL, _SELDOM = 1.0, 300.0, 7200.0
#: A living driver takes a request up within so many seconds.
_SOON = 3.0
#: Seconds after which a savepoint that cannot be read is gone or damaged, and not only in a storage that is away.
_GONE = 900.0


class RequestEvents:
    """Tells how far the requests to a job are: observations of its savepoints asset, or of its checkpoints asset.

    A request and a state make one observation, and each epoch in which a request waits or is taken up makes one more.
    Telling never fails: an error is logged.

    Args:
        instance: the Dagster instance.
        log_event: where events go: a run's ``context.log_event`` or the instance's runless one.
        savepoints_key: the asset that is told of requests for a savepoint.
        checkpoints_key: the asset that is told of requests for a checkpoint.
        catalog: the job's checkpoints.
        clock: wall and monotonic time.
    """

    def __init__(
        self,
        instance: dg.DagsterInstance,
        log_event: Callable[[dg.AssetObservation], object],
        savepoints_key: dg.AssetKey,
        checkpoints_key: dg.AssetKey,
        catalog: CheckpointCatalog,
        clock: Clock,
    ) -> None:
        self._instance = instance
        self._log_event = log_event
        self._keys = (savepoints_key, checkpoints_key)
        self._catalog, self._records = catalog, catalog.records
        self._clock = clock
        self._looked_at = float("-inf")
        #: The epoch at the first look: whatever that epoch and the later ones have taken is told.
        self._since: int | None = None
        self._taken: set[str] = set()
        #: When each savepoint could not be read for the first time.
        self._unread: dict[str, float] = {}
        self._every = _LOOK_AT_BELL if catalog.filesystem.is_distant else _LOOK
        #: The bell at the last look, when that was, and whether a request was open then or something was not told.
        self._last: tuple[bytes | None, float, bool] = (None, float("-inf"), True)

    def changed(self, request: SavepointRequest, state: RequestState, reason: str, next_step: str) -> bool:
        """Tell that a request is in another state now; whether Dagster knows."""
        try:
            name = f"{request.token}-{state}"
            if state not in _FINAL:
                name = f"{name}-{self._records.epochs.highest()}"
            key = self._keys[request.checkpoint]
            if name not in told_ids(self._instance, key):
                self._log_event(_request_observation(key, request, state, reason, next_step, name))
        except Exception:
            _log.exception("Dagster could not be told of a request for a %s", request.kind)
            return False
        return True

    def tick(self) -> None:
        """Look beside a driver of its own once it is time: the records tell what has become of the requests."""
        now = self._clock.monotonic()
        if now - self._looked_at < self._every:
            return
        self._looked_at = now
        rung, looked_at, is_open = self._last
        try:
            bell = self._records.savepoint_requests.bell()
        except Exception as error:  # the next look tells
            _log.warning("Whether somebody asks for a savepoint cannot be read now: %s", error)
            return
        if bell is None or bell != rung or is_open or now - looked_at >= _SELDOM:
            is_open = self.look()
            is_open = not self._tells_taken() or is_open
            self._last = (bell, now, is_open or bell != rung)  # a request may be answered and gone between two looks

    @contextlib.contextmanager
    def to_the_end(self) -> Iterator[None]:
        """Around what attends a driver of its own: tell at the end what the driver has answered since the last look."""
        try:
            yield
        finally:
            self.look(soon=math.inf)
            self._tells_taken()

    def _tells_taken(self) -> bool:
        """Tell of the savepoints that the driver has taken, in whichever epoch; their requests may be gone already.

        Returns:
            whether Dagster knows of all of them.
        """
        key, is_known = self._keys[0], True
        try:
            if self._since is None:
                self._since = self._records.epochs.highest()
            for item in self._records.taken_savepoints.known():
                if item.key[0] >= self._since and item.reference not in self._taken:
                    if item.reference in told_ids(self._instance, key) or self._tells_savepoint(key, item.reference):
                        self._taken.add(item.reference)
                    else:
                        is_known = False
        except Exception as error:  # the next look tells
            _log.warning("The savepoints of the driver cannot be told now: %s", error)
            return False
        return is_known

    def _tells_savepoint(self, key: dg.AssetKey, reference: str) -> bool:
        """Tell of a savepoint; whether nothing more is to be told of it."""
        try:
            savepoint = self._catalog.resolve(reference)
        except StorageError:
            raise
        except CheckpointError as error:  # disposed of meanwhile, damaged, or in a storage that cannot be reached now
            if reference not in self._unread:
                _log.warning("A savepoint of the driver is not told yet: %s", error)
            now = self._clock.monotonic()
            return now - self._unread.setdefault(reference, now) >= _GONE
        self._log_event(savepoint_observation(key, savepoint))
        return True

    def look(self, waits_for: str = "", *, soon: float = _SOON) -> bool:
        """Tell what the records say of each request, and whether one is not answered yet, or Dagster does not know.

        Args:
            waits_for: why no run can take a request up now; empty while a run is alive.
            soon: seconds since it was asked for, within which a request without an answer is not told of while a run is
                alive.
        """
        try:
            found, epoch = self._records.savepoint_requests.unread(), self._records.epochs.highest()
        except Exception as error:  # the next look tells
            _log.warning("The requests for savepoints cannot be read now: %s", error)
            return True
        now, is_open = self._clock.time(), any(asked.answer is None for asked in found)
        for asked in found:
            if not waits_for and asked.answer is None and now - asked.request.asked_at < soon:
                continue
            state, answer = asked.state(now, epoch), asked.answer
            if state is RequestState.IN_PROGRESS and waits_for:
                state = RequestState.PENDING
            reason = "" if answer is None else answer.error
            if answer is not None and answer.savepoint is not None:
                reason = f"it is {answer.savepoint.pointer}"
            elif state is RequestState.PENDING:
                reason = waits_for
            hint = "" if answer is None else answer.hint
            is_told = self.changed(asked.request, state, reason, request_next_step(asked.request, state, hint))
            is_open = is_open or not is_told
        return is_open


def _request_observation(
    asset_key: dg.AssetKey,
    request: SavepointRequest,
    state: RequestState,
    reason: str,
    next_step: str,
    event_id: str,
) -> dg.AssetObservation:
    """A savepoint or a checkpoint that is asked for has changed its state."""
    reason, step = in_one_line(redacted(reason)).strip(), in_one_line(redacted(next_step)).strip()
    name = f"{request.kind.capitalize()} {request.name}" if request.name else f"A {request.kind}"
    found = {
        "state": state.value,
        "name": request.name,
        "note": in_one_line(request.note),
        "series": request.series,
        "reason": reason,
        "next_step": step,
        EVENT_ID: event_id,
    }
    return dg.AssetObservation(
        asset_key,
        description=f"{name}: {', '.join(filter(None, (state.value, reason.removesuffix('.'))))}. {step}",
        metadata={key: value for key, value in found.items() if value},
    )


def savepoint_observation(asset_key: dg.AssetKey, metadata: CheckpointMetadata) -> dg.AssetObservation:
    """A savepoint that the job has completed, whoever asked for it."""
    note = in_one_line(metadata.note)
    label = {"name": metadata.given_name, "note": note}
    name = f"Savepoint {metadata.given_name}" if metadata.given_name else "A savepoint"
    return dg.AssetObservation(
        asset_key,
        description=f"{name}: {RequestState.COMPLETED}, batch {metadata.batch}{note and f'. {note}'}",
        metadata={
            "state": RequestState.COMPLETED.value,
            **{key: value for key, value in label.items() if value},
            "pointer": dg.MetadataValue.path(metadata.reference),
            "batch": metadata.batch,
            "next_step": f"Nothing is to be done. To go back to it, launch with restore_from: {metadata.reference}",
            EVENT_ID: metadata.reference,
        },
    )
