"""The durable record of failures, from which a restart strategy decides.

One small file per failure, created exclusively under a name that says which failure it is, so that a run, a
sensor and a second tick of the sensor that all see the same failure record it once.

Some things fail each time they are tried, so that trying again only uses the restarts up: a batch, or a query's
function. After a restart the batch in flight is run again with the boundaries it had, so it is the same batch if its
number and its plan are. A batch that fails each time is called poison. The run and the sensor decide alike, from the
failures of a series alone.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dagster_ckpt.checkpoint.format.file_names import is_record
from dagster_ckpt.checkpoint.format.layout import CONTROL_DIR
from dagster_ckpt.checkpoint.format.records import Batch, Line, RunId, Seconds, Text, encode_record, read_record
from dagster_ckpt.errors import (
    CorruptRecord,
    DriverLost,
    PoisonBatch,
    PublishConflict,
    QueryFailed,
    QueryNotBuilt,
)
from dagster_ckpt.filesystem import Entry, FileSystem

__all__ = [
    "DIED",
    "Failure",
    "FailureLog",
    "Streak",
    "beyond_restart",
    "in_order",
    "is_outage",
    "poison_batch",
    "so_far",
    "streak",
    "symptom",
]

_log = logging.getLogger(__name__)

#: Sequence number of "the run itself died", after any failure the run recorded by itself.
DIED = 999_999
_KEPT_SERIES = 20
_SERIES = re.compile(r"s-([0-9]{10})")
#: What differs from one time to the next of the same error, and what stands for it.
_VARYING = (
    (re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"), "#"),
    (re.compile(r"(?<![\w.])(?:[a-z][a-z0-9+.-]*:)?/[^\s,;:'\"()\[\]{}<>]*"), "/"),
    (re.compile(r"@[0-9a-f]+\b"), "@#"),
    (re.compile(r"\b(?:0x[0-9a-f]+|(?=[a-f]*[0-9])[0-9a-f]{8,})\b"), "#"),
    (re.compile(r"(?:#|\d+)(?:[.,:-](?:#|\d+))*"), "#"),
    (re.compile(r"\s+"), " "),
)
#: Words of errors that go away by themselves. What is not among them counts as the batch's own fault.
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
        run_id: the run it happened in.
        sequence: which failure of that run, from 1; :data:`DIED` when the run itself died.
        at: seconds since the epoch.
        batch: the batch in flight (planned, begun and not committed), ``None`` when there was none or it is not known.
        reason: for people.
        recoverable: ``False`` when restarting cannot help.
        kind: the class of the error, such as ``QueryFailed``; empty for a run that died.
        plan: fingerprint of what ``batch`` was to read, ``None`` when not known.
    """

    run_id: RunId
    sequence: int
    at: Seconds
    batch: Batch | None
    reason: Text
    recoverable: bool = True
    kind: Line = ""
    plan: Line | None = None


def in_order(failures: Iterable[Failure]) -> list[Failure]:
    """The failures, oldest first."""
    return sorted(failures, key=lambda failure: (failure.at, failure.run_id, failure.sequence))


class FailureLog:
    """The failures of one job name, by series (see :class:`~dagster_ckpt.checkpoint.control.epochs.Claim`)."""

    def __init__(self, filesystem: FileSystem, job_name: str) -> None:
        self._filesystem = filesystem
        self._directory = f"{job_name}/{CONTROL_DIR}/failures"

    def record(self, series: int, failure: Failure) -> None:
        """Record a failure; a second record of the same one changes nothing."""
        path = f"{self._directory}/s-{series:010}/{failure.run_id}-{failure.sequence:06}"
        try:
            self._filesystem.create(path, encode_record(failure, path))
        except PublishConflict:
            return

    def of(self, series: int) -> list[Failure]:
        """The failures of one series, oldest first; one that cannot be read is told and left out."""
        directory = f"{self._directory}/s-{series:010}"
        found = []
        for entry in self._filesystem.list(directory):
            if entry.name.startswith(".") or not self._is_failure(series, entry):
                continue
            run_id, _, sequence = entry.name.rpartition("-")
            path = f"{directory}/{entry.name}"
            try:
                failure = read_record(self._filesystem, path, Failure, run_id=run_id, sequence=int(sequence))
            except CorruptRecord as error:  # the job is tried once more than its strategy says
                _log.warning("A failure is not counted: %s", error.message)
                continue
            if failure is not None:
                found.append(failure)
        return in_order(found)

    @staticmethod
    def _is_failure(series: int, entry: Entry) -> bool:
        return not entry.is_directory and is_record(f"failures/s-{series:010}/{entry.name}")

    def series(self) -> list[int]:
        """The series that have failures, ascending."""
        entries = self._filesystem.list(self._directory)
        return sorted(int(match[1]) for entry in entries if (match := _SERIES.fullmatch(entry.name)))

    def forget_before(self, series: int) -> None:
        """Drop the records of all but the last few series before ``series``."""
        older = [other for other in self.series() if other < series]
        for name in (f"s-{other:010}" for other in older[:-_KEPT_SERIES]):
            for entry in self._filesystem.list(f"{self._directory}/{name}"):
                if self._is_failure(int(name[2:]), entry):
                    self._filesystem.remove(f"{self._directory}/{name}/{entry.name}")
            self._filesystem.remove_directory(f"{self._directory}/{name}")


