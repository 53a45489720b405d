"""The checks of a stored checkpoint alone: without its query, and without Spark."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from dagster_ckpt.checkpoint import (
    CheckpointCatalog,
    CheckpointMetadata,
    PlannedBatch,
    materialize_checkpoint,
    verify_checkpoint,
)
from dagster_ckpt.clock import Clock
from dagster_ckpt.config import LATEST, CheckpointingMode
from dagster_ckpt.errors import CheckpointError
from dagster_ckpt.spark.preflight.checkpoint_checks import (
    files_finding,
    in_flight_batch,
    log_finding,
    others_finding,
    replay_finding,
    sink_finding,
    version_finding,
    with_in_flight,
)
from dagster_ckpt.spark.preflight.source_files import source_finding
from dagster_ckpt.spark.sinks import recorded_sink
from dagster_ckpt.spark.verdict import Finding, Preflight

__all__ = ["check_stored"]

_STATE = "checkpoint/state/"


def check_stored(
    catalog: CheckpointCatalog,
    restored: CheckpointMetadata,
    *,
    asked: str,
    clock: Clock,
    wait: Callable[[float], object],
) -> Preflight:
    """Check a stored checkpoint as far as possible without its query and without Spark. Changes nothing.

    Args:
        catalog: the job's checkpoints.
        restored: the checkpoint.
        asked: the ``restore_from`` that would ask for this checkpoint; ``latest`` also replays the batches after it.
        clock: wall and monotonic time.
        wait: sleeps for this many seconds, while the check watches whether a run on another host is alive.
    """
    try:
        verify_checkpoint(catalog, restored)
        files = files_finding(restored)
    except CheckpointError as error:
        files = Finding.of_error("files", error)
    findings = [files, version_finding(restored.facts.spark_version, _spark_here())]
    with tempfile.TemporaryDirectory(prefix="dagster-ckpt-preflight-") as scratch:
        directory = Path(scratch) / "unpacked"
        small = tuple(file for file in restored.files if not file.path.startswith(_STATE))
        try:
            materialize_checkpoint(catalog, replace(restored, files=small), directory)
        except CheckpointError:
            findings.append(Finding.fine("all else", "not checked: it is told by files that are broken."))
        else:
            findings += _of_unpacked(catalog, restored, directory, asked)
    heartbeat, dead = catalog.records.heartbeat.watched(clock, wait)
    findings.append(others_finding(catalog.job_name, heartbeat, dead))
    return Preflight(restored.reference, tuple(findings))


def _of_unpacked(
    catalog: CheckpointCatalog, restored: CheckpointMetadata, directory: Path, asked: str
) -> list[Finding]:
    location = directory / "checkpoint"
    archive = catalog.records.plans(restored.job_id)
    findings = [log_finding(restored, location)]
    known: Sequence[PlannedBatch] = ()
    try:
        known = archive.after(restored)
    except CheckpointError as error:
        findings.append(Finding.of_error("archive", error))
    replayed = asked == LATEST and known
    plans = known if replayed else with_in_flight(known, location, restored.batch)
    sink = None if restored.sink is None else recorded_sink(restored.sink)
    again = [plan.batch for plan in known] if replayed else in_flight_batch(location, restored.batch)
    if restored.sink is not None and sink is None:
        kind = restored.sink.get("kind")
        findings.append(Finding.fine("sink position", f"not checked: only the query knows its {kind} sink."))
    else:
        if sink is not None:
            findings.append(sink_finding(restored, sink, directory / "sink"))
        kept = None if restored.mode == CheckpointingMode.EXACTLY_ONCE else "query's"
        findings.append(replay_finding(restored, sink, kept, again, [plan.batch for plan in plans]))
    return [*findings, source_finding(plans, restored.facts)]


def _spark_here() -> str | None:
    try:
        return version("pyspark")
    except PackageNotFoundError:
        return None
