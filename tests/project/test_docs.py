"""The pages: every block of Python is run as it stands there, by the function named beside its heading below.

Paths below ``/data/`` become those of the test. A block that is new, or under another heading, has no test yet and
fails until it is given one. No page is too long, and no page names a file that is not there.
"""

from __future__ import annotations

import inspect
import json
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click
import dagster as dg
import pyarrow.dataset as ds
import pytest

import dagster_ckpt
from dagster_ckpt import errors
from dagster_ckpt.cli import main
from dagster_ckpt.config.checkpoint_config import JobStatus
from dagster_ckpt.filesystem.memory import MemoryFileSystem
from dagster_ckpt.orchestration import names, reporting, savepoint_asset
from dagster_ckpt.spark.events import Started
from dagster_ckpt.testing.filesystem_contract import FileSystemContract
from tests.jobs.harness import Bench, Row, copied, eventually
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
        patch.setattr("dagster_ckpt.spark.start_session", lambda *_: bench.spark)  # there can be one in a process
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
        patch.setattr("dagster_ckpt.spark.start_session", lambda *_: bench.spark)  # there can be one in a process
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


def in_pyflinks_spelling(block: Block, bench: Bench, data: Path) -> None:
    """It runs its query, which writes each order once."""
    land_orders(data)
    ending(block).run(data)
    rows = bench.spark.read.parquet(str(data / "turnover")).collect()
    assert sorted(row["cents"] for row in rows) == [100, 250, 400]
    (end,) = (data / "checkpoints" / "turnover" / "control").rglob("*.end")
    assert json.loads(end.read_text())["status"] == "FINISHED"


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

#: By page: the heading above each block, in order, and what runs the block.
_RUNNERS: dict[str, list[tuple[str, Runner]]] = {
    "README.md": [("In your own project", the_first_example)],
    "docs/how-to/a-storage-of-your-own.md": [
        ("A storage of your own", a_contract_to_inherit),
        ("One thing goes wrong at a time", scenarios),
        ("Several at once", scenarios),
    ],
    "docs/how-to/pyflink.md": [("Write in PyFlink's spelling", in_pyflinks_spelling)],
    "docs/how-to/sink-custom.md": [("Write with a writer of another kind", a_data_source)],
    "docs/how-to/sink-foreach-batch.md": [("Write with `foreachBatch`", foreach_batch)],
    "docs/how-to/sink-transactional-files.md": [("Write transactional files", transactional_files)],
    "docs/how-to/state-backend.md": [("Choose a state backend", a_state_backend)],
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


# --- the pages --------------------------------------------------------------------------------------------------------


def test_the_readme_is_short() -> None:
    text = (_ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.split()) < 1500
    assert len(text.splitlines()) <= 150


def test_no_page_is_long() -> None:
    words = {page: len((_ROOT / page).read_text(encoding="utf-8").split()) for page in _PAGES}
    assert {page for page, count in words.items() if count > 2000} == _LONG


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


def test_the_page_of_metadata_names_every_key() -> None:
    page = (_ROOT / "docs" / "reference" / "metadata.md").read_text(encoding="utf-8")
    source = inspect.getsource(reporting) + inspect.getsource(savepoint_asset)
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
