"""The pages: every block of Python is run as it stands there, by the function named beside its heading below.

Paths below ``/data/`` become those of the test. A block that is new, or under another heading, has no test yet and
fails until it is given one. No page is too long, and no page names a file that is not there.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

import click
import dagster as dg
import pyarrow.dataset as ds
import pytest
import yaml
from click.testing import CliRunner

import dagster_ckpt
from dagster_ckpt import errors
from dagster_ckpt.checkpoint.control.job_records import JobRecords
from dagster_ckpt.checkpoint.submissions import Submission
from dagster_ckpt.cli import main
from dagster_ckpt.clock import SystemClock
from dagster_ckpt.config.checkpoint_config import JobStatus
from dagster_ckpt.datastream import StreamExecutionEnvironment
from dagster_ckpt.filesystem.memory import MemoryFileSystem
from dagster_ckpt.orchestration import names
from dagster_ckpt.orchestration.events import JobEvents, requests
from dagster_ckpt.orchestration.reporting import metadata, reporter
from dagster_ckpt.orchestration.savepoints import savepoint_asset
from dagster_ckpt.orchestration.storages import FileSystemCheckpointStorage
from dagster_ckpt.spark.events import CheckpointFailed, CheckpointReplaced, Started
from dagster_ckpt.spark.jvm import local_files_conf
from dagster_ckpt.spark.jvm.class_archive import CACHE_VARIABLE, archive_for
from dagster_ckpt.spark.jvm.launching import OPTIONS_VARIABLE
from dagster_ckpt.standalone import pipes
from dagster_ckpt.standalone.pipes import opened_pipes
from dagster_ckpt.standalone.submitted import submitted_drive
from dagster_ckpt.testing.filesystem_contract import FileSystemContract
from dagster_ckpt.testing.maven import classpath
from tests.helpers.checkpoint.submitting import submitted
from tests.helpers.local_spark import JVM_OPTIONS, delta_conf, iceberg_conf
from tests.helpers.orchestration.stored_job import StoredJob, make_asset, run_id
from tests.jobs.harness import Bench, Row, copied, deduplicated, eventually
from tests.jobs.kafka.topics import TopicBench
from tests.jobs.tables.iceberg import configure, current
from tests.servers.certificate import certificate
from tests.servers.messages import MailServer, Webhook
from tests.servers.postgres import rows as table_rows
from tests.servers.postgres import running
from tools import docs_site

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_ROOT = next(above for above in Path(__file__).resolve().parents if (above / "pyproject.toml").is_file())
_PAGES = ("README.md", *sorted(page.relative_to(_ROOT).as_posix() for page in (_ROOT / "docs").rglob("*.md")))
#: Tables to look things up in.
_LONG = {"docs/reference/parity.md", "docs/reference/rollback-matrix.md"}


@dataclass(frozen=True)
class Block:
    """A block of Python: its page, the heading above it, and its place in the page."""

    page: str
    heading: str
    line: int
    code: str

    def run(self, data: Path, **names: Any) -> dict[str, Any]:
        """Run it; returns the names it defines."""
        namespace: dict[str, Any] = {"__name__": "a_page", **names}
        padded = "\n" * self.line + self.code.replace("/data/", f"{data}/")
        exec(compile(padded, self.page, "exec"), namespace)
        return namespace


def blocks(page: str, text: str) -> Iterator[Block]:
    """The blocks of Python of a page."""
    heading, began = "", 0
    code: list[str] | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        if code is not None and line.strip() == "```":
            yield Block(page, heading, began, dedent("\n".join(code) + "\n"))
            code = None
        elif code is not None:
            code.append(line)
        elif line.strip().startswith("```python"):
            code, began = [], number
        elif line.startswith("#"):
            heading = line.lstrip("#").strip()
    assert code is None, f"the block of line {began} of {page} has no end"


def _of_page(page: str) -> list[Block]:
    return list(blocks(page, (_ROOT / page).read_text(encoding="utf-8")))


# --- sinks ------------------------------------------------------------------------------------------------------------

Rows: TypeAlias = "Callable[[], Counter[Row]]"


def exact_through_a_life(bench: Bench, namespace: dict[str, Any], asset: str, rows: Rows) -> None:
    """A job that writes to a sink of a page: after a crash that leaves only the storage, and after a rollback."""

    def query(bench: Bench, session: SparkSession) -> DataStreamWriter:
        writer: DataStreamWriter = namespace[asset](None, session)
        return writer.trigger(availableNow=True) if bench.until_done else writer

    def expected() -> Counter[Row]:
        return replace(bench, query=copied).expected()

    bench.query = query
    bench.tick(1)
    bench.tick(1)
    assert rows() == expected()
    assert sum(expected().values()) == 16

    bench.until_done = False
    crashed = bench.launch()
    eventually("the query starts", lambda: bool(crashed.of(Started)), unless=crashed.check)
    bench.land(1)
    eventually("the file is read", lambda: _committed(bench) == 2, unless=crashed.check)
    crashed.run.cancel()
    crashed.result()
    assert not crashed.completed
    shutil.rmtree(bench.working)
    bench.until_done = True
    after = bench.tick(1)
    assert after.started.restored is not None
    assert after.started.restored.batch == 1
    assert rows() == expected()

    back = bench.tick(1, restore_from="chk-1")
    assert back.started.sink, "the sink was set back"
    assert back.completed[-1].batch == 1, "four files in one batch, whose number another batch had before"
    assert rows() == expected()
    assert sum(expected().values()) == 40


def _committed(bench: Bench) -> int:
    return max((int(path.name) for path in (bench.live() / "commits").glob("[0-9]*")), default=-1)


def transactional_files(block: Block, bench: Bench, data: Path) -> None:
    def rows() -> Counter[Row]:
        table = ds.dataset(data / "delays", partitioning="hive").to_table(columns=["id", "v"]).to_pylist()
        return Counter((row["id"], row["v"]) for row in table)

    exact_through_a_life(bench, block.run(data), "delays", rows)
    assert (data / "delays" / "day=1").is_dir()


def foreach_batch(block: Block, bench: Bench, data: Path) -> None:
    """With the database that Spark brings along."""
    java: Any = bench.spark._jvm
    java.java.lang.System.setProperty("derby.stream.error.file", str(data / "derby.log"))
    url = f"jdbc:derby:{data / 'derby'};create=true"

    def execute(statement: str) -> None:
        connection = java.java.sql.DriverManager.getConnection(url)
        try:
            connection.createStatement().execute(statement)
        finally:
            connection.close()

    def rows() -> Counter[Row]:
        return Counter(tuple(row) for row in bench.spark.read.jdbc(url, "delays").select("ID", "V").collect())

    execute("CREATE TABLE delays (batch INT, id INT, v INT)")
    exact_through_a_life(bench, block.run(data, url=url, execute=execute), "delays", rows)


def delta_table(block: Block, bench: Bench, data: Path) -> None:
    import deltalake  # noqa: PLC0415 - needed only where Delta is

    def rows() -> Counter[Row]:
        table = deltalake.DeltaTable(str(data / "delays"))
        assert table.metadata().partition_columns == ["day"]
        return Counter((row["id"], row["v"]) for row in table.to_pyarrow_table().to_pylist())

    exact_through_a_life(bench, block.run(data), "delays", rows)


def iceberg_table(block: Block, bench: Bench, data: Path) -> None:
    warehouse = data / "lake"
    configure(bench.spark, "lake", warehouse)
    bench.spark.sql("CREATE NAMESPACE lake.flights")

    def rows() -> Counter[Row]:
        table = current(warehouse)
        assert len(table.spec().fields) == 1
        return Counter((row["id"], row["v"]) for row in table.scan().to_arrow().to_pylist())

    exact_through_a_life(bench, block.run(data), "delays", rows)


def into_postgres(block: Block, bench: Bench, data: Path) -> None:
    with running() as server:
        reach = server.database()
        for statement in re.findall(r"```sql\n(.*?)```", (_ROOT / block.page).read_text(encoding="utf-8"), re.DOTALL):
            table_rows(reach, statement)

        def rows() -> Counter[Row]:
            return Counter(table_rows(reach, "SELECT id, v FROM delays"))

        exact_through_a_life(bench, block.run(data, conninfo=reach), "delays", rows)
        ids = "SELECT count(*), count(DISTINCT id) FROM newest"
        assert table_rows(reach, ids)[0] == (len({row[0] for row in rows()}),) * 2


def from_kafka(block: Block, bench: Bench, data: Path) -> None:
    assert isinstance(bench, TopicBench)
    bench.topic = "flights"
    bench.kafka.create(bench.topic, bench.partitions)
    delays = block.run(data, servers=bench.kafka.address)["delays"]
    job = bench.job(query=lambda _, session: delays(None, session).trigger(availableNow=True))
    bench.tick(1, job)
    bench.tick(1, job)
    bench.tick(1, job, restore_from="chk-1")
    rows = ds.dataset(sorted((data / "delays").glob("*.parquet"))).to_table().to_pylist()
    assert Counter((row["id"], row["v"]) for row in rows) == replace(bench, query=copied).expected()


def topic_from_elsewhere(block: Block, bench: Bench, data: Path) -> None:
    """After a run from the beginning; again with the same words, which moves nothing."""
    assert isinstance(bench, TopicBench)
    last, sink = ', start_sources={"arrivals": {"0": 17}}, allow_loss=True', 'TransactionalFileSink("/data/delays"))'
    assert block.code.count(last) == block.code.count(sink) == 1
    bench.kafka.create("arrivals")
    bench.kafka.send("arrivals", map(str, range(10)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dagster_ckpt.spark.start_session", lambda *_, **__: bench.spark)  # there can be one in a process
        code = block.code.replace(sink, f"{sink}.trigger(availableNow=True)")
        replace(block, code=code.replace(last, "")).run(data, servers=bench.kafka.address)
        bench.kafka.send("arrivals", map(str, range(10, 20)))
        for _ in range(2):
            replace(block, code=code).run(data, servers=bench.kafka.address)
    rows = ds.dataset(sorted((data / "delays").glob("*.parquet"))).to_table().to_pylist()
    assert sorted(int(row["flight"]) for row in rows) == [*range(10), 17, 18, 19]
    bench.kafka.delete("arrivals")


def into_kafka(block: Block, bench: Bench, data: Path) -> None:
    """A rollback repeats what was written after the checkpoint. The consumer that drops it reads two topics."""
    assert isinstance(bench, TopicBench)
    _, write, drop = _of_page(block.page)
    topics = ["delays", "more"] if block == drop else ["delays"]
    for topic in topics:
        bench.kafka.create(topic, 2)
    delays = _to_topics(write, topics).run(data, servers=bench.kafka.address)["delays"]
    files = Bench(bench.spark, bench.root, query=lambda _, session: delays(None, session).trigger(availableNow=True))
    files.tick(2)
    if block == drop:
        files.tick(2)
        files.tick(1, restore_from="chk-1")
    messages = {topic: list(bench.kafka.records(topic)) for topic in topics}
    expected = replace(files, query=copied).expected()
    is_new = drop.run(data)["is_new"]
    for topic in topics:
        bench.kafka.delete(topic)
        assert (len(messages[topic]) > sum(expected.values())) == (block == drop), "records that come again"
        values = [json.loads(message.value() or b"") for message in messages[topic] if is_new(message)]
        assert Counter((value["id"], value["v"]) for value in values) == expected, topic


def _to_topics(write: Block, topics: list[str]) -> Block:
    """The block with a function that writes each batch to several topics."""
    if len(topics) == 1:
        return write
    one, last = "    numbered.write", '"topic", "delays")'
    assert write.code.count(one) == write.code.count(last) == 1
    code = write.code.replace(one, f"    for topic in {topics}: numbered.write").replace(last, '"topic", topic)')
    return replace(write, code=code)


def a_query_that_moves(block: Block, bench: Bench, data: Path) -> None:
    """Spark alone, the job, and Spark alone again: a new file each time, and every row once."""

    def run_alone(each: Block) -> None:
        bench.land(1)
        query = each.run(data, spark=bench.spark)["query"]
        try:
            query.processAllAvailable()
        finally:
            query.stop()
        assert bench.in_sink_log() == bench.in_raw_directory() == bench.expected()

    move_in, move_out = _of_page(block.page)
    before = replace(move_out, code=move_out.code.replace("/data/new-checkpoint", "/data/old-checkpoint"))
    bench = replace(bench, query=deduplicated)
    (bench.root / "out").symlink_to(data / "orders")
    run_alone(before)
    if block == move_in:
        orders = block.run(data)["orders"]
        job = bench.job(query=lambda _, session: orders(None, session).trigger(availableNow=True))
        bench.tick(1, job, fork_from=str(data / "old-checkpoint"))
        assert bench.in_sink_log() == bench.in_raw_directory() == bench.expected()
        to = str(data / "new-checkpoint")
        done = CliRunner().invoke(main, ["export", bench.name, "--path", str(bench.storage), "--to", to])
        assert done.exit_code == 0, done.output
        assert f'.option("checkpointLocation", "file:{to}")' in done.stderr
        run_alone(replace(move_out, code=_state_format(done.stderr) + move_out.code))


def _state_format(told: str) -> str:
    """The setting that an export asks for, as a line of code."""
    return "".join(f"{line.strip()}\n" for line in told.splitlines() if line.strip().startswith("spark.conf.set"))


def a_data_source(block: Block, bench: Bench, data: Path) -> None:
    def rows() -> Counter[Row]:
        table = bench.spark.read.schema("id INT, v INT").json(str(data / "orders")).collect()
        return Counter(tuple(row) for row in table)

    exact_through_a_life(bench, block.run(data), "orders", rows)


# --- jobs -----------------------------------------------------------------------------------------------------------

_ENDS = '.option("path", "/data/turnover")'


def ending(block: Block) -> Block:
    """The block with a query that ends when all files are read, as a schedule would have it."""
    assert block.code.count(_ENDS) == 1
    return replace(block, code=block.code.replace(_ENDS, f"{_ENDS}.trigger(availableNow=True)"))


def land_orders(data: Path) -> None:
    """Two orders of one hour, the first of them twice, and then one of the day after, which closes the hour."""
    lines = [
        {"at": "2026-03-01T10:05:00Z", "shop": "north", "cents": 250},
        {"at": "2026-03-01T10:05:00Z", "shop": "north", "cents": 250},
        {"at": "2026-03-01T10:55:00Z", "shop": "north", "cents": 400},
        {"at": "2026-03-02T10:00:00Z", "shop": "south", "cents": 100},
    ]
    (data / "orders").mkdir()
    (data / "orders" / "1.json").write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def the_first_example(block: Block, bench: Bench, data: Path) -> None:
    """Its job under Dagster: it writes the closed hour and leaves a checkpoint."""
    land_orders(data)
    definitions = ending(block).run(data)["defs"]
    with pytest.MonkeyPatch.context() as patch, dg.DagsterInstance.ephemeral() as instance:
        patch.setattr("dagster_ckpt.spark.start_session", lambda *_, **__: bench.spark)  # there can be one in a process
        assert definitions.resolve_job_def("turnover_job").execute_in_process(instance=instance).success
    (row,) = bench.spark.read.parquet(str(data / "turnover")).collect()
    assert (row["shop"], row["cents"], row["window"].start.hour) == ("north", 900, 10)
    assert list((data / "checkpoints" / "turnover").glob("*/chk-1/_metadata"))


def landing(block: Block, bench: Bench, data: Path) -> None:
    del bench
    block.run(data)["land"](7)
    lines = (data / "orders" / "07.json").read_text().splitlines()
    assert len(lines) == 100
    assert json.loads(lines[1]) == {"at": "2026-03-01T07:01:00Z", "shop": "south", "cents": 1}


def the_job_of_the_tutorial(block: Block, bench: Bench, data: Path) -> None:
    """What the block above it lands becomes the sums of the hours that are over."""
    land = _of_page(block.page)[0].run(data)["land"]
    for hour in range(3):
        land(hour)
    definitions = ending(block).run(data)["defs"]
    with pytest.MonkeyPatch.context() as patch, dg.DagsterInstance.ephemeral() as instance:
        patch.setattr("dagster_ckpt.spark.start_session", lambda *_, **__: bench.spark)  # there can be one in a process
        assert definitions.resolve_job_def("turnover_job").execute_in_process(instance=instance).success
    rows = bench.spark.read.parquet(str(data / "turnover")).collect()
    assert sorted((row["window"].start.hour, row["shop"], row["cents"]) for row in rows) == [
        (0, "north", 2450),
        (0, "south", 2500),
        (1, "north", 2450),
        (1, "south", 2500),
    ]


def flinks_keys(block: Block, bench: Bench, data: Path) -> None:
    del bench
    keys = {"execution.checkpointing.dir": f"file://{data}/checkpoints", "execution.checkpointing.interval": "7 s"}
    (data / "flink.yaml").write_text(json.dumps(keys))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(data)
        defined = block.run(data)
    assert isinstance(defined["turnover"], dagster_ckpt.CheckpointedStreamingAsset)
    assert defined["turnover"].config.interval == timedelta(seconds=7)
    assert isinstance(defined["storage"], dagster_ckpt.FileSystemCheckpointStorage)


def a_state_backend(block: Block, bench: Bench, data: Path) -> None:
    """A query whose state is kept as the block says."""
    asset = block.run(data)["turnover"]
    bench.land(2)
    job = replace(bench.job(), state_backend=asset.state_backend)
    assert bench.launch(job).result().status is JobStatus.FINISHED
    bench.assert_exact()
    conf = asset.state_backend.spark_conf()
    assert "64" in [value for key, value in conf.items() if key.endswith(".blockCacheSizeMB")]


def an_archive_that_is_there(block: Block, bench: Bench, data: Path) -> None:
    """It waits for the archive that is kept for the `conf`; `tests/jobs/starting/test_cold_start.py` has one made."""
    del bench
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_VARIABLE, str(data / "cache"))
        patch.setenv(OPTIONS_VARIABLE, JVM_OPTIONS)  # without the archive of the tests
        archive = archive_for({})
        assert archive is not None
        archive.path.write_bytes(b"classes")
        archive.path.chmod(0o600)
        archive.seal()
        block.run(data)
        assert archive.is_whole()


def hadoops_own_files(block: Block, bench: Bench, data: Path) -> None:
    """The conf decides; tests/jobs/starting/test_local_files.py has a session of each kind."""
    assert bench.spark is not None
    spark = block.run(data)["spark"]
    assert local_files_conf(bench.spark._jvm, {"spark.master": spark.master}) != {}
    assert local_files_conf(bench.spark._jvm, {"spark.master": spark.master, **spark.conf}) == {}


def a_standby(block: Block, bench: Bench, data: Path) -> None:
    """A process that has a JVM, as that of the tests has, adopts none: tests/jobs/starting/test_standby.py does."""
    assert bench.spark is not None
    spark = block.run(data)["spark"]
    assert spark.standby == 1
    assert dagster_ckpt.SparkSessionResource().standby == 0
    assert not spark.start_jvm("job")


def a_whole_standby(block: Block, bench: Bench, data: Path) -> None:
    """Without a run to wait beside it ends at once; tests/system/orchestration/test_whole_standby.py takes over."""
    asset = block.run(data)["delays"]
    resources = {
        "checkpoint_storage": dagster_ckpt.FileSystemCheckpointStorage(checkpoint_path=str(bench.root / "checkpoints")),
        "spark": dagster_ckpt.SparkSessionResource(),
    }
    definitions = dagster_ckpt.build_checkpoint_definitions([asset], resources)
    with dg.DagsterInstance.ephemeral() as instance:
        done = definitions.resolve_job_def(asset.standby.name).execute_in_process(instance=instance)
    assert done.success
    assert done.get_asset_materialization_events() == []


def a_start_as_it_was(block: Block, bench: Bench, data: Path) -> None:
    """No JVM beside the claim, and no archive; by default there is one. The asset's observation tells the steps."""
    cache = data / "cache"
    bench.land(1)

    @dagster_ckpt.checkpointed_streaming_asset()
    def turnover(context: dg.AssetExecutionContext, spark: SparkSession) -> DataStreamWriter:
        return copied(bench, spark)

    def steps(spark: dagster_ckpt.SparkSessionResource) -> dict[str, Any]:
        resources = {
            "spark": spark,
            "checkpoint_storage": FileSystemCheckpointStorage(checkpoint_path=str(data / "kept")),
        }
        with dg.DagsterInstance.ephemeral() as instance:
            assert dg.materialize([turnover], resources=resources, instance=instance).success
            (told,) = instance.fetch_observations(dg.AssetKey("turnover"), limit=9).records
        assert told.asset_observation is not None
        return {key: figure.value for key, figure in told.asset_observation.metadata.items()}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dagster_ckpt.spark.start_session", lambda *_, **__: bench.spark)  # there can be one in a process
        patch.setenv(CACHE_VARIABLE, str(cache))
        before = steps(block.run(data)["spark"])
        assert not cache.exists()
        patch.setenv(CACHE_VARIABLE, "")
        bench.land(1)
        now = steps(dagster_ckpt.SparkSessionResource())
    assert before.keys() > {"start_process_seconds", "start_imports_seconds", "start_session_seconds"}
    assert before.keys() ^ now.keys() == {"start_JVM_seconds", "start_unpack_seconds"}
    for figures in (before, now):
        figures.pop("epoch")
        total = figures.pop("start_seconds")
        assert total > figures["start_first_batch_seconds"] > 0
        assert all(0 <= seconds <= total for seconds in figures.values())


