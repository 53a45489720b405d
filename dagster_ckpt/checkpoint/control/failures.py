"""The durable record of failures, from which a restart strategy decides.

One small file per failure is created exclusively under a name that identifies the failure. So a run, a sensor and a
second tick of the sensor that all see the same failure record it once.

A batch or a query's function may fail each time, so that trying again only uses up the restarts. After a restart the
batch in flight runs again with the same boundaries, so two failures are of the same batch if its number and its batch
plan are the same. A batch that fails each time is called poison. The run and the sensor come to the same decision,
because both use only the failures of a series.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from dagster_ckpt.checkpoint.format import (
    CONTROL_DIR,
    LONGEST_REASON,
    Batch,
    Line,
    Moment,
    RunId,
    Text,
    encode_record,
    is_record,
    record_in,
)
from dagster_ckpt.config import RestartDecision, RestartStrategy
from dagster_ckpt.errors import (
    CheckpointError,
    CorruptCheckpoint,
    CorruptRecord,
    DriverLost,
    Fenced,
    ForeignCheckpoint,
    JobAlreadyRunning,
    PoisonBatch,
    PublishConflict,
    QueryFailed,
    QueryNotBuilt,
)
from dagster_ckpt.filesystem import Entry, FileSystem
from dagster_ckpt.shown_text import path_option

__all__ = [
    "DIED",
    "Failure",
    "FailureLog",
    "Streak",
    "as_happened",
    "belongs_to_another",
    "beyond_restart",
    "dated",
    "is_outage",
    "reason_of",
    "restart_after",
    "so_far",
    "symptom",
]

_log = logging.getLogger(__name__)

#: The sequence number of "the run itself died", above every failure that the run recorded.
DIED = 999_999
_KEPT_SERIES = 20
_SERIES = re.compile(r"s-([0-9]{10})")
#: Parts of an error that differ each time it occurs, and what replaces them.
_VARYING = (
    (re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"), "#"),
    (re.compile(r"(?<![\w.])(?:[a-z][a-z0-9+.-]*:)?/[^\s,;:'\"()\[\]{}<>]*"), "/"),
    (re.compile(r"@[0-9a-f]+\b"), "@#"),
    (re.compile(r"\b(?:0x[0-9a-f]+|(?=[a-f]*[0-9])[0-9a-f]{8,})\b"), "#"),
    (re.compile(r"(?:#|\d+)(?:[.,:-](?:#|\d+))*"), "#"),
    (re.compile(r"\s+"), " "),
)
#: Words of errors that pass by themselves. Any other error counts as the batch's own fault.
_OUTAGE = re.compile(
    r"connect(?:ion)?(?:timeout)?(?:exception|error)|connection (?:is |was )?(?:refused|reset|closed|aborted|timed out)"
    r"|connection to .{1,200}(?:refused|failed|closed)|refusederror|reseterror|brokenpipe|broken pipe"
    r"|unknownhost|noroutetohost|(?:host|network) is unreachable|name resolution|name or service not known"
    r"|timed out|timeoutexception|timeouterror|timeoutexpired"
    r"|service ?unavailable|temporarily unavailable|too ?many ?requests|throttl|slow ?down|rate (?:limit )?exceeded"
    r"|no space left|quota exceeded|too many open files"
)


@dataclass(frozen=True, slots=True)
class Failure:
    """One failure of a job.

    Attributes:
        run_id: the run that failed.
        sequence: which failure of that run, from 1; :data:`DIED` when the run itself died.
        at: seconds since 1970.
        batch: the batch in flight (planned, begun and not committed), ``None`` when there was none or it is not known.
        reason: for people.
        recoverable: ``False`` when restarting cannot help.
        kind: the class of the error, such as ``QueryFailed``; empty for a run that died.
        plan: fingerprint of the batch plan of ``batch``, ``None`` when not known.
    """

    run_id: RunId
    sequence: int
    at: Moment
    batch: Batch | None
    reason: Text
    recoverable: bool = True
    kind: Line = ""
    plan: Line | None = None

    @classmethod
    def of(
        cls, error: Exception, run_id: str, at: float, sequence: int, batch: int | None = None, plan: str | None = None
    ) -> Failure:
        """The failure that an error is; the rest is as of the attributes."""
        recoverable = not isinstance(error, CheckpointError) or error.recoverable
        return cls(run_id, sequence, at, batch, reason_of(error), recoverable, type(error).__name__, plan)


def _in_order(failures: Iterable[Failure]) -> list[Failure]:
    """The failures by their times."""
    return sorted(failures, key=lambda failure: (failure.at, failure.run_id, failure.sequence))


def as_happened(failures: Iterable[Failure], now: float, run_id: str, after: Sequence[str] = ()) -> list[Failure]:
    """The failures of a series, oldest first, whatever the clocks of their hosts have said.

    Args:
        failures: in any order.
        now: seconds since 1970.
        run_id: the run that has claimed the job last: the runs before it failed before it did.
        after: the runs that were to go on from that run, in the order of their launches.
    """

    def place(failure: Failure) -> tuple[int, int]:
        if failure.run_id == run_id:
            return 0, failure.sequence
        return (1 + after.index(failure.run_id), failure.sequence) if failure.run_id in after else (-1, 0)

    return dated(sorted(_in_order(failures), key=place), now)


def dated(failures: Sequence[Failure], now: float) -> list[Failure]:
    """The failures, with no time that is still to come, unless it is the last one's.

    A host may boot with a clock that is ahead. Its failure would count as the latest until that time had come, and no
    limit of a restart strategy would be reached. Nobody knows when it happened: it counts as the first.

    Args:
        failures: of one series, the last of which happened last.
        now: seconds since 1970.
    """
    limit = max(now, failures[-1].at) if failures else now
    past = [failure for failure in failures if failure.at <= limit]
    first = min((failure.at for failure in past), default=now)
    return [replace(failure, at=first) for failure in failures if failure.at > limit] + past


class FailureLog:
    """The failures of one job name, by series (see :class:`~dagster_ckpt.checkpoint.control.epochs.Claim`)."""

    def __init__(self, filesystem: FileSystem, job_name: str) -> None:
        self._filesystem = filesystem
        self._directory = f"{job_name}/{CONTROL_DIR}/failures"
        #: The records that were read, by series and name.
        self._known: dict[int, dict[str, Failure]] = {}

    def record(self, series: int, failure: Failure) -> None:
        """Record a failure; recording it a second time changes nothing."""
        path = f"{self._directory}/s-{series:010}/{self.name(failure)}"
        with suppress(PublishConflict):
            self._filesystem.create(path, encode_record(failure, path))

    def record_failed_start(self, series: int | None, run_id: str, error: Exception, at: float) -> None:
        """Record for the sensor, and for people, why a run that should go on with the job has not taken it over.

        Without a record the run counts as failed all the same, and nobody knows why. None is made when another run or
        deployment has the job, nor of a run that continues no series, because nothing resumes it.
        """
        if series is not None and not belongs_to_another(error):
            with suppress(OSError, CorruptCheckpoint):  # the error itself must be raised, and counts
                self.record(series, Failure.of(error, run_id, at, sequence=1))

    @staticmethod
    def name(failure: Failure) -> str:
        """The name of a failure, the same for whoever records it."""
        return f"{failure.run_id}-{failure.sequence:06}"

    def names(self, series: int) -> set[str]:
        """The names of the failures of one series; one listing."""
        entries = self._filesystem.list(f"{self._directory}/s-{series:010}")
        return {entry.name for entry in entries if self._is_failure(series, entry)}

    def of(self, series: int) -> list[Failure]:
        """The failures of one series, oldest first. An unreadable record tells by its name that there was one.

        A record never changes, so each is read once in the life of this object: an outage may leave thousands.
        """
        directory = f"{self._directory}/s-{series:010}"
        known = self._known.setdefault(series, {})
        listed: list[str] = []

        def unread() -> list[str]:
            entries = (entry for entry in self._filesystem.list(directory) if self._is_failure(series, entry))
            listed[:] = [entry.name for entry in entries if not entry.name.startswith(".")]
            return [name for name in listed if name not in known]

        contents = self._filesystem.read_listed(unread, lambda name: f"{directory}/{name}")
        found = {name: known[name] for name in listed if name in known}
        for name, data in contents.items():
            if data is None:
                continue
            run_id, _, number = name.rpartition("-")
            path, sequence = f"{directory}/{name}", int(number)
            try:
                found[name] = known[name] = record_in(
                    data, self._filesystem, path, Failure, run_id=run_id, sequence=sequence
                )
            except CorruptRecord as error:  # counted, or its death would be recorded, in vain, for ever
                _log.warning("Nobody can tell when or why run %s failed: %s", run_id, error.message)
                found[name] = Failure(run_id, sequence, 0.0, None, error.message)
        return _in_order(found.values())

    @staticmethod
    def _is_failure(series: int, entry: Entry) -> bool:
        return not entry.is_directory and is_record(f"failures/s-{series:010}/{entry.name}")

    def series(self) -> list[int]:
        """The series that have failures, ascending."""
        entries = self._filesystem.list(self._directory)
        return sorted(int(match[1]) for entry in entries if (match := _SERIES.fullmatch(entry.name)))

    def forget_before(self, series: int) -> None:
        """Delete the records of the series before ``series``, except for the last few."""
        older = [other for other in self.series() if other < series]
        for name in (f"s-{other:010}" for other in older[:-_KEPT_SERIES]):
            for entry in self._filesystem.list(f"{self._directory}/{name}"):
                if self._is_failure(int(name[2:]), entry):
                    self._filesystem.remove(f"{self._directory}/{name}/{entry.name}")
            self._filesystem.remove_directory(f"{self._directory}/{name}")


@dataclass(frozen=True, slots=True)
class Streak:
    """The latest failures in a row that are of one batch with one error.

    Attributes:
        batch: the batch.
        times: the number of failures.
        reason: the text of the latest error.
    """

    batch: int
    times: int
    reason: str

    @classmethod
    def of(cls, failures: Sequence[Failure]) -> Streak | None:
        """What the failures of a series end with.

        Failures of the query itself and deaths of its driver count, with a batch in flight. Any other failure
        ends the streak: another batch, another error, a failure of the storage, a failure before the query had come to
        the batch, or an outage, which passes.

        Args:
            failures: of one series, oldest first.

        Returns:
            the streak that the last failure belongs to, of one at least; ``None`` when that is not one of a batch.
        """
        times, plan = 0, None
        deaths: set[str] = set()
        for failure in reversed(failures):
            if not _is_of_batch(failure) or (times and _of_what(failure) != _of_what(failures[-1])):
                break
            if plan is not None and failure.plan not in {None, plan}:
                break
            plan = plan or failure.plan
            if _is_gone(failure):
                # A run dies once: a run whose JVM was found gone may have died before it could record its end.
                times += failure.run_id not in deaths
                deaths.add(failure.run_id)
            else:
                times += 1
        last = failures[-1] if failures else None
        if last is None or last.batch is None or not times:
            return None
        return cls(last.batch, times, last.reason)

    def ends_loop(self, attempts: int | None) -> bool:
        """Whether the batch is poison for a job that tries a batch ``attempts`` times; ``None`` means without end."""
        return attempts is not None and self.times >= attempts

    def poison(self, job_name: str, *, storage: str | None, before: str | None) -> PoisonBatch:
        """The error that a job with a poison batch ends with, for people.

        Args:
            job_name: of the job.
            storage: URL of the checkpoints, ``None`` when another process cannot read them.
            before: the checkpoint that the job would continue from, ``None`` when there is none or it is not known.
        """
        look = ""
        if storage is not None:
            look = f"See what is in it: `dagster-ckpt batch {job_name} {self.batch} {path_option(storage)}`. "
        origin = "" if before is None else f" The checkpoint before it is {before}."
        return PoisonBatch(
            f"Batch {self.batch} of job {job_name!r} is poison: it failed {self.times} times in a row with the same "
            f"error, and is not tried again. {self.reason.removesuffix('.')}.{origin}",
            hint=f"{look}Mend the code or the data, and launch again with restore_from: latest: the batch runs again "
            "as it was planned. To plan the batch anew, with a smaller batch size for example, add replay_to: none.",
        )


def restart_after(failures: Sequence[Failure], strategy: RestartStrategy, job_name: str) -> RestartDecision:
    """Whether and when a job is restarted after the failures of a series, of which there is one at least.

    Args:
        failures: of one series, in the order in which they happened: the clocks of their hosts may differ.
        strategy: of the job.
        job_name: of the job, for the jitter of the delay.
    """
    if (why := beyond_restart(failures)) is not None:
        return RestartDecision(allowed=False, at=failures[-1].at, attempt=0, reason=why)
    return strategy.decide(sorted(failure.at for failure in failures), key=job_name)


def beyond_restart(failures: Sequence[Failure]) -> str | None:
    """Why a restart cannot help after the failures of a series; ``None`` when it can.

    A restart cannot help after an error that says so. Nor can it help when the query could not be built twice in a row
    for the same reason, which is a mistake in the job's function. An outage is no mistake, however often it occurs.

    Args:
        failures: of one series, oldest first, at least one.
    """
    last = failures[-1]
    if not last.recoverable:
        return "a restart cannot help"
    if len(failures) < 2 or is_outage(last.reason):
        return None
    before = failures[-2]
    kinds, symptoms = {before.kind, last.kind}, {symptom(before.reason), symptom(last.reason)}
    if kinds == {QueryNotBuilt.__name__} and len(symptoms) == 1:
        return "twice in a row the query was not built, for the same reason: a restart cannot help"
    return None


def symptom(error: str) -> str:
    """An error without the parts that differ each time: ids, numbers, addresses, paths."""
    text = error.partition("\n")[0].lower()
    for pattern, replacement in _VARYING:
        text = pattern.sub(replacement, text)
    return text.strip()


def reason_of(error: Exception) -> str:
    """An error in one line: the text of this package's errors, and the class and text of any other error."""
    first = str(error).partition("\n")[0][:LONGEST_REASON]
    return first if isinstance(error, CheckpointError) else f"{type(error).__name__}{first and f': {first}'}"


