"""What the YAML of a component may say, and what becomes of it. What cannot be used is told with its option's line."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import dagster as dg
from pydantic import ConfigDict, Field

from dagster_ckpt.config import CheckpointConfig, RestartStrategies, RestartStrategy, duration_of, load_object
from dagster_ckpt.errors import InvalidConfiguration
from dagster_ckpt.filesystem import REMOTE_SCHEMES, open_filesystem
from dagster_ckpt.orchestration.resources import SparkSessionResource
from dagster_ckpt.orchestration.storages import FileSystemCheckpointStorage
from dagster_ckpt.paths import split_location

__all__ = [
    "BLOCKS",
    "CheckpointAttributes",
    "DrillAttributes",
    "ReportAttributes",
    "RestartAttributes",
    "SavepointScheduleAttributes",
    "SparkAttributes",
    "StorageAttributes",
    "checkpoint_config",
    "drill",
    "imported",
    "imported_by_name",
    "imported_set",
    "query_function",
    "report",
    "restart_strategy",
    "savepoint_schedule",
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


def _duration(description: str | None = None) -> Any:
    """An option that is text with a unit, or null; ``dg check yaml`` reads the pattern."""
    pattern = r"^(\s*\d+(\.\d+)?\s*[A-Za-z]+)+\s*$|\{\{"
    return Field(default=None, description=description, json_schema_extra={"pattern": pattern})


def _without_unions(schema: dict[str, Any]) -> None:
    """Have `dg check yaml` name the type that a value should have: of a union it says only that no part fits."""
    for field in schema.get("properties", {}).values():
        kinds = [part.get("type") for part in field.get("anyOf", ()) if set(part) == {"type"}]
        if kinds and len(kinds) == len(field["anyOf"]):
            del field["anyOf"]
            field["type"] = kinds


class _Block(dg.Model):
    """A mapping below an attribute."""

    model_config = ConfigDict(extra="forbid", json_schema_extra=_without_unions)


class StorageAttributes(_Block):
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


class CheckpointAttributes(_Block):
    """A :class:`CheckpointConfig`. Durations are text with a unit, such as ``30 s``."""

    interval: str | None = _duration("Between two checkpoints; null for none.")
    mode: Literal["EXACTLY_ONCE", "AT_LEAST_ONCE"] = "EXACTLY_ONCE"
    timeout: str | None = _duration()
    min_pause: str | None = _duration()
    max_concurrent_checkpoints: int | None = None
    tolerable_failed_checkpoints: int | None = None
    unaligned: bool | None = None
    aligned_checkpoint_timeout: str | None = _duration()
    cleanup: str | None = None
    retain_on_success: bool | None = None
    prefer_checkpoint_for_recovery: bool | None = None
    num_retained: int | None = None
    retain_for: str | None = _duration()
    retain_every: int | None = None
    fallback_to_older: bool | None = None
    heartbeat_interval: str | None = _duration()
    heartbeat_timeout: str | None = _duration()


class RestartAttributes(_Block):
    """A restart strategy: its type, and the parameters that ``RestartStrategies`` gives a strategy of this type."""

    type: Literal["exponential_delay", "fixed_delay", "failure_rate", "none"]
    restart_attempts: int | None = None
    delay_between_attempts: str | None = _duration()
    failure_rate: int | None = None
    failure_interval: str | None = _duration()
    delay_interval: str | None = _duration()
    initial_backoff: str | None = _duration()
    max_backoff: str | None = _duration()
    backoff_multiplier: float | None = None
    reset_backoff_threshold: str | None = _duration()
    jitter_factor: float | None = None
    attempts_before_reset_backoff: int | None = None


class SparkAttributes(_Block):
    """A :class:`SparkSessionResource`."""

    master: str = Field(default="local[*]", description="Spark master URL.")
    conf: dict[str, str | int | float | bool] | None = Field(default=None, description="Spark configuration.")
    app_name: str | None = None
    early_jvm: bool | None = None
    class_archive: bool | None = None
    standby: int | None = None


class DrillAttributes(_Block):
    """The arguments of :func:`build_restore_drill`."""

    cron_schedule: str | None = Field(default=None, description="When drills run, such as 0 4 * * *.")
    check_schedule: str | None = Field(default=None, description="When the checks of the job are evaluated.")
    max_age: str | None = _duration("How old the last good drill may be; 7 d by default.")
    timeout: str | None = _duration("How long the batch of a drill may take; 30 min by default.")
    scratch_directory: str | None = None
    op_config: dict[str, Any] | None = None


class ReportAttributes(_Block):
    """The arguments of :func:`build_job_report`."""

    cron_schedule: str | None = Field(default=None, description="When reports are made, such as 0 6 * * *.")


class SavepointScheduleAttributes(_Block):
    """The arguments of :func:`build_savepoint_schedule`."""

    cron_schedule: str
    name: str = Field(description="Of the series; its savepoints are called NAME-DATE-TIME.")
    keep: int | None = Field(default=None, description="At most so many of the series stay; null for any number.")
    max_age: str | None = _duration("None of the series stays that is older, such as 30 d.")
    to: str | None = None
    note: str = ""
    execution_timezone: str | None = None
    default_status: Literal["RUNNING", "STOPPED"] = Field(
        default="RUNNING", description="Whether the schedule runs as soon as Dagster knows it."
    )


#: The attributes that are mappings.
BLOCKS: Mapping[str, type[dg.Model]] = {
    "storage": StorageAttributes,
    "checkpoint": CheckpointAttributes,
    "restart": RestartAttributes,
    "spark": SparkAttributes,
    "drill": DrillAttributes,
    "report": ReportAttributes,
}


@contextmanager
def _at_option(context: dg.ResolutionContext, block: dg.Model) -> Iterator[None]:
    """Have an error point at the line of the first option of a block that its text names."""
    try:
        yield
    except Exception as error:
        told = [(found.start(), option) for option in block.model_fields_set if (found := _named(option, str(error)))]
        option = min(told)[1] if told else None
        place = context if option is None else context.at_path(option)
        lines = traceback.format_exception_only(error)
        raise place.build_resolve_fn_exc(lines, str(place.path[-1] if place.path else option), block) from None


def _named(option: str, text: str) -> re.Match[str] | None:
    return re.search(rf"\b{option.replace('_', '[_ ]')}\b", text)


def imported(context: dg.ResolutionContext, path: str | None) -> Any:
    """The object at ``module:name``.

    Raises:
        InvalidConfiguration: nothing can be imported from there.
    """
    return None if path is None else load_object(context.resolve_value(path, as_type=str), "of a checkpointed stream")


def imported_by_name(context: dg.ResolutionContext, paths: Mapping[str, str] | None) -> dict[str, Any] | None:
    """The functions at ``module:name``, by a version of the code."""
    return None if paths is None else {version: query_function(context, path) for version, path in paths.items()}


def imported_set(context: dg.ResolutionContext, paths: list[str] | None) -> set[Any] | None:
    """The objects at ``module:name``."""
    return None if paths is None else {imported(context, path) for path in paths}


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
    with _at_option(context, given):
        made = FileSystemCheckpointStorage(**values)
    for option in ("checkpoint_path", "savepoint_path"):
        place = split_location(values[option]) if values.get(option) else None
        if place is not None and not place.is_local and place.scheme not in REMOTE_SCHEMES:
            with _at_option(context.at_path(option), given):
                open_filesystem(values[option])  # which refuses it in words, before any connection
    return made


def checkpoint_config(context: dg.ResolutionContext, given: CheckpointAttributes | None) -> CheckpointConfig:
    """When checkpoints are taken and kept."""
    if given is None:
        return CheckpointConfig()
    with _at_option(context, given):
        return CheckpointConfig(**_given(context, given))


def restart_strategy(context: dg.ResolutionContext, given: RestartAttributes | None) -> RestartStrategy | None:
    """What happens after a failure.

    Raises:
        InvalidConfiguration: a parameter is not of this strategy, or is missing.
    """
    if given is None:
        return None
    values = _given(context, given)
    kind = values.pop("type")
    with _at_option(context, given):
        try:
            return _STRATEGIES[kind](**values)
        except TypeError as error:
            raise InvalidConfiguration(
                f"The restart strategy {kind} cannot be made: {str(error).partition(') ')[2] or error}.",
                hint="See RestartStrategies for the parameters of each.",
            ) from None


def drill(context: dg.ResolutionContext, given: DrillAttributes | None) -> dict[str, Any] | None:
    """The arguments of a restore drill."""
    if given is None:
        return None
    values = _given(context, given)
    with _at_option(context, given):
        for option in ("max_age", "timeout"):
            if option in values:
                duration_of(option, values[option], "2 d")
    return values


def report(context: dg.ResolutionContext, given: ReportAttributes | None) -> dict[str, Any] | None:
    """The arguments of a report."""
    return None if given is None else _given(context, given)


def savepoint_schedule(given: SavepointScheduleAttributes) -> dict[str, Any]:
    """The arguments of a schedule that takes savepoints."""
    return {**dict(given), "default_status": dg.DefaultScheduleStatus(given.default_status)}


def spark_session(context: dg.ResolutionContext, given: SparkAttributes | None) -> SparkSessionResource | None:
    """Spark of the component's own, ``None`` for the project's."""
    if given is None:
        return None
    values = _given(context, given)
    conf = values.pop("conf", None) or {}
    with _at_option(context, given):
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
