"""A driver that is killed around a repartition of its state: the rows are those of plain Spark."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata
from dagster_ckpt.filesystem import PosixFileSystem
from tests.helpers.driving import Driver, driving
from tests.jobs.matrix.streams import JOIN, POSTGRES, TRANSACTIONAL, FailureFree, Target, land, rescaled_tables
from tests.jobs.rescaling.driver import JOB

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.integration, pytest.mark.timeout(2400)]

_DRIVER = "tests.jobs.rescaling.driver"


class _Job:
    def __init__(self, query: str, sink: str, root: Path) -> None:
        self._query, self._sink, self._root, self.landed = query, sink, root, list[Path]()
        self.catalog = CheckpointCatalog(PosixFileSystem(root / "storage"), JOB)

    def land(self, count: int) -> None:
        for _ in range(count):
            self.landed.append(land(self._root / "in", len(self.landed)))

    def killed(self, when: str, **words: object) -> None:
        """A driver that is killed at a moment."""
        hold, held = self._root / "hold", self._root / "held"
        if when == "before its choice":
            hold.touch()
        with self._driving(words) as driver:
            moments = {
                "in the repartition": lambda: self._is_under_way(words["state_partitions"]),
                "before its choice": held.exists,
                "the query has started": lambda: bool(driver.of("Started")) and self._has_committed(),
            }
            driver.await_(when, moments[when])
            driver.kill()
        for file in (hold, held):
            file.unlink(missing_ok=True)

    def finished(self, **words: object) -> Driver:
        with self._driving(words) as driver:
            assert driver.ended() == "FINISHED"
            return driver

    def _driving(self, words: Mapping[str, object]) -> AbstractContextManager[Driver]:
        told = (f"{name}={value}" for name, value in words.items())
        return driving(_DRIVER, self._query, self._sink, str(self._root), *told)

    def _newest_live(self) -> Path:
        return max((self._root / "live").glob("*/checkpoint"), default=self._root / "none")

    def _is_under_way(self, partitions: object) -> bool:
        """Whether Spark has planned a repartition in the newest live location, and not committed it."""
        live = self._newest_live()
        planned, committed = (_last(live / log) for log in ("offsets", "commits"))
        text = (live / "offsets" / str(planned)).read_text() if planned > committed else ""
        return f'"spark.sql.shuffle.partitions":"{partitions}"' in text

    def _has_committed(self) -> bool:
        """Whether the newest start has committed a batch after that of the checkpoint it has begun with."""
        chosen = self.catalog.choice()
        assert chosen is not None
        return _last(Path(chosen[1].live) / "commits") > self.newest().batch

    def newest(self) -> CheckpointMetadata:
        (job_id,) = self.catalog.job_ids()
        completed, broken = self.catalog.completed(job_id)
        assert not broken
        return completed[-1]

    def rows(self) -> object:
        return Target(self._sink, self._root / "out").rows()


def _last(log: Path) -> int:
    return max((int(file.name) for file in log.glob("*") if file.name.isdigit()), default=-1)


@pytest.mark.parametrize(
    ("query", "again", "sink"),
    [
        ("window aggregation", False, TRANSACTIONAL),
        ("window aggregation", True, TRANSACTIONAL),
        (JOIN, True, TRANSACTIONAL),
        *(
            pytest.param("window aggregation", True, sink, marks=pytest.mark.releases)
            for sink in rescaled_tables()
            if sink != POSTGRES
        ),
    ],
)
@pytest.mark.exhaustive
def test_a_killed_driver_goes_on_exactly(
    query: str, again: bool, sink: str, spark: SparkSession, tmp_path: Path
) -> None:
    """Killed at three moments; and, ``again``, twice more on the way to more partitions, then rolled back."""
    job = _Job(query, sink, tmp_path / "job")
    job.land(3)
    job.finished()
    before = job.newest()
    assert before.facts.partitions == 4

    job.land(3)
    job.killed("in the repartition", state_partitions=2)
    assert job.newest() == before, "half a repartition is nothing"
    chosen = job.catalog.choice()
    job.killed("before its choice", state_partitions=2)
    rescaled = job.newest()
    assert (rescaled.kind, rescaled.batch, rescaled.facts.partitions) == ("rescale", before.batch + 1, 2)
    assert job.catalog.choice() == chosen
    job.killed("the query has started", state_partitions=2)  # no checkpoint of it is complete
    assert job.newest() == rescaled
    (started,) = job.finished().of("Started")
    assert started["kind"] in {"rescale", "salvage"}
    assert job.newest().facts.partitions == 2

    if again:
        job.land(3)
        job.killed("in the repartition", state_partitions=7)
        job.killed("the query has started", state_partitions=7)
        (started,) = job.finished(interval="300 ms").of("Started")
        assert started["kind"] in {"rescale", "salvage"}
        assert job.newest().facts.partitions == 7

        (started,) = job.finished(restore_from=before.reference).of("Started")
        assert started["restored"] == before.reference
        assert job.newest().facts.partitions == 4

        job.land(3)
        job.finished()
    plain = FailureFree(spark, tmp_path / "plain")
    assert job.rows() == plain.answer(query, [[file] for file in job.landed]) != {}
