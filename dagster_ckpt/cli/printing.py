"""The one place that prints: text from a storage is printed as plain text, never as markup or terminal commands."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click

from dagster_ckpt.shown_text import in_one_line

__all__ = ["say", "say_json", "say_table", "warn"]

#: Columns of a table that is not printed to a terminal.
_WIDTH = 200


def say(text: object, *, color: str | None = None) -> None:
    """Print one line to stdout, whatever the text contains."""
    click.secho(in_one_line(str(text)), fg=color)


def warn(text: object, *, color: str | None = None) -> None:
    """Print one line to stderr, whatever the text contains."""
    click.secho(in_one_line(str(text)), fg=color, err=True)


def say_json(document: Any) -> None:
    """Print a JSON document to stdout; all characters except ASCII are escaped."""
    click.echo(json.dumps(document, indent=2))


def say_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table to stdout."""
    # rich takes a tenth of a second to load; the other commands do not wait for it.
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(*columns)
    for row in rows:
        table.add_row(*(Text(in_one_line(str(cell))) for cell in row))
    width = None if sys.stdout.isatty() else _WIDTH
    Console(width=width, markup=False, highlight=False, emoji=False).print(table)
