"""Runs the rollback matrix, on this library and on Spark alone, and writes its table.

    python tools/rollback_matrix.py run --part 1/2 --results build/matrix.jsonl
    python tools/rollback_matrix.py table --results build/matrix.jsonl --table docs/reference/rollback-matrix.md
    python tools/rollback_matrix.py run --tables --results build/tables.jsonl
    python tools/rollback_matrix.py table --results build/tables.jsonl --table docs/reference/rollback-matrix-tables.md

A case is a job that stopped in the middle of a batch, two batches after its newest checkpoint, and goes on; what the
sink then holds is compared with the answer of plain Spark that never failed and read the same files in the same
batches. What a case needs is in ``tests/jobs/matrix``. Cases that are in the results already are not run again. With
``--tables`` the sinks are tables, as far as there are any for the Spark that runs: of PostgreSQL, Delta and Iceberg.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import traceback
from collections import Counter
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.helpers.local_spark import small_spark  # noqa: E402
from tests.jobs.matrix.cases import EVENTS, MODES, SIZES, Base, Case, Outcome, bases, cases, pairwise  # noqa: E402
from tests.jobs.matrix.plain_spark import SINKS as PLAIN_SINKS  # noqa: E402
from tests.jobs.matrix.plain_spark import PlainBase  # noqa: E402
from tests.jobs.matrix.streams import BACKENDS, POSTGRES, QUERIES, SINKS, FailureFree, table_sinks  # noqa: E402
from tests.servers.postgres import PostgresServer, running  # noqa: E402

OURS, PLAIN = "dagster_ckpt", "Spark alone"
_PLAIN_TOLD = f"**{PLAIN}**, with whole copies of the checkpoint directory put back at their place: {{}}."
_ABOUT_PLAIN = [
    "Spark alone has no mode and no transactional sink, so it has fewer cases; its `foreachBatch` either appends",
    "(in the rows *with rollback*) or replaces what it wrote under the same batch id.",
    "",
]


def main() -> int:
    """Run the command; exit status 1 when a case of ours is neither exact nor refused."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run cases and append their outcomes")
    run.add_argument("--part", default="1/1", help="which part of how many, for several processes side by side")
    run.add_argument("--results", type=Path, required=True, help="a file of JSON lines")
    run.add_argument("--tables", nargs="*", choices=table_sinks(), help="these tables, or all, instead of other sinks")
    run.add_argument("--pairwise", action="store_true", help="of each sink only enough cases for every pair of values")
    table = commands.add_parser("table", help="write the table")
    table.add_argument("--results", type=Path, required=True, nargs="+", help="files of JSON lines")
    table.add_argument("--table", type=Path, required=True)
    arguments = parser.parse_args()
    if arguments.command == "run":
        part, parts = map(int, arguments.part.split("/"))
        sinks = SINKS if arguments.tables is None else tuple(arguments.tables) or table_sinks()
        with running() if POSTGRES in sinks else nullcontext() as postgres:
            return _run(arguments.results, part - 1, parts, Chosen(sinks, arguments.pairwise, postgres))
    lines = [line for file in arguments.results for line in file.read_text(encoding="utf-8").splitlines()]
    arguments.table.write_text(_table([json.loads(line) for line in lines]), encoding="utf-8")
    return 0


@dataclass(frozen=True)
class Chosen:
    """Which cases are run, and what they need.

    Attributes:
        sinks: their sinks.
        pairwise: of each sink only enough of them for every pair of two values.
        postgres: the server for a sink in PostgreSQL.
    """

    sinks: tuple[str, ...]
    pairwise: bool
    postgres: PostgresServer | None

    @property
    def cases(self) -> list[Case]:
        """The cases."""
        every = [cases([sink]) for sink in self.sinks]
        return [case for each in every for case in (pairwise(each) if self.pairwise else each)]


