"""The events of a run as a person reads them, wherever they are shown."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from dagster_ckpt.checkpoint.taking.progress import CheckpointInProgress, RestoreInProgress
from dagster_ckpt.shown_text import in_one_line, printable, redacted
from dagster_ckpt.spark.job import (
    CheckpointCompleted,
    CheckpointFailed,
    CheckpointQuarantined,
    CheckpointsDropped,
    CheckpointsUnreadable,
    EpochClaimed,
    Event,
    LiveLocationChosen,
    Replaying,
    Restarting,
    SavepointCompleted,
    SettingsIgnored,
    SparkStarted,
    Started,
)

__all__ = ["describe"]


def describe(event: Event) -> Iterator[tuple[int, str]]:
    """What tells of an event, each with its level (of :mod:`logging`); nothing where another tells it as well.

    What was read from records is in it as text only: without secrets, and without what a terminal obeys.
    """
    for level, text in _described(event):
        # An error has its hint on a line of its own; all else is one line.
        yield level, (printable if isinstance(event, Restarting) else in_one_line)(redacted(text))


def _described(event: Event) -> Iterator[tuple[int, str]]:
    match event:
        case EpochClaimed():
            pass
        case SparkStarted(seconds, web_url):
            yield logging.INFO, f"Spark started in {seconds:.1f} s{f', UI at {web_url}' if web_url else ''}"
        case LiveLocationChosen(url, reason):
            yield logging.INFO, f"The live checkpointLocation is {url}: {reason}."
        case Started():
            restored = event.restored
            origin = f"from {restored.reference} (batch {restored.batch})" if restored else "from nothing"
            yield (
                logging.INFO,
                f"Epoch {event.epoch} of lineage {event.job_id} starts {origin}: {event.reason}. "
                f"Restored in {event.restore_seconds:.2f} s.{f' Sink: {event.sink}.' if event.sink else ''}",
            )
            checks = len(event.preflight.findings)
            yield logging.INFO, f"Preflight: {event.preflight.verdict} by {checks} checks"
            for finding in event.preflight.bad:
                yield logging.WARNING, f"Preflight: {finding.check}: {finding.verdict}, {finding.reason}"
            if event.fell_back is not None:
                yield logging.WARNING, f"What this start costs: {event.fell_back}."
        case CheckpointQuarantined(record):
            yield logging.WARNING, f"{record.checkpoint} is broken and was put into quarantine: {record.reason}"
        case CheckpointsUnreadable(errors, directory):
            for error in errors:
                yield (
                    logging.WARNING,
                    f"{error.message} While it is there, no shared file of its lineage is deleted. Put it back from a "
                    f"backup, or give it up with `dagster-ckpt dispose {directory}/{error.checkpoint}`.",
                )
        case CheckpointCompleted(metadata, dropped):
            yield (
                logging.INFO,
                f"{metadata.name} completed at batch {metadata.batch}: {len(metadata.files)} files, "
                f"{metadata.size} bytes, {metadata.new_bytes} of them new",
            )
            for item in dropped:
                if item.metadata.location is not None:
                    yield logging.INFO, f"Deleted the claimed savepoint {item.metadata.reference}: {item.reason}"
        case SavepointCompleted(metadata):
            yield logging.INFO, f"Savepoint of batch {metadata.batch} completed: {metadata.reference}"
        case CheckpointInProgress() | RestoreInProgress():
            yield logging.INFO, str(event)
        case CheckpointFailed(number, reason, consecutive):
            yield logging.WARNING, f"Checkpoint {number} failed ({consecutive} in a row): {reason}"
        case SettingsIgnored(reasons):
            for reason in reasons:
                yield logging.WARNING, f"The state backend asks for what it does not get. {reason}"
        case CheckpointsDropped(dropped):
            yield logging.INFO, f"{len(dropped)} checkpoints are deleted at the end of the job"
        case Replaying(batch, last, seconds):
            yield (
                logging.INFO,
                f"Running batches {batch} to {last} again with the boundaries they had; {seconds:.0f} s so far",
            )
        case Restarting(error, reason, delay):
            yield logging.WARNING, f"{error} {reason}, in {delay:.1f} s"
