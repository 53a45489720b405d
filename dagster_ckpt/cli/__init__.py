"""``dagster-ckpt``: checkpoints and savepoints from the command line. Needs the storage only, no Spark or Dagster."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any, NamedTuple

import click

from dagster_ckpt.cli.printing import warn
from dagster_ckpt.errors import CheckpointError
from dagster_ckpt.version import __version__

__all__ = ["main"]


class _Command(NamedTuple):
    """A command that is not loaded yet: its module and name there, and the first sentence of its help."""

    module: str
    function: str
    help: str


_COMMANDS = {
    "batch": _Command(
        "spark_files", "batch", "Tell what is in BATCH of JOB, by default in the newest that was planned."
    ),
    "describe": _Command(
        "looking", "describe", "Tell what CHECKPOINT of JOB holds: 'latest', chk-N, a job id with /chk-N, or a path."
    ),
    "dispose": _Command("changing", "dispose", "Delete the savepoint in the directory SAVEPOINT."),
    "list": _Command(
        "looking", "list_checkpoints", "List the completed checkpoints of JOB, or of every job, the newest last."
    ),
    "pin": _Command(
        "changing",
        "pin",
        "Keep CHECKPOINT of JOB until it is unpinned: neither retention nor the cleanup at the job's end deletes it.",
    ),
    "preflight": _Command(
        "spark_files",
        "preflight",
        "Tell whether CHECKPOINT of JOB can be restored, as far as that is known without its query.",
    ),
    "retention": _Command(
        "looking",
        "retention",
        "Tell what a retention would keep and delete of JOB, why, and how many bytes that would free.",
    ),
    "savepoint": _Command(
        "changing", "savepoint", "Take a savepoint of JOB and print its path, which restore_from takes."
    ),
    "sweep": _Command(
        "changing", "sweep", "Delete files that no checkpoint needs of JOB, or of every job that is over."
    ),
    "unpin": _Command("changing", "unpin", "Take the pins off CHECKPOINT of JOB: chk-N, or a job id with /chk-N."),
    "verify": _Command(
        "looking",
        "verify",
        "Read every byte of CHECKPOINT of JOB, or of all its checkpoints, and compare sizes and checksums.",
    ),
}


class _Group(click.Group):
    """Loads a command when it is called, and prints this package's errors without a traceback, with exit code 1."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in _COMMANDS:
            return None
        found = _COMMANDS[cmd_name]
        command: click.Command = getattr(import_module(f"{__name__}.{found.module}"), found.function)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.help) for name, command in sorted(_COMMANDS.items())])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except CheckpointError as error:
            warn(error.message, color="red")
            if error.hint:
                warn(error.hint)
            sys.exit(1)


@click.group(cls=_Group)
@click.version_option(__version__)
def main() -> None:
    """Checkpoints and savepoints of Spark jobs that Dagster runs."""
