"""The asker's side of savepoints: requests to a run that is alive, and copies where none is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.control.epochs import End
from dagster_ckpt.checkpoint.control.heartbeat import Heart, HeartbeatFile
from dagster_ckpt.checkpoint.control.savepoint_requests import TakenSavepoint
from dagster_ckpt.checkpoint.taking.requests.ask_savepoint import take_savepoint
from dagster_ckpt.errors import (
    CheckpointNotFound,
    InvalidConfiguration,
    PublishUnknown,
    SavepointFailed,
    StorageError,
)
from dagster_ckpt.testing import Action, FailAfter, FaultInjectingFileSystem, Operation
from tests.helpers.checkpoint.driver import JOB, Pins, state
from tests.helpers.checkpoint.serving import Served


class TestAsking:
    @pytest.fixture
    def heart(self, make: Callable[..., Served]) -> Served:
        """A job whose run is alive: this process."""
        served = make()
        served.job.stream.committed = 4
        Heart(HeartbeatFile(served.job.memory, JOB), served.job.clock, epoch=1, run_id="r")._once()
        return served

    def take(self, served: Served, wait: Callable[[float], None], **options: Any) -> TakenSavepoint:
        asked = {"default": None, "stop": False, "timeout": "1 min", **options}
        return take_savepoint(
            served.job.run.catalog, asked.pop("to", None), clock=served.job.clock, wait=wait, report=self.told, **asked
        )

    def told(self, text: str) -> None:
        self.reports = [*getattr(self, "reports", []), text]

    def test_a_running_job_is_asked_and_its_answer_is_read(self, heart: Served) -> None:
        taken = self.take(heart, heart.pass_time)
        assert taken.pointer == heart.completed[0].location
        assert taken.batch == 4
        assert not heart.job.memory.list(f"{JOB}/control/requests"), "asker and driver leave nothing"

    def test_that_the_job_has_taken_it_up_is_told_once(self, heart: Served) -> None:
        heart.job.executor.at_once = False
        looks = 0

        def wait(seconds: float) -> None:
            nonlocal looks
            looks += 1
            heart.pass_time(seconds)
            if looks == 25:
                heart.job.executor.let()

        self.take(heart, wait)
        asking, *others = self.reports
        assert asking.startswith("Asking run r (epoch 1) for a savepoint")
        assert others == ["The job has taken the request up.", "Waiting for 5 s.", "Waiting for 10 s."]

    def test_the_error_is_the_drivers(self, heart: Served) -> None:
        heart.job.stream.error = StorageError("the disk is full", hint="Empty it.")
        with pytest.raises(SavepointFailed, match="was not taken: the disk is full") as caught:
            self.take(heart, heart.pass_time)
        assert caught.value.hint == "Empty it."

    def test_who_stops_waiting_withdraws(self, heart: Served) -> None:
        with pytest.raises(SavepointFailed, match="no answer within 60 s"):
            self.take(heart, heart.job.clock.advance, stop=True)
        waited = [float(text.split()[2]) for text in self.reports if text.startswith("Waiting for ")]
        assert 0 < waited[0] <= waited[-1] <= 60
        heart.pass_time(3)
        assert not heart.completed
        assert not heart.server.stop_asked

    def test_an_interrupt_withdraws(self, heart: Served) -> None:
        def interrupted(seconds: float) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            self.take(heart, interrupted, stop=True)
        assert not heart.requests.open()

    def test_a_job_that_ends_meanwhile_is_not_waited_for(self, heart: Served) -> None:
        def end(seconds: float) -> None:
            heart.job.run.catalog.records.epochs.record_end(
                1, End("CANCELED", "terminated", discarded=False, ended_at="now")
            )

        with pytest.raises(SavepointFailed, match="the job ended meanwhile: CANCELED, terminated"):
            self.take(heart, end)
        assert not heart.requests.open()

    def test_who_stopped_the_job_is_told_after_its_end(self, heart: Served) -> None:
        def stop(seconds: float) -> None:
            if not heart.server.stop_asked:
                heart.pass_time(seconds)
            elif not heart.completed:
                heart.server.finish()
                heart.job.run.catalog.records.epochs.record_end(
                    1, End("FINISHED", "stopped", discarded=False, ended_at="now")
                )
            else:
                heart.server.job_ended()

        assert self.take(heart, stop, stop=True).pointer == heart.completed[0].location

    def test_who_stopped_a_job_that_ended_otherwise_does_not_wait_for_ever(self, heart: Served) -> None:
        def end(seconds: float) -> None:
            heart.job.clock.advance(seconds)
            heart.job.run.catalog.records.epochs.record_end(1, End("FAILED", "broken", discarded=False, ended_at="now"))

        with pytest.raises(SavepointFailed, match="the job ended meanwhile: FAILED, broken"):
            self.take(heart, end, stop=True, timeout="1 h")
        assert not heart.requests.open()

    def test_a_request_whose_reply_was_lost_is_withdrawn(self, heart: Served) -> None:
        """Nobody waits for its answer, so it must not stop the job."""
        requests = f"{JOB}/control/requests"

        def lose_the_reply(operation: Operation) -> Action | None:
            asks = operation.name == "create" and operation.path.startswith(requests)
            return FailAfter() if asks and not operation.path.endswith(".answer") else None

        heart.job.run.catalog = CheckpointCatalog(FaultInjectingFileSystem(heart.job.memory, lose_the_reply), JOB)
        with pytest.raises(PublishUnknown):
            self.take(heart, self.never, stop=True)
        assert not heart.requests.open()
        heart.pass_time(3)
        assert not heart.server.stop_asked

    def test_a_job_that_does_not_run_is_copied(self, make: Callable[..., Served], pins: Pins, tmp_path: Path) -> None:
        served = make()
        served.job.run.checkpoint(state(7), 7)
        taken = self.take(served, self.never, to=str(tmp_path / "here"))
        assert (taken.batch, Path(taken.pointer).parent) == (7, tmp_path / "here")
        with pytest.raises(InvalidConfiguration, match="no run of it is alive"):
            self.take(served, self.never, stop=True)
        with pytest.raises(InvalidConfiguration, match="No savepoint location given"):
            self.take(served, self.never)

    def test_a_job_without_a_checkpoint(self, make: Callable[..., Served]) -> None:
        with pytest.raises(CheckpointNotFound, match="has nothing to save"):
            self.take(make(), self.never, default="somewhere")

    def test_a_timeout_that_is_no_duration(self, make: Callable[..., Served]) -> None:
        with pytest.raises(InvalidConfiguration, match="'soon' is not a duration"):
            self.take(make(), self.never, timeout="soon")

    def never(self, seconds: float) -> None:
        raise AssertionError(f"waited {seconds} s for nobody")
