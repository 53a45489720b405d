"""A rehearsal that no thread can run: the standby goes on without it."""

from __future__ import annotations

import threading

import pytest

from dagster_ckpt.orchestration.standby.rehearsing import Rehearsal


def test_a_host_without_room_for_a_thread_does_not_end_the_standby(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    done = threading.Event()

    def rehearse(cut: threading.Event) -> str:
        done.set()
        return str(cut)

    monkeypatch.setattr(threading.Thread, "start", start)
    rehearsal = Rehearsal(rehearse)
    assert rehearsal.is_over
    assert "can't start new thread" in str(rehearsal.outcome)
    rehearsal.cut()
    rehearsal.join(1)
    assert not done.is_set()
