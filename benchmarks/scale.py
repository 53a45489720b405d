"""What grows with what, far beyond this machine: constants that are measured here, and a model that multiplies them.

    python benchmarks/scale.py --output scale.json

Measured are a file's line in a manifest, and with ``age.py`` starts, lists and ticks: in CPU seconds, bytes and
requests. From these constants follows what one large job and many jobs cost, and at which size each limit is reached.
Nothing of that size was run.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from dagster_ckpt.checkpoint.format import CheckpointMetadata, FileEntry  # noqa: E402 - below the path
from dagster_ckpt.checkpoint.format.manifest import LONGEST, MOST_FILES  # noqa: E402
from tests.helpers.checkpoint.manifests import MANIFEST  # noqa: E402

#: Files of each checkpoint that ``age.py`` writes.
AGE_FILES = 12
#: Bytes that Dagster's event log keeps for each reported checkpoint where 50 or more are retained.
EVENT_BYTES = 35_000
#: Requests of a quiet job and its sensor a month, with a lease of 60 s and 5 min: writes and listings, and reads.
QUIET_REQUESTS = (50_000, 130_000)
#: USD for a million of each, in ``gs://`` and ``s3://``.
PRICES = (5.0, 0.4)
MONTH = 30 * 86_400
MIB, GIB, TB = 1 << 20, 1 << 30, 10**12


@dataclass(frozen=True)
class Constants:
    """What was measured on this machine.

    Attributes:
        line_bytes: of a file in a manifest.
        new_line_cpu: seconds to read a line that no earlier manifest had.
        known_line_cpu: seconds to read a line that an earlier manifest had.
        line_memory: bytes of a file in memory.
        start_cpu: seconds of a start for each retained checkpoint of 12 files.
        list_cpu: seconds of ``dagster-ckpt list`` for each.
        tick_cpu: seconds of a tick for each job that runs, in a bucket.
        tick_requests: requests of a tick for each.
    """

    line_bytes: float
    new_line_cpu: float
    known_line_cpu: float
    line_memory: float
    start_cpu: float
    list_cpu: float
    tick_cpu: float
    tick_requests: float


def main() -> int:
    """Measure, multiply, and print two tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=200_000, help="of the manifest that is measured")
    parser.add_argument("--retained", type=int, default=10_000, help="that age.py measures")
    parser.add_argument("--jobs", type=int, default=1_000, help="that age.py measures")
    parser.add_argument("--latency", type=float, default=0.03, help="seconds a request")
    parser.add_argument("--age", type=Path, help="a report of age.py with these sizes; without one it is measured anew")
    parser.add_argument("--many-jobs", type=float, default=1e5, help="of the model")
    parser.add_argument("--many-retained", type=float, default=1e4, help="of the model")
    parser.add_argument("--state", type=float, default=10 * TB, help="bytes of the model's large job")
    parser.add_argument("--file", type=float, default=64 * MIB, help="bytes of a state file")
    parser.add_argument("--new", type=float, default=0.01, help="part of the files that are new in a checkpoint")
    parser.add_argument("--interval", type=float, default=60, help="seconds between checkpoints")
    parser.add_argument("--concurrency", type=int, default=16, help="requests at once")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    constants = Constants(**_of_lines(options.files), **_of_age(options))
    report = {
        "constants": asdict(constants),
        "large_job": large_job(constants, options),
        "many_jobs": many_jobs(constants, options),
        "limits": limits(constants, options),
    }
    if options.output:
        options.output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    for title, rows in report.items():
        print(f"\n| {title.replace('_', ' ')} | |\n|---|---|")
        for what, figure in rows.items():
            print(f"| {what} | {figure:,.3g} |" if abs(figure) < 1000 else f"| {what} | {figure:,.0f} |")
    return 0


def large_job(constants: Constants, options: argparse.Namespace) -> dict[str, float]:
    """One job with much state and many retained checkpoints."""
    files, retained = options.state / options.file, options.many_retained
    different = files * (1 + retained * options.new)
    manifest = files * constants.line_bytes
    return {
        "files of a checkpoint": files,
        "MiB of a manifest": manifest / MIB,
        "GiB of all manifests, which a start reads": retained * manifest / GIB,
        "TB stored, without packs and manifests": different * options.file / TB,
        "new files a checkpoint, a request each": files * options.new,
        "seconds of these requests": files * options.new * options.latency / options.concurrency,
        "CPU seconds of a start": _start_cpu(constants, retained, files, options.new),
        "GiB of memory of a start": _memory(constants, retained, files, options.new) / GIB,
    }


