"""Whether Dagster takes a run that a sensor asks for: a run that Dagster refuses ends the tick of all jobs."""

from __future__ import annotations

import dagster as dg

from dagster_ckpt.shown_text import in_one_line, redacted

__all__ = ["why_refused"]


def why_refused(context: dg.SensorEvaluationContext, request: dg.RunRequest) -> str:
    """Why Dagster would refuse a run, with the way on; empty if Dagster takes the run.

    A run that goes on is configured as the run before it, and code that was deployed since may take no such
    configuration.

    Args:
        context: of the tick.
        request: the run.
    """
    repository = context.repository_def
    if repository is None or request.job_name is None:
        return ""
    try:
        dg.validate_run_config(repository.get_job(request.job_name), request.run_config)
    except dg.DagsterInvalidConfigError as error:
        why = "; ".join(found.message for found in error.errors)
    except dg.DagsterError as error:
        why = str(error)
    else:
        return ""
    return in_one_line(
        redacted(
            f"the code takes no run that is configured as the run before: {why.removesuffix('.')}. Launch a run of "
            f"{request.job_name} with a configuration that it takes, which goes on from the newest checkpoint."
        )
    )
