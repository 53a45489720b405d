"""What the commands share: finding the storage, and the checkpoint that an argument names."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from typing import Any

import click

from dagster_ckpt.checkpoint import CheckpointCatalog, CheckpointMetadata, find_newest
from dagster_ckpt.config import LATEST
from dagster_ckpt.errors import (
    CheckpointNotFound,
    InvalidConfiguration,
)
from dagster_ckpt.filesystem import FileSystem, open_filesystem
from dagster_ckpt.paths import split_location

__all__ = [
    "JSON",
    "connection_options",
    "find_checkpoint",
    "optional_storage_path",
    "require_job",
    "storage_at",
    "storage_path",
]

#: How to connect to a bucket, as JSON: the ``storage_options`` of the storage resource.
OPTIONS_VARIABLE = "DAGSTER_CKPT_STORAGE_OPTIONS"
_Command = Callable[..., None]
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON, one document.")


def _with_storage(command: _Command, *, required: bool) -> _Command:
    option = click.option(
        "--storage-option",
        metavar="KEY=VALUE",
        multiple=True,
        expose_value=False,
        callback=_remember,
        help=f"One of the storage_options of the storage; may be repeated. [env: {OPTIONS_VARIABLE}, as JSON]",
    )
    path = click.option(
        "--path",
        envvar="DAGSTER_CKPT_PATH",
        show_envvar=True,
        required=required,
        help="The checkpoint path, as on the storage resource.",
    )
    return path(option(command))


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
        options = dict(json.loads(os.environ.get(OPTIONS_VARIABLE) or "{}"))
    except ValueError as error:
        raise InvalidConfiguration(
            f"{OPTIONS_VARIABLE} is no JSON object: {error}",
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


def require_job(job: str | None, known: Sequence[str], filesystem: FileSystem) -> None:
    """Make sure that a job which an argument names is one of the jobs in a storage.

    Raises:
        CheckpointNotFound: it is not; the hint names the jobs there.
    """
    if job is not None and job not in known:
        raise CheckpointNotFound(
            f"There is no job {job!r} in {filesystem.url}.", hint=f"The jobs there: {', '.join(known) or 'none'}."
        )


def find_checkpoint(catalog: CheckpointCatalog, checkpoint: str) -> CheckpointMetadata:
    """The named checkpoint; for ``latest`` the newest checkpoint."""
    if checkpoint != LATEST:
        return catalog.resolve(checkpoint)
    newest = find_newest(catalog)
    if newest.metadata is None:
        raise CheckpointNotFound(f"Job {catalog.job_name!r} has nothing to go on from: {newest.reason}.")
    return newest.metadata
