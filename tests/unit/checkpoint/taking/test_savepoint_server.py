"""The driver's side of savepoints: when they are taken, what fails, stopping, and a driver that dies."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from dagster_ckpt.checkpoint.control.savepoint_requests import Answer, RequestState, SavepointRequest
from dagster_ckpt.checkpoint.format.records import encode_record
from dagster_ckpt.checkpoint.format.snapshot import Progress
from dagster_ckpt.checkpoint.taking import attempts
from dagster_ckpt.errors import Fenced, SavepointFailed, StorageError
from dagster_ckpt.filesystem import PosixFileSystem
from dagster_ckpt.testing import Fail
from tests.helpers.checkpoint.driver import JOB, Ledger, Pins, Run, state
from tests.helpers.checkpoint.record_files import resealed
from tests.helpers.checkpoint.savepoints import saved
from tests.helpers.checkpoint.serving import Served


class TestTaking:
    def test_an_idle_job_is_saved_at_once_though_its_batch_was_captured(self, make: Callable[..., Served]) -> None:
        served = make()
        served.job.stream.committed = 3
        served.job.pass_time(11)
        assert served.job.listener.done == ["chk-1"]
        token = served.ask()
        served.pass_time(1.1)
        assert served.holds(token) == 3
        assert served.job.coordinator.captured == 3

    def test_it_ignores_interval_pause_and_concurrency(self, make: Callable[..., Served]) -> None:
        served = make(at_once=False, interval="1 h", min_pause="1 h")
        served.job.stream.committed = 1
        first, second = served.ask(1), served.ask(2)
        served.pass_time(0.5)
        served.job.executor.let()
        served.pass_time(1.5)
        served.job.executor.let()
        served.pass_time(0.5)
        assert served.answer(first).savepoint is not None
        assert served.holds(second) == 1
        assert served.job.captures == [0, 1]

    def test_one_for_which_there_is_no_thread_has_failed(self, make: Callable[..., Served], pins: Pins) -> None:
        served = make(interval="1 h")
        served.job.stream.committed = 4
        served.job.executor.is_full = True
        token = served.ask(1)
        served.pass_time(1.1)
        assert "no room for a thread" in served.answer(token).error
        assert pins.released == 1
        served.job.executor.is_full = False
        again = served.ask(2)
        served.pass_time(1.1)
        assert served.holds(again) == 4

    def test_how_long_a_pin_takes_is_told(self, make: Callable[..., Served]) -> None:
        served = make(interval="1 h")
        served.job.stream.committed, served.job.stream.pinning = 4, 0.25
        served.ask(1)
        served.pass_time(1.1)
        served.ask(2, stop=True)
        served.pass_time(1.1)
        served.server.finish()
        assert [metadata.timings_ms["pin"] for metadata in served.completed] == [250, 250]

    def test_no_step_takes_less_than_no_time(
        self, make: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Where finding a request takes time itself."""
        served = make(interval="1 h")
        served.job.stream.committed = 4
        monotonic, passed = served.job.clock.monotonic, count()
        monkeypatch.setattr(served.job.clock, "monotonic", lambda: monotonic() + next(passed) / 1000)
        served.ask(1)
        served.pass_time(1.1)
        (taken,) = served.completed
        assert min(taken.timings_ms.values()) >= 0

    def test_while_a_checkpoint_is_written_it_goes_on_beside_it(self, make: Callable[..., Served]) -> None:
        served = make(at_once=False)
        served.job.stream.committed = 1
        served.job.pass_time(11)
        token = served.ask()
        served.pass_time(1.1)
        assert len(served.job.executor.held) == 2
        served.job.executor.let(1)
        served.pass_time(0.1)
        assert served.holds(token) == 1
        served.job.executor.let()
        served.job.pass_time(14)
        assert served.job.listener.done == ["chk-1"], "an id below the savepoint's"

    @pytest.mark.parametrize("unaligned", [False, True])
    def test_it_is_aligned_always(self, make: Callable[..., Served], unaligned: bool) -> None:
        served = make(unaligned=unaligned, interval="1 h")
        served.job.stream.committed, served.job.stream.planned = 4, 5
        token = served.ask()
        served.pass_time(30)
        assert served.job.stream.pinned == []
        served.job.stream.committed, served.job.stream.planned = 5, 6
        served.pass_time(0.1)
        assert served.holds(token) == 5
        assert served.completed[0].timings_ms["align"] == pytest.approx(30_000, abs=1_100)

    def test_a_job_without_a_batch_is_waited_for(self, make: Callable[..., Served]) -> None:
        served = make()
        token = served.ask()
        served.pass_time(5)
        assert served.requests.answer_to(token) is None
        served.job.stream.committed = 0
        served.pass_time(0.1)
        assert served.holds(token) == 0

    def test_a_location_that_is_asked_for(self, make: Callable[..., Served], tmp_path: Path) -> None:
        served = make()
        served.job.stream.committed = 1
        token = served.ask(target=str(tmp_path / "elsewhere"))
        served.pass_time(1)
        savepoint = served.answer(token).savepoint
        assert savepoint is not None
        assert Path(savepoint.pointer).parent == tmp_path / "elsewhere"

    def test_it_is_of_what_has_committed_when_it_is_asked_for(self, make: Callable[..., Served]) -> None:
        served = make()
        served.job.stream.committed, served.job.stream.seen = 4, Progress(3, None)
        token = served.ask()
        served.pass_time(1.1)
        assert served.holds(token) == 4

    def test_an_incomplete_capture_is_taken_again(self, make: Callable[..., Served]) -> None:
        served = make()
        served.job.stream.committed, served.job.stream.incomplete = 1, 4
        token = served.ask()
        served.pass_time(6)
        assert served.holds(token) == 1
        assert served.job.captures == [4], "a second between two captures of one batch"


