"""``dagster-ckpt``: checkpoints and savepoints from the command line. Needs the storage only, no Spark or Dagster."""

from __future__ import annotations

import sys
from typing import Any

import click

from dagster_ckpt.cli.changing import dispose, pin, savepoint, sweep, unpin
from dagster_ckpt.cli.looking import batch, describe, list_checkpoints, preflight, retention, verify
from dagster_ckpt.cli.printing import warn
from dagster_ckpt.errors import CheckpointError

__all__ = ["main"]


class _Group(click.Group):
    """Prints this package's errors as a message and a hint, without a traceback, and exits with 1."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except CheckpointError as error:
            warn(error.message, color="red")
            if error.hint:
                warn(error.hint)
            sys.exit(1)


@click.group(cls=_Group)
@click.version_option(package_name="dagster-ckpt")
def main() -> None:
    """Checkpoints and savepoints of Spark jobs that Dagster runs."""


for _command in (
    batch,
    describe,
    dispose,
    list_checkpoints,
    pin,
    preflight,
    retention,
    savepoint,
    sweep,
    unpin,
    verify,
):
    main.add_command(_command)
