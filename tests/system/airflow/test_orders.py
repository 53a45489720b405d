"""The example for Airflow under a real ``airflow standalone``: run by `make test-airflow`."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import psutil
import pyarrow.parquet as pq
import pytest

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.control.epochs import Choice
from dagster_ckpt.checkpoint.control.heartbeat import Heartbeat
from dagster_ckpt.filesystem import PosixFileSystem
from dagster_ckpt.spark.files.checkpoint_location import CheckpointLocation
from dagster_ckpt.spark.sinks.spark_sink_log import FileSink
from dagster_ckpt.testing.dagster_dev import wait_for
from tests.system.airflow.standalone import PATIENCE, Airflow, airflow, end

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(1800)]

_COLUMNS = ["id", "shop", "cents"]


class Orders:
    """The job of the example, its input and its output; the README's commands have landed the first file."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self._landed = 0

    @property
    def catalog(self) -> CheckpointCatalog:
        return CheckpointCatalog(PosixFileSystem(self.data / "checkpoints"), "orders")

    def land(self, files: int) -> None:
        """Add files of orders; three of the ten in each file come again in the next one."""
        for number in range(self._landed, self._landed + files):
            rows = [
                {"id": key, "shop": f"shop {key % 3}", "cents": key * 7} for key in range(7 * number, 7 * number + 10)
            ]
            hidden = self.data / "landed" / f".{number:04}.json"
            hidden.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
            hidden.rename(hidden.with_name(f"{number:04}.json"))
        self._landed += files

    def expected(self) -> Counter[tuple[object, ...]]:
        """The same by a computation over all files at once."""
        landed = sorted((self.data / "landed").glob("[0-9]*.json"), key=lambda file: file.stat().st_mtime_ns)
        files = [pd.read_json(file, lines=True) for file in landed]
        return Counter(pd.concat(files).drop_duplicates("id")[_COLUMNS].itertuples(index=False, name=None))

    def written(self) -> Counter[tuple[object, ...]]:
        files = FileSink(self.data / "orders").committed_files()
        rows = [row for file in files for row in pq.read_table(file, partitioning=None).to_pylist()]
        return Counter(tuple(row[column] for column in _COLUMNS) for row in rows)

    def driver(self, *, above: int = 0) -> Heartbeat:
        """The heartbeat of a living driver, which holds an epoch above the given one."""

        def alive() -> Heartbeat | None:
            beat = self.catalog.records.heartbeat.read()
            is_there = beat is not None and beat.epoch > above and not beat.stopped
            return beat if beat is not None and is_there and beat.processes[0].is_alive() else None

        return wait_for(alive, f"a driver above epoch {above}", seconds=PATIENCE)

    def live(self) -> CheckpointLocation:
        chosen = self.catalog.choice()
        assert chosen is not None
        return CheckpointLocation(Path(chosen[1].live))

    def restored(self, epoch: int) -> str | None:
        """The checkpoint that an epoch goes on from, once the epoch has chosen."""

        def chosen() -> Choice | None:
            found = self.catalog.choice()
            return found[1] if found is not None and found[0] == epoch else None

        return wait_for(chosen, f"the choice of epoch {epoch}", seconds=PATIENCE).restored

    def checkpoints(self) -> list[str]:
        """The completed checkpoints of every lineage."""
        found = [self.catalog.completed(job_id)[0] for job_id in self.catalog.job_ids()]
        return [metadata.reference for completed in found for metadata in completed]

    def read_all(self) -> None:
        """Wait until everything landed is in the sink, and until a checkpoint has the last batch."""
        wait_for(lambda: self.written() == self.expected(), "all files are read", seconds=PATIENCE, poll=0.5)

        def is_saved() -> bool:
            newest = [self.catalog.resolve(name).batch for name in self.checkpoints()]
            return max(newest, default=-1) == self.live().last_committed()

        wait_for(is_saved, "a checkpoint of the last batch", seconds=PATIENCE, poll=0.5)

    def command(self, *arguments: str) -> None:
        path = ("--path", str(self.data / "checkpoints"))
        subprocess.run([sys.executable, "-m", "dagster_ckpt.cli", *arguments, *path], check=True)


@pytest.fixture(scope="module")
def under_airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Airflow, Orders]]:
    root = tmp_path_factory.mktemp("airflow")
    with airflow(root) as started:
        yield started, Orders(started.data)


def same(what: Callable[[], object], wanted: Callable[[], object], name: str) -> None:
    wait_for(lambda: what() == wanted(), name, seconds=PATIENCE, poll=1)