def _run(results: Path, part: int, parts: int, chosen: Chosen) -> int:
    results.parent.mkdir(parents=True, exist_ok=True)
    done = {_key(json.loads(line)) for line in results.read_text().splitlines()} if results.exists() else set()
    bad = 0
    with tempfile.TemporaryDirectory(prefix="rollback-matrix-") as home:
        spark = small_spark(Path(home), cores=1)
        failure_free = FailureFree(spark, Path(home) / "failure-free")
        for number, base in enumerate(bases(chosen.sinks)):
            for system in (OURS, PLAIN):
                wanted = [case for case in chosen.cases if case.base == base]
                if system == PLAIN:
                    # Spark alone has no mode.
                    wanted = [case for case in wanted if case.mode == MODES[0] and case.sink in PLAIN_SINKS]
                todo = [case for case in wanted if _key({"system": system, **asdict(case)}) not in done]
                if number % parts == part and todo:
                    directory = Path(home) / f"{number}-{system}"
                    stopped: Base | PlainBase
                    if system == OURS:
                        stopped = Base(spark, directory, *base, postgres=chosen.postgres)
                    else:
                        stopped = PlainBase(spark, directory, *base)
                    bad += _of_base(stopped, system, todo, failure_free, results, spark.version)
        spark.stop()
    return 1 if bad else 0


def _of_base(
    stopped: Base | PlainBase, system: str, todo: list[Case], failure_free: FailureFree, results: Path, release: str
) -> int:
    bad = 0
    for case in todo:
        began = time.monotonic()
        try:
            outcome = stopped.go_on(case, failure_free)
        except Exception as error:
            traceback.print_exc()
            outcome = Outcome(failed=f"{type(error).__name__}: {error}".partition("\n")[0])
        record = {"system": system, "spark": release, **asdict(case), **asdict(outcome), "word": outcome.word}
        with results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        print(f"{system}: {case}: {outcome.word} ({time.monotonic() - began:.0f} s)", flush=True)
        bad += system == OURS and not _is_right(record)
    return bad


def _is_right(record: dict[str, Any]) -> bool:
    allowed = {"exact", "refused"} if record["mode"] == MODES[0] else {"exact", "refused", "doubled"}
    return record["word"] in allowed


def _key(record: dict[str, Any]) -> tuple[str, ...]:
    return tuple(str(record[name]) for name in ("system", "query", "backend", "sink", "event", "size", "mode"))


def _table(records: list[dict[str, Any]]) -> str:
    def cell(**wanted: str) -> str:
        found = Counter(
            record["word"] for record in records if all(record[name] == value for name, value in wanted.items())
        )
        return ", ".join(f"{count} {word}" for word, count in sorted(found.items())) or "-"

    ours = [record for record in records if record["system"] == OURS]
    sinks = list(dict.fromkeys(record["sink"] for record in ours))
    ran = [(sink, sorted({record.get("spark", "") for record in ours if record["sink"] == sink})) for sink in sinks]
    on = "; ".join(f"{sink} on Spark {' and '.join(releases)}" for sink, releases in ran if all(releases))
    tables = not set(sinks) & set(SINKS)
    right = sum(map(_is_right, ours))
    lines = [
        f"# Rollback: state and {'table' if tables else 'sink'} together",
        "",
        "Made by `tools/rollback_matrix.py`; see it and `tests/jobs/matrix` for the cases. A job read 7 files with a",
        "checkpoint after each, 2 more without, and was stopped in the middle of the batch of another. Then it went on",
        "as the case says, to the end of 7 more files. *Exact*: the rows in the sink, as a reader finds them who knows",
        "nothing of checkpoints, are those of a run that never failed and read the same files in the same batches.",
        "*Lost*: rows are missing, without an error. *Doubled*: rows are there again. *Failed*: the query ends with an",
        "error, such as a state file that cannot be found.",
        "",
        f"**{OURS}**: {len(ours)} of {len(cases(sinks))} cases ran, {right} as promised ({cell(system=OURS)}).",
        *([] if tables else [_PLAIN_TOLD.format(cell(system=PLAIN))]),
        "",
        *([f"Ran with: {on}.", ""] if on else []),
        *([] if tables else _ABOUT_PLAIN),
        f"| query | state | sink | how it went on | {OURS} | {PLAIN} |",
        "|---|---|---|---|---|---|",
    ]
    for query in QUERIES:
        for backend in BACKENDS:
            for sink in sinks:
                for event in EVENTS:
                    where = {"query": query, "backend": backend, "sink": sink, "event": event}
                    if cell(system=OURS, **where) != "-":
                        lines.append(
                            f"| {query} | {'-' if query == 'stateless' else backend} | {sink} | {event} "
                            f"| {cell(system=OURS, **where)} | {cell(system=PLAIN, **where)} |"
                        )
    lines += ["", f"Each cell of {OURS} has {len(SIZES)} batch sizes x {len(MODES)} modes.", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
