"""A run of a job that lets the first row of each day through: ``python -m tests.jobs.starting.zoned_driver ROOT``.

The host's time zone is that of ``TZ``. One new file is read. The last line printed is JSON: the days in the sink, and
the time zone in the newest checkpoint.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_ckpt.spark import start_session
from tests.helpers.local_spark import SMALL_DRIVER, set_up_jvms
from tests.jobs.harness import Bench

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_ZONE = "spark.sql.session.timeZone"


def first_of_each_day(bench: Bench, session: SparkSession) -> DataStreamWriter:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    rows = bench.read(session).withColumn("day", F.to_date("ts")).dropDuplicates(["day"])
    return bench.write(rows.selectExpr("CAST(day AS STRING) AS day"))


def main() -> None:
    """Read one new file to the end of the data."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    set_up_jvms()
    root = Path(sys.argv[1])
    conf = {key: value for key, value in SMALL_DRIVER.items() if key != _ZONE}
    home = root / f"spark-{os.getpid()}"
    own = {"spark.local.dir": str(home), "spark.sql.shuffle.partitions": "1"}
    spark = start_session("zoned", "local[1]", {**conf, **own})
    bench = Bench(spark, root / "job", query=first_of_each_day, landed=len(list((root / "job" / "in").glob("*.json"))))
    bench.tick(1)
    days = sorted(row.day for row in spark.read.parquet(str(bench.sink)).collect())
    zone = bench.checkpoints()[-1].facts.time_zone
    print(json.dumps({"days": days, "zone": zone}), flush=True)  # noqa: T201 - what the test reads
    spark.stop()


if __name__ == "__main__":
    main()
