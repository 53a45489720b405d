"""What a driver says is read in order, by one run after the other, whatever the storage does."""

from __future__ import annotations

import json
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_ckpt.checkpoint.control import driver_messages
from dagster_ckpt.checkpoint.control.driver_messages import DriverMessages
from dagster_ckpt.checkpoint.format import is_record
from dagster_ckpt.errors import StorageError
from dagster_ckpt.testing import Fail, FailAfter, FaultInjectingFileSystem, Operation
from tests.helpers.checkpoint.memory import MemoryFileSystem

DIRECTORY = "orders/control/messages"


class Said:
    """A driver that counts what it says, and what runs have heard of it."""

    def __init__(self) -> None:
        self.memory = MemoryFileSystem()
        self.storage = FaultInjectingFileSystem(self.memory)
        self.driver = DriverMessages(self.storage, "orders", 1)
        self.run = DriverMessages(self.memory, "orders", 1)
        self.said: list[str] = []
        self.heard: list[str] = []
        self._numbers = count()

    def say(self) -> None:
        chunk = [f"{next(self._numbers)}" for _ in range(2)]
        self.said += chunk
        self.driver.add(chunk)

    def hear(self) -> list[str]:
        new = list(self.run.new())
        self.heard += new
        return new

    def names(self) -> list[str]:
        return sorted(entry.name for entry in self.memory.list(DIRECTORY))


def refused(operation: Operation) -> Fail | None:
    return Fail() if operation.name == "create" else None


def unanswered(operation: Operation) -> FailAfter | None:
    return FailAfter() if operation.name == "create" else None


@given(
    st.lists(st.sampled_from(["say", "hear", "another run hears", "arrives, unanswered", "is refused"]), max_size=30)
)
def test_each_run_goes_on_where_the_one_before_has_ended(happens: list[str]) -> None:
    """And is told the last chunk again; only what the storage has refused is missing."""
    of = Said()
    for each in [*happens, "hear"]:
        match each:
            case "say":
                of.say()
            case "hear":
                of.hear()
                assert len(of.names()) <= 1, "what was heard does not stay"
            case "another run hears":
                of.hear()
                of.run = DriverMessages(of.memory, "orders", 1)
                again = of.hear()
                assert again == of.said[-2:]
                del of.heard[len(of.heard) - len(again) :]
            case _:
                of.storage.plan = refused if each == "is refused" else unanswered
                with pytest.raises(StorageError):
                    of.say()
                of.storage.plan = lambda _: None
                if each == "is refused":
                    del of.said[-2:]
    assert of.heard == of.said
    assert all(is_record(f"messages/{name}") for name in of.names())


def test_a_driver_that_nobody_attends_keeps_its_newest_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_messages, "_KEPT", 3)
    of = Said()
    for _ in range(10):
        of.say()
    assert len(of.names()) == 3
    assert of.hear() == of.said[-6:]


def test_a_run_that_could_not_look_for_long_goes_on_with_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_messages, "_KEPT", 3)
    of = Said()
    of.say()
    of.hear()
    for _ in range(10):
        of.say()
    assert [heard for _ in range(11) for heard in of.hear()] == of.said[-6:]
    of.say()
    assert of.hear() == of.said[-2:]


def test_a_run_that_stood_in_the_middle_of_a_chunk_that_is_gone_misses_nothing_of_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(driver_messages, "_KEPT", 3)
    of = Said()
    of.say()
    given = of.run.new()
    next(given)
    next(given)  # the first one counts as given
    for _ in range(10):
        of.say()
    assert [heard for _ in range(11) for heard in of.hear()] == of.said[-6:]


def test_what_could_not_be_removed_is_not_told_again_and_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_messages, "_KEPT", 3)
    of = Said()
    of.run = DriverMessages(of.storage, "orders", 1)
    of.storage.plan = lambda operation: Fail() if operation.name == "remove" else None
    for _ in range(4):
        of.say()
        assert of.hear() == of.said[-2:]
    of.storage.plan = lambda _: None
    for _ in range(5):
        of.say()
    assert of.names()[0].endswith("-0000000001"), "it was left"
    assert list(DriverMessages(of.memory, "orders", 1).new()) == of.said[-6:]


def test_a_run_that_stops_in_the_middle_of_a_chunk_goes_on_there() -> None:
    of = Said()
    for _ in range(2):
        of.say()
    for message in of.said:
        assert next(of.run.new()) == message, "it was not told yet, as no other was asked for"
        given = of.run.new()
        assert next(given) == message
        next(given, None)
    assert of.hear() == []


def test_a_damaged_chunk_is_named_and_passed_over() -> None:
    of = Said()
    for _ in range(3):
        of.say()
    damaged = of.names()[1]
    of.memory.files[f"{DIRECTORY}/{damaged}"] = b"{"
    first, second, why, *others = of.hear()
    assert [first, second, *others] == [*of.said[:2], *of.said[4:]]
    assert damaged in json.loads(why)["params"]["message"]
    of.say()
    assert of.hear() == of.said[-2:]


def test_the_driver_of_a_later_submission_removes_what_the_earlier_one_said() -> None:
    """Also if the storage refuses the driver's first chunk."""
    of = Said()
    of.say()
    later = DriverMessages(of.storage, "orders", 2)
    of.storage.plan = refused
    with pytest.raises(StorageError):
        later.add(["first"])
    of.storage.plan = lambda _: None
    later.add(["first"])
    assert list(DriverMessages(of.memory, "orders", 2).new()) == ["first"]
    assert list(DriverMessages(of.memory, "orders", 1).new()) == []
    assert len(of.names()) == 1
