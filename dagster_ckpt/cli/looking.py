"""The commands that read checkpoints and change nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from math import inf
from typing import Any

import click

from dagster_ckpt.checkpoint import (
    CheckpointCatalog,
    CheckpointMetadata,
    find_newest,
    for_retention,
    reclaimable_bytes,
    verify_checkpoint,
)
from dagster_ckpt.cli.places import (
    DURATION,
    JSON,
    asked_jobs,
    find_checkpoint,
    nothing_there,
    of_each,
    require_job,
    say_nothing_there,
    storage_at,
    storage_path,
)
from dagster_ckpt.cli.printing import for_people, progress, say, say_json, say_table, warn
from dagster_ckpt.clock import SystemClock
from dagster_ckpt.config import LATEST, CheckpointConfig, format_size
from dagster_ckpt.errors import (
    CheckpointError,
    CheckpointNotFound,
    CorruptCheckpoint,
    StorageError,
)
from dagster_ckpt.shown_text import counted

__all__ = ["describe", "diff", "list_checkpoints", "retention", "verify"]

#: The exit status of `verify` when the storage failed, which says nothing of a checkpoint.
_STORAGE_FAILED = 8


@click.command("list")
@click.argument("job", required=False)
@storage_path
@JSON
def list_checkpoints(job: str | None, path: str, as_json: bool) -> None:
    """List the completed checkpoints of JOB, or of every job, each job's newest last."""
    filesystem = storage_at(path)
    jobs = asked_jobs(job, filesystem)
    told, were_all = of_each(jobs, lambda name: _listed(CheckpointCatalog(filesystem, name)))
    rows = [row for of_job in told for row in of_job]
    if as_json:
        say_json(rows)
    elif not jobs:
        say(f"There is no job in {filesystem.url} yet. Is --path the checkpoint path?")
    elif rows:
        _say_listed(job, jobs, rows)
    elif were_all:
        say(f"No checkpoint of {', '.join(jobs)} is complete yet. See `dagster-ckpt status {filesystem.path_option}`.")
    sys.exit(0 if were_all else 1)


def _listed(catalog: CheckpointCatalog) -> list[dict[str, Any]]:
    """The checkpoints of a job, the oldest first."""
    pinned = catalog.records.pins.reasons()
    newest = _quietly(lambda: find_newest(catalog).metadata)
    rows: list[dict[str, Any]] = []
    quarantined = {reference: record.reason for reference, record in catalog.records.quarantine.records().items()}
    for job_id in sorted(catalog.job_ids()):
        completed, broken = catalog.completed(job_id)
        found = [(item.reference, _row(item, catalog)) for item in completed]
        found += [(error.checkpoint, _unreadable_row(catalog.job_name, error)) for error in broken if error.checkpoint]
        rows += [
            {
                **row,
                "newest": newest is not None and reference == newest.reference,
                "pinned": reference in pinned,
                "pin_reason": pinned.get(reference, ""),
                "quarantined": reference in quarantined,
                "quarantine_reason": quarantined.get(reference, ""),
            }
            for reference, row in found
        ]
        for error in broken:
            warn(error.message, color="red")
    # Lineages may take turns, and epochs only rise; nobody knows the epoch of an unreadable checkpoint.
    return sorted(rows, key=lambda row: inf if row["epoch"] is None else row["epoch"])


