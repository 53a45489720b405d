"""A start that dies, or is paused while a newer start takes the sink over, before each of its steps in the database."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from dagster_ckpt.errors import CheckpointFailure, Fenced, SinkMismatch
from dagster_ckpt.stored_json import Json
from tests.servers.postgres import PostgresServer, rows
from tests.unit.spark.sinks.postgres_job import TABLE, Died, Job, Steps, expected

pytestmark = pytest.mark.slow
_Position = dict[str, Json]


@pytest.fixture
def job(postgres: PostgresServer, tmp_path: Path) -> Job:
    reach = postgres.database()
    rows(reach, f"CREATE TABLE {TABLE} (id int, v text, batch bigint)")
    return Job(reach, tmp_path, patience=0.3)


def written(job: Job) -> _Position:
    """The position of the last checkpoint, after batch 0; batch 1 was written since."""
    job.start()
    position = job.write(0, "a")
    job.write(1, "a")
    return position


def writes(job: Job, position: _Position) -> None:
    del position
    job.write(2, "z")


def takes_over(job: Job, position: _Position) -> None:
    job.go(position)


ACTS = [pytest.param(writes, id="writes"), pytest.param(takes_over, id="takes over")]


def prepared(job: Job, act: Callable[[Job, _Position], None]) -> _Position:
    position = written(job)
    if act is takes_over:
        job.new()
    return position


def steps_of(job: Job, act: Callable[[Job, _Position], None]) -> int:
    position = prepared(job, act)
    with Steps().watching() as steps:
        act(job, position)
    rows(job.reach, f"TRUNCATE {TABLE}; TRUNCATE public.dagster_ckpt_sinks")
    return steps.count


@pytest.mark.parametrize("act", ACTS)
def test_a_start_that_dies_at_any_step(job: Job, act: Callable[[Job, _Position], None]) -> None:
    for at in range(steps_of(job, act)):
        position = prepared(job, act)

        def die() -> None:
            raise Died

        with pytest.raises(Died), Steps(at, die).watching():
            act(job, position)
        found = job.found()
        whole = [expected((0, "a")), expected((0, "a"), (1, "a")), expected((0, "a"), (1, "a"), (2, "z"))]
        assert found in whole, f"half a batch is there after step {at}"
        job.start(position)
        assert job.found() == expected((0, "a")), f"after step {at}"
        job.write(1, "b")
        assert job.found() == expected((0, "a"), (1, "b")), f"after step {at}"
        assert job.staged() == []
        rows(job.reach, f"TRUNCATE {TABLE}; TRUNCATE public.dagster_ckpt_sinks")


def take_and_write(newer: Job, position: _Position) -> None:
    try:
        newer.start(position)
    except CheckpointFailure:  # the older start came first, and the job tries again
        newer.start(position)
    newer.write(1, "b")


def waits(job: Job) -> bool:
    """Whether somebody waits for a lock of somebody else."""
    return bool(
        rows(
            job.reach,
            "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()",
        )
    )


@pytest.mark.exhaustive
@pytest.mark.parametrize("patience", [0.3, 60.0])
@pytest.mark.parametrize("act", ACTS)
def test_a_start_that_is_overtaken_at_any_step_changes_nothing(
    job: Job, act: Callable[[Job, _Position], None], patience: float
) -> None:
    """As if on another host: nobody kills it.

    It goes on when the newer start is done, for which PostgreSQL ends a session that holds the entry; or, with more
    patience, as soon as the newer start waits for the entry.
    """
    job.patience = patience
    for at in range(steps_of(job, act)):
        position = prepared(job, act)
        paused, woken = threading.Event(), threading.Event()
        errors: list[BaseException] = []

        def pause(paused: threading.Event = paused, woken: threading.Event = woken) -> None:
            paused.set()
            woken.wait()

        def live(at: int = at, position: _Position = position, errors: list[BaseException] = errors) -> None:
            with Steps(at, pause).watching():
                try:
                    act(job, position)
                except BaseException as raised:
                    errors.append(raised)

        zombie = threading.Thread(target=live, daemon=True)
        zombie.start()
        assert paused.wait(60)
        newer = job.beside()
        taking = threading.Thread(target=take_and_write, args=(newer, position), daemon=True)
        taking.start()
        while taking.is_alive() and not (patience > 1 and waits(job)):
            taking.join(0.02)
        woken.set()
        zombie.join(60)
        taking.join(60)
        assert not zombie.is_alive()
        assert not taking.is_alive()
        assert newer.found() == expected((0, "a"), (1, "b")), f"overtaken before step {at}"
        # A task of Spark's that finds its staging table gone tells psycopg's error.
        known = Fenced | CheckpointFailure | SinkMismatch | psycopg.errors.UndefinedTable
        assert all(isinstance(error, known) for error in errors), errors
        newer.write(2, "b")
        assert newer.found() == expected((0, "a"), (1, "b"), (2, "b"))
        rows(job.reach, f"TRUNCATE {TABLE}; TRUNCATE public.dagster_ckpt_sinks")


def test_two_starts_from_nothing_at_once(job: Job) -> None:
    """One of them has the sink, and the other one ends."""
    other = Job(job.reach, job.root / "other", "other")
    job.new()
    with Steps(4, lambda: (other.start(), None)[1]).watching(), pytest.raises(CheckpointFailure, match="Another start"):
        job.go()
    other.write(0, "o")
    assert job.found() == expected((0, "o"))
