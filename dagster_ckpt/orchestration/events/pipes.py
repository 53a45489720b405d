"""Messages of Dagster Pipes, from a driver of its own, as lines and events of the run that attends the driver."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import dagster as dg

from dagster_ckpt.orchestration.events.run_log import say
from dagster_ckpt.shown_text import printable, redacted

__all__ = ["PipesMessages"]

_Event: TypeAlias = dg.AssetMaterialization | dg.AssetCheckEvaluation
_DATA_VERSION = "dagster/data_version"
#: Most characters of a line: a driver cuts its lines before.
_LONGEST = 11_000


class PipesMessages:
    """Tells Dagster what the messages of a driver say.

    Args:
        context: of the run.
        log_event: takes the events.
    """

    def __init__(
        self,
        context: dg.AssetExecutionContext,
        log_event: Callable[[_Event], object],
    ) -> None:
        self._context = context
        self._log_event = log_event

    def tell(self, message: str) -> bool:
        """Tell one message; whether it is the driver's last. What is no message of Pipes is named in the run's log.

        Args:
            message: JSON.

        Raises:
            Exception: Dagster does not take the event; the message can be told again.
        """
        try:
            said: Mapping[str, Any] = json.loads(message)
            events = self._events(said["method"], said["params"] or {}, said)
        except Exception as error:  # a storage gives what somebody else may have written
            self._say(logging.WARNING, f"A message of the driver could not be told: {error!r}")
            return False
        for event in events:
            self._log_event(event)
        return bool(said["method"] == "closed")

    def _events(self, method: str, params: Mapping[str, Any], message: Any) -> Sequence[_Event]:
        """The events of a message; a line is told at once."""
        match method:
            case "opened" | "closed":
                return ()
            case "log":
                level = logging.getLevelNamesMapping().get(params["level"], logging.INFO)
                self._say(level, str(params["message"]))
                return ()
            case "log_external_stream":
                self._say(logging.INFO, str(params["text"]))
                return ()
            case "report_custom_message":
                self._say(logging.INFO, f"The driver reports {json.dumps(params['payload'])}")
                return ()
        handler = dg.PipesMessageHandler(self._context, _Given())
        handler.handle_message(message)
        return [_event(result) for result in handler.get_reported_results()]

    def _say(self, level: int, text: str) -> None:
        say(self._context.log, level, printable(redacted(text[: 2 * _LONGEST])[:_LONGEST]))


def _event(result: dg.MaterializeResult[Any] | dg.AssetCheckResult) -> _Event:
    """A result as an event: a stream has no end at which Dagster would take results."""
    key = dg.AssetKey.from_coercible(result.asset_key or ())  # which each message of Pipes names
    if isinstance(result, dg.AssetCheckResult):
        return dg.AssetCheckEvaluation(
            asset_key=key,
            check_name=str(result.check_name),
            passed=result.passed,
            severity=result.severity,
            metadata=result.metadata,
        )
    version = result.data_version
    return dg.AssetMaterialization(
        key, metadata=result.metadata, tags={} if version is None else {_DATA_VERSION: version.value}
    )


class _Given(dg.PipesMessageReader):
    """Reads nothing: the messages are given to the handler one by one."""

    expected_writer_count = 1  # Dagster's own property warns that it may change

    @contextlib.contextmanager
    def read_messages(self, handler: dg.PipesMessageHandler) -> Iterator[dict[str, Any]]:
        del handler
        yield {}

    def no_messages_debug_text(self) -> str:
        return "The messages are in control/messages of the job."
