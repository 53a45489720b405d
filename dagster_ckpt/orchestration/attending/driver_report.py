"""What a run that attends a driver reports: what is on record of the job, and what the driver says by Dagster Pipes.

What must not be lost or doubled comes from the records, whatever the driver says.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from dagster_ckpt.checkpoint import (
    CheckpointCatalog,
    CheckpointMetadata,
    Choice,
    Claim,
    Discarded,
    DriverMessages,
    End,
    FailedCheckpoints,
    Heartbeat,
    StartTrace,
)
from dagster_ckpt.clock import Clock
from dagster_ckpt.errors import CheckpointNotFound, CorruptCheckpoint
from dagster_ckpt.orchestration.reporting import CheckpointReporter
from dagster_ckpt.shown_text import redacted

__all__ = ["DriverReport", "Told", "Trouble"]

#: Seconds between two lists of the checkpoints while the driver tells of no new checkpoint; and in a bucket, once what
#: was deleted after the newest checkpoint has been listed.
_LIST, _SELDOM = 30.0, 7200.0
#: Seconds after which what the driver says is in the bucket.
_SAID_AFTER = 12.0
#: Seconds for which the last words of a driver that has ended the job are waited for, and between two looks for them;
#: and for which they are tried again if they could not be told.
_LAST_WORDS, _TURN, _AGAIN = 15.0, 0.2, 2.0
#: Seconds for which a look tells what the driver has said, and for which a message is tried that Dagster refuses.
_AT_MOST, _REFUSED = 1.0, 300.0


@dataclass(frozen=True)
class Told:
    """Whom an attendant tells, and asks, beside the reporter.

    Attributes:
        turn: called a few times a second; raises the interrupt of a run that Dagster counts as over.
        is_canceled: whether an interrupt that has just arrived means that the job is canceled.
        claimed: the driver has taken the job over, or begins another start.
        started: the query has started, by this choice.
        completed: the newest checkpoint that is retained, at each list of them; not one that the start has found.
        traced: where the seconds of a start went.
        failed: a checkpoint has failed, the last of so many.
        beaten: the driver's beat tells something new; whether a checkpoint is due.
        log: a line for the run's log, with its level.
        said: a message of Dagster Pipes from the driver; ``True`` for the last one.
    """

    turn: Callable[[], None]
    is_canceled: Callable[[], bool]
    claimed: Callable[[Claim], None]
    started: Callable[[Choice], None]
    completed: Callable[[CheckpointMetadata], None]
    traced: Callable[[StartTrace], None]
    failed: Callable[[FailedCheckpoints], None]
    beaten: Callable[[bool], None]
    log: Callable[[int, str], None]
    said: Callable[[str], bool | None]


class Trouble:
    """A trouble that each look may find, and that the run's log tells once.

    Args:
        log: takes a line for the run's log, with its level.

    Attributes:
        said: what is wrong, empty for nothing.
    """

    def __init__(self, log: Callable[[int, str], None]) -> None:
        self._log, self.said = log, ""

    def is_now(self, said: str) -> None:
        """Tell what is wrong, empty for nothing, unless the look before has told the same."""
        if said and said != self.said:
            self._log(logging.WARNING, said)
        self.said = said


class DriverReport:
    """Reports the checkpoints, starts and failures of one driver.

    Args:
        catalog: the job's checkpoints.
        driver: the run that the driver was submitted for.
        reporter: of the checkpoints.
        told: who is told of the rest.
        clock: of this host.
        wait: sleeps for so many seconds.
    """

    def __init__(
        self,
        catalog: CheckpointCatalog,
        driver: str,
        reporter: CheckpointReporter,
        told: Told,
        clock: Clock,
        wait: Callable[[float], object],
    ) -> None:
        self._catalog, self._records = catalog, catalog.records
        self._reporter, self._told, self._clock = reporter, told, clock
        self._claim: Claim | None = None
        self._choice: Choice | None = None
        #: The checkpoints listed last, by id: those are not read again, and a deleted one is told with its reason.
        self._seen: dict[int, CheckpointMetadata] = {}
        #: The newest checkpoint of the driver's beat, and the time, when the checkpoints were listed last.
        self._listed: tuple[object, float] = (None, float("-inf"))
        self._list_after = _LIST
        #: What the driver's beat has told of its checkpoints.
        self._beaten: object = None
        self._traced = 0
        #: The failed checkpoints of the driver's beat that were told last.
        self._failed: FailedCheckpoints | None = None
        self._trouble = Trouble(told.log)
        self._voice = _Voice(catalog, driver, told, clock, wait)

    def claimed(self, claim: Claim) -> None:
        """The driver has claimed an epoch: its first, or that of its next start after a failure."""
        self._claim, self._choice = claim, None
        self._told.claimed(claim)
        self._reporter.holds(claim.epoch)

    def look(self, heartbeat: Heartbeat | None) -> None:
        """Report what is new; ``heartbeat`` is the driver's, just read. A failed report is told of once."""
        trouble = ""
        try:
            self._report(heartbeat)
        except Exception as error:  # the job survives a failed report, and the next look reports
            trouble = f"The job could not be reported now: {redacted(str(error))}"
        self._trouble.is_now(trouble)
        self._voice.look(heartbeat)

    def _report(self, heartbeat: Heartbeat | None) -> None:
        claim = self._claim
        if claim is None:
            return
        if self._choice is None:
            choice = self._records.epochs.read_choice(claim.epoch)
            if choice is None:
                return
            self._told.started(choice)
            completed = self._catalog.completed(choice.job_id)[0]
            self._seen = {item.checkpoint_id: item for item in completed}
            self._tell_list(choice, self._reporter.began)
            self._choice = choice
        elif self._is_due(heartbeat):
            self._tell_list(self._choice, self._reporter.completed)
        self._reporter.tick()
        is_new = False
        if heartbeat is not None:
            beaten = heartbeat.completed, heartbeat.failed_checkpoints, heartbeat.due_since
            is_new = beaten != self._beaten
            if is_new:
                self._beaten = beaten
                self._told.beaten(heartbeat.due_since is not None)
        failed = None if heartbeat is None else heartbeat.failed_checkpoints
        if failed is not None and failed != self._failed:
            self._failed = failed
            self._told.failed(failed)
        # A trace is made at the first batch, before a checkpoint. A quiet stream may have no batch for days.
        if is_new or not self._catalog.filesystem.is_distant:
            self._tell_trace(claim)

    def _is_due(self, heartbeat: Heartbeat | None) -> bool:
        """Whether to list the checkpoints: the driver beats at each new checkpoint, and names it."""
        newest, now = None if heartbeat is None else heartbeat.completed, self._clock.monotonic()
        is_new = newest != self._listed[0]
        if not is_new and now - self._listed[1] < self._list_after:
            return False
        self._list_after = _LIST if is_new or not self._catalog.filesystem.is_distant else _SELDOM
        self._listed = newest, now
        return True

    def _tell_list(self, choice: Choice, report: Callable[[list[CheckpointMetadata]], None]) -> None:
        retained = self._list(choice)
        report(retained)
        if retained and retained[-1].checkpoint_id >= choice.first_id:  # a fork is there before its query runs
            self._told.completed(retained[-1])

    def _list(self, choice: Choice) -> list[CheckpointMetadata]:
        """The retained checkpoints, by (epoch, id); only those are read that are new since the last list."""
        numbers = set(self._catalog.numbers(choice.job_id))
        for deletion in self._records.deletions.pending():
            if deletion.job_id == choice.job_id:
                numbers.difference_update(deletion.checkpoints)
        seen = {}
        for number in numbers:
            with suppress(CheckpointNotFound, CorruptCheckpoint):  # not complete yet, void or broken
                seen[number] = self._seen.get(number) or self._catalog.load(choice.job_id, number)
        self._seen = seen
        quarantined = self._records.quarantine.names()
        retained = [item for item in seen.values() if item.reference not in quarantined]
        return sorted(retained, key=lambda item: item.key)

    def _tell_trace(self, claim: Claim) -> None:
        if self._traced < claim.epoch:
            for trace in self._records.starts.newest(1):
                if trace.epoch == claim.epoch:
                    self._traced = trace.epoch
                    self._told.traced(trace)

    def last(self, end: End | None = None) -> list[CheckpointMetadata]:
        """Report what is retained now, and why the others are gone; a failed report must not hide how the job ended."""
        self._voice.hear_out(0.0 if end is None else _LAST_WORDS)
        try:
            if self._claim is not None:
                self._tell_trace(self._claim)
            if self._choice is None:
                return []
            before = self._seen
            retained = self._list(self._choice)
            gone = before.keys() - self._seen.keys()
            why = "" if end is None else f"{end.status}: {end.reason}, and the cleanup policy deletes"
            were_discarded = end is not None and end.discarded
            discarded = [Discarded(before[number], why) for number in sorted(gone)] if were_discarded else []
            self._reporter.discarded(discarded, retained)
        except Exception as error:
            self._told.log(logging.WARNING, f"The last checkpoints could not be reported: {redacted(str(error))}")
            return []
        return retained


