"""The preflight checks that need only a checkpoint: no query, and no Spark."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from dagster_ckpt.checkpoint import CheckpointCatalog, CheckpointMetadata, Heartbeat, PlannedBatch
from dagster_ckpt.errors import (
    CaptureIncomplete,
    CheckpointError,
    CorruptCheckpoint,
    JobAlreadyRunning,
    RestoreRefused,
)
from dagster_ckpt.spark.batches import PlannedBatches, planned_files, planned_offsets
from dagster_ckpt.spark.files import CheckpointLocation
from dagster_ckpt.spark.preflight.source_files import batches
from dagster_ckpt.spark.releases import minor_of, newest_version, release_of
from dagster_ckpt.spark.sinks import Sink
from dagster_ckpt.spark.verdict import Finding, Verdict

__all__ = [
    "AFTER_IT",
    "files_finding",
    "in_flight",
    "in_flight_batch",
    "log_finding",
    "log_gap",
    "others_finding",
    "replay_finding",
    "sink_finding",
    "version_finding",
    "with_in_flight",
]

#: The check of what the sink has of later batches.
AFTER_IT = "batches after it"
_WITHOUT = "Put the files back where they were. To go on without these rows, launch with allow_loss: true."
_ANOTHER = "Restore another checkpoint; `dagster-ckpt list` shows them."


def files_finding(restored: CheckpointMetadata) -> Finding:
    """The finding that the checkpoint's files have been read and are what was written."""
    return Finding.fine("files", f"all {len(restored.files)} files ({restored.size:,} bytes) are what was written.")


def log_gap(batch: int, offsets: Collection[int], commits: Collection[int], *, stateful: bool) -> str | None:
    """What is wrong with a checkpoint's write-ahead log, ``None`` when Spark would resume right after ``batch``.

    Spark needs ``commits`` of the batch, and ``offsets`` of the batch and the batch before; ``offsets`` of the next
    batch may exist. Spark resumes from the newest entry of ``offsets``: a later entry would make Spark skip batches.

    Args:
        batch: the last batch that the checkpoint covers.
        offsets: the batches with plans in the log.
        commits: the committed batches in the log.
        stateful: whether the query has state, and so an entry for every batch; asynchronous progress may leave entries
            out for a query without state.
    """
    if batch not in commits:
        return f"commits/{batch} is missing, so the batch would be run a second time"
    if (newest := max(commits)) > batch:
        return f"commits/{newest} is of a later batch than {batch}, whose state the checkpoint has"
    if batch not in offsets:
        return f"offsets/{batch} is missing"
    before = [other for other in offsets if other < batch]
    if batch > 0 and (not before or (stateful and batch - 1 not in before)):
        return f"offsets/{batch - 1} is missing, without which Spark does not start"
    if (newest := max(offsets)) > batch + 1:
        return (
            f"offsets/{newest} is there and commits end with {batch}: Spark would go on from batch {newest} and skip "
            f"{batches(range(batch + 1, newest))} without an error"
        )
    return None


def log_finding(
    restored: CheckpointMetadata, location: Path, running: str | None = None, replay: Sequence[PlannedBatch] = ()
) -> Finding:
    """Whether Spark would resume right after the checkpoint's batch from the unpacked log.

    Args:
        restored: the checkpoint.
        location: the unpacked checkpointLocation.
        running: the version of the Spark that should read the log, ``None`` when unknown.
        replay: the batches that run again with their earlier boundaries.
    """
    check = "write-ahead log"
    offsets, commits = _numbers(location / "offsets"), _numbers(location / "commits")
    gap = log_gap(restored.batch, offsets, commits, stateful=bool(restored.facts.operators))
    if gap is None:
        try:
            live = CheckpointLocation(location)
            planned = [*map(live.offsets, offsets), *map(planned_offsets, replay)]
            commit = live.commit(restored.batch)
            if running is not None:
                release_of(running).refuse_newer({entry.version for entry in planned}, {commit.version}, restored.name)
        except CaptureIncomplete as error:
            gap = error.message
        except CheckpointError as error:  # the log is of a newer Spark
            return Finding.of_error(check, error)
    if gap is not None:
        return Finding.of_error(check, CorruptCheckpoint(f"{restored.name}: {gap}.", hint=_ANOTHER))
    also = f", and batch {restored.batch + 1} as it was planned" if restored.batch + 1 in offsets else ""
    return Finding.fine(check, f"goes on after batch {restored.batch}{also}.")


