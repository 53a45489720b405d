"""A version of the code that first writes beside the job, and is compared; then it takes the job's place, and back."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.cleanup.pinning import pin_checkpoint
from dagster_ckpt.checkpoint.format.code_versions import CodeVersion
from dagster_ckpt.clock import SystemClock
from dagster_ckpt.errors import CheckpointError, InvalidConfiguration, UpgradeFailed
from dagster_ckpt.spark.events import Started
from dagster_ckpt.spark.job import StreamingJob, Versions
from dagster_ckpt.spark.proof.comparison import Comparison, compare_rows
from dagster_ckpt.spark.sinks.sink import Sink, sink_to
from dagster_ckpt.spark.sinks.spark_file_sink import SparkFileSink
from dagster_ckpt.spark.sinks.transactional_file_sink import TransactionalFileSink
from dagster_ckpt.testing import Fail, FaultInjectingFileSystem, Operation, Plan
from tests.helpers.checkpoint.driver import once
from tests.helpers.driving import Driver, driving
from tests.jobs.harness import NEVER, Bench, Query, deduplicated, eventually
from tests.jobs.savepoints import Take

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter


def _other(bench: Bench, session: SparkSession) -> DataStreamWriter:
    """The state of version 1, and the same rows by another expression."""
    return bench.write(bench.read(session).dropDuplicates(["id"]).selectExpr("id", "CAST(v + 1 AS INT) - 1 AS v"))


def _doubled(bench: Bench, session: SparkSession) -> DataStreamWriter:
    return bench.write(bench.read(session).dropDuplicates(["id"]).selectExpr("id", "v * 2 AS v"))


def _failing(bench: Bench, session: SparkSession) -> DataStreamWriter:
    rows = bench.read(session).dropDuplicates(["id"])
    return bench.write(rows.selectExpr("id", "CAST(raise_error('version 2 is broken') AS INT) AS v"))


def _job(
    bench: Bench, green: Mapping[str, Query] | None = None, *, current: str = "1", timeout: float | None = None
) -> StreamingJob:
    functions: dict[str, Any] = {
        version: lambda session, make=make: make(bench, session) for version, make in (green or {}).items()
    }
    versions = Versions(current, timeout=timeout, green=functions)
    return replace(bench.job(config=NEVER, query=deduplicated), versions=versions)


def _code(bench: Bench) -> CodeVersion:
    chosen = bench.catalog.choice()
    assert chosen is not None
    return chosen[1].code


@dataclass
class Shadow(Bench):
    """The green job: it reads what the blue one reads, and writes beside."""

    reads: Path = Path()

    @property
    def source(self) -> Path:
        return self.reads


def _shadow(bench: Bench, query: Query) -> Shadow:
    """A green job that would read two files in a batch, where the blue one reads one."""
    root = bench.root.with_name("green")
    return Shadow(bench.spark, root, name="tiny_green", query=query, files_per_trigger=2, reads=bench.source)


class _Storage:
    """Hands out the checkpoints of one bench."""

    def __init__(self, bench: Bench) -> None:
        self._filesystem = bench.filesystem

    def catalog(self, job_name: str) -> CheckpointCatalog:
        return CheckpointCatalog(self._filesystem, job_name)


def _compare(bench: Bench, green: Bench, **options: Any) -> Comparison:
    return compare_rows(bench.spark, _Storage(bench), "tiny", green.name, green_storage=_Storage(green), **options)


@pytest.fixture
def pinned(bench: Bench) -> Bench:
    """A job that has left a checkpoint after two files, and has read three more, one in a batch, up to another one."""
    bench.tick(2)
    point = bench.checkpoints()[-1]
    pin_checkpoint(bench.catalog, point, "blue/green", SystemClock())
    bench.tick(3)
    return bench


def _second(ending: str) -> Plan:
    """A full storage at the second creation of a path with an ending."""
    seen = count()

    def plan(operation: Operation) -> Fail | None:
        return Fail() if operation.name == "create" and operation.path.endswith(ending) and next(seen) == 1 else None

    return plan


# --- green beside blue ------------------------------------------------------------------------------------------------


def test_the_same_rows_are_found_to_be_the_same(pinned: Bench) -> None:
    """Green runs blue's batches with their boundaries, though its own would be wider; then it goes on with its own."""
    point, newest = pinned.checkpoints()[0], pinned.checkpoints()[-1]
    green = _shadow(pinned, _other)
    green.tick(0, fork_from=pinned.catalog.pointer(point), replay_to="latest")
    assert green.checkpoints()[-1].batch == newest.batch == 4
    found = _compare(pinned, green)
    assert (found.is_same, found.first, found.last, found.rows) == (True, 2, 4, 15)
    assert str(found) == "tiny and tiny_green have written the same 15 rows in batches 2 to 4."
    pinned.land(2)
    green.tick(0)
    pinned.tick(0)
    assert _compare(pinned, green) == found, "batch 5 of green has two files, and is no batch of blue"


