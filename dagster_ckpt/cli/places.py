"""What the commands share: finding the storage, and the checkpoint that an argument names."""

from __future__ import annotations

import json
import os

import click

from dagster_ckpt.checkpoint import CheckpointCatalog, CheckpointMetadata, find_newest
from dagster_ckpt.config import LATEST
from dagster_ckpt.errors import (
    CheckpointNotFound,
    InvalidConfiguration,
)
from dagster_ckpt.filesystem import FileSystem, open_filesystem

__all__ = ["JSON", "PATH", "find_checkpoint", "storage_at"]

#: How to connect to a bucket, as JSON: the ``storage_options`` of the storage resource.
OPTIONS_VARIABLE = "DAGSTER_CKPT_STORAGE_OPTIONS"
PATH = click.option(
    "--path",
    envvar="DAGSTER_CKPT_PATH",
    required=True,
    help="The checkpoint path, as on the storage resource. [env: DAGSTER_CKPT_PATH]",
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON, one document.")


def storage_at(path: str) -> FileSystem:
    """The storage that ``--path`` and the environment name."""
    try:
        options = dict(json.loads(os.environ.get(OPTIONS_VARIABLE) or "{}"))
    except ValueError as error:
        raise InvalidConfiguration(
            f"{OPTIONS_VARIABLE} is no JSON object: {error}",
            hint='Write it as {"token": "/path/of/a/key/file"}, or leave it out.',
        ) from None
    return open_filesystem(path, storage_options=options if "://" in path and not path.startswith("file:") else None)


def find_checkpoint(catalog: CheckpointCatalog, checkpoint: str) -> CheckpointMetadata:
    """The named checkpoint; for ``latest`` the newest checkpoint."""
    if checkpoint != LATEST:
        return catalog.resolve(checkpoint)
    newest = find_newest(catalog)
    if newest.metadata is None:
        raise CheckpointNotFound(f"Job {catalog.job_name!r} has nothing to go on from: {newest.reason}.")
    return newest.metadata
