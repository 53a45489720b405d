"""The cases of the rollback matrix: a job that stopped in the middle, gone on with in every way."""

from __future__ import annotations

import itertools
import random
import shutil
from collections import Counter
from dataclasses import astuple, dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.catalog.file_reader import materialize_checkpoint
from dagster_ckpt.checkpoint.catalog.newest import find_newest
from dagster_ckpt.config.checkpoint_config import CheckpointingMode
from dagster_ckpt.config.recovery import RestoreRequest
from dagster_ckpt.config.restart import FixedDelayRestart, NoRestart
from dagster_ckpt.errors import RestoreRefused
from dagster_ckpt.spark.events import CheckpointCompleted, Event, Started
from dagster_ckpt.spark.files.checkpoint_location import CheckpointLocation
from dagster_ckpt.spark.files.log_entries import OffsetEntry
from dagster_ckpt.spark.job import StreamingJob
from dagster_ckpt.testing.kafka import KafkaServer
from tests.jobs.harness import NEVER, OFTEN, Bench, Launch, Pristine, eventually
from tests.jobs.matrix.streams import (
    BACKENDS,
    CHANGELOG,
    CLOSING,
    CLOSING_FILES,
    JOIN,
    NO_DATA,
    POSTGRES,
    QUERIES,
    ROWS,
    SCHEMA,
    SINKS,
    TRIES,
    FailureFree,
    Row,
    Target,
    batches_of,
    between_ticks,
    in_step,
    land,
    paced,
)
from tests.jobs.matrix.topics import FILES, KAFKA, Topic
from tests.servers.postgres import PostgresServer
from tests.servers.postgres import rows as table_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

KEPT, LOST = "crash, live location kept", "crash, live location lost"
BY_ONE, BY_FIVE = "rollback by 1", "rollback by 5"
EVENTS = (KEPT, LOST, BY_ONE, BY_FIVE)
SAME, OTHER = "the same batch size", "another batch size"
SIZES = (SAME, OTHER)
MODES = tuple(mode.value for mode in CheckpointingMode)

#: Files read before the stop: one a batch with a checkpoint each, then some without, then one in flight.
CHECKPOINTED, BEYOND, LATER = 7, 2, 3


_ROWS = "id bigint, v bigint, at bigint"
#: Of the table in PostgreSQL, by query.
_COLUMNS = dict.fromkeys(QUERIES, _ROWS) | {"window aggregation": f"{_ROWS}, n bigint", JOIN: f"{_ROWS}, rv bigint"}


@dataclass(frozen=True)
class Case:
    """One cell of the matrix."""

    query: str
    backend: str
    sink: str
    source: str
    event: str
    size: str
    mode: str

    @property
    def base(self) -> tuple[str, str, str, str]:
        """What the stopped job is made of."""
        return self.query, self.backend, self.sink, self.source

    def __str__(self) -> str:
        return ", ".join(astuple(self))


@dataclass(frozen=True)
class Outcome:
    """What came of a case: rows that are missing or too many; or why the restore was refused."""

    lost: int = 0
    doubled: int = 0
    refused: str = ""
    failed: str = ""

    @property
    def word(self) -> str:
        """One word for it."""
        if self.failed:
            return "failed"
        if self.refused:
            return "refused"
        return "lost" if self.lost else "doubled" if self.doubled else "exact"


def bases(sinks: Sequence[str] = SINKS, source: str = FILES) -> list[tuple[str, str, str, str]]:
    """Every query on every state backend it can use, into every sink. A stateless one has no state to keep."""
    return [
        (query, backend, sink, source)
        for query, backend, sink in itertools.product(QUERIES, BACKENDS, sinks)
        if not (query == "stateless" and backend != CHANGELOG)
        if not (query == "transformWithStateInPandas" and backend == "HDFSBacked")
    ]


def cases(sinks: Sequence[str] = SINKS, source: str = FILES) -> list[Case]:
    """The whole matrix of some sinks."""
    return [Case(*base, *how) for base in bases(sinks, source) for how in itertools.product(EVENTS, SIZES, MODES)]


