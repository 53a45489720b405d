"""What a checkpoint and a restore cost as the state grows, with one plot.

    python benchmarks/growth.py --keys 100000 1000000 10000000 --output growth.json --page docs/reference/growth.md
    python benchmarks/growth.py --report growth.json --page docs/reference/growth.md

For each number of keys ``overhead.py`` runs with a few pairs of blocks, 1 % of the keys in each batch and a checkpoint
each second. Then the checkpoint that its state was filled into is read, verified and written to a directory, which is
the part of a restore that grows.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog  # noqa: E402
from dagster_ckpt.checkpoint.catalog.file_reader import materialize_checkpoint  # noqa: E402
from dagster_ckpt.filesystem import open_filesystem  # noqa: E402

#: The columns of the page and the curves of the plot: a name and its unit.
_FIGURES = {
    "pin": "ms, median",
    "write": "ms, median",
    "new": "MB a checkpoint, mean",
    "full": "MB of a full copy",
    "restore": "ms, median",
    "ratio": "of plain Spark's rows/s",
}
_RESTORES = 3
_PLOT = "growth.svg"


def measure(keys: int, directory: Path, options: argparse.Namespace) -> dict[str, float]:
    """The figures for so many keys."""
    told = directory / "overhead.json"
    place = directory / "overhead"
    arguments = {"keys": keys, "pairs": options.pairs, "batches": options.batches, "interval": options.interval}
    overhead = [
        sys.executable,
        str(ROOT / "benchmarks" / "overhead.py"),
        "--directory",
        str(place),
        "--output",
        str(told),
    ]
    subprocess.run([*overhead, *(f"--{name}={value}" for name, value in arguments.items())], check=True)
    summary = json.loads(told.read_text(encoding="utf-8"))["summary"]
    if "pin_ms" not in summary:
        raise RuntimeError(f"No checkpoint fell into a block with {keys} keys: give more --batches")
    catalog = CheckpointCatalog(open_filesystem(str(place / "prepared")), "overhead")
    whole = catalog.resolve("chk-1")
    restores = []
    for _ in range(_RESTORES):
        target = directory / "restored"
        begun = time.monotonic()
        materialize_checkpoint(catalog, whole, target)
        restores.append(1000 * (time.monotonic() - begun))
        shutil.rmtree(target)
    shutil.rmtree(place)
    return {
        "keys": keys,
        "pin": summary["pin_ms"]["p50"],
        "write": summary["write_ms"]["p50"],
        "new": summary["new_bytes"]["mean"] / 1e6,
        "full": whole.size / 1e6,
        "restore": statistics.median(restores),
        "ratio": summary["ratio_geometric_mean"],
        "lower": summary["ratio_lower_95"],
        "pairs": len(summary["ratios"]),
        "checkpoints": summary["checkpoints"],
    }


def write_page(page: Path, report: dict[str, Any]) -> None:
    """Write the Markdown page, and its plot into ``../images``."""
    machine, sizes = report["machine"], report["sizes"]
    heads = [*(f"{name}, {unit}" for name, unit in _FIGURES.items()), "its lower 95 % bound", "checkpoints, pairs"]
    lines = [
        "# State that grows",
        "",
        f"Made by `benchmarks/growth.py --keys {' '.join(str(size['keys']) for size in sizes)} "
        f"--pairs {sizes[0]['pairs']} --page docs/reference/growth.md`:",
        f"`GROUP BY` a key in RocksDB, 1 % of the keys in each batch, a checkpoint each {report['interval']:g} s.",
        f"{report['measured_at'][:10]}, {machine['cpus']} cores, Python {machine['python']}, load average at the begin "
        f"{machine['load']:.1f}.",
        "",
        f"| keys | {' | '.join(heads)} |",
        "|---" * (len(heads) + 1) + "|",
    ]
    for size in sizes:
        cells = " | ".join(f"{size[name]:,.3g}" if size[name] < 1000 else f"{size[name]:,.0f}" for name in _FIGURES)
        counted = f"{size['lower']:.3f} | {size['checkpoints']}, {size['pairs']}"
        lines.append(f"| {size['keys']:,} | {cells} | {counted} |")
    lines += [
        "",
        "*Pin* is the one step that the query may have to wait for. *Write* goes on beside the query. *Full* is the",
        "size of the first checkpoint, and *restore* is to read all its files, to verify them and to lay them out. The",
        "*bound* tells how far the pairs of blocks scatter.",
        "",
        "![Each figure against the number of keys, both axes logarithmic](../images/growth.svg)",
    ]
    page.write_text("\n".join(lines) + "\n", encoding="utf-8")
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    for name, unit in _FIGURES.items():
        axes.plot([size["keys"] for size in sizes], [size[name] for size in sizes], "o-", label=f"{name}, {unit}")
    axes.set(xscale="log", yscale="log", xlabel="keys of state")
    axes.grid(visible=True, alpha=0.3)
    figure.legend(loc="outside lower center", ncols=3)
    images = page.parent.parent / "images"
    images.mkdir(exist_ok=True)
    # The same bytes for the same figures.
    with mpl.rc_context({"svg.hashsalt": "growth"}):
        figure.savefig(images / _PLOT, metadata={"Date": None})


def main() -> int:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, nargs="+", default=[100_000, 1_000_000, 10_000_000])
    parser.add_argument("--pairs", type=int, default=10, help="pairs of blocks for each number of keys")
    parser.add_argument("--batches", type=int, default=3, help="batches of a block")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between checkpoints")
    parser.add_argument("--directory", type=Path, default=ROOT / "artifacts" / "growth", help="emptied first")
    parser.add_argument(
        "--output", type=Path, help="JSON, written after each number of keys; default: growth.json there"
    )
    parser.add_argument("--page", type=Path, help="write a Markdown page and its plot in ../images")
    parser.add_argument("--report", type=Path, help="run nothing, and write the page of an earlier run's report")
    options = parser.parse_args()
    if options.report:
        write_page(options.page, json.loads(options.report.read_text(encoding="utf-8")))
        return 0
    directory: Path = options.directory.absolute()
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    machine = {
        "cpus": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 2),
    }
    sizes: list[dict[str, float]] = []
    report = {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine,
        "interval": options.interval,
        "sizes": sizes,
    }
    output: Path = options.output or directory / "growth.json"
    for keys in sorted(options.keys):
        sizes.append(measure(keys, directory, options))
        output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    if options.page:
        write_page(options.page, report)
    print(f"report: {output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
