"""The sensor that resumes jobs, and the sensor that tells of those that have ended FAILED."""

from typing import TYPE_CHECKING

from dagster_ckpt.lazy_names import lazy_names

if TYPE_CHECKING:
    from dagster_ckpt.orchestration.sensors.failed_sensor import JobFailed, on_job_failed
    from dagster_ckpt.orchestration.sensors.job_watch import JobWatch
    from dagster_ckpt.orchestration.sensors.messages import to_email, to_slack
    from dagster_ckpt.orchestration.sensors.resume_sensor import build_resume_sensor
else:  # hidden from type checkers, which would take every name for one that is there
    __getattr__, __dir__ = lazy_names(__name__)


__all__ = ["JobFailed", "JobWatch", "build_resume_sensor", "on_job_failed", "to_email", "to_slack"]
