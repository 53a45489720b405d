"""Requests whose askers never came back, and the request to end a job."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dagster_ckpt.checkpoint.control.savepoint_requests import (
    Answer,
    CancelRequest,
    SavepointRequest,
    SavepointRequests,
)
from tests.helpers.checkpoint.driver import JOB
from tests.helpers.checkpoint.memory import MemoryFileSystem

TOKEN = "0" * 32
ASKED = SavepointRequest(TOKEN, None, stop=False, asked_at=1.0, until=2.0)
ANSWERED = 10_000.0


@pytest.fixture
def requests(memory: MemoryFileSystem) -> SavepointRequests:
    return SavepointRequests(memory, JOB)


def left(memory: MemoryFileSystem) -> set[str]:
    return {name.rpartition("/")[2] for name in memory.files if f"r-{TOKEN}" in name}


@pytest.mark.parametrize(
    ("now", "stays"),
    [(ANSWERED, True), (ANSWERED + 3600, True), (ANSWERED + 3600.5, False), (ANSWERED - 0.5, False)],
)
def test_an_answer_that_nobody_read_is_kept_for_an_hour(
    requests: SavepointRequests, memory: MemoryFileSystem, now: float, stays: bool
) -> None:
    """An answer of the future was dated by a clock that has been set back since."""
    requests.ask(ASKED)
    assert requests.answer(1, ASKED, Answer(ANSWERED, error="it failed"))
    requests.forget_old(now)
    assert left(memory) == ({f"r-{TOKEN}", f"r-{TOKEN}.answer"} if stays else set())


def test_a_request_without_an_answer_stays(requests: SavepointRequests, memory: MemoryFileSystem) -> None:
    requests.ask(ASKED)
    requests.begin(1, ASKED, 5.0)
    requests.forget_old(1e9)
    assert left(memory) == {f"r-{TOKEN}", f"r-{TOKEN}.begun"}


@pytest.mark.parametrize("rest", [".begun", ".answer"])
def test_what_is_left_of_a_request_that_is_gone_is_forgotten(
    requests: SavepointRequests, memory: MemoryFileSystem, rest: str
) -> None:
    requests.ask(ASKED)
    requests.begin(1, ASKED, 5.0)
    requests.answer(1, ASKED, Answer(ANSWERED, error="it failed"))
    path = next(name for name in memory.files if name.endswith(f"r-{TOKEN}{rest}"))
    kept = memory.files[path]
    requests.forget(TOKEN)
    assert left(memory) == set()
    memory.files[path] = kept if rest == ".begun" else b"damaged"
    requests.forget_old(ANSWERED)
    assert left(memory) == set()


def test_only_the_run_that_is_named_is_to_end_the_job(requests: SavepointRequests) -> None:
    assert not requests.is_to_cancel("run-a")
    requests.ask_to_cancel(CancelRequest("run-a", 1.0))
    assert requests.is_to_cancel("run-a")
    assert not requests.is_to_cancel("run-b")
    requests.ask_to_cancel(CancelRequest("run-b", 1.0))
    assert not requests.is_to_cancel("run-a")
    requests.forget_cancel()
    assert not requests.is_to_cancel("run-b")
    requests.forget_cancel()


def test_neither_a_damaged_request_nor_an_answered_one_hides_another(
    requests: SavepointRequests, memory: MemoryFileSystem
) -> None:
    asked = [replace(ASKED, token=f"{number:032x}", asked_at=9.0 - number) for number in range(5)]
    for request in asked:
        requests.ask(request)
    requests.answer(1, asked[1], Answer(ANSWERED, error="it failed"))
    memory.files[f"{JOB}/control/requests/r-{asked[2].token}"] = b"damaged"
    assert requests.open() == [asked[4], asked[3], asked[0]], "the oldest first"
    assert requests.answer_to(asked[2].token) is None, "only the driver answers it"
    seen = requests.unread({asked[1].token}, answer_at=ANSWERED)
    assert [item.request for item in seen] == [asked[4], asked[3], asked[0]], (
        "an answer that is known is not read again"
    )
    answer = requests.answer_to(asked[2].token)
    assert answer is not None
    assert (answer.answered_at, answer.hint) == (ANSWERED, "Ask again.")
