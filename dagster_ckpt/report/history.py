"""What a storage tells of a job over time, as far as a report shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from dagster_ckpt.checkpoint import (
    CheckpointCatalog,
    CheckpointMetadata,
    Choice,
    Claim,
    End,
    Failure,
    JobState,
    StartTrace,
    job_state,
)
from dagster_ckpt.clock import Clock, seconds_of
from dagster_ckpt.errors import CheckpointError, CorruptRecord, StorageError
from dagster_ckpt.shown_text import in_one_line, redacted

__all__ = ["CheckpointRow", "JobHistory", "StartRow", "Trouble", "read_history"]

_T = TypeVar("_T")
#: Starts, and things that went wrong, that are told of: the last ones.
_MOST_STARTS, _MOST_TROUBLES = 50, 200
#: Records read side by side: most of the time is spent waiting for the storage.
_AT_ONCE = 16
#: Characters of a reason, and of a name, that are told.
_LONGEST, _LONGEST_NAME = 500, 60
_FAILURE = "failure"


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    """A completed checkpoint that is in the storage.

    Attributes:
        lineage: the job id.
        name: ``chk-N``.
        epoch: of the start that took it.
        batch: the last batch it covers.
        kind: as of a manifest.
        written_at: seconds since 1970.
        seconds: pinning and writing.
        bytes: everything a restore needs.
        new_bytes: what this checkpoint had to write.
        state_rows: rows in the state, by operator; by ``all operators`` where Spark tells only their sum.
        lag: records of Kafka that were yet to be read, by source, where the brokers told.
    """

    lineage: str
    name: str
    epoch: int
    batch: int
    kind: str
    written_at: float
    seconds: float
    bytes: int
    new_bytes: int
    state_rows: Mapping[str, float]
    lag: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class StartRow:
    """A start of the job.

    Attributes:
        epoch: the start's.
        run_id: the run of the start.
        at: when the epoch was claimed, seconds since 1970; ``None`` if it is not known.
        is_restart: whether the start resumed a job whose start before had failed or died.
        restored: what the start began with; empty if it chose nothing.
        seconds: until the first committed batch, ``None`` if it is not on record.
        committed: whether the start came to its first committed batch, as far as it is on record.
        end: how the start ended; empty if it has not, or died.
    """

    epoch: int
    run_id: str
    at: float | None
    is_restart: bool
    restored: str
    seconds: float | None
    committed: bool
    end: str


@dataclass(frozen=True, slots=True)
class Trouble:
    """One thing that went wrong.

    Attributes:
        at: seconds since 1970, ``None`` if it is not known, or if it is so now.
        what: what kind of thing.
        where: the run or the checkpoint.
        reason: for people.
    """

    at: float | None
    what: str
    where: str
    reason: str


@dataclass(frozen=True, slots=True)
class JobHistory:
    """What a report shows. Every text is in one line and without secrets.

    Attributes:
        job_name: the job.
        storage: URL of the storage.
        told_at: when it was read, seconds since 1970.
        state: how the job is doing, in one word.
        reason: why; may be empty.
        newest: the checkpoint that the job would go on from; empty without one.
        checkpoints: those in the storage, the oldest first.
        starts: the last ones, the oldest first.
        troubles: what went wrong lately, the oldest first, and at the end what is wrong now.
    """

    job_name: str
    storage: str
    told_at: float
    state: str
    reason: str
    newest: str
    checkpoints: Sequence[CheckpointRow]
    starts: Sequence[StartRow]
    troubles: Sequence[Trouble]


def read_history(catalog: CheckpointCatalog, clock: Clock, known: Iterable[Trouble] = ()) -> JobHistory:
    """Read what a report shows. A damaged record is told of, and costs no other record.

    Args:
        catalog: the job's checkpoints.
        clock: the time now.
        known: more of what went wrong, which the storage does not tell.

    Raises:
        StorageError: the storage failed.
    """
    state = job_state(catalog, clock)
    checkpoints: list[CheckpointRow] = []
    troubles = [*known]
    of_state = _of_state(state, troubles)
    for job_id in sorted(catalog.job_ids()):
        completed, broken = catalog.completed(job_id)
        checkpoints += map(_checkpoint, completed)
        troubles += [Trouble(None, "unreadable checkpoint", error.checkpoint or "", error.message) for error in broken]
    for record in catalog.records.quarantine.records().values():
        at = _moment(record.quarantined_at)
        troubles.append(Trouble(at, "quarantined checkpoint", record.checkpoint, record.reason))
    troubles += [
        Trouble(failure.at or None, _FAILURE, failure.run_id, failure.reason) for failure in _failures(catalog)
    ]
    troubles += of_state
    return JobHistory(
        catalog.job_name,
        _told(catalog.filesystem.url),
        clock.time(),
        state.state,
        _told(state.reason),
        "" if state.newest is None else _told(state.newest.reference),
        sorted(checkpoints, key=lambda row: (row.written_at, row.epoch)),
        list(_starts(catalog)),
        sorted(map(_shown, troubles), key=_when)[-_MOST_TROUBLES:],
    )


def _when(trouble: Trouble) -> float:
    """What has no time is so now, and comes last; but for a failure, which is over."""
    if trouble.at is not None:
        return trouble.at
    return 0.0 if trouble.what == _FAILURE else float("inf")


def _of_state(state: JobState, known: Sequence[Trouble]) -> list[Trouble]:
    found = []
    failed = state.failed_checkpoints
    if failed is not None and not any(trouble.reason.startswith(_told(failed.reason)) for trouble in known):
        often = f" ({failed.in_a_row} times)" if failed.in_a_row > 1 else ""
        found.append(Trouble(failed.at, "failed checkpoint", state.run_id or "", f"{failed.reason}{often}"))
    if state.damage:
        found.append(Trouble(None, "newest checkpoint", "", state.damage))
    return found


def _checkpoint(metadata: CheckpointMetadata) -> CheckpointRow:
    return CheckpointRow(
        metadata.job_id,
        metadata.name,
        metadata.epoch,
        metadata.batch,
        metadata.kind,
        seconds_of(metadata.written_at),
        metadata.duration_ms / 1000,
        metadata.size,
        metadata.new_bytes,
        _state_rows(metadata),
        _lag(metadata),
    )


def _state_rows(metadata: CheckpointMetadata) -> dict[str, float]:
    progress = metadata.facts.progress
    rows = {
        _told(f"{item.name} ({item.id})", _LONGEST_NAME): progress.get(f"operator_{item.id}_keys")
        for item in metadata.facts.operators
    }
    if any(type(number) not in {int, float} for number in rows.values()) or not rows:
        rows = {"all operators": progress.get("state_rows")}
    return {name: float(number) for name, number in rows.items() if isinstance(number, (int, float))}


def _lag(metadata: CheckpointMetadata) -> dict[str, float]:
    found: dict[str, float] = {}
    for source in metadata.facts.sources:
        if topics := source.lag:
            name = _told(f"{', '.join(sorted(topics))} ({source.id})", _LONGEST_NAME)
            found[name] = float(sum(behind for partitions in topics.values() for behind in partitions.values()))
    return found


def _failures(catalog: CheckpointCatalog) -> list[Failure]:
    """The failures of the last series of starts."""
    log = catalog.records.failures
    found: list[Failure] = []
    for series in reversed(log.series()):
        if len(found) < _MOST_TROUBLES:
            found += log.of(series)
    return found


def _starts(catalog: CheckpointCatalog) -> Iterator[StartRow]:
    """The last starts, the oldest first."""
    epochs = catalog.records.epochs

    def read(epoch: int) -> tuple[Claim | None, Choice | None, End | None]:
        return (
            _read(lambda: epochs.read_claim(epoch)),
            _read(lambda: epochs.read_choice(epoch)),
            _read(lambda: epochs.read_end(epoch)),
        )

    last = list(epochs.names())[-_MOST_STARTS:]
    traces = {trace.epoch: trace for trace in catalog.records.starts.newest(_MOST_STARTS)}
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        records = list(threads.map(read, last))
    for epoch, (claim, choice, end) in zip(last, records, strict=True):
        trace: StartTrace | None = traces.get(epoch)
        if claim is None and choice is None and trace is None:
            continue  # the sweep of a job that is over has forgotten it, or its records are damaged
        yield StartRow(
            epoch,
            _told(claim.run_id if claim else trace.run_id if trace else "?"),
            None if claim is None else _moment(claim.claimed_at),
            claim is not None and claim.series != epoch,
            _told((choice.restored or "nothing") if choice else ""),
            None if trace is None else round(trace.seconds, 3),
            trace is not None and trace.committed,
            _told(f"{end.status}: {end.reason}" if end else ""),
        )


def _read(read: Callable[[], _T]) -> _T | None:
    """What a record says, ``None`` for a damaged one."""
    try:
        return read()
    except StorageError:  # it says nothing of the record
        raise
    except CheckpointError:
        return None


def _moment(text: str) -> float | None:
    try:
        return seconds_of(text)
    except CorruptRecord:
        return None


def _shown(trouble: Trouble) -> Trouble:
    return Trouble(trouble.at, _told(trouble.what), _told(trouble.where), _told(trouble.reason))


def _told(text: str, longest: int = _LONGEST) -> str:
    told = in_one_line(redacted(text).strip())
    return told if len(told) <= longest else f"{told[: longest - 1]}…"
