"""What a project gives Dagster, for drivers that Dagster does not start."""

from __future__ import annotations

from typing import Any

import dagster as dg

from dagster_ckpt.errors import InvalidConfiguration
from dagster_ckpt.orchestration import CheckpointedStreamingAsset

__all__ = ["find_asset", "loaded"]


def loaded(found: Any) -> Any:
    """The definitions that ``@dg.definitions`` makes when it is called; anything else as it is."""
    return found() if callable(found) and not isinstance(found, dg.Definitions) else found


def find_asset(definitions: Any, path: str, job_name: str) -> CheckpointedStreamingAsset:
    """The asset of a job.

    Args:
        definitions: of the project, loaded.
        path: their import path.
        job_name: of the job.

    Raises:
        InvalidConfiguration: these are no definitions, or have no such asset.
    """
    if not isinstance(definitions, dg.Definitions):
        raise InvalidConfiguration(
            f"{path} is {type(definitions).__name__}, and no dagster.Definitions.",
            hint="Name the definitions of the code location in SparkSubmitResource(definitions='module:name').",
        )
    for asset in definitions.assets or ():
        if isinstance(asset, CheckpointedStreamingAsset) and asset.name == job_name:
            return asset
    raise InvalidConfiguration(
        f"{path} has no checkpointed streaming asset {job_name!r}.",
        hint="Name the definitions of the code location in SparkSubmitResource(definitions='module:name'), and deploy "
        "the same release of them where the driver runs.",
    )
