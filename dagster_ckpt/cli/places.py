"""What the commands share: finding the storage, the job's own code, and the checkpoint that an argument names."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import wraps
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from dagster_ckpt.checkpoint import CheckpointCatalog, CheckpointMetadata, find_newest, is_job, job_names
from dagster_ckpt.cli.printing import say, say_json, warn
from dagster_ckpt.config import GREATEST_INT, LATEST, format_duration, parse_duration
from dagster_ckpt.errors import CheckpointError, CheckpointNotFound, InvalidConfiguration, StorageError
from dagster_ckpt.filesystem import FileSystem, open_filesystem
from dagster_ckpt.paths import split_location

__all__ = [
    "COUNT",
    "DURATION",
    "JSON",
    "START_SOURCES",
    "OpenedStorage",
    "asked_jobs",
    "connection_options",
    "find_checkpoint",
    "job_arguments",
    "job_options",
    "not_empty",
    "nothing_there",
    "of_each",
    "optional_storage_path",
    "pairs",
    "repeated",
    "require_job",
    "say_nothing_there",
    "storage_at",
    "storage_option",
    "storage_path",
]

#: How to connect to a bucket, as JSON: the ``storage_options`` of the storage resource.
OPTIONS_VARIABLE = "DAGSTER_CKPT_STORAGE_OPTIONS"
_Command = Callable[..., None]
_Told = TypeVar("_Told")
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON, one document.")


class _Duration(click.ParamType):  # type: ignore[type-arg] # not generic before click 8.3
    """A duration above zero, such as ``10 s``; becomes a ``timedelta``."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        try:
            found = parse_duration(value)
        except ValueError as error:
            self.fail(f"{error}.", param, ctx)
        if found <= timedelta():
            self.fail(f"{format_duration(found)} is no time at all.", param, ctx)
        return found


DURATION = _Duration()
#: A number from 1 that Spark keeps in an ``int`` of Java.
COUNT = click.IntRange(1, GREATEST_INT)


def _tells_jobs(command: _Command, *, needs_storage: bool) -> _Command:
    """Has an error about a job that is not in the storage say so, and which jobs are there.

    What a command says to do next stays where the command needs no storage, and may have asked Dagster.
    """

    @wraps(command)
    def told(*arguments: Any, **options: Any) -> None:
        try:
            command(*arguments, **options)
        except StorageError:
            raise
        except CheckpointError as error:
            job, path = options.get("job"), options.get("path")
            if job is not None and path is not None:
                _tell_jobs(error, job, storage_at(path), before="" if needs_storage else error.hint)
            raise

    return told


def _tell_jobs(error: CheckpointError, job: str, filesystem: FileSystem, *, before: str) -> None:
    try:
        require_job(job, filesystem)
    except StorageError:
        return  # the error at hand says more
    except CheckpointNotFound as unknown:
        if unknown.message not in error.message:
            # No other command that reads the storage knows the job either.
            error.hint = f"{before} {unknown.message} {unknown.hint}".strip()


def storage_option(command: _Command) -> _Command:
    """How to connect to a storage, for :func:`storage_at`; for a command whose argument names the storage."""
    option = click.option(
        "--storage-option",
        metavar="KEY=VALUE",
        multiple=True,
        expose_value=False,
        callback=_remember,
        help=f"One of the storage_options of the storage; may be repeated. [env: {OPTIONS_VARIABLE}, as JSON]",
    )
    return option(command)


def _with_storage(command: _Command, *, required: bool) -> _Command:
    path = click.option(
        "--path",
        envvar="DAGSTER_CKPT_PATH",
        show_envvar=True,
        required=required,
        callback=not_empty,
        help="The checkpoint path, as on the storage resource.",
    )
    return path(storage_option(_tells_jobs(command, needs_storage=required)))


def not_empty(context: click.Context, option: click.Parameter, given: str | None) -> str | None:
    """The value of an option that names a place. An empty one is a variable of the shell that is not set."""
    if given == "":
        raise click.BadParameter("it is empty; name a directory or a URL.", context, option)
    return given


def storage_path(command: _Command) -> _Command:
    """The options that name the storage: ``--path`` becomes the argument ``path``, for :func:`storage_at`."""
    return _with_storage(command, required=True)