def _say_listed(job: str | None, jobs: Sequence[str], rows: Sequence[dict[str, Any]]) -> None:
    lineages = {row["checkpoint"].partition("/")[0] for row in rows}
    is_one = job is not None and len(lineages) == 1
    say_table(
        ("job", "checkpoint", "batch", "epoch", "kind", "files", "size", "new", "written", ""),
        (
            (
                row["job"],
                row["checkpoint"].rpartition("/")[2] if is_one else row["checkpoint"],
                "?" if row["batch"] is None else str(row["batch"]),
                "?" if row["epoch"] is None else str(row["epoch"]),
                row["kind"],
                "?" if row["files"] is None else f"{row['files']:,}",
                *("?" if row[name] is None else format_size(row[name]) for name in ("bytes", "new_bytes")),
                (row["written_at"] or "?")[:19],
                ", ".join(mark for mark in ("newest", "pinned", "quarantined") if row[mark]),
            )
            for row in rows
        ),
        whole="checkpoint",
        spare=("job",) * (len(jobs) == 1) + ("files", "new", "kind", "epoch", "size", "batch"),
    )
    if is_one:
        say(f"All of lineage {lineages.pop()}.")
    for row in rows:
        if row["quarantined"]:
            say(f"{row['checkpoint']} is in quarantine: {row['quarantine_reason']}")


@click.command()
@click.argument("job")
@click.argument("checkpoint", default=LATEST)
@storage_path
@JSON
def describe(job: str, checkpoint: str, path: str, as_json: bool) -> None:
    """Tell what CHECKPOINT of JOB holds: 'latest', chk-N, a job id with /chk-N, savepoint:NAME, or a path."""
    catalog = CheckpointCatalog(storage_at(path), job)
    metadata = find_checkpoint(catalog, checkpoint)
    document = _document(metadata, catalog)
    if as_json:
        say_json(document)
        return
    told = {key: value for key, value in _flat(document).items() if key != "stored"}
    for key, value in told.items():
        say(f"{key:<24} {for_people(key, value)}")
    for file in metadata.files:
        say(f"  {format_size(file.size):>12}  {file.path}  ({file.reference or 'in _metadata'})")


@click.command()
@click.argument("job")
@click.argument("one")
@click.argument("other", default=LATEST)
@storage_path
@JSON
def diff(job: str, one: str, other: str, path: str, as_json: bool) -> None:
    """Tell what differs between checkpoint ONE of JOB and the OTHER one, by default the newest.

    Each is 'latest', chk-N, a job id with /chk-N, savepoint:NAME, or a path. Compared is what `describe` tells, with
    offsets, state and the sink's position, and which of Spark's files only one of them holds.
    """
    catalog = CheckpointCatalog(storage_at(path), job)
    metadata = [find_checkpoint(catalog, checkpoint) for checkpoint in (one, other)]
    left, right = (_flat(_document(item, catalog)) for item in metadata)
    always = {"checkpoint", "pointer", "stored"}
    keys = [key for key in {**left, **right} if key not in always and left.get(key) != right.get(key)]
    files = [{(file.path, file.size) for file in item.files} for item in metadata]
    names = [item.reference for item in metadata]
    gone, new = ([file for file, _ in sorted(found)] for found in (files[0] - files[1], files[1] - files[0]))
    if as_json:
        differs = {key: [left.get(key), right.get(key)] for key in keys}
        say_json({"one": names[0], "other": names[1], "differs": differs, "only_in_one": gone, "only_in_other": new})
        return
    if not (keys or gone or new):
        same = f"{names[0]} is compared with itself" if names[0] == names[1] else f"{names[0]} and {names[1]}"
        say(f"{same}: nothing differs.")
        return
    say_table(
        ("", *names), ((key, *(for_people(key, side.get(key)) for side in (left, right))) for key in keys), whole=""
    )
    for line in [*(f"- {file}" for file in gone), *(f"+ {file}" for file in new)]:
        say(line)


