"""A job whose code has changed: what each mode goes on from, and how the version before comes back."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions

from dagster_ckpt.checkpoint.format.code_versions import CodeVersion
from dagster_ckpt.config.checkpoint_config import CheckpointConfig, ExternalizedCheckpointCleanup
from dagster_ckpt.config.recovery import UpgradeMode
from dagster_ckpt.config.restart import RestartStrategies, RestartStrategy
from dagster_ckpt.errors import CheckpointError, QueryFailed, RestoreRefused, SinkNotEmpty, UpgradeFailed
from dagster_ckpt.spark.events import Started
from dagster_ckpt.spark.job import StreamingJob, Versions
from dagster_ckpt.spark.run.running_query import RunningQuery
from dagster_ckpt.spark.sinks.sink import sink_to
from dagster_ckpt.spark.sinks.user_sinks import ForeachBatchSink
from dagster_ckpt.testing import Fail, FaultInjectingFileSystem, Hang
from tests.helpers.checkpoint.driver import once
from tests.jobs.harness import NEVER, ROWS_PER_FILE, Bench, Query, deduplicated, eventually
from tests.jobs.matrix.streams import REPLACING, Target
from tests.jobs.savepoints import Take

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

#: Takes no checkpoint while the query runs, and deletes all when the job has failed.
_DELETES = CheckpointConfig(
    interval="1 h", min_pause="1 h", cleanup=ExternalizedCheckpointCleanup.NO_EXTERNALIZED_CHECKPOINTS
)


def _doubled(bench: Bench, session: SparkSession) -> DataStreamWriter:
    """The state of the version before, and other rows."""
    return bench.write(bench.read(session).dropDuplicates(["id"]).selectExpr("id", "v * 2 AS v"))


def _failing(bench: Bench, session: SparkSession) -> DataStreamWriter:
    rows = bench.read(session).dropDuplicates(["id"])
    return bench.write(rows.selectExpr("id", "CAST(raise_error('version 2 is broken') AS INT) AS v"))


def _another_state(bench: Bench, session: SparkSession) -> DataStreamWriter:
    return bench.write(bench.read(session).dropDuplicates(["id", "k"]).select("id", "v"))


def _failing_later(bench: Bench, session: SparkSession) -> DataStreamWriter:
    """A batch with other rows, and then a failure."""
    rows = bench.read(session).dropDuplicates(["id"])
    value = "IF(id < 18, v * 2, CAST(raise_error('version 2 is broken') AS INT)) AS v"
    return bench.write(rows.selectExpr("id", value))


def _elsewhere(bench: Bench, session: SparkSession) -> DataStreamWriter:
    return _doubled(bench, session).option("path", str(bench.root / "elsewhere"))


def _version(
    bench: Bench,
    current: str,
    query: Query = deduplicated,
    *,
    config: CheckpointConfig = NEVER,
    restart: RestartStrategy | None = None,
    previous: Mapping[str, Query] | None = None,
    **options: Any,
) -> StreamingJob:
    functions: dict[str, Callable[..., DataStreamWriter]] = {
        version: lambda session, make=make: make(bench, session) for version, make in (previous or {}).items()
    }
    job = bench.job(config=config, query=query, restart=restart)
    return replace(job, versions=Versions(current, previous=functions, **options))


def _code(bench: Bench) -> CodeVersion:
    chosen = bench.catalog.choice()
    assert chosen is not None
    return chosen[1].code


def _taken_back(bench: Bench, job: StreamingJob) -> UpgradeFailed:
    """The error of a new version whose rows, if any, are in the sink."""
    with pytest.raises(UpgradeFailed) as caught:
        bench.launch(job).result()
    end = bench.catalog.records.epochs.read_end(bench.catalog.records.epochs.highest())
    assert end is not None
    assert (end.status, end.taken_back, end.returns_to, end.discarded) == ("FAILED", "2", "1", False)
    return caught.value


@pytest.fixture
def upgradable(bench: Bench) -> Bench:
    """A job whose version 1 has read two files, and left a checkpoint; a third file waits."""
    bench.tick(2, _version(bench, "1"))
    bench.land(1)
    return bench


def test_last_state_goes_on_from_the_newest_checkpoint(upgradable: Bench) -> None:
    before = upgradable.checkpoints()[-1].reference
    second = _version(upgradable, "2", timeout=60.0)
    launch = upgradable.tick(0, second)
    assert launch.started.restored is not None
    assert launch.started.restored.reference == before
    assert launch.started.reason.startswith("version 2 begins after version 1 (last-state): ")
    upgrade = _code(upgradable).upgrade
    assert upgrade is not None
    assert (upgrade.before, upgrade.checkpoint) == ("1", before)
    upgradable.tick(1, second)
    assert _code(upgradable) == CodeVersion("2"), "its checkpoint has proven version 2"
    upgradable.assert_exact()


@pytest.mark.exhaustive
def test_a_version_that_nobody_told_changes_nothing(bench: Bench) -> None:
    bench.tick(1)
    bench.tick(1, _version(bench, "1", mode=UpgradeMode.SAVEPOINT))
    bench.tick(1, _version(bench, "1", mode=UpgradeMode.SAVEPOINT))
    assert _code(bench) == CodeVersion("1")
    bench.assert_exact()


def test_savepoint_goes_on_from_the_savepoint_of_the_stop_alone(upgradable: Bench, take: Take) -> None:
    second = _version(upgradable, "2", mode=UpgradeMode.SAVEPOINT)
    error = upgradable.refused(RestoreRefused, second)
    assert "version 1 was not stopped with a savepoint" in error.message
    assert "dagster-ckpt stop tiny --path" in error.hint

    upgradable.until_done = False
    launch = upgradable.launch(_version(upgradable, "1", config=NEVER.model_copy(update={"retain_on_success": False})))
    eventually("the query starts", lambda: bool(launch.of(Started)), unless=launch.check)
    taken = take(upgradable, stop=True)
    launch.result()
    upgradable.until_done = True
    assert not upgradable.checkpoints(), "the policy has deleted them"
    launch = upgradable.tick(1, replace(second, config=NEVER.model_copy(update={"retain_on_success": False})))
    assert launch.started.restored is not None
    assert launch.started.restored.reference == taken.pointer
    upgradable.assert_exact()

    # The policy has deleted the checkpoint of version 2, too, and the savepoint is of version 1.
    refused = upgradable.refused(RestoreRefused, _version(upgradable, "3", mode=UpgradeMode.SAVEPOINT))
    assert "version 2 was not stopped with a savepoint" in refused.message


def test_a_savepoint_before_the_last_batches_is_not_the_one_of_the_stop(upgradable: Bench, take: Take) -> None:
    """Though the checkpoints that cover these batches are deleted when the query ends by itself."""
    sessions: list[SparkSession] = []

    def first(bench: Bench, session: SparkSession) -> DataStreamWriter:
        sessions.append(session)
        return deduplicated(bench, session)

    upgradable.until_done = False
    config = NEVER.model_copy(update={"retain_on_success": False})
    launch = upgradable.launch(_version(upgradable, "1", first, config=config))
    upgradable.await_in_sink(launch)
    nightly = take(upgradable)
    upgradable.land(1)
    upgradable.await_in_sink(launch)
    (query,) = sessions[-1].streams.active
    query.stop()
    launch.result()
    upgradable.until_done = True
    assert launch.completed[-1].batch > upgradable.catalog.resolve(nightly.pointer).batch
    assert not upgradable.checkpoints(), "the policy has deleted them"
    refused = upgradable.refused(RestoreRefused, _version(upgradable, "2", mode=UpgradeMode.SAVEPOINT))
    assert "version 1 was not stopped with a savepoint" in refused.message


def test_stateless_begins_from_nothing_in_a_sink_without_data(upgradable: Bench) -> None:
    upgradable.refused(SinkNotEmpty, _version(upgradable, "2", mode=UpgradeMode.STATELESS))
    launch = upgradable.tick(0, _version(upgradable, "2", _elsewhere, mode=UpgradeMode.STATELESS))
    assert launch.started.restored is None
    assert _code(upgradable) == CodeVersion("2")
    rows = upgradable.spark.read.parquet(str(upgradable.root / "elsewhere")).collect()
    assert sorted((row["id"], row["v"]) for row in rows) == sorted((id_, 2 * v) for id_, v in upgradable.expected())


@pytest.mark.exhaustive
def test_rows_of_a_version_without_a_checkpoint_are_taken_back(upgradable: Bench) -> None:
    """Version 2 commits, under a policy that deletes at the end. Version 1 goes on as if nothing had been."""
    before = upgradable.checkpoints()[-1].reference
    upgradable.until_done = False
    error = _taken_back(upgradable, _version(upgradable, "2", _doubled, config=_DELETES, timeout=30.0))
    assert "Version 2 of job 'tiny' has completed no checkpoint in 30 s of work" in error.message
    assert upgradable.in_sink_log().keys() - upgradable.expected().keys(), "it has written"
    upgradable.until_done = True
    launch = upgradable.tick(1, _version(upgradable, "1"))
    assert launch.started.restored is not None
    assert launch.started.restored.reference == before
    assert _code(upgradable) == CodeVersion("1")
    upgradable.assert_exact()


@pytest.mark.exhaustive
def test_the_version_before_goes_on_in_its_own_sink_after_a_stateless_one(upgradable: Bench) -> None:
    """Though the newest choice of the job is of a lineage that began from nothing."""
    before = upgradable.checkpoints()[-1].reference
    upgradable.until_done = False
    second = _version(upgradable, "2", _elsewhere, mode=UpgradeMode.STATELESS, config=_DELETES, timeout=0.5)
    _taken_back(upgradable, second)
    assert not upgradable.checkpoints()
    upgradable.until_done = True
    launch = upgradable.tick(1, _version(upgradable, "1"))
    assert launch.started.restored is not None
    assert launch.started.restored.reference == before
    upgradable.assert_exact()


@pytest.mark.exhaustive
def test_a_sink_that_cannot_go_back_is_that_of_the_version_before_after_a_stateless_one_elsewhere(bench: Bench) -> None:
    own, other = (Target(REPLACING, bench.root / name) for name in ("own", "other"))

    def first(bench: Bench, session: SparkSession) -> DataStreamWriter:
        return own.writer(bench.read(session).selectExpr("id", "v", "0 AS at")).trigger(availableNow=True)

    def second(bench: Bench, session: SparkSession) -> DataStreamWriter:
        rows = bench.read(session).select(functions.raise_error(functions.lit("version 2 is broken")))
        return sink_to(rows, ForeachBatchSink("other", other.replace)).trigger(availableNow=True)

    bench.tick(2, _version(bench, "1", first))
    bench.land(1)
    _taken_back(bench, _version(bench, "2", second, mode=UpgradeMode.STATELESS, timeout=60.0))
    bench.tick(1, _version(bench, "1", first))
    assert sum(own.rows().values()) == 4 * ROWS_PER_FILE


def test_a_version_that_completes_a_checkpoint_while_it_is_stopped_goes_on(
    upgradable: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though its job is not restarted after failures, and a failed one would lose its checkpoints."""
    stopped, stop = threading.Event(), RunningQuery._stop

    def stopping(query: RunningQuery) -> None:
        stop(query)
        stopped.set()

    monkeypatch.setattr(RunningQuery, "_stop", stopping)
    slow = FaultInjectingFileSystem(upgradable.filesystem, once("create", "/_metadata", Hang(stopped.wait)))
    config = CheckpointConfig(interval="200 ms", cleanup=ExternalizedCheckpointCleanup.NO_EXTERNALIZED_CHECKPOINTS)
    second = replace(_version(upgradable, "2", config=config, timeout=2.0), filesystem=slow)
    upgradable.until_done = False
    launch = upgradable.launch(second)
    eventually("it is started again", lambda: len(launch.of(Started)) == 2, unless=launch.check)
    (restart,) = launch.restarts
    assert restart.error == "The new version was late, and completed a checkpoint while it was stopped."
    restored = launch.of(Started)[1].restored
    assert restored is not None
    assert restored.reference == launch.completed[0].reference
    assert _code(upgradable) == CodeVersion("2")
    upgradable.land(1)
    upgradable.await_in_sink(launch)
    launch.run.interrupt()
    launch.result()
    upgradable.until_done = True
    upgradable.tick(1, _version(upgradable, "2"))
    upgradable.assert_exact()


