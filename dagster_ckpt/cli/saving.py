"""The commands about savepoints."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import click

from dagster_ckpt.checkpoint import (
    CheckpointCatalog,
    Label,
    SavepointHistory,
    ask_checkpoint,
    delete_surplus_savepoints,
    dispose_broken,
    dispose_savepoint,
    is_broken,
    layout,
    request_next_step,
    take_savepoint,
)
from dagster_ckpt.cli.places import DURATION, JSON, asked_jobs, of_each, storage_at, storage_option, storage_path
from dagster_ckpt.cli.printing import say, say_json, say_table, warn
from dagster_ckpt.clock import SystemClock, iso
from dagster_ckpt.config import format_size
from dagster_ckpt.errors import CheckpointError, CheckpointNotFound, InvalidConfiguration, StorageError
from dagster_ckpt.shown_text import counted

__all__ = ["checkpoint", "dispose", "savepoint", "savepoints", "stop"]

_TO = click.option(
    "--to",
    envvar="DAGSTER_CKPT_SAVEPOINT_PATH",
    help="Directory for savepoints; a running job knows its savepoint_path. [env: DAGSTER_CKPT_SAVEPOINT_PATH]",
)
_Command = Callable[..., None]
_TIMEOUT = click.option(
    "--timeout", type=DURATION, default="10 min", show_default=True, help="How long to wait for a running job."
)


def _label(command: _Command) -> _Command:
    note = click.option("--note", default="", help="A line about it, for whoever looks at it later.")
    name = click.option(
        "--name", help="Its name, unique in the job: `restore_from: savepoint:NAME` goes back to the savepoint."
    )
    return name(note(command))


@click.command()
@click.argument("job")
@storage_path
@_TO
@_label
@click.option("--series", help="The savepoints of which this is the next one, for --keep and --max-age.")
@click.option("--keep", type=click.IntRange(min=1), help="Then delete the oldest of the series beyond so many.")
@click.option("--max-age", type=DURATION, help="Then delete those of the series that are older, such as '30 d'.")
@click.option("--stop", is_flag=True, help="Stop the running job with it; it ends successfully.")
@click.option("--drain", is_flag=True, help="Not possible with Spark; refused.")
@_TIMEOUT
@JSON
def savepoint(
    job: str,
    path: str,
    to: str | None,
    name: str | None,
    note: str,
    series: str | None,
    keep: int | None,
    max_age: timedelta | None,
    stop: bool,
    drain: bool,
    timeout: timedelta,
    as_json: bool,
) -> None:
    """Take a savepoint of JOB and print its path, which restore_from takes.

    A running job takes it after the batch in flight; of a job that does not run, the newest completed checkpoint is
    copied. Nothing but `dispose` deletes a savepoint, unless --keep or --max-age is given for its series; the newest
    sound one of a series always stays. Without --name, a savepoint of a series is called SERIES-DATE-TIME.
    """
    if drain:
        raise InvalidConfiguration(
            "--drain is not possible: Spark cannot emit a final watermark, so windows that are open stay open.",
            hint="Use --stop without --drain; the windows are in the savepoint.",
        )
    history = SavepointHistory.of(keep, max_age)
    if history is not None and series is None:
        raise click.UsageError("--keep and --max-age need --series: only savepoints of a series are ever deleted.")
    _take(job, path, to, Label(name, note, series), history, stop=stop, timeout=timeout, as_json=as_json)


@click.command()
@click.argument("job")
@storage_path
@_TO
@_label
@_TIMEOUT
@JSON
def stop(job: str, path: str, to: str | None, name: str | None, note: str, timeout: timedelta, as_json: bool) -> None:
    """Stop the running JOB with a savepoint, and print its path: the job ends as FINISHED, and nothing resumes it.

    As `savepoint --stop`. If the savepoint fails, the job goes on. To go on later, run the job again.
    """
    _take(job, path, to, Label(name, note), None, stop=True, timeout=timeout, as_json=as_json)


@click.command()
@click.argument("job")
@storage_path
@click.option("--wait", is_flag=True, help="Wait until it is complete, and print it.")
@click.option("--timeout", type=DURATION, default="10 min", show_default=True, help="How long the request holds.")
@JSON
def checkpoint(job: str, path: str, wait: bool, timeout: timedelta, as_json: bool) -> None:
    """Ask the running JOB for a checkpoint at once, of what it has committed by then.

    Neither its interval nor its pause is waited for, only the batch in flight, unless its checkpoints are unaligned. If
    a checkpoint has all that is committed, that checkpoint is the answer. `dagster-ckpt savepoints` lists the request.
    """
    catalog = CheckpointCatalog(storage_at(path), job)
    pause = time.sleep if wait else None
    taken = ask_checkpoint(catalog, timeout=timeout, clock=SystemClock(), wait=pause, report=warn)
    if as_json:
        say_json({"job": job, "asked": True} if taken is None else asdict(taken))
    elif taken is not None:
        warn(f"Batch {taken.batch}, {counted(taken.files, 'file')}, {format_size(taken.size)}:")
        say(taken.pointer)


def _take(
    job: str,
    path: str,
    to: str | None,
    label: Label,
    history: SavepointHistory | None,
    *,
    stop: bool,
    timeout: timedelta,
    as_json: bool,
) -> None:
    clock, catalog = SystemClock(), CheckpointCatalog(storage_at(path), job)
    try:
        taken = take_savepoint(
            catalog,
            to,
            default=None,
            stop=stop,
            timeout=timeout,
            clock=clock,
            wait=time.sleep,
            report=warn,
            label=label,
        )
    except StorageError as error:
        if to is not None and to in error.message:
            error.hint = f"{error.hint} Name another directory for savepoints with --to.".strip()
        raise
    deleted = []
    if history is not None and label.series is not None:
        deleted = delete_surplus_savepoints(catalog, label.series, history, clock, warn, taken=taken.pointer)
    if as_json:
        say_json({**asdict(taken), "deleted": deleted})
        return
    size = f"{counted(taken.files, 'file')}, {format_size(taken.size)}"
    warn(f"Batch {taken.batch}, {size}, in {taken.seconds:.1f} s:")
    say(taken.pointer)


@click.command()
@click.argument("job", required=False)
@storage_path
@JSON
def savepoints(job: str | None, path: str, as_json: bool) -> None:
    """List the savepoints of JOB or every job that have a name, the last others that it took, and the requests.

    COMPLETED: it is there. GONE: it was taken, and is not where it was. UNREADABLE: it is there and damaged. PENDING:
    it is asked for. IN_PROGRESS: the job has taken the request up. FAILED: it was not taken. ABANDONED: nobody waits
    for it any more. Below the table: what is to be done about each request. A request is forgotten an hour after its
    answer. Of what was copied of a job that did not run, only what has a name is recorded.
    """
    filesystem = storage_at(path)
    jobs = asked_jobs(job, filesystem)
    told, were_all = of_each(jobs, lambda name: [*_savepoints(CheckpointCatalog(filesystem, name))])
    rows = [row for of_job in told for row in of_job]
    if as_json:
        say_json(rows)
    elif rows:
        _say_savepoints(job, rows)
    elif were_all:
        of = f" of {', '.join(jobs)}" if jobs else f" in {filesystem.url}"
        say(f"No savepoint{of} is on record, and none is asked for.")
    sys.exit(0 if were_all else 1)


def _say_savepoints(job: str | None, rows: Sequence[dict[str, Any]]) -> None:
    say_table(
        ("job", "name", "state", "savepoint", "batch", "size", "at", "note"),
        (
            (
                row["job"],
                row["name"] or "",
                row["state"],
                row["savepoint"] or "",
                "" if row["batch"] is None else row["batch"],
                "" if row["bytes"] is None else format_size(row["bytes"]),
                (row["at"] or "")[:19],
                row["reason"] or row["note"],
            )
            for row in rows
        ),
        whole="savepoint",
        spare=("job",) * (job is not None) + ("size", "batch"),
    )
    for row in rows:
        if row["next_step"]:
            what = " ".join(filter(None, (row["job"], row["kind"], row["name"])))
            say(f"{what}: {row['state']}. {row['next_step']}")


def _savepoints(catalog: CheckpointCatalog) -> Iterator[dict[str, Any]]:
    """The recorded savepoints of a job and the requests, oldest first."""
    unknown = {
        "job": catalog.job_name,
        "kind": "savepoint",
        "name": None,
        "series": None,
        "note": "",
        "savepoint": None,
        "batch": None,
        "bytes": None,
        "at": None,
        "reason": "",
        "next_step": "",
    }
    taken = catalog.records.taken_savepoints
    named = {item.reference: item for item in taken.all_named()}
    keys = {item.reference: item.key for item in taken.known()} | {at: item.key for at, item in named.items()}
    for reference, key in sorted(keys.items(), key=lambda pair: pair[1]):
        row = {**unknown, "savepoint": reference}
        if (label := named.get(reference)) is not None:
            row |= {"name": label.name, "series": label.series, "note": label.note, "at": label.named_at}
        try:
            found = catalog.resolve(reference)
            told = {"batch": found.batch, "bytes": found.size, "at": found.written_at, "state": "COMPLETED"}
            told |= {} if label is not None else {"name": found.given_name, "note": found.note}
        except CheckpointNotFound:
            told = {"state": "GONE"}
        except CheckpointError as error:
            told = {"state": "UNREADABLE", "reason": error.message}
        yield {**row, "id": key[1], **told}
    now, epoch = SystemClock().time(), catalog.records.epochs.highest()
    for asked in catalog.records.savepoint_requests.unread():
        request, answer = asked.request, asked.answer
        state, done = asked.state(now, epoch), None if answer is None else answer.savepoint
        if done is not None and not request.checkpoint:
            continue  # it is on record
        yield {
            **unknown,
            "kind": request.kind,
            "name": request.name,
            "series": request.series,
            "note": request.note,
            "state": str(state),
            "savepoint": request.target if done is None else done.pointer,
            "batch": None if done is None else done.batch,
            "bytes": None if done is None else done.size,
            "at": iso(request.asked_at if answer is None else answer.answered_at),
            "reason": "" if answer is None else answer.error,
            "next_step": request_next_step(request, state, "" if answer is None else answer.hint),
            "id": None if done is None else done.checkpoint_id,
        }


@click.command()
@click.argument("savepoint")
@storage_option
@JSON
def dispose(savepoint: str, as_json: bool) -> None:
    """Delete the savepoint in the directory SAVEPOINT. Broken off, it is finished by the same command.

    Also the directory of a checkpoint that is in quarantine, or whose _metadata cannot be read.
    """
    if not savepoint or savepoint.startswith("savepoint:"):
        raise InvalidConfiguration(
            f"{savepoint!r} is no directory of a savepoint.",
            hint="Name the directory, as `dagster-ckpt savepoints` shows it.",
        )
    directory = storage_at(savepoint.rstrip("/").removesuffix(f"/{layout.METADATA_FILE_NAME}")).url
    parent, _, name = directory.rpartition("/")
    above, _, lineage = parent.rpartition("/")
    if layout.is_job_id(lineage) and (number := layout.checkpoint_id(name)) is not None:
        root, _, job = above.rpartition("/")
        catalog = CheckpointCatalog(storage_at(root), job)
        if is_broken(catalog, lineage, number):
            done = dispose_broken(catalog, lineage, number)
            if as_json:
                say_json({"directory": directory, "deleted": done, "left": []})
                return
            later = f"Job {job} is not over: its next checkpoint, or its next start, deletes {directory}."
            say(f"{directory} is deleted." if done else later)
            return
    unknown = dispose_savepoint(storage_at(parent or "/"), name)
    if as_json:
        say_json({"directory": directory, "deleted": True, "left": list(unknown)})
        return
    say(f"{directory} is no savepoint any more.")
    if unknown:
        warn(f"Its directory stays, for what is not of the savepoint: {', '.join(unknown)}")
