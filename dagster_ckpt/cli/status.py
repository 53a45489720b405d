"""``dagster-ckpt status`` and ``starts``: how each job is doing, and where the seconds of its starts went."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import click

from dagster_ckpt.checkpoint import (
    WALL,
    CheckpointMetadata,
    JobRecords,
    JobState,
    job_directories,
    states_of_jobs,
)
from dagster_ckpt.cli.places import DURATION, JSON, asked_jobs, require_job, storage_at, storage_path
from dagster_ckpt.cli.printing import say, say_json, say_table, warn
from dagster_ckpt.clock import SystemClock, iso
from dagster_ckpt.errors import StorageError
from dagster_ckpt.filesystem import FileSystem

__all__ = ["starts", "status"]

#: Seconds between two looks, at least.
_SHORTEST = 0.1
#: A checkpoint that has been due for so many seconds is told of; less is common.
_LONG = 120.0
#: Seconds that a job may be without a run: sensors and supervisors take far less.
_WITHOUT_RUN = 600.0
_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60))


@click.command()
@click.argument("job", required=False)
@storage_path
@click.option(
    "--watch",
    type=DURATION,
    help="Tell it again and again, so far apart, such as '5 s', until Ctrl-C, also while the storage is away. "
    "Not with --json.",
)
@JSON
def status(job: str | None, path: str, watch: timedelta | None, as_json: bool) -> None:
    """Tell how JOB or every job is doing: its state, its health, its run, and its newest checkpoint.

    RUNNING: its run beats. STARTING: a run has claimed the job and not beaten yet. DEAD, INTERRUPTED, RESTARTING:
    the sensor resumes it, or `dagster-ckpt run`. FINISHED, CANCELED, FAILED: it is over. UNREADABLE: its records
    are damaged, this user may not read them, or the storage fails at them and not at those of every job. The lag is
    what Kafka had beyond the newest checkpoint when that was taken, in records. Below the table: the standbys, why,
    the last failure, the checkpoints that failed in a row, and for how long nothing was heard of a run; a job that
    has such trouble, and one that needs help, say so. Exits with 5 if a job needs help: it is FAILED or UNREADABLE,
    or is to be resumed and its newest checkpoint is damaged.
    """
    if watch is None:
        sys.exit(5 if _tell(storage_at(path), job, as_json=as_json) else 0)
    if as_json:
        raise click.UsageError("--watch is for people. Leave out --json, or call `status --json` again and again.")
    pause = max(watch.total_seconds(), _SHORTEST)
    filesystem, needs_help = storage_at(path), False
    with suppress(KeyboardInterrupt):
        while True:
            try:
                needs_help = _tell(filesystem, job, as_json=False)
            except StorageError as error:  # whoever watches wants to see the storage come back
                warn(f"{error.message} {error.hint}", color="red")
            time.sleep(pause)
            click.clear()
    sys.exit(5 if needs_help else 0)


def _tell(filesystem: FileSystem, job: str | None, *, as_json: bool) -> bool:
    """Print how the jobs are doing; whether one of them needs help."""
    clock, names = SystemClock(), job_directories(filesystem) if job is None else _asked(job, filesystem)
    states = [found for found in states_of_jobs(filesystem, names, clock) if found is not None]
    now = clock.time()
    rows = [_row(found, now) for found in states]
    if as_json:
        say_json(rows)
    elif not rows:
        say(f"There is no job in {filesystem.url} yet. Is --path the checkpoint path?")
    else:
        say_table(
            ("job", "state", "health", "newest", "batch", "age", "lag", "failures (1 h)", "run", "lineage"),
            (
                (
                    row["job"],
                    row["state"],
                    row["health"],
                    found.newest.name if found.newest else "damaged" if row["checkpoint_damage"] else "none",
                    "" if row["batch"] is None else row["batch"],
                    "" if row["age_seconds"] is None else _for_people(row["age_seconds"]),
                    "" if row["lag"] is None else f"{row['lag']:,}",
                    f"{row['failures']} ({row['failures_last_hour']})" if row["failures"] else "",
                    row["run"] or "",
                    found.newest.job_id if found.newest else "",
                )
                for row, found in zip(rows, states, strict=True)
            ),
            whole="job",
            spare=("lineage", "run", "batch"),
        )
        for found in states:
            for sign in found.standbys:
                where = sign.processes[0].host.partition("/")[0]
                say(f"{found.job_name}: run {sign.run_id} on {where} is a standby: it takes over if the job's run dies")
            for line in _wrong(found, now):
                say(f"{found.job_name}: {line}", color="red" if _needs_help(found) else None)
    return any(_needs_help(found) for found in states)


def _asked(job: str, filesystem: FileSystem) -> list[str]:
    try:
        return asked_jobs(job, filesystem)
    except StorageError as error:
        if not error.is_denied:
            raise
        return [job]  # a look at the job says what this user may not read


@click.command()
@click.argument("job")
@storage_path
@click.option("--last", type=click.IntRange(1, 200), default=5, show_default=True, help="How many starts.")
@JSON
def starts(job: str, path: str, last: int, as_json: bool) -> None:
    """Tell where the seconds of the last starts of JOB went.

    One column per start, the newest last; its heading is the epoch. Steps beside one another overlap, so the total may
    be less than the sum. A star marks a figure that depends on wall clocks.
    """
    filesystem = storage_at(path)
    require_job(job, filesystem)
    found = JobRecords(filesystem, job).starts.newest(last)
    if as_json:
        say_json([{**asdict(trace), "seconds": round(trace.seconds, 3)} for trace in found])
        return
    if not found:
        say(f"No start of job {job!r} is on record in {filesystem.url}.")
        say("A start is on record once its first batch is committed, or when it has failed.")
        return
    # The steps of the newest start first, in their order; then those that only earlier starts had.
    names = list(dict.fromkeys(name for trace in reversed(found) for name in trace.by_name))
    wall = {step.name for trace in found for step in trace.steps if step.clock == WALL}
    cells = [[trace.by_name.get(name) for trace in found] for name in names]
    table = [
        (f"{name} *" if name in wall else name, *("" if cell is None else f"{cell:.2f}" for cell in row))
        for name, row in zip(names, cells, strict=True)
    ]
    total = ("total", *(f"{trace.seconds:.2f}" for trace in found))
    say_table(("seconds of", *(str(trace.epoch) for trace in found)), [*table, total], whole="seconds of")
    for trace in found:
        outcome = "" if trace.committed else ", and no batch was committed"
        say(f"epoch {trace.epoch}: run {trace.run_id}, from {trace.began_at[:19]}{outcome}")


def _needs_help(found: JobState) -> bool:
    """Whether a person has to do something, as far as the storage tells: a run may be allowed to go past damage."""
    return found.needs_help or found.is_stuck


def _row(found: JobState, now: float) -> dict[str, Any]:
    newest, last, failed = found.newest, (found.failures[-1] if found.failures else None), found.failed_checkpoints
    return {
        "job": found.job_name,
        "state": found.state,
        "health": _health(found, now),
        "reason": found.reason,
        "run": found.run_id,
        "epoch": found.epoch,
        "failures": len(found.failures),
        "failures_last_hour": found.failures_in_the_last_hour(now),
        "last_failure": None if last is None else {"at": iso(last.at), "run": last.run_id, "reason": last.reason},
        "failed_checkpoints": None if failed is None else {**asdict(failed), "at": iso(failed.at)},
        "checkpoint_due_seconds": found.due_seconds,
        "checkpoint": None if newest is None else newest.reference,
        "checkpoint_damage": found.damage or None,
        "batch": None if newest is None else newest.batch,
        "written_at": None if newest is None else newest.written_at,
        "age_seconds": found.age(now),
        "lag": None if newest is None else _lag(newest),
        "standbys": [sign.run_id for sign in found.standbys],
    }


def _health(found: JobState, now: float) -> str:
    """What `healthy` says in Dagster, as far as that is known without the job's configuration."""
    if _needs_help(found):
        return "needs help"
    has_trouble = found.damage or found.failed_checkpoints is not None or _is_late(found) or _is_left(found, now)
    return "trouble" if has_trouble else "well"


