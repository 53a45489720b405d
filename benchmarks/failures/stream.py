"""The stream that fails in every way: each id once, with the ids that were seen as its state.

Spark and Flink read the same files: comma-separated values that land while the stream runs. Each file has as many new
ids as old ones, after a first file that fills the state.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Self

from dagster_ckpt.spark.sinks.spark_sink_log import FileSink
from dagster_ckpt.testing.dagster_dev import wait_for

if TYPE_CHECKING:
    from types import TracebackType

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

JOB = "distinct_ids"
#: The environment variables of the code location: the stream's root, 1 for a standby, seconds of the lease.
ROOT_VARIABLE, STANDBY_VARIABLE, LEASE_VARIABLE = "RECOVERY_ROOT", "RECOVERY_STANDBY", "RECOVERY_LEASE"
#: Ids of a file, half of them new, and seconds between two files.
ROWS, SECONDS = 1000, 0.25
#: Partitions of the state, and threads that work on them.
PARALLELISM = 2
CONF = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": str(PARALLELISM),
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def query(spark: SparkSession, root: Path) -> DataStreamWriter:
    """The stream as Spark has it, from ``root/in`` to ``root/out``."""
    rows = spark.readStream.schema("id LONG").option("maxFilesPerTrigger", 16).csv(str(root / "in"))
    return rows.dropDuplicates(["id"]).writeStream.format("csv").option("path", str(root / "out"))


class Landing:
    """Files that land in ``root/in`` until the end of the context.

    Args:
        root: of the stream.
        keys: ids of the first file.

    Attributes:
        ids: how many ids have landed: each number below this one.
    """

    def __init__(self, root: Path, keys: int) -> None:
        self._directory = root / "in"
        self.ids = 0
        self._number = 0
        self._keys = keys
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._land_on, name="landing", daemon=True)

    def __enter__(self) -> Self:
        self._directory.mkdir(parents=True)
        self._land(0, self._keys)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _land_on(self) -> None:
        while not self._over.wait(SECONDS):
            self._land(self.ids - ROWS // 2, ROWS)

    def _land(self, first: int, rows: int) -> None:
        """Whole or not at all: neither stream looks at a name that begins with a dot."""
        path = self._directory / f".{self._number:06}.csv"
        path.write_text("".join(f"{number}\n" for number in range(max(first, 0), first + rows)), encoding="utf-8")
        path.replace(path.with_name(path.name[1:]))
        self.ids, self._number = first + rows, self._number + 1


def spark_output(root: Path) -> list[Path]:
    """The files that Spark's sink has committed."""
    return [Path(file) for file in FileSink(root / "out").committed_files()]


def count_ids(files: Iterable[Path]) -> int:
    """How many ids the committed files of a sink have.

    Raises:
        RuntimeError: an id is there twice.
    """
    return len(_ids(files))


def await_exact(ids: int, committed: Callable[[], Iterable[Path]]) -> None:
    """Wait until the sink has all ids that have landed.

    Args:
        ids: :attr:`Landing.ids` after the end.
        committed: gives the committed files.

    Raises:
        RuntimeError: an id is there twice, or one that has not landed.
        TimeoutError: an id is missing.
    """
    wait_for(lambda: count_ids(committed()) >= ids, f"the output to have {ids} ids", seconds=900, poll=2)
    if _ids(committed()) != set(range(ids)):
        raise RuntimeError(f"The output has other ids than the {ids} that have landed")


def _ids(files: Iterable[Path]) -> set[int]:
    found = [int(number) for file in files for number in file.read_text(encoding="utf-8").split()]
    if len(found) != (different := len(set(found))):
        raise RuntimeError(f"{len(found) - different} ids of {len(found)} are in the output twice")
    return set(found)