class TestFailing:
    def assert_refused(self, served: Served, token: str, reason: str) -> None:
        answer = served.answer(token)
        assert answer.savepoint is None
        assert reason in answer.error
        assert served.job.listener.failures == [], "who asked is told, and nothing is counted"
        assert not list(served.directory.rglob("_metadata"))
        served.job.stream.error, served.job.stream.unknown, served.job.stream.incomplete = None, None, 0
        served.job.stream.committed = 9
        again = served.ask(9)
        served.pass_time(2)
        assert served.holds(again) == 9
        assert (len(served.completed), served.server.stop_asked) == (1, False), "what was refused is over"

    def test_no_location(self, make: Callable[..., Served]) -> None:
        served = make(default=False, tolerable_failed_checkpoints=0)
        token = served.ask()
        served.pass_time(1)
        answer = served.answer(token)
        assert answer.error == "No savepoint location given and no default location configured."
        assert "savepoint_path" in answer.hint

    def test_a_storage_that_refuses(self, make: Callable[..., Served]) -> None:
        served = make(tolerable_failed_checkpoints=0)
        served.job.stream.committed = 1
        served.job.stream.error = StorageError("the disk is full")
        token = served.ask()
        served.pass_time(1)
        self.assert_refused(served, token, "the disk is full")

    @pytest.mark.parametrize("stop", [False, True])
    def test_a_job_that_cannot_tell_how_far_it_is(self, make: Callable[..., Served], stop: bool) -> None:
        served = make(tolerable_failed_checkpoints=0)
        served.job.stream.committed = 1
        served.job.stream.unknown = StorageError("the bucket cannot be listed")
        token = served.ask(stop=stop)
        served.pass_time(1)
        assert not served.server.stop_asked
        self.assert_refused(served, token, "the bucket cannot be listed")

    def test_a_target_that_cannot_be_written(self, make: Callable[..., Served], tmp_path: Path) -> None:
        served = make(tolerable_failed_checkpoints=0)
        served.job.stream.committed = 1
        (tmp_path / "file").touch()
        token = served.ask(target=str(tmp_path / "file"))
        served.pass_time(1)
        self.assert_refused(served, token, str(tmp_path / "file"))

    def test_captures_that_never_work(self, make: Callable[..., Served]) -> None:
        served = make(tolerable_failed_checkpoints=0)
        served.job.stream.committed, served.job.stream.incomplete = 1, 100
        token = served.ask()
        served.pass_time(6)
        self.assert_refused(served, token, "is not all there")

    def test_a_batch_that_does_not_commit_in_time(self, make: Callable[..., Served]) -> None:
        served = make(timeout=20, tolerable_failed_checkpoints=0)
        served.job.stream.committed, served.job.stream.planned = 1, 2
        token = served.ask()
        served.pass_time(19)
        assert served.requests.answer_to(token) is None
        served.pass_time(3)
        served.job.stream.planned = None
        self.assert_refused(served, token, "no batch committed within 20 s")

    def test_a_write_that_does_not_end_in_time(self, make: Callable[..., Served]) -> None:
        served = make(at_once=False, timeout=20, tolerable_failed_checkpoints=0)
        served.job.stream.committed = 1
        token = served.ask()
        served.pass_time(22)
        served.job.executor.let()
        served.job.executor.at_once = True
        self.assert_refused(served, token, "it was not complete within 20 s")

    def test_a_request_nobody_waits_for_any_more(self, make: Callable[..., Served]) -> None:
        served = make()
        served.job.stream.committed = 1
        token = served.ask(stop=True, wait=-1)
        served.pass_time(2)
        assert not served.server.stop_asked
        self.assert_refused(served, token, "older than its timeout")

    def test_a_withdrawn_request_is_left_alone(self, make: Callable[..., Served]) -> None:
        served = make()
        served.job.stream.committed = 1
        token = served.ask(stop=True)
        assert served.requests.withdraw(token, served.job.clock.time(), "changed my mind") is None
        served.pass_time(5)
        assert not served.completed
        assert not served.server.stop_asked

    def test_a_savepoint_whose_request_is_withdrawn_meanwhile_stays_and_is_told(
        self, make: Callable[..., Served], caplog: pytest.LogCaptureFixture
    ) -> None:
        served = make(at_once=False)
        served.job.stream.committed = 1
        token = served.ask()
        served.pass_time(2)
        assert served.requests.withdraw(token, served.job.clock.time(), "changed my mind") is None
        assert "stopped waiting" not in caplog.text
        served.job.executor.let()
        served.pass_time(2)
        (metadata,) = served.completed
        assert saved(PosixFileSystem(served.directory), metadata) == state(1)
        assert caplog.text.count("its asker had stopped waiting") == 1

    def test_a_storage_that_cannot_be_listed_harms_nobody(self, make: Callable[..., Served]) -> None:
        served = make()
        served.job.stream.committed = 1
        served.job.refuse("list")
        token = served.ask()
        served.pass_time(3)
        served.job.refuse()
        served.pass_time(1.1)
        assert served.holds(token) == 1

    def test_an_answer_that_cannot_be_written_is_owed_and_nothing_is_taken_twice(
        self, make: Callable[..., Served]
    ) -> None:
        served = make()
        served.job.stream.committed = 1
        token = served.ask()
        served.job.disk.plan = lambda operation: Fail() if operation.path.endswith(".answer") else None
        served.pass_time(5)
        assert served.requests.answer_to(token) is None
        tries = [operation for operation in served.job.disk.operations if operation.path.endswith(".answer")]
        assert 2 <= len(tries) < 20, "and the storage is not asked all the time"
        served.job.refuse()
        served.pass_time(1.1)
        assert served.holds(token) == 1
        assert len(served.completed) == 1