def version_finding(recorded: str | None, running: str | None, ran_last: str | None = None) -> Finding:
    """Whether the running Spark can read what the job left: nothing of it is of a newer minor release.

    Args:
        recorded: the checkpoint's Spark version, ``None`` when not recorded.
        running: the version of the Spark that should go on, ``None`` when unknown.
        ran_last: the Spark version of the start whose batches go on, ``None`` if none do or when not recorded.
    """
    check = "Spark version"
    wrote = newest_version([recorded, ran_last])
    if wrote is None or running is None:
        unknown = f"{wrote}; no Spark here" if running is None and wrote else "the checkpoint does not tell its Spark"
        return Finding.fine(check, f"not checked: {unknown}.")
    was, now = minor_of(wrote), minor_of(running)
    if was is None or now is None:
        return Finding.fine(check, f"not checked: {wrote} and {running} cannot be compared.")
    if was > now:
        what = f"The checkpoint is of Spark {wrote}" if wrote == recorded else f"The job ran last with Spark {wrote}"
        error = RestoreRefused(
            f"{what}, and this is Spark {running}, which may not read what a newer Spark wrote.",
            hint=f"Run the job with Spark {wrote}, or restore a checkpoint of an older one: `dagster-ckpt list` shows "
            "the checkpoints, and `dagster-ckpt describe` the Spark of each.",
        )
        return Finding.of_error(check, error)
    return Finding.fine(check, f"{wrote}, and this is {running}.")


def others_finding(
    catalog: CheckpointCatalog,
    heartbeat: Heartbeat | None,
    dead: str | None,
    *,
    own_epoch: int | None = None,
    terminates: Collection[str] = (),
) -> Finding:
    """Whether a run that may be alive drives the job.

    Args:
        catalog: the job's checkpoints, for the error.
        heartbeat: the job's heartbeat, as read.
        dead: why the run of the heartbeat is dead, ``None`` while that run may be alive.
        own_epoch: the epoch of the checking run, ``None`` for a check outside any run.
        terminates: the ids of runs that would be terminated before the restore.
    """
    check = "other runs"
    if heartbeat is None:
        return Finding.fine(check, "no run has left a sign of life.")
    if own_epoch is not None and heartbeat.epoch <= own_epoch:
        return Finding.fine(check, f"none; this one holds epoch {own_epoch}.")
    if dead is not None:
        return Finding.fine(check, f"none; the last was run {heartbeat.run_id} (epoch {heartbeat.epoch}): {dead}.")
    if heartbeat.run_id in terminates:
        return Finding.fine(check, f"run {heartbeat.run_id} drives the job, and would be terminated first.")
    driver = heartbeat.processes[0]
    error = JobAlreadyRunning(
        f"Run {heartbeat.run_id} drives job {catalog.job_name!r} now (process {driver.pid} on "
        f"{driver.host.partition('/')[0]}, epoch {heartbeat.epoch}).",
        hint=f"Terminate run {heartbeat.run_id} in Dagster (or the run that attends its driver); or, if `dagster-ckpt "
        f"run` drives the job, end it with `dagster-ckpt cancel {catalog.job_name} {catalog.filesystem.path_option}`; "
        "or wait until the job has ended.",
    )
    return Finding.of_error(check, error)


def sink_finding(restored: CheckpointMetadata, sink: Sink, files: Path) -> Finding:
    """Whether a sink can be rolled back to its position at the checkpoint.

    Args:
        restored: the checkpoint.
        sink: a sink with the kind and path that the checkpoint records.
        files: the directory of the files that were pinned with the position.
    """
    check = "sink position"
    try:
        gone = sink.check(restored.sink or {}, files)
    except CheckpointError as error:
        return Finding.of_error(check, error)
    if gone:
        return Finding(check, Verdict.WITH_LOSS, gone, _WITHOUT)
    how = "can go back to" if sink.can_roll_back else "cannot go back, and held at the checkpoint"
    return Finding.fine(check, f"the {sink.kind} sink {sink.path} {how} batch {restored.batch}.")


