"""The order in which a batch is made durable, allowed, written and recorded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from dagster_ckpt.checkpoint.control.epochs import Choice
from dagster_ckpt.errors import CaptureIncomplete, CheckpointFailure, Fenced, RestoreRefused, StorageError
from dagster_ckpt.spark.files.checkpoint_location import CheckpointLocation
from dagster_ckpt.spark.sinks.recorded_positions import RecordedPositions
from dagster_ckpt.spark.sinks.recorded_sinks import position_reader, recorded_sink
from dagster_ckpt.spark.sinks.sink import PlainQuery, SinkRun
from dagster_ckpt.spark.sinks.user_sinks import CustomSink, ForeachBatchSink
from dagster_ckpt.stored_json import Json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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


def test_boundaries_are_durable_before_a_batch_is_written_whose_input_goes_afterwards(tmp_path: Path) -> None:
    """Also of a sink that rolls back: else a restore would not know that the input was ever there."""
    story = Story(tmp_path)
    sink = story.sink(rolls_back=True)
    sink.begin(replace(story.run(), input_stays=False))
    sink.write_batch(ROWS, 5)
    assert story.told == ["archive 5", "check", "write 5", "position 5"]


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


def test_nothing_is_before_the_first_batch(tmp_path: Path) -> None:
    asked: list[tuple[int, Json]] = []
    sink = ForeachBatchSink("s", lambda *_: None, rollback_to=lambda *to: asked.append(to), position=lambda _: None)
    assert sink.rollback_to_nothing(0.0, 1) == "s was told to go back to nothing"
    sink.rollback_to(sink.seed(7, tmp_path, cast("SparkSession", None)), tmp_path, 1)
    sink.rollback_to({"kind": "foreachBatch", "path": "s", "batch": 4, "value": "four"}, tmp_path, 1)
    assert asked == [(-1, None), (-1, None), (4, "four")]


@pytest.mark.parametrize(
    ("kind", "path", "reader"),
    [
        ("file", "/out", "dagster_ckpt.spark.sinks.spark_file_sink"),
        ("transactional", "/out", "dagster_ckpt.spark.sinks.transactional_file_sink"),
        ("foreachBatch", "s", "dagster_ckpt.spark.sinks.recorded_positions"),
        (None, None, None),
    ],
)
def test_a_recorded_start_is_read_by_the_kind_of_its_sink(
    tmp_path: Path, kind: str | None, path: str | None, reader: str | None
) -> None:
    choice = Choice("0" * 32, None, 1, 0, "/live", "h", path, "of the test", sink_kind=kind)
    found = position_reader(choice, tmp_path, CheckpointLocation(tmp_path), None)
    assert (None if found is None else type(found).__module__) == reader
    made = recorded_sink({"kind": kind, "path": path})
    assert (None if made is None else made.kind) == (kind if kind in {"file", "transactional"} else None)


@pytest.mark.parametrize("tells", [True, False])
def test_a_sink_that_is_empty_was_not_written_by_a_query_of_plain_spark(tmp_path: Path, *, tells: bool) -> None:
    newest: list[int | None] = [None]
    asked = (lambda: newest[-1]) if tells else None
    sinks = [
        ForeachBatchSink("s", print, newest_batch=asked),
        CustomSink("s", position=lambda batch: batch, rollback_to=print, newest_batch=asked),
    ]
    query = PlainQuery(4, None)
    for sink in sinks:
        taken_over = sink.take_over(query, tmp_path)
        assert (taken_over is None) is tells, "who does not tell what the sink holds is believed to name the old sink"
    newest.append(4)
    for sink in sinks:
        taken_over = sink.take_over(query, tmp_path)
        assert taken_over is not None
        assert taken_over.position["batch"] == 4
