"""What the records tell of a sink that a lineage without a checkpoint has begun to fill."""

from __future__ import annotations

from pathlib import Path

import pytest

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.catalog.newest import Newest
from dagster_ckpt.checkpoint.control.epochs import Choice
from dagster_ckpt.clock import iso
from dagster_ckpt.filesystem import PosixFileSystem
from dagster_ckpt.spark.run.starting_point import Began, sink_began
from dagster_ckpt.spark.sinks.user_sinks import CustomSink, ForeachBatchSink

_OLD, _NEW = "0" * 32, "1" * 32
#: The starts of a job, one second after the other: lineage, name of the sink, and whether there was a checkpoint.
_STARTS = [(_OLD, "b", False), (_NEW, "a", False), (_NEW, "b", False), (_NEW, "a", False), (_NEW, "c", True)]


@pytest.fixture
def catalog(tmp_path: Path) -> CheckpointCatalog:
    catalog = CheckpointCatalog(PosixFileSystem(tmp_path), "job")
    for second, (job_id, sink, is_restored) in enumerate(_STARTS):
        claim = catalog.records.epochs.claim(
            token=str(second), series=None, run_id="r", host="h", pid=1, now=iso(second)
        )
        restored = f"{job_id}/chk-1" if is_restored else None
        choice = Choice(job_id, restored, 1, 0, "/live", "h", sink, "", sink_kind="foreachBatch")
        catalog.records.epochs.record_choice(claim.epoch, choice)
    return catalog


@pytest.mark.parametrize(("name", "began"), [("a", Began(1, 2)), ("b", Began(2, 3)), ("c", None), ("d", None)])
def test_a_sink_began_with_the_first_start_of_the_lineage_that_wrote_there(
    catalog: CheckpointCatalog, name: str, began: Began | None
) -> None:
    target = Newest(None, _NEW, "")
    assert sink_began(catalog, ForeachBatchSink(name, print), target) == began
    other_kind = CustomSink(name, position=print, rollback_to=print)
    assert sink_began(catalog, other_kind, target) is None
    assert sink_began(catalog, None, target) is None


def test_a_lineage_that_begins_has_filled_nothing(catalog: CheckpointCatalog) -> None:
    assert sink_began(catalog, ForeachBatchSink("a", print), Newest(None, None, "")) is None
