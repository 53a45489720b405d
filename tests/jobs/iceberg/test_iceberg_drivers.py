"""Jobs that write to Iceberg tables and die, or are taken for dead, at any step of a commit."""

from __future__ import annotations

import shutil
import threading

import pytest

from dagster_ckpt.errors import SinkMismatch
from dagster_ckpt.spark.sinks.iceberg import IcebergSink
from dagster_ckpt.spark.sinks.iceberg.table import IcebergTable
from tests.helpers.driving import driving
from tests.jobs.harness import Bench, eventually
from tests.jobs.tables.common import Starts, a_batch_is_left_out, a_claim_is_no_data
from tests.jobs.tables.dying_drivers import a_zombie_wakes_in_its_commit, drivers_are_killed_at_random_moments
from tests.jobs.tables.holding import waiting
from tests.jobs.tables.iceberg import current, seen, snapshots, sql, table_of

pytestmark = [pytest.mark.releases, pytest.mark.timeout(3000)]

_DRIVER = ("tests.jobs.tables.driver", "iceberg")
_STEPS = ("rows", "before", "after")


def test_the_table_refuses_a_start_that_was_overtaken(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between its look at the table and its commit, before a commit and in a rollback. The start does not know."""
    rows = bench.spark.range(3).selectExpr("cast(id AS int) AS id", "cast(10 * id AS int) AS v")
    starts = Starts(bench.root, rows, lambda: IcebergSink(table_of(bench)))
    old = starts.begun(1)
    old.write_batch(rows, 0)
    once = snapshots(bench)
    old.write_batch(rows, 0)
    assert snapshots(bench) == once, "a repeated batch"
    covered = starts.position(old, 1, 0)

    replaced, wait = IcebergTable._replaced, waiting(bench.root)

    def held(table: IcebergTable, base: object, updated: object) -> bool:
        if threading.current_thread() is zombie:
            wait(None)
        return replaced(table, base, updated)

    errors: list[Exception] = []

    def write() -> None:
        try:
            old.write_batch(rows, 1)
        except Exception as error:
            errors.append(error)

    zombie = threading.Thread(target=write, daemon=True)
    monkeypatch.setattr(IcebergTable, "_replaced", held)
    (bench.root / "hold").touch()
    zombie.start()
    eventually("it is about to commit", lambda: (bench.root / "held").exists() or bool(errors))
    assert not errors, errors
    new = starts.begun(2, covered)
    new.write_batch(rows.limit(1), 1)
    newest = snapshots(bench)
    (bench.root / "hold").unlink()
    zombie.join()
    assert isinstance(errors[0], SinkMismatch)
    assert "claimed by epoch 2" in errors[0].message
    assert current(bench.sink).refs()["dagster_ckpt_orders"].snapshot_id == newest[-1]

    for overtaken in (
        lambda: old.write_batch(rows, 2),
        lambda: old.rollback_to(covered, bench.root, 1),
        lambda: starts.begun(1),
    ):
        with pytest.raises(SinkMismatch, match="claimed by epoch 2"):
            overtaken()
    assert snapshots(bench) == newest
    sql(bench, "INSERT INTO {table} VALUES (7, 70)")
    new.write_batch(rows.limit(1), 2)
    assert sum(seen(bench).values()) == 3 + 1 + 1 + 1
    with pytest.raises(Exception, match="extra"):
        new.write_batch(rows.selectExpr("id", "v", "1 AS extra"), 3)
    sql(bench, "INSERT OVERWRITE {table} VALUES (7, 70)")
    new.write_batch(rows.limit(1), 3)
    assert seen(bench) == {(7, 70): 1, (0, 0): 1}
    bench.spark.sql(f"CREATE OR REPLACE TABLE {table_of(bench)} (id INT, v INT) USING iceberg")
    with pytest.raises(SinkMismatch, match="does not come from snapshot"):
        new.write_batch(rows, 4)


def test_a_start_from_nothing_claims_the_table_with_its_first_look(bench: Bench) -> None:
    """So an older start of the lineage, which wakes up before its claim, writes nothing between the two."""
    rows = bench.spark.range(3).selectExpr("cast(id AS int) AS id", "cast(10 * id AS int) AS v")
    starts = Starts(bench.root, rows, lambda: IcebergSink(table_of(bench)))
    new = IcebergSink(table_of(bench))
    new.attach("orders", rows)
    assert not new.rollback_to_nothing(0, 2)
    with pytest.raises(SinkMismatch, match="claimed by epoch 2"):
        starts.begun(1)


def test_a_commit_whose_outcome_is_unknown_is_looked_for(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalog has taken the commit, and its answer is lost."""
    rows = bench.spark.range(3).selectExpr("cast(id AS int) AS id", "cast(10 * id AS int) AS v")
    replaced = IcebergTable._replaced
    monkeypatch.setattr(IcebergTable, "_replaced", lambda *given: replaced(*given) and False)
    start = Starts(bench.root, rows, lambda: IcebergSink(table_of(bench))).begun(1)
    start.write_batch(rows, 0)
    assert len(snapshots(bench)) == 3, "the creation, the claim and the batch"
    assert sum(seen(bench).values()) == 3


@pytest.mark.exhaustive
@pytest.mark.parametrize("step", _STEPS)
def test_a_zombie_that_wakes_in_its_commit_changes_nothing(bench: Bench, step: str) -> None:
    a_zombie_wakes_in_its_commit(bench, "iceberg", step, lambda bench: current(bench.sink).current_snapshot(), seen)


@pytest.mark.exhaustive
@pytest.mark.parametrize("steps", [_STEPS[1:2], _STEPS], ids=len)
def test_a_driver_that_is_killed_inside_steps_of_a_commit(bench: Bench, steps: tuple[str, ...]) -> None:
    for step in steps:
        bench.land(1)
        with driving(*_DRIVER, str(bench.root), f"hold={step}") as driver:
            driver.await_("a checkpoint", lambda driver=driver: bool(driver.of("Completed")))
            (bench.root / "hold").touch()
            bench.land(1)
            driver.await_("it is in its commit", (bench.root / "held").exists)
            driver.kill()
        (bench.root / "hold").unlink()
        (bench.root / "held").unlink()
        if step == "before":
            shutil.rmtree(bench.root / "live")
    with driving(*_DRIVER, str(bench.root), "end") as last:
        assert last.ended() == "FINISHED"
    assert seen(bench) == bench.expected()


@pytest.mark.exhaustive
def test_the_table_is_exact_after_kills_at_random_moments(bench: Bench) -> None:
    drivers_are_killed_at_random_moments(bench, "iceberg", seen)


def test_a_claim_is_no_data(bench: Bench) -> None:
    rows = bench.spark.range(3).selectExpr("cast(id AS int) AS id", "cast(10 * id AS int) AS v")
    rows.writeTo(table_of(bench)).using("iceberg").create()
    a_claim_is_no_data(bench, rows, Starts(bench.root, rows, lambda: IcebergSink(table_of(bench))))


def test_the_batch_of_a_repartition_is_left_out(bench: Bench) -> None:
    """As a Spark would number its batches that repartitions state. No Iceberg is for such a Spark yet."""
    rows = bench.spark.range(3).selectExpr("cast(id AS int) AS id", "cast(10 * id AS int) AS v")
    starts = Starts(bench.root, rows, lambda: IcebergSink(table_of(bench)))
    a_batch_is_left_out(rows, starts, lambda: sum(seen(bench).values()), bench.root)
