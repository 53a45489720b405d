"""Spark on Google's connector: ``python -m tests.system.connector.driver STEP JAR URL ROOT``.

``begin`` does with files what Spark does with them and then runs a stream until it is killed; ``finish`` runs the
stream to its end and reads what it wrote. The stream's input is in the directory ``ROOT``, all else in the bucket. What
was seen is told as lines of JSON.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_ckpt.spark.query.session import start_session, streaming_session
from dagster_ckpt.spark.run.supervisor import die_with_parent
from tests.helpers.local_spark import SMALL_DRIVER
from tests.helpers.telling import say
from tests.servers.gcs import BUCKET
from tests.servers.gcs_connector import connector_conf
from tests.system.connector.layout import DIRECTORY, LARGE, OURS, SCHEMA, TABLE_ROWS, large_content

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_SMALL = {
    **SMALL_DRIVER,
    "spark.sql.shuffle.partitions": "2",
    # Uploads and copies in several requests, without files as large as they take by default.
    "spark.hadoop.fs.gs.outputstream.upload.chunk.size": str(1 << 20),
    "spark.hadoop.fs.gs.rewrite.max.bytes.per.call": str(1 << 20),
    # Several at once in one batch, which by default are requests of their own in threads of their own.
    "spark.hadoop.fs.gs.batch.threads": "0",
}


def main(step: str, jar: Path, url: str, root: Path) -> None:
    """Do one step."""
    die_with_parent()
    spark = start_session("connector", "local[2]", _SMALL | connector_conf(url, jar))
    session = streaming_session(spark, None)
    if step == "begin":
        _tables(spark)
        _files(spark)
        query = _stream(session, root).start(_at("stream/out"))
        committed = -1
        while not query.awaitTermination(1):
            progress = query.lastProgress
            if progress is not None and progress.batchId > committed:
                committed = progress.batchId
                say(event="Committed", batch=committed)
        return
    _stream(session, root).trigger(availableNow=True).start(_at("stream/out")).awaitTermination()
    rows = spark.read.parquet(_at("stream/out")).select("id", "v").collect()
    say(event="Read", rows=sorted([row.id, row.v] for row in rows))
    say(event="Ended", status="FINISHED")


def _stream(session: SparkSession, root: Path) -> DataStreamWriter:
    """Each id once."""
    rows = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(root))
    writer = rows.dropDuplicates(["id"]).writeStream.format("parquet")
    return writer.option("checkpointLocation", _at("stream/checkpoint"))


def _tables(spark: SparkSession) -> None:
    """Written twice, in files that are committed by renames."""
    where = _at(f"{DIRECTORY}/table")
    spark.range(TABLE_ROWS * 2).repartition(3).write.parquet(where)
    spark.range(TABLE_ROWS).repartition(2).write.mode("overwrite").parquet(where)
    (row,) = spark.read.parquet(where).selectExpr("count(*) AS n", "sum(id) AS total").collect()
    say(event="Table", rows=row.n, total=row.total)


def _files(spark: SparkSession) -> None:
    """Hadoop's own operations, as Spark's file managers use them."""
    jvm: Any = spark._jvm
    context: Any = spark.sparkContext
    configuration = context._jsc.hadoopConfiguration()

    def path(name: str) -> Any:
        return jvm.org.apache.hadoop.fs.Path(_at(name))

    files = path("").getFileSystem(configuration)
    say(event="Class", name=files.getClass().getName())

    def write(name: str, data: bytes) -> None:
        stream = files.create(path(name), False)
        stream.write(data)
        stream.close()

    def read(name: str) -> bytes:
        stream = files.open(path(name))
        try:
            return bytes(jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()

    write(f"{DIRECTORY}/once", b"first")
    try:
        write(f"{DIRECTORY}/once", b"second")
    except Exception as error:  # py4j's, around whatever Java's class is
        say(event="Refused", error=str(error), still=read(f"{DIRECTORY}/once").decode())
    write(f"{DIRECTORY}/old/{LARGE}", large_content())
    write(f"{DIRECTORY}/old/empty", b"")
    renamed = files.rename(path(f"{DIRECTORY}/old"), path(f"{DIRECTORY}/new"))
    left = files.exists(path(f"{DIRECTORY}/old"))
    whole = read(f"{DIRECTORY}/new/{LARGE}") == large_content()
    say(event="Renamed", renamed=renamed, left=left, whole=whole)
    for number in range(5):
        write(f"{DIRECTORY}/gone/{number}", b"x")
    say(event="Deleted", deleted=files.delete(path(f"{DIRECTORY}/gone"), True), left=files.exists(path("files/gone")))
    say(event="Ours", content=read(OURS).decode())
    say(event="Listed", sizes=_sizes(files, path(DIRECTORY)))


def _sizes(files: Any, directory: Any) -> dict[str, int]:
    """Every file below a directory, with its size."""
    found, listed = {}, files.listFiles(directory, True)
    while listed.hasNext():
        status = listed.next()
        found[status.getPath().toUri().getPath().lstrip("/")] = int(status.getLen())
    return found


def _at(name: str) -> str:
    return f"gs://{BUCKET}/{name}"


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
