"""``dagster-ckpt``: checkpoints and savepoints from the command line.

Only ``run``, ``drill`` and ``state --operator`` need Spark, and nothing needs Dagster's instance.
"""

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
    "cancel": _Command(
        "changing", "cancel", "End JOB as CANCELED, where it runs without Dagster or in a driver of its own."
    ),
    "checkpoint": _Command(
        "saving", "checkpoint", "Ask the running JOB for a checkpoint at once, of what it has committed by then."
    ),
    "compare": _Command(
        "proof.compare",
        "compare",
        "Tell whether GREEN, a fork of BLUE that runs its batches again, has written the same rows.",
    ),
    "describe": _Command(
        "looking",
        "describe",
        "Tell what CHECKPOINT of JOB holds: 'latest', chk-N, a job id with /chk-N, savepoint:NAME, or a path.",
    ),
    "diff": _Command(
        "looking", "diff", "Tell what differs between checkpoint ONE of JOB and the OTHER one, by default the newest."
    ),
    "dispose": _Command("saving", "dispose", "Delete the savepoint in the directory SAVEPOINT."),
    "drill": _Command(
        "proof.drill",
        "drill",
        "Restore the newest checkpoint of a job aside, and compute one batch of its query, whose rows go nowhere.",
    ),
    "export": _Command(
        "spark_files",
        "export",
        "Write CHECKPOINT of JOB as a plain checkpointLocation, with which Spark goes on without this library.",
    ),
    "init": _Command(
        "init",
        "init",
        "Write a small project that runs into DIRECTORY, and the settings of a Dagster instance for it.",
    ),
    "list": _Command(
        "looking",
        "list_checkpoints",
        "List the completed checkpoints of JOB, or of every job, each job's newest last.",
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
    "report": _Command(
        "proof.report",
        "report",
        "Write a page with charts of JOB: its checkpoints, starts and failures over time, as far as the storage tells.",
    ),
    "restore": _Command(
        "rollback",
        "restore",
        "Take JOB, which Dagster runs, back TO chk-N, savepoint:NAME, the path of one, 'latest' or 'none' (nothing).",
    ),
    "retention": _Command(
        "looking",
        "retention",
        "Tell what a retention would keep and delete of JOB, why, and how many bytes that would free.",
    ),
    "run": _Command(
        "running",
        "run",
        "Run the job of an asset or of a function, and resume it until it ends: without Dagster's instance.",
    ),
    "savepoint": _Command(
        "saving", "savepoint", "Take a savepoint of JOB and print its path, which restore_from takes."
    ),
    "savepoints": _Command(
        "saving",
        "savepoints",
        "List the savepoints of JOB or every job that have a name, the last others that it took, and the requests.",
    ),
    "stop": _Command(
        "saving",
        "stop",
        "Stop the running JOB with a savepoint, and print its path: the job ends as FINISHED, and nothing resumes it.",
    ),
    "starts": _Command("status", "starts", "Tell where the seconds of the last starts of JOB went."),
    "state": _Command(
        "proof.state",
        "state",
        "Tell what JOB keeps in its state at CHECKPOINT: its stateful operators, or with --operator the rows of one.",
    ),
    "status": _Command(
        "status",
        "status",
        "Tell how JOB or every job is doing: its state, its health, its run, and its newest checkpoint.",
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


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def main() -> None:
    """Checkpoints and savepoints of Spark jobs, under Dagster and without."""
