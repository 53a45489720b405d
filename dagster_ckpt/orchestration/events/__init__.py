"""What went wrong with a job, as events on its asset."""

from __future__ import annotations

from dagster_ckpt.orchestration.events.occurrence import EVENT, Happened
from dagster_ckpt.orchestration.events.telling import JobEvents

__all__ = ["EVENT", "Happened", "JobEvents"]
