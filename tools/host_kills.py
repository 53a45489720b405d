"""Loses parts of a cluster of hosts at seeded random moments, and checks after each that the job's rows are exact.

    python tools/host_kills.py --cases 15 --seed 1 --table docs/reference/host-kills.md
    python tools/host_kills.py --on yarn --cases 15 --progress done.json --table docs/reference/host-kills-yarn.md

The hosts are namespaces of this machine, each with a name, an address, processes and a disk of its own: one with
Spark's Master (or YARN's ResourceManager), two with a Worker (or a NodeManager), one with ``dagster dev``. They share a
bucket and a PostgreSQL over a network, and no disk. A Worker starts the driver, or YARN does, and Spark's live location
lies in the bucket. After each loss the job must write rows and complete a checkpoint, and each row must be in the table
once. At the end the table must have the rows of plain Spark, and every retained checkpoint must verify. Exit status 0
only if all of that is so.

With ``--progress`` the cases are kept in a file, and the same call goes on after those that were identical, on a new
cluster with an empty table: after an interruption, or after the minutes of ``--minutes``. A case that failed is run
again, and the page tells of both.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from dagster_ckpt.checkpoint.catalog.file_reader import verify_checkpoint  # noqa: E402 - below the path
from tests.helpers.local_spark import small_spark  # noqa: E402
from tests.jobs.hosts.cluster import Cluster, cluster  # noqa: E402
from tests.jobs.hosts.jobs import keys_by_plain_spark  # noqa: E402

#: Seconds after a checkpoint within which something is lost.
_MOMENTS = 4.0
#: The clusters, and what runs a driver there.
_WORKERS = {"standalone": "Worker", "yarn": "NodeManager"}


@dataclass(slots=True)
class Case:
    """One loss and what came of it."""

    number: int
    lost: str
    moment: float
    epoch_before: int = 0
    epoch_after: int = 0
    resumed_from: str = ""
    seconds: float = -1
    rows: int = -1
    identical: bool = False


@dataclass(slots=True)
class End:
    """How the rows and the checkpoints of one cluster were at the end."""

    rows: int
    like_plain_spark: bool
    verified: int


@dataclass(slots=True)
class Outcome:
    """All cases that were begun, and how each cluster was at its end."""

    cases: list[Case]
    ends: list[End]
    #: Clusters that were begun.
    begun: int = 0
    #: What earlier calls have run in vain.
    failed: list[Case] = field(default_factory=list)

    @classmethod
    def read(cls, file: Path | None) -> Outcome:
        """What earlier calls have done; nothing without a file."""
        if file is None or not file.exists():
            return cls([], [])
        told = json.loads(file.read_text(encoding="utf-8"))
        cases = [Case(**case) for case in told["cases"]]
        failed = [Case(**case) for case in told["failed"]] + [case for case in cases if not case.identical]
        good = [case for case in cases if case.identical]
        return cls(good, [End(**end) for end in told["ends"]], told["begun"], failed)

    def keep(self, file: Path | None) -> None:
        """Keep it for the next call."""
        if file is not None:
            new = file.with_suffix(".new")
            new.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")
            new.replace(file)

    @property
    def is_good(self) -> bool:
        """Whether each cluster that came to its end had the rows of plain Spark and whole checkpoints."""
        return bool(self.ends) and all(end.like_plain_spark and end.verified for end in self.ends)


class Losses:
    """The cases, one after another, on one cluster.

    Args:
        there: the cluster, whose job runs.
        seed: of the order and the moments.
        on: which cluster it is.
    """

    def __init__(self, there: Cluster, seed: int, on: str) -> None:
        self._there, self._random = there, random.Random(seed)
        self._of_kind: dict[str, Callable[[int], float]] = {
            "executor": there.lose_executor,
            "driver": there.lose_driver,
            f"{_WORKERS[on]} with the driver": there.lose_worker_with_driver,
            "all of Dagster": there.lose_dagster,
            "driver's host with its disk": there.lose_host_of_driver,
            "cable of the driver's host, for a minute": there.cut_off_host_of_driver,
        }

    def run(self, count: int, minutes: float, cases: list[Case], told: Callable[[], None]) -> None:
        """Run so many cases, each kind as often as the others; the first that fails ends it.

        Args:
            count: how many.
            minutes: after so many no case begins.
            cases: where they go; those that are there are not run again.
            told: called after each case.
        """
        until = time.monotonic() + 60 * minutes
        kinds = [kind for _ in range(-(-count // len(self._of_kind))) for kind in self._of_kind][:count]
        self._random.shuffle(kinds)
        for number, kind in enumerate(kinds, start=1):
            case = Case(number, kind, round(self._random.uniform(0, _MOMENTS), 2))
            if number <= len(cases):
                continue
            if time.monotonic() > until:
                break
            cases.append(case)
            try:
                self._one(case)
            finally:
                told()
                print(json.dumps(asdict(case)), flush=True)

    def _one(self, case: Case) -> None:
        there = self._there
        there.goes_on(epoch=there.epoch())
        there.completes()
        time.sleep(case.moment)
        case.epoch_before = there.epoch()
        case.seconds = round(self._of_kind[case.lost](case.epoch_before), 1)
        case.epoch_after = there.epoch()
        chosen = there.place.catalog.choice()
        if case.epoch_after > case.epoch_before and chosen is not None:
            case.resumed_from = (chosen[1].restored or "nothing").rpartition("/")[2]
        case.rows = there.rows()  # raises unless each is there once
        case.identical = True


def page(outcome: Outcome, asked: argparse.Namespace) -> str:
    """The Markdown page."""
    cases = outcome.cases
    good = sum(case.identical for case in cases)
    on_yarn = asked.on == "yarn"
    chosen, kept = "--on yarn " if on_yarn else "", "" if asked.progress is None else "--progress FILE "
    lines = [
        f"# Losses on hosts of {'YARN' if on_yarn else 'a standalone cluster'}",
        "",
        f"Made by `python tools/host_kills.py {chosen}--cases {asked.cases} --seed {asked.seed} {kept}"
        f"--table docs/reference/{asked.table.name}`; see the script for what a case is. The hosts share a bucket and "
        f"no disk, and {'YARN' if on_yarn else 'a Worker'} starts [the driver](../how-to/driver-of-its-own.md).",
        "",
        f"**{good} of {len(cases)} identical**: after each loss the job wrote rows and completed a checkpoint, and "
        "every row was in the table once, with none missing before the newest.",
        "",
        *(
            [f"{asked.cases} losses were asked for. The time sufficed for {len(cases)} of them.", ""]
            if good == len(cases) < asked.cases
            else []
        ),
        *_at_the_ends(outcome),
        "",
        "*Seconds* are those from the loss to the next row, on a machine of 2 cores that did other work, with a "
        "`heartbeat_timeout` of 30 s. Where the driver was not lost, the job goes on in its epoch. Where Dagster was "
        "lost, the job went on all the time, and *seconds* are those from the start of Dagster until another run "
        "attends the same driver.",
        "",
        "| # | lost | seconds after a checkpoint | epoch before, after | resumed from | seconds | rows | identical |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {case.number} | {case.lost} | {case.moment} | {case.epoch_before}, {case.epoch_after} "
        f"| {case.resumed_from or '-'} | {case.seconds} | {case.rows} | {'yes' if case.identical else '**NO**'} |"
        for case in cases
    ]
    return "\n".join(lines) + "\n"


def _at_the_ends(outcome: Outcome) -> list[str]:
    like = all(end.like_plain_spark for end in outcome.ends)
    rows, verified = (sum(getattr(end, name) for end in outcome.ends) for name in ("rows", "verified"))
    told = "has the rows that plain Spark makes" if outcome.ends and like else "was **not** compared with plain Spark"
    failed = [f"Failed in an earlier call, and run again: {case.number}, {case.lost}.\n" for case in outcome.failed]
    if outcome.begun == len(outcome.ends) == 1:
        return [f"At the end the table {told}: {rows:,} rows. {verified} retained checkpoints verified."]
    return [
        *failed,
        f"The cases ran on {outcome.begun} clusters, one after the other, each with an empty table; a row of the table "
        f"counts from there. {len(outcome.ends)} of the clusters came to their end. There the table {told}: {rows:,} "
        f"rows in all. {verified} retained checkpoints verified.",
    ]


def _run(asked: argparse.Namespace, home: Path, outcome: Outcome) -> None:
    def keep() -> None:
        outcome.keep(asked.progress)

    outcome.begun += 1
    keep()
    with cluster(home / "cluster", on_yarn=asked.on == "yarn") as there:
        Losses(there, asked.seed, asked.on).run(asked.cases, asked.minutes, outcome.cases, keep)
        catalog = there.place.catalog
        there.stop()
        found = there.place.keys()
        chosen = catalog.choice()
        completed = catalog.completed(chosen[1].job_id)[0] if chosen else []
        for metadata in completed:
            verify_checkpoint(catalog, metadata)
    spark = small_spark(home / "plain", cores=1)
    plain = keys_by_plain_spark(spark, len(found), str(home / "plain" / "checkpoint"))
    spark.stop()
    outcome.ends.append(End(len(found), found == plain, len(completed)))
    keep()


def main() -> int:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=15)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--on", choices=list(_WORKERS), default="standalone", help="the cluster")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no case after so many")
    parser.add_argument(
        "--progress", type=Path, help="a file that keeps what was done, from which the next call goes on"
    )
    parser.add_argument("--directory", type=Path, help="a new one, for logs; by default a temporary one")
    parser.add_argument("--table", type=Path, help="write a Markdown page")
    asked = parser.parse_args()
    home = asked.directory or Path(tempfile.mkdtemp(prefix="host-kills-"))
    print(f"Logs are in {home}", flush=True)
    outcome = Outcome.read(asked.progress)
    try:
        _run(asked, home.absolute(), outcome)
    except Exception:
        traceback.print_exc()
    if asked.table:
        asked.table.write_text(page(outcome, asked), encoding="utf-8")
    good = sum(case.identical for case in outcome.cases)
    print(f"{good} of {asked.cases} identical; like plain Spark at the end of each cluster: {outcome.is_good}")
    return 0 if good == asked.cases and outcome.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