def in_pyflinks_spelling(block: Block, bench: Bench, data: Path) -> None:
    """It runs its query, which writes each order once."""
    land_orders(data)
    ending(block).run(data)
    rows = bench.spark.read.parquet(str(data / "turnover")).collect()
    assert sorted(row["cents"] for row in rows) == [100, 250, 400]
    (end,) = (data / "checkpoints" / "turnover" / "control").rglob("*.end")
    assert json.loads(end.read_text())["status"] == "FINISHED"


def a_submitted_driver(block: Block, bench: Bench, data: Path) -> None:
    """The driver of the page's definitions, as ``spark-submit`` starts it, takes its order and drives the job."""
    land_orders(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dagster_ckpt.spark.start_session", lambda *_, **__: bench.spark)  # there can be one in a process
        patch.setattr(pipes, "_PATIENCE", 240.0)  # for a busy machine
        defs = ending(block).run(data)["defs"]
        spark = defs.resources["spark"]
        run = "a" * 32
        command = spark.command("turnover", run)
        assert command[-4:] == ["dagster_ckpt.standalone.submitted", "shop.definitions:defs", "turnover", run]
        records = defs.resources["checkpoint_storage"].catalog("turnover").records
        submitted(records, Submission(run, 0, None, "{}", 0.0))
        assert submitted_drive(defs, spark.definitions, "turnover", run).run().status is JobStatus.FINISHED
        assert len(bench.spark.read.parquet(str(data / "turnover")).collect()) == 3
    said = [json.loads(message) for message in records.messages(1).new()]
    assert [said[0]["method"], said[-1]["method"]] == ["opened", "closed"]
    lines = [each["params"]["message"] for each in said if each["method"] == "log"]
    assert [line for line in lines if line.startswith("Preflight: ")], "as in the log of any run"


def by_pipes(block: Block, bench: Bench, data: Path) -> None:
    """The message of the page is stored for the run that attends."""
    del bench
    records = JobRecords(MemoryFileSystem(), "turnover")
    with opened_pipes(records.messages(1), dg.AssetKey("turnover"), "a" * 32, in_bucket=False):
        block.run(data)
    (said,) = (each for each in map(json.loads, records.messages(1).new()) if each["method"] == "report_asset_check")
    assert (said["params"]["asset_key"], said["params"]["check_name"]) == ("turnover", "shops_are_known")


def a_driver_on_yarn(block: Block, bench: Bench, data: Path) -> None:
    """YARN starts the driver once, and the driver has the environment of the page."""
    del bench
    command = block.run(data, ckpt=dagster_ckpt)["spark"].command("turnover", "a" * 32)
    assert command[1:5] == ["--master", "yarn", "--deploy-mode", "cluster"]
    assert {"spark.yarn.maxAppAttempts=1", "spark.yarn.appMasterEnv.SHOP_REGION=north"} <= set(command)


def on_kubernetes(block: Block, bench: Bench, data: Path) -> None:
    """The driver tells its executors its own pod, which is the one that the environment names."""
    del bench
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POD_NAME", "dagster-run-1")
        patch.setenv("POD_IP", "10.0.0.7")
        defined = block.run(data)
    told = defined["spark"].conf
    assert (told["spark.kubernetes.driver.pod.name"], told["spark.driver.host"]) == ("dagster-run-1", "10.0.0.7")
    assert defined["storage"].live_location is dagster_ckpt.LiveLocationPlace.STORAGE


def in_a_pod_of_its_own(block: Block, bench: Bench, data: Path) -> None:
    """What Spark makes of such a submission is looked at in tests/system/cluster."""
    del bench
    told = block.run(data)["spark"].command("turnover", "run")
    assert "spark.kubernetes.container.image=registry.example/shop:1" in told
    assert told[told.index("--class") + 2].startswith("local:///opt/spark/jars/spark-launcher_")


def lineage(block: Block, bench: Bench, data: Path) -> None:
    """In a process of its own, whose Spark starts with the listener; the listener's jar is fetched once, by Ivy."""
    del bench
    land_orders(data)
    jar = classpath(data, "io.openlineage", "openlineage-spark_2.13", "1.53.0")
    package = '"spark.jars.packages": "io.openlineage:openlineage-spark_2.13:1.53.0"'
    assert block.code.count(package) == 1
    code = ending(block).code.replace(package, f'"spark.jars": "{jar}"').replace("/data/", f"{data}/")
    (data / "shop.py").write_text(code)
    (home := data / "dagster_home").mkdir()
    subprocess.run(
        [sys.executable, "-m", "dagster", "job", "execute", "-f", str(data / "shop.py"), "-j", "turnover_job"],
        env={**os.environ, "DAGSTER_HOME": str(home)},
        cwd=data,
        check=True,
    )
    assert list((data / "checkpoints" / "turnover").glob("*/chk-1/_metadata"))
    with dg.DagsterInstance.from_config(str(home)) as instance:
        (run,) = instance.get_runs()
    events = [json.loads(line) for line in (data / "lineage.jsonl").read_text().splitlines()]
    query = [event for event in events if event["job"]["name"].startswith("turnover.")]
    assert {event["eventType"] for event in query} == {"START", "RUNNING", "COMPLETE"}
    for event in events:
        parent = event["run"]["facets"]["parent"]
        assert event["job"]["namespace"] == "shop"
        assert parent["root"]["run"]["runId"] == run.run_id
        assert parent["job"]["name"] == ("turnover" if event in query else "turnover_job")
    for event in query:
        assert event["job"]["facets"]["jobType"]["processingType"] == "STREAMING"
        assert [item["name"] for item in event["inputs"]] == [str(data / "orders" / "1.json")]
        assert event["outputs"] == [], "as the page says"


def without_dagster(block: Block, bench: Bench, data: Path) -> None:
    """The job of the first block, run by the second block."""
    land_orders(data)
    job, *_ = _of_page(block.page)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dagster_ckpt.spark.start_session", lambda *_, **__: bench.spark)  # there can be one in a process
        defined = ending(job).run(data)
        if block != job:
            defined = block.run(data, **{name: defined[name] for name in ("ckpt", "turnover", "resources")})
            assert defined["ended"].status is JobStatus.FINISHED
            assert len(bench.spark.read.parquet(str(data / "turnover")).collect()) == 3
            assert list((data / "checkpoints" / "turnover").glob("*/chk-1/_metadata"))


def blue_and_green(block: Block, bench: Bench, data: Path) -> None:
    """Both jobs of the first block; then the comparison of the second block, and the cut-over."""
    versions, comparison = _of_page(block.page)
    code = versions.code.replace('"/data/turnover"))', '"/data/turnover")).trigger(availableNow=True)')
    code = code.replace('"/data/turnover_green"))', '"/data/turnover_green")).trigger(availableNow=True)')
    assert code.count("availableNow") == 3
    defined = replace(versions, code=code).run(data)
    storage = FileSystemCheckpointStorage(
        checkpoint_path=str(data / "checkpoints"), working_directory=str(data / "live")
    )
    resources = {"checkpoint_storage": storage, "spark": dagster_ckpt.SparkSessionResource()}
    defs = dagster_ckpt.build_checkpoint_definitions([defined["turnover"], defined["turnover_green"]], resources)
    assert defs.resolve_job_def("turnover_rollback").name == "turnover_rollback"
    if block == versions:
        return
    (data / "orders").symlink_to(bench.source)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dagster_ckpt.spark.start_session", lambda *_, **__: bench.spark)  # there can be one in a process
        bench.land(1)
        dagster_ckpt.run(defined["turnover"], storage=storage)
        catalog = storage.catalog("turnover")
        point = catalog.pointer(catalog.completed(catalog.job_ids()[0])[0][-1])
        pinned = CliRunner().invoke(main, ["pin", "turnover", "latest", "--path", str(data / "checkpoints")])
        assert pinned.exit_code == 0, pinned.output
        bench.land(2)
        dagster_ckpt.run(defined["turnover"], storage=storage)
        dagster_ckpt.run(defined["turnover_green"], storage=storage, fork_from=point, replay_to="latest")
        found = comparison.run(data, ckpt=dagster_ckpt, spark=bench.spark, storage=storage)["found"]
        assert (found.first, found.last, found.rows) == (1, 2, 10)
        bench.land(1)
        dagster_ckpt.run(defined["turnover"], storage=storage, code_version="2")
    chosen = catalog.choice()
    assert chosen is not None
    assert (chosen[1].code.version, chosen[1].code.in_place_of) == ("2", "1")
    rows = ds.dataset(sorted((data / "turnover").glob("*.parquet"))).to_table().to_pylist()
    assert Counter((row["id"], row["v"]) for row in rows) == replace(bench, query=deduplicated).expected()


def another_number_of_partitions(block: Block, bench: Bench, data: Path) -> None:
    """After a run without the number: the state gets the new one, and the sink has each order once."""
    land_orders(data)
    one, last = 'TransactionalFileSink("/data/customers"))', ", state_partitions=7"
    assert block.code.count(one) == block.code.count(last) == 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dagster_ckpt.spark.start_session", lambda *_, **__: bench.spark)  # there can be one in a process
        code = block.code.replace(one, f"{one}.trigger(availableNow=True)")
        storage = replace(block, code=code.replace(last, "")).run(data)["storage"]
        (data / "orders" / "1.json").rename(data / "orders" / "2.json")  # seen before, under another name
        replace(block, code=code).run(data)
    completed, broken = storage.catalog("customers").completed(storage.catalog("customers").job_ids()[0])
    assert not broken
    assert [(item.kind, item.facts.partitions) for item in completed[-2:]] == [("rescale", 7), ("checkpoint", 7)]
    rows = ds.dataset(sorted((data / "customers").glob("*.parquet"))).to_table().to_pylist()
    assert sorted(row["cents"] for row in rows) == [100, 250, 400]


def keys_of_a_program(block: Block, bench: Bench, data: Path) -> None:
    """On an environment of its own, in the place of the one in the block before it."""
    del bench
    env = block.run(data, env=StreamExecutionEnvironment())["env"]
    assert (env.get_checkpoint_interval(), env.get_parallelism()) == (30_000, 8)


def an_alert(block: Block, bench: Bench, data: Path) -> None:
    """With a webhook and a mail server that listen, and a job that has ended FAILED."""
    del bench
    job = StoredJob(data / "checkpoints", "turnover")
    job.end(job.die(run_id()), "FAILED", "all restarts are used up")
    pem = certificate(data)
    with Webhook() as webhook, MailServer(pem, "starttls") as mail, pytest.MonkeyPatch.context() as variables:
        for name, value in {"SLACK_WEBHOOK": webhook.url, "MAIL_PASSWORD": "opens", "SSL_CERT_FILE": str(pem)}.items():
            variables.setenv(name, value)
        given = {"MAIL_HOST": "127.0.0.1", "MAIL_PORT": mail.port, "turnover": make_asset("turnover")}
        (sensor,) = block.run(data, **given)["alerts"].sensors
        with dg.DagsterInstance.ephemeral() as instance:
            resources = {"checkpoint_storage": job.storage}
            sensor.evaluate_tick(dg.build_sensor_context(instance=instance, resources=resources))
    told = [message["text"] for message in webhook.heard] + [str(message) for message in mail.mails]
    assert len(told) == 1
    assert "all restarts are used up" in told[0]


def an_event(block: Block, bench: Bench, data: Path) -> None:
    """With a job that fell back, and a sensor that looks twice."""
    del bench
    job = StoredJob(data / "checkpoints", "turnover")
    sensor = block.run(data, turnover=make_asset("turnover"))["what_goes_wrong"]
    key, clock, said = dg.AssetKey(["turnover"]), SystemClock(), io.StringIO()
    with dg.DagsterInstance.ephemeral() as instance, contextlib.redirect_stdout(said):
        events = JobEvents(instance, instance.report_runless_asset_event, key, job.catalog, clock)
        events.happened(CheckpointReplaced(f"{1:032x}/chk-7", "a file is gone"))
        events.happened(CheckpointFailed(8, "no space left", 1))
        first = sensor.evaluate_tick(dg.build_sensor_context(instance=instance))
        sensor.evaluate_tick(dg.build_sensor_context(instance=instance, cursor=first.cursor))
    (line,) = said.getvalue().splitlines()
    assert line.startswith("Fallback to an older checkpoint: ")
    assert "chk-7 is broken" in line


def a_schedule(block: Block, bench: Bench, data: Path) -> None:
    """Dagster takes it, and its run is the asset's."""
    del bench, data
    asset = make_asset("turnover")
    schedule = block.run(Path("/data"), turnover=asset)["nightly"]
    resources = {
        "checkpoint_storage": FileSystemCheckpointStorage(checkpoint_path="/data/c"),
        "spark": dagster_ckpt.SparkSessionResource(),
    }
    definitions = dg.Definitions.merge(
        dagster_ckpt.build_checkpoint_definitions([asset], resources), dg.Definitions(schedules=[schedule])
    )
    tick = (
        definitions.get_repository_def()
        .get_schedule_def("turnover_nightly_savepoints")
        .evaluate_tick(dg.build_schedule_context(scheduled_execution_time=datetime(2026, 3, 1, 3, tzinfo=UTC)))
    )
    (request,) = tick.run_requests or []
    config = request.run_config["ops"]["turnover_savepoints"]["config"]
    assert (config["series"], config["keep"], config["max_age"]) == ("nightly", 14, "30 d")


def an_upgrade(block: Block, bench: Bench, data: Path) -> None:
    """With an earlier function of the reader's."""
    del bench, data
    earlier = ModuleType("shop.earlier")
    vars(earlier)["turnover_1"] = lambda context, spark: None
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "shop", ModuleType("shop"))
        patch.setitem(sys.modules, "shop.earlier", earlier)
        asset = block.run(Path("/data"))["turnover"]
    assert (asset.versions.current, asset.versions.mode, asset.versions.timeout) == ("2", "savepoint", 600)
    assert list(asset.versions.previous) == ["1"]


