"""The asker's side: ask a running job for a savepoint or a checkpoint; a job that does not run is copied."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import timedelta

from dagster_ckpt.checkpoint.catalog import CheckpointCatalog, check_label, find_newest, savepoint_storage
from dagster_ckpt.checkpoint.control import NO_LABEL, Answer, Label, SavepointRequest, TakenSavepoint
from dagster_ckpt.checkpoint.format import CheckpointMetadata
from dagster_ckpt.checkpoint.taking.savepoint_files import copy_to_savepoint
from dagster_ckpt.clock import Clock, iso
from dagster_ckpt.config import parse_duration
from dagster_ckpt.errors import (
    CheckpointError,
    CheckpointNotFound,
    CorruptCheckpoint,
    InvalidConfiguration,
    SavepointFailed,
    StorageError,
)
from dagster_ckpt.filesystem import open_filesystem

__all__ = ["ask_checkpoint", "take_savepoint"]

#: Makes of 2026-11-23T10:00:00 what a name can hold: 20261123-100000.
_PLAIN = str.maketrans({"-": None, ":": None, "T": "-"})
#: Seconds between two looks for the answer.
_LOOK = 0.5
#: Seconds between two reports of progress.
_REPORT = 5.0
#: Seconds after the end of a stopped job in which the driver's answer may still come.
_AFTER_END = 30.0


def take_savepoint(
    catalog: CheckpointCatalog,
    to: str | None,
    *,
    default: str | None,
    stop: bool,
    timeout: str | timedelta,
    clock: Clock,
    wait: Callable[[float], object],
    report: Callable[[str], object],
    label: Label = NO_LABEL,
) -> TakenSavepoint:
    """Take a savepoint of a job: the driver takes it while the job runs, else the newest checkpoint is copied.

    Args:
        catalog: the job's checkpoints.
        to: the requested directory for savepoints, if any.
        default: the configured directory, if any; a running job has its own.
        stop: stop the job with the savepoint.
        timeout: how long to wait for a running job, such as ``"10 min"``.
        clock: wall and monotonic time.
        wait: sleeps for so many seconds.
        report: called with the progress, in words.
        label: what the savepoint is called.

    Raises:
        SavepointFailed: the savepoint could not be taken, or not in time, or another savepoint has the name.
        InvalidConfiguration: there is no directory for savepoints, no running job to stop, or the timeout or the
            label is invalid.
        CheckpointNotFound: the job does not run and has no checkpoint.
        CorruptCheckpoint: the checkpoint to be copied is not what was written.
        StorageError: the storage failed.
    """
    seconds = _seconds(timeout)
    check_label(label)
    if label.series is not None and label.name is None:
        label = replace(label, name=f"{label.series}-{iso(clock.time())[:19].translate(_PLAIN)}")
    heartbeat, dead = catalog.records.heartbeat.watched(clock, wait)
    if heartbeat is not None and dead is None:
        location = to or default
        # A relative path could lead to another place where the driver runs.
        target = None if location is None else open_filesystem(location, like=catalog.filesystem).url
        report(f"Asking run {heartbeat.run_id} (epoch {heartbeat.epoch}) for a savepoint{' to stop with' * stop}.")
        now = clock.time()
        request = SavepointRequest(uuid.uuid4().hex, target, stop, now, now + seconds, **asdict(label))
        return _Asker(catalog, request, seconds, clock, wait, report).take()
    if stop:
        raise InvalidConfiguration(
            f"Job {catalog.job_name!r} cannot be stopped: no run of it is alive.",
            hint=f"`dagster-ckpt savepoint {catalog.job_name} {catalog.filesystem.path_option}` makes a savepoint of "
            "the job's newest completed checkpoint.",
        )
    storage = savepoint_storage(to, default, like=catalog.filesystem)
    newest = find_newest(catalog)
    if newest.metadata is None:
        raise CheckpointNotFound(
            f"Job {catalog.job_name!r} does not run and has nothing to save: {newest.reason}.",
            hint=f"Launch it, or see `dagster-ckpt list {catalog.job_name} {catalog.filesystem.path_option}`.",
        )
    if label.series is not None and (same := _of_series(catalog, label.series, newest.metadata)) is not None:
        report(f"No run is alive, and {same.reference} holds {newest.metadata.reference} already.")
        return TakenSavepoint.of(same)
    past = f" {', '.join(newest.passed_over)}, which is newer, is in quarantine." if newest.passed_over else ""
    report(f"No run is alive: copying {newest.metadata.reference}.{past}")
    copy = copy_to_savepoint(
        catalog,
        newest.metadata,
        storage,
        clock,
        lambda progress: report(f"{progress}."),
        label,
    )
    return TakenSavepoint.of(copy)


def _of_series(catalog: CheckpointCatalog, series: str, checkpoint: CheckpointMetadata) -> CheckpointMetadata | None:
    """The savepoint of a series that was made of this checkpoint, if there is one."""
    for named in catalog.records.taken_savepoints.all_named():
        if (named.series, named.job_id, named.key) == (series, checkpoint.job_id, checkpoint.key):
            with contextlib.suppress(CheckpointNotFound, CorruptCheckpoint):
                return catalog.resolve(named.reference)
    return None


def ask_checkpoint(
    catalog: CheckpointCatalog,
    *,
    timeout: str | timedelta,
    clock: Clock,
    wait: Callable[[float], object] | None,
    report: Callable[[str], object],
) -> TakenSavepoint | None:
    """Ask a running job for a checkpoint before its turn, of what is committed now.

    Args:
        catalog: the job's checkpoints.
        timeout: how long the request holds, such as ``"10 min"``.
        clock: wall and monotonic time.
        wait: sleeps for so many seconds, until the checkpoint is complete; ``None`` to return at once.
        report: called with the progress, in words.

    Returns:
        the checkpoint; ``None`` if it is not waited for.

    Raises:
        SavepointFailed: the checkpoint could not be taken, or not in time.
        InvalidConfiguration: no run of the job is alive, or the timeout is invalid.
        StorageError: the storage failed.
    """
    seconds = _seconds(timeout)
    heartbeat, dead = catalog.records.heartbeat.watched(clock, wait or time.sleep)
    if heartbeat is None or dead is not None:
        raise InvalidConfiguration(
            f"Job {catalog.job_name!r} cannot take a checkpoint: no run of it is alive.",
            hint=f"See `dagster-ckpt list {catalog.job_name} {catalog.filesystem.path_option}` for those that it has.",
        )
    report(f"Asking run {heartbeat.run_id} (epoch {heartbeat.epoch}) for a checkpoint.")
    now = clock.time()
    request = SavepointRequest(uuid.uuid4().hex, None, False, now, now + seconds, checkpoint=True)
    asker = _Asker(catalog, request, seconds, clock, wait or time.sleep, report)
    if wait is None:
        asker.ask()
        return None
    return asker.take()


def _seconds(timeout: str | timedelta) -> float:
    try:
        return parse_duration(timeout).total_seconds()
    except ValueError as error:
        raise InvalidConfiguration(
            f"The timeout cannot be used: {error}.", hint="Durations are written like '10 s' or '10 min'."
        ) from None


class _Asker:
    def __init__(
        self,
        catalog: CheckpointCatalog,
        request: SavepointRequest,
        timeout: float,
        clock: Clock,
        wait: Callable[[float], object],
        report: Callable[[str], object],
    ) -> None:
        self._catalog = catalog
        self._requests = catalog.records.savepoint_requests
        self._request = request
        self._timeout = timeout
        self._clock = clock
        self._wait = wait
        self._report = report

    def ask(self) -> None:
        """Record the request, and wait for no answer."""
        try:
            self._requests.ask(self._request)
        except BaseException as error:
            self._withdrawn_for(error)

    def take(self) -> TakenSavepoint:
        try:
            self._requests.ask(self._request)
            answer = self._answer()
        except BaseException as error:
            answer = self._withdrawn_for(error)
        with contextlib.suppress(OSError):  # the next start of the job removes leftover records
            self._requests.forget(self._request.token)
        if answer.savepoint is None:
            raise SavepointFailed(f"{self._subject} was not taken: {answer.error}", hint=answer.hint)
        return answer.savepoint

    def _withdrawn_for(self, error: BaseException) -> Answer:
        """Withdraw the request: one that nobody waits for must not stop the job later.

        Returns:
            the answer that came before the storage failed.

        Raises:
            BaseException: the error; an interrupt, too, whatever has been answered.
        """
        reason = "the asker was interrupted"
        if isinstance(error, CheckpointError):
            reason = f"the asker failed: {error.message}"
        with contextlib.suppress(CheckpointError, OSError):  # the first error is what people are told
            answer = self._requests.withdraw(self._request.token, self._clock.time(), reason)
            if answer is not None and isinstance(error, StorageError):
                return answer
        raise error

    @property
    def _subject(self) -> str:
        return f"The {self._request.kind} of {self._catalog.job_name!r}"

    def _answer(self) -> Answer:
        began = reported = self._clock.monotonic()
        over = None
        has_begun = False
        while (answer := self._requests.answer_to(self._request.token)) is None:
            now = self._clock.monotonic()
            if not has_begun and self._requests.begun_by(self._request.token):
                has_begun = True
                self._report("The job has taken the request up.")
            if (ended := self._ended()) is not None:
                # The answer to a request that stops the job comes after the job's end is recorded.
                over = now if over is None else over
                if not self._request.stop or now - over >= _AFTER_END:
                    hint = "Its newest checkpoint can be saved: ask for a savepoint again, without stop."
                    return self._give_up(f"the job ended meanwhile: {ended}", hint)
            if now - began >= self._timeout:
                return self._give_up(
                    f"no answer within {self._timeout:g} s",
                    "The job waits for a batch to commit, restarts, or has a slow storage: see its run. Then ask "
                    "again, with a longer timeout.",
                )
            if now - reported >= _REPORT:
                reported = now
                self._report(f"Waiting for {now - began:.0f} s.")
            self._wait(_LOOK)
        return answer

    def _give_up(self, reason: str, hint: str) -> Answer:
        """Withdraw the request and raise, unless the answer came at this moment."""
        now = self._clock.time()
        if (answer := self._requests.withdraw(self._request.token, now, reason)) is not None:
            return answer
        raise SavepointFailed(f"{self._subject} was not taken: {reason}.", hint=hint)

    def _ended(self) -> str | None:
        """How the job ended for good; ``None`` while it runs or is going to be resumed."""
        end = self._catalog.records.epochs.read_end(self._catalog.records.epochs.highest())
        return None if end is None or not end.is_final else f"{end.status}, {end.reason}"