@pytest.mark.parametrize("query", [_failing, _another_state])
def test_a_version_that_is_not_restarted_is_taken_back(upgradable: Bench, query: Query) -> None:
    error = _taken_back(upgradable, _version(upgradable, "2", query, config=_DELETES, timeout=60.0))
    assert "has failed before its first checkpoint" in error.message
    assert "Put the code of version 1 back" in error.hint
    upgradable.tick(1, _version(upgradable, "1"))
    upgradable.assert_exact()


@pytest.mark.exhaustive
@pytest.mark.parametrize("failing", [1, 0], ids=["in its first batch", "before it begins"])
def test_a_version_that_fails_for_too_long_is_taken_back(upgradable: Bench, failing: int) -> None:
    builds = iter(range(1000))

    def broken(bench: Bench, session: SparkSession) -> DataStreamWriter:
        if next(builds) < failing:
            return _failing(bench, session)
        raise ConnectionRefusedError("Connection refused")

    always = RestartStrategies.fixed_delay_restart(1000, "200 ms")
    _taken_back(upgradable, _version(upgradable, "2", broken, restart=always, timeout=8.0))
    assert next(builds) >= 2, "it was tried again"
    upgradable.tick(1, _version(upgradable, "1"))
    upgradable.assert_exact()


@pytest.mark.exhaustive
def test_what_is_salvaged_of_the_version_before_proves_nothing(upgradable: Bench) -> None:
    upgradable.run_and_cancel(1, _version(upgradable, "1"))
    upgradable.land(1)
    once = RestartStrategies.fixed_delay_restart(1, "1 ms")
    _taken_back(upgradable, _version(upgradable, "2", _failing, restart=once, timeout=60.0))
    upgradable.tick(0, _version(upgradable, "1"))
    upgradable.assert_exact()


