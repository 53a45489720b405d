"""What ``sink_to`` attaches to a writer, and what tables and sinks of the user refuse, without Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dagster_ckpt.errors import CheckpointFailure, Fenced, InvalidConfiguration, RestoreRefused, SinkMismatch
from dagster_ckpt.spark.sinks.delta.delta_sink import DeltaSink
from dagster_ckpt.spark.sinks.sink import PlainQuery, Sink, attached_sink, refusal_of_batch, sink_to
from dagster_ckpt.spark.sinks.spark_file_sink import SparkFileSink
from dagster_ckpt.spark.sinks.table_sink import Overtaken, explained
from dagster_ckpt.spark.sinks.user_sinks import CustomSink, ForeachBatchSink


class Writer:
    """Of a DataFrame that nobody streams."""

    def __init__(self) -> None:
        self.write: Callable[[Any, int], None] | None = None

    def foreachBatch(self, write: Callable[[Any, int], None]) -> Writer:  # noqa: N802 - Spark's name
        self.write = write
        return self


class TestSinkTo:
    def test_a_sink_of_batches_is_given_the_rows(self) -> None:
        written: list[int] = []
        sink = ForeachBatchSink("s", lambda _, batch: written.append(batch))
        sink.write_batch = lambda rows, batch: written.append(batch)  # type: ignore[method-assign]
        writer = Writer()
        made: Any = sink_to(cast("Any", SimpleNamespace(writeStream=writer)), sink)
        assert made is cast("Any", writer)
        assert attached_sink(made) is sink
        assert writer.write is not None
        writer.write(None, 3)
        assert written == [3]
        assert refusal_of_batch(made) is None
        with pytest.raises(InvalidConfiguration, match="ForeachBatchSink is given the rows, not a writer"):
            sink_to(cast("Any", Writer()), sink)

    @pytest.mark.parametrize(
        ("error", "is_kept"),
        [(Fenced("a newer run"), True), (CheckpointFailure("the storage is full"), False), (KeyError("a"), False)],
    )
    def test_an_error_that_no_restart_can_help_is_kept(self, error: Exception, is_kept: bool) -> None:
        def fail(rows: object, batch: int) -> None:
            raise error

        sink = ForeachBatchSink("s", fail)
        sink.write_batch = fail  # type: ignore[method-assign]
        writer = Writer()
        made: Any = sink_to(cast("Any", SimpleNamespace(writeStream=writer)), sink)
        assert writer.write is not None
        with pytest.raises(type(error)):
            writer.write(None, 3)
        assert refusal_of_batch(made) is (error if is_kept else None)

    def test_another_sink_is_given_a_writer(self, tmp_path: Path) -> None:
        writer, sink = cast("Any", Writer()), SparkFileSink(tmp_path)
        assert attached_sink(writer) is None
        assert attached_sink(sink_to(writer, sink)) is sink
        assert refusal_of_batch(writer) is None
        with pytest.raises(InvalidConfiguration, match="SparkFileSink does not write rows itself"):
            sink_to(cast("Any", SimpleNamespace(writeStream=writer)), sink)


def test_what_a_sink_of_another_package_can_do_unless_it_says_otherwise() -> None:
    assert (Sink.can_roll_back, Sink.tells_data, Sink.can_skip_a_batch, Sink.seeds_alike) == (True, True, False, False)


def test_what_the_sinks_of_the_user_can_do() -> None:
    custom = CustomSink("s", position=print, rollback_to=print)
    for sink in (ForeachBatchSink("s", print), custom, ForeachBatchSink("s", print, newest_batch=lambda: 1)):
        assert sink.can_skip_a_batch
        assert sink.seeds_alike
        assert sink.can_roll_back is (sink is custom)


class TestSinksOfTheUser:
    def test_the_newest_batch(self) -> None:
        asked: list[int | None] = [None, 3, None]
        sink = ForeachBatchSink("s", print, newest_batch=asked.pop)
        assert (sink.first_data(), sink.first_data(), sink.first_data()) == (None, "batch 3", None)
        assert ForeachBatchSink("s", print).first_data() is None

    def test_an_error_of_newest_batch_is_said_with_its_sink(self) -> None:
        sink = ForeachBatchSink("s", print, newest_batch=lambda: 1 // 0)
        with pytest.raises(CheckpointFailure, match="Sink 's' could not tell its newest batch: ZeroDivisionError"):
            sink.newest_batch()

    @pytest.mark.parametrize(("planned_ms", "newest", "accepted"), [(None, 4, True), (1, 5, True), (None, 5, False)])
    def test_a_sink_ahead_of_the_query_is_of_another_query(
        self, tmp_path: Path, planned_ms: int | None, newest: int, accepted: bool
    ) -> None:
        sink = ForeachBatchSink("s", print, newest_batch=lambda: newest)
        query = PlainQuery(4, planned_ms)
        if accepted:
            taken_over = sink.take_over(query, tmp_path)
            assert taken_over is not None
            assert taken_over.position == {"kind": "foreachBatch", "path": "s", "batch": 4, "value": None}
            return
        with pytest.raises(SinkMismatch, match="Sink 's' has batch 5, and the query has come to batch 4"):
            sink.take_over(query, tmp_path)

    def test_a_sink_that_tells_where_it_is_now_cannot_tell_of_the_batch_before(self, tmp_path: Path) -> None:
        sink = ForeachBatchSink("s", print, position=lambda batch: batch * 10)
        taken_over = sink.take_over(PlainQuery(4, None), tmp_path)
        assert taken_over is not None
        assert taken_over.position["value"] == 40
        with pytest.raises(SinkMismatch, match="not where it was after batch 4") as said:
            sink.take_over(PlainQuery(4, 1), tmp_path)
        assert "Let plain Spark finish the batch" in said.value.hint


class TestTables:
    def test_without_its_query_a_table_is_not_looked_at(self) -> None:
        sink = DeltaSink("/t")
        with pytest.raises(RestoreRefused, match="Delta table /t can be looked at only with the query"):
            _ = sink._attached
        rows = cast("Any", object())
        sink.attach("orders", rows)
        assert sink._attached is rows

    def test_the_position_of_another_job_is_refused(self) -> None:
        sink = DeltaSink("/t")
        sink.attach("orders", cast("Any", object()))
        sink._check_application({"application": "dagster_ckpt:orders"})
        with pytest.raises(SinkMismatch, match="was taken of 'dagster_ckpt:other', and this is 'dagster_ckpt:orders'"):
            sink._check_application({"application": "dagster_ckpt:other"})

    @pytest.mark.parametrize("error", [Overtaken(7), Fenced("a newer run"), KeyError("no such column")])
    def test_an_error_of_the_format_names_the_table(self, error: Exception) -> None:
        class Opened:
            format, path = "Paper", "t"

            @explained
            def read(self, *, fails: bool) -> str:
                if fails:
                    raise error
                return "rows"

        assert Opened().read(fails=False) == "rows"
        if not isinstance(error, KeyError):
            with pytest.raises(type(error)) as same:
                Opened().read(fails=True)
            assert same.value is error
            return
        with pytest.raises(CheckpointFailure, match=r"Paper table t could not be used: .*no such column"):
            Opened().read(fails=True)

    def test_who_is_overtaken_knows_by_which_epoch(self) -> None:
        assert Overtaken(7).epoch == 7
        assert Overtaken(7).args == (7,)
