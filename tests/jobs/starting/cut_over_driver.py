"""A driver of a job with two versions: ``python -m tests.jobs.starting.cut_over_driver ROOT [name=value ...]``.

Version 2 gives ids of new rows a minus. The words are those of the run's request; without ``until=done`` it has no end.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_ckpt.config.checkpoint_config import CheckpointConfig
from dagster_ckpt.config.recovery import RestoreRequest
from dagster_ckpt.spark.job import Versions
from dagster_ckpt.spark.query.session import start_session
from dagster_ckpt.spark.run.supervisor import die_with_parent
from tests.helpers.local_spark import SMALL_DRIVER
from tests.helpers.telling import drive
from tests.jobs.harness import Bench

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter


def main(root: Path, words: Mapping[str, str]) -> None:
    """Drive the job."""
    die_with_parent()
    no_session: Any = None  # the job starts its own
    bench = Bench(no_session, root, until_done=words.get("until") == "done")

    def version(value: str, session: SparkSession) -> DataStreamWriter:
        return bench.write(bench.read(session).dropDuplicates(["id"]).selectExpr("id", f"{value} AS v"))

    config = CheckpointConfig(interval=words.get("interval", "1 h"), min_pause="0 s")
    job = bench.job(config=config, query=lambda _, session: version("v", session))
    versions = Versions("1", green={"2": lambda session: version("-v", session)})
    session = lambda: start_session("cut over", "local[2]", {**SMALL_DRIVER, "spark.sql.shuffle.partitions": "1"})  # noqa: E731
    drive(
        replace(job, session=session, versions=versions),
        RestoreRequest(code_version=words.get("code_version")),
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), dict(word.split("=", 1) for word in sys.argv[2:]))
