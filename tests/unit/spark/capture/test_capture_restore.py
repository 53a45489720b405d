"""A snapshot taken of a running query restarts it exactly, after the live location is gone.

Spark keeps two batches only and cleans up every 100 ms, so every capture races with deletions. What a
restored query puts out, batch by batch, must be what the run without a failure put out.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dagster_ckpt.spark.files.checkpoint_location import CheckpointLocation
from dagster_ckpt.spark.query.logical_plan import recorded_kind, sources_of, stateful_kinds
from tests.helpers.spark.streaming import EAGER, VARIANTS, Captures, Job, discard, materialize, write_input

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

_log = logging.getLogger(__name__)

#: What a build tries; with the others every query and every variant. The rollback matrix has other pairs.
_TRIED = (
    ("aggregation", "rocks-v2"),
    ("join", "rocks-v2+changelog"),
    ("stateless", "hdfs"),
)
_MORE = (
    ("transformWithState", "rocks-v2+changelog"),
    ("chained", "hdfs"),
    ("withState", "rocks+changelog"),
    ("count", "rocks+changelog"),
    ("deduplication", "rocks"),
    ("aggregation", "hdfs"),
    ("aggregation", "rocks"),
    ("aggregation", "rocks+changelog"),
    ("aggregation", "rocks-v2+changelog"),
    ("join", "hdfs"),
)
_COMBINATIONS = [*_TRIED, *(pytest.param(*pair, marks=pytest.mark.exhaustive) for pair in _MORE)]
#: Input files, one for each batch with data.
_FILES = 8


@pytest.mark.parametrize(("query", "variant"), _COMBINATIONS)
def test_every_snapshot_of_a_running_query_restarts_it_exactly(
    spark: SparkSession,
    tmp_path: Path,
    query: str,
    variant: str,
) -> None:
    write_input(tmp_path / "in", range(_FILES))
    job = Job(spark, query, VARIANTS[variant] | EAGER, tmp_path / "in")
    live = tmp_path / "live"
    captures = Captures(CheckpointLocation(live), tmp_path / "pins")

    with captures.running():
        expected = job.run(live)
    discard(live)
    _log.info(
        "%s on %s: %d of %d batches captured, %d attempts dropped, slowest %.1f ms",
        *(query, variant, len(captures.snapshots), len(expected), len(captures.incomplete)),
        max(captures.seconds, default=0) * 1000,
    )

    data_batches = range(_FILES)  # one file each; a batch without data may follow, never after a restart
    assert set(data_batches) <= expected.keys()
    restorable = sorted(batch for batch in captures.snapshots if batch < data_batches[-1])
    assert len(restorable) >= _FILES // 2, captures.incomplete
    # What the plan of a query tells before it runs is what its checkpoints then have.
    facts = captures.snapshots[restorable[0]].facts
    writer = job.writer()
    recorded = Counter(recorded_kind(operator.name) for operator in facts.operators)
    assert recorded == stateful_kinds(writer)
    assert len(facts.sources) in sources_of(writer)
    for batch in random.Random(f"{query} {variant}").sample(restorable, 2):
        restored = job.run(materialize(captures.snapshots[batch], tmp_path / f"restored-{batch}"))
        later = range(batch + 1, _FILES)
        assert {n: restored[n] for n in later} == {n: expected[n] for n in later}, f"restored from {batch}"
        assert not restored.keys() & set(range(batch + 1))
