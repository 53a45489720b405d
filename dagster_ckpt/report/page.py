"""The report as one HTML page, which needs nothing else: no script, no font, no other file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape

from dagster_ckpt.config import format_size
from dagster_ckpt.report.charts import draw_chart, moment
from dagster_ckpt.report.figures import charts_of, count_text, seconds_text
from dagster_ckpt.report.history import JobHistory

__all__ = ["html_page"]

#: Checkpoints in the table: the newest.
_MOST_ROWS = 200
_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 1400px; padding: 1rem; }
h1 { font-size: 1.5rem; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
p { margin: .25rem 0; overflow-wrap: anywhere; }
.note { color: #808080; }
.bad { color: #c9504f; }
.charts { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); }
.charts svg { border: 1px solid #80808055; border-radius: 6px; width: 100%; height: auto; box-sizing: border-box; }
.table { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; width: 100%; }
th, td { border-bottom: 1px solid #80808055; padding: .2rem .75rem .2rem 0; text-align: left; vertical-align: top; }
td { white-space: nowrap; }
td:last-child { min-width: min(34rem, 85vw); overflow-wrap: anywhere; white-space: normal; }
"""
# Even if something in the page were markup, nothing would run and nothing would be fetched.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def html_page(history: JobHistory) -> str:
    """The report of a job as HTML. Whatever the storage says is shown as text."""
    title = f"Checkpoints of {history.job_name}"
    look = "bad" if history.state in {"FAILED", "UNREADABLE", "DEAD"} else "good"
    charts = charts_of(history)
    parts = [
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
        f'<p class="note">{escape(history.storage)}, read at {moment(history.told_at)} UTC. All times are UTC.</p>',
        f'<p class="{look}"><strong>{escape(history.state)}</strong>{_after(history.reason)}</p>',
        *(f"<p>{escape(line)}</p>" for line in _summary(history)),
        '<div class="charts">',
        *(draw_chart(chart, tooltips=True) for chart in charts),
        "</div>",
        '<p class="note">A dashed line is a start of the job. Checkpoints of one lineage are joined. '
        "Hollow bars are starts that committed no batch.</p>"
        if charts
        else "",
        *_troubles(history),
        *_starts(history),
        *_checkpoints(history),
        "</body></html>\n",
    ]
    return "\n".join(part for part in parts if part)


def _summary(history: JobHistory) -> Iterator[str]:
    rows = history.checkpoints
    if not rows:
        yield "No checkpoint is in the storage."
        return
    lineages = len({row.lineage for row in rows})
    of = f", of {lineages} lineages" if lineages > 1 else ""
    longest = max(rows, key=lambda row: row.seconds)
    yield f"The job would go on from {history.newest or 'nothing'}."
    yield (
        f"{len(rows):,} checkpoint{'s are' if len(rows) > 1 else ' is'} in the storage{of}, from "
        f"{moment(rows[0].written_at)} to {moment(rows[-1].written_at)}. The longest took "
        f"{seconds_text(longest.seconds)} ({longest.name})."
    )


def _troubles(history: JobHistory) -> Iterator[str]:
    yield "<h2>What went wrong</h2>"
    if not history.troubles:
        yield "<p>Nothing that the storage still tells of.</p>"
        return
    yield _table(
        ("at", "what", "run or checkpoint", "reason"),
        ((moment(each.at), each.what, each.where, each.reason) for each in reversed(history.troubles)),
    )


def _starts(history: JobHistory) -> Iterator[str]:
    yield f"<h2>Starts</h2><p>The last {len(history.starts)}. Restarts among them: {_restarts(history)}.</p>"
    if history.starts:
        yield _table(
            ("epoch", "at", "", "seconds", "run", "began with", "ended"),
            (
                (
                    str(each.epoch),
                    moment(each.at),
                    "restart" if each.is_restart else "launched",
                    "" if each.seconds is None else seconds_text(each.seconds),
                    each.run_id,
                    each.restored,
                    each.end,
                )
                for each in reversed(history.starts)
            ),
        )


def _restarts(history: JobHistory) -> int:
    return sum(start.is_restart for start in history.starts)


def _checkpoints(history: JobHistory) -> Iterator[str]:
    if not history.checkpoints:
        return
    more = len(history.checkpoints) - _MOST_ROWS
    yield "<h2>Checkpoints in the storage</h2>"
    if more > 0:
        yield f"<p>The newest {_MOST_ROWS}; the charts have the {more:,} older ones too.</p>"
    yield _table(
        ("lineage", "checkpoint", "batch", "epoch", "kind", "duration", "bytes", "new", "state rows", "written"),
        (
            (
                row.lineage[:8],
                row.name,
                f"{row.batch:,}",
                str(row.epoch),
                row.kind,
                seconds_text(row.seconds),
                format_size(row.bytes),
                format_size(row.new_bytes),
                count_text(sum(row.state_rows.values())) if row.state_rows else "",
                moment(row.written_at),
            )
            for row in history.checkpoints[: -_MOST_ROWS - 1 : -1]
        ),
    )


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "\n".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>'


def _after(reason: str) -> str:
    return f": {escape(reason)}" if reason else ""