def a_component(block: Block, bench: Bench, data: Path) -> None:
    """The job that the YAML of the page makes of the function: it writes the closed hour and leaves a checkpoint."""
    land_orders(data)
    package = data / "src" / "shop" / "defs" / "turnover"
    package.mkdir(parents=True)
    code = ending(block).code.replace("/data/", f"{data}/")
    (package / "query.py").write_text(code)
    text = (_ROOT / block.page).read_text(encoding="utf-8")
    (given,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    document = yaml.safe_load(given.replace("/data/", f"{data}/"))
    assert document["type"] == "dagster_ckpt.CheckpointedStreamComponent"
    with pytest.MonkeyPatch.context() as patch, dg.DagsterInstance.ephemeral() as instance:
        patch.syspath_prepend(str(data / "src"))
        patch.setattr("dagster_ckpt.spark.start_session", lambda *_, **__: bench.spark)  # there can be one in a process
        context = dg.ComponentTree.for_test().load_context
        kind = dagster_ckpt.CheckpointedStreamComponent
        definitions = kind.from_attributes_dict(attributes=document["attributes"], context=context).build_defs(context)
        assert definitions.resolve_job_def("turnover_job").execute_in_process(instance=instance).success
        for name in [name for name in sys.modules if name.partition(".")[0] == "shop"]:
            del sys.modules[name]
    (row,) = bench.spark.read.parquet(str(data / "turnover")).collect()
    assert (row["shop"], row["cents"], row["window"].start.hour) == ("north", 900, 10)
    assert list((data / "checkpoints" / "turnover").glob("*/chk-1/_metadata"))
    repository = definitions.get_repository_def()
    assert [schedule.name for schedule in repository.schedule_defs] == ["turnover_nightly_savepoints"]
    assert definitions.resolve_asset_graph().get(dg.AssetKey("turnover")).parent_keys == {dg.AssetKey("orders")}


def _run_the_first_example(bench: Bench, data: Path) -> dict[str, Any]:
    """The names of the first example, whose job has left a checkpoint."""
    (first,) = _of_page("README.md")
    the_first_example(first, bench, data)
    return ending(first).run(data)


def a_look_inside(block: Block, bench: Bench, data: Path) -> None:
    """The hour that is still open is in the state, and the closed one is not."""
    _run_the_first_example(bench, data)
    defined = block.run(data)
    assert defined["names"] == {0: "stateStoreSave"}
    assert [(row.shop, row.hours) for row in defined["shops"]] == [("south", 1)]


def an_asset_of_the_state(block: Block, bench: Bench, data: Path) -> None:
    """Merged with the definitions of the job, it shows the shop whose hour is open."""
    defined = _run_the_first_example(bench, data)
    resources = {"checkpoint_storage": defined["storage"], "spark": defined["spark"]}
    asset = block.run(data, turnover=defined["turnover"])["open_hours"]
    definitions = dg.Definitions.merge(
        dagster_ckpt.build_checkpoint_definitions([defined["turnover"]], resources), dg.Definitions([asset])
    )
    with pytest.MonkeyPatch.context() as patch, dg.DagsterInstance.ephemeral() as instance:
        patch.setattr("dagster_ckpt.spark.start_session", lambda *_, **__: bench.spark)  # there can be one in a process
        job = definitions.resolve_implicit_global_asset_job_def()
        assert job.execute_in_process(instance=instance, asset_selection=[asset.key]).success
        event = instance.get_latest_materialization_event(asset.key)
    assert event is not None
    assert event.asset_materialization is not None
    shops = event.asset_materialization.metadata["shops"]
    assert isinstance(shops, dg.TableMetadataValue)
    assert [record.data for record in shops.records] == [{"shop": "south", "count": 1}]


def a_drill_on_a_schedule(block: Block, bench: Bench, data: Path) -> None:
    """Beside the definitions of the job; its materialization has the figures of the page's table."""
    defined = _run_the_first_example(bench, data)
    resources = {"checkpoint_storage": defined["storage"], "spark": defined["spark"]}
    definitions = block.run(data, turnover=defined["turnover"], resources=resources)["defs"]
    with pytest.MonkeyPatch.context() as patch, dg.DagsterInstance.ephemeral() as instance:
        patch.setattr("dagster_ckpt.spark.start_session", lambda *_, **__: bench.spark)  # there can be one in a process
        assert definitions.resolve_job_def("turnover_drill_job").execute_in_process(instance=instance).success
        assert definitions.resolve_job_def("turnover_checks_job").execute_in_process(instance=instance).success
        event = instance.get_latest_materialization_event(dg.AssetKey("turnover_drill"))
    assert event is not None
    assert event.asset_materialization is not None
    page = (_ROOT / block.page).read_text(encoding="utf-8")
    figures = event.asset_materialization.metadata.keys() - {"job"}
    assert {name for name in figures if f"`{name}`" not in page} == set()
    assert "recovery_seconds" in figures


def a_report_on_a_schedule(block: Block, bench: Bench, data: Path) -> None:
    """Its materialization has what the page and the reference name, drawn from the checkpoints of the example."""
    defined = _run_the_first_example(bench, data)
    resources = {"checkpoint_storage": defined["storage"], "spark": defined["spark"]}
    definitions = block.run(data, turnover=defined["turnover"], resources=resources)["defs"]
    with dg.DagsterInstance.ephemeral() as instance:
        assert definitions.resolve_job_def("turnover_report_job").execute_in_process(instance=instance).success
        event = instance.get_latest_materialization_event(dg.AssetKey("turnover_report"))
    assert event is not None
    assert event.asset_materialization is not None
    told = event.asset_materialization.metadata
    assert str(told["charts"].value).count("data:image/svg+xml;base64,") >= 3
    page = (_ROOT / "docs/reference/metadata.md").read_text(encoding="utf-8")
    assert {name for name in told if f"`{name}`" not in page} == set()


def an_asset_that_follows(block: Block, bench: Bench, data: Path) -> None:
    """Dagster launches it when a checkpoint is materialized, and not before."""
    turnover = make_asset("turnover")
    resources = {"checkpoint_storage": FileSystemCheckpointStorage(checkpoint_path=str(data)), "spark": bench.spark}
    follower = block.run(data, turnover=turnover)["best_shop"]
    definitions = dg.Definitions.merge(
        dagster_ckpt.build_checkpoint_definitions([turnover], resources), dg.Definitions([follower])
    )
    with warnings.catch_warnings(), dg.DagsterInstance.ephemeral() as instance:
        warnings.simplefilter("ignore")  # of Dagster itself, in the function that evaluates conditions
        before = dg.evaluate_automation_conditions(definitions, instance)
        instance.report_runless_asset_event(dg.AssetMaterialization(turnover.checkpoints_key, partition="a.chk-1"))
        instance.add_dynamic_partitions(turnover.partitions_name, ["a.chk-1"])
        after = dg.evaluate_automation_conditions(definitions, instance, cursor=before.cursor)
    assert (before.total_requested, after.total_requested) == (0, 1)


# --- testing ----------------------------------------------------------------------------------------------------------


def a_contract_to_inherit(block: Block, bench: Bench, data: Path) -> None:
    """With a storage that keeps the contract, in the place of the reader's."""
    del bench
    contract = block.run(data, VaultFileSystem=lambda _: MemoryFileSystem())["TestVault"]
    assert issubclass(contract, FileSystemContract)
    assert isinstance(contract.storage.__wrapped__(contract()), MemoryFileSystem)


def scenarios(block: Block, bench: Bench, data: Path) -> None:
    """With the names of the block before it, and five seeds for its thousand."""
    del bench
    defined: dict[str, Any] = {}
    for each in _of_page(block.page)[1:]:
        defined = replace(each, code=each.code.replace("range(1000)", "range(5)")).run(data, **defined)
        if each == block:
            return


Runner: TypeAlias = "Callable[[Block, Bench, Path], None]"

_KAFKA = "docs/how-to/kafka.md"
_ELSEWHERE = "docs/how-to/start-a-source-elsewhere.md"
_LINEAGE = "docs/how-to/openlineage.md"
_DELTA, _ICEBERG = "docs/how-to/sink-delta.md", "docs/how-to/sink-iceberg.md"
#: Run only where the table format is for the running release of Spark: by `make test-spark`.
_WITH_A_FORMAT = {_DELTA: delta_conf, _ICEBERG: iceberg_conf}
_MARKS = {
    **{page: (pytest.mark.slow,) for page in _PAGES if "/sink-" in page},
    _KAFKA: (pytest.mark.integration,),
    _ELSEWHERE: (pytest.mark.integration,),
    _LINEAGE: (pytest.mark.exhaustive,),
    **dict.fromkeys(_WITH_A_FORMAT, (pytest.mark.releases,)),
}
#: By page: the heading above each block, in order, and what runs the block.
_RUNNERS: dict[str, list[tuple[str, Runner]]] = {
    "README.md": [("In your own project", the_first_example)],
    "docs/how-to/a-storage-of-your-own.md": [
        ("A storage of your own", a_contract_to_inherit),
        ("One thing goes wrong at a time", scenarios),
        ("Several at once", scenarios),
    ],
    "docs/how-to/alerting.md": [
        ("Of a job that is over", an_alert),
        ("Of a job that is over", an_alert),
        ("Of each thing that goes wrong", an_event),
    ],
    "docs/how-to/component.md": [("Begin", a_component)],
    _KAFKA: [("Read a topic", from_kafka), ("Write to a topic", into_kafka), ("Drop the repeats", into_kafka)],
    "docs/how-to/look-inside.md": [("In Python", a_look_inside), ("In Dagster", an_asset_of_the_state)],
    "docs/how-to/watch.md": [("When a stream counts as materialized", an_asset_that_follows)],
    "docs/how-to/report.md": [("In Dagster", a_report_on_a_schedule)],
    "docs/how-to/restore-drill.md": [("A drill on a schedule", a_drill_on_a_schedule)],
    "docs/how-to/move-a-query.md": [("In", a_query_that_moves), ("Out", a_query_that_moves)],
    "docs/how-to/pyflink.md": [
        ("Write in PyFlink's spelling", in_pyflinks_spelling),
        ("Write in PyFlink's spelling", keys_of_a_program),
    ],
    "docs/how-to/blue-green.md": [
        ("Both versions in one code location", blue_and_green),
        ("Compare the rows", blue_and_green),
    ],
    "docs/how-to/rescale.md": [("Give the state another number of partitions", another_number_of_partitions)],
    _ELSEWHERE: [("Start a source elsewhere", topic_from_elsewhere)],
    "docs/how-to/savepoint.md": [("By a schedule", a_schedule)],
    "docs/how-to/sink-custom.md": [("Write with a writer of another kind", a_data_source)],
    _DELTA: [("Write a Delta table", delta_table)],
    "docs/how-to/sink-foreach-batch.md": [("Write with `foreachBatch`", foreach_batch)],
    _ICEBERG: [("Write an Iceberg table", iceberg_table)],
    "docs/how-to/sink-postgres.md": [("Write to PostgreSQL", into_postgres)],
    "docs/how-to/sink-transactional-files.md": [("Write transactional files", transactional_files)],
    "docs/how-to/standby.md": [("Keep a standby beside a job", a_whole_standby)],
    "docs/how-to/start-time.md": [
        ("The class archive", an_archive_that_is_there),
        ("Local files without processes", hadoops_own_files),
        ("The standby", a_standby),
        ("Switch them off", a_start_as_it_was),
    ],
    "docs/how-to/state-backend.md": [("Choose a state backend", a_state_backend)],
    "docs/how-to/driver-of-its-own.md": [
        ("Run the driver outside of the Dagster run", a_submitted_driver),
        ("On YARN", a_driver_on_yarn),
    ],
    "docs/how-to/driver-in-dagster.md": [("Say something from the driver", by_pipes)],
    "docs/how-to/kubernetes.md": [
        ("Run on Kubernetes", on_kubernetes),
        ("A driver in a pod of its own", in_a_pod_of_its_own),
    ],
    _LINEAGE: [("Send lineage to OpenLineage", lineage)],
    "docs/how-to/upgrade.md": [("When the code changes", an_upgrade)],
    "docs/how-to/without-dagster.md": [
        ("Run without Dagster", without_dagster),
        ("From Python", without_dagster),
    ],
    "docs/reference/options.md": [("By Flink's keys", flinks_keys)],
    "docs/start.md": [("Write a job", the_first_example)],
    "docs/tutorial.md": [("1. Land some orders", landing), ("2. Define the job", the_job_of_the_tutorial)],
}


def test_every_block_has_a_test() -> None:
    found = {page: [block.heading for block in _of_page(page)] for page in _PAGES}
    assert {page: headings for page, headings in found.items() if headings} == {
        page: [heading for heading, _ in runners] for page, runners in _RUNNERS.items()
    }


@pytest.mark.parametrize(
    ("page", "number"),
    [
        pytest.param(page, number, id=f"{page}-{heading}", marks=_MARKS.get(page, ()))
        for page, runners in _RUNNERS.items()
        for number, (heading, _) in enumerate(runners)
        if page not in _WITH_A_FORMAT or _WITH_A_FORMAT[page]()
    ],
)
def test_a_block(
    page: str, number: int, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # live locations are below it where nothing else is said
    found = _of_page(page)
    assert number < len(found)
    data = tmp_path / "data"
    (data / "landed").mkdir(parents=True)
    bench = Bench(request.getfixturevalue("spark"), tmp_path / "job")
    bench.root.mkdir()
    bench.source.symlink_to(data / "landed")
    if page in {_KAFKA, _ELSEWHERE}:
        bench = TopicBench(bench.spark, bench.root, server=request.getfixturevalue("kafka"))
    _RUNNERS[page][number][1](found[number], bench, data)


def test_what_is_taken_for_a_block() -> None:
    page = "# One\n```python\na = 1\n```\n```json\n{}\n```\n## Two\n```python\nb = a\n\nc = b\n```\n"
    assert list(blocks("p", page)) == [Block("p", "One", 2, "a = 1\n"), Block("p", "Two", 9, "b = a\n\nc = b\n")]
    with pytest.raises(AssertionError, match="line 1 of p has no end"):
        list(blocks("p", "```python\na"))


# --- the pages --------------------------------------------------------------------------------------------------------


def test_every_run_configuration_is_one_that_the_job_of_an_asset_takes() -> None:
    """As it is typed into the launchpad: Dagster takes it, and so does the asset, whose fields have text alone."""
    found = [
        (page, text)
        for page in _PAGES
        for text in re.findall(r"ops: \{(?:[^{}\n]|\{(?:[^{}\n]|\{[^\n]*\})*\})*\}", (_ROOT / page).read_text("utf-8"))
        if "..." not in text
    ]
    assert len(found) >= 6
    for page, text in found:
        config = yaml.safe_load(text)
        ((name, given),) = config["ops"].items()
        asset = make_asset(name)
        resources = {
            "checkpoint_storage": FileSystemCheckpointStorage(checkpoint_path="/data/c"),
            "spark": dagster_ckpt.SparkSessionResource(),
        }
        definitions = dagster_ckpt.build_checkpoint_definitions([asset], resources)
        assert dg.validate_run_config(definitions.resolve_job_def(asset.job_name), config), (page, text)
        asset.settings.of_run(given["config"])


def test_the_readme_is_short() -> None:
    text = (_ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.split()) < 1500
    assert len(text.splitlines()) <= 150


def test_no_page_is_long() -> None:
    words = {page: len((_ROOT / page).read_text(encoding="utf-8").split()) for page in _PAGES}
    assert {page for page, count in words.items() if count > 2000} == _LONG


def test_the_page_of_tests_says_what_ci_runs() -> None:
    page = (_ROOT / "docs" / "reference" / "tests.md").read_text(encoding="utf-8")
    steps = set(re.findall(r"^make ([a-z][a-z-]+)", (_ROOT / ".ci" / "run").read_text(encoding="utf-8"), re.MULTILINE))
    told = set(re.findall(r"^\| `make ([a-z-]+)", page, re.MULTILINE))
    assert steps == told - {"test-exhaustive", "test-airflow", "test-mutants"}


def test_dagster_is_started_without_a_line_for_each_tick_of_a_sensor() -> None:
    starts = [
        (place, found[0])
        for place in (*_PAGES, "tools/dev")
        for found in re.finditer(
            r"(?:dagster dev -|exec dagster dev|Start Dagster with `dagster dev).*", (_ROOT / place).read_text()
        )
    ]
    assert {place for place, _ in starts} >= {"README.md", "docs/start.md", "docs/tutorial.md", "tools/dev"}
    assert [(place, text) for place, text in starts if "--log-level warning" not in text] == []


def test_the_files_that_a_page_names_are_there() -> None:
    named = {
        (page, path)
        for page in (*_PAGES, "CONTRIBUTING.md")
        for path in re.findall(
            r"(?:dagster_ckpt|tests|tools|benchmarks|assets|docs)/[\w./-]*\w\.(?:py|md|toml|json)\b",
            (_ROOT / page).read_text(encoding="utf-8"),
        )
    }
    assert named
    assert {(page, path) for page, path in named if not (_ROOT / path).exists()} == set()


def test_every_error_tells_the_way_on() -> None:
    """The page of errors is made of their docstrings."""
    bases = {errors.CheckpointError, errors.MustStop}
    classes = {getattr(errors, name) for name in errors.__all__} - bases
    assert {error.__name__ for error in classes if "Way on:\n" not in (error.__doc__ or "")} == set()


def test_every_public_name_has_its_place_in_the_api() -> None:
    page = (_ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^::: dagster_ckpt\.(\w+)$", page, re.MULTILINE)) == set(dagster_ckpt.__all__)


def test_every_page_has_its_place_in_the_navigation() -> None:
    navigation = (_ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    pages = {path.relative_to(_ROOT / "docs").as_posix() for path in (_ROOT / "docs").rglob("*.md")}
    assert set(re.findall(r"[\w/.-]+\.md", navigation)) == pages


def test_the_page_of_metadata_names_every_key() -> None:
    page = (_ROOT / "docs" / "reference" / "metadata.md").read_text(encoding="utf-8")
    source = "".join(map(inspect.getsource, (metadata, reporter, requests, savepoint_asset)))
    keys = set(re.findall(r'^ +"(\w+)": ', source, re.MULTILINE)) | set(re.findall(r'found\["(\w+)"\]', source))
    assert len(keys) > 20
    assert {key for key in keys if f"`{key}`" not in page} == set()
    tags = {value for name, value in vars(names).items() if name.endswith("_TAG") and value.startswith("dagster_ckpt/")}
    assert {tag for tag in tags if f"`{tag}`" not in page} == set()


def test_the_commands_of_the_page_are_all_of_the_command_line() -> None:
    text = docs_site.on_page_markdown(docs_site.COMMANDS)
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == main.list_commands(click.Context(main))
    assert "--older-than" in text
    assert docs_site.COMMANDS in (_ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
