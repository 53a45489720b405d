"""A driver that is killed around a repartition of its state: the rows are those of an uninterrupted run."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata
from dagster_ckpt.filesystem import PosixFileSystem
from tests.helpers.driving import Driver, driving
from tests.jobs.matrix.streams import JOIN, TRANSACTIONAL, Target, land
from tests.jobs.rescaling.driver import JOB

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

_DRIVER = "tests.jobs.rescaling.driver"


class _Job:
    def __init__(self, query: str, root: Path) -> None:
        self._query, self._root, self._landed = query, root, 0
        self.catalog = CheckpointCatalog(PosixFileSystem(root / "storage"), JOB)

    def land(self, count: int) -> None:
        for _ in range(count):
            land(self._root / "in", self._landed)
            self._landed += 1

    def killed(self, when: str, **words: object) -> None:
        """A driver that is killed at a moment."""
        with self._driving(words) as driver:
            moments = {
                "in the repartition": lambda: self._is_under_way(words["state_partitions"]),
                "the copy is published": self._is_published,
                "the query has started": lambda: bool(driver.of("Started")) and self._has_committed(),
            }
            driver.await_(when, moments[when])
            driver.kill()

    def finished(self, **words: object) -> Driver:
        with self._driving(words) as driver:
            assert driver.ended() == "FINISHED"
            return driver

    def _driving(self, words: Mapping[str, object]) -> AbstractContextManager[Driver]:
        return driving(_DRIVER, self._query, str(self._root), *(f"{name}={value}" for name, value in words.items()))

    def _newest_live(self) -> Path:
        return max((self._root / "live").glob("*/checkpoint"), default=self._root / "none")

    def _is_under_way(self, partitions: object) -> bool:
        """Whether Spark has planned a repartition in the newest live location, and not committed it."""
        live = self._newest_live()
        planned, committed = (_last(live / log) for log in ("offsets", "commits"))
        text = (live / "offsets" / str(planned)).read_text() if planned > committed else ""
        return f'"spark.sql.shuffle.partitions":"{partitions}"' in text

    def _is_published(self) -> bool:
        return self.newest().kind == "rescale"

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
        return Target(TRANSACTIONAL, self._root / "out").rows()


def _last(log: Path) -> int:
    return max((int(file.name) for file in log.glob("*") if file.name.isdigit()), default=-1)


@pytest.mark.parametrize(
    ("query", "again"),
    [
        ("window aggregation", False),
        ("window aggregation", True),
        (JOIN, True),
    ],
)
@pytest.mark.exhaustive
def test_a_killed_driver_goes_on_exactly(query: str, again: bool, tmp_path: Path) -> None:
    """Killed at three moments; and, ``again``, twice more on the way to more partitions, then rolled back."""
    whole = _Job(query, tmp_path / "whole")
    whole.land(12 if again else 6)
    whole.finished()
    expected = whole.rows()
    assert expected

    job = _Job(query, tmp_path / "job")
    job.land(3)
    job.finished()
    before = job.newest()
    assert before.facts.partitions == 4

    job.land(3)
    job.killed("in the repartition", state_partitions=2)
    assert job.newest() == before, "half a repartition is nothing"
    job.killed("the copy is published", state_partitions=2)
    rescaled = job.newest()
    assert (rescaled.batch, rescaled.facts.partitions) == (before.batch + 1, 2)
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
    assert job.rows() == expected
