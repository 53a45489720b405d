"""Every block of Python on a page is run as it stands there, by the function named beside its heading below.

Paths below ``/data/`` become those of the test. A block that is new, or under another heading, has no test yet and
fails until it is given one.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import dagster as dg
import pyarrow.dataset as ds
import pytest

import dagster_ckpt
from dagster_ckpt.config.checkpoint_config import JobStatus
from dagster_ckpt.spark.events import Started
from dagster_ckpt.spark.query import session
from tests.jobs.harness import Bench, Row, copied, eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_ROOT = Path(__file__).resolve().parents[1]
_PAGES = ("README.md", "docs/operations.md", "docs/sinks.md")


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
            yield Block(page, heading, began, "\n".join(code) + "\n")
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


def a_data_source(block: Block, bench: Bench, data: Path) -> None:
    def rows() -> Counter[Row]:
        table = bench.spark.read.schema("id INT, v INT").json(str(data / "orders")).collect()
        return Counter(tuple(row) for row in table)

    exact_through_a_life(bench, block.run(data), "orders", rows)


# --- the README -------------------------------------------------------------------------------------------------------

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
        patch.setattr(session, "start_session", lambda *_: bench.spark)  # there can be one in a process
        assert definitions.resolve_job_def("turnover_job").execute_in_process(instance=instance).success
    (row,) = bench.spark.read.parquet(str(data / "turnover")).collect()
    assert (row["shop"], row["cents"], row["window"].start.hour) == ("north", 900, 10)
    assert list((data / "checkpoints" / "turnover").glob("*/chk-1/_metadata"))


def flinks_keys(block: Block, bench: Bench, data: Path) -> None:
    del bench
    keys = {"execution.checkpointing.dir": f"file://{data}/checkpoints", "execution.checkpointing.interval": "7 s"}
    (data / "flink.yaml").write_text(json.dumps(keys))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(data)
        defined = block.run(data, **vars(dagster_ckpt))
    assert isinstance(defined["turnover"], dagster_ckpt.CheckpointedStreamingAsset)
    assert defined["turnover"].config.interval == timedelta(seconds=7)
    assert isinstance(defined["storage"], dagster_ckpt.FileSystemCheckpointStorage)


def a_state_backend(block: Block, bench: Bench, data: Path) -> None:
    """A query whose state is kept as the block says."""
    asset = block.run(data, **vars(dagster_ckpt))["turnover"]
    bench.land(2)
    job = replace(bench.job(), state_backend=asset.state_backend)
    assert bench.launch(job).result().status is JobStatus.FINISHED
    bench.assert_exact()
    conf = asset.state_backend.spark_conf()
    assert "64" in [value for key, value in conf.items() if key.endswith(".blockCacheSizeMB")]


def in_pyflinks_spelling(block: Block, bench: Bench, data: Path) -> None:
    """It runs its query, which writes each order once."""
    land_orders(data)
    ending(block).run(data, SparkSession=type(bench.spark), DataStreamWriter=None)
    rows = bench.spark.read.parquet(str(data / "turnover")).collect()
    assert sorted(row["cents"] for row in rows) == [100, 250, 400]
    (end,) = (data / "checkpoints" / "turnover" / "control").rglob("*.end")
    assert json.loads(end.read_text())["status"] == "FINISHED"


Runner: TypeAlias = "Callable[[Block, Bench, Path], None]"

#: By page: the heading above each block, in order, and what runs the block.
_RUNNERS: dict[str, list[tuple[str, Runner]]] = {
    "README.md": [
        ("In your own project", the_first_example),
        ("Configuration", flinks_keys),
        ("State backends", a_state_backend),
        ("In PyFlink's spelling", in_pyflinks_spelling),
    ],
    "docs/operations.md": [],
    "docs/sinks.md": [
        ("Transactional files", transactional_files),
        ("`foreachBatch`", foreach_batch),
        ("A writer of another kind", a_data_source),
    ],
}


def test_every_block_has_a_test() -> None:
    assert {page: [block.heading for block in _of_page(page)] for page in _PAGES} == {
        page: [heading for heading, _ in runners] for page, runners in _RUNNERS.items()
    }


@pytest.mark.parametrize(
    ("page", "number"),
    [
        pytest.param(page, number, id=f"{page}-{heading}")
        for page, runners in _RUNNERS.items()
        for number, (heading, _) in enumerate(runners)
    ],
)
def test_a_block(page: str, number: int, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # live locations are below it where nothing else is said
    found = _of_page(page)
    assert number < len(found)
    data = tmp_path / "data"
    (data / "landed").mkdir(parents=True)
    bench = Bench(spark, tmp_path / "job")
    bench.root.mkdir()
    bench.source.symlink_to(data / "landed")
    _RUNNERS[page][number][1](found[number], bench, data)


def test_what_is_taken_for_a_block() -> None:
    page = "# One\n```python\na = 1\n```\n```json\n{}\n```\n## Two\n```python\nb = a\n\nc = b\n```\n"
    assert list(blocks("p", page)) == [Block("p", "One", 2, "a = 1\n"), Block("p", "Two", 9, "b = a\n\nc = b\n")]
    with pytest.raises(AssertionError, match="line 1 of p has no end"):
        list(blocks("p", "```python\na"))
