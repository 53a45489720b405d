"""The records through which the runs of a job know of each other: one module per directory under ``control/``."""

from __future__ import annotations

from dagster_ckpt.checkpoint.control.deletion_log import ROUNDS
from dagster_ckpt.checkpoint.control.driver_messages import DriverMessages
from dagster_ckpt.checkpoint.control.epochs import (
    FAILING,
    NOTHING,
    Choice,
    Claim,
    End,
    Settled,
)
from dagster_ckpt.checkpoint.control.failures import (
    DIED,
    Failure,
    Streak,
    as_happened,
    belongs_to_another,
    dated,
    reason_of,
    restart_after,
    so_far,
    symptom,
)
from dagster_ckpt.checkpoint.control.heartbeat import (
    ENDED_ELSEWHERE,
    INTERRUPTED,
    Completed,
    FailedCheckpoints,
    Heart,
    Heartbeat,
    HeartbeatFile,
    free_job,
)
from dagster_ckpt.checkpoint.control.job_records import JobRecords
from dagster_ckpt.checkpoint.control.pins import Pin
from dagster_ckpt.checkpoint.control.plan_archive import PlanArchiveWriter, PlannedBatch
from dagster_ckpt.checkpoint.control.quarantine import FellBack, Quarantined
from dagster_ckpt.checkpoint.control.savepoint_requests import (
    Answer,
    Asked,
    CancelRequest,
    RequestState,
    SavepointRequest,
    SavepointRequests,
    TakenSavepoint,
)
from dagster_ckpt.checkpoint.control.taken_savepoints import (
    NO_LABEL,
    Label,
    NamedSavepoint,
    RecordedSavepoint,
    name_taken,
)

__all__ = [
    "DIED",
    "ENDED_ELSEWHERE",
    "FAILING",
    "INTERRUPTED",
    "NOTHING",
    "NO_LABEL",
    "ROUNDS",
    "Answer",
    "Asked",
    "CancelRequest",
    "Choice",
    "Claim",
    "Completed",
    "DriverMessages",
    "End",
    "FailedCheckpoints",
    "Failure",
    "FellBack",
    "Heart",
    "Heartbeat",
    "HeartbeatFile",
    "JobRecords",
    "Label",
    "NamedSavepoint",
    "Pin",
    "PlanArchiveWriter",
    "PlannedBatch",
    "Quarantined",
    "RecordedSavepoint",
    "RequestState",
    "SavepointRequest",
    "SavepointRequests",
    "Settled",
    "Streak",
    "TakenSavepoint",
    "as_happened",
    "belongs_to_another",
    "dated",
    "free_job",
    "name_taken",
    "reason_of",
    "restart_after",
    "so_far",
    "symptom",
]
