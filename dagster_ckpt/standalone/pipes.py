"""Dagster Pipes in a submitted driver: the messages go into the job's storage, where the Dagster run reads them."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

import dagster as dg
from dagster_pipes import (
    DAGSTER_PIPES_CONTEXT_ENV_VAR,
    DAGSTER_PIPES_MESSAGES_ENV_VAR,
    DagsterPipesError,
    PipesContext,
    PipesDefaultContextLoader,
    PipesException,
    PipesMappingParamsLoader,
    PipesMessage,
    PipesMessageWriter,
    PipesMessageWriterChannel,
    PipesParams,
    encode_param,
)

from dagster_ckpt.checkpoint import LONGEST_REASON, DriverMessages
from dagster_ckpt.shown_text import in_one_line, redacted

__all__ = ["PipesHandler", "opened_pipes"]

_log = logging.getLogger(__name__)
_REPORTING = threading.Lock()

#: Seconds until the first write of messages, and between two writes: in a bucket each write is paid for.
_SOON, _INTERVAL, _INTERVAL_IN_A_BUCKET = 0.2, 1.0, 10.0
#: Messages and characters of one write; and messages that wait for the storage, of which the oldest go first.
_AT_ONCE, _LARGEST, _MOST = 1_000, 1_000_000, 10_000
#: Most characters of a message that is no line of a log.
_LONGEST = 200_000
#: Seconds for which the end of the driver waits for a storage that does not take its last messages.
_PATIENCE = 10.0


@contextlib.contextmanager
def opened_pipes(messages: DriverMessages, key: dg.AssetKey, run_id: str, *, in_bucket: bool) -> Iterator[PipesContext]:
    """A session of Dagster Pipes for this process, which ``open_dagster_pipes()`` gives to the job's function, too.

    Args:
        messages: takes what is told.
        key: of the asset.
        run_id: of the run that has submitted this driver.
        in_bucket: whether each write is paid for.
    """
    data = {
        "asset_keys": [key.to_user_string()],
        "code_version_by_asset_key": {key.to_user_string(): None},
        "provenance_by_asset_key": {key.to_user_string(): None},
        "partition_key": None,
        "partition_key_range": None,
        "partition_time_window": None,
        "run_id": run_id,
        "job_name": None,
        "retry_number": 0,
        "extras": {},
    }
    given = {DAGSTER_PIPES_CONTEXT_ENV_VAR: {"data": data}, DAGSTER_PIPES_MESSAGES_ENV_VAR: {}}
    loader = PipesMappingParamsLoader({name: encode_param(value) for name, value in given.items()})
    writer = _Writer(messages, _INTERVAL_IN_A_BUCKET if in_bucket else _INTERVAL)
    pipes = _Session(loader, PipesDefaultContextLoader(), writer)
    PipesContext.set(pipes)
    try:
        yield pipes
    finally:
        pipes.end()


class PipesHandler(logging.Handler):
    """Tells Dagster what is logged, until the session is over.

    Args:
        pipes: the session.
    """

    def __init__(self, pipes: PipesContext) -> None:
        super().__init__()
        self._pipes = pipes

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(DagsterPipesError):
            self._pipes.log.log(record.levelno, "%s", record.getMessage())


class _Session(PipesContext):
    """A session as long as the driver: whoever opens it for a while does not close it, and a stream reports anew."""

    def close(self, exc: PipesException | None = None) -> None:
        """Do nothing: the driver goes on, and so does the session."""

    def end(self) -> None:
        """Close the session; the error that ends the job is on record already, without secrets."""
        super().close()

    def report_asset_materialization(self, *given: Any, **named: Any) -> None:
        with _REPORTING:
            self._materialized_assets.clear()
            super().report_asset_materialization(*given, **named)


class _Writer(PipesMessageWriter["_Channel"]):
    def __init__(self, messages: DriverMessages, interval: float) -> None:
        self._messages, self._interval = messages, interval

    @contextlib.contextmanager
    def open(self, params: PipesParams) -> Iterator[_Channel]:
        del params
        channel = _Channel(self._messages)
        over = threading.Event()
        thread = threading.Thread(
            target=channel.store_until, args=(over, self._interval), name="dagster-ckpt-pipes", daemon=True
        )
        thread.start()
        try:
            yield channel
        finally:
            over.set()
            thread.join(_PATIENCE)


class _Channel(PipesMessageWriterChannel):
    """Messages on their way to the storage, which a thread of their own stores. The job never waits, nor fails."""

    def __init__(self, messages: DriverMessages) -> None:
        self._messages = messages
        self._waiting: deque[str] = deque(maxlen=_MOST)
        self._is_told_of = False

    def write_message(self, message: PipesMessage) -> None:
        self._waiting.append(_encoded(message))

    def store_until(self, over: threading.Event, interval: float) -> None:
        """Store what waits, again and again, and once more at the end."""
        chunk, pause, is_over = list[str](), _SOON, False
        while not is_over:
            is_over, pause = over.wait(pause), interval
            while chunk := chunk or self._next_chunk():
                if not self._is_stored(chunk):  # it is tried again as it is, because the storage may have it
                    break
                chunk = []

    def _next_chunk(self) -> list[str]:
        chunk, size = list[str](), 0
        while self._waiting and len(chunk) < _AT_ONCE and size < _LARGEST:
            chunk.append(self._waiting.popleft())
            size += len(chunk[-1])
        return chunk

    def _is_stored(self, chunk: list[str]) -> bool:
        try:
            self._messages.add(chunk)
        except Exception as error:  # the clients of storages raise anything
            if not self._is_told_of:
                _log.warning("What this driver says does not reach Dagster now: %s", in_one_line(redacted(str(error))))
            self._is_told_of = True
            return False
        self._is_told_of = False
        return True


def _encoded(message: PipesMessage) -> str:
    """A message as JSON; what JSON does not have, as text."""
    if message["method"] == "log" and message["params"]:
        text = str(message["params"]["message"])
        shown = redacted(text[: 2 * LONGEST_REASON])[:LONGEST_REASON]  # in this order: no secret is cut and shown
        rest = "" if len(text) <= LONGEST_REASON else f" ... ({len(text):,} characters)"
        message = {**message, "params": {**message["params"], "message": f"{shown}{rest}"}}
    try:
        encoded = json.dumps(message, default=str)
        why = f"it has {len(encoded):,} characters" if len(encoded) > _LONGEST else ""
    except Exception as error:  # what is reported is the user's, and so is how it becomes text
        encoded, why = "", str(error) or type(error).__name__
    if not why:
        return encoded
    said = f"A message of the driver ({message['method']}) is not told: {why}"
    return json.dumps({"method": "log", "params": {"level": "WARNING", "message": said}})
