"""What the storage tells of a job whose run may be dead."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from dagster_ckpt.checkpoint import (
    DIED,
    CheckpointCatalog,
    Claim,
    End,
    Failure,
    Streak,
    attendance_of,
    find_newest,
    run_that_waits,
    unchanged_for,
)
from dagster_ckpt.clock import Clock
from dagster_ckpt.config import RestartStrategy
from dagster_ckpt.errors import CheckpointError, PoisonBatch
from dagster_ckpt.resume.decision import Facts, RunFacts
from dagster_ckpt.spark import BatchInFlight, batch_in_flight, recorded_live

__all__ = ["poison_of", "stored_facts"]


def stored_facts(
    catalog: CheckpointCatalog,
    clock: Clock,
    claim: Claim | None,
    end: End | None,
    death: tuple[str | None, float],
    *,
    restart: RestartStrategy,
    poison_batch_attempts: int | None,
    holder: RunFacts | None = None,
    others: Sequence[RunFacts] = (),
) -> Facts:
    """The facts to decide from.

    Args:
        catalog: the job's checkpoints.
        clock: of this host.
        claim: of the highest epoch.
        end: of that epoch.
        death: why the holder counts as dead, ``None`` while it may live, and its last sign of life in seconds since
            1970.
        restart: the strategy.
        poison_batch_attempts: how often one batch may fail with one error, ``None`` for no limit.
        holder: the run of the claim.
        others: the other recent runs of the job.
    """
    dead, died_at = death
    failures = catalog.records.failures.of(claim.series) if claim else []
    unrecorded = claim is not None and dead is not None and end is None
    attendance = None
    if claim is not None:
        attendance = attendance_of(catalog.records, claim, clock, is_driver_dead=dead is not None)
    active = frozenset((run.run_id, run.status) for run in others if run.is_active)
    return Facts(
        now=clock.time(),
        claim=claim,
        end=end,
        dead=dead,
        died_at=died_at,
        holder=holder,
        others=others,
        failures=failures,
        restart=restart,
        job_name=catalog.job_name,
        is_durable=catalog.filesystem.is_durable,
        in_flight=_in_flight(catalog, claim, failures) if unrecorded and claim is not None else None,
        poison_batch_attempts=poison_batch_attempts,
        waited=_unchanged_for(catalog, "failures", frozenset((item.run_id, item.sequence) for item in failures), clock),
        starting_for=_unchanged_for(catalog, "active", active, clock),
        attendance=attendance,
        waits=None if claim is None or dead is None else run_that_waits(catalog.records, claim, clock),
    )


def poison_of(catalog: CheckpointCatalog, found: Streak) -> PoisonBatch:
    """The error that a job ends with because of one batch, when its run is dead."""
    filesystem, before = catalog.filesystem, None
    with contextlib.suppress(OSError, CheckpointError):  # a run that needs the checkpoint reports it
        before = find_newest(catalog).metadata
    return found.poison(
        catalog.job_name,
        storage=filesystem.url if filesystem.is_durable else None,
        before=None if before is None else before.reference,
    )


def _in_flight(catalog: CheckpointCatalog, claim: Claim, failures: Sequence[Failure]) -> BatchInFlight | None:
    """The batch a dead run was running, from the files within reach; read once, until the death is on record."""
    if any((failure.run_id, failure.sequence) == (claim.run_id, DIED) for failure in failures):
        return None
    choice = catalog.records.epochs.read_choice(claim.epoch)
    live = None if choice is None else recorded_live(choice, catalog.filesystem)
    return None if live is None else batch_in_flight(live)


def _unchanged_for(catalog: CheckpointCatalog, what: str, state: frozenset[tuple[str, object]], clock: Clock) -> float:
    """Seconds for which this process has seen ``what`` of the job in this state, by a monotonic clock."""
    return unchanged_for((catalog.filesystem.url, catalog.job_name, what), state, clock)
