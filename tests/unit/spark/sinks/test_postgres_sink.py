"""A sink in a real PostgreSQL: what a reader finds after crashes, takeovers and rollbacks, and what is refused.

``test_postgres_steps.py`` has the crashes and the zombies at every step.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import psycopg
import pyarrow as pa
import pytest
from pyspark import cloudpickle

from dagster_ckpt.errors import (
    CheckpointError,
    CheckpointFailure,
    Fenced,
    InvalidConfiguration,
    RestoreRefused,
    SinkMismatch,
)
from dagster_ckpt.spark.sinks.postgres import PostgresSink
from dagster_ckpt.spark.sinks.postgres.database import _grants
from dagster_ckpt.spark.sinks.postgres.staging import copying
from dagster_ckpt.spark.sinks.recorded_positions import RecordedPositions
from tests.jobs.harness import eventually
from tests.servers.postgres import PostgresServer, rows
from tests.unit.spark.sinks.postgres_job import NOWHERE, TABLE, Job, Rows, batch_rows, expected

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@pytest.fixture
def job(postgres: PostgresServer, tmp_path: Path) -> Job:
    reach = postgres.database()
    rows(reach, f"CREATE TABLE {TABLE} (id int, v text, batch bigint)")
    return Job(reach, tmp_path)


def test_a_batch_that_comes_again_in_the_same_start_replaces_itself(job: Job) -> None:
    job.start()
    job.write(0, "a")
    job.write(1, "a")
    job.write(1, "b")
    assert job.found() == expected((0, "a"), (1, "b"))
    assert job.staged() == []


def test_a_start_that_goes_without_a_batch(job: Job) -> None:
    """A repartition of the state has taken number 1; a batch that is lost later is still missed."""
    job.start()
    first = job.write(0, "a")
    job.write(1, "a")
    job.new()
    job.go(first, after=1)
    empty = RecordedPositions(job.directory).pin_position(1, lambda source, _: source)
    job.write(2, "b")
    assert job.found() == expected((0, "a"), (2, "b"))
    with pytest.raises(SinkMismatch, match="holds batches up to 2, and the next one is 4"):
        job.write(4, "b")
    job.start(empty)
    third = job.write(2, "c")
    assert job.found() == expected((0, "a"), (2, "c"))
    job.new()
    job.go(first, after=1)  # back to the checkpoint of the repartition, whose position is that of batch 0
    job.write(2, "d")
    assert job.found() == expected((0, "a"), (2, "d"))
    job.new()
    with pytest.raises(SinkMismatch, match="and not batch 2 of"):
        job.go(third)


def test_a_rollback_removes_later_batches_and_no_row_of_others(job: Job) -> None:
    rows(job.reach, f"INSERT INTO {TABLE} VALUES (-1, 'loaded by hand', NULL)")
    job.start()
    first = job.write(0, "a")
    job.write(1, "a")
    job.new()
    assert job.go(first) == f"3 rows of batches after 0 removed from {TABLE}"
    job.write(1, "b")
    assert job.found() - expected((0, "a"), (1, "b")) == {(-1, "loaded by hand", None): 1}
    assert job.found().total() == 7
    assert job.sink.newest_batch() == 1


def test_a_checkpoint_that_a_rollback_has_abandoned_is_refused(job: Job) -> None:
    job.start()
    first = job.write(0, "a")
    abandoned = job.write(1, "a")
    kept = job.start(first).write(1, "b")
    newest = job.write(2, "b")
    before = job.found()
    for _ in range(2):  # a refusal changes nothing, so the second is the same
        with pytest.raises(SinkMismatch, match="not batch 1 of 000001"):
            job.new().check(abandoned, NOWHERE)
    assert job.found() == before
    job.start(newest)
    job.start(kept)
    assert job.found() == expected((0, "a"), (1, "b"))
    job.start(first)
    assert job.found() == expected((0, "a"))


def test_empty_batches_and_empty_partitions_count_as_written(job: Job) -> None:
    job.start()
    job.write_rows(0, [])
    position = job.write_rows(1, [(1, "one")])
    last = job.write_rows(2, [])
    assert (position["filled"], last["filled"]) == (1, 1)
    assert job.found() == {(1, "one", 1): 1}
    assert job.start(last).write(3, "b")["filled"] == 3


def test_texts_arrive_as_they_are(job: Job) -> None:
    texts = ["", "NULL", "\\N", '"', "a,b", "two\nlines", "Grüße 🙂", "\\.", None]
    job.start()
    job.write_rows(0, enumerate(texts))
    assert job.found() == {(number, text, 0): 1 for number, text in enumerate(texts)}


def test_names_are_taken_as_they_are_written(postgres: PostgresServer, tmp_path: Path) -> None:
    reach = postgres.database()
    rows(reach, 'CREATE SCHEMA "S s"; CREATE TABLE "S s"."T""t" (id int, v text, "Batch " bigint)')
    job = Job(reach, tmp_path)
    job.new()
    job.sink = PostgresSink(reach, 'S s.T"t', batch_column="Batch ")
    job.go()
    position = job.write(0, "a")
    job.write(1, "a")
    job.new()
    job.sink = PostgresSink(lambda: reach, 'S s.T"t', batch_column="Batch ")
    job.go(position)
    assert rows(reach, 'SELECT count(*) FROM "S s"."T""t"') == [(3,)]


@pytest.mark.parametrize("client", ["", "LATIN1", "SQL_ASCII"])
@pytest.mark.parametrize("encoding", ["LATIN1", "UTF8"])
def test_texts_arrive_in_a_database_and_from_a_client_of_any_encoding(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str, client: str
) -> None:
    if client:
        monkeypatch.setenv("PGCLIENTENCODING", client)
    utf8 = f"{postgres.database(encoding=encoding)} client_encoding=UTF8"
    rows(utf8, 'CREATE SCHEMA "Tür"; CREATE TABLE "Tür"."Größe" (id int, v text, batch bigint)')
    job = Job(utf8.replace("UTF8", client) if client else utf8.removesuffix("client_encoding=UTF8"), tmp_path)
    job.table = "Tür.Größe"
    job.start()
    first = job.write_rows(0, [(1, "Zürich"), (2, "Orléans")])
    job.write_rows(1, [(3, "Málaga")])
    job.start(first)
    assert rows(utf8, 'SELECT id, v, batch FROM "Tür"."Größe" ORDER BY id') == [(1, "Zürich", 0), (2, "Orléans", 0)]
    if encoding == "LATIN1":
        with pytest.raises(psycopg.DataError, match="no equivalent in encoding"):
            job.write_rows(1, [(3, "€")])


def test_a_database_without_an_encoding_is_refused_by_name(postgres: PostgresServer, tmp_path: Path) -> None:
    reach = postgres.database(encoding="SQL_ASCII")
    rows(reach, f"CREATE TABLE {TABLE} (id int, v text, batch bigint)")
    job = Job(reach, tmp_path)
    for refused in (job.start, lambda: job.new().first_data()):
        with pytest.raises(InvalidConfiguration, match="has the encoding SQL_ASCII"):
            refused()


@pytest.mark.parametrize("name", ["Delays", "it's", 'T"t', "order", "two words"])
def test_the_statements_of_an_error_name_the_table_of_the_sink(
    postgres: PostgresServer, tmp_path: Path, name: str
) -> None:
    reach = postgres.database()
    quoted = name.replace('"', '""')
    columns = '(id int, v text, "Batch" bigint)'
    rows(reach, f"CREATE TABLE public.delays {columns}; INSERT INTO public.delays VALUES (1, 2, 3)")
    rows(reach, f'CREATE SCHEMA "User"; CREATE UNLOGGED TABLE "User"."{quoted}" {columns}')
    sink = PostgresSink(reach, f"User.{name}", batch_column="Batch")
    job = Job(reach, tmp_path, table=f"User.{name}")

    def run(text: str) -> None:
        for statement in text.split("`")[1::2]:
            rows(reach, statement.replace("...", "CURRENT_USER"))

    with pytest.raises(InvalidConfiguration, match="unlogged") as refused:
        sink.first_data()
    run(refused.value.hint)
    run(_grants(sink._table))
    job.new()
    job.sink = sink
    job.go()
    job.write(0, "a")
    assert sink.first_data() is not None
    run(sink.to_empty)
    assert sink.first_data() is None
    rows(reach, f'ALTER TABLE "User"."{quoted}" DROP "Batch"')
    with pytest.raises(InvalidConfiguration, match="is missing") as refused:
        sink.first_data()
    run(refused.value.hint)
    assert sink.first_data() is None
    assert rows(reach, "SELECT count(*) FROM public.delays") == [(1,)]


def test_a_start_from_nothing_removes_what_its_own_lineage_wrote(job: Job) -> None:
    job.start()
    job.write(0, "a")
    job.new().adopt(job.lineage)
    assert "3 rows" in job.sink.rollback_to_nothing(0.0, job.epoch)
    assert job.sink.rollback_to_nothing(0.0, job.epoch) == "", "a start that died in its rollback makes it again"
    assert job.found() == {}
    job.sink.adopt("another")
    with pytest.raises(SinkMismatch, match="written by lineage lineage") as refused:
        job.sink.rollback_to_nothing(0.0, job.epoch)
    assert "Give this job another table" in refused.value.hint
    job.sink.adopt(job.lineage)
    with pytest.raises(Fenced, match="epoch 2, which is newer than 1"):
        job.sink.rollback_to_nothing(0.0, 1)


def test_a_fork_begins_in_an_empty_table_and_goes_back_to_its_begin(job: Job) -> None:
    seeded = job.new().seed(41, NOWHERE, cast("Any", None))
    assert seeded["batch"] == 41
    job.go(seeded)
    position = job.write(42, "f")
    job.start(position)
    job.start(seeded)
    assert job.found() == {}
    assert job.write(42, "g")["filled"] == 42
    other = job.new().seed(41, NOWHERE, cast("Any", None))
    with pytest.raises(SinkMismatch):
        job.sink.check(other, NOWHERE)
    rows(job.reach, "DELETE FROM public.dagster_ckpt_sinks")
    with pytest.raises(SinkMismatch, match="a row of batch 42"):
        job.sink.check(other, NOWHERE)


def test_another_job_with_the_same_table_is_refused_and_stops_no_one_unheard(job: Job, tmp_path: Path) -> None:
    """It finds data; and one that was started all the same, past that check, ends one of the two by name."""
    job.start()
    position = job.write(0, "a")
    other = Job(job.reach, tmp_path / "other", "other")
    assert other.new().first_data() == "an entry of lineage lineage in public.dagster_ckpt_sinks"
    with pytest.raises(CheckpointFailure, match="Another start has taken"):
        other.go()
    assert 'DELETE FROM "public"."delays"' in other.sink.to_empty
    for statement in other.sink.to_empty.split("`")[1::2]:
        rows(job.reach, statement)
    assert other.new().first_data() is None
    other.go()
    other.write(0, "o")
    with pytest.raises(Fenced, match="epoch 2 of lineage other"):
        job.write(1, "a")
    with pytest.raises(SinkMismatch, match="lineage other"):
        job.start(position)
    assert other.found() == expected((0, "o"))


BROKEN: dict[str, tuple[str, type[CheckpointError], str, str]] = {
    "the table is gone": ("DROP TABLE delays", SinkMismatch, "no table public.delays", "Create it"),
    "made anew": (
        "DROP TABLE delays; CREATE TABLE delays (id int, v text, batch bigint)",
        SinkMismatch,
        "no row",
        "Put",
    ),
    "emptied": ("TRUNCATE delays", SinkMismatch, "no row of batch 1 any more", "`pruned` to 1"),
    "no column of the batch": ("ALTER TABLE delays DROP batch", SinkMismatch, "is missing", "ADD COLUMN"),
    "another type": ("ALTER TABLE delays ALTER batch TYPE text", SinkMismatch, "is of type text", "bigint"),
    "unlogged": ("ALTER TABLE delays SET UNLOGGED", InvalidConfiguration, "unlogged", "SET LOGGED"),
    "a view": (
        "ALTER TABLE delays RENAME TO t; CREATE VIEW delays AS TABLE t",
        InvalidConfiguration,
        "not a table",
        "Write to a table",
    ),
    "no entry": ("DELETE FROM dagster_ckpt_sinks", SinkMismatch, "has no entry", "one backup"),
    "no ledger": ("DROP TABLE dagster_ckpt_sinks", SinkMismatch, "has no entry", "one backup"),
    "from a backup": ("UPDATE dagster_ckpt_sinks SET batch = 0", SinkMismatch, "batches up to 0", "Restore"),
}


def test_a_ledger_that_is_older_than_its_table_doubles_no_row(job: Job) -> None:
    """As after a backup of the ledger alone; the error advises to restore a checkpoint of the batch that it knows."""
    position = job.start().write(0, "a")
    for batch in (1, 2):
        job.write(batch, "a")
    rows(job.reach, "UPDATE dagster_ckpt_sinks SET batch = 0")
    with pytest.raises(SinkMismatch, match="holds batches up to 0, and the next one is 3"):
        job.write(3, "a")
    job.start(position)
    for batch in (1, 2):
        job.write(batch, "a")
    assert job.found() == expected((0, "a"), (1, "a"), (2, "a"))


@pytest.mark.parametrize("name", BROKEN)
def test_preflight_finds_a_table_that_does_not_hold_the_batch(job: Job, name: str) -> None:
    statement, error, message, hint = BROKEN[name]
    job.start().write(0, "a")
    position = job.write(1, "a")
    rows(job.reach, statement)
    with pytest.raises(error, match=message) as refused:
        job.new().check(position, NOWHERE)
    assert type(refused.value) is error
    assert hint in refused.value.hint


@pytest.mark.parametrize(
    "change",
    [
        {"start": "'; DROP TABLE delays; --"},
        {"start": None},
        {"start": "fork-"},
        {"start": ["000001"]},
        {"filled": "1 OR true"},
        {"filled": -2},
        {"batch": 10**30},
        {"batch": "1"},
    ],
)
def test_a_position_that_somebody_else_has_written_takes_no_row_out(job: Job, change: dict[str, Any]) -> None:
    job.start()
    position = {**job.write(0, "a"), **change}
    job.write(1, "a")
    job.new()
    with pytest.raises(SinkMismatch):
        job.sink.check(position, NOWHERE)
    with pytest.raises((SinkMismatch, CheckpointFailure)):
        job.sink.rollback_to(position, NOWHERE, job.epoch)
    assert job.found() == expected((0, "a"), (1, "a"))


def test_rows_that_were_deleted_on_purpose_are_told_to_the_ledger(job: Job) -> None:
    job.start()
    position = job.write(1 - 1, "a")
    rows(job.reach, "DELETE FROM delays")
    rows(job.reach, "UPDATE dagster_ckpt_sinks SET pruned = 0")
    assert job.start(position).write(1, "b")["batch"] == 1


@pytest.mark.parametrize(
    ("missing", "grants"),
    [
        ("DELETE on the table", "SELECT, INSERT ON delays"),
        ("INSERT on the table", "SELECT, DELETE ON delays"),
        ("CREATE on the schema", "SELECT, INSERT, DELETE ON delays"),
    ],
)
def test_a_permission_that_is_missing_is_named(job: Job, missing: str, grants: str) -> None:
    role = f"r{job.reach.split('dbname=t')[1][:12]}"
    rows(job.reach, f"CREATE ROLE {role} LOGIN; GRANT {grants} TO {role}; GRANT USAGE ON SCHEMA public TO {role}")
    if "CREATE" not in missing:
        rows(job.reach, f"GRANT CREATE ON SCHEMA public TO {role}")
    as_role = job.reach.replace("user=tests", f"user={role}")
    with pytest.raises(InvalidConfiguration, match=f"lacks {missing}") as refused:
        PostgresSink(as_role, TABLE).first_data()
    for statement in refused.value.hint.split("`")[1::2]:
        rows(job.reach, statement.replace("...", role))
    assert PostgresSink(as_role, TABLE).first_data() is None


def test_row_security_that_would_hide_rows_from_a_rollback_is_refused(job: Job) -> None:
    role = f"r{job.reach.split('dbname=t')[1][:12]}"
    rows(job.reach, f"CREATE ROLE {role} LOGIN; GRANT ALL ON delays TO {role}; GRANT ALL ON SCHEMA public TO {role}")
    rows(job.reach, "ALTER TABLE delays ENABLE ROW LEVEL SECURITY")
    with pytest.raises(InvalidConfiguration, match="Row security"):
        PostgresSink(job.reach.replace("user=tests", f"user={role}"), TABLE).first_data()


def test_a_batch_that_postgresql_has_lost_is_missed_by_the_next(job: Job) -> None:
    """As after a failover to a copy that was behind."""
    job.start()
    job.write(0, "a")
    job.write(1, "a")
    rows(job.reach, "DELETE FROM delays WHERE batch = 1; UPDATE dagster_ckpt_sinks SET batch = 0")
    with pytest.raises(SinkMismatch, match="up to 0, and the next one is 2") as lost:
        job.write(2, "a")
    assert "checkpoint of batch 0" in lost.value.hint
    assert job.found() == expected((0, "a"))


def test_a_trigger_that_drops_rows_does_not_do_so_unnoticed(job: Job) -> None:
    rows(
        job.reach,
        "CREATE FUNCTION skip() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$; "
        "CREATE TRIGGER skip BEFORE INSERT ON delays FOR EACH ROW WHEN (NEW.id = 1) EXECUTE FUNCTION skip()",
    )
    job.start()
    with pytest.raises(CheckpointFailure, match="has 3 rows, and 2 of them arrived"):
        job.write(0, "a")
    assert job.found() == {}


KEEP = "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$; "
KEEP += "CREATE TRIGGER keep BEFORE DELETE ON delays FOR EACH ROW"
KEEPS_ROWS = {
    "a trigger": f"{KEEP} EXECUTE FUNCTION keep()",
    "a trigger for some rows": f"{KEEP} WHEN (OLD.id = 11) EXECUTE FUNCTION keep()",
    "a rule": "CREATE RULE keep AS ON DELETE TO delays DO INSTEAD NOTHING",
}


@pytest.mark.parametrize("name", KEEPS_ROWS)
def test_a_table_that_keeps_deleted_rows_does_not_double_them(job: Job, name: str) -> None:
    job.start()
    first = job.write(0, "a")
    job.write(1, "a")
    rows(job.reach, KEEPS_ROWS[name])
    with pytest.raises(SinkMismatch, match="keeps rows of batch 1") as refused:
        job.write(1, "again")
    assert '\\d+ "public"."delays"' in refused.value.hint
    for _ in range(2):  # nothing was touched, so the second is refused as the first
        with pytest.raises(SinkMismatch, match="keeps rows of batch 1"):
            job.start(first)
    assert job.found() == expected((0, "a"), (1, "a"))
    assert job.sink.newest_batch() == 1


PARTS = {
    "a table that inherits": ("", "CREATE TABLE other () INHERITS (delays)", "other, which inherits", "NO INHERIT"),
    "an unlogged partition": (
        "PARTITION BY RANGE (id)",
        "CREATE UNLOGGED TABLE low PARTITION OF delays FOR VALUES FROM (0) TO (9)",
        "low, which is unlogged",
        "SET LOGGED",
    ),
    "an unlogged partition below a partition": (
        "PARTITION BY RANGE (id)",
        "CREATE TABLE low PARTITION OF delays FOR VALUES FROM (0) TO (9) PARTITION BY RANGE (batch); "
        "CREATE UNLOGGED TABLE lowest PARTITION OF low FOR VALUES FROM (0) TO (9)",
        "lowest, which is unlogged",
        "SET LOGGED",
    ),
    "a partition on another server": (
        "PARTITION BY RANGE (id)",
        "CREATE FOREIGN DATA WRAPPER elsewhere; CREATE SERVER there FOREIGN DATA WRAPPER elsewhere; "
        "CREATE FOREIGN TABLE low PARTITION OF delays FOR VALUES FROM (0) TO (9) SERVER there",
        "low, which is on another server",
        "DETACH PARTITION",
    ),
}


@pytest.mark.parametrize("name", PARTS)
def test_a_part_of_the_table_that_a_transaction_cannot_keep_is_refused(
    postgres: PostgresServer, tmp_path: Path, name: str
) -> None:
    kind, statement, message, change = PARTS[name]
    reach = postgres.database()
    rows(reach, f"CREATE TABLE {TABLE} (id int, v text, batch bigint) {kind}")
    job = Job(reach, tmp_path)
    if not kind:
        job.start()  # a part may come later
        job.write(0, "a")
    rows(reach, statement)
    with pytest.raises(InvalidConfiguration, match=message) as refused:
        job.write(1, "a") if not kind else job.start()
    assert change in refused.value.hint


def test_sinks_in_a_table_and_in_a_part_of_it_are_refused(postgres: PostgresServer, tmp_path: Path) -> None:
    reach = postgres.database()
    rows(
        reach,
        f"CREATE TABLE {TABLE} (id int, v text, batch bigint) PARTITION BY RANGE (id); CREATE SCHEMA parts; "
        f"CREATE TABLE parts.low PARTITION OF {TABLE} FOR VALUES FROM (0) TO (1000)",
    )
    job = Job(reach, tmp_path)
    job.start()
    first = job.write(0, "a")
    part = Job(reach, tmp_path / "part", table="parts.low")
    with pytest.raises(InvalidConfiguration, match=r"public\.delays, to which another PostgresSink writes"):
        part.start()
    job.write(1, "a")
    job.start(first)
    assert job.found() == expected((0, "a"))
    rows(reach, f"DELETE FROM {TABLE}; DELETE FROM dagster_ckpt_sinks")
    part.start()
    with pytest.raises(InvalidConfiguration, match=r"parts\.low, to which another PostgresSink writes"):
        Job(reach, tmp_path / "again").start()


@pytest.mark.parametrize("change", ["DROP TABLE delays", "ALTER TABLE delays DROP batch", "ALTER TABLE delays DROP v"])
def test_a_table_that_is_changed_while_the_job_runs_is_named_by_the_next_batch(job: Job, change: str) -> None:
    job.start()
    rows(job.reach, change)
    with pytest.raises(InvalidConfiguration, match=r"no table public\.delays|no column 'v'|\"batch\" .* is missing"):
        job.write(0, "a")


@pytest.mark.parametrize(
    ("columns", "dtypes", "message"),
    [
        (("id", "w"), (("id", "int"), ("w", "string")), "no column 'w'; it has id, v, batch"),
        (("id", "batch"), (("id", "int"), ("batch", "int")), 'has a column "batch"'),
        (("id", "v%s"), (("id", "int"), ("v%s", "int")), "column 'v%s' of type int"),
        (("id", "v"), (("id", "int"), ("v", "array<int>")), "column 'v' of type array<int>"),
    ],
)
def test_columns_that_do_not_fit_are_named(job: Job, columns: Any, dtypes: Any, message: str) -> None:
    job.start()
    wrong = Rows(batch_rows(0, "a"))
    wrong.columns, wrong.dtypes = columns, dtypes
    with pytest.raises(InvalidConfiguration, match=message):
        job.sink.write_batch(cast("DataFrame", wrong), 0)
    job.write(0, "a")


def test_a_database_that_refuses_connections_is_tried_again(job: Job, postgres: PostgresServer) -> None:
    job.start()
    position = job.write(0, "a")
    calls: list[Callable[[], object]] = [
        lambda: job.new().check(position, NOWHERE),
        lambda: job.sink.newest_batch(),  # noqa: PLW0108 - of the sink that is new by then
        lambda: job.go(position),
    ]
    postgres.stop()
    try:
        for call in calls:
            with pytest.raises(CheckpointFailure, match=r"PostgreSQL failed for the sink public\.delays") as refused:
                call()
            assert refused.value.recoverable
    finally:
        postgres.start()
    assert job.start(position).write(1, "b")["batch"] == 1
    assert job.found() == expected((0, "a"), (1, "b"))


def test_a_commit_whose_answer_is_lost_is_not_told_to_be_undone(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server has committed, and the connection broke before its answer came."""
    leave = psycopg.Transaction.__exit__

    def lose(itself: psycopg.Transaction, *raised: Any) -> Any:
        leave(itself, *raised)
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    job.start()
    with monkeypatch.context() as patch:
        patch.setattr(psycopg.Transaction, "__exit__", lose)
        with pytest.raises(CheckpointFailure, match="closed the connection") as failed:
            job.write(0, "a")
    assert job.found() == expected((0, "a"))
    assert "whole or not at all; the restart finds out which" in failed.value.hint


