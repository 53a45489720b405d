"""What a submitted driver says by Dagster Pipes, on its way into Dagster."""

import json
import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import dagster as dg
import pytest
from dagster_pipes import PipesContext, open_dagster_pipes

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.control.driver_messages import DriverMessages
from dagster_ckpt.checkpoint.submissions import Submission
from dagster_ckpt.orchestration.attending.driver_report import DriverReport, Told
from dagster_ckpt.orchestration.events import PipesMessages
from dagster_ckpt.orchestration.reporting import CheckpointReporter
from dagster_ckpt.standalone import pipes as driver_side
from dagster_ckpt.standalone.pipes import PipesHandler, opened_pipes
from dagster_ckpt.testing import Fail, FaultInjectingFileSystem, Operation
from tests.helpers.checkpoint.driver import ManualClock
from tests.helpers.checkpoint.memory import MemoryFileSystem
from tests.helpers.checkpoint.submitting import submitted
from tests.helpers.orchestration.stored_job import StoredJob, run_id

KEY, RUN = dg.AssetKey(["shop", "orders"]), "a" * 32


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine takes longer than a driver waits."""
    monkeypatch.setattr(driver_side, "_PATIENCE", 240.0)


@pytest.fixture
def job(tmp_path: Path) -> StoredJob:
    return StoredJob(tmp_path)


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
    lines = [(logging.getLevelName(entry.level), entry.user_message) for entry in logs if not entry.is_dagster_event]
    events = [entry.dagster_event for entry in logs if entry.dagster_event is not None]
    return lines, events, any(ended)


def test_what_the_function_of_a_job_says_is_in_the_log_and_the_events_of_the_run() -> None:
    storage = MemoryFileSystem()

    def say(pipes: PipesContext) -> None:
        assert (pipes.run_id, pipes.asset_key) == (RUN, "shop/orders")
        with open_dagster_pipes() as again:
            assert again is pipes, "the function finds it, and does not close it"
        with dg.build_asset_context() as context:
            context.log.handlers.insert(0, PipesHandler(pipes))
            context.log.warning("a %s line", "second\nand a third")
        pipes.log.info("at s3://user:secret@place")
        pipes.report_asset_materialization({"rows": 3})
        pipes.report_asset_materialization({"rows": 7}, data_version="v1")
        pipes.report_asset_check("complete", passed=False, severity="WARN", metadata={"missing": 3})
        pipes.report_custom_message({"any": ["thing"], "at": date(2026, 3, 1)})

    said(DriverMessages(storage, "orders", 1), say)
    lines, events, ended = told(DriverMessages(storage, "orders", 1).new())
    assert ended, "the last message says so"
    assert lines == [
        ("WARNING", "a second\nand a third line"),
        ("INFO", "at s3://***@place"),
        ("INFO", 'The driver reports {"any": ["thing"], "at": "2026-03-01"}'),
    ]
    made = [event for event in events if event.is_step_materialization and event.asset_key == KEY]
    first, second = (event.step_materialization_data.materialization for event in made)
    assert (first.metadata["rows"].value, second.metadata["rows"].value) == (3, 7)
    assert second.tags["dagster/data_version"] == "v1"
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


class Unsayable:
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_what_is_too_long_or_no_json_is_named_and_the_others_are_told() -> None:
    storage, loop, deep = MemoryFileSystem(), list[object](), list[object]()
    loop.append(loop)
    for _ in range(100_000):
        deep = [deep]
    payloads: list[object] = ["y" * 2_000_000, loop, {(1, 2): 3}, Unsayable(), deep]

    def say(pipes: PipesContext) -> None:
        pipes.log.info("x" * 2_000_000)
        for payload in payloads:
            pipes.report_custom_message(payload)
        pipes.log.info("next")

    said(DriverMessages(storage, "orders", 1), say)
    cut, *named, after = (line for _, line in told(DriverMessages(storage, "orders", 1).new())[0])
    assert cut.startswith("xxx")
    assert cut.endswith("... (2,000,000 characters)")
    begin = "A message of the driver (report_custom_message) is not told: "
    assert [line.startswith(begin) for line in named] == [True] * len(payloads)
    assert "it has 2,000," in named[0]
    assert named[1].endswith(": Circular reference detected")
    assert named[3].endswith(": no text")
    assert after == "next"


@pytest.mark.parametrize("before", ["", "z" * 9_980])
def test_the_secrets_of_a_line_do_not_reach_the_storage(before: str) -> None:
    storage = MemoryFileSystem()
    said(
        DriverMessages(storage, "orders", 1), lambda pipes: pipes.log.info("%s s3://user:hunter2hunter2@place", before)
    )
    stored = b"".join(storage.files.values())
    assert b"s3://***" in stored
    assert b"hunter" not in stored


@pytest.mark.parametrize("error", [None, RuntimeError("Event loop is closed")], ids=["", "and its client fails"])
def test_a_storage_that_is_away_stops_no_driver_and_gets_the_messages_later(
    error: Exception | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(driver_side, "_INTERVAL", 0.01)
    monkeypatch.setattr(driver_side, "_MOST", 50)
    storage, tried = FaultInjectingFileSystem(MemoryFileSystem()), threading.Event()

    def away(operation: Operation) -> Fail | None:
        if operation.name != "create":
            return None
        tried.set()
        return Fail(error)

    storage.plan = away

    def say(pipes: PipesContext) -> None:
        assert tried.wait(60), "from a thread of its own"
        for number in range(200):
            pipes.log.info("line %d", number)
        storage.plan = lambda _: None

    said(DriverMessages(storage, "orders", 1), say)
    messages = [json.loads(message) for message in DriverMessages(storage, "orders", 1).new()]
    lines = [message["params"]["message"] for message in messages if message["method"] == "log"]
    assert lines[-40:] == [f"line {number}" for number in range(160, 200)], "the newest"
    assert messages[-1]["method"] == "closed"
    assert caplog.text.count("does not reach Dagster now") == 1


class Ended:
    """A driver that has ended the job, and the report of the run that attends it."""

    def __init__(self, job: StoredJob) -> None:
        run = run_id()
        submission = submitted(job.catalog.records, Submission(run, 0, None, "{}", 1.0))
        claim = job.claim(run)
        job.choose(claim)
        job.end(claim, "FINISHED")
        end = job.catalog.records.epochs.read_end(claim.epoch)
        assert end is not None
        self.end = end
        self.clock = ManualClock()
        self.driver = job.catalog.records.messages(submission.number)
        self.heard: list[str] = []
        self.refuses = 0
        #: What the driver says when so much time has passed.
        self.later: dict[float, str] = {}
        self._claim = claim
        self.report = self.reported(job.catalog)

    def reported(self, catalog: CheckpointCatalog) -> DriverReport:
        nobody = Told(lambda: None, lambda: False, *[lambda *_: None] * 8)
        told = replace(nobody, said=self._said, log=lambda _, line: self.heard.append(line))
        reporter = create_autospec(CheckpointReporter)
        report = DriverReport(catalog, self._claim.run_id, reporter, told, self.clock, self._wait)
        report.claimed(self._claim)
        return report

    def _said(self, message: str) -> bool:
        if self.refuses:
            self.refuses -= 1
            raise OSError("database is locked")
        self.heard.append(message)
        self.clock.advance(0.1)
        return message == "closed"

    def _wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        for at in [at for at in self.later if at <= self.clock.now]:
            self.driver.add([self.later.pop(at)])


def test_the_last_words_of_a_driver_are_waited_for(job: StoredJob) -> None:
    ended = Ended(job)
    ended.driver.add(["opened"])
    began = ended.clock.now
    ended.later = {began + 3: "closed"}
    ended.report.last(ended.end)
    assert ended.heard == ["opened", "closed"]
    assert ended.clock.now - began < 4, "and no longer"


@pytest.mark.parametrize("speaks", [True, False])
def test_last_words_that_do_not_come_are_not_waited_for_long(job: StoredJob, *, speaks: bool) -> None:
    ended = Ended(job)
    if speaks:
        ended.driver.add(["opened"])
    began = ended.clock.now
    ended.report.last(ended.end)
    assert (14 if speaks else 0) <= ended.clock.now - began < (17 if speaks else 1)


def test_a_look_tells_a_part_of_what_a_loud_driver_says_and_the_next_look_goes_on(job: StoredJob) -> None:
    ended = Ended(job)
    lines = [f"line {number}" for number in range(30)]
    for number in range(0, 30, 5):
        ended.driver.add(lines[number : number + 5])
    ended.report.look(None)
    assert 9 <= len(ended.heard) <= 11, "a second, at ten lines a second"
    for _ in range(4):
        ended.report.look(None)
    assert ended.heard == lines, "each once"


def test_what_dagster_does_not_take_is_told_again_and_in_the_end_given_up(job: StoredJob) -> None:
    ended = Ended(job)
    ended.driver.add(["first", "second"])
    ended.refuses = 3
    for _ in range(4):
        ended.report.look(None)
    (trouble,) = (line for line in ended.heard if "database is locked" in line)
    assert ended.heard == [trouble, "first", "second"]
    ended.driver.add(["third", "fourth"])
    ended.refuses = 16
    for _ in range(17):
        ended.clock.advance(20)
        ended.report.look(None)
    assert ended.heard[3:] == [trouble, "Dagster refuses what the driver has reported, and it is given up.", "fourth"]


def test_last_words_that_dagster_does_not_take_at_once_are_told(job: StoredJob) -> None:
    ended = Ended(job)
    ended.driver.add(["opened", "why it failed", "closed"])
    ended.refuses = 2
    ended.report.last(ended.end)
    assert ended.heard[-3:] == ["opened", "why it failed", "closed"]


def test_a_storage_that_takes_seconds_for_a_read_gives_some_messages_a_look(job: StoredJob) -> None:
    ended = Ended(job)
    filesystem = FaultInjectingFileSystem(job.catalog.filesystem)

    def slow(operation: Operation) -> None:
        if operation.name == "read" and "/messages/" in operation.path:
            ended.clock.advance(3)

    filesystem.plan = slow
    ended.report = ended.reported(CheckpointCatalog(filesystem, job.name))
    ended.driver.add([f"line {number}" for number in range(20)])
    for _ in range(5):
        ended.report.look(None)
    assert ended.heard == [f"line {number}" for number in range(20)]


def test_what_a_driver_said_before_it_was_withdrawn_is_told(job: StoredJob) -> None:
    run, clock, heard = run_id(), ManualClock(), list[str]()
    submission = submitted(job.catalog.records, Submission(run, 0, None, "{}", 1.0))
    job.catalog.records.messages(submission.number).add(["opened", "why"])
    job.catalog.records.submissions.withdraw(submission)
    to = replace(Told(lambda: None, lambda: False, *[lambda *_: None] * 8), said=heard.append)
    DriverReport(job.catalog, run, create_autospec(CheckpointReporter), to, clock, clock.advance).last()
    assert heard == ["opened", "why"]