def in_flight(location: Path, batch: int) -> PlannedBatch | None:
    """The plan of the batch after ``batch``, if it was planned when the checkpoint was taken."""
    plans = PlannedBatches(CheckpointLocation(location), batch)
    return next((plan for plan in plans.new(batch + 1) if plan.batch == batch + 1), None)


def with_in_flight(known: Sequence[PlannedBatch], location: Path, batch: int) -> Sequence[PlannedBatch]:
    """The known plans, with the plan of the batch in flight, which Spark runs unless another plan is laid out."""
    try:
        planned = in_flight(location, batch)
    except CheckpointError:  # the log has its own check, which reports the damage
        planned = None
    if planned is None or any(planned_files(plan) == planned_files(planned) for plan in known):
        return known
    return [planned, *known]


def in_flight_batch(location: Path, batch: int) -> list[int]:
    """A list of the batch after ``batch``, if it was planned when the checkpoint was taken; else an empty list."""
    return [batch + 1] if (location / "offsets" / str(batch + 1)).exists() else []


def replay_finding(
    restored: CheckpointMetadata | None,
    sink: Sink | None,
    uncovered: str | None,
    again: Sequence[int],
    known: Sequence[int],
    *,
    goes_on: bool = False,
) -> Finding:
    """Whether the sink gets each batch after the checkpoint again unchanged, or can remove the batch.

    Args:
        restored: the checkpoint, ``None`` for a lineage that has none yet.
        sink: the query's sink, ``None`` if checkpoints do not cover it.
        uncovered: the format of a sink that checkpoints do not cover, ``None`` if the sink keeps no data.
        again: batches that run again with their earlier boundaries, without a gap.
        known: batches that are known to have been planned after the checkpoint; a sink that cannot go back may have
            them, whatever it tells.
        goes_on: whether the job goes on from its newest checkpoint, and all that it has planned since is in ``known``.
    """
    check = AFTER_IT
    count = f"{batches(again)} will be run again as planned" if again else "no batch is to be run again as it was"
    if sink is not None and sink.can_roll_back:
        return Finding.fine(check, f"{count}; what the sink has of later ones is taken out of it.")
    if sink is None:
        if uncovered is None:
            return Finding.fine(check, f"{count}; the sink keeps nothing.")
        if not known:
            return Finding.fine(check, "none is known to have been planned.")
        return Finding(
            check,
            Verdict.WITH_LOSS,
            f"{batches(known)} may have been written to the {uncovered} sink, which cannot go back, and "
            f"{'is' if len(known) == 1 else 'are'} written again: rows may be doubled.",
            "Write to a sink that can go back, or that takes a batch twice.",
            only_doubles=True,
        )
    told = sink.newest_batch()
    newest = max([*known, -1 if told is None else told])
    last = again[-1] if again else -1 if restored is None else restored.batch
    if newest <= last:
        upto = "does not tell its newest batch" if told is None else f"has batches up to {told}"
        return Finding.fine(check, f"{count}; the sink {upto}.")
    lost = range(last + 1, newest + 1)
    # Where all that the job has planned runs again, only those are left that it has not come to since the consent.
    is_left = goes_on and max(known, default=last) <= last
    stays = (f"the sink {sink.path} cannot go back and ", f" batches up to {newest},") if is_left else ()
    return Finding(
        check,
        Verdict.WITH_LOSS,
        f"the sink {sink.path} cannot go back and may have batches up to {newest}, and how {batches(lost)} "
        f"{'was' if len(lost) == 1 else 'were'} bounded is not known or not to be heeded: with other rows under the "
        "same numbers, their rows would be lost or doubled.",
        "Launch without replay_to, restore a newer checkpoint, or give the sink a rollback_to.",
        stays=stays,
    )


def _numbers(directory: Path) -> list[int]:
    names: Mapping[str, object] = {path.name: None for path in directory.iterdir()} if directory.is_dir() else {}
    return sorted(int(name) for name in names if name.isdigit())