@pytest.mark.exhaustive
def test_rows_that_differ_are_counted_and_shown(pinned: Bench) -> None:
    point = pinned.checkpoints()[0]
    green = _shadow(pinned, _doubled)
    green.tick(0, fork_from=pinned.catalog.pointer(point), replay_to="latest")
    found = _compare(pinned, green)
    assert (found.is_same, found.rows, found.only_in_blue, found.only_in_green) == (False, 15, 15, 15)
    assert '- {"id":13,"v":130}' in found.examples
    assert '+ {"id":13,"v":260}' in found.examples
    assert _compare(pinned, green, columns=["id"]).is_same


@pytest.mark.exhaustive
def test_a_green_job_that_dies_in_the_replay_runs_the_same_batches(pinned: Bench) -> None:
    """Its own disk is lost, and blue with its plans: the fork has its own copies of both."""
    point = pinned.checkpoints()[0]
    green = _shadow(pinned, _other)
    backup = pinned.root.with_name("backup")
    shutil.copytree(pinned.root, backup)
    asked: dict[str, Any] = {"fork_from": pinned.catalog.pointer(point), "replay_to": "latest"}
    full = FaultInjectingFileSystem(green.filesystem, _second("_metadata"))
    with pytest.raises(CheckpointError):
        green.launch(replace(green.job(), filesystem=full), **asked).result()
    assert green.checkpoints()[-1].kind == "fork"
    shutil.rmtree(green.working)
    shutil.rmtree(pinned.storage)
    green.tick(0, **asked)
    shutil.copytree(backup / "storage", pinned.storage)
    assert _compare(pinned, green).is_same


def test_what_cannot_be_compared_is_refused_with_its_reason(pinned: Bench) -> None:
    point = pinned.checkpoints()[0]
    green = _shadow(pinned, _other)
    with pytest.raises(InvalidConfiguration, match="'tiny_green' has no checkpoint"):
        _compare(pinned, green)
    green.tick(0, fork_from=pinned.catalog.pointer(point))
    with pytest.raises(InvalidConfiguration, match="Batch 2 of tiny_green has other boundaries") as caught:
        _compare(pinned, green)
    assert "replay_to: latest" in caught.value.hint
    alone = Bench(pinned.spark, pinned.root.with_name("alone"), name="alone")
    alone.tick(1)
    with pytest.raises(InvalidConfiguration, match="'alone' is no fork"):
        _compare(pinned, alone)


