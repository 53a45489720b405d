"""The page of ``recovery.py``: its figures and a plot, from a report."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks.failures.case import STAGES
from tools.flink_environment import FLINK

__all__ = ["write_page"]

#: What failed, the kind of cases of this library, and that of Flink.
_ROWS = (
    ("The run's process is killed, its live location deleted", "new run", "Flink: everything"),
    ("The same, beside a [standby](../how-to/standby.md) that has rehearsed", "whole standby", "Flink: everything"),
    ("The JVM is killed; of Flink the TaskManager", "jvm", "Flink: TaskManager"),
    ("The query fails: a task throws", "in run", "Flink: task"),
    ("Another host takes over, which begins at the kill", "elsewhere", None),
    ("Another host takes over, beside such a standby there", "standby elsewhere", None),
)
#: The kinds that first wait for the lease of the dead run.
_AFTER_LEASE = ("elsewhere", "standby elsewhere")
_NOTES = (
    "A killed run of this library is found and launched again by Dagster. **Nothing watches the Flink cluster here: "
    "the script itself starts its JobManager and TaskManager again at the moment of the kill**, from the newest "
    "retained checkpoint. Flink's seconds have no detection in them.",
    "A killed TaskManager of Flink is replaced by one that waits with free slots. Its heartbeat, 10 s, and "
    "the delay of a restart, 1 s, are Flink's defaults.",
    "Flink's file sink commits with a checkpoint. *Its first record* is the moment at which the first record reaches "
    "the sink, uncommitted.",
    "Of a run on another host, which has namespaces of its own for its name and its processes, only the heartbeats are "
    "seen. The run counts as dead when its lease is over: {lease:g} s after the last one.",
    "At a kill a standby is warm and has been idle for 5 s: it has waited, as beside a job that has run for long.",
    "Both restart a failed task without a delay. A run whose process has died is launched again after the first "
    "delay of the restart strategy, which is 1 s.",
)
_PLOT = "recovery.svg"


def write_page(page: Path, report: dict[str, Any], before: Path | None) -> None:
    """Write the page, and its plot into ``../images``.

    Args:
        page: Markdown.
        report: of ``recovery.py``.
        before: an older report, whose figures stand beside the new ones.
    """
    old = json.loads(before.read_text(encoding="utf-8")) if before else {}
    page.write_text(_text(report, old), encoding="utf-8")
    images = page.parent.parent / "images"
    images.mkdir(exist_ok=True)
    _plot(images / _PLOT, report)


def _text(report: dict[str, Any], old: dict[str, Any]) -> str:
    machine, parameters, cases = report["machine"], report["parameters"], report["cases"]
    loads = [case["load"] for of_kind in cases.values() for case in of_kind]
    before = " before |" if old else ""
    lines = [
        "# Recovery beside Flink",
        "",
        "```",
        _command(parameters),
        "```",
        "",
        _wrapped(
            f"{report['measured_at'][:10]}, {machine['cpus']} cores, Python {machine['python']}, load average "
            f"{min(loads):.1f} to {max(loads):.1f} at the failures."
        ),
        "",
        _wrapped(
            f"One stream, failed in every way: each id of landing files once, {parameters['keys']:,} ids and more in "
            "RocksDB, a checkpoint each second. Seconds from the failure until the sink has committed something new, "
            "median and 95th percentile (cases), and the ratio of the medians:"
        ),
        "",
        f"| what fails | this library |{before} Flink {FLINK} | its first record | this library / Flink |",
        f"|---|---|{'---|' if old else ''}---|---|---|",
    ]
    for what, ours, flinks in _ROWS:
        if ours not in cases:
            continue
        earlier = f" {_cell(old, ours, 'total')} |" if old else ""
        cells = [_cell(report, flinks, stage) for stage in ("total", "first_record")] + [_ratio(report, ours, flinks)]
        lines.append(f"| {what} | {_cell(report, ours, 'total')} |{earlier} " + " | ".join(cells) + " |")
    lines += [
        "",
        "![Seconds from each failure to the next commit, a point for each case](../images/recovery.svg)",
        "",
        *(_wrapped(f"- {note.format(**parameters)}", "  ") for note in _NOTES),
        *(_wrapped(f"- {_after_lease(report, kind)}", "  ") for kind in _AFTER_LEASE if kind in cases),
        *(_wrapped(f"- **A case failed**: {failed}", "  ") for failed in report["failed"]),
        "",
        "## The parts",
        "",
        "Medians in seconds; the parts follow one another without a gap.",
        "",
        "| | " + " | ".join(stage.replace("_", " ") for stage in STAGES) + " |",
        "|---" * (len(STAGES) + 1) + "|",
    ]
    for what, ours, _ in _ROWS:
        if ours in cases:
            parts = report["summary"][ours]
            lines.append(f"| {what} | " + " | ".join(f"{parts[stage]['median']:.2f}" for stage in STAGES) + " |")
    return "\n".join(lines) + "\n"


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(text, 120, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)


def _cell(report: dict[str, Any], kind: str | None, stage: str) -> str:
    if kind is None:
        return ""
    if kind not in report["cases"]:
        return "not measured"
    figures = report["summary"][kind][stage]
    # A report of before has no percentile.
    p95 = f", {figures['p95']:.3g}" if "p95" in figures else ""
    return f"{figures['median']:.3g}{p95} ({len(report['cases'][kind])})"


def _ratio(report: dict[str, Any], ours: str, flinks: str | None) -> str:
    if flinks not in report["cases"]:
        return ""
    one, other = (report["summary"][kind]["total"]["median"] for kind in (ours, flinks))
    return f"{one / other:.2f}"


def _after_lease(report: dict[str, Any], kind: str) -> str:
    """What a takeover takes beside the lease."""
    figures, lease = report["summary"][kind]["total"], report["parameters"]["lease"]
    median, p95 = (f"{figures[name] - lease:.1f} s" for name in ("median", "p95"))
    (what,) = (what for what, ours, _ in _ROWS if ours == kind)
    return f"*{what}*: the lease + {median} (95th percentile: + {p95})."


def _command(parameters: dict[str, Any]) -> str:
    """What makes this page anew."""
    asked = {name: parameters[name] for name in ("cases", "whole_standby", "jvm", "restarts", "elsewhere", "flink")}
    options = " ".join(f"--{name.replace('_', '-')} {number}" for name, number in asked.items())
    return f"benchmarks/recovery.py {options} --page docs/reference/recovery.md"


def _plot(file: Path, report: dict[str, Any]) -> None:
    """A row for each kind of failure, a point for each case."""
    kinds = list(report["cases"])
    figure = Figure(figsize=(8, 0.45 * len(kinds) + 1))
    axes = figure.add_subplot()
    for row, kind in enumerate(reversed(kinds)):
        totals = [case["total"] for case in report["cases"][kind]]
        axes.plot(totals, [row] * len(totals), "o", alpha=0.6, color="tab:orange" if "Flink" in kind else "tab:blue")
    axes.set_yticks(range(len(kinds)), list(reversed(kinds)))
    axes.set_xlabel("seconds from the failure to the next commit")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.grid(visible=True, axis="x", alpha=0.3, which="both")
    figure.tight_layout()
    # The same bytes for the same figures.
    with mpl.rc_context({"svg.hashsalt": "recovery"}):
        figure.savefig(file, metadata={"Date": None})
