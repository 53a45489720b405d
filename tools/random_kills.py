"""Kills the example job at seeded random moments and checks that every result is exact.

    python tools/random_kills.py --cases 25 --seed 1 --table docs/reference/random-kills.md

Each case lands 60 days of flights, starts the stream under a real ``dagster dev``, kills something with SIGKILL at a
random moment, deletes the dead run's live checkpointLocation in half of the cases, lets the sensor resume the job,
and compares the result (what the sink's log lists, and the raw directory) with a batch computation over the same
files. Every checkpoint listed at the end must verify. Exit status 0 only if all cases are identical.

With ``--standbys`` a second run waits beside the stream, and is among the victims: a kill waits until it is warm.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from dagster_ckpt.checkpoint.catalog.file_reader import verify_checkpoint

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from assets.batch_answer import batch_answer, compare, read_delays  # noqa: E402
from assets.flights import Lateness, land, landing_plan  # noqa: E402
from assets.settings import CATCH_UP_VARIABLE, DATA_VARIABLE, STANDBY_VARIABLE, DataPaths  # noqa: E402
from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog  # noqa: E402
from dagster_ckpt.checkpoint.control.heartbeat import Heartbeat, HeartbeatFile  # noqa: E402
from dagster_ckpt.checkpoint.standbys import Standbys  # noqa: E402
from dagster_ckpt.errors import CheckpointError  # noqa: E402
from dagster_ckpt.filesystem import open_filesystem  # noqa: E402
from dagster_ckpt.spark.files.checkpoint_location import CheckpointLocation  # noqa: E402
from dagster_ckpt.spark.sinks.spark_sink_log import FileSink  # noqa: E402
from dagster_ckpt.testing.dagster_dev import DagsterDev, wait_for  # noqa: E402

JOB = "flight_delays"
KINDS = ("run process", "step process", "run worker of a step process", "JVM", "whole dagster dev")
DAYS = 60


@dataclass(slots=True)
class Case:
    """One kill and what came of it."""

    number: int
    kind: str
    delete_live: bool
    moment: str = ""
    committed: int | None = None
    in_flight: int | None = None
    restored: str = ""
    kind_of_checkpoint: str = ""
    seconds_to_resume: float = -1
    attempts: int = 0
    rows: int = -1
    lost: int = -1
    doubled: int = -1
    raw_identical: bool = False
    listed: int = 0
    unverified: int = 0
    identical: bool = False


class Kills:
    """The cases, one after another, in one Dagster instance."""

    KINDS: tuple[str, ...] = KINDS
    #: After which batch the kill comes, at the earliest and at the latest.
    BATCHES = (-2, 14)

    def __init__(self, directory: Path, seed: int, environment: Mapping[str, str] | None = None) -> None:
        self._paths = DataPaths(directory / "data")
        self._dev = DagsterDev(
            ROOT / "workspace.yaml",
            directory / "dagster_home",
            # No class archive is made: its JVM is none to kill.
            {
                DATA_VARIABLE: str(self._paths.root),
                CATCH_UP_VARIABLE: "1",
                "DAGSTER_CKPT_CACHE": "",
                **(environment or {}),
            },
        )
        self._random = random.Random(seed)

    def run(self, cases: int, report: Path) -> list[Case]:
        """Run them all; the report is rewritten after each."""
        # The closing files come after the whole year: only they, and the first days, are kept.
        land(self._paths.landed)
        for file in [file for file in landing_plan() if Lateness.MARKER not in file.rows][DAYS:]:
            (self._paths.landed / file.name).unlink()
        expected = batch_answer(self._paths.landed)
        done: list[Case] = []
        kinds = self.KINDS
        order = [(kinds[index % len(kinds)], index // len(kinds) % 2 == index % 2) for index in range(cases)]
        with self._dev:
            for number, (kind, delete_live) in enumerate(order, start=1):
                case = Case(number, kind, delete_live)
                self._one(case)
                self._judge(case, expected)
                done.append(case)
                print(json.dumps(asdict(case)), flush=True)
                report.write_text(json.dumps([asdict(item) for item in done], indent=2) + "\n", encoding="utf-8")
        return done

    def _one(self, case: Case) -> None:
        for directory in (self._paths.delays, self._paths.checkpoints):
            shutil.rmtree(directory, ignore_errors=True)
        stepwise = "step" in case.kind
        first = self._dev.launch("__ASSET_JOB", assets=[[JOB]]) if stepwise else self._dev.launch(f"{JOB}_job")
        heartbeat = self._moment(case, first)
        before = self._location()
        killed = time.monotonic()
        self._kill(case.kind, heartbeat)
        if before is not None:
            case.committed, case.in_flight = before.last_committed(), before.planned()
            if case.delete_live:
                shutil.rmtree(before.path, ignore_errors=True)
        if case.kind == "whole dagster dev":
            self._dev.start()

        def resumed() -> bool:
            location = self._location()
            return (location is not None and (before is None or location.path != before.path)) or self._ended()

        wait_for(resumed, f"case {case.number} to be resumed (see {self._dev.log})", seconds=240)
        case.seconds_to_resume = round(time.monotonic() - killed, 1)
        chosen = self._catalog().choice()
        if chosen is not None and chosen[1].restored is not None:
            case.restored = chosen[1].restored.rpartition("/")[2]
            case.kind_of_checkpoint = self._catalog().resolve(chosen[1].restored).kind
        wait_for(self._ended, f"case {case.number} to end (see {self._dev.log})", seconds=400)
        case.attempts = self._catalog().records.epochs.highest()
        wait_for(
            lambda: all(run.is_finished for run in self._dev.runs(JOB)), "every run to be over", seconds=120, poll=0.5
        )

    def _moment(self, case: Case, run_id: str) -> Heartbeat:
        """Wait for a random batch to be committed, and a random while longer."""
        batch = self._random.randint(*self.BATCHES)
        pause = self._random.uniform(0, 1.0)
        case.moment = f"{pause:.2f} s after " + ("the claim" if batch < 0 else f"commit {batch}")

        def reached() -> Heartbeat | None:
            heartbeat = HeartbeatFile(self._catalog().filesystem, JOB).read()
            if heartbeat is None or heartbeat.run_id != run_id:
                return None
            if batch < 0 and case.kind != "JVM":
                return heartbeat
            location = self._location()
            committed = None if location is None else location.last_committed()
            return heartbeat if committed is not None and committed >= batch else None

        heartbeat = wait_for(reached, f"{case.moment} (see {self._dev.log})", seconds=240, poll=0.01)
        time.sleep(pause)
        return heartbeat

    def _kill(self, kind: str, heartbeat: Heartbeat) -> None:
        driver = heartbeat.processes[0].pid
        if kind == "whole dagster dev":
            self._dev.kill()
            return
        victim = {
            "run process": driver,
            "step process": driver,
            "run worker of a step process": psutil.Process(driver).ppid(),
            "JVM": self._jvm(),
        }[kind]
        os.kill(victim, signal.SIGKILL)
        wait_for(lambda: not _exists(driver) and self._jvm() == 0, f"what was left of the {kind} to be gone")

    def _jvm(self) -> int:
        return next(iter(self._dev.jvms()), 0)

    def _judge(self, case: Case, expected: object) -> None:
        found = read_delays(FileSink(self._paths.delays).committed_files())
        raw = read_delays(sorted(self._paths.delays.rglob("part-*.parquet")))
        comparison = compare(expected, found)  # type: ignore[arg-type]
        case.rows, case.lost, case.doubled = len(found), len(comparison.missing), len(comparison.surplus)
        case.raw_identical = compare(expected, raw).identical  # type: ignore[arg-type]
        catalog = self._catalog()
        for job_id in catalog.job_ids():
            completed, broken = catalog.completed(job_id)
            case.listed += len(completed) + len(broken)
            case.unverified += len(broken)
            for metadata in completed:
                try:
                    verify_checkpoint(catalog, metadata)
                except CheckpointError as error:
                    print(error, file=sys.stderr)
                    case.unverified += 1
        case.identical = comparison.identical and case.raw_identical and case.unverified == 0

    def _catalog(self) -> CheckpointCatalog:
        return CheckpointCatalog(open_filesystem(str(self._paths.checkpoints)), JOB)

    def _location(self) -> CheckpointLocation | None:
        chosen = self._catalog().choice()
        return None if chosen is None else CheckpointLocation(Path(chosen[1].live))

    def _ended(self) -> bool:
        epochs = self._catalog().records.epochs
        highest = epochs.highest()
        end = epochs.read_end(highest) if highest else None
        if end is not None and end.status == "FAILED":
            raise RuntimeError(f"the job gave up: {end.reason}")
        return end is not None and end.status == "FINISHED"


class KillsBesideStandbys(Kills):
    """The cases of a stream with a standby: most of the files land when the standby is warm."""

    KINDS: tuple[str, ...] = (
        "run process",
        "standby, later run process",
        "JVM",
        "run process and standby",
        "whole dagster dev",
    )
    #: Days that have landed when the stream starts.
    BEFORE = 16
    BATCHES = (5, 14)

    def __init__(self, directory: Path, seed: int) -> None:
        self._own: Any = None
        self._flag, self._held = directory / "until-caught-up", directory / "held-back"
        super().__init__(directory, seed, {STANDBY_VARIABLE: "1", CATCH_UP_VARIABLE: str(self._flag)})

    def _one(self, case: Case) -> None:
        self._held.mkdir(exist_ok=True)
        for file in sorted(self._paths.landed.iterdir())[self.BEFORE :]:
            file.rename(self._held / file.name)
        self._flag.unlink(missing_ok=True)
        super()._one(case)

    def _moment(self, case: Case, run_id: str) -> Heartbeat:
        what = f"the standby of case {case.number} to be warm (see {self._dev.log})"
        wait_for(self._standby, what, seconds=1200)
        self._flag.touch()
        for file in sorted(self._held.iterdir()):
            file.rename(self._paths.landed / file.name)
        return super()._moment(case, run_id)

    def _kill(self, kind: str, heartbeat: Heartbeat) -> None:
        self._own = heartbeat
        if "standby" in kind and (standby := self._standby()):
            os.kill(standby, signal.SIGKILL)
            time.sleep(self._random.uniform(0, 5) if "later" in kind else 0)
        super()._kill("run process" if "standby" in kind else kind, heartbeat)

    def _standby(self) -> int:
        """The process of the standby that waits, 0 for none."""
        signs = Standbys(open_filesystem(str(self._paths.checkpoints)), JOB).all()
        return next((sign.processes[0].pid for sign in signs if sign.processes[0].is_alive()), 0)

    def _jvm(self) -> int:
        """The JVM of the stream that is killed, not that of its standby."""
        return next((process.pid for process in self._own.processes[1:] if _exists(process.pid)), 0)


def table(cases: list[Case], seed: int) -> str:
    """The Markdown page."""
    good = sum(case.identical for case in cases)
    lines = [
        "# Kills at random moments",
        "",
        f"Made by `python tools/random_kills.py --cases {len(cases)} --seed {seed} "
        "--table docs/reference/random-kills.md`; see the script for what a case is.",
        "",
        f"**{good} of {len(cases)} identical** to the batch computation: no row lost, none doubled, in the sink's log "
        "and in the raw directory, and every checkpoint listed at the end verified.",
        "",
        "| # | killed | moment | committed / in flight | live location | resumed from | s to resume | starts "
        "| rows lost / doubled | checkpoints listed / unverified | identical |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for case in cases:
        flight = f"{_dash(case.committed)} / {_dash(case.in_flight)}"
        restored = f"{case.restored} ({case.kind_of_checkpoint})" if case.restored else "nothing"
        lines.append(
            f"| {case.number} | {case.kind} | {case.moment} | {flight} | {'deleted' if case.delete_live else 'kept'} "
            f"| {restored} | {case.seconds_to_resume} | {case.attempts} | {case.lost} / {case.doubled} "
            f"| {case.listed} / {case.unverified} | {'yes' if case.identical else '**NO**'} |"
        )
    return "\n".join(lines) + "\n"


def _dash(value: int | None) -> str:
    return "-" if value is None else str(value)


def _exists(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def main() -> int:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=25)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--standbys", action="store_true", help="with a standby, which is among the victims")
    parser.add_argument("--directory", type=Path, default=ROOT / "artifacts" / "random-kills")
    parser.add_argument("--table", type=Path, help="write a Markdown page")
    options = parser.parse_args()
    directory: Path = options.directory.absolute()
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    kills = KillsBesideStandbys if options.standbys else Kills
    cases = kills(directory, options.seed).run(options.cases, directory / "report.json")
    if options.table:
        options.table.write_text(table(cases, options.seed), encoding="utf-8")
    good = sum(case.identical for case in cases)
    print(f"{good} of {len(cases)} identical; report: {directory / 'report.json'}")
    return 0 if good == len(cases) else 1


if __name__ == "__main__":
    sys.exit(main())
