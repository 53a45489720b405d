"""What a run does when the code of its job has changed: what the new version goes on from, and when it is taken back.

A run that takes a new version back ends as failed, and records to which version the job returns. Everything else
follows from the records at the next start, whoever makes it: the version before goes on from what it had, and the
version that was taken back is not run again by itself.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TypeVar

from dagster_ckpt.checkpoint import (
    CheckpointCatalog,
    Choice,
    Claim,
    CodeVersion,
    Upgrade,
    as_happened,
    find_newest,
    pending_upgrade,
    taken_back_since,
)
from dagster_ckpt.clock import Clock, iso, seconds_of
from dagster_ckpt.config import LATEST, NONE, RestoreRequest, UpgradeMode, format_duration
from dagster_ckpt.errors import CheckpointError, CorruptRecord, RestoreRefused, UpgradeFailed
from dagster_ckpt.shown_text import first_line
from dagster_ckpt.spark.job import StreamingJob
from dagster_ckpt.spark.live import LiveLocation

__all__ = ["Begun", "Upgrading", "starting_from"]

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

#: How often a run looks whether a new version has something to do, within the time that the version may take.
_LOOKS = 20
_MOST_OFTEN = 0.2


@dataclass(frozen=True, slots=True)
class Begun:
    """What a start does.

    Attributes:
        job: the job, with the function of the version that runs.
        request: what it begins with.
        code: for the record.
        why: for people; empty where the code is that of the checkpoint.
    """

    job: StreamingJob
    request: RestoreRequest
    code: CodeVersion
    why: str = ""


def starting_from(code: CodeVersion, restored: str | None) -> CodeVersion:
    """The same, with what the start restores as what the version before goes on from, unless that is known.

    Where the version before has left nothing, there is nothing to return to.
    """
    if code.upgrade is None or code.upgrade.checkpoint is not None:
        return code
    return replace(code, upgrade=None if restored is None else replace(code.upgrade, checkpoint=restored))


class Upgrading:
    """The upgrade that one run is part of, if any.

    Args:
        job: the job.
        catalog: of the job.
        clock: wall and monotonic time.

    Attributes:
        back: the version that has failed and the one to return to, for the end of the job; twice ``None`` for no
            return.
    """

    def __init__(self, job: StreamingJob, catalog: CheckpointCatalog, clock: Clock) -> None:
        self.back: tuple[str | None, str | None] = (None, None)
        self._job = job
        self._versions = job.versions
        self._catalog = catalog
        self._clock = clock
        self._upgrade: Upgrade | None = None
        self._flag: _Late | None = None

    def begin(self, request: RestoreRequest, claim: Claim) -> Begun:
        """What the start under ``claim`` does; a request that names something is left as it is.

        A version that was asked for, or was cut over to, runs in the place of the one that is deployed.

        Raises:
            InvalidConfiguration: the version that was asked for is not here.
            RestoreRefused: the version before was not stopped with a savepoint.
            UpgradeFailed: the new version has been failing for too long.
            CheckpointError: the records, or the newest checkpoint, cannot be read.
        """
        self._upgrade = self._flag = None
        self._versions = self._job.versions
        goes_on = request.restore_from == LATEST and request.fork_from is None
        looks = self._versions.current is not None and (goes_on or request.code_version is None)
        try:
            chosen = self._catalog.choice() if looks else None
            over = None if request.code_version is not None else self._cut_over_to(chosen)
        except CorruptRecord as error:
            if goes_on:
                raise
            # To name a checkpoint is the way on from damaged records.
            _log.warning("Whether job %r was cut over to a version is not known: %s", self._job.name, error.message)
            chosen = over = None
        plain = self._wanted(request, over)
        current = plain.code.version
        if current is None or not goes_on or chosen is None or (version := chosen[1].code.version) is None:
            return plain
        epoch, choice = chosen
        pending = pending_upgrade(self._catalog, epoch, choice)
        before = version if pending is None else pending.before
        back = request if pending is None else request.sent_to(pending.checkpoint or LATEST)
        if current == before:
            why = "" if pending is None else f"version {before} goes on after version {version}"
            return replace(plain, request=back, why=why)
        taken_back = request.code_version is None and self._is_taken_back(current, chosen)
        if taken_back and (job := self._returned(before)) is not None:
            why = f"version {before} runs in place of version {current}, which was taken back"
            return Begun(job, back, CodeVersion(before, None, current), why)
        if pending is not None and current == version and not taken_back:
            if self._versions.timeout is None:  # its user has given up the return
                return plain
            self._upgrade = pending
            self._refuse_failing(claim, pending)
            return replace(plain, code=replace(plain.code, upgrade=pending))
        return self._changed(plain, back, claim, before, pending, epoch)

    def job_of_next_start(self) -> StreamingJob:
        """The job with the function that a start by ``latest`` would run now.

        It is that of the version that was cut over to, or of the one before a version that was taken back, or else of
        the deployed one.

        Raises:
            InvalidConfiguration: the version that was cut over to is not here.
            CheckpointError: the records cannot be read.
        """
        self._versions = self._job.versions
        chosen = None if self._versions.current is None else self._catalog.choice()
        plain = self._wanted(RestoreRequest(), self._cut_over_to(chosen))
        current = plain.code.version
        if current is None or chosen is None or (version := chosen[1].code.version) is None:
            return plain.job
        pending = pending_upgrade(self._catalog, *chosen)
        before = version if pending is None else pending.before
        is_back = current != before and self._is_taken_back(current, chosen)
        return (self._returned(before) if is_back else None) or plain.job

    def _is_taken_back(self, version: str, chosen: tuple[int, Choice]) -> bool:
        end = taken_back_since(self._catalog, chosen[0], self._catalog.records.epochs.names())
        return version in {chosen[1].code.taken_back, None if end is None else end.taken_back}

    def _returned(self, before: str) -> StreamingJob | None:
        """The job with the function of the version before, if that function is here."""
        make = self._versions.others.get(before)
        versions = replace(self._versions, current=before)
        return None if make is None else replace(self._job, query=make, versions=versions)

    def _wanted(self, request: RestoreRequest, cut_over_to: str | None) -> Begun:
        """The start with the version that was asked for or cut over to, before anything else is known of it."""
        versions, job = self._job.versions, self._job
        deployed, asked = versions.current, request.code_version
        wanted = asked or cut_over_to or deployed
        if wanted == deployed:
            if asked is not None:
                self._versions = replace(versions, mode=UpgradeMode.LAST_STATE)
            return Begun(job, request, CodeVersion(deployed))
        versions.check_known(wanted)
        # As at any restart: what is exact for the version that is deployed is so for this one.
        others = {**versions.others, str(deployed): job.query}
        self._versions = replace(versions, current=wanted, mode=UpgradeMode.LAST_STATE, previous=others, green={})
        return Begun(
            replace(job, query=versions.others[str(wanted)], versions=self._versions),
            request,
            CodeVersion(wanted, in_place_of=deployed),
            f"version {wanted} runs in place of version {deployed}, as the cut-over says",
        )

    def _cut_over_to(self, chosen: tuple[int, Choice] | None) -> str | None:
        """The version that runs in the place of the deployed one: that of a cut-over, or the one before it."""
        code = None if chosen is None else chosen[1].code
        if chosen is None or code is None or code.in_place_of is None or code.in_place_of != self._job.versions.current:
            return None
        end = taken_back_since(self._catalog, chosen[0], self._catalog.records.epochs.names())
        return end.returns_to if end is not None and end.taken_back == code.version else code.version

    def in_time(
        self,
        run: Callable[[threading.Event], _T],
        cancel: threading.Event,
        code: CodeVersion,
        live: LiveLocation,
        restored: int,
    ) -> _T:
        """Run a query that has to complete a checkpoint in time if its version is new.

        A checkpoint may complete while a query is stopped that is late. Then the version has proven itself, and the
        query ends as if it was canceled, without ``cancel``: it is to be started again.

        Args:
            run: takes the flag that ends the query.
            cancel: set when the run should stop.
            code: as it was recorded.
            live: of the query.
            restored: the batch that the query goes on after.

        Raises:
            UpgradeFailed: it has worked for too long without a checkpoint.
        """
        timeout, self._upgrade = self._versions.timeout, code.upgrade
        if self._upgrade is None or timeout is None:
            return run(cancel)
        self._flag = _Late(cancel, timeout, self._clock, lambda: live.location().newest() > restored)
        result = run(self._flag)
        if self._flag.is_late and not cancel.is_set():
            raise self._failed(f"has completed no checkpoint in {_told(timeout)} of work")
        return result

    def completed(self) -> None:
        """A checkpoint is complete, so the new version has proven itself."""
        self._upgrade = None
        if self._flag is not None:
            self._flag.lift()

    def given_up(self, error: Exception, *, retried: bool) -> UpgradeFailed | None:
        """Why the new version is taken back after ``error``, ``None`` if it is not."""
        upgrade = self._upgrade
        if upgrade is None or retried:
            return None
        self.back = self._versions.current, upgrade.before
        if isinstance(error, UpgradeFailed):
            return UpgradeFailed(error.message, hint=error.hint)
        return self._failed(f"has failed before its first checkpoint: {first_line(error)}")

    def _changed(
        self,
        plain: Begun,
        back: RestoreRequest,
        claim: Claim,
        before: str,
        pending: Upgrade | None,
        epoch: int,
    ) -> Begun:
        """The first start of a new version."""
        mode, returns = self._versions.mode, self._versions.timeout is not None
        if pending is None and mode is UpgradeMode.LAST_STATE and not returns:
            return plain
        request, checkpoint = back, None if pending is None else pending.checkpoint
        if mode is UpgradeMode.STATELESS:
            request = back.sent_to(NONE)
        elif mode is UpgradeMode.SAVEPOINT:
            request = back.sent_to(self._savepoint(before, checkpoint, epoch))
        why = f"version {self._versions.current} begins after version {before} ({mode})"
        if not returns:
            return replace(plain, request=request, why=why)
        if mode is UpgradeMode.STATELESS and checkpoint is None:
            newest = find_newest(self._catalog).metadata
            checkpoint = None if newest is None else newest.reference
        self._upgrade = Upgrade(before, checkpoint, claim.epoch, iso(self._clock.time()))
        self._refuse_failing(claim, self._upgrade)
        return replace(plain, request=request, code=replace(plain.code, upgrade=self._upgrade), why=why)

    def _savepoint(self, before: str, checkpoint: str | None, epoch: int) -> str:
        """The savepoint that the version before, whose newest start is ``epoch``, was stopped with."""
        if checkpoint is not None:
            if self._catalog.resolve(checkpoint).location is not None:
                return checkpoint
        elif (end := self._catalog.records.epochs.read_end(epoch)) is not None and end.savepoint is not None:
            return end.savepoint
        name, path, new = self._catalog.job_name, self._catalog.filesystem.path_option, self._versions.current
        raise RestoreRefused(
            f"Job {name!r} changes from version {before} to {new} under upgrade_mode savepoint, and version {before} "
            "was not stopped with a savepoint.",
            hint=f"Launch version {before} again, stop it with `dagster-ckpt stop {name} {path}`, and launch "
            f"version {new}. To go on without it, launch with restore_from: an earlier savepoint, or a checkpoint that "
            f"`dagster-ckpt list {name} {path}` shows.",
        )

    def _refuse_failing(self, claim: Claim, upgrade: Upgrade) -> None:
        """Raise if the new version has been failing for too long: all failures of its run are failures of it."""
        timeout, began = self._versions.timeout, seconds_of(upgrade.began_at)
        if timeout is None:
            return
        now = self._clock.time()
        failures = as_happened(self._catalog.records.failures.of(claim.series), now, claim.run_id)
        failed: list[float] = []
        for at in sorted(item.at for item in failures if item.at >= began or item.run_id == claim.run_id):
            failed = [*failed, at] if self._goes_on_failing(failed, at, timeout) else [at]
        if failed and self._goes_on_failing(failed, now, timeout) and now - failed[0] > timeout:
            raise self._failed(f"has failed {len(failed)} times in more than {_told(timeout)}, without a checkpoint")

    def _goes_on_failing(self, failed: Sequence[float], at: float, timeout: float) -> bool:
        """Whether a start between the last failure and ``at`` cannot have run without input for the whole time."""
        return not failed or at - failed[-1] <= timeout + self._job.restart.longest_delay

    def _failed(self, what: str) -> UpgradeFailed:
        before, new = "" if self._upgrade is None else self._upgrade.before, self._versions.current
        way = (
            f"The next launch goes on with version {before}; under Dagster the resume sensor launches it. "
            f"To try {new} again, name a checkpoint in restore_from, or give the code another code_version."
            if before in self._versions.others
            else f"Put the code of version {before} back; under Dagster the resume sensor then launches it. To try "
            f"{new} again, launch it by hand."
        )
        return UpgradeFailed(
            f"Version {new} of job {self._job.name!r} {what}. The job returns to version {before}.", hint=way
        )


def _told(seconds: float) -> str:
    return format_duration(timedelta(seconds=seconds))


class _Late(threading.Event):
    """Set when ``cancel`` is, or once a query has had work for so many seconds; asked by one thread."""

    def __init__(self, cancel: threading.Event, seconds: float, clock: Clock, works: Callable[[], bool]) -> None:
        super().__init__()
        self.is_late = False
        self._cancel = cancel
        self._seconds = seconds
        self._clock = clock
        self._works: Callable[[], bool] | None = works
        self._since = self._looked = clock.monotonic()

    def lift(self) -> None:
        """Be no more than ``cancel``, also if it was late already."""
        self._works, self.is_late = None, False

    def is_set(self) -> bool:
        now = self._clock.monotonic()
        if (
            not self.is_late
            and self._works is not None
            and now - self._looked >= max(self._seconds / _LOOKS, _MOST_OFTEN)
        ):
            self._looked = now
            try:
                if not self._works():
                    self._since = now
            except (OSError, ValueError, CheckpointError) as error:  # the time of a storage that is away counts
                _log.info("Whether the new version has something to do is not known: %s", error)
            self.is_late = now - self._since >= self._seconds
        return self._cancel.is_set() or self.is_late

    def wait(self, timeout: float | None = None) -> bool:
        return self._cancel.wait(timeout) or self.is_set()