@pytest.mark.exhaustive
def test_a_transactional_sink_and_a_function_that_reads(pinned: Bench) -> None:
    point = pinned.checkpoints()[0]

    def transactional(of: Bench, session: SparkSession) -> DataStreamWriter:
        rows = of.read(session).dropDuplicates(["id"]).select("id", "v")
        return sink_to(rows, TransactionalFileSink(of.sink, format="json")).trigger(availableNow=True)

    green = _shadow(pinned, transactional)
    green.tick(0, fork_from=pinned.catalog.pointer(point), replay_to="latest")
    with pytest.raises(InvalidConfiguration, match=r"tiny has the columns id, v, and tiny_green has value\."):
        _compare(pinned, green)
    asked: list[tuple[str, int, int]] = []

    def read(session: SparkSession, job: str, after: int, until: int) -> DataFrame:
        asked.append((job, after, until))
        sink: Sink = TransactionalFileSink(green.sink) if job == green.name else SparkFileSink(pinned.sink)
        rows = sink.rows_of(session, after, until)
        return rows.selectExpr("from_json(value, 'id int, v int') AS r").select("r.*") if job == green.name else rows

    assert _compare(pinned, green, read=read).is_same
    assert asked == [("tiny", 1, 4), (green.name, 1, 4)]


# --- the cut-over, and the way back -----------------------------------------------------------------------------------


def _stopped(bench: Bench, job: StreamingJob, take: Take) -> int:
    """The job reads all that has landed, and is stopped with a savepoint of its last batch; returns the batch."""
    bench.until_done = False
    launch = bench.launch(job)
    eventually("the query starts", lambda: bool(launch.of(Started)), unless=launch.check)
    bench.await_in_sink(launch)
    taken = take(bench, stop=True)
    launch.result()
    bench.until_done = True
    return taken.batch


def test_green_goes_on_from_the_savepoint_of_blue_and_blue_from_that_of_green(bench: Bench, take: Take) -> None:
    bench.land(2)
    job = _job(bench, {"2": _other})
    blue = _stopped(bench, job, take)
    launch = bench.tick(1, job, code_version="2")
    assert launch.started.restored is not None
    assert launch.started.restored.batch == blue
    assert _code(bench) == CodeVersion("2", in_place_of="1")
    bench.assert_exact()
    bench.tick(1, job)
    assert _code(bench) == CodeVersion("2", in_place_of="1"), "a later launch goes on with version 2"
    back = _stopped(bench, job, take)
    launch = bench.tick(1, job, code_version="1")
    assert launch.started.restored is not None
    assert launch.started.restored.batch == back
    assert _code(bench) == CodeVersion("1")
    bench.tick(1, job)
    assert _code(bench) == CodeVersion("1")
    bench.assert_exact()


def test_rows_of_green_are_those_of_its_function(bench: Bench) -> None:
    """Or the tests of rows would pass with the function of blue."""
    job = _job(bench, {"2": _doubled})
    bench.tick(1, job)
    bench.tick(1, job, code_version="2")
    assert {(8, 160), (12, 240), (7, 70)} <= set(bench.in_raw_directory())


@pytest.mark.exhaustive
def test_the_deployment_of_the_version_is_no_upgrade_and_another_one_is(bench: Bench) -> None:
    bench.tick(1, _job(bench))
    bench.tick(1, _job(bench, {"2": _other}), code_version="2")
    bench.tick(1, _job(bench, current="2", timeout=60.0))
    assert _code(bench) == CodeVersion("2")
    bench.tick(1, _job(bench, {"2": _other}, current="3", timeout=60.0))
    upgrade = _code(bench).upgrade
    assert upgrade is not None
    assert (upgrade.before, _code(bench).version) == ("2", "3")
    bench.assert_exact()


def test_a_version_that_is_not_there_is_refused(bench: Bench) -> None:
    bench.tick(1, _job(bench, {"2": _other}), code_version="2")
    bench.land(1)
    error = bench.refused(InvalidConfiguration, _job(bench))
    assert "is to run version 2 of its code, and has 1 only" in error.message
    assert "green={'2': its function}" in error.hint
    bench.refused(InvalidConfiguration, _job(bench, {"2": _other}), code_version="3")
    bench.refused(InvalidConfiguration, bench.job(), code_version="1")
    bench.tick(0, _job(bench), code_version="1")
    bench.assert_exact()


