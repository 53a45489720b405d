"""The mark of a start in the log of Spark's own file sink, in every format that it writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dagster_ckpt.spark.query.writer_plan import with_options
from dagster_ckpt.spark.sinks.own_entries import mark_of
from dagster_ckpt.spark.sinks.spark_file_sink import SparkFileSink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FILES = 3
_INTERVAL = "spark.sql.streaming.fileSink.log.compactInterval"


@pytest.mark.releases
@pytest.mark.parametrize("form", ["parquet", "orc", "json", "csv", "text"])
def test_every_file_of_every_format_says_which_start_wrote_it(spark: SparkSession, tmp_path: Path, form: str) -> None:
    """In compactions, too; and readers take no notice."""
    (tmp_path / "in").mkdir()
    for number in range(_FILES):
        rows = [{"id": str(2 * number + half), "half": half} for half in (0, 1)]
        (tmp_path / "in" / f"{number}.json").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    session = spark.newSession()
    session.conf.set(_INTERVAL, "2")
    read = session.readStream.schema("id string, half int").option("maxFilesPerTrigger", 1).json(str(tmp_path / "in"))
    output = tmp_path / "out"
    writer = read.writeStream.format(form).option("path", str(output)).partitionBy("half").trigger(availableNow=True)
    writer = with_options(writer, SparkFileSink(output).writer_options("a token"))
    writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()

    entries = {
        file.name: [json.loads(line)["blockSize"] for line in file.read_text(encoding="utf-8").splitlines()[1:]]
        for file in (output / "_spark_metadata").iterdir()
        if not file.name.startswith(".")
    }
    mark = mark_of("a token")
    assert entries == {"0": [mark] * 2, "1.compact": [mark] * 4, "2": [mark] * 2}
    assert mark != mark_of("another token")
    found = session.read.format(form).schema("value string" if form == "text" else "id string")
    assert sorted(row[0] for row in found.load(str(output)).collect()) == [str(key) for key in range(2 * _FILES)]
