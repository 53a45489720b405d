"""The files of one tiny pipeline: what the tests put in, what the query writes, and what it should have written."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from dagster_ckpt.spark.sinks.spark_sink_log import FileSink

ROOT_VARIABLE = "DAGSTER_CKPT_TEST_ROOT"
POISON = "poison"


@dataclass(frozen=True)
class Pipeline:
    """One pipeline: landed JSON files in, each id once in the Parquet output.

    A batch is one landed file. While ``hold`` exists, no batch gets past an id as great as the number in it. As
    long as the number in ``poison`` is positive, a landed poison row fails its batch and lowers it; while ``deadly``
    exists, it kills the process that drives Spark instead. A query
    started while ``until_caught_up`` exists ends when all is read. A run started while ``unhurried`` exists takes
    no checkpoint within the hour. The code is of the version in ``version``.
    """

    root: Path
    name: str

    @classmethod
    def from_environment(cls, name: str) -> Pipeline:
        return cls(Path(os.environ[ROOT_VARIABLE]), name)

    @property
    def checkpoint_path(self) -> Path:
        return self.root / "checkpoints"

    @property
    def working_directory(self) -> Path:
        return self.root / "live"

    @property
    def landing(self) -> Path:
        return self.root / self.name / "landing"

    @property
    def output(self) -> Path:
        return self.root / self.name / "output"

    @property
    def hold(self) -> Path:
        return self.root / self.name / "hold"

    @property
    def poison(self) -> Path:
        return self.root / self.name / "poison"

    @property
    def deadly(self) -> Path:
        return self.root / self.name / "deadly"

    @property
    def until_caught_up(self) -> Path:
        return self.root / self.name / "until_caught_up"

    @property
    def unhurried(self) -> Path:
        return self.root / self.name / "unhurried"

    @property
    def version(self) -> Path:
        return self.root / self.name / "version"

    @property
    def alerts(self) -> Path:
        return self.root / self.name / "alerts"

    def hold_from(self, file: int) -> None:
        """Hold the batch of that file (counted from 0, landed or not) and, so, all after it."""
        self.hold.parent.mkdir(parents=True, exist_ok=True)
        hidden = self.hold.with_suffix(".new")
        hidden.write_text(str(2 * file))
        hidden.rename(self.hold)

    def release(self) -> None:
        """Hold nothing any more."""
        self.hold.unlink()

    def landed(self) -> int:
        """How many files have landed."""
        return len(list(self.landing.glob("*.json")))

    def land(self, files: int, *, poisoned: bool = False) -> None:
        """Land so many more files; each repeats ids of the file before, so that lost state shows as doubled rows."""
        self.landing.mkdir(parents=True, exist_ok=True)
        first = self.landed()
        for number in range(first, first + files):
            rows = [_row(id_) for id_ in range(max(2 * number - 3, 0), 2 * number + 2)]
            if poisoned:
                rows.append({"k": POISON, "id": -1 - number})
            hidden = self.landing / f".{number:04}.json"
            hidden.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
            os.utime(hidden, (1_700_000_000 + number, 1_700_000_000 + number))  # Spark reads the oldest first
            hidden.rename(self.landing / f"{number:04}.json")

    def expected(self, files: int | None = None) -> Counter[tuple[str, int]]:
        """The answer over all that has landed, or over the first ``files`` of it."""
        landed = sorted(self.landing.glob("*.json"))[:files]
        rows = (json.loads(line) for file in landed for line in file.read_text().splitlines())
        return Counter({(row["k"], row["id"]) for row in rows})

    def committed(self) -> Counter[tuple[str, int]]:
        """What a reader of the output that goes by its log sees."""
        return _rows(FileSink(self.output).committed_files())

    def raw(self) -> Counter[tuple[str, int]]:
        """What lies in the output directory, as a reader without the log sees it."""
        return _rows(self.output.glob("part-*.parquet"))

    def assert_exact(self, files: int | None = None) -> None:
        """The output is the answer: nothing lost, nothing twice, nothing of abandoned batches left over."""
        assert self.committed() == self.expected(files)
        assert self.raw() == self.expected(files)


def _row(id_: int) -> dict[str, object]:
    return {"k": "abc"[id_ % 3], "id": id_}


def _rows(files: Iterable[Path]) -> Counter[tuple[str, int]]:
    # `ParquetFile`, because `read_table` would see partitions in names such as a=1.
    tables = [pq.ParquetFile(file).read() for file in files]
    return Counter((row["k"], row["id"]) for table in tables for row in table.to_pylist())