def many_jobs(constants: Constants, options: argparse.Namespace) -> dict[str, float]:
    """Many small jobs that are watched from one Dagster."""
    jobs = options.many_jobs
    usd = sum(count * price for count, price in zip(QUIET_REQUESTS, PRICES, strict=True)) / 1e6
    return {
        "CPU seconds of one look at all": jobs * constants.tick_cpu,
        "requests of one look at all": jobs * constants.tick_requests,
        "sensors that look at each job each 30 s, by CPU": math.ceil(jobs * constants.tick_cpu / 30),
        "USD a month for the requests of quiet jobs": jobs * usd,
        "GB a month of Dagster's event log": jobs * MONTH / options.interval * EVENT_BYTES / 1e9,
        "events a second": jobs / options.interval,
        "CPU seconds of a start of each": constants.start_cpu * options.many_retained,
    }


def limits(constants: Constants, options: argparse.Namespace) -> dict[str, float]:
    """Where each limit lies, all else as in the model: the first is what to look at first."""
    retained = options.many_retained
    lines = 60 / constants.known_line_cpu
    return {
        "state in TB at which a manifest is too long": LONGEST / constants.line_bytes * options.file / TB,
        "state in TB at which a checkpoint has too many files": MOST_FILES * options.file / TB,
        "files x retained at which a start takes 60 s of CPU": lines,
        "state in TB at which that is so": lines / retained * options.file / TB,
        "retained of the large job at which that is so": lines / (options.state / options.file),
        "jobs at which one sensor takes 30 s of CPU for a tick": 30 / constants.tick_cpu,
    }


def _start_cpu(constants: Constants, retained: float, files: float, new: float) -> float:
    beside = constants.start_cpu - AGE_FILES * constants.known_line_cpu
    return (
        retained * beside
        + retained * files * constants.known_line_cpu
        + files * (1 + retained * new) * constants.new_line_cpu
    )


def _memory(constants: Constants, retained: float, files: float, new: float) -> float:
    return files * (1 + retained * new) * constants.line_memory + retained * files * 8


def _of_lines(files: int) -> dict[str, float]:
    """What a file costs in a manifest: two manifests of one job that share all files."""
    entries = tuple(
        FileEntry(
            f"checkpoint/state/0/{number}/1.sst", 1 << 26, "ab" * 32, reference=f"../shared/000001-{number:012x}-1.sst"
        )
        for number in range(files)
    )
    empty, full = len(MANIFEST.encode()), replace(MANIFEST, files=entries).encode()
    known: dict[bytes, FileEntry] = {}
    tracemalloc.start()
    kept = CheckpointMetadata.decode(full, "here", known)
    memory = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    new = _cpu(lambda: CheckpointMetadata.decode(full, "here", {}))
    again = _cpu(lambda: CheckpointMetadata.decode(full, "here", known))
    return {
        "line_bytes": (len(full) - empty) / len(kept.files),
        "new_line_cpu": new / files,
        "known_line_cpu": again / files,
        "line_memory": memory / files,
    }


def _cpu(run: Callable[[], object]) -> float:
    """The least of five measurements: whatever else runs on the machine only adds to it."""

    def once() -> float:
        begun = time.process_time()
        run()
        return time.process_time() - begun

    return min(once() for _ in range(5))


def _of_age(options: argparse.Namespace) -> dict[str, float]:
    """What ``age.py`` measures, for each checkpoint and each job."""
    with tempfile.TemporaryDirectory(prefix="scale-") as home:
        told = options.age or Path(home) / "age.json"
        sizes = {"retained": options.retained, "jobs": options.jobs, "latency": options.latency, "output": told}
        age = [str(ROOT / "benchmarks" / "age.py"), *(f"--{name}={value}" for name, value in sizes.items())]
        if options.age is None:
            subprocess.run([sys.executable, *age], check=True, stdout=sys.stderr)
        figures = {(record["what"], record["of"]): record for record in json.loads(told.read_text(encoding="utf-8"))}
    aged = f"{options.retained:,} retained, 100 starts"
    tick = figures["tick", f"{options.jobs:,} jobs that run, in a bucket"]
    return {
        "start_cpu": figures["start", aged]["cpu"] / options.retained,
        "list_cpu": figures["list", aged]["cpu"] / options.retained,
        "tick_cpu": tick["cpu"] / options.jobs,
        "tick_requests": tick["requests"] / options.jobs,
    }


if __name__ == "__main__":
    sys.exit(main())