def test_a_crash_of_postgresql_between_the_copies_and_the_move_is_missed(
    job: Job, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It empties the staging table, which is unlogged. The entry of a batch that is committed survives."""
    rows(job.reach, f"ALTER DATABASE {job.reach.split('dbname=')[1].split()[0]} SET synchronous_commit = off")
    job.start()
    position = job.write(0, "a")
    collect = Rows.collect

    def crash(itself: Rows) -> Any:
        postgres.stop()
        postgres.start()
        return collect(itself)

    with monkeypatch.context() as patch:
        patch.setattr(Rows, "collect", crash)
        with pytest.raises(CheckpointFailure):
            job.write(1, "a")
    assert job.found() == expected((0, "a"))
    job.start(position).write(1, "b")
    assert job.found() == expected((0, "a"), (1, "b"))
    assert job.staged() == []


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
def test_an_isolation_that_the_server_sets_makes_no_difference(job: Job, isolation: str) -> None:
    name = job.reach.split("dbname=")[1].split()[0]
    rows(job.reach, f"ALTER DATABASE {name} SET default_transaction_isolation = '{isolation}'")
    zombie = job.start()
    position = zombie.write(0, "a")
    newer = job.beside().start(position)
    with pytest.raises(Fenced):
        zombie.write(1, "z")
    newer.write(1, "b")
    assert job.found() == expected((0, "a"), (1, "b"))


def test_a_query_that_was_started_by_hand_is_refused(job: Job) -> None:
    with pytest.raises(RestoreRefused, match="started by hand"):
        job.new().write_batch(cast("DataFrame", Rows([])), 0)


@pytest.mark.parametrize("name", ["", "a.b.c", "a.", ".b", "a%s"])
def test_a_name_that_is_no_table(name: str) -> None:
    with pytest.raises(InvalidConfiguration, match="is not the name of a table"):
        PostgresSink("", name)


def test_psycopg_is_named_when_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(InvalidConfiguration, match="needs psycopg") as refused:
        PostgresSink("", "t")
    assert 'pip install "dagster-ckpt[postgres]"' in refused.value.hint


def test_a_worker_copies_without_this_package(job: Job, tmp_path: Path) -> None:
    pickled = tmp_path / "copy"
    copy = copying(job.reach, "COPY delays FROM STDIN (FORMAT csv)")
    pickled.write_bytes(cloudpickle.dumps(copy))  # type: ignore[no-untyped-call]
    worker = (
        "import pickle, sys\nsys.modules['dagster_ckpt'] = None\nimport pyarrow as pa\n"
        "batch = pa.RecordBatch.from_pydict({'id': [1], 'v': ['one']})\n"
        "(told,) = pickle.load(open(sys.argv[1], 'rb'))(iter([batch]))\nprint(told.to_pydict()['copied'])"
    )
    done = subprocess.run([sys.executable, "-c", worker, str(pickled)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[1]"
    ((number, text, task),) = rows(job.reach, "SELECT * FROM delays")
    assert (number, text) == (1, "one")
    assert task > 0


def test_a_task_that_fails_leaves_nothing(job: Job) -> None:
    job.start()
    position = job.write(0, "a")
    with pytest.raises(psycopg.DataError, match="0x00"):
        job.write_rows(1, [(1, "fine"), (2, "not \0 fine")])
    assert job.found() == expected((0, "a"))
    job.start(position)
    assert job.staged() == []
    connected = (
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
    )
    # PostgreSQL ends the process of a connection a moment after its client has closed the connection.
    eventually("no connection is left", lambda: rows(job.reach, connected) == [(0,)])


def test_a_server_whose_host_is_gone_is_given_up_after_two_minutes(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default libpq waits for two hours for an answer that a host does not send any more."""
    connected: list[dict[str, str]] = []
    connect = psycopg.connect

    def noted(*given: Any, **more: Any) -> psycopg.Connection:
        connection = connect(*given, **more)
        connected.append(connection.info.get_parameters())
        return connection

    monkeypatch.setattr(psycopg, "connect", noted)
    ordinary = {"keepalives_idle": "60", "keepalives_interval": "15", "keepalives_count": "4"}
    for reach, seconds in ((job.reach, ordinary), (f"{job.reach} keepalives_idle=7", {"keepalives_idle": "7"})):
        with PostgresSink(reach, TABLE)._database.connected():
            pass
        copy = copying(reach, f"COPY {TABLE} (id, v, batch) FROM STDIN (FORMAT csv)")
        list(copy(iter([pa.RecordBatch.from_pydict({"id": [1], "v": ["a"]})])))
        driver, task = connected[-2:]
        for parameters in (driver, task):
            assert parameters["tcp_user_timeout"] == "120000"
            assert seconds.items() <= parameters.items()
