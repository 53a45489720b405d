"""A Spark job whose checkpoints are in HDFS, and whose local disk may go; and the command line, without Spark."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from dagster_ckpt.filesystem import FileSystem, HdfsFileSystem
from dagster_ckpt.filesystem.hdfs import hadoop_jvm
from tests.jobs.harness import Bench

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.servers.hdfs_cluster import MiniDfs

pytestmark = pytest.mark.integration


@dataclass
class HdfsBench(Bench):
    """A job that keeps its checkpoints in HDFS."""

    stored: HdfsFileSystem | None = None

    @property
    def filesystem(self) -> FileSystem:
        assert self.stored is not None
        return self.stored

    def lose_local_disk(self) -> None:
        """What a new machine does not have: everything but input, output and HDFS."""
        shutil.rmtree(self.working)
        assert not self.storage.exists(), "nothing was written beside HDFS"


#: The command line, which says on its last line whether PySpark's gateway is still to be started.
_CLI = """
import sys
from dagster_ckpt.cli import main
try:
    main(sys.argv[1:])
finally:
    from pyspark import SparkContext
    print(SparkContext._gateway)
"""


def command(storage: HdfsFileSystem, *arguments: str) -> str:
    """Run it in a process without a Spark session; what it says."""
    environment = {
        **os.environ,
        "DAGSTER_CKPT_PATH": storage.url,
        "DAGSTER_CKPT_STORAGE_OPTIONS": json.dumps(dict(storage.storage_options)),
    }
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _CLI, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == "", "nothing of what the JVM says comes through"
    said, _, gateway = done.stdout.rstrip("\n").rpartition("\n")
    assert gateway == "None", "the options of the JVM of a session that is started later are its own"
    return said


# It makes as many objects as the worker's session has had: minutes at the end of a long run.
@pytest.mark.exhaustive
def test_what_hadoop_says_is_not_looked_up_in_the_jvm_of_the_session(
    spark: SparkSession, storage: HdfsFileSystem
) -> None:
    """py4j numbers the objects of each JVM; PySpark takes the number of every exception for one of its session's."""
    storage.list("")
    assert hadoop_jvm._running is not None
    hadoop = hadoop_jvm._running._gateway.jvm
    of_spark = [spark._jvm.java.lang.Object()]  # type: ignore[union-attr]

    def number(made: Any) -> int:
        return int(made._target_id.removeprefix("o"))

    enough = max(number(of_spark[0]), number(hadoop.java.lang.Object())) + 1000
    while number(of_spark[-1]) < enough:
        of_spark.append(spark._jvm.java.lang.Object())  # type: ignore[union-attr]
    while number(hadoop.java.lang.Object()) < number(of_spark[0]):
        pass
    with pytest.raises(FileNotFoundError):
        storage.read("missing")


def test_a_job_goes_on_from_hdfs_alone(
    spark: SparkSession, tmp_path: Path, storage: HdfsFileSystem, cluster: MiniDfs
) -> None:
    bench = HdfsBench(spark, tmp_path, stored=storage)
    first = bench.tick(2)
    bench.lose_local_disk()
    cluster.stop_namenode()
    cluster.start_namenode()
    second = bench.tick(1)
    assert second.started.restored == first.completed[-1]
    bench.assert_exact()
    bench.lose_local_disk()
    target = first.completed[-1]
    back = bench.tick(1, restore_from=f"{storage.url}/tiny/{target.reference}/_metadata")
    assert back.started.restored == target
    bench.assert_exact()
    newest = back.completed[-1]
    rows = json.loads(command(storage, "list", "--json"))
    assert [row["checkpoint"] for row in rows if row["newest"]] == [newest.reference]
    assert command(storage, "verify", "tiny").count("verified") == len(rows)