@pytest.mark.exhaustive
def test_what_a_restart_salvages_of_a_new_version_proves_nothing(upgradable: Bench) -> None:
    """Or the run that returns would go on with the new version, which is not taken back once more."""
    before = upgradable.checkpoints()[-1].reference
    upgradable.land(1)
    once = RestartStrategies.fixed_delay_restart(1, "1 ms")
    second = _version(upgradable, "2", _failing_later, restart=once, timeout=600.0, previous={"1": deduplicated})
    _taken_back(upgradable, second)
    assert upgradable.checkpoints()[-1].kind == "salvage"
    launch = upgradable.tick(0, second)
    assert launch.started.restored is not None
    assert launch.started.restored.reference == before
    assert _code(upgradable) == CodeVersion("1", None, "2")
    upgradable.assert_exact()


@pytest.mark.parametrize(
    "record", [pytest.param(name, marks=pytest.mark.exhaustive) for name in (".choice", "/begin")] + [".end"]
)
def test_a_record_of_the_upgrade_or_of_the_return_cannot_be_written(upgradable: Bench, record: str) -> None:
    """Each run fails once. Without its end on record, version 2 is run once more, and taken back then."""
    second = _version(upgradable, "2", _failing, timeout=600.0, previous={"1": deduplicated})
    for expected in (UpgradeFailed, CheckpointError):
        if record == ".end" and expected is CheckpointError:
            _taken_back(upgradable, second)
            break
        full = FaultInjectingFileSystem(upgradable.filesystem, once("create", record, Fail()))
        with pytest.raises(expected):
            upgradable.launch(replace(second, filesystem=full)).result()
    for _ in range(2):
        upgradable.tick(1, second)
        assert _code(upgradable) == CodeVersion("1", None, "2")
        upgradable.assert_exact()


