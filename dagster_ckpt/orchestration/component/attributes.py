"""What the YAML of a component may say, and what becomes of it. A resolver that raises is told with its line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import dagster as dg
from pydantic import Field

from dagster_ckpt.config import CheckpointConfig, RestartStrategies, RestartStrategy, load_object
from dagster_ckpt.errors import InvalidConfiguration
from dagster_ckpt.orchestration.resources import SparkSessionResource
from dagster_ckpt.orchestration.storages import FileSystemCheckpointStorage

__all__ = [
    "CheckpointAttributes",
    "RestartAttributes",
    "SavepointScheduleAttributes",
    "SparkAttributes",
    "StorageAttributes",
    "checkpoint_config",
    "query_function",
    "restart_strategy",
    "spark_session",
    "storage",
    "text",
    "texts",
]

_STRATEGIES: dict[str, Callable[..., RestartStrategy]] = {
    "exponential_delay": RestartStrategies.exponential_delay_restart,
    "fixed_delay": RestartStrategies.fixed_delay_restart,
    "failure_rate": RestartStrategies.failure_rate_restart,
    "none": RestartStrategies.no_restart,
}


class StorageAttributes(dg.Model):
    """A :class:`FileSystemCheckpointStorage`. A secret is written as ``{env: NAME}``: its use looks it up."""

    checkpoint_path: str = Field(description="Directory for checkpoints: a path, or a URL of a bucket or of HDFS.")
    savepoint_path: str | None = Field(default=None, description="Directory for savepoints.")
    storage_options: dict[str, Any] | None = Field(default=None, description="How to connect to a bucket.")
    working_directory: str | None = Field(default=None, description="Where live checkpointLocations lie.")
    live_location: Literal["auto", "local", "storage"] | None = Field(
        default=None, description="Whether live checkpointLocations lie in working_directory or in the storage."
    )
    deployment: str | None = Field(default=None, description="Who owns the directories of the jobs.")
    file_state_size_threshold: int | None = Field(default=None, description="Bytes up to which a file is inline.")
    write_buffer_size: int | None = Field(default=None, description="Bytes copied at a time.")


class CheckpointAttributes(dg.Model):
    """A :class:`CheckpointConfig`. Durations are text with a unit, such as ``30 s``."""

    interval: str | None = Field(default=None, description="Between two checkpoints; null for none.")
    mode: Literal["EXACTLY_ONCE", "AT_LEAST_ONCE"] = "EXACTLY_ONCE"
    timeout: str | None = None
    min_pause: str | None = None
    max_concurrent_checkpoints: int | None = None
    tolerable_failed_checkpoints: int | None = None
    unaligned: bool | None = None
    aligned_checkpoint_timeout: str | None = None
    cleanup: str | None = None
    retain_on_success: bool | None = None
    prefer_checkpoint_for_recovery: bool | None = None
    num_retained: int | None = None
    retain_for: str | None = None
    retain_every: int | None = None
    fallback_to_older: bool | None = None
    heartbeat_interval: str | None = None
    heartbeat_timeout: str | None = None


class RestartAttributes(dg.Model):
    """A restart strategy: its type, and the parameters that ``RestartStrategies`` gives a strategy of this type."""

    type: Literal["exponential_delay", "fixed_delay", "failure_rate", "none"]
    restart_attempts: int | None = None
    delay_between_attempts: str | None = None
    failure_rate: int | None = None
    failure_interval: str | None = None
    delay_interval: str | None = None
    initial_backoff: str | None = None
    max_backoff: str | None = None
    backoff_multiplier: float | None = None
    reset_backoff_threshold: str | None = None
    jitter_factor: float | None = None
    attempts_before_reset_backoff: int | None = None


class SparkAttributes(dg.Model):
    """A :class:`SparkSessionResource`."""

    master: str = Field(default="local[*]", description="Spark master URL.")
    conf: dict[str, str | int | float | bool] | None = Field(default=None, description="Spark configuration.")
    app_name: str | None = None
    early_jvm: bool | None = None
    class_archive: bool | None = None
    standby: int | None = None


class SavepointScheduleAttributes(dg.Model):
    """The arguments of :func:`build_savepoint_schedule`."""

    cron_schedule: str
    name: str = Field(description="Of the series; its savepoints are called NAME-DATE-TIME.")
    keep: int | None = Field(default=None, description="At most so many of the series stay; null for any number.")
    max_age: str | None = Field(default=None, description="None of the series stays that is older, such as 30 d.")
    to: str | None = None
    note: str = ""
    execution_timezone: str | None = None


def query_function(context: dg.ResolutionContext, path: str) -> Callable[..., Any]:
    """The function that makes the query, from ``module:name``.

    Raises:
        InvalidConfiguration: there is no such function.
    """
    found = load_object(context.resolve_value(path, as_type=str), "the function of a checkpointed stream")
    if isinstance(found, dg.AssetsDefinition) or not callable(found):
        raise InvalidConfiguration(
            f"{path} is a {type(found).__name__}, and no function.",
            hint="Name a function that takes context and spark, without @checkpointed_streaming_asset.",
        )
    function: Callable[..., Any] = found
    return function


def storage(context: dg.ResolutionContext, given: StorageAttributes | None) -> FileSystemCheckpointStorage | None:
    """The storage of the component's own, ``None`` for the project's."""
    if given is None:
        return None
    values = _given(context, given)
    return FileSystemCheckpointStorage(**values)


def checkpoint_config(context: dg.ResolutionContext, given: CheckpointAttributes | None) -> CheckpointConfig:
    """When checkpoints are taken and kept."""
    return CheckpointConfig(**({} if given is None else _given(context, given)))


def restart_strategy(context: dg.ResolutionContext, given: RestartAttributes | None) -> RestartStrategy | None:
    """What happens after a failure.

    Raises:
        InvalidConfiguration: a parameter is not of this strategy, or is missing.
    """
    if given is None:
        return None
    values = _given(context, given)
    kind = values.pop("type")
    try:
        return _STRATEGIES[kind](**values)
    except TypeError as error:
        raise InvalidConfiguration(
            f"The restart strategy {kind} cannot be made: {str(error).partition(') ')[2] or error}.",
            hint="See RestartStrategies for the parameters of each.",
        ) from None


def spark_session(context: dg.ResolutionContext, given: SparkAttributes | None) -> SparkSessionResource | None:
    """Spark of the component's own, ``None`` for the project's."""
    if given is None:
        return None
    values = _given(context, given)
    conf = values.pop("conf", None) or {}
    return SparkSessionResource(**values, conf={key: _word(value) for key, value in conf.items()})


def text(context: dg.ResolutionContext, given: str | float | bool | None) -> str | None:
    """Text that may look like a number: where Dagster renders templates, it makes the number 1.1 of ``'1.10'``."""
    if isinstance(given, str) and "{{" in given:
        return _word(context.resolve_value(given, as_type=object))
    return None if given is None else _word(given)


def texts(
    context: dg.ResolutionContext, given: Mapping[str, str | float | bool] | None
) -> dict[str, str | None] | None:
    """Texts by name; see :func:`text`."""
    return None if given is None else {name: text(context, value) for name, value in given.items()}


def _word(value: object) -> str:
    """Text as it was before YAML and templates made a number or a boolean of it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _given(context: dg.ResolutionContext, model: dg.Model) -> dict[str, Any]:
    """What the YAML says, with its templates rendered."""
    return dict(context.resolve_value(model.model_dump(exclude_unset=True)))
