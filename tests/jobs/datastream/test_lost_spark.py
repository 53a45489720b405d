"""A program whose JVM is killed: Spark that the program did not start itself is started again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.jobs.datastream.own_process import run_program

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

_PROGRAM = """
import json, os, signal, sys
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

from dagster_ckpt.datastream import RestartStrategies, StreamExecutionEnvironment
from dagster_ckpt.errors import DriverLost

root = Path(sys.argv[1])
if sys.argv[2] == "own":
    SparkSession.builder.master("local[1]").config("spark.mark", "of the program").getOrCreate()
(root / "in").mkdir()
(root / "in" / "0.json").write_text(json.dumps({"id": 1}))
jvms = []


def ids(session):
    jvms.append(SparkContext._gateway.proc.pid)
    if len(jvms) == 1:
        os.kill(jvms[0], signal.SIGKILL)
    rows = session.readStream.schema("id int").json(str(root / "in"))
    return rows.writeStream.format("parquet").option("path", str(root / "out")).trigger(availableNow=True)


env = StreamExecutionEnvironment.get_execution_environment()
env.get_checkpoint_config().set_checkpoint_storage_dir(str(root / "storage"))
env.set_restart_strategy(RestartStrategies.fixed_delay_restart(3, 100))
env.add_query(ids)
try:
    ended = env.execute("ids").queries[0].status
except DriverLost as error:
    ended = str(error)
print(json.dumps({"ended": ended, "starts": len(jvms), "jvms": len(set(jvms))}), flush=True)
"""


def run(root: Path, whose: str) -> dict[str, Any]:
    return run_program(_PROGRAM, root, whose, PYSPARK_SUBMIT_ARGS="--conf spark.ui.enabled=false pyspark-shell")


def test_a_program_goes_on_in_another_jvm(tmp_path: Path) -> None:
    assert run(tmp_path, "none") == {"ended": "FINISHED", "starts": 2, "jvms": 2}
    assert len(list((tmp_path / "out").glob("part-*.parquet"))) == 1


def test_spark_that_the_program_has_started_is_not_replaced(tmp_path: Path) -> None:
    """Nobody here knows its master and its settings."""
    found = run(tmp_path, "own")
    assert "belongs to a JVM of Spark that is gone" in found["ended"]
    assert found["starts"] == 1
