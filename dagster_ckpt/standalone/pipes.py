"""Dagster Pipes in a submitted driver: the messages go into the job's storage, where the Dagster run reads them."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator
from typing import IO, Any

import dagster as dg
from dagster_pipes import (
    DAGSTER_PIPES_CONTEXT_ENV_VAR,
    DAGSTER_PIPES_MESSAGES_ENV_VAR,
    DagsterPipesError,
    PipesBlobStoreMessageWriter,
    PipesBlobStoreMessageWriterChannel,
    PipesContext,
    PipesDefaultContextLoader,
    PipesMappingParamsLoader,
    PipesMessage,
    PipesParams,
    encode_param,
)

from dagster_ckpt.checkpoint import DriverMessages
from dagster_ckpt.errors import CheckpointError
from dagster_ckpt.shown_text import redacted

__all__ = ["PipesHandler", "opened_pipes"]

_log = logging.getLogger(__name__)

#: Seconds between two writes of messages, where there are any: in a bucket each write is paid for.
_INTERVAL, _INTERVAL_IN_A_BUCKET = 1.0, 10.0
#: Messages that wait for a storage that does not take them; later ones are in the driver's output alone.
_MOST = 10_000


@contextlib.contextmanager
def opened_pipes(messages: DriverMessages, key: dg.AssetKey, run_id: str, *, in_bucket: bool) -> Iterator[PipesContext]:
    """A session of Dagster Pipes for this process, which the job's function gets by ``PipesContext.get()``.

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
    # Not by open_dagster_pipes(), which gives a session of an earlier drive in this process, closed as it is.
    pipes = PipesContext(loader, PipesDefaultContextLoader(), writer)
    PipesContext.set(pipes)
    try:
        yield pipes
    finally:
        pipes.close()  # without the error that ends the job: the records have it, without secrets


class PipesHandler(logging.Handler):
    """Tells Dagster what is logged, until the session is closed.

    Args:
        pipes: the session.
    """

    def __init__(self, pipes: PipesContext) -> None:
        super().__init__()
        self._pipes = pipes

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(DagsterPipesError):
            self._pipes.log.log(record.levelno, "%s", redacted(record.getMessage()))


class _Writer(PipesBlobStoreMessageWriter["_Channel"]):
    def __init__(self, messages: DriverMessages, interval: float) -> None:
        super().__init__(interval=interval)
        self._messages = messages

    def make_channel(self, params: PipesParams) -> _Channel:
        del params
        return _Channel(self._messages, self.interval)


class _Channel(PipesBlobStoreMessageWriterChannel):
    """Stores messages from a thread of its own. A storage that fails costs messages, and never the job."""

    def __init__(self, messages: DriverMessages, interval: float) -> None:
        super().__init__(interval=interval)
        self._messages = messages

    def write_message(self, message: PipesMessage) -> None:
        if message["method"] == "opened":
            self._store([json.dumps(message)])  # at once: a run that finds nothing waits for no last message
        elif message["method"] == "closed" or self._buffer.qsize() < _MOST:
            super().write_message(message)

    def upload_messages_chunk(self, payload: IO[Any], index: int) -> None:
        del index  # an earlier process of this submission may have told something, too
        self._store(payload.read().split("\n"))

    def _store(self, messages: list[str]) -> None:
        try:
            self._messages.add(messages)
        except (CheckpointError, OSError) as error:
            _log.warning("%d messages do not reach Dagster: %s", len(messages), redacted(str(error)))
