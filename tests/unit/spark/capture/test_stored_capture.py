"""A capture by versions and copies of a running query restarts it exactly, as one by hard links does.

A hard link keeps what it pins, a version does not: what Spark deletes before it is copied is told, and never replaced
by something else. Here Spark deletes as eagerly as it can.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dagster_ckpt.spark.files.bucket_location import StoredCheckpointLocation
from tests.helpers.spark.copying_directory import CopyingDirectory, capture_and_copy
from tests.helpers.spark.streaming import EAGER, VARIANTS, Captures, Job, discard, materialize, write_input

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

_FILES = 8
_FAST = ("count", "rocks-v2")
_SLOW = [("transformWithState", "rocks-v2+changelog")]
_OTHERS = [
    (query, variant)
    for query in ("aggregation", "chained", "join", "withState")
    for variant in VARIANTS
    if (query, variant) not in {_FAST, *_SLOW}
]


@pytest.mark.parametrize(
    ("query", "variant"),
    [
        _FAST,
        *(pytest.param(*pair, marks=pytest.mark.slow) for pair in _SLOW),
        *(pytest.param(*pair, marks=pytest.mark.exhaustive) for pair in _OTHERS),
    ],
)
def test_every_stored_snapshot_of_a_running_query_restarts_it_exactly(
    spark: SparkSession, tmp_path: Path, query: str, variant: str
) -> None:
    write_input(tmp_path / "in", range(_FILES))
    job = Job(spark, query, VARIANTS[variant] | EAGER, tmp_path / "in")
    store = CopyingDirectory(tmp_path / "bucket")
    location = StoredCheckpointLocation(store, store, "live")
    captures = Captures(location, tmp_path / "pins", take=capture_and_copy)

    with captures.running():
        expected = job.run(tmp_path / "bucket" / "live")
    discard(tmp_path / "bucket" / "live")

    assert set(range(_FILES)) <= expected.keys()
    restorable = sorted(batch for batch in captures.snapshots if batch < _FILES - 1)
    assert len(restorable) >= _FILES // 2, captures.incomplete
    for batch in random.Random(f"{query} {variant}").sample(restorable, 2):
        restored = job.run(materialize(captures.snapshots[batch], tmp_path / f"restored-{batch}"))
        later = range(batch + 1, _FILES)
        assert {n: restored[n] for n in later} == {n: expected[n] for n in later}, f"restored from {batch}"
        assert not restored.keys() & set(range(batch + 1))
