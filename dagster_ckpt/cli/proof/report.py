"""``dagster-ckpt report``: a page that shows how a job's checkpoints, starts and failures went."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import click

from dagster_ckpt.checkpoint import CheckpointCatalog
from dagster_ckpt.cli.places import JSON, require_job, storage_at, storage_path
from dagster_ckpt.cli.printing import say, say_json
from dagster_ckpt.clock import SystemClock
from dagster_ckpt.errors import InvalidConfiguration
from dagster_ckpt.report import html_page, read_history
from dagster_ckpt.shown_text import counted

__all__ = ["report"]


@click.command()
@click.argument("job")
@storage_path
@click.option(
    "--to",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The page, as HTML. A file that is there is replaced. Required without --json.",
)
@JSON
def report(job: str, path: str, to: Path | None, as_json: bool) -> None:
    """Write a page with charts of JOB: its checkpoints, starts and failures over time, as far as the storage tells.

    The page is one file of HTML that needs nothing else. With --json the same is printed as data.
    """
    if to is None and not as_json:
        raise click.UsageError("Give --to FILE for a page, or --json.")
    filesystem = storage_at(path)
    require_job(job, filesystem)
    history = read_history(CheckpointCatalog(filesystem, job), SystemClock())
    if to is not None:
        _replace(to, html_page(history))
    if as_json:
        say_json(asdict(history))
    elif to is not None:
        say(f"wrote {to}: {counted(len(history.checkpoints), 'checkpoint')}, {counted(len(history.starts), 'start')}")


def _replace(file: Path, text: str) -> None:
    """Put a whole page in the place of the page that is there: somebody may be reading that.

    A link stays, and what it leads to is replaced. What is no file, as a terminal or a pipe, is written to.
    """
    if not file.name:
        raise InvalidConfiguration(f"{str(file)!r} is no name of a file.", hint="Name a file with --to.")
    page = Path(os.path.realpath(file))
    beside = page.with_name(f".{page.name}.tmp")
    try:
        if file.exists() and not file.is_file():
            file.write_text(text, encoding="utf-8")
            return
        beside.write_text(text, encoding="utf-8")
        beside.replace(page)
    except OSError as error:
        with suppress(OSError):
            beside.unlink()
        raise InvalidConfiguration(
            f"{file} cannot be written: {error.strerror}.", hint="Name another file with --to."
        ) from error