def optional_storage_path(command: _Command) -> _Command:
    """As :func:`storage_path`, for a command that may find the storage elsewhere: ``path`` may be ``None``."""
    return _with_storage(command, required=False)


def storage_at(path: str) -> FileSystem:
    """The storage that ``--path``, ``--storage-option`` and the environment name."""
    return open_filesystem(path, storage_options=connection_options(path) or None)


def connection_options(path: str) -> dict[str, Any]:
    """The ``storage_options`` of ``--storage-option`` and the environment; none for a directory."""
    try:
        options = json.loads(os.environ.get(OPTIONS_VARIABLE) or "{}")
        if not isinstance(options, dict):
            raise TypeError(f"it is of the type {type(options).__name__} of Python")
    except (TypeError, ValueError) as error:
        raise InvalidConfiguration(
            f"{OPTIONS_VARIABLE} is no JSON object: {error}.",
            hint='Write it as {"token": "/path/of/a/key/file"}, or leave it out.',
        ) from None
    context = click.get_current_context(silent=True)
    options.update({} if context is None else context.meta.get(OPTIONS_VARIABLE, {}))
    return options if path and not split_location(path).is_local else {}


def _remember(context: click.Context, option: click.Parameter, given: Sequence[str]) -> None:
    """Keep the values of ``--storage-option``: numbers, lists and the like as in JSON, and any other as text."""
    for item in given:
        key, separator, text = item.partition("=")
        if not separator or not key:
            raise click.BadParameter(f"{item!r} is not KEY=VALUE.", context, option)
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        context.meta.setdefault(OPTIONS_VARIABLE, {})[key] = value


def pairs(context: click.Context, option: click.Parameter, given: Sequence[str]) -> dict[str, str]:
    """The values of a repeated option KEY=VALUE, by key."""
    split = [item.partition("=") for item in given]
    for key, separator, text in split:
        if not separator or not key:
            raise click.BadParameter(f"{key + separator + text!r} is not KEY=VALUE.", context, option)
    return {key: text for key, _, text in split}


def repeated(name: str, help_: str) -> Callable[[_Command], _Command]:
    """An option KEY=VALUE that may be repeated; its value is a dictionary."""
    return click.option(name, metavar="KEY=VALUE", multiple=True, callback=pairs, help=f"{help_} May be repeated.")


def _json_object(context: click.Context, option: click.Parameter, given: str | None) -> dict[str, Any]:
    try:
        found = json.loads(given or "{}", object_pairs_hook=_once)
    except ValueError as error:
        raise click.BadParameter(f"{given!r} is not JSON: {error}.", context, option) from None
    if not isinstance(found, dict):
        raise click.BadParameter(f"{given!r} is no JSON object.", context, option)
    return found


def _once(members: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(members)) < len(members):
        raise ValueError("a name comes twice")
    return found


def _json_object_if_given(context: click.Context, option: click.Parameter, given: str | None) -> dict[str, Any] | None:
    return None if given is None else _json_object(context, option, given)


START_SOURCES = click.option(
    "--start-sources",
    metavar="JSON",
    callback=_json_object_if_given,
    help="Where topics of Kafka are read from in the restored copy: by topic, offsets by partition, a time, "
    """'earliest' or 'latest', as in '{"orders": {"0": 17}}'.""",
)


def _import_path(context: click.Context, option: click.Parameter, given: str | None) -> str | None:
    if given is not None and not all(given.partition(":")):
        raise click.BadParameter(f"{given!r} is not MODULE:NAME.", context, option)
    return given


def job_options(command: _Command) -> _Command:
    """The argument and the options that name a job's own code: ``target``, and those of :func:`job_arguments`."""
    for option in (
        click.option(
            "--op-config",
            metavar="JSON",
            callback=_json_object,
            help="The fields of the function's own dg.Config, as JSON.",
        ),
        click.option("--master", help="Spark master URL, where --resources has no Spark. [default: local[*]]"),
        repeated("--conf", "A setting of Spark, where --resources has no Spark."),
        click.option("--name", help="Of the job, for a function that is no asset. [default: that of the function]"),
        click.option(
            "--resources",
            metavar="MODULE:NAME",
            callback=_import_path,
            help="The dictionary of resources, or the Definitions, that Dagster gets: the storage, Spark, and those "
            "that the function takes.",
        ),
        optional_storage_path,
        click.argument("target", metavar="MODULE:NAME", callback=_import_path),
    ):
        command = option(command)
    return command