def pairwise(every: list[Case]) -> list[Case]:
    """A subset in which every two values that occur together anywhere occur together."""
    return _covering(every, _pairs)


def has_every_pair(some: list[Case], every: list[Case]) -> bool:
    """Whether every two values that occur together in ``every`` occur together in ``some``."""
    return set().union(*map(_pairs, every)) <= set().union(*map(_pairs, some))


def in_every_way(every: list[Case]) -> list[Case]:
    """A subset of one stopped job for each query, with the sources and the state backends in turns.

    Every way to go on occurs with every query, backend, source, batch size and mode.
    """
    sources = list(dict.fromkeys(case.source for case in every))
    stopped = set()
    for turn, query in enumerate(dict.fromkeys(case.query for case in every)):
        source = sources[turn % len(sources)]
        possible = list(dict.fromkeys(case.base for case in every if (case.query, case.source) == (query, source)))
        stopped.add(possible[turn % len(possible)])
    return _covering([case for case in every if case.base in stopped], _pairs)


def has_every_way(some: list[Case], every: list[Case]) -> bool:
    """Whether every way to go on occurs in ``some`` with each of the other values of ``every``."""
    found, wanted = ({(case.event, value) for case in chosen for value in astuple(case)} for chosen in (some, every))
    return wanted <= found


def of_few_jobs(every: list[Case]) -> list[Case]:
    """A subset of few stopped jobs, because to make one takes longest.

    Every two values of sink, event, batch size and mode occur together, and every query and every backend occurs; most
    jobs have the last backend, which is the default.
    """
    default_first = sorted(every, key=lambda case: -list(BACKENDS).index(case.backend))
    return _covering(default_first, lambda case: _pairs(replace(case, query="", backend="")) | _alone(case))


def of_drawn_jobs(every: list[Case], jobs: int, seed: int) -> list[Case]:
    """All ways to go on with some stopped jobs that are drawn, each way with a batch size and a mode that are drawn."""
    draw = random.Random(f"{seed} {every[0].sink} {every[0].source}")
    stopped = draw.sample(sorted({case.base for case in every}), jobs)
    ways = itertools.product(stopped, EVENTS)
    return [draw.choice([case for case in every if (case.base, case.event) == way]) for way in ways]


def _pairs(case: Case) -> set[Hashable]:
    values = (case.query, case.backend, case.sink, case.source, case.event, case.size, case.mode)
    return set(itertools.combinations(enumerate(values), 2))


def _alone(case: Case) -> set[Hashable]:
    return {case.query, case.backend}


def _covering(every: list[Case], of: Callable[[Case], set[Hashable]]) -> list[Case]:
    """Cases that together have what all of them have; rather of a stopped job that has been chosen already."""
    missing = set().union(*map(of, every))
    chosen: list[Case] = []
    while missing:
        stopped = {case.base for case in chosen}
        best = max(every, key=lambda case: (len(of(case) & missing), case.base in stopped))
        chosen.append(best)
        missing -= of(best)
    return chosen


