"""The one place that prints: text from a storage is printed as plain text, never as markup or terminal commands."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import click

from dagster_ckpt.clock import told_ms
from dagster_ckpt.filesystem import unheard
from dagster_ckpt.shown_text import in_one_line

__all__ = [
    "drop_unprinted",
    "escape_what_cannot_be_encoded",
    "for_people",
    "progress",
    "say",
    "say_json",
    "say_table",
    "warn",
]

#: Columns of a table that is not printed to a terminal.
_WIDTH = 200
#: Characters that a folded column has at least.
_NARROWEST = 6
_KIB = 1 << 10
#: Milliseconds from here on are a point in time, and fewer are a duration.
_YEAR_1973_MS = 10**11
#: Names that are points in time, however early.
_TIMES = ("watermark_ms", "timestamp_ms")
#: Most rows of a table whose cells are folded.
_LONG = 300


def escape_what_cannot_be_encoded() -> None:
    """Have characters that the terminal's encoding lacks printed escaped, instead of an error."""
    for stream in (sys.stdout, sys.stderr):
        if (reconfigure := getattr(stream, "reconfigure", None)) is not None:
            reconfigure(errors="backslashreplace")


def drop_unprinted() -> None:
    """Give up what could not be printed: Python tries again at its exit, and would change the exit status."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def say(text: object, *, color: str | None = None) -> None:
    """Print one line to stdout, whatever the text contains."""
    click.secho(in_one_line(str(text)), fg=color)


def warn(text: object, *, color: str | None = None) -> None:
    """Print one line to stderr, whatever the text contains."""
    click.secho(in_one_line(str(text)), fg=color, err=True)


def for_people(name: str, value: object) -> str:
    """A value as a person reads it, by its dotted name: a time, a duration, a size or a rate with its unit."""
    from dagster_ckpt.config import format_size, measured_duration  # noqa: PLC0415 - pydantic: `--help` needs it not

    if value is None:
        return ""
    if isinstance(value, int | float) and not isinstance(value, bool):
        if name.endswith(_TIMES) or ("_ms" in name and value >= _YEAR_1973_MS):
            return told_ms(value)
        if "_ms" in name:
            return measured_duration(value)
        if isinstance(value, int) and name.endswith("bytes"):
            return f"{value:,} bytes ({format_size(value)})" if value >= _KIB else format_size(value)
        if name.endswith("per_second"):
            return f"{value:,.4g} per second"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else str(value)


def say_json(document: Any) -> None:
    """Print a JSON document to stdout, a list with one line an item; all characters except ASCII are escaped."""
    if isinstance(document, list) and document:
        click.echo("[\n" + ",\n".join(map(json.dumps, document)) + "\n]")
    else:
        click.echo(json.dumps(document, indent=2))


def say_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, whole: str, spare: Sequence[str] = ()
) -> None:
    """Print a table to stdout; what does not fit into the width of the terminal is folded, and nothing is cut off.

    A table of more than 300 rows is printed with one line a row instead, however wide: nobody folds 1,000 rows within a
    second. Where the terminal is too narrow even for a folded table, each row is printed as a list of its cells.

    Args:
        columns: the headings.
        rows: a cell per column.
        whole: heading of the column that is not folded either.
        spare: headings of columns to leave out where the terminal is too narrow, the first one first.
    """
    cells = [[in_one_line(str(cell)) for cell in row] for row in rows]
    if len(cells) > _LONG:
        _say_lines([list(columns), *cells])
        return
    # rich takes a tenth of a second to load; the other commands do not wait for it.
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    console = Console(
        width=None if sys.stdout and sys.stdout.isatty() else _WIDTH, markup=False, highlight=False, emoji=False
    )
    widths = {column: max(map(len, [column, *(row[place] for row in cells)])) for place, column in enumerate(columns)}
    for column in spare:
        if sum(widths.values()) + 3 * len(widths) + 1 > console.width:
            widths.pop(column, None)
    least = {name: width if name == whole else min(width, max(len(name), _NARROWEST)) for name, width in widths.items()}
    if sum(least.values()) + 3 * len(least) + 1 > console.width:
        _say_cells(columns, cells)
        return
    table = Table()
    for column in widths:
        table.add_column(column, overflow="fold", no_wrap=column == whole, min_width=least[column])
    shown = [place for place, column in enumerate(columns) if column in widths]
    for row in cells:
        table.add_row(*(Text(row[place]) for place in shown))
    console.print(table)


def _say_cells(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    width = max(map(len, columns))
    told = (
        "\n".join(f"{column:<{width}}  {cell}" for column, cell in zip(columns, row, strict=True) if cell)
        for row in rows
    )
    click.echo("\n\n".join(told))


def _say_lines(table: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, cells)) for cells in zip(*table, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in table)
    click.echo("\n".join(lines))


@contextmanager
def progress(what: str, size: int) -> Iterator[Callable[[int], object]]:
    """A bar on standard error, if that is a terminal, which is gone at the end; else nothing.

    Args:
        what: is under way, for people.
        size: all bytes together.

    Returns:
        what is to be called with the bytes of each part that is done, on any thread.
    """
    if not (sys.stderr and sys.stderr.isatty()):
        yield unheard
        return
    from rich.console import Console  # noqa: PLC0415 - as above
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=size)
        yield lambda done: bar.advance(task, done)
