"""What fails each time it is tried, so that trying again only uses the restarts up: a batch, or a query's function.

Pure decisions over the failures of a series, which the run and the sensor take alike. After a restart the batch in
flight is run again with the boundaries it had, so it is the same batch if its number and its plan are. A batch that
fails so is called poison.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from dagster_ckpt.checkpoint.control.failures import DIED, Failure
from dagster_ckpt.errors import DriverLost, PoisonBatch, QueryFailed, QueryNotBuilt

__all__ = ["Streak", "beyond_restart", "is_outage", "poison_batch", "so_far", "streak", "symptom"]

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