@dataclass
class MatrixBench(Bench):
    """A job of the matrix. Its input has late rows, and its sink is any of those that checkpoints cover."""

    case_query: str = "stateless"
    backend: str = "RocksDB"
    target: str = "file"
    topic: Topic | None = None

    def __post_init__(self) -> None:
        self.query = _query

    @property
    def output(self) -> Target:
        return Target(self.target, self.sink)

    def land(self, count: int) -> None:
        self.source.mkdir(parents=True, exist_ok=True)
        for number in range(self.landed, self.landed + count):
            between_ticks(self.case_query)
            self._land(number)
        self.landed += count

    def close(self) -> None:
        """Land files that are far ahead, so that no window stays open."""
        for number in range(CLOSING, CLOSING + CLOSING_FILES):
            self._land(number)

    def _land(self, number: int) -> None:
        land(self.source, number)
        if self.topic is not None:
            self.topic.send(number)

    def launch(self, job: StreamingJob | None = None, **asked: Any) -> Launch:
        """As of any job; what it reads of a topic is kept, because a job that is over has no live location."""
        self.land(0)
        return Launch(job or self.job(), RestoreRequest(**asked), told=self._keep_offsets)

    def _keep_offsets(self, event: Event) -> None:
        if isinstance(event, CheckpointCompleted):
            self.keep_offsets()

    def keep_offsets(self) -> None:
        """Keep what the start that runs, or was the last one, has read of a topic."""
        if self.topic is not None:
            now, kept = self.live() / "offsets", self.root / "offsets"
            shutil.copytree(now, kept, dirs_exist_ok=True)
            # A start has the entries from its checkpoint on. Those before are of starts that it goes on from.
            last = max(_numbered(now))
            for batch, file in _numbered(kept).items():
                if batch > last:
                    file.unlink()

    def batches(self) -> list[list[Path]]:
        """Which files were read together: as the newest checkpoint knows, or of a topic the last start's offsets."""
        if self.topic is not None:
            return self.topic.batches(self.root, self.root / "batches")
        newest = find_newest(self.catalog).metadata
        assert newest is not None
        where = self.root / "opened"
        materialize_checkpoint(self.catalog, newest, where)
        try:
            return batches_of(where / "checkpoint" / "sources", self.source)
        finally:
            shutil.rmtree(where)


def _numbered(directory: Path) -> dict[int, Path]:
    return {int(file.name): file for file in directory.iterdir() if file.name.isdigit()}


def _query(bench: Bench, session: SparkSession) -> DataStreamWriter:
    assert isinstance(bench, MatrixBench)
    if bench.catalog.choice() is None:  # what a query began with is fixed
        for key, value in BACKENDS[bench.backend].items():
            session.conf.set(key, value)

    session.conf.set(*NO_DATA)

    def read() -> DataFrame:
        if bench.topic is not None:
            return bench.topic.read(session, bench.files_per_trigger, at_once=not bench.until_done)
        stream = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", bench.files_per_trigger)
        return stream.json(str(bench.source))

    writer = bench.output.writer(QUERIES[bench.case_query](read))
    return writer.trigger(availableNow=True) if bench.until_done else paced(bench.case_query, writer)


