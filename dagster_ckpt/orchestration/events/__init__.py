"""What happens to a job, as events on its assets and lines of its runs: what went wrong, what somebody asked for."""

from __future__ import annotations

from dagster_ckpt.orchestration.events.occurrence import EVENT, Happened
from dagster_ckpt.orchestration.events.pipes import PipesMessages
from dagster_ckpt.orchestration.events.requests import RequestEvents, savepoint_observation
from dagster_ckpt.orchestration.events.run_log import say
from dagster_ckpt.orchestration.events.telling import JobEvents

__all__ = ["EVENT", "Happened", "JobEvents", "PipesMessages", "RequestEvents", "savepoint_observation", "say"]
