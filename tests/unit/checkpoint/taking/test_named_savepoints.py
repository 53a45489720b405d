"""Names, notes and series of savepoints, the states of a request, and checkpoints that are asked for."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.catalog.newest import find_newest
from dagster_ckpt.checkpoint.catalog.savepoint_names import check_label
from dagster_ckpt.checkpoint.control.heartbeat import Heart, HeartbeatFile
from dagster_ckpt.checkpoint.control.savepoint_requests import RequestState, SavepointRequest, TakenSavepoint
from dagster_ckpt.checkpoint.control.taken_savepoints import Label
from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata
from dagster_ckpt.checkpoint.taking.requests.ask_savepoint import ask_checkpoint, take_savepoint
from dagster_ckpt.errors import CheckpointNotFound, InvalidConfiguration, SavepointFailed, StorageError
from dagster_ckpt.filesystem import PosixFileSystem
from dagster_ckpt.testing import Crash, ProcessDied
from dagster_ckpt.testing.crashes import at_operation
from tests.helpers.checkpoint.coordinating import Job
from tests.helpers.checkpoint.driver import JOB, Ledger, Pins, Run, state
from tests.helpers.checkpoint.memory import MemoryFileSystem
from tests.helpers.checkpoint.serving import Served

UPGRADE = Label("before-upgrade", "the last one of release 1")


@pytest.fixture
def served(make: Callable[..., Served]) -> Served:
    """A job whose run is alive: this process."""
    served = make(interval="1 h", min_pause="1 h")
    served.job.stream.committed = 4
    Heart(HeartbeatFile(served.job.memory, JOB), served.job.clock, epoch=1, run_id="r")._once()
    return served


def take(served: Served, label: Label, **options: Any) -> TakenSavepoint:
    asked = {"wait": served.pass_time, "to": None, **options}
    return take_savepoint(
        served.job.run.catalog,
        asked.pop("to"),
        default=None,
        stop=False,
        timeout="1 min",
        clock=served.job.clock,
        report=lambda _: None,
        label=label,
        **asked,
    )


def test_a_name_is_in_the_manifest_and_leads_to_the_savepoint(served: Served) -> None:
    taken = take(served, UPGRADE)
    assert (taken.name, taken.note) == ("before-upgrade", UPGRADE.note)
    found = served.job.run.catalog.resolve("savepoint:before-upgrade")
    assert (found.given_name, found.note, found.reference) == ("before-upgrade", UPGRADE.note, taken.pointer)


def test_a_name_is_given_once_while_its_savepoint_is_there(served: Served) -> None:
    first = take(served, UPGRADE)
    with pytest.raises(SavepointFailed, match=f"The name 'before-upgrade' is that of {first.pointer}") as refused:
        take(served, UPGRADE)
    assert "Choose another name" in refused.value.hint
    assert len(served.completed) == 1, "it was looked at before anything was written"
    shutil.rmtree(first.pointer)
    with pytest.raises(CheckpointNotFound):
        served.job.run.catalog.resolve("savepoint:before-upgrade")
    second = take(served, UPGRADE)
    assert served.job.run.catalog.resolve("savepoint:before-upgrade").reference == second.pointer
    (named,) = served.job.run.catalog.records.taken_savepoints.all_named()
    assert (named.generation, named.reference) == (2, second.pointer)


def test_of_two_that_are_taken_under_one_name_at_once_one_fails_and_leaves_nothing(served: Served) -> None:
    """Both have looked before either was complete: then the exclusive creation of the name decides."""
    run, target = served.job.run, served.directory
    disk = PosixFileSystem(target)
    first = run.store.write_savepoint(run.begin(), run.pins.snapshot(1, state(1)), disk, label=UPGRADE)
    named = run.catalog.records.taken_savepoints.named("before-upgrade")
    assert named is not None
    with pytest.raises(SavepointFailed, match="asked for at the same time"):
        run.catalog.records.taken_savepoints.give(replace(named, reference="/elsewhere"), over=None)
    with pytest.raises(SavepointFailed, match="is that of"):
        run.store.write_savepoint(run.begin(), run.pins.snapshot(2, state(2)), disk, label=UPGRADE)
    assert run.catalog.resolve("savepoint:before-upgrade").reference == first.reference
    assert [path.name for path in target.iterdir()] == [first.name]


@pytest.mark.parametrize("stop", [False, True])
def test_the_next_driver_answers_wherever_the_one_before_has_died(pins: Pins, tmp_path: Path, stop: bool) -> None:
    """A savepoint that its own request has made does not have the name of another one."""
    reached = set()
    for number in itertools.count():
        directory = tmp_path / str(number)
        served = Served(Job(MemoryFileSystem(), pins), directory, str(directory))
        job = served.job
        job.stream.committed = 4
        now = job.clock.time()
        request = SavepointRequest(f"{1:032x}", None, stop, now, now + 3600, "before-upgrade")
        served.requests.ask(request)
        dies_at = len(job.disk.log) + number
        job.disk.plan = at_operation(dies_at, Crash())
        with suppress(ProcessDied):
            _serve(served, stop)
        if len(job.disk.log) <= dies_at:
            break
        reached.add(len(list(directory.rglob("_metadata"))))
        job.stream.committed = 5
        served.serve(Run(job.memory, Ledger(), pins, job.clock).start(), job.memory)
        _serve(served, stop)
        answer = served.answer(request.token)
        assert answer.savepoint is not None, answer.error
        assert answer.savepoint.name == "before-upgrade"
        found = CheckpointCatalog(job.memory, JOB).resolve("savepoint:before-upgrade")
        assert (found.reference, found.batch) == (answer.savepoint.pointer, answer.savepoint.batch)
        if not stop:
            assert len(list(directory.rglob("_metadata"))) == 1, "it is taken once"
        elif answer.answered_at == served.job.clock.time():
            assert found.batch == 5, "the job has gone on"
    assert reached == {0, 1}


def _serve(served: Served, stop: bool) -> None:
    served.pass_time(1)
    if stop and served.server.stop_asked:
        served.server.finish()
        served.server.job_ended()


def test_an_unknown_name_is_told_with_those_that_there_are(served: Served) -> None:
    take(served, UPGRADE)
    with pytest.raises(CheckpointNotFound, match=r"No savepoint of job .* has the name 'after'") as refused:
        served.job.run.catalog.resolve("savepoint:after")
    assert "before-upgrade" in refused.value.hint


@pytest.mark.parametrize("label", [Label("a b"), Label("../x"), Label(""), Label(note="two\nlines"), Label(series="/")])
def test_what_cannot_be_a_name_or_a_note_is_refused_before_anybody_is_asked(served: Served, label: Label) -> None:
    with pytest.raises(InvalidConfiguration, match="of a savepoint cannot be"):
        take(served, label)
    assert not served.job.memory.list(f"{JOB}/control/requests")


@pytest.mark.parametrize("label", [Label(note="\x1b[2J"), Label(note="two\nlines"), Label(note="x" * 1001)])
def test_a_driver_believes_no_request(served: Served, label: Label) -> None:
    """Whoever can write to the storage can ask, with any program."""
    token = "d" * 32
    served.requests.ask(SavepointRequest(token, None, False, 0, 1e11, note=label.note))
    served.pass_time(1.1)
    assert "The note of a savepoint cannot be used" in served.answer(token).error
    assert not served.completed


def test_a_series_leaves_room_for_the_date_in_its_names(served: Served) -> None:
    check_label(Label(series="s" * 84))
    with pytest.raises(InvalidConfiguration, match="The series of a savepoint cannot be"):
        check_label(Label(series="s" * 85))
    taken = take(served, Label(series="s" * 84))
    assert len(taken.name or "") == 100


def test_a_copy_of_a_job_that_does_not_run_has_a_name_too(make: Callable[..., Served], tmp_path: Path) -> None:
    served = make()
    served.job.run.checkpoint(state(7), 7)
    taken = take(served, UPGRADE, to=str(tmp_path / "here"))
    found = served.job.run.catalog.resolve("savepoint:before-upgrade")
    assert (found.reference, found.given_name, found.batch) == (taken.pointer, "before-upgrade", 7)
    before = len(served.job.disk.operations)
    with pytest.raises(SavepointFailed, match="is that of"):
        take(served, UPGRADE, to=str(tmp_path / "there"))
    assert not (tmp_path / "there").exists()
    assert not [asked for asked in served.job.disk.operations[before:] if asked.name == "fetch"], (
        "nothing was copied before"
    )


def test_the_states_of_a_request(served: Served) -> None:
    requests, now = served.requests, served.job.clock.time()

    def told(token: str) -> RequestState:
        (asked,) = [asked for asked in requests.unread() if asked.request.token == token]
        return asked.state(served.job.clock.time(), 1)

    served.job.stream.committed, served.job.stream.planned = 4, 5
    token = served.ask(1)
    assert told(token) is RequestState.PENDING
    served.pass_time(1.1)
    assert told(token) is RequestState.IN_PROGRESS, "it waits for the batch in flight"
    (asked,) = requests.unread()
    assert asked.state(now, 2) is RequestState.PENDING, "a newer driver takes it up again"
    begun = f"{JOB}/control/requests/r-{token}.begun"
    served.job.memory.files[begun], whole = b"{", served.job.memory.files[begun]
    assert told(token) is RequestState.PENDING, "a damaged record that is for people hides no request"
    served.job.memory.files[begun] = whole
    served.job.stream.committed, served.job.stream.planned = 5, None
    served.pass_time(1.1)
    assert told(token) is RequestState.COMPLETED
    requests.forget(token)
    assert not served.job.memory.list(f"{JOB}/control/requests")

    failing = served.ask(2)
    served.job.stream.error = StorageError("the disk is full")
    served.pass_time(1.1)
    assert told(failing) is RequestState.FAILED
    served.job.stream.error = None
    withdrawn = served.ask(3)
    requests.withdraw(withdrawn, now, "nobody waits")
    assert told(withdrawn) is RequestState.ABANDONED
    late = served.ask(4, wait=-1)
    assert told(late) is RequestState.ABANDONED
    states = [state for number, state, _ in served.told if number in {token, failing}]
    assert states == [RequestState.IN_PROGRESS] * 2 + [RequestState.FAILED]


def test_each_change_of_a_request_is_told_once(served: Served) -> None:
    requests, stream = served.requests, served.job.stream
    stream.committed, stream.planned = 4, 5
    first, second, late = served.ask(1), served.ask(2), served.ask(3, wait=-1)
    served.pass_time(5)
    assert served.told == [
        (first, RequestState.IN_PROGRESS, ""),
        (second, RequestState.PENDING, "another savepoint is being taken"),
        (late, RequestState.ABANDONED, "The request is older than its timeout."),
    ]
    assert served.answer(late).withdrawn
    served.told.clear()
    third = served.ask(4)
    requests.withdraw(third, served.job.clock.time(), "no answer within 1 s")
    requests.withdraw(second, served.job.clock.time(), "the asker was interrupted")
    served.pass_time(5)
    assert sorted(served.told) == sorted(
        [
            (second, RequestState.ABANDONED, "the asker was interrupted"),
            (third, RequestState.ABANDONED, "no answer within 1 s"),
        ]
    )
    stream.committed, stream.planned = 5, None
    served.pass_time(5)
    assert served.holds(first) == 5
    assert len(served.told) == 2, "the savepoint itself is told by its completion"


class TestACheckpointAtOnce:
    def ask(self, served: Served, wait: Callable[[float], object] | None) -> TakenSavepoint | None:
        return ask_checkpoint(
            served.job.run.catalog, timeout="1 min", clock=served.job.clock, wait=wait, report=lambda _: None
        )

    def live(self, served: Served) -> Callable[[float], None]:
        """The driver's turns, as :class:`RunningQuery` makes them; completions and failures are told on."""
        listener, at_once = served.job.listener, served.at_once
        completed, failed = listener.completed, listener.failed

        def tell_completed(metadata: CheckpointMetadata) -> None:
            at_once.completed(metadata)
            completed(metadata)

        def tell_failed(number: int, reason: str, consecutive: int) -> None:
            at_once.failed(reason)
            failed(number, reason, consecutive)

        listener.completed, listener.failed = tell_completed, tell_failed  # type: ignore[method-assign]

        def turn(seconds: float) -> None:
            until = served.job.clock.now + seconds
            while served.job.clock.now < until:
                served.job.clock.advance(min(served.job.coordinator.tick(), served.server.tick()) + 1e-9)

        return turn

    @pytest.mark.parametrize("waits", [False, True])
    def test_what_fails_for_its_asker_is_not_carried_out(
        self, served: Served, monkeypatch: pytest.MonkeyPatch, *, waits: bool
    ) -> None:
        """The request is there when the bell of a bucket fails."""
        requests = served.job.run.catalog.records.savepoint_requests
        turn = self.live(served)

        def fail(_: object, token: str) -> None:
            asked.append(token)
            raise StorageError("no bell")

        asked: list[str] = []
        monkeypatch.setattr(type(requests), "_ring", fail)
        with pytest.raises(StorageError, match="no bell"):
            self.ask(served, turn if waits else None)
        (answer,) = (requests.answer_to(token) for token in asked)
        assert answer is not None
        assert (answer.withdrawn, answer.error) == (True, "the asker failed: no bell")
        turn(30)
        assert requests.open() == []
        assert find_newest(served.job.run.catalog).metadata is None

    @pytest.mark.parametrize("waits", [True, False])
    def test_what_is_answered_before_the_storage_fails_has_not_failed(
        self, served: Served, monkeypatch: pytest.MonkeyPatch, *, waits: bool
    ) -> None:
        """The bell was heard, and its reply is lost."""
        turn = self.live(served)

        def ring(*_: object) -> None:
            turn(30)
            raise StorageError("no reply")

        monkeypatch.setattr(type(served.requests), "_ring", ring)
        taken = self.ask(served, turn if waits else None)
        newest = find_newest(served.job.run.catalog).metadata
        assert newest is not None
        assert taken == (TakenSavepoint.of(newest) if waits else None)

    def test_what_cannot_be_withdrawn_hides_no_failure(self, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: object) -> None:
            raise StorageError("away")

        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        self.live(served)
        monkeypatch.setattr(type(served.requests), "withdraw", fail)
        monkeypatch.setattr(type(served.requests), "_ring", interrupt)
        with pytest.raises(KeyboardInterrupt):
            self.ask(served, None)

    def test_neither_interval_nor_pause_holds_it_up(self, served: Served) -> None:
        turn = self.live(served)
        for batch, name in ((4, "chk-1"), (5, "chk-2")):
            served.job.stream.committed = batch
            taken = self.ask(served, turn)
            assert taken is not None
            assert (taken.batch, taken.pointer.rpartition("/")[2]) == (batch, name)
        assert served.job.now < 10, "the interval and the pause are an hour"
        turn(100)
        assert served.job.listener.done == ["chk-1", "chk-2"], "each request has one checkpoint"
        assert not served.job.memory.list(f"{JOB}/control/requests")

    def test_a_turn_that_is_due_later_stays(self, make: Callable[..., Served]) -> None:
        served = make(interval="1 min", min_pause="0 s")
        turn = self.live(served)
        served.job.stream.committed = 1
        served.requests.ask(SavepointRequest("c" * 32, None, False, 0, 1e11, checkpoint=True))
        turn(5)
        assert served.job.captures == [0]
        served.job.stream.committed = 2
        turn(58)
        assert served.job.captures == [0, 60]

    def test_where_nothing_is_new_the_newest_checkpoint_is_the_answer(self, served: Served) -> None:
        turn = self.live(served)
        first, second = self.ask(served, turn), self.ask(served, turn)
        assert first == second
        assert served.job.listener.done == ["chk-1"]

    def test_it_waits_for_the_batch_in_flight(self, served: Served) -> None:
        turn = self.live(served)
        served.job.stream.planned = 5
        assert self.ask(served, None) is None, "not waited for"
        turn(30)
        assert served.job.stream.pinned == []
        (asked,) = served.requests.unread()
        assert asked.state(served.job.clock.time(), 1) is RequestState.IN_PROGRESS
        served.job.stream.committed, served.job.stream.planned = 5, None
        turn(1.5)
        (asked,) = served.requests.unread()
        assert asked.answer is not None
        assert asked.answer.savepoint is not None
        assert asked.answer.savepoint.batch == 5

    def test_why_it_failed_is_the_answer(self, served: Served) -> None:
        turn = self.live(served)
        served.job.stream.error = StorageError("the disk is full")
        with pytest.raises(SavepointFailed, match=r"The checkpoint of .* was not taken: the disk is full"):
            self.ask(served, turn)

    def test_at_the_end_of_the_query_its_last_checkpoint_is_the_answer(self, served: Served) -> None:
        self.live(served)
        served.requests.ask(SavepointRequest("c" * 32, None, False, 0, 1e11, checkpoint=True))
        served.job.coordinator.finish()
        served.server.finish()
        answer = served.requests.answer_to("c" * 32)
        assert answer is not None
        assert answer.savepoint is not None
        assert answer.savepoint.batch == 4

    def test_without_a_run_nothing_is_asked(self, make: Callable[..., Served]) -> None:
        served = make()
        with pytest.raises(InvalidConfiguration, match="no run of it is alive"):
            self.ask(served, None)
        assert not served.job.memory.list(f"{JOB}/control/requests")
