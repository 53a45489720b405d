"""Batches: their plans, the batch in flight, and their replay."""

from dagster_ckpt.spark.batches.archiver import Archiver
from dagster_ckpt.spark.batches.in_flight import BatchInFlight, batch_in_flight, fingerprint
from dagster_ckpt.spark.batches.plans import PlannedBatches, forget_plan, lay_out, planned_files, planned_offsets
from dagster_ckpt.spark.batches.replay import replay_batches
from dagster_ckpt.spark.batches.replay_range import KnownPlans, plans_after, plans_to_replay, refuse_abandoned

__all__ = [
    "Archiver",
    "BatchInFlight",
    "KnownPlans",
    "PlannedBatches",
    "batch_in_flight",
    "fingerprint",
    "forget_plan",
    "lay_out",
    "planned_files",
    "planned_offsets",
    "plans_after",
    "plans_to_replay",
    "refuse_abandoned",
    "replay_batches",
]
