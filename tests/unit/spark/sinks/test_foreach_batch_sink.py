"""The order in which a batch is made durable, allowed, written and recorded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from dagster_ckpt.errors import CaptureIncomplete, CheckpointFailure, Fenced, RestoreRefused, StorageError
from dagster_ckpt.spark.files.checkpoint_location import CheckpointLocation
from dagster_ckpt.spark.sinks.recorded_positions import RecordedPositions
from dagster_ckpt.spark.sinks.sink import SinkRun
from dagster_ckpt.spark.sinks.user_sinks import CustomSink, ForeachBatchSink
from dagster_ckpt.stored_json import Json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROWS = cast("DataFrame", object())


class Story:
    """What happened, in order; one of the things that can happen may fail."""

    def __init__(self, directory: Path, failing: str = "") -> None:
        self.told: list[str] = []
        self.directory = directory
        self._failing = failing

    def tell(self, what: str, error: Exception) -> None:
        self.told.append(what)
        if what.split(maxsplit=1)[0] == self._failing:
            raise error

    def run(self) -> SinkRun:
        return SinkRun(
            self.directory,
            7,
            {"kind": "foreachBatch", "path": "s", "batch": 4, "value": "four"},
            lambda: self.tell("check", Fenced("a newer run")),
            lambda batch: self.tell(f"archive {batch}", StorageError("full")),
        )

    def position(self, batch: int) -> Json:
        self.tell(f"position {batch}", ZeroDivisionError("user"))
        return {"at": batch}

    def sink(self, *, rolls_back: bool) -> ForeachBatchSink:
        return ForeachBatchSink(
            "s",
            lambda _, batch: self.tell(f"write {batch}", ZeroDivisionError("user")),
            rollback_to=(lambda *_: self.tell("rollback", ZeroDivisionError("user"))) if rolls_back else None,
            position=self.position,
        )


def recorded(directory: Path, batch: int) -> Json:
    return RecordedPositions(directory).pin_position(batch, lambda source, _: source)["value"]


def test_boundaries_are_durable_before_the_owner_is_checked_and_the_batch_written(tmp_path: Path) -> None:
    story = Story(tmp_path)
    sink = story.sink(rolls_back=False)
    sink.begin(story.run())
    assert recorded(tmp_path, 4) == "four"  # where it was put back to, for a checkpoint before the first batch
    sink.write_batch(ROWS, 5)
    assert story.told == ["archive 5", "check", "write 5", "position 5"]
    assert recorded(tmp_path, 5) == {"at": 5}


def test_a_sink_that_rolls_back_needs_no_archive(tmp_path: Path) -> None:
    story = Story(tmp_path)
    sink = story.sink(rolls_back=True)
    sink.begin(story.run())
    sink.write_batch(ROWS, 5)
    assert story.told == ["check", "write 5", "position 5"]


@pytest.mark.parametrize(
    ("failing", "error", "told"),
    [
        ("archive", StorageError, ["archive 5"]),
        ("check", Fenced, ["archive 5", "check"]),
        ("write", ZeroDivisionError, ["archive 5", "check", "write 5"]),
        ("position", ZeroDivisionError, ["archive 5", "check", "write 5", "position 5"]),
    ],
)
def test_what_fails_keeps_what_comes_after_from_happening(
    tmp_path: Path, failing: str, error: type[Exception], told: list[str]
) -> None:
    story = Story(tmp_path, failing)
    sink = story.sink(rolls_back=False)
    sink.begin(story.run())
    with pytest.raises(error):
        sink.write_batch(ROWS, 5)
    assert story.told == told
    with pytest.raises(CaptureIncomplete, match="after batch 5 is not recorded"):
        recorded(tmp_path, 5)


def test_a_query_that_was_started_by_hand_writes_nothing(tmp_path: Path) -> None:
    story = Story(tmp_path)
    with pytest.raises(RestoreRefused, match="started by hand"):
        story.sink(rolls_back=True).write_batch(ROWS, 0)
    assert not story.told


def test_positions_are_kept_for_the_last_batches_only(tmp_path: Path) -> None:
    positions = RecordedPositions(tmp_path)
    for batch in range(300):
        positions.record(batch, {"value": batch})
    assert recorded(tmp_path, 299) == 299
    assert recorded(tmp_path, 100) == 100
    assert len(list((tmp_path / "positions").iterdir())) == 200


def test_an_error_of_a_callable_is_said_with_its_sink(tmp_path: Path) -> None:
    story = Story(tmp_path, "rollback")
    sink = story.sink(rolls_back=True)
    with pytest.raises(CheckpointFailure, match="Sink 's' could not be set back to batch 3: ZeroDivisionError: user"):
        sink.rollback_to({"batch": 3, "value": None}, tmp_path, 1)
    with pytest.raises(CheckpointFailure, match="could not be set back to nothing"):
        sink.rollback_to_nothing(0.0, 1)
    unlucky = Story(tmp_path, "position")
    custom = CustomSink("c", position=unlucky.position, rollback_to=lambda *_: None)
    with pytest.raises(
        CheckpointFailure, match="position of sink 'c' after batch 3 is not known: ZeroDivision"
    ) as said:
        custom.position_reader(tmp_path, CheckpointLocation(tmp_path)).pin_position(3, lambda source, _: source)
    assert said.value.recoverable