def job_arguments(
    context: click.Context,
    *,
    path: str | None,
    resources: str | None,
    name: str | None,
    conf: dict[str, str],
    master: str | None,
    op_config: dict[str, Any],
    **storage: Any,
) -> dict[str, Any]:
    """The arguments of a drive that :func:`job_options` give; ``storage`` are further arguments of the storage.

    Raises:
        UsageError: no option names a storage.
    """
    if resources is not None and context.get_parameter_source("path") is ParameterSource.ENVIRONMENT:
        path = None
    elif resources is None and path is None:
        raise click.UsageError("Give --path (or DAGSTER_CKPT_PATH), or --resources with the storage.")
    place = path and {"checkpoint_path": path, "storage_options": connection_options(path), **storage}
    spark = {key: value for key, value in (("master", master), ("conf", conf)) if value}
    return {"storage": place, "spark": spark or None, "name": name, "op_config": op_config}


def asked_jobs(job: str | None, filesystem: FileSystem) -> list[str]:
    """The job that an argument names, or all jobs in a storage if it names none.

    Raises:
        CheckpointNotFound: no such job; the hint names the jobs there.
    """
    if job is None:
        return job_names(filesystem)
    require_job(job, filesystem)
    return [job]


def of_each(jobs: Sequence[str], ask: Callable[[str], _Told], denied: str = "is left out") -> tuple[list[_Told], bool]:
    """What each job tells, and whether all of them could be asked.

    If the directory of one job is closed to this user, the other jobs are told all the same. ``denied`` is what a
    warning says of the closed job.

    Raises:
        StorageError: the storage failed, or the directory of the only job is closed.
    """
    told, were_all = [], True
    for name in jobs:
        try:
            told.append(ask(name))
        except StorageError as error:
            if not error.is_denied or len(jobs) == 1:
                raise
            warn(f"Job {name!r} {denied}: {error.message}", color="red")
            if error.hint:
                warn(error.hint)
            were_all = False
    return told, were_all


def require_job(job: str, filesystem: FileSystem) -> None:
    """Make sure that a job is in a storage, without a look at the others.

    Raises:
        CheckpointNotFound: it is not; the hint names the jobs there.
    """
    if not is_job(filesystem, job):
        known = job_names(filesystem)
        raise CheckpointNotFound(
            f"There is no job {job!r} in {filesystem.url}.",
            hint=f"The jobs there: {', '.join(known) or 'none'}. See `dagster-ckpt status {filesystem.path_option}`.",
        )


def nothing_there(catalog: CheckpointCatalog, reason: str) -> CheckpointNotFound:
    """The error for a job that has no checkpoint to look at."""
    return CheckpointNotFound(
        f"Job {catalog.job_name!r} has no checkpoint in {catalog.filesystem.url}: {reason}.",
        hint=f"See how the job is with `dagster-ckpt status {catalog.job_name} {catalog.filesystem.path_option}`, and "
        f"its savepoints with `dagster-ckpt savepoints {catalog.job_name} {catalog.filesystem.path_option}`.",
    )


def say_nothing_there(catalog: CheckpointCatalog, reason: str, *, as_json: bool) -> None:
    """Tell that a job has no checkpoint to list, which is no error.

    Raises:
        CheckpointNotFound: no such job; the hint names the jobs there.
    """
    require_job(catalog.job_name, catalog.filesystem)
    if as_json:
        say_json([])
        return
    nothing = nothing_there(catalog, reason)
    say(nothing.message)
    say(nothing.hint)


class OpenedStorage:
    """A storage that is open, for what asks a resource of Dagster for the checkpoints of a job."""

    def __init__(self, filesystem: FileSystem) -> None:
        self._filesystem = filesystem

    def catalog(self, job_name: str) -> CheckpointCatalog:
        return CheckpointCatalog(self._filesystem, job_name)


def find_checkpoint(catalog: CheckpointCatalog, checkpoint: str) -> CheckpointMetadata:
    """The named checkpoint; for ``latest`` the newest checkpoint."""
    if checkpoint != LATEST:
        return catalog.resolve(checkpoint)
    newest = find_newest(catalog)
    if newest.metadata is None:
        raise nothing_there(catalog, newest.reason)
    return newest.metadata