class TestDamagedAndHostile:
    """Whoever can write to the storage can put any bytes there: the job goes on, and takes the next savepoint."""

    def put(self, served: Served, data: bytes) -> str:
        token = "d" * 32
        served.job.memory.files[f"{JOB}/control/requests/r-{token}"] = data
        return token

    def whole(self, served: Served, **members: object) -> bytes:
        now = served.job.clock.time()
        request = SavepointRequest("d" * 32, str(served.directory), stop=False, asked_at=now, until=now + 3600)
        return resealed(encode_record(request, f"{JOB}/control/requests/r-{'d' * 32}"), **members)

    def refused(self, served: Served, token: str) -> Answer:
        served.job.stream.committed = 1
        served.pass_time(5)
        answer = served.answer(token)
        assert answer.savepoint is None
        assert served.completed == []
        assert not served.server.stop_asked
        asked = served.ask()
        served.pass_time(5)
        assert served.holds(asked) == 1
        return answer

    def test_as_it_is_the_request_would_be_carried_out(self, make: Callable[..., Served]) -> None:
        served = make()
        token = self.put(served, self.whole(served))
        served.job.stream.committed = 1
        served.pass_time(5)
        assert served.holds(token) == 1

    @pytest.mark.parametrize(
        "members",
        [
            {"until": None},
            {"until": "later"},
            {"asked_at": float("nan")},
            {"until": float("inf")},
            {"stop": "yes"},
            {"stop": 1},
            {"target": ["x"]},
            {"target": "x\0y"},
            {"token": "e" * 32},
            {"token": None},
            {"place": "delays/control/requests/r-" + "d" * 32},
        ],
        ids=str,
    )
    def test_a_member_that_cannot_be(self, make: Callable[..., Served], members: dict[str, object]) -> None:
        served = make()
        answer = self.refused(served, self.put(served, self.whole(served, **members)))
        assert "cannot be believed" in answer.error
        assert answer.hint == "Ask again."

    @pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff", b"[" * 100_000], ids=["0", "1", "2", "3", "4"])
    def test_bytes_that_are_no_request(self, make: Callable[..., Served], data: bytes) -> None:
        served = make()
        assert "cannot be believed" in self.refused(served, self.put(served, data)).error

    def test_a_flipped_bit_in_the_token_is_answered_once(self, make: Callable[..., Served]) -> None:
        """A savepoint was taken each second, because none of them answered the request."""
        served = make()
        data = self.whole(served)
        at = data.index(b"d" * 32, data.index(b'"token"'))
        self.refused(served, self.put(served, data[:at] + b"e" + data[at + 1 :]))
        assert len(served.completed) == 1

    @pytest.mark.parametrize("target", ["s3://[x", "nosuch://x/y", "/dev/null/x", "~nosuchuser/x", "a" * 5000])
    @pytest.mark.parametrize("stop", [False, True])
    def test_a_target_that_cannot_be_is_answered_and_stops_nothing(
        self, make: Callable[..., Served], target: str, *, stop: bool
    ) -> None:
        served = make()
        assert self.refused(served, self.put(served, self.whole(served, target=target, stop=stop))).error


class TestStopping:
    def test_the_query_is_stopped_first_then_the_last_batch_is_saved(self, make: Callable[..., Served]) -> None:
        served = make(interval="1 h")
        served.job.stream.committed, served.job.stream.planned = 4, 5
        token = served.ask(stop=True)
        served.pass_time(0.1)
        assert served.server.stop_asked
        assert served.job.stream.pinned == []
        served.job.coordinator.finish()
        served.server.finish()
        assert served.requests.answer_to(token) is None, "who asked would act on it, and the end is not on record"
        assert len(served.requests.open()) == 1, "a run that goes on after a crash stops with a savepoint, too"
        served.server.job_ended()
        assert served.holds(token) == 4
        assert [metadata.batch for metadata in served.job.run.store.retained] == [4]

    def test_a_job_without_a_batch_is_not_stopped(self, make: Callable[..., Served]) -> None:
        served = make(timeout=20)
        token = served.ask(stop=True)
        served.pass_time(22)
        assert not served.server.stop_asked
        assert "no batch committed" in served.answer(token).error

    @pytest.mark.parametrize("meanwhile", [0, 5])
    def test_a_request_that_is_withdrawn_before_the_first_batch_commits_stops_nothing(
        self, make: Callable[..., Served], meanwhile: float
    ) -> None:
        """Ctrl-C of the asker comes after the request is taken up, and just before the commit or long before it."""
        served = make()
        token = served.ask(stop=True)
        served.pass_time(2)
        assert served.requests.withdraw(token, served.job.clock.time(), "the asker was interrupted") is None
        served.pass_time(meanwhile)
        served.job.stream.committed, served.job.stream.planned = 0, 1
        served.pass_time(5)
        assert not served.server.stop_asked
        assert served.told[-1] == (token, RequestState.ABANDONED, "the asker was interrupted")

    @pytest.mark.parametrize("meanwhile", [0, 5])
    def test_a_request_that_nobody_waits_for_when_the_first_batch_commits_stops_nothing(
        self, make: Callable[..., Served], meanwhile: float
    ) -> None:
        """The asker was killed, and has withdrawn nothing."""
        served = make(timeout=600)
        token = served.ask(stop=True, wait=20)
        served.pass_time(19.5)
        assert served.requests.answer_to(token) is None
        served.job.clock.advance(1)
        if meanwhile:
            served.pass_time(meanwhile)
        served.job.stream.committed, served.job.stream.planned = 0, 1
        served.pass_time(5)
        assert not served.server.stop_asked
        assert "older than its timeout" in served.answer(token).error

    def test_a_withdrawn_request_makes_room_for_the_next(self, make: Callable[..., Served]) -> None:
        served = make(interval="1 h")
        served.job.stream.committed, served.job.stream.planned = 4, 5
        first = served.ask(1)
        served.pass_time(2)
        assert served.requests.withdraw(first, served.job.clock.time(), "changed my mind") is None
        second = served.ask(2, stop=True)
        served.pass_time(2)
        assert served.server.stop_asked, "it does not wait for the savepoint that nobody wants"
        served.server.finish()
        served.server.job_ended()
        assert served.holds(second) == 4
        assert len(served.completed) == 1

    def test_if_the_savepoint_fails_the_job_fails_over_and_who_asked_is_told(self, make: Callable[..., Served]) -> None:
        served = make()
        served.job.stream.committed = 4
        token = served.ask(stop=True)
        served.pass_time(0.1)
        served.job.stream.error = StorageError("the disk is full")
        with pytest.raises(SavepointFailed, match="the disk is full") as caught:
            served.server.finish()
        assert caught.value.recoverable
        assert served.answer(token).error == "the disk is full"

    def test_if_the_last_checkpoint_fails_who_asked_is_told(self, make: Callable[..., Served]) -> None:
        served = make()
        served.job.stream.committed = 4
        token = served.ask(stop=True)
        served.pass_time(0.1)
        served.server.refuse_to_stop(SavepointFailed("The last batch, 4, could not be checkpointed"))
        assert "could not be checkpointed" in served.answer(token).error

    def test_a_job_that_ends_by_itself_answers_what_is_open(self, make: Callable[..., Served]) -> None:
        served = make(at_once=False)
        served.job.stream.committed = 4
        waiting, stopping = served.ask(1), served.ask(2, stop=True)
        served.pass_time(0.1)
        served.job.executor.let()
        served.server.finish()
        assert served.answer(waiting).savepoint is not None
        served.server.job_ended()
        assert served.holds(stopping) == 4

    def test_a_job_that_was_taken_over_after_its_end_answers_nothing(
        self, make: Callable[..., Served], pins: Pins
    ) -> None:
        served = make()
        served.job.stream.committed = 4
        token = served.ask(stop=True)
        served.pass_time(0.1)
        served.server.finish()
        Run(served.job.memory, Ledger(), pins).start()
        served.server.job_ended()
        assert served.requests.answer_to(token) is None


class TestDrivers:
    def test_the_next_driver_takes_up_what_a_dead_one_left(self, make: Callable[..., Served]) -> None:
        served = make(at_once=False)
        served.job.stream.committed = 4
        token = served.ask()
        served.pass_time(0.1)
        served.job.disk.die()
        run = Run(served.job.memory, Ledger(), served.job.run.pins, served.job.clock).start()
        served.job.executor.at_once = True
        served.serve(run, served.job.memory)
        served.pass_time(1)
        assert served.holds(token) == 4
        assert served.completed[-1].epoch == 2

    def test_a_driver_that_gives_up_leaves_the_request_open(
        self, make: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(attempts, "_ABANDON", 0.0)
        served = make(at_once=False)
        served.job.stream.committed = 4
        served.ask()
        served.pass_time(0.1)
        served.server.abandon()
        assert len(served.requests.open()) == 1
        served.job.executor.let()
        assert not list(served.directory.rglob("_metadata")), "the next driver takes it, and nobody the other one"

    def test_a_driver_that_gives_up_answers_with_what_is_published_already(self, make: Callable[..., Served]) -> None:
        served = make(at_once=False)
        served.job.stream.committed = 4
        token = served.ask()
        served.pass_time(0.1)
        served.job.executor.let()
        served.server.abandon()
        assert served.holds(token) == 4
        assert [item.batch for item in served.completed] == [4]
        assert not served.requests.open(), "the next driver would take it once more"

    def test_a_fenced_driver_that_gives_up_answers_nothing(self, make: Callable[..., Served], pins: Pins) -> None:
        served = make(at_once=False)
        served.job.stream.committed = 4
        served.ask()
        served.pass_time(0.1)
        served.job.executor.let()
        Run(served.job.memory, Ledger(), pins).start()
        served.server.abandon()
        assert len(served.requests.open()) == 1

    def test_a_fenced_driver_answers_nothing(self, make: Callable[..., Served], pins: Pins) -> None:
        served = make(default=False)
        served.ask()
        Run(served.job.memory, Ledger(), pins).start()
        with pytest.raises(Fenced):
            served.pass_time(1)
        assert len(served.requests.open()) == 1

    def test_answers_nobody_came_for_are_forgotten(self, make: Callable[..., Served]) -> None:
        served = make()
        served.job.stream.committed = 4
        token = served.ask()
        served.pass_time(1)
        now = served.job.clock.time()
        served.requests.forget_old(now + 3000)
        assert served.requests.answer_to(token) is not None
        served.requests.forget_old(now + 4000)
        assert not served.job.memory.list(f"{JOB}/control/requests")

    def test_a_damaged_answer_is_forgotten_with_its_request(self, make: Callable[..., Served]) -> None:
        served = make()
        served.job.stream.committed = 4
        token = served.ask()
        served.pass_time(1)
        other = served.ask(2)
        served.job.memory.replace(f"{JOB}/control/requests/r-{token}.answer", b"damaged")
        served.requests.forget_old(served.job.clock.time())
        assert [request.token for request in served.requests.open()] == [other]
