"""What happens to a job, as events on its assets: what went wrong, and what somebody asked for."""

from __future__ import annotations

from dagster_ckpt.orchestration.events.occurrence import EVENT, Happened
from dagster_ckpt.orchestration.events.requests import RequestEvents, savepoint_observation
from dagster_ckpt.orchestration.events.telling import JobEvents

__all__ = ["EVENT", "Happened", "JobEvents", "RequestEvents", "savepoint_observation"]