@click.command()
@click.argument("job")
@click.argument("checkpoint", required=False)
@storage_path
@JSON
def verify(job: str, checkpoint: str | None, path: str, as_json: bool) -> None:
    """Read every byte of CHECKPOINT of JOB, or of all its checkpoints, and compare sizes and checksums.

    If a storage has copied files and tells no checksums of them, it is asked whether anybody has written to them since.
    Exits with 1 if anything is missing or changed, else with 8 if the storage failed. A checkpoint that a running job
    deletes meanwhile is named, and is not an error as long as another one was verified.
    """
    catalog = CheckpointCatalog(storage_at(path), job)
    found: list[CheckpointMetadata] = []
    errors: list[CorruptCheckpoint] = []
    if checkpoint is not None:
        found.append(find_checkpoint(catalog, checkpoint))
    else:
        for job_id in sorted(catalog.job_ids()):
            completed, broken = catalog.completed(job_id)
            found += completed
            errors += broken
    if not found and not errors:
        require_job(job, catalog.filesystem)
        if as_json:
            say_json([])
        raise nothing_there(catalog, "no checkpoint is complete")
    if not as_json:
        for error in errors:
            say(error.message, color="red")
    has_failed = False
    rows: list[dict[str, Any]] = [
        {"checkpoint": error.checkpoint, "verified": False, "reason": error.message} for error in errors
    ]
    for metadata in found:
        row: dict[str, Any] = {"checkpoint": metadata.reference, "verified": True, "reason": ""}
        try:
            with progress(f"Verifying {metadata.name}", metadata.size) as told:
                verify_checkpoint(catalog, metadata, told)
        except CheckpointNotFound as error:
            if checkpoint is not None:
                raise
            row |= {"verified": None, "reason": error.message}
        except StorageError as error:
            row |= {"verified": None, "reason": f"{error.message}\n{error.hint}"}
            has_failed = True
        except CheckpointError as error:
            row |= {"verified": False, "reason": f"{error.message}\n{error.hint}"}
        else:
            pinned = sum(file.stored is not None and not file.stored.has_checksum for file in metadata.files)
            row |= {"files": len(metadata.files), "bytes": metadata.size, "without_checksum": pinned}
        rows.append(row)
        if not as_json:
            _say_verified(row)
    if as_json:
        say_json(rows)
    if any(row["verified"] is False for row in rows):
        sys.exit(1)
    if has_failed:
        sys.exit(_STORAGE_FAILED)
    if not any(row["verified"] for row in rows):
        raise CheckpointNotFound(
            f"Every checkpoint of job {job!r} was deleted before all of its files were read.",
            hint=f"Keep one with `dagster-ckpt pin {job} latest {catalog.filesystem.path_option}`, and verify "
            "that one.",
        )


def _say_verified(row: dict[str, Any]) -> None:
    if not row["verified"]:
        for line in row["reason"].splitlines():
            say(line, color="red" if row["verified"] is False else None)
        return
    whole = f"{row['checkpoint']}  {counted(row['files'], 'file')}, {format_size(row['bytes'])}  verified"
    without = row["without_checksum"]
    say(f"{whole}; {without} have no checksum, and nobody has written to them since" if without else whole)


