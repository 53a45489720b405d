"""A run that a sensor asks for: whether Dagster takes it, and its JVM, which starts at the moment of the request."""

from __future__ import annotations

import logging

import dagster as dg

from dagster_ckpt.orchestration import names
from dagster_ckpt.orchestration.checkpointed_asset import CheckpointedStreamingAsset
from dagster_ckpt.orchestration.resources import SparkSessionResource
from dagster_ckpt.shown_text import in_one_line, redacted

__all__ = ["launch_jvm", "why_refused"]

#: With these the start of a JVM is a download, for which a run would not wait.
_FETCHING = ("spark.jars.packages", "spark.jars", "spark.jars.ivy")

_log = logging.getLogger(__name__)


def why_refused(context: dg.SensorEvaluationContext, request: dg.RunRequest) -> str:
    """Why Dagster would refuse a run, with the way on; empty if Dagster takes the run.

    A run that Dagster refuses ends the tick of all jobs. A run that goes on is configured as the run before it, and
    code that was deployed since may take no such configuration.

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


def launch_jvm(
    instance: dg.DagsterInstance, asset: CheckpointedStreamingAsset, request: dg.RunRequest, resource: object
) -> None:
    """Begin to start the JVM of a run, where Dagster launches the run beside this process; returns at once.

    Dagster takes seconds to launch a run, and the run seconds to import its code. Meanwhile a processor is idle. No
    error leaves this function: without it the run starts its JVM itself.

    Args:
        instance: launches the run.
        asset: of the job.
        request: the run.
        resource: Spark, as the definitions have it.
    """
    if not isinstance(resource, SparkSessionResource) or not resource.starts_early:
        return
    if any(resource.conf.get(key) for key in _FETCHING):
        return
    if not names.is_resume(request.tags) or "resources" in request.run_config:  # which may configure another Spark
        return
    try:
        if isinstance(instance.run_launcher, dg.DefaultRunLauncher):
            spark = resource.process_config_and_initialize()  # variables of the environment have their values
            spark.launch_jvm(asset.name, asset.launch_conf)
    except Exception as error:
        _log.warning("The JVM of job %s is started by its run: %s", asset.name, error)
