"""Runs the rollback matrix, on this library and on Spark alone, and writes its table.

    python tools/rollback_matrix.py run --part 1/2 --results build/matrix.jsonl
    python tools/rollback_matrix.py table --results build/matrix.jsonl --table docs/reference/rollback-matrix.md
    python tools/rollback_matrix.py run --sinks file PostgreSQL --source files Kafka --ways --results build/tables.jsonl
    python tools/rollback_matrix.py run --sinks "Delta table" --source Kafka --jobs 1 --results build/tables.jsonl
    python tools/rollback_matrix.py table --results build/tables.jsonl --table docs/reference/rollback-matrix-tables.md

A case is a job that stopped in the middle of a batch, two batches after its newest checkpoint, and goes on; what the
sink then holds is compared with the answer of plain Spark that never failed and read the same files in the same
batches. What a case needs is in ``tests/jobs/matrix``. Cases that are in the results already are not run again. Some
sinks are tables, as far as there are any for the Spark that runs: of PostgreSQL, Delta and Iceberg. From Kafka the same
rows come through a topic, by a broker that the command starts. ``.venv-spark-4.1/bin/python`` of
``tools/spark_environment.py`` runs cases with an older Spark; the table takes the results of several releases.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from dagster_ckpt.testing.kafka import CONNECTOR, KafkaServer  # noqa: E402
from dagster_ckpt.testing.kafka import running as running_kafka  # noqa: E402
from dagster_ckpt.testing.maven import DELTA as DELTA_BY_RELEASE  # noqa: E402
from dagster_ckpt.testing.maven import Artifact  # noqa: E402
from tests.helpers.local_spark import EVERY_FORMAT, small_spark  # noqa: E402
from tests.helpers.local_spark import ICEBERG as ICEBERG_BY_RELEASE  # noqa: E402
from tests.jobs.matrix.cases import (  # noqa: E402
    EVENTS,
    MODES,
    SIZES,
    Base,
    Case,
    Outcome,
    bases,
    cases,
    has_every_pair,
    has_every_way,
    in_every_way,
    of_drawn_jobs,
    pairwise,
)
from tests.jobs.matrix.plain_spark import SINKS as PLAIN_SINKS  # noqa: E402
from tests.jobs.matrix.plain_spark import PlainBase  # noqa: E402
from tests.jobs.matrix.streams import (  # noqa: E402
    BACKENDS,
    DELTA,
    ICEBERG,
    POSTGRES,
    QUERIES,
    SINKS,
    FailureFree,
    table_sinks,
)
from tests.jobs.matrix.topics import FILES, KAFKA, SOURCES  # noqa: E402
from tests.servers.postgres import PostgresServer  # noqa: E402
from tests.servers.postgres import running as running_postgres  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TABLES = (POSTGRES, DELTA, ICEBERG)
OURS, PLAIN = "dagster_ckpt", "Spark alone"
_PLAIN_TOLD = f"**{PLAIN}**, with whole copies of the checkpoint directory put back at their place: {{}}."
_ABOUT_PLAIN = [
    "Spark alone has no mode and no transactional sink, so it has fewer cases; its `foreachBatch` either appends",
    "(in the rows *with rollback*) or replaces what it wrote under the same batch id.",
    "",
]


def main() -> int:
    """Run the command; exit status 1 when a case of ours is neither exact nor refused."""
    os.environ[EVERY_FORMAT] = "1"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run cases and append their outcomes")
    run.add_argument("--part", default="1/1", help="which part of how many, for several processes side by side")
    run.add_argument("--results", type=Path, required=True, help="a file of JSON lines")
    run.add_argument("--sinks", nargs="+", choices=(*SINKS, *table_sinks()), default=SINKS, help="where the jobs write")
    run.add_argument("--source", nargs="+", choices=SOURCES, default=[FILES], help="what the jobs read")
    run.add_argument("--pairwise", action="store_true", help="of each sink only enough cases for every pair of values")
    run.add_argument("--ways", action="store_true", help="of each sink a job for each query, and it in every way")
    run.add_argument("--jobs", type=int, help="of each sink only the cases of so many stopped jobs, which are drawn")
    run.add_argument("--seed", type=int, default=1, help="of what is drawn")
    table = commands.add_parser("table", help="write the table")
    table.add_argument("--results", type=Path, required=True, nargs="+", help="files of JSON lines")
    table.add_argument("--table", type=Path, required=True)
    arguments = parser.parse_args()
    if arguments.command == "run":
        part, parts = map(int, arguments.part.split("/"))
        sinks = tuple(arguments.sinks)
        with ExitStack() as stack:
            servers = Servers(
                stack.enter_context(running_postgres()) if POSTGRES in sinks else None,
                stack.enter_context(_broker()) if KAFKA in arguments.source else None,
            )
            return _run(arguments.results, part - 1, parts, _chosen(sinks, arguments), servers)
    lines = [line for file in arguments.results for line in file.read_text(encoding="utf-8").splitlines()]
    # A case that two of the files have counts once.
    records = {_key(record): record for record in map(json.loads, lines)}
    arguments.table.write_text(_table(list(records.values())), encoding="utf-8")
    return 0


@dataclass(frozen=True)
class Chosen:
    """Which cases are run.

    Attributes:
        sinks: their sinks.
        sources: what they read.
        cases: the cases.
    """

    sinks: tuple[str, ...]
    sources: tuple[str, ...]
    cases: list[Case]


def _chosen(sinks: tuple[str, ...], asked: argparse.Namespace) -> Chosen:
    def of(every: list[Case]) -> list[Case]:
        if asked.jobs is not None:
            return of_drawn_jobs(every, asked.jobs, asked.seed)
        if asked.ways:
            return in_every_way(every)
        return pairwise(every) if asked.pairwise else every

    every = [[case for source in asked.source for case in cases([sink], source)] for sink in sinks]
    return Chosen(sinks, tuple(asked.source), [case for of_sink in every for case in of(of_sink)])


@dataclass(frozen=True)
class Servers:
    """The servers that cases need, as far as they need them."""

    postgres: PostgresServer | None
    kafka: KafkaServer | None


@contextmanager
def _broker() -> Iterator[KafkaServer]:
    with tempfile.TemporaryDirectory(prefix="rollback-matrix-kafka-") as home, running_kafka(Path(home)) as server:
        yield server


def _run(results: Path, part: int, parts: int, chosen: Chosen, servers: Servers) -> int:
    results.parent.mkdir(parents=True, exist_ok=True)
    done = {_key(json.loads(line)) for line in results.read_text().splitlines()} if results.exists() else set()
    bad = 0
    with tempfile.TemporaryDirectory(prefix="rollback-matrix-") as home:
        # 15 s are too short for a worker of a busy machine.
        conf = {"spark.python.authenticate.socketTimeout": "5min"}
        spark = small_spark(Path(home), cores=1, packages=CONNECTOR if servers.kafka else "", conf=conf)
        failure_free = FailureFree(spark, Path(home) / "failure-free")
        for number, base in enumerate(base for source in chosen.sources for base in bases(chosen.sinks, source)):
            for system in (OURS, PLAIN):
                wanted = [case for case in chosen.cases if case.base == base]
                if system == PLAIN:
                    # Spark alone has no mode.
                    ways = {replace(case, mode=MODES[0]): None for case in wanted if case.sink in PLAIN_SINKS}
                    wanted = list(ways)
                told = {"system": system, "spark": spark.version}
                todo = [case for case in wanted if _key({**told, **asdict(case)}) not in done]
                if number % parts == part and todo:
                    directory = Path(home) / f"{number}-{system}"
                    try:
                        stopped = _stopped(spark, directory, system, base, servers)
                    except Exception:
                        traceback.print_exc()
                        print(f"{system}: {', '.join(base)}: no job to go on with; run its cases again", flush=True)
                        bad += 1
                        continue
                    bad += _of_base(stopped, system, todo, failure_free, results, spark.version)
        spark.stop()
    return 1 if bad else 0


def _stopped(
    spark: SparkSession, directory: Path, system: str, base: tuple[str, str, str, str], servers: Servers
) -> Base | PlainBase:
    if system == OURS:
        return Base(spark, directory, *base, postgres=servers.postgres, kafka=servers.kafka)
    return PlainBase(spark, directory, *base, kafka=servers.kafka)


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
        told = {"system": system, "spark": release, "date": time.strftime("%Y-%m-%d", time.gmtime())}
        record = {**told, **asdict(case), **asdict(outcome), "word": outcome.word}
        with results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        print(f"{system}: {case}: {outcome.word} ({time.monotonic() - began:.0f} s)", flush=True)
        bad += system == OURS and not _is_right(record)
    return bad


def _is_right(record: dict[str, Any]) -> bool:
    allowed = {"exact", "refused"} if record["mode"] == MODES[0] else {"exact", "refused", "doubled"}
    return record["word"] in allowed


def _key(record: dict[str, Any]) -> tuple[str, ...]:
    names = ["system", "spark", "query", "backend", "sink", "source", "event", "size", "mode"]
    return tuple(str(record.get(name, FILES)) for name in names)


def _cell(records: list[dict[str, Any]], **wanted: str) -> str:
    found = Counter(
        record["word"] for record in records if all(record[name] == value for name, value in wanted.items())
    )
    return ", ".join(f"{count} {word}" for word, count in sorted(found.items())) or "-"


def _table(records: list[dict[str, Any]]) -> str:
    tables = any(record["sink"] in _TABLES for record in records)
    ours = [record for record in records if record["system"] == OURS]
    right = sum(map(_is_right, ours))
    of_kafka = "Of Kafka it read the rows of as many files. " if tables else ""
    head = [
        f"# Rollback: state and {'table' if tables else 'sink'} together",
        "",
        "Made by `tools/rollback_matrix.py`; see it and `tests/jobs/matrix` for the cases. A job read 7 files with a",
        "checkpoint after each, 2 more without, and was stopped in the middle of the batch of another. Then it went on",
        "as the case says, to the end of 7 more files. *Exact*: the rows in the sink, as a reader finds them who knows",
        "nothing of checkpoints, are those of a run that never failed and read the same files in the same batches.",
        "*Lost*: rows are missing, without an error. *Doubled*: rows are there again. *Failed*: the query ends with an",
        f"error, such as a state file that cannot be found. {of_kafka}".rstrip(),
        "",
        _when(records),
        "",
    ]
    return "\n".join([*head, *(_of_tables(records, ours, right) if tables else _of_sinks(records, ours, right)), ""])


def _when(records: list[dict[str, Any]]) -> str:
    """With which releases of Spark the cases ran, and on which days, in UTC; old results do not tell their day."""
    days = sorted({record["date"] for record in records if "date" in record})
    if not days:
        when = "on days that are not on record"
    else:
        when = f"on {days[0]}" if len(days) == 1 else f"from {days[0]} to {days[-1]}"
        if (undated := sum("date" not in record for record in records)) > 0:
            when += f", and {undated} of them on days that are not on record"
    return f"The cases ran with Spark {', '.join(sorted({record['spark'] for record in records}))}, {when}."


def _of_sinks(records: list[dict[str, Any]], ours: list[dict[str, Any]], right: int) -> list[str]:
    """By release, and of a release of which every case ran, by query and state, too."""
    lines = [
        f"**{OURS}**: {len(ours)} cases ran, {right} as promised ({_cell(ours)}).",
        _PLAIN_TOLD.format(_cell(records, system=PLAIN)),
        "",
        *_ABOUT_PLAIN,
        *_by_release(records, ours, "sink", (FILES,)),
    ]
    sinks = list(dict.fromkeys(record["sink"] for record in ours))
    releases = sorted({record["spark"] for record in ours})
    for release in releases:
        of_it = [record for record in records if record["spark"] == release]
        here = [record for record in of_it if record["system"] == OURS]
        if len(here) < len(cases(sinks)):
            continue
        lines += [
            "",
            f"## Every case, Spark {release}",
            "",
            f"Each cell of {OURS} has {len(SIZES)} batch sizes x {len(MODES)} modes.",
            "",
            f"| query | state | sink | how it went on | {OURS} | {PLAIN} |",
            "|---|---|---|---|---|---|",
        ]
        for query, backend, sink, event in itertools.product(QUERIES, BACKENDS, sinks, EVENTS):
            where = {"query": query, "backend": backend, "sink": sink, "event": event}
            if (cell := _cell(here, **where)) != "-":
                state = "-" if query == "stateless" else backend
                alone = _cell(of_it, system=PLAIN, **where)
                lines.append(f"| {query} | {state} | {sink} | {event} | {cell} | {alone} |")
    return lines


def _of_tables(records: list[dict[str, Any]], ours: list[dict[str, Any]], right: int) -> list[str]:
    return [
        f"**{OURS}**: {len(ours)} cases ran, {right} as promised ({_cell(ours)}).",
        f"**{PLAIN}**, with the format's own writer and with whole copies of the checkpoint directory put back at",
        f"their place: {_cell(records, system=PLAIN)}. Spark alone has no writer for PostgreSQL.",
        "",
        *_by_release(records, ours, "sink", SOURCES),
    ]


def _by_release(
    records: list[dict[str, Any]], ours: list[dict[str, Any]], what: str, sources: tuple[str, ...]
) -> list[str]:
    """Which part of all cases ran with which Spark, and what came of it by way to go on."""
    ran = sorted({(record["sink"], record["spark"]) for record in ours})
    columns = [
        f"from {source}: {system}" if len(sources) > 1 else system for source in sources for system in (OURS, PLAIN)
    ]
    every = itertools.product(*(sorted(set(column)) for column in zip(*ran, strict=True)))
    lines = [
        *(_covered(sink, release, ours, sources) for sink, release in ran),
        *(_not_run(sink, release) for sink, release in every if (sink, release) not in ran),
        "",
        f"| {what} | Spark | how it went on | {' | '.join(columns)} |",
        "|---|---|---|" + "---|" * len(columns),
    ]
    for (sink, release), event in itertools.product(ran, EVENTS):
        cells = [
            _cell(records, system=system, sink=sink, spark=release, event=event, source=source)
            for source in sources
            for system in (OURS, PLAIN)
        ]
        lines.append(f"| {sink} | {release} | {event} | {' | '.join(cells)} |")
    return lines


def _not_run(sink: str, release: str) -> str:
    formats: dict[str, Mapping[str, Artifact]] = {DELTA: DELTA_BY_RELEASE, ICEBERG: ICEBERG_BY_RELEASE}
    there = sink not in formats or release.rpartition(".")[0] in formats[sink]
    return f"- {sink}, Spark {release}: {'nothing ran' if there else 'there is no release of the format for it'}."


def _covered(sink: str, release: str, ours: list[dict[str, Any]], sources: tuple[str, ...]) -> str:
    """Which of all cases of a sink ran."""
    every = [case for source in sources for case in cases([sink], source)]
    keys = {
        tuple(str(value) for value in (record[name] for name in Case.__match_args__))
        for record in ours
        if (record["sink"], record["spark"]) == (sink, release)
    }
    some = [case for case in every if astuple(case) in keys]
    count = len({case.base for case in some})
    jobs = f"{count} stopped job{'s' * (count > 1)}"
    if len(some) == len(every):
        what = "all of them"
    elif has_every_pair(some, every):
        what = "every two values of query, state, source, way to go on, batch size and mode occur together"
    elif has_every_way(some, every):
        what = "every way to go on occurs with every query, state, source, batch size and mode"
    else:
        what = f"a part: {', '.join(sorted({f'{case.query} from {case.source}' for case in some}))}"
    return f"- {sink}, Spark {release}: {len(some)} of {len(every)} cases, of {jobs}; {what}."


if __name__ == "__main__":
    sys.exit(main())