@click.command()
@click.argument("job")
@storage_path
@click.option(
    "--num-retained", type=click.IntRange(1), default=10, show_default=True, help="Keep so many of the newest."
)
@click.option("--retain-for", type=DURATION, help="Keep those younger than this as well, such as '7 d'.")
@click.option("--retain-every", type=click.IntRange(1), help="Keep those whose id is a multiple of this as well.")
@JSON
def retention(
    job: str, path: str, num_retained: int, retain_for: timedelta | None, retain_every: int | None, as_json: bool
) -> None:
    """Tell what a retention would keep and delete of JOB, why, and how many bytes that would free.

    A dry run: nothing is deleted. The options are those of CheckpointConfig. What is pinned stays in any case.
    """
    config = CheckpointConfig(num_retained=num_retained, retain_for=retain_for, retain_every=retain_every)
    catalog = CheckpointCatalog(storage_at(path), job)
    newest = find_newest(catalog)
    if newest.job_id is None:
        say_nothing_there(catalog, newest.reason, as_json=as_json)
        return
    everything, broken = catalog.completed(newest.job_id)
    for error in broken:
        warn(f"{error.message} While it is there, no shared file is deleted.", color="red")
    quarantined = catalog.records.quarantine.names()
    completed = [item for item in everything if item.reference not in quarantined]
    if quarantined:
        warn(f"In quarantine, neither counted nor deleted: {', '.join(sorted(quarantined))}")
    with_pins = replace(config.retention, pinned=catalog.records.pins.reasons())
    savepoints = catalog.records.taken_savepoints.known()
    decisions = with_pins.decide(for_retention(completed, savepoints), SystemClock().time())
    freed = reclaimable_bytes(catalog, everything, {decision.name for decision in decisions if not decision.keep})
    rows = [
        {
            **_row(metadata, catalog),
            "keep": decision.keep,
            "reason": decision.reason,
            "freed_bytes": freed.get(metadata.reference, 0),
        }
        for metadata, decision in zip(completed, decisions, strict=True)
    ]
    if as_json:
        say_json(rows)
        return
    if not rows:
        say(
            f"No checkpoint of {job} is complete yet. See `dagster-ckpt status {job} {catalog.filesystem.path_option}`."
        )
        return
    say_table(
        ("checkpoint", "written", "size", "", "frees", "reason"),
        (
            (
                row["checkpoint"],
                row["written_at"][:19],
                format_size(row["bytes"]),
                "keep" if row["keep"] else "delete",
                "" if row["keep"] else format_size(row["freed_bytes"]),
                row["reason"],
            )
            for row in rows
        ),
        whole="checkpoint",
        spare=("size", "written"),
    )
    say(f"{len(freed)} of {len(rows)} would be deleted, which frees {format_size(sum(freed.values()))}.")
    say(f"This is for --num-retained {num_retained}. The job's own may differ.")


def _unreadable_row(job: str, error: CorruptCheckpoint) -> dict[str, Any]:
    unknown = dict.fromkeys(("pointer", "batch", "epoch", "files", "bytes", "new_bytes", "written_at"))
    return {"job": job, "checkpoint": error.checkpoint, **unknown, "kind": "unreadable"}


def _quietly(ask: Callable[[], CheckpointMetadata | None]) -> CheckpointMetadata | None:
    """A job whose newest checkpoint is broken, or out of reach, is still listed; `verify` says what is wrong."""
    try:
        return ask()
    except CheckpointError as error:
        warn(error.message, color="red")
        return None


def _document(metadata: CheckpointMetadata, catalog: CheckpointCatalog) -> dict[str, Any]:
    """Everything that is known of a checkpoint."""
    return {
        **_row(metadata, catalog),
        "mode": metadata.mode,
        "restored_from": metadata.restored_from,
        "accepted_loss": metadata.facts.accepted_loss,
        "timings_ms": dict(metadata.timings_ms),
        "writer": dict(metadata.writer),
        "spark": metadata.facts.to_json(),
        "sink": None if metadata.sink is None else dict(metadata.sink),
        "stored": [
            {"path": file.path, "bytes": file.size, "in": file.reference or "_metadata"} for file in metadata.files
        ],
    }


def _flat(document: dict[str, Any], before: str = "") -> dict[str, Any]:
    """The values of a document by their dotted keys."""
    found: dict[str, Any] = {}
    for key, value in document.items():
        name = f"{before}{key}"
        if isinstance(value, dict):
            found |= _flat(value, f"{name}.")
        else:
            found[name] = value
    return found


def _row(metadata: CheckpointMetadata, catalog: CheckpointCatalog) -> dict[str, Any]:
    files: Sequence[object] = metadata.files
    return {
        "job": metadata.job_name,
        "checkpoint": metadata.reference,
        "pointer": catalog.pointer(metadata),
        "batch": metadata.batch,
        "epoch": metadata.epoch,
        "kind": metadata.kind,
        "files": len(files),
        "bytes": metadata.size,
        "new_bytes": metadata.new_bytes,
        "written_at": metadata.written_at,
    }