def test_where_the_version_before_has_left_nothing_there_is_nothing_to_return_to(bench: Bench) -> None:
    bench.run_and_cancel(1, _version(bench, "1"))
    shutil.rmtree(bench.live())
    with pytest.raises(QueryFailed, match="version 2 is broken"):
        bench.launch(_version(bench, "2", _failing, timeout=60.0)).result()
    assert _code(bench) == CodeVersion("2")
    bench.tick(1, _version(bench, "3", timeout=60.0))
    bench.assert_exact()


def test_the_version_before_runs_in_place_of_the_one_that_was_taken_back(upgradable: Bench) -> None:
    second = _version(upgradable, "2", _failing, timeout=60.0, previous={"1": deduplicated})
    error = _taken_back(upgradable, second)
    assert "goes on with version 1;" in error.hint
    for _ in range(2):  # version 2 is tried no more
        upgradable.tick(1, second)
        assert _code(upgradable) == CodeVersion("1", None, "2")
        upgradable.assert_exact()
    third = _version(upgradable, "3", timeout=60.0, previous={"1": deduplicated})
    upgradable.tick(1, third)
    upgrade = _code(upgradable).upgrade
    assert upgrade is not None
    assert upgrade.before == "1"
    upgradable.assert_exact()


@pytest.mark.exhaustive
def test_whoever_names_a_checkpoint_gets_it_with_the_code_that_is_there(upgradable: Bench) -> None:
    second = _version(upgradable, "2", _failing, timeout=60.0, previous={"1": deduplicated})
    _taken_back(upgradable, second)
    mended = _version(upgradable, "2", timeout=60.0, previous={"1": deduplicated})
    upgradable.tick(1, mended, restore_from=upgradable.checkpoints()[-1].reference)
    assert _code(upgradable) == CodeVersion("2")
    upgradable.assert_exact()
