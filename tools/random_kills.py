"""Kills the example job at seeded random moments and checks that every result is exact.

    python tools/random_kills.py --cases 25 --seed 1 --table docs/reference/random-kills.md
    python tools/random_kills.py --standbys --table docs/reference/random-kills-standbys.md
    .venv-spark-4.2/bin/python tools/random_kills.py --to delta --table docs/reference/random-kills-delta.md
    .venv-spark-4.1/bin/python tools/random_kills.py --to iceberg --table docs/reference/random-kills-iceberg.md

Each case lands 60 days of flights and starts the stream, kills something with SIGKILL at a random moment, deletes the
dead run's live checkpointLocation in half of the cases, waits until the job has resumed and ended, and compares the
result with a batch computation over the same files. Every checkpoint listed at the end must verify. Exit status 0 only
if all cases are identical.

By default the stream writes files, under a real ``dagster dev`` whose sensor resumes the job. The result is what the
sink's log lists, and the raw directory. With ``--to`` the flights come through a broker of Kafka into a Delta or an
Iceberg table, and ``dagster-ckpt run`` drives and resumes the job, because a case under ``dagster dev`` takes twice as
long. The result is what deltalake or pyiceberg reads. Such a run needs an environment of ``tools/test_spark.py``.

With ``--standbys`` a second run waits beside the stream of files, and is warm at the kill. In turns are killed the run,
the standby and then the run, the run's JVM, the run and the standby at once, and the whole of Dagster.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools.kills.beside_standbys import StandbyKills  # noqa: E402
from tools.kills.cases import Case, Kills  # noqa: E402
from tools.kills.through_kafka import DeltaKills, IcebergKills  # noqa: E402
from tools.kills.under_dagster import DagsterKills  # noqa: E402

_KILLS: dict[str | None, type[Kills]] = {None: DagsterKills, "delta": DeltaKills, "iceberg": IcebergKills}


def table(cases: list[Case], kills: type[Kills], asked: argparse.Namespace) -> str:
    """The Markdown page."""
    good = sum(case.identical for case in cases)
    jobs = len({case.number.partition(".")[0] for case in cases})
    way, what = ("--standbys ", " beside a standby") if asked.standbys else ("", "")
    if asked.to:
        way, what = f"--to {asked.to} ", f": Kafka to {asked.to.capitalize()}"
    lines = [
        f"# Kills at random moments{what}",
        "",
        f"Made by `python tools/random_kills.py {way}--cases {asked.cases} --seed {asked.seed} "
        f"--table docs/reference/{asked.table.name}`; see the script for what a case is.",
        "",
        f"**{good} of {len(cases)} identical** to the batch computation: no row lost, none doubled, "
        f"{kills.COMPARED}, and every checkpoint listed at the end verified.",
        "",
        *(
            [
                f"There are {kills.OF_A_JOB} kills a job, compared at its end: the {len(cases)} rows are {jobs} "
                f"comparison{'s' * (jobs != 1)}.",
                "",
            ]
            if kills.OF_A_JOB > 1
            else []
        ),
        *(
            [f"{asked.cases} kills were asked for. The time sufficed for {len(cases)} of them.", ""]
            if len(cases) < asked.cases
            else []
        ),
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


def _cases(report: Path) -> list[Case]:
    return [Case(**item) for item in json.loads(report.read_text(encoding="utf-8"))]


def _keep(report: Path, cases: list[Case]) -> None:
    report.write_text(json.dumps([asdict(item) for item in cases], indent=2) + "\n", encoding="utf-8")


def _dash(value: int | None) -> str:
    return "-" if value is None else str(value)


def main() -> int:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--to", choices=[to for to in _KILLS if to], help="through Kafka into a table, instead of files"
    )
    parser.add_argument("--cases", type=int, default=25)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no case after so many")
    parser.add_argument("--directory", type=Path, help="emptied first; default: one below artifacts/")
    parser.add_argument("--table", type=Path, help="write a Markdown page")
    parser.add_argument("--go-on", action="store_true", help="keep what an earlier run of this command has done")
    parser.add_argument("--report", type=Path, help="run nothing, and write the page of an earlier run's report.json")
    parser.add_argument(
        "--standbys", action="store_true", help="with a standby, which is among the victims; files only"
    )
    asked = parser.parse_args()
    if asked.standbys and asked.to:
        parser.error("--standbys is for the stream of files, without --to")
    chosen = StandbyKills if asked.standbys else _KILLS[asked.to]
    if asked.report:
        asked.table.write_text(table(_cases(asked.report), chosen, asked), encoding="utf-8")
        return 0
    name = f"random-kills-{'standbys' if asked.standbys else asked.to or 'files'}"
    directory: Path = (asked.directory or ROOT / "artifacts" / name).absolute()
    report = directory / "report.json"
    cases = done = _cases(report) if asked.go_on else []
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    _keep(report, cases)
    for cases in chosen(directory, asked.seed).run(asked.cases, asked.minutes, done):
        _keep(report, cases)
        if asked.table:
            asked.table.write_text(table(cases, chosen, asked), encoding="utf-8")
    good = sum(case.identical for case in cases)
    print(f"{good} of {len(cases)} identical; report: {report}")
    return 0 if good == asked.cases else 1


if __name__ == "__main__":
    sys.exit(main())
