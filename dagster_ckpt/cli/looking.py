"""The commands that read checkpoints and change nothing."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import click

from dagster_ckpt.checkpoint import (
    CheckpointCatalog,
    CheckpointMetadata,
    find_newest,
    for_retention,
    job_names,
    reclaimable_bytes,
    verify_checkpoint,
)
from dagster_ckpt.cli.places import JSON, PATH, find_checkpoint, storage_at
from dagster_ckpt.cli.printing import say, say_json, say_table, warn
from dagster_ckpt.clock import SystemClock
from dagster_ckpt.config import LATEST, AnyOf, CheckpointConfig, KeepPinned, decide
from dagster_ckpt.errors import (
    CheckpointError,
    CheckpointNotFound,
    CorruptCheckpoint,
)

__all__ = ["describe", "list_checkpoints", "retention", "verify"]


@click.command("list")
@click.argument("job", required=False)
@PATH
@JSON
def list_checkpoints(job: str | None, path: str, as_json: bool) -> None:
    """List the completed checkpoints of JOB, or of every job, the newest last."""
    filesystem = storage_at(path)
    jobs = [job] if job else job_names(filesystem)
    if not jobs:
        raise CheckpointNotFound(f"There is no job in {filesystem.url}.", hint="Is --path the checkpoint path?")
    rows = []
    for name in jobs:
        catalog = CheckpointCatalog(filesystem, name)
        newest = _quietly(lambda catalog=catalog: find_newest(catalog).metadata)  # type: ignore[misc]
        pinned = catalog.records.pins.reasons()
        quarantined = {reference: record.reason for reference, record in catalog.records.quarantine.records().items()}
        for job_id in sorted(catalog.job_ids()):
            completed, broken = catalog.completed(job_id)
            found = [(item.reference, _row(item, catalog)) for item in completed]
            found += [(error.checkpoint, _unreadable_row(name, error)) for error in broken if error.checkpoint]
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
    if as_json:
        say_json(rows)
        return
    say_table(
        ("job", "checkpoint", "batch", "epoch", "kind", "files", "bytes", "new bytes", "written", ""),
        (
            (
                row["job"],
                row["checkpoint"],
                "?" if row["batch"] is None else str(row["batch"]),
                "?" if row["epoch"] is None else str(row["epoch"]),
                row["kind"],
                *("?" if row[name] is None else f"{row[name]:,}" for name in ("files", "bytes", "new_bytes")),
                (row["written_at"] or "?")[:19],
                ", ".join(mark for mark in ("newest", "pinned", "quarantined") if row[mark]),
            )
            for row in rows
        ),
    )
    for row in rows:
        if row["quarantined"]:
            say(f"{row['checkpoint']} is in quarantine: {row['quarantine_reason']}")


@click.command()
@click.argument("job")
@click.argument("checkpoint", default=LATEST)
@PATH
@JSON
def describe(job: str, checkpoint: str, path: str, as_json: bool) -> None:
    """Tell what CHECKPOINT of JOB holds: 'latest', chk-N, a job id with /chk-N, or a path."""
    catalog = CheckpointCatalog(storage_at(path), job)
    metadata = find_checkpoint(catalog, checkpoint)
    document = {
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
    if as_json:
        say_json(document)
        return
    for key, value in document.items():
        if key != "stored":
            say(f"{key:<14} {json.dumps(value) if isinstance(value, dict | list) else value}")
    for file in metadata.files:
        say(f"  {file.size:>12,}  {file.path}  ({file.reference or 'in _metadata'})")


@click.command()
@click.argument("job")
@click.argument("checkpoint", required=False)
@PATH
def verify(job: str, checkpoint: str | None, path: str) -> None:
    """Read every byte of CHECKPOINT of JOB, or of all its checkpoints, and compare sizes and checksums.

    Of files that a store copied without telling a checksum it is asked whether anybody wrote to them since. Exits with
    1 if anything is missing or changed.
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
        raise CheckpointNotFound(f"Job {job!r} has no completed checkpoint in {catalog.filesystem.url}.")
    bad = len(errors)
    for error in errors:
        say(error.message, color="red")
    for metadata in found:
        try:
            verify_checkpoint(catalog, metadata)
        except CheckpointError as error:
            bad += 1
            say(error.message, color="red")
            say(error.hint)
        else:
            pinned = sum(file.stored is not None and not file.stored.has_checksum for file in metadata.files)
            whole = f"{metadata.reference}  {len(metadata.files)} files, {metadata.size:,} bytes  verified"
            say(f"{whole}, {pinned} without a checksum, as not written since" if pinned else whole)
    if bad:
        sys.exit(1)


@click.command()
@click.argument("job")
@PATH
@click.option("--num-retained", type=int, default=10, show_default=True, help="Keep so many of the newest.")
@click.option("--retain-for", metavar="DURATION", help="Keep those younger than this as well, such as '7 d'.")
@click.option("--retain-every", type=int, help="Keep those whose id is a multiple of this as well.")
@JSON
def retention(
    job: str, path: str, num_retained: int, retain_for: str | None, retain_every: int | None, as_json: bool
) -> None:
    """Tell what a retention would keep and delete of JOB, why, and how many bytes that would free.

    A dry run: nothing is deleted. The options are those of CheckpointConfig. What is pinned stays in any case.
    """
    config = CheckpointConfig(num_retained=num_retained, retain_for=retain_for, retain_every=retain_every)
    catalog = CheckpointCatalog(storage_at(path), job)
    newest = find_newest(catalog)
    if newest.job_id is None:
        raise CheckpointNotFound(f"Job {job!r} has no checkpoint in {catalog.filesystem.url}: {newest.reason}.")
    everything, broken = catalog.completed(newest.job_id)
    for error in broken:
        warn(f"{error.message} While it is there, no shared file is deleted.", color="red")
    quarantined = catalog.records.quarantine.names()
    completed = [item for item in everything if item.reference not in quarantined]
    if quarantined:
        warn(f"In quarantine, neither counted nor deleted: {', '.join(sorted(quarantined))}")
    pinned = KeepPinned(catalog.records.pins.reasons())
    policy = AnyOf((pinned, config.retention)) if pinned.names else config.retention
    savepoints = catalog.records.taken_savepoints.known()
    decisions = decide(policy, for_retention(completed, savepoints), SystemClock().time())
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
    say_table(
        ("checkpoint", "written", "bytes", "", "frees", "reason"),
        (
            (
                row["checkpoint"],
                row["written_at"][:19],
                f"{row['bytes']:,}",
                "keep" if row["keep"] else "delete",
                "" if row["keep"] else f"{row['freed_bytes']:,}",
                row["reason"],
            )
            for row in rows
        ),
    )
    say(f"{len(freed)} of {len(rows)} would be deleted, which frees {sum(freed.values()):,} bytes.")


def _unreadable_row(job: str, error: CorruptCheckpoint) -> dict[str, Any]:
    unknown = dict.fromkeys(("pointer", "batch", "epoch", "files", "bytes", "new_bytes", "written_at"))
    return {"job": job, "checkpoint": error.checkpoint, **unknown, "kind": "unreadable"}


def _quietly(ask: Callable[[], CheckpointMetadata | None]) -> CheckpointMetadata | None:
    """A job whose newest checkpoint is broken is still listed; `verify` says what is wrong."""
    try:
        return ask()
    except CheckpointError as error:
        warn(error.message, color="red")
        return None


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
