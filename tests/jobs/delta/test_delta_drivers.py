"""Jobs that write to a Delta table and die, or are taken for dead, at any moment."""

from __future__ import annotations

import threading

import pytest

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.errors import SinkMismatch
from dagster_ckpt.spark.sinks.delta import DeltaSink
from tests.jobs.harness import Bench, eventually
from tests.jobs.tables.common import Starts
from tests.jobs.tables.delta import seen, version
from tests.jobs.tables.driver import JOB
from tests.jobs.tables.dying_drivers import a_zombie_wakes_in_its_commit, drivers_are_killed_at_random_moments
from tests.jobs.tables.holding import waiting

pytestmark = [pytest.mark.releases, pytest.mark.timeout(3000)]

_DRIVER = ("tests.jobs.tables.driver", "delta")


def test_the_table_refuses_a_start_that_was_overtaken(bench: Bench) -> None:
    """In the middle of a commit, before a commit and in a rollback. The start does not know that it was overtaken."""
    from pyspark.sql import functions as f  # noqa: PLC0415

    rows = bench.spark.range(3).selectExpr("cast(id AS int) AS id", "cast(10 * id AS int) AS v")
    starts = Starts(bench.root, rows, lambda: DeltaSink(bench.root / "out"))
    old = starts.begun(1)
    old.write_batch(rows, 0)
    covered = starts.position(old, 1, 0)

    hold, held = bench.root / "hold", bench.root / "held"
    hold.touch()

    errors: list[Exception] = []

    def write() -> None:
        try:
            old.write_batch(rows.coalesce(1).withColumn("v", f.udf(waiting(bench.root), "int")("v")), 1)
        except Exception as error:
            errors.append(error)

    zombie = threading.Thread(target=write, daemon=True)
    zombie.start()
    eventually("its transaction is open", lambda: held.exists() or bool(errors))
    assert not errors, errors
    new = starts.begun(2, covered)
    new.write_batch(rows.limit(1), 1)
    newest = version(bench)
    hold.unlink()
    zombie.join()
    assert "CONCURRENT_TRANSACTION" in str(errors[0]).upper() or "ConcurrentTransaction" in str(errors[0])

    for overtaken in (
        lambda: old.write_batch(rows, 2),
        lambda: old.rollback_to(covered, bench.root, 1),
        lambda: starts.begun(1),
    ):
        with pytest.raises(SinkMismatch, match="claimed by epoch 2"):
            overtaken()
    assert version(bench) == newest
    new.write_batch(rows.limit(1), 2)
    assert sum(seen(bench).values()) == 3 + 1 + 1


@pytest.mark.exhaustive
@pytest.mark.parametrize("step", ["rows", "before", "after"])
def test_a_zombie_that_wakes_in_its_commit_changes_nothing(bench: Bench, step: str) -> None:
    a_zombie_wakes_in_its_commit(bench, "delta", step, version, seen)


@pytest.mark.exhaustive
def test_a_zombie_of_before_a_repartition_changes_nothing(bench: Bench) -> None:
    a_zombie_wakes_in_its_commit(bench, "delta", "rows", version, seen, "state_partitions=5")
    (job_id,) = CheckpointCatalog(bench.filesystem, JOB).job_ids()
    completed, _ = CheckpointCatalog(bench.filesystem, JOB).completed(job_id)
    assert {checkpoint.facts.partitions for checkpoint in completed} == {2, 5}


@pytest.mark.exhaustive
def test_the_table_is_exact_after_kills_at_random_moments(bench: Bench) -> None:
    drivers_are_killed_at_random_moments(bench, "delta", seen)
