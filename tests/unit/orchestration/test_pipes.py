"""What a submitted driver says by Dagster Pipes, in Dagster."""

import json
import logging
from collections.abc import Callable, Iterable
from typing import Any

import dagster as dg
import pytest
from dagster_pipes import PipesContext

from dagster_ckpt.checkpoint.control.driver_messages import DriverMessages
from dagster_ckpt.orchestration.events import PipesMessages
from dagster_ckpt.standalone import pipes as driver_side
from dagster_ckpt.standalone.pipes import PipesHandler, opened_pipes
from dagster_ckpt.testing import Fail, FaultInjectingFileSystem
from tests.helpers.checkpoint.memory import MemoryFileSystem

KEY, RUN = dg.AssetKey(["shop", "orders"]), "a" * 32


def said(messages: DriverMessages, say: Callable[[PipesContext], object]) -> None:
    """A driver says something, and ends."""
    with opened_pipes(messages, KEY, RUN, in_bucket=False) as pipes:
        say(pipes)


def told(messages: Iterable[str]) -> tuple[list[tuple[str, str]], list[Any], bool]:
    """What Dagster has of a run that was told the messages: lines with levels, and events; and whether that is all."""
    ended: list[bool] = []

    @dg.asset
    def orders(context: dg.AssetExecutionContext) -> None:
        tell = PipesMessages(context, context.log_event).tell
        ended.extend([tell(message) for message in messages])

    with dg.DagsterInstance.ephemeral() as instance:
        run = dg.materialize([orders], instance=instance).run_id
        logs = instance.all_logs(run)
    lines = [
        (logging.getLevelName(entry.level), entry.user_message)
        for entry in logs
        if not entry.is_dagster_event and not entry.user_message.startswith("Step worker")
    ]
    events = [entry.dagster_event for entry in logs if entry.dagster_event is not None]
    return lines, events, any(ended)


def test_what_the_function_of_a_job_says_is_in_the_log_and_the_events_of_the_run() -> None:
    storage = MemoryFileSystem()

    def say(pipes: PipesContext) -> None:
        assert PipesContext.get() is pipes, "the function finds it"
        assert (pipes.run_id, pipes.asset_key) == (RUN, "shop/orders")
        with dg.build_asset_context() as context:
            context.log.handlers.insert(0, PipesHandler(pipes))
            context.log.warning("a %s line", "second\nand a third")
        pipes.log.info("at s3://user:secret@place")
        pipes.report_asset_materialization({"rows": 7}, data_version="v1")
        pipes.report_asset_check("complete", passed=False, severity="WARN", metadata={"missing": 3})
        pipes.report_custom_message({"any": ["thing"]})

    said(DriverMessages(storage, "orders", 1), say)
    lines, events, ended = told(DriverMessages(storage, "orders", 1).new())
    assert ended, "the last message says so"
    assert lines == [
        ("WARNING", "a second\nand a third line"),
        ("INFO", "at s3://***@place"),
        ("INFO", 'The driver reports {"any": ["thing"]}'),
    ]
    (made,) = (event for event in events if event.is_step_materialization and event.asset_key == KEY)
    made = made.step_materialization_data.materialization
    assert (made.metadata["rows"].value, made.tags["dagster/data_version"]) == (7, "v1")
    (check,) = (event for event in events if event.event_type is dg.DagsterEventType.ASSET_CHECK_EVALUATION)
    check = check.asset_check_evaluation_data
    assert (check.asset_key, check.check_name, check.passed) == (KEY, "complete", False)
    assert (check.severity, check.metadata["missing"].value) == (dg.AssetCheckSeverity.WARN, 3)


@pytest.mark.parametrize(
    "message",
    [
        "",
        "null",
        "[]",
        "{}",
        json.dumps({"method": "log", "params": {}}),
        json.dumps({"method": "log", "params": {"level": "INFO"}}),
        json.dumps({"method": "launch", "params": {}}),
        json.dumps({"method": "report_asset_materialization", "params": {"asset_key": 3}}),
        json.dumps({"method": "report_asset_check", "params": {"asset_key": "a", "passed": "yes"}}),
    ],
)
def test_what_is_no_message_is_named_and_the_next_one_is_told(message: str) -> None:
    lines, _, ended = told([message, json.dumps({"method": "log", "params": {"level": "ERROR", "message": "next"}})])
    assert [level for level, _ in lines] == ["WARNING", "ERROR"]
    assert lines[0][1].startswith("A message of the driver could not be told: ")
    assert lines[1][1] == "next"
    assert not ended


def test_a_storage_that_takes_no_message_costs_messages_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(driver_side, "_MOST", 50)
    monkeypatch.setattr(driver_side, "_INTERVAL", 3600)
    storage = FaultInjectingFileSystem(MemoryFileSystem())
    storage.plan = lambda operation: Fail() if operation.name == "create" else None

    def say(pipes: PipesContext) -> None:
        for number in range(200):
            pipes.log.info("line %d", number)

    said(DriverMessages(storage, "orders", 1), say)
    assert "1 messages do not reach Dagster" in caplog.text, "the first one, at once"
    assert "51 messages do not reach Dagster" in caplog.text, "no more than these have waited, and the last one"
    assert list(DriverMessages(storage, "orders", 1).new()) == []
