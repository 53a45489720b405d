"""Which batch a dead query was running, and which plan it had. Without Spark."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_ckpt.spark.batches.in_flight import BatchInFlight, batch_in_flight, fingerprint
from dagster_ckpt.spark.batches.plans import PlannedBatches
from dagster_ckpt.spark.files.checkpoint_location import CheckpointLocation
from dagster_ckpt.spark.live.on_disk import LocalLive
from tests.helpers.spark.live_location import LiveLocation


@pytest.fixture
def live(tmp_path: Path) -> LiveLocation:
    return LiveLocation(tmp_path / "attempt" / "checkpoint")


def test_a_batch_is_in_flight_once_the_query_was_started(live: LiveLocation) -> None:
    assert batch_in_flight(LocalLive(live.path)) is None
    live.run(2)
    live.plan(2)
    assert batch_in_flight(LocalLive(live.path)) is None, "laid out for the query, which has not begun"
    LocalLive(live.path).mark_begun()
    found = batch_in_flight(LocalLive(live.path))
    assert found is not None
    assert found.batch == 2
    assert found.plan is not None
    live.commit(2)
    assert batch_in_flight(LocalLive(live.path)) is None


@settings(max_examples=15)
@given(st.integers(1, 25), st.data())
def test_a_plan_is_told_by_what_it_reads_alone(
    tmp_path_factory: pytest.TempPathFactory, batch: int, data: st.DataObject
) -> None:
    """Not by when it was planned, its watermark, its settings, or whether the source's log was compacted then."""
    root = tmp_path_factory.mktemp("plans")

    def plan(name: str, **changed: object) -> str | None:
        one = LiveLocation(root / name / "checkpoint", interval=data.draw(st.sampled_from([3, 10])))
        one.run(batch)
        one.plan(batch, **changed)  # type: ignore[arg-type]
        LocalLive(one.path).mark_begun()
        found = batch_in_flight(LocalLive(one.path))
        assert found is not None
        return found.plan

    first = plan("first")
    assert first is not None
    assert plan("later", at=99, watermark=98, partitions=97) == first
    assert plan("other-files", files=["other.json"]) != first
    assert plan("more-files", files=[f"{batch}.json", "other.json"]) != first
    shutil.rmtree(root)


def test_what_cannot_be_read_is_not_guessed(live: LiveLocation) -> None:
    live.run(2)
    live.plan(2)
    LocalLive(live.path).mark_begun()
    shutil.rmtree(live.path / "sources")
    assert batch_in_flight(LocalLive(live.path)) == BatchInFlight(2, None)
    (live.path / "offsets" / "2").write_bytes(b"\xff\x00")
    assert batch_in_flight(LocalLive(live.path)) == BatchInFlight(2, None)
    shutil.rmtree(live.path)
    live.path.write_text("no directory")
    assert batch_in_flight(LocalLive(live.path)) is None


def test_the_fingerprint_is_the_same_from_the_archive(live: LiveLocation) -> None:
    live.run(3)
    live.plan(3)
    LocalLive(live.path).mark_begun()
    plans = PlannedBatches(CheckpointLocation(live.path), -1).new()
    found = batch_in_flight(LocalLive(live.path))
    assert found == BatchInFlight(3, fingerprint(plans[-1]))
    assert len({fingerprint(plan) for plan in plans}) == 4