def _lag(newest: CheckpointMetadata) -> int | None:
    """How many records of Kafka were yet to be read at a checkpoint, ``None`` where no broker told."""
    topics = [partitions for source in newest.facts.sources for partitions in source.lag.values()]
    return sum(behind for partitions in topics for behind in partitions.values()) if topics else None


def _is_late(found: JobState) -> bool:
    return found.due_seconds is not None and found.due_seconds >= _LONG


def _is_left(found: JobState, now: float) -> bool:
    return (found.silence(now) or 0.0) >= _WITHOUT_RUN


def _wrong(found: JobState, now: float) -> Iterator[str]:
    """What a person should know of a job, a sentence each."""
    if found.reason:
        yield found.reason
    if _is_left(found, now):
        yield (
            f"no run was heard of for {_for_people(found.silence(now) or 0.0)}: unless its restart strategy waits that "
            "long, see that the resume sensor is on and Dagster's daemon runs, or start `dagster-ckpt run` again"
        )
    if found.has_failed:
        goes_on = "" if found.newest is None else f": it goes on from {found.newest.name}"
        yield f"mend the cause, of which the error of run {found.run_id} says more, and launch the job{goes_on}"
    if found.damage:
        yield f"the newest checkpoint cannot be restored: {found.damage}"
    if found.failures and found.failures[-1].reason not in found.reason:
        last = found.failures[-1]
        yield f"the last failure, at {iso(last.at)[:19]}Z: {last.reason}"
    if (failed := found.failed_checkpoints) is not None:
        yield f"{failed.in_a_row} checkpoints in a row failed, the last one at {iso(failed.at)[:19]}Z: {failed.reason}"
    if found.due_seconds is not None and _is_late(found):
        yield f"a checkpoint has been due for {_for_people(found.due_seconds)} and has not completed"


def _for_people(seconds: float) -> str:
    """A duration in the largest unit of which there are two, such as ``90 s`` or ``3 h``."""
    unit, size = next(((unit, size) for unit, size in _UNITS if seconds >= 2 * size), ("s", 1))
    return f"{seconds / size:.0f} {unit}"