class _Voice:
    """What the driver says by Dagster Pipes.

    Args:
        catalog: the job's checkpoints.
        driver: the run that the driver was submitted for.
        told: who is told.
        clock: of this host.
        wait: sleeps for so many seconds.
    """

    def __init__(
        self, catalog: CheckpointCatalog, driver: str, told: Told, clock: Clock, wait: Callable[[float], object]
    ) -> None:
        self._filesystem, self._records, self._driver = catalog.filesystem, catalog.records, driver
        self._told, self._clock, self._wait = told, clock, wait
        self._messages: DriverMessages | None = None
        self._is_found = self._has_spoken = self._has_said_all = False
        #: What the driver's beat has told, and when the messages are read again.
        self._beaten: object = None
        self._due_at = 0.0
        #: When Dagster has refused the next message for the first time.
        self._refused_at: float | None = None
        self._trouble = Trouble(told.log)

    def look(self, heartbeat: Heartbeat | None) -> None:
        """Tell what is new; a bucket is asked soon after the beat has news, and once in a timeout of the lease."""
        if heartbeat is not None and self._filesystem.is_distant:
            now, beaten = self._clock.monotonic(), (heartbeat.epoch, heartbeat.completed, heartbeat.failed_checkpoints)
            if beaten != self._beaten:
                self._beaten, self._due_at = beaten, min(self._due_at, now + _SAID_AFTER)
            if now < self._due_at:
                return
            self._due_at = now + heartbeat.lease.timeout
        trouble = ""
        try:
            self._hear()
        except Exception as error:  # the next look goes on where this one has ended
            self._due_at = self._clock.monotonic()
            trouble = f"What the driver says could not be told now: {redacted(str(error))}"
        self._trouble.is_now(trouble)

    def hear_out(self, seconds: float) -> None:
        """Tell what the driver still says within so many seconds, or until its last word; never fails."""
        began = self._clock.monotonic()
        while True:
            self.look(None)
            if self._trouble.said:
                seconds = max(seconds, _AGAIN)
            is_over = self._has_said_all or not (self._has_spoken or self._trouble.said)
            if is_over or self._clock.monotonic() - began >= seconds:
                return
            self._wait(_TURN)

    def _hear(self) -> None:
        if not self._is_found:
            latest = self._records.submissions.latest()  # also one that the run has just withdrawn
            is_own = latest.submission is not None and latest.submission.run_id == self._driver
            self._messages = self._records.messages(latest.number) if is_own else None
            self._is_found = True
        until: float | None = None
        for message in () if self._messages is None else self._messages.new():
            now = self._clock.monotonic()
            if until is not None and now >= until:  # this run has more to do, and the next look goes on
                self._due_at = now
                return
            until = now + _AT_MOST if until is None else until
            self._has_spoken = True
            self._has_said_all = self._is_told(message)

    def _is_told(self, message: str) -> bool:
        """Tell a message; whether it is the last one. One that Dagster refuses for long is given up."""
        try:
            is_last = self._told.said(message) is True
        except Exception:
            now = self._clock.monotonic()
            self._refused_at = now if self._refused_at is None else self._refused_at
            if now - self._refused_at < _REFUSED:
                raise
            self._told.log(logging.WARNING, "Dagster refuses what the driver has reported, and it is given up.")
            is_last = False
        self._refused_at = None
        return is_last
