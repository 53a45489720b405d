from __future__ import annotations

import threading

import pytest

from dagster_ckpt.threads import Threads

#: Seconds that no test waits for.
_NEVER = 60.0


def test_calls_run_side_by_side_up_to_the_most() -> None:
    together = threading.Barrier(2)
    with Threads(2, "of the test") as threads:
        assert list(threads.map(lambda _: together.wait(_NEVER) >= 0, range(6))) == [True] * 6
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("of the test")]


def test_one_thread_runs_calls_in_their_order() -> None:
    order: list[int] = []
    with Threads(1, "of the test") as threads:
        for number in range(50):
            threads.submit(order.append, number)
    assert order == list(range(50))


def test_an_error_is_raised_to_who_asks_and_the_thread_goes_on() -> None:
    with Threads(1, "of the test") as threads:
        failed, after = threads.submit(lambda: 1 // 0), threads.submit(lambda: 1)
        with pytest.raises(ZeroDivisionError):
            failed.result(_NEVER)
        assert after.result(_NEVER) == 1


def test_what_waits_is_cancelled_or_run_at_the_end() -> None:
    for cancels in (False, True):
        threads, goes_on = Threads(1, "of the test"), threading.Event()
        begun = threading.Event()
        running = threads.submit(lambda begun=begun, goes_on=goes_on: (begun.set(), goes_on.wait(_NEVER))[1])
        assert begun.wait(_NEVER)
        waiting = threads.submit(lambda: 1)
        threads.shutdown(wait=False, cancel_futures=cancels)
        assert waiting.cancelled() == cancels
        goes_on.set()
        threads.shutdown()
        assert running.result(_NEVER)
        assert cancels or waiting.result(_NEVER) == 1
        with pytest.raises(RuntimeError, match="no more"):
            threads.submit(lambda: 1)


def test_where_no_thread_can_start_those_that_run_do_it_or_the_caller_hears_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start, room = threading.Thread.start, iter([False, True, False])

    def start_if_there_is_room(thread: threading.Thread) -> None:
        if not next(room):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_if_there_is_room)
    done: list[int] = []
    with (
        pytest.raises(OSError, match=r"no room for the threads of the test \(can't start"),
        Threads(2, "of the test") as threads,
    ):
        threads.submit(done.append, 0)
    with Threads(2, "of the test") as threads:
        assert [threads.submit(done.append, number) for number in (1, 2)]
    assert done == [1, 2], "what was refused never runs"
