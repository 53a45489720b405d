"""A run that waits beside a job with everything a start needs, and takes the job over when the job's run is dead."""

from dagster_ckpt.orchestration.standby.standby_run import StandbyRun, Takeover

__all__ = ["StandbyRun", "Takeover"]
