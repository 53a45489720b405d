"""The checks of a stored checkpoint alone: without its query, and without Spark."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from dagster_ckpt.checkpoint import (
    CheckpointCatalog,
    CheckpointMetadata,
    Heartbeat,
    PlannedBatch,
    materialize_checkpoint,
    verify_checkpoint,
)
from dagster_ckpt.clock import Clock
from dagster_ckpt.config import LATEST, CheckpointingMode, RestoreRequest
from dagster_ckpt.errors import CheckpointError, JobAlreadyRunning
from dagster_ckpt.filesystem import scratch_directory
from dagster_ckpt.spark.moved_sources import MOVE_CHECK, moved_partitions, stored_move_findings
from dagster_ckpt.spark.preflight.another_sink import SinkName, moved_finding, moved_since
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
from dagster_ckpt.spark.preflight.kafka_topics import kafka_findings_as_told, newest_of
from dagster_ckpt.spark.preflight.later_input import later_input_findings
from dagster_ckpt.spark.preflight.source_files import source_finding
from dagster_ckpt.spark.rescale import RESCALE_CHECK, Rescale, rescale_finding
from dagster_ckpt.spark.sinks import recorded_sink
from dagster_ckpt.spark.verdict import Finding, Preflight

__all__ = ["check_exported", "check_stored", "check_unpacked"]

_STATE = "checkpoint/state/"
_STOP_IDLE = (
    "Launch the job, stop it when it has read all its input, and export latest. Where the sink replaces a batch that "
    "it has, nothing is doubled."
)


def check_stored(
    catalog: CheckpointCatalog,
    restored: CheckpointMetadata,
    request: RestoreRequest,
    *,
    clock: Clock,
    wait: Callable[[float], object],
    terminates: Collection[str] = (),
) -> Preflight:
    """Check a stored checkpoint as far as possible without its query and without Spark. Changes nothing.

    Args:
        catalog: the job's checkpoints.
        restored: the checkpoint.
        request: what would ask for this checkpoint. ``latest`` also replays the batches after it, unless the restored
            copy would be changed: the batches then get new boundaries.
        clock: wall and monotonic time.
        wait: sleeps for this many seconds, while the check watches whether a run on another host is alive.
        terminates: the ids of runs that would be terminated before the restore.
    """
    try:
        verify_checkpoint(catalog, restored)
        files = files_finding(restored)
    except CheckpointError as error:
        files = Finding.of_error("files", error)
    findings = [files, version_finding(restored.facts.spark_version, _spark_here())]
    with scratch_directory() as scratch:
        directory = scratch / "unpacked"
        small = tuple(file for file in restored.files if not file.path.startswith(_STATE))
        try:
            materialize_checkpoint(catalog, replace(restored, files=small), directory)
        except CheckpointError as error:
            told = Finding.fine("all else", "not checked: it is told by files that are broken.")
            findings.append(told if files.error is not None else Finding.of_error("all else", error))
        else:
            asked = restored.reference if request.changes_copy else request.restore_from
            findings += check_unpacked(catalog, restored, directory, asked)
            newest = newest_of(catalog)
            findings += kafka_findings_as_told(restored, newest, moved_partitions(request.start_sources, restored))
            if request.changes_copy:
                findings += _changed(catalog, restored, directory / "checkpoint", request, newest)
    heartbeat, dead = catalog.records.heartbeat.watched(clock, wait)
    findings.append(others_finding(catalog, heartbeat, dead, terminates=terminates))
    return Preflight(restored.reference, tuple(findings))


def _changed(
    catalog: CheckpointCatalog,
    restored: CheckpointMetadata,
    location: Path,
    request: RestoreRequest,
    newest: CheckpointMetadata | None,
) -> list[Finding]:
    """Whether the restored copy can be changed as asked, as far as a checkpoint tells."""
    partitions = request.state_partitions
    try:
        known = [plan.batch for plan in catalog.records.plans(restored.job_id).after(restored)]
        sink = None if restored.sink is None else recorded_sink(restored.sink)
    except CheckpointError as error:
        return [Finding.of_error(MOVE_CHECK if partitions is None else RESCALE_CHECK, error)]
    later = sorted({*known, *in_flight_batch(location, restored.batch)})
    if partitions is not None:
        return [rescale_finding(Rescale(partitions, _spark_here(), sink=sink, later=later), restored)]
    return stored_move_findings(request.start_sources or {}, restored, sink, later, newest)


def check_unpacked(
    catalog: CheckpointCatalog, restored: CheckpointMetadata, directory: Path, asked: str
) -> list[Finding]:
    """Check the logs, the sink and the input of a checkpoint that was unpacked, without its state. Changes nothing.

    Args:
        catalog: the job's checkpoints.
        restored: the checkpoint.
        directory: where the checkpoint was unpacked.
        asked: the ``restore_from`` that would ask for the checkpoint; ``latest`` also replays the batches after it.
    """
    location = directory / "checkpoint"
    archive = catalog.records.plans(restored.job_id)
    findings = [log_finding(restored, location, _spark_here())]
    known: Sequence[PlannedBatch] = ()
    try:
        known = archive.after(restored)
    except CheckpointError as error:
        findings.append(Finding.of_error("archive", error))
    replayed = asked == LATEST and known
    plans = known if replayed else with_in_flight(known, location, restored.batch)
    moved = moved_since(catalog, restored)
    name = SinkName.of_position(restored.sink) if moved is None else SinkName.of_choice(moved)
    # A position tells more of its sink than the name.
    sink = recorded_sink(restored.sink) if moved is None and restored.sink is not None else name.recorded()
    again = [plan.batch for plan in known] if replayed else in_flight_batch(location, restored.batch)
    if moved is not None:
        findings.append(moved_finding(moved, restored, asked))
    elif sink is not None:
        findings.append(sink_finding(restored, sink, directory / "sink"))
    if name.kind is not None and sink is None:
        findings.append(Finding.fine("sink position", f"not checked: only the query knows its {name.kind} sink."))
    else:
        kept = None if restored.mode == CheckpointingMode.EXACTLY_ONCE else "query's"
        findings.append(replay_finding(restored, sink, kept, again, [plan.batch for plan in plans]))
    later = later_input_findings(catalog, restored, location, plans)
    return [*findings, source_finding(plans, restored.facts), *later]


def check_exported(
    catalog: CheckpointCatalog,
    restored: CheckpointMetadata,
    directory: Path,
    heartbeat: Heartbeat | None,
    dead: str | None,
    epoch: int,
) -> list[Finding]:
    """Check a checkpoint that was unpacked, and verified on the way, for Spark alone to go on with.

    Args:
        catalog: the job's checkpoints.
        restored: the checkpoint.
        directory: where the checkpoint was unpacked.
        heartbeat: the job's heartbeat, as read.
        dead: why the run of the heartbeat is dead, ``None`` while that run may be alive.
        epoch: the newest.
    """
    location = directory / "checkpoint"
    sink = None if restored.sink is None else recorded_sink(restored.sink)
    return [
        log_finding(restored, location),
        _written_again(catalog, restored) if sink is None else sink_finding(restored, sink, directory / "sink"),
        source_finding(with_in_flight((), location, restored.batch), restored.facts),
        others_finding(catalog, heartbeat, dead),
        _over_finding(catalog, epoch, None if dead is not None or heartbeat is None else heartbeat.epoch),
    ]


def _over_finding(catalog: CheckpointCatalog, epoch: int, alive: int | None) -> Finding:
    """Whether nobody restarts the job by himself: its newest epoch has a final end, or the job never ran here.

    ``alive`` is the epoch of a run that may be alive, ``None`` without one.
    """
    check, name, path = "job", catalog.job_name, catalog.filesystem.path_option
    try:
        claim, end = catalog.records.epochs.read_claim(epoch), catalog.records.epochs.read_end(epoch)
    except CheckpointError as error:
        return Finding.of_error(check, error)
    if claim is None or (end is not None and end.is_final):
        return Finding.fine(check, "it never ran." if end is None else f"over: {end.status}, {end.reason}")
    if alive is not None and alive >= epoch:
        running = JobAlreadyRunning(
            f"Job {name!r} is not over: run {claim.run_id} (epoch {epoch}) drives it.",
            hint=f"End it with `dagster-ckpt stop {name} {path}` or by Terminate; then export again.",
        )
        return Finding.of_error(check, running)
    refusal = JobAlreadyRunning(
        f"Job {name!r} is not over: run {claim.run_id} (epoch {epoch}) "
        f"{'failed and is to be restarted' if end else 'died without an end'}. The resume sensor or `dagster-ckpt run` "
        "would go on with the job, and two queries would write to one output.",
        hint=f"Terminate the job in Dagster; or launch it, and end it with `dagster-ckpt stop {name} {path}`; or "
        f"let `dagster-ckpt sweep {name} --older-than '1 min' {path}` end it where it is. Then export again.",
    )
    return Finding.of_error(check, refusal)


def _written_again(catalog: CheckpointCatalog, restored: CheckpointMetadata) -> Finding:
    """Whether a sink that only the query knows may have batches that Spark alone writes again, or plans anew."""
    try:
        known = {plan.batch for plan in catalog.records.plans(restored.job_id).after(restored)}
    except CheckpointError as error:
        return Finding.of_error("archive", error)
    carried = restored.facts.planned_batch  # it was under way then, whether the archive came to it or not
    later = sorted(known if carried is None else {*known, carried})
    found = replay_finding(restored, None, "query's", [], later)
    return replace(found, hint=_STOP_IDLE) if later else found


def _spark_here() -> str | None:
    try:
        return version("pyspark")
    except PackageNotFoundError:
        return None
