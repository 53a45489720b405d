"""The JVM of a run that resumes a job starts at the moment at which the run is asked for.

Dagster takes seconds to launch a run, and the run seconds to import its code. Meanwhile a processor is idle.
"""

from __future__ import annotations

import logging

import dagster as dg

from dagster_ckpt.orchestration import names
from dagster_ckpt.orchestration.checkpointed_asset import CheckpointedStreamingAsset
from dagster_ckpt.orchestration.resources import SparkSessionResource

__all__ = ["launch_jvm"]

#: With these the start of a JVM is a download, for which a run would not wait.
_FETCHING = ("spark.jars.packages", "spark.jars", "spark.jars.ivy")

_log = logging.getLogger(__name__)


def launch_jvm(
    instance: dg.DagsterInstance, asset: CheckpointedStreamingAsset, request: dg.RunRequest, resource: object
) -> None:
    """Begin to start the JVM of a run, where Dagster launches the run beside this process; returns at once.

    No error leaves this function: without it the run starts its JVM itself.

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