class Base:
    """A job that stopped in the middle of a batch, some batches after its newest checkpoint.

    Args:
        spark: a session.
        directory: for its files.
        query: see :data:`~tests.jobs.matrix.streams.QUERIES`.
        backend: see :data:`~tests.jobs.matrix.streams.BACKENDS`.
        sink: see :data:`~tests.jobs.matrix.streams.SINKS` and :func:`~tests.jobs.matrix.streams.table_sinks`.
        source: see :data:`~tests.jobs.matrix.topics.SOURCES`.
        postgres: the server for a sink in PostgreSQL.
        kafka: the broker for a topic as the source.
    """

    def __init__(
        self,
        spark: SparkSession,
        directory: Path,
        query: str,
        backend: str,
        sink: str,
        source: str = FILES,
        postgres: PostgresServer | None = None,
        kafka: KafkaServer | None = None,
    ) -> None:
        self._postgres = postgres
        self._database = ""
        for number in range(TRIES):
            root = directory / f"job-{number}"
            topic = Topic(kafka) if source == KAFKA and kafka is not None else None
            bench = MatrixBench(
                spark, root, until_done=False, case_query=query, backend=backend, target=sink, topic=topic
            )
            if sink == POSTGRES and postgres is not None:
                self._database = postgres.database()
                table_rows(self._database, f"CREATE TABLE rows ({_COLUMNS[query]}, batch bigint)")
                root.mkdir(parents=True)
                bench.output.reach.write_text(self._database)
            self._checkpoint_each_batch(bench)
            self._go_beyond(bench)
            # Each start has a location of its own, with the entries since its checkpoint.
            if all(map(in_step, bench.working.glob("*/checkpoint"))):
                bench.until_done = True
                self._pristine = Pristine(bench, directory / "backup")
                return
        raise AssertionError(f"the sources of {query} were out of step {TRIES} times")

    def go_on(self, case: Case, failure_free: FailureFree) -> Outcome:
        """Go on as the case says, to the end of the data, and compare."""
        with self._pristine.borrowed() as bench:
            assert isinstance(bench, MatrixBench)
            if case.sink == POSTGRES and self._postgres is not None:
                bench.output.reach.write_text(self._postgres.database(self._database))
            return _go_on(bench, case, failure_free)

    @staticmethod
    def _checkpoint_each_batch(bench: MatrixBench) -> None:
        launch = bench.launch(bench.job(config=OFTEN))
        eventually("the query starts", lambda: bool(launch.of(Started)), unless=launch.check)
        location = CheckpointLocation(bench.live())
        for number in range(CHECKPOINTED):
            bench.land(1)

            def covered(files: int = number + 1) -> bool:
                batch = launch.completed[-1].batch if launch.completed else -1
                return batch >= 0 and _files_read(location.offsets(batch)) >= files and location.planned() is None

            eventually(f"file {number} is checkpointed", covered, unless=launch.check)
        launch.run.cancel()
        launch.result()

    @staticmethod
    def _go_beyond(bench: MatrixBench) -> None:
        launch = bench.launch(bench.job(config=NEVER))
        eventually("the query starts", lambda: bool(launch.of(Started)), unless=launch.check)
        for _ in range(BEYOND):
            before = bench.await_committed(launch)
            bench.land(1)
            eventually(
                "it is read",
                lambda before=before: bench.await_committed(launch) > before,  # type: ignore[misc]
                unless=launch.check,
            )
        location = CheckpointLocation(bench.live())
        bench.land(1)
        eventually("the last file is planned", lambda: location.planned() is not None, unless=launch.check)
        launch.run.cancel()
        launch.result()
        bench.keep_offsets()  # a start that goes on may fail and leave them, and the next one has the newest only


def _files_read(entry: OffsetEntry) -> int:
    """How many files the first source of a query has read, in a topic by their rows."""
    offset = entry.offset("0")
    if offset is None:  # of two sources that read the same files, the other one has looked later
        return 0
    assert isinstance(offset, dict)
    (told,) = offset.values()
    return told["0"] // ROWS if isinstance(told, dict) else told + 1  # type: ignore[operator,return-value]


def _go_on(bench: MatrixBench, case: Case, failure_free: FailureFree) -> Outcome:
    """Go on with a stopped job as the case says, to the end of the data, and compare."""
    restore_from = "latest"
    retained = find_newest(CheckpointCatalog(bench.filesystem, bench.name))
    assert retained.metadata is not None
    assert retained.job_id is not None
    line = bench.catalog.completed(retained.job_id)[0]
    if case.event != KEPT:
        shutil.rmtree(bench.working)
    if case.event in {BY_ONE, BY_FIVE}:
        restore_from = line[-2 if case.event == BY_ONE else -6].reference
    bench.files_per_trigger = 1 if case.size == SAME else 3
    config = NEVER.model_copy(update={"mode": CheckpointingMode(case.mode)})
    before = bench.photograph()
    bench.land(LATER)
    bench.close()
    landed = bench.photograph()
    # Spark's connector to Kafka 4.1.1 fails after each batch that runs again, when Spark asks for its metrics.
    restart = NoRestart() if bench.topic is None else FixedDelayRestart(5, timedelta(0))
    launch = bench.launch(bench.job(config=config, restart=restart), restore_from=restore_from)
    try:
        launch.result()
    except RestoreRefused as error:
        replace(before, trees={**before.trees, "in": landed.trees["in"]}).assert_untouched(bench)
        return Outcome(refused=error.message)
    return compare(bench.output.rows(), failure_free.answer(case.query, bench.batches()))


def compare(found: Counter[Row], expected: Counter[Row]) -> Outcome:
    """Rows that are missing, and rows that are too many."""
    return Outcome(lost=(expected - found).total(), doubled=(found - expected).total())