@dataclass(frozen=True, slots=True)
class Streak:
    """Failures in a row, the latest among them, of one batch with one error.

    Attributes:
        batch: the batch.
        times: how many they are.
        reason: the error as it was told last.
    """

    batch: int
    times: int
    reason: str

    def ends_loop(self, attempts: int | None) -> bool:
        """Whether this is poison for a job that tries a batch so many times; ``None`` is for without end."""
        return attempts is not None and self.times >= attempts


def streak(failures: Sequence[Failure]) -> Streak | None:
    """What the failures of a series end with.

    Counted are failures of the query itself and deaths of its driver, with a batch in flight. Any other failure in
    between ends the streak: another batch, another error, the storage's, one before the query had come to the batch,
    or an outage, which passes.

    Args:
        failures: of one series, oldest first.

    Returns:
        the streak that the last failure belongs to, of one at least; ``None`` when that is not one of a batch.
    """
    times, plan = 0, None
    deaths: set[str] = set()
    for failure in reversed(failures):
        if not _is_of_batch(failure):
            break
        if times and not _is_same(failure, failures[-1]):
            break
        if plan is not None and failure.plan not in {None, plan}:
            break
        plan = plan or failure.plan
        if _is_gone(failure):
            # A run dies once: whose JVM was found gone may have died before it could say that it had ended.
            times += failure.run_id not in deaths
            deaths.add(failure.run_id)
        else:
            times += 1
    last = failures[-1] if failures else None
    if last is None or last.batch is None or not times:
        return None
    return Streak(last.batch, times, last.reason)


def beyond_restart(failures: Sequence[Failure]) -> str | None:
    """Why a restart cannot help after the failures of a series; ``None`` when it can.

    It cannot after an error that says so, and after a query that twice in a row was not built, for the same reason:
    that is a mistake in the job's function. An outage is none, however often it is met.

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
        return "the query was not built twice in a row, for the same reason: a restart cannot help"
    return None


def symptom(error: str) -> str:
    """An error without what differs each time: ids, numbers, addresses, paths."""
    text = error.partition("\n")[0].lower()
    for pattern, replacement in _VARYING:
        text = pattern.sub(replacement, text)
    return text.strip()


def is_outage(error: str) -> bool:
    """Whether an error is one of something the query needs and cannot reach now: a network, a server, a full disk."""
    return _OUTAGE.search(symptom(error)) is not None


def so_far(found: Streak | None, attempts: int | None) -> str:
    """What to add to the reason of a restart, while a streak may become poison; empty when there is none."""
    if found is None or found.times < 2 or attempts is None:
        return ""
    return (
        f", after batch {found.batch} failed {found.times} times in a row with the same error ({attempts} end the job)"
    )


def poison_batch(found: Streak, job_name: str, *, storage: str | None, before: str | None) -> PoisonBatch:
    """The error that a job ends with, for people.

    Args:
        found: the streak.
        job_name: of the job.
        storage: URL of the checkpoints, ``None`` when another process cannot read them.
        before: the checkpoint that the job goes on from, ``None`` when there is none or it is not known.
    """
    command = f"dagster-ckpt batch {job_name} {found.batch} --path {storage}"
    look = "" if storage is None else f"See what is in it: `{command}`. "
    origin = "" if before is None else f" The checkpoint before it is {before}."
    return PoisonBatch(
        f"Batch {found.batch} of job {job_name!r} is poison: it failed {found.times} times in a row with the same "
        f"error, and is not tried again. {found.reason.removesuffix('.')}.{origin}",
        hint=f"{look}Mend the code or what it reads, and launch again with restore_from: latest: the batch runs again "
        "as it was planned. To have it planned anew, with a smaller batch size for example, add replay_to: none.",
    )


def _is_of_batch(failure: Failure) -> bool:
    # A driver that is gone often shows in a connection that is refused: the one to it.
    of_the_query = _is_gone(failure) or (failure.kind == QueryFailed.__name__ and not is_outage(failure.reason))
    return failure.batch is not None and failure.recoverable and of_the_query


def _is_same(one: Failure, other: Failure) -> bool:
    return one.batch == other.batch and _symptom_of(one) == _symptom_of(other)


def _symptom_of(failure: Failure) -> str:
    # However a driver ends, what is known is that it is gone: its JVM, its process, or both, seen by whoever looked.
    return "" if _is_gone(failure) else symptom(failure.reason)


def _is_gone(failure: Failure) -> bool:
    return failure.sequence == DIED or failure.kind == DriverLost.__name__