def belongs_to_another(error: BaseException) -> bool:
    """Whether an error says that another run or another deployment has the job: no failure of the job."""
    return isinstance(error, (Fenced, ForeignCheckpoint, JobAlreadyRunning))


def is_outage(error: str) -> bool:
    """Whether an error is an outage of something that the query needs: a network, a server, space on a disk."""
    return _OUTAGE.search(symptom(error)) is not None


def so_far(found: Streak | None, attempts: int | None) -> str:
    """What to add to the reason of a restart while a streak may become poison; empty without such a streak."""
    if found is None or found.times < 2 or attempts is None:
        return ""
    return (
        f", after batch {found.batch} failed {found.times} times in a row with the same error ({attempts} end the job)"
    )


def _is_of_batch(failure: Failure) -> bool:
    # A driver that is gone often shows as a refused connection to the driver, which is no outage.
    of_the_query = _is_gone(failure) or (failure.kind == QueryFailed.__name__ and not is_outage(failure.reason))
    return failure.batch is not None and failure.recoverable and of_the_query


def _of_what(failure: Failure) -> tuple[int | None, str]:
    # However a driver ends, only its absence is known: the run or the sensor finds its JVM, its process, or both gone.
    return failure.batch, "" if _is_gone(failure) else symptom(failure.reason)


def _is_gone(failure: Failure) -> bool:
    return failure.sequence == DIED or failure.kind == DriverLost.__name__
