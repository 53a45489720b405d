"""What it costs to begin: CPU seconds of imports and of the command line, and their ratio to `import dagster`.

    python benchmarks/imports.py --output imports.json

Each case is a new process, whose user and system time are added up. The cases follow one another in turns, so that
whatever else runs on the machine meets all of them; a case is told by its median, and as a ratio to `import dagster` of
the same turns.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DAGSTER = "import dagster"
IMPORTS = (
    "dagster_ckpt",
    "dagster_ckpt.config.configuration",
    "dagster_ckpt.filesystem",
    "dagster_ckpt.checkpoint.catalog.catalog",
    "dagster_ckpt.checkpoint.taking.coordinator",
    "dagster_ckpt.orchestration.definitions",
    "definitions",
)


def cases(storage: Path) -> dict[str, list[str]]:
    """The arguments of Python for each case."""
    return {
        "nothing": ["-c", ""],
        DAGSTER: ["-c", DAGSTER],
        "import pyspark.sql": ["-c", "import pyspark.sql"],
        **{f"import {name}": ["-c", f"import {name}"] for name in IMPORTS},
        "dagster-ckpt --help": ["-m", "dagster_ckpt.cli", "--help"],
        "dagster-ckpt list": ["-m", "dagster_ckpt.cli", "list", "--path", str(storage)],
    }


def cpu_seconds(arguments: list[str]) -> float:
    """User and system time of a new interpreter with these arguments.

    Raises:
        RuntimeError: it fails.
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL, env=environment)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(arguments)} ended with {process.returncode}")
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    """Measure every case, print a table, and write every figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="processes of each case, in turns")
    parser.add_argument("--output", type=Path, help="a JSON file with every figure")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "job" / "control").mkdir(parents=True)
        every = cases(Path(directory))
        for arguments in every.values():
            cpu_seconds(arguments)  # writes what is compiled, which later processes read
        figures: dict[str, list[float]] = {name: [] for name in every}
        for _ in range(options.rounds):
            for name, arguments in every.items():
                figures[name].append(cpu_seconds(arguments))
    medians = {name: statistics.median(found) for name, found in figures.items()}
    print(f"median CPU seconds of {options.rounds}; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    for name, median in medians.items():
        print(f"{name:<52} {median:6.3f} s  {median / medians[DAGSTER]:5.2f} of {DAGSTER}")
    if options.output is not None:
        report = {"cpu_seconds": figures, "medians": medians, "load": os.getloadavg()}
        options.output.write_text(json.dumps(report, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