def test_a_lost_try_goes_on_from_a_checkpoint_and_each_checkpoint_is_verified_once(
    under_airflow: tuple[Airflow, Orders],
) -> None:
    airflow, orders = under_airflow
    orders.land(3)
    run = airflow.trigger("orders")
    first = orders.driver()
    orders.read_all()
    tries = airflow.until(run, "running")

    # The command and its driver are killed in the middle of a batch, and the live location is lost.
    orders.land(12)
    live, driver = orders.live(), psutil.Process(first.processes[0].pid)
    command = driver.parent()
    assert command is not None
    wait_for(lambda: live.planned() is not None, "a batch is in flight", seconds=PATIENCE, poll=0.005)
    command.kill()
    driver.kill()
    assert live.planned() is not None, "the batch was committed before the driver was dead"
    shutil.rmtree(orders.data / "live")
    newest = max(orders.checkpoints(), key=lambda name: orders.catalog.resolve(name).batch)
    second = orders.driver(above=first.epoch)
    assert orders.restored(second.epoch) == newest
    orders.read_all()
    tries = airflow.until(run, "running", above=tries)

    # The process of the task is killed: its driver goes on, and the next try attends it.
    airflow.kill_task(run)
    airflow.until_attended(run, above=tries)
    orders.land(3)
    orders.read_all()
    third = orders.driver()
    assert (third.epoch, third.processes[0]) == (second.epoch, second.processes[0])

    # The triggerer is killed: another one goes on with the asset's state store.
    all_are_remembered(airflow, orders)
    (triggerer,) = [
        process
        for process in psutil.Process(airflow.standalone.pid).children()
        if process.cmdline()[-1:] == ["triggerer"]
    ]
    end(triggerer)
    airflow.call("triggerer")
    before = set(airflow.events())
    orders.land(3)
    orders.read_all()
    wait_for(lambda: set(airflow.events()) > before, "the next checkpoint fires", seconds=PATIENCE, poll=1)

    orders.command("stop", "orders")
    airflow.until(run, "success")
    assert orders.written() == orders.expected()
    all_are_verified_once(airflow, orders)


def all_are_remembered(airflow: Airflow, orders: Orders) -> None:
    """From here on a triggerer may end, and nothing fires again."""
    same(lambda: sorted(airflow.remembered()), lambda: sorted(orders.checkpoints()), "all has fired")


def all_are_verified_once(airflow: Airflow, orders: Orders) -> None:
    """Each checkpoint has fired once, and what Airflow has handed on is verified."""
    same(lambda: set(orders.checkpoints()) - set(airflow.events()), set, "every checkpoint fires")

    def handed() -> Counter[str]:
        return Counter(name for name, runs in airflow.events().items() if any(runs))

    same(airflow.verified, lambda: (handed(), {"success"}), "what Airflow has handed on is verified")
    events = airflow.events()
    assert {name: runs for name, runs in events.items() if len(runs) != 1} == {}
    in_order = [run for runs in events.values() for run in runs]
    assert in_order == sorted(in_order, reverse=True), "an event was left out"
    assert sum(in_order) > len(in_order) / 2


def test_a_task_that_is_cleared_or_marked_as_failed_cancels_its_job(under_airflow: tuple[Airflow, Orders]) -> None:
    airflow, orders = under_airflow
    epochs = orders.catalog.records.epochs
    before = epochs.highest()

    def canceled(epoch: int) -> bool:
        ended = epochs.read_end(epoch)
        return ended is not None and ended.status == "CANCELED"

    run = airflow.trigger("orders")
    first = orders.driver(above=before)
    orders.land(2)
    orders.read_all()
    clear = {"dry_run": False, "task_ids": ["stream"], "dag_run_id": run, "only_failed": False, "only_running": False}
    airflow.ask("POST", "dags/orders/clearTaskInstances", json=clear)
    second = orders.driver(above=first.epoch)
    assert canceled(first.epoch)
    assert not first.processes[0].is_alive()
    airflow.until(run, "running")
    orders.land(2)
    orders.read_all()

    airflow.ask("PATCH", f"dags/orders/dagRuns/{run}/taskInstances/stream", json={"new_state": "failed"})
    wait_for(lambda: canceled(second.epoch), "the job is canceled", seconds=PATIENCE)
    wait_for(lambda: not second.processes[0].is_alive(), "the driver ends", seconds=PATIENCE)
    assert airflow.task(run)["state"] == "failed"
    assert orders.checkpoints(), "the job's cleanup keeps checkpoints"

    airflow.ask("POST", "dags/orders/clearTaskInstances", json=clear)
    orders.driver(above=second.epoch)
    orders.land(2)
    orders.read_all()
    orders.command("stop", "orders")
    airflow.until(run, "success")
    assert orders.written() == orders.expected()


def test_a_stop_of_airflow_leaves_the_driver_alone(under_airflow: tuple[Airflow, Orders]) -> None:
    airflow, orders = under_airflow
    before = orders.catalog.records.epochs.highest()
    run = airflow.trigger("orders")
    first = orders.driver(above=before)
    tries = airflow.until(run, "running")
    orders.land(2)
    orders.read_all()
    all_are_remembered(airflow, orders)
    airflow.interrupt()
    orders.land(2)
    orders.read_all()
    airflow.start()
    tries = airflow.until_attended(run, above=tries)
    assert orders.driver().processes[0] == first.processes[0]

    # It ends while no try attends it: Airflow starts no task of a DAG that is paused.
    airflow.ask("PATCH", "dags/orders", json={"is_paused": True})
    airflow.kill_task(run)
    orders.command("stop", "orders")
    wait_for(lambda: not first.processes[0].is_alive(), "the driver ends", seconds=PATIENCE)
    airflow.ask("PATCH", "dags/orders", json={"is_paused": False})
    tries = airflow.until(run, "success", above=tries)
    assert "This try attends it" not in airflow.said(run, tries)
    assert orders.catalog.records.epochs.highest() == first.epoch, "nothing was started again"
    assert orders.written() == orders.expected()
    all_are_verified_once(airflow, orders)
