"""The arguments of a run without Dagster, checked as Dagster would check them: before anything is started."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from typing import Any

import dagster as dg
from pydantic import ValidationError

from dagster_ckpt.config import Configuration
from dagster_ckpt.errors import InvalidConfiguration
from dagster_ckpt.orchestration import (
    CheckpointedStreamingAsset,
    CheckpointStorage,
    SparkSessionResource,
    StreamingRunConfig,
    checkpointed_streaming_asset,
    told_problems,
)
from dagster_ckpt.standalone.project import loaded

__all__ = ["asset_of", "own_fields", "resources_of", "run_fields"]

#: The run configuration that is an argument of a run, too.
_ARGUMENTS = frozenset(StreamingRunConfig.model_fields) - {"fallback_to_older"}


def asset_of(query: Any, **own: Any) -> CheckpointedStreamingAsset:
    """The asset, or an asset made of the function and its ``own`` settings.

    Raises:
        InvalidConfiguration: there is no function, it cannot be an asset, or an asset is given settings.
    """
    if not isinstance(query, CheckpointedStreamingAsset):
        if isinstance(query, dg.AssetsDefinition) or not callable(query):
            what = f"the asset {query.key.to_user_string()}" if isinstance(query, dg.AssetsDefinition) else repr(query)
            raise InvalidConfiguration(
                f"The query is {what}, and no checkpointed streaming asset and no function.",
                hint="Give the asset that @checkpointed_streaming_asset has made, or the function that it decorates.",
            )
        return checkpointed_streaming_asset(**own)(query)
    if given := [key for key, value in own.items() if value is not None]:
        raise InvalidConfiguration(
            f"{query.name} is an asset and has its own {' and '.join(given)}.",
            hint="Change the asset's definition, so that its runs under Dagster are the same; or use configuration.",
        )
    return query


def own_fields(asset: CheckpointedStreamingAsset, op_config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the function's own configuration.

    Raises:
        InvalidConfiguration: the function has no such field.
    """
    fields = list(asset.parameters.config_fields())
    for key in op_config:
        if key in fields:
            continue
        if key in _ARGUMENTS:
            hint = f"Give it as the argument {key} of the run, on the command line as --{_option(key)}."
        elif key in StreamingRunConfig.model_fields:
            hint = f"Set {key} in the CheckpointConfig of the job."
        elif near := difflib.get_close_matches(key, fields, n=1, cutoff=0):
            hint = f"The nearest field is {near[0]}; the fields are {', '.join(fields)}."
        else:
            hint = "The function has no parameter whose type is a dg.Config, so leave op_config out."
        raise InvalidConfiguration(
            f"op_config has {key!r}, which is no field of the own configuration of {asset.name}.", hint=hint
        )
    return dict(op_config)


def _option(key: str) -> str:
    return "set" if key == "configuration" else key.replace("_", "-")


def run_fields(configuration: Mapping[str, Any] | Configuration | None, asked: Mapping[str, Any]) -> dict[str, Any]:
    """What a run is asked for, as its run configuration under Dagster; without what is ``None``.

    Raises:
        InvalidConfiguration: a value cannot be used.
    """
    given = {
        key: os.fspath(value) if isinstance(value, os.PathLike) else value
        for key, value in asked.items()
        if value is not None
    }
    if isinstance(number := given.get("replay_to"), int):
        given["replay_to"] = str(number)
    flink = configuration if isinstance(configuration, Configuration) else Configuration(configuration or {})
    try:
        checked = StreamingRunConfig(**given)
    except ValidationError as error:
        raise InvalidConfiguration(
            f"The run cannot be asked for that: {told_problems(error)}",
            hint="See the arguments of dagster_ckpt.run, or `dagster-ckpt run --help`.",
        ) from None
    return {**{key: getattr(checked, key) for key in given}, "configuration": dict(flink.settings)}


def resources_of(
    asset: CheckpointedStreamingAsset,
    storage: CheckpointStorage | None,
    spark: SparkSessionResource | None,
    resources: Mapping[str, Any] | dg.Definitions | None,
) -> dict[str, Any]:
    """The resources that the asset needs.

    Raises:
        InvalidConfiguration: one is missing, or is something else.
    """
    resources = loaded(resources)
    given = resources.resources if isinstance(resources, dg.Definitions) else resources
    if not isinstance(given, Mapping | None):
        raise InvalidConfiguration(
            f"The resources are {given!r}, and no resources by key.",
            hint="Give resources={'key': resource}, or the Definitions that have them.",
        )
    known = {asset.spark_key: SparkSessionResource(), **(given or {})}
    known |= {
        key: value for key, value in ((asset.storage_key, storage), (asset.spark_key, spark)) if value is not None
    }
    needed = [asset.storage_key, asset.spark_key, *sorted(asset.parameters.resources)]
    if missing := [key for key in needed if key not in known]:
        raise InvalidConfiguration(
            f"{asset.name} needs the resource{'s' * (len(missing) > 1)} {' and '.join(missing)}.",
            hint="Give storage, and the others in resources, or the definitions that have them.",
        )
    for key, kind, example in (
        (asset.storage_key, CheckpointStorage, "FileSystemCheckpointStorage(checkpoint_path='/data/checkpoints')"),
        (asset.spark_key, SparkSessionResource, "SparkSessionResource(master='local[2]')"),
    ):
        if not (isinstance(known[key], kind | dg.ResourceDefinition) or hasattr(known[key], "get_resource_definition")):
            raise InvalidConfiguration(
                f"The resource {key!r} is {known[key]!r}, and no {kind.__name__}.",
                hint=f"Write {example}, for example.",
            )
    return {key: known[key] for key in needed}
