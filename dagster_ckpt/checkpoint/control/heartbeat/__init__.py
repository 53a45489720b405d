"""The signs of life of the run that holds a job: how it beats, how others judge by that, and take a dead job over."""

from __future__ import annotations

from dagster_ckpt.checkpoint.control.heartbeat.beat import (
    ENDED_ELSEWHERE,
    INTERRUPTED,
    Completed,
    FailedCheckpoints,
    Heartbeat,
)
from dagster_ckpt.checkpoint.control.heartbeat.heart import Heart
from dagster_ckpt.checkpoint.control.heartbeat.heartbeat_file import HeartbeatFile
from dagster_ckpt.checkpoint.control.heartbeat.takeover import free_job

__all__ = [
    "ENDED_ELSEWHERE",
    "INTERRUPTED",
    "Completed",
    "FailedCheckpoints",
    "Heart",
    "Heartbeat",
    "HeartbeatFile",
    "free_job",
]
