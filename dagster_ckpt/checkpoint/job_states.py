"""How a job is doing, as far as the storage tells."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection

from dagster_ckpt.checkpoint.catalog import CheckpointCatalog, find_newest
from dagster_ckpt.checkpoint.control import (
    Claim,
    End,
    FailedCheckpoints,
    Failure,
    Heartbeat,
    HeartbeatFile,
    JobRecords,
)
from dagster_ckpt.checkpoint.format import CHANGED, CONTROL_DIR, METADATA_FILE_NAME, CheckpointMetadata, checkpoint_id
from dagster_ckpt.checkpoint.one_look import OneLook
from dagster_ckpt.checkpoint.standbys import Standbys
from dagster_ckpt.clock import Clock, iso, seconds_of
from dagster_ckpt.errors import CheckpointError, StorageError
from dagster_ckpt.filesystem import FileSystem
from dagster_ckpt.garbage_collector import without_collection

__all__ = ["JobState", "job_state", "states_of_jobs"]

_FAILED = "FAILED"
_RUNNING = "RUNNING"
_STARTING = "STARTING"
_UNREADABLE = "UNREADABLE"
_HOUR = 3600.0
#: Jobs whose checkpoints are read side by side.
_AT_ONCE = 64
#: A process that looks at fewer jobs costs more than it saves; and the most processes.
_JOBS_OF_A_PROCESS, _MOST_PROCESSES = 250, 4
_WELL = frozenset({_RUNNING, "FINISHED", "CANCELED"})
_TO_BE_RESUMED = frozenset({"DEAD", "INTERRUPTED", "RESTARTING"})


@dataclass(frozen=True, slots=True)
class JobState:
    """How a job is doing.

    Attributes:
        job_name: the job.
        state: ``NEVER RAN``; ``STARTING``, a run has claimed the job and not beaten yet; ``RUNNING``; ``DEAD``,
            ``INTERRUPTED`` or ``RESTARTING``, the sensor resumes it, or ``dagster-ckpt run``; ``FINISHED``,
            ``CANCELED`` or ``FAILED``, it is over; ``UNREADABLE``, its records are damaged or not for this user, or the
            storage fails at them.
        reason: for people; may be empty.
        epoch: the newest, 0 before the first.
        run_id: the run that has claimed the newest epoch, ``None`` before the first.
        failures: those that the restart strategy counts, the oldest first.
        newest: the checkpoint that the job would go on from, ``None`` without a checkpoint or with a damaged one.
        failed_checkpoints: the attempts that failed since a checkpoint completed, ``None`` for none.
        due_seconds: for how long a checkpoint has been due that did not complete, by the run's clock; ``None`` where
            none is due, as in an idle stream, or the job does not run.
        token: of the claim of the newest epoch, ``None`` before the first. No other claim has this token.
        standbys: the signs of the runs that wait to take a running job over, as far as they may live.
        silent_since: when the last run was heard of, in seconds since 1970 by that run's clock; ``None`` while a run
            beats, and of a job that is over.
        damage: why the newest checkpoint cannot be found or read, and the next step; empty if all is well.
    """

    job_name: str
    state: str
    reason: str = ""
    epoch: int = 0
    run_id: str | None = None
    failures: tuple[Failure, ...] = ()
    newest: CheckpointMetadata | None = None
    failed_checkpoints: FailedCheckpoints | None = None
    due_seconds: float | None = None
    token: str | None = None
    damage: str = ""
    standbys: tuple[Heartbeat, ...] = ()
    silent_since: float | None = None

    @property
    def needs_help(self) -> bool:
        """Whether nothing happens until a person does something."""
        return self.state in {_FAILED, _UNREADABLE}

    @property
    def is_stuck(self) -> bool:
        """Whether the job is to be resumed from a damaged checkpoint, which only a run that may go past it can do."""
        return bool(self.damage) and self.is_to_be_resumed

    @property
    def is_to_be_resumed(self) -> bool:
        """Whether the job has no run that lives, and is not over."""
        return self.state in _TO_BE_RESUMED

    def age(self, now: float) -> float | None:
        """Seconds since the newest checkpoint was written, never negative; ``None`` without a checkpoint."""
        return None if self.newest is None else round(max(now - seconds_of(self.newest.written_at), 0), 1)

    def silence(self, now: float) -> float | None:
        """Seconds since the last run was heard of, never negative; ``None`` where nobody waits for a run."""
        return None if self.silent_since is None else max(now - self.silent_since, 0.0)

    def failures_in_the_last_hour(self, now: float) -> int:
        """How many of the failures are of the last hour."""
        return sum(now - failure.at <= _HOUR for failure in self.failures)

    @property
    def has_failed(self) -> bool:
        """Whether the job has ended FAILED."""
        return self.state == _FAILED


def job_state(catalog: CheckpointCatalog, clock: Clock) -> JobState:
    """How a job is doing.

    Raises:
        StorageError: the storage failed.
    """
    glance = OneLook(catalog.filesystem, catalog.job_name)
    found = _looked(CheckpointCatalog(glance, catalog.job_name), clock)
    # The job may have replaced its newest checkpoint during the look; without one, whoever searches looks twice.
    return _looked(catalog, clock) if found.newest is None else found


def states_of_jobs(filesystem: FileSystem, names: Sequence[str], clock: Clock) -> list[JobState | None]:
    """How each of many jobs is doing; ``None`` for a directory without the records of a job.

    The records that every look needs are asked for at once, for all jobs. A job that does not look well, or changes
    meanwhile, is looked at once more, by itself. Many jobs of a bucket are shared among processes: what takes long is
    the work for their requests.

    Args:
        filesystem: of all of them.
        names: of the jobs, or of any directories.
        clock: of this host.

    Raises:
        StorageError: the storage failed at every job. If it fails at some jobs, these are UNREADABLE instead, and so is
            a job whose directory is closed to this user.
    """
    own, *others = _shares(filesystem, names)
    with without_collection(), ExitStack() as processes:
        answers: list[Connection] = []
        with suppress(OSError):  # this host gives no more processes or pipes
            for share in others:
                answers.append(_fork(partial(_states, filesystem, share, clock), answers, processes))
        found = _states(filesystem, own, clock)
        for number, share in enumerate(others):
            try:
                found += answers[number].recv()
            except Exception:  # whatever befell that process, or it never began: this one tells what the storage says
                found += _states(filesystem, share, clock)
        return found


def _fork(look: Callable[[], object], before: Sequence[Connection], processes: ExitStack) -> Connection:
    """Have a new process look, which sends what it has seen and ends; where to receive that.

    The process ends with the stack at the latest. If this process is killed, the other one ends when it sends.

    Args:
        look: what the process does.
        before: where the answers of earlier ones are received.
        processes: kills this one at its end.

    Raises:
        OSError: no process can be started.
    """
    context = get_context("fork")
    answer, sent = context.Pipe(duplex=False)
    processes.enter_context(answer)
    with sent:
        process = context.Process(target=_send, args=(look, sent, (*before, answer)), daemon=True)
        process.start()
    processes.callback(process.join)
    processes.callback(process.kill)
    return answer


def _send(look: Callable[[], object], sent: Connection, inherited: Sequence[Connection]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, too, which kills this process
    for answer in inherited:
        answer.close()  # else nobody would notice at sending that the parent is dead
    with suppress(Exception):  # the parent sees the end of the pipe, and looks by itself
        sent.send(look())


def _shares(filesystem: FileSystem, names: Sequence[str]) -> Sequence[Sequence[str]]:
    """The jobs of each process, this one first; one share where a fork is not worth its while, or not safe."""
    count = min(_MOST_PROCESSES, len(names) // _JOBS_OF_A_PROCESS)
    if count <= 1 or not filesystem.is_worth_forking or sys.platform != "linux":
        return [names]
    size = -(-len(names) // min(count, len(os.sched_getaffinity(0))))
    return [names[begin : begin + size] for begin in range(0, len(names), size)]


def _states(filesystem: FileSystem, names: Sequence[str], clock: Clock) -> list[JobState | None]:
    glances = {name: OneLook(filesystem, name) for name in names}
    try:
        _ask_together(filesystem, glances)
    except StorageError as error:
        if not error.is_denied:
            filesystem.list("")  # it fails, too, if the whole storage is away; else each job is asked by itself
    failed: list[StorageError] = []

    def of(name: str) -> JobState | None:
        try:
            return asked(name)
        except StorageError as error:
            if not error.is_denied:
                failed.append(error)
            return JobState(name, _UNREADABLE, _told(error))

    def asked(name: str) -> JobState | None:
        glance = CheckpointCatalog(glances[name], name)
        if not glances[name].list(f"{name}/{CONTROL_DIR}"):
            return None
        found = _looked(glance, clock)
        is_well = found.newest is not None and found.state in _WELL
        return found if is_well else job_state(CheckpointCatalog(filesystem, name), clock)

    with ThreadPoolExecutor(_AT_ONCE, "dagster-ckpt-state") as threads:
        found = list(threads.map(of, names))
    if failed and len(failed) == len(names):
        raise failed[0]
    return found


def _ask_together(filesystem: FileSystem, glances: Mapping[str, OneLook]) -> None:
    """Ask for what a look at a job that runs well needs, for all jobs at once.

    First for the listings, then for the heartbeats and the newest records that are listed, and last for the newest
    checkpoints that the heartbeats name.
    """
    directories = [(name, f"{name}/{CONTROL_DIR}{below}") for name in glances for below in ("", "/epochs")]
    for (name, path), entries in zip(directories, filesystem.list_many([path for _, path in directories]), strict=True):
        glances[name].know(listed={path: entries})
    for paths_of in (_newest_records, _newest_manifest):
        files = [(name, path) for name, glance in glances.items() for path in paths_of(glance, name)]
        for (name, path), data in zip(files, filesystem.read_many([path for _, path in files]), strict=True):
            glances[name].know(read={path: data})


def _newest_records(glance: OneLook, name: str) -> Iterator[str]:
    """The paths of the heartbeat and of what the newest epoch has."""
    epochs = JobRecords(glance, name).epochs
    if names := epochs.names():
        yield f"{name}/{CONTROL_DIR}/heartbeat"
        newest = max(names)
        for kind in names[newest] - {"settled"}:
            yield epochs.claim_path(newest) + ("" if kind == "claim" else f".{kind}")


def _newest_manifest(glance: OneLook, name: str) -> Iterator[str]:
    """The path of the manifest that the heartbeat names, if there is one."""
    with suppress(CheckpointError):  # whoever looks at the job tells
        beat = HeartbeatFile(glance, name).read()
        if beat is not None and beat.completed is not None:
            yield f"{name}/{beat.completed.checkpoint}/{METADATA_FILE_NAME}"


def _looked(catalog: CheckpointCatalog, clock: Clock) -> JobState:
    name, records, epoch = catalog.job_name, catalog.records, 0
    try:
        epoch = records.epochs.highest()
        claim, end = records.epochs.read_claim(epoch), records.epochs.read_end(epoch)
        if claim is None:
            return JobState(name, "NEVER RAN")
        beat = records.heartbeat.read()
        failures = tuple(records.failures.of(claim.series))
    except StorageError:  # it says nothing of the records
        raise
    except CheckpointError as error:
        return JobState(name, _UNREADABLE, _told(error), epoch)
    if beat is not None and beat.run_id != claim.run_id:
        beat = None
    state, reason = _state(claim, end, beat, clock)
    newest, damage = _newest(catalog, beat if state == _RUNNING else None, clock)
    return JobState(
        name,
        state,
        reason,
        epoch,
        claim.run_id,
        failures,
        newest,
        None if beat is None else beat.failed_checkpoints,
        None if beat is None or beat.due_since is None or state != _RUNNING else beat.beat_at - beat.due_since,
        claim.token,
        damage,
        _standbys(catalog, clock) if state == _RUNNING else (),
        _heard(claim, beat) if state == _STARTING or state in _TO_BE_RESUMED else None,
    )


def _heard(claim: Claim, beat: Heartbeat | None) -> float:
    """When a run was last heard of."""
    return seconds_of(claim.claimed_at) if beat is None or beat.epoch != claim.epoch else beat.beat_at


def _standbys(catalog: CheckpointCatalog, clock: Clock) -> tuple[Heartbeat, ...]:
    signs = Standbys(catalog.filesystem, catalog.job_name).all()
    return tuple(sign for sign in signs if sign.is_dead(clock) is None)


def _newest(catalog: CheckpointCatalog, beat: Heartbeat | None, clock: Clock) -> tuple[CheckpointMetadata | None, str]:
    """The checkpoint that the job would go on from, or why nobody can tell; ``beat`` is that of a run that lives."""
    try:
        named = None if beat is None else _named_by(beat, catalog, clock)
        return named or find_newest(catalog).metadata, ""
    except StorageError:
        raise
    except CheckpointError as error:
        return None, _told(error)


def _named_by(beat: Heartbeat, catalog: CheckpointCatalog, clock: Clock) -> CheckpointMetadata | None:
    """The newest checkpoint by the word of the run that holds the job, ``None`` where only a search can tell.

    A run beats as soon as a checkpoint of its epoch completes, and nobody else adds checkpoints to this epoch. So the
    listing of its lineage, which a search asks for, would tell the same.

    Raises:
        CorruptRecord: the choice of the epoch, without which the job could not be resumed, cannot be read.
    """
    completed = beat.completed
    if completed is None or completed.epoch != beat.epoch or completed.checkpoint in catalog.records.quarantine.names():
        return None
    if abs(clock.time() - beat.beat_at) > beat.lease.timeout:
        return None  # the run may have died after a checkpoint that it could not tell any more
    if catalog.records.epochs.read_choice(beat.epoch) is None:
        return None
    job_id, _, name = completed.checkpoint.partition("/")
    try:
        metadata = catalog.load(job_id, checkpoint_id(name) or 0)
    except StorageError:
        raise
    except CheckpointError:
        return None  # deleted meanwhile, or damaged: the search says what that means
    return metadata if metadata.epoch == beat.epoch and metadata.kind not in CHANGED else None


def _told(error: CheckpointError) -> str:
    return f"{error.message} {error.hint}".strip()


def _state(claim: Claim, end: End | None, beat: Heartbeat | None, clock: Clock) -> tuple[str, str]:
    if end is not None and end.is_final:
        return end.status, end.reason
    if beat is None or beat.epoch != claim.epoch:
        return _STARTING, f"claimed at {claim.claimed_at} by process {claim.pid} on {claim.host.partition('/')[0]}"
    if beat.stopped:
        return ("RESTARTING", end.reason) if end is not None else ("INTERRUPTED", "its process was told to end")
    if (dead := beat.is_dead(clock)) is not None:
        return "DEAD", dead
    driver = beat.processes[0]
    # Only who watches for a while knows whether a run on another host still beats.
    return _RUNNING, "" if driver.is_here else f"on {driver.host.partition('/')[0]}, which beat at {iso(beat.beat_at)}"
