"""``dagster-ckpt``: checkpoints and savepoints from the command line.

Only ``run``, ``drill``, ``compare`` and ``state --operator`` start Spark. No command opens Dagster's instance:
``restore`` asks Dagster's webserver.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib import import_module
from typing import Any

import click

from dagster_ckpt.cli.printing import drop_unprinted, escape_what_cannot_be_encoded, warn
from dagster_ckpt.errors import CheckpointError
from dagster_ckpt.version import __version__

__all__ = ["main"]

#: Of each command that is not loaded yet its module, and the first sentence of its help.
_COMMANDS = {
    "batch": ("spark_files", "Tell what is in BATCH of JOB, by default in the newest that was planned."),
    "cancel": ("changing", "End JOB as CANCELED, where it runs without Dagster or in a driver of its own."),
    "checkpoint": ("saving", "Ask the running JOB for a checkpoint at once, of what it has committed by then."),
    "compare": (
        "proof.compare",
        "Tell whether GREEN, a fork of BLUE that runs its batches again, has written the same rows.",
    ),
    "describe": (
        "looking",
        "Tell what CHECKPOINT of JOB holds: 'latest', chk-N, a job id with /chk-N, savepoint:NAME, or a path.",
    ),
    "diff": ("looking", "Tell what differs between checkpoint ONE of JOB and the OTHER one, by default the newest."),
    "dispose": ("saving", "Delete the savepoint in the directory SAVEPOINT."),
    "drill": (
        "proof.drill",
        "Restore the newest checkpoint of a job aside, and compute one batch of its query, whose rows go nowhere.",
    ),
    "export": (
        "spark_files",
        "Write CHECKPOINT of JOB as a plain checkpointLocation, with which Spark goes on without this library.",
    ),
    "init": ("init", "Write a small project that runs into DIRECTORY, and the settings of a Dagster instance for it."),
    "list": ("looking", "List the completed checkpoints of JOB, or of every job, each job's newest last."),
    "pin": (
        "changing",
        "Keep CHECKPOINT of JOB until it is unpinned: neither retention nor the cleanup at the job's end deletes it.",
    ),
    "preflight": (
        "spark_files",
        "Tell whether CHECKPOINT of JOB can be restored, as far as that is known without its query.",
    ),
    "report": (
        "proof.report",
        "Write a page with charts of JOB: its checkpoints, starts and failures over time, as far as the storage tells.",
    ),
    "restore": (
        "rollback",
        "Take JOB, which Dagster runs, back TO chk-N, savepoint:NAME, the path of one, 'latest' or 'none' (nothing).",
    ),
    "retention": (
        "looking",
        "Tell what a retention would keep and delete of JOB, why, and how many bytes that would free.",
    ),
    "run": (
        "running",
        "Run the job of an asset or of a function, and resume it until it ends: without Dagster's instance.",
    ),
    "savepoint": ("saving", "Take a savepoint of JOB and print its path, which restore_from takes."),
    "savepoints": (
        "saving",
        "List the savepoints of JOB or every job that have a name, the last others that it took, and the requests.",
    ),
    "stop": (
        "saving",
        "Stop the running JOB with a savepoint, and print its path: the job ends as FINISHED, and nothing resumes it.",
    ),
    "starts": ("status", "Tell where the seconds of the last starts of JOB went."),
    "state": (
        "proof.state",
        "Tell what JOB keeps in its state at CHECKPOINT: its stateful operators, or with --operator the rows of one.",
    ),
    "status": (
        "status",
        "Tell how JOB or every job is doing: its state, its health, its run, and its newest checkpoint.",
    ),
    "sweep": ("changing", "Delete files that no checkpoint needs of JOB, or of every job that is over."),
    "unpin": ("changing", "Take the pins off CHECKPOINT of JOB: 'latest', chk-N, a job id with /chk-N, or a path."),
    "verify": (
        "looking",
        "Read every byte of CHECKPOINT of JOB, or of all its checkpoints, and compare sizes and checksums.",
    ),
}
#: The functions that cannot have the name of their command.
_OTHER_NAMES = {"list": "list_checkpoints"}


class _Group(click.Group):
    """Loads a command when it is called, and prints errors without a traceback, with exit code 1.

    That are the errors of this package, and those of the operating system, such as a full disk behind stdout.
    """

    def main(self, *arguments: Any, **options: Any) -> Any:
        escape_what_cannot_be_encoded()
        try:
            return super().main(*arguments, **options)
        except OSError as error:
            drop_unprinted()
            with suppress(OSError):
                for line in _told(error):
                    warn(line, color="red")
            drop_unprinted()
            sys.exit(1)

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in _COMMANDS:
            return None
        module, _ = _COMMANDS[cmd_name]
        command: click.Command = getattr(import_module(f"{__name__}.{module}"), _OTHER_NAMES.get(cmd_name, cmd_name))
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_) for name, (_, help_) in sorted(_COMMANDS.items())])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except CheckpointError as error:
            warn(error.message, color="red")
            warn(error.hint or f"See `dagster-ckpt {ctx.invoked_subcommand} --help`.")
            sys.exit(1)


def _told(error: OSError) -> tuple[str, str]:
    """What went wrong, and what to do."""
    reason = error.strerror or str(error) or type(error).__name__
    if error.filename is not None:
        return f"{error.filename!r} cannot be used: {reason}.", "Call the command again with another path."
    try:
        os.getcwd()  # noqa: PTH109 - a path is not wanted
    except OSError:
        return "The working directory is not there any more.", "Change to a directory that is there, and call it again."
    return f"The output cannot be written: {reason}.", "Redirect it to a disk that has room, and call it again."


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def main() -> None:
    """Checkpoints and savepoints of Spark jobs, under Dagster and without."""