@pytest.mark.exhaustive
def test_a_green_version_that_fails_is_taken_back(bench: Bench) -> None:
    job = _job(bench, {"2": _failing}, timeout=60.0)
    bench.tick(2, job)
    before = bench.checkpoints()[-1].reference
    bench.land(1)
    with pytest.raises(UpgradeFailed, match="Version 2 of job 'tiny' has failed before its first checkpoint"):
        bench.launch(job, code_version="2").result()
    end = bench.catalog.records.epochs.read_end(bench.catalog.records.epochs.highest())
    assert end is not None
    assert (end.taken_back, end.returns_to) == ("2", "1")
    launch = bench.tick(0, job)
    assert launch.started.restored is not None
    assert launch.started.restored.reference == before
    assert _code(bench) == CodeVersion("1")
    bench.tick(1, job)
    bench.assert_exact()
    mended = _job(bench, {"2": _other}, timeout=60.0)
    bench.tick(1, mended, code_version="2")
    assert _code(bench).version == "2", "who asks for it once more gets it"
    bench.assert_exact()


@pytest.mark.parametrize(
    "record", ["/begin", *(pytest.param(at, marks=pytest.mark.exhaustive) for at in (".choice", "_metadata"))]
)
def test_a_cut_over_that_dies_at_a_record_is_repeated_or_goes_on(bench: Bench, record: str) -> None:
    """Before its choice is on record the job goes on with blue, afterwards with green; exact in either case."""
    job = _job(bench, {"2": _other})
    bench.run_and_cancel(2, job)
    bench.land(1)
    # What is salvaged of blue is the first manifest, and green's first checkpoint the second.
    plan = _second(record) if record == "_metadata" else once("create", record, Fail())
    full = FaultInjectingFileSystem(bench.filesystem, plan)
    with pytest.raises(CheckpointError):
        bench.launch(replace(job, filesystem=full), code_version="2").result()
    is_recorded = record != ".choice"
    bench.tick(1, job)
    assert _code(bench) == (CodeVersion("2", in_place_of="1") if is_recorded else CodeVersion("1"))
    bench.assert_exact()


@pytest.mark.exhaustive
def test_a_driver_that_is_killed_in_a_cut_over_goes_on_exactly(bench: Bench) -> None:
    """Killed as blue, and as green before its choice, after it, and after its first batch: without a checkpoint yet."""
    bench.land(2)
    with _driving(bench) as blue:
        blue.await_("blue reads", lambda: len(bench.in_sink_log()) == len(bench.expected()))
        blue.kill()
    rows = bench.in_sink_log()
    with _driving(bench, code_version=2) as green:
        green.await_("it is begun", lambda: bench.catalog.records.epochs.highest() == 2)
        green.kill()
    assert bench.in_sink_log() == rows
    assert _code(bench).version == "1"
    with _driving(bench, code_version=2) as green:
        green.await_("it has chosen", lambda: _code(bench).version == "2")
        green.kill()
    bench.land(1)
    with _driving(bench) as green:
        green.await_("it has written", lambda: (13, -130) in bench.in_sink_log())
        green.kill()
    bench.land(1)
    with _driving(bench, until="done") as green:
        assert green.ended() == "FINISHED"
    assert _code(bench) == CodeVersion("2", in_place_of="1")
    written = {id_: value // id_ if id_ else 10 for id_, value in bench.in_raw_directory()}
    assert [abs(value) for _, value in sorted(written.items())] == [10] * len(bench.expected())
    assert sum(bench.in_raw_directory().values()) == len(bench.expected()), "each id once"
    assert {written[id_] for id_ in range(13)} == {10}, "what blue has written stays"
    assert {written[id_] for id_ in range(13, 23)} == {-10}


def _driving(bench: Bench, **words: object) -> AbstractContextManager[Driver]:
    told = (f"{name}={value}" for name, value in words.items())
    return driving("tests.jobs.starting.cut_over_driver", str(bench.root), *told)
