"""A run of two jobs, one with state and one without: ``python -m tests.jobs.releases.driver ROOT WORD``.

Which release of Spark runs them is a matter of the Python that starts this. The word:

* ``finish``: reads one new file to the end.
* ``die``: reads one new file in a run without end, and kills itself when the file is in the sink.
* ``alone``: reads two new files by Spark alone, to the end of the data.
* ``fork``: makes jobs of what Spark alone has left, and reads one new file to the end.
* ``go back``: finds that it is refused, and then goes back to the first checkpoint, to the end of the data.

The last line printed is JSON: of each job, what it began with, or why it was refused.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_ckpt.errors import RestoreRefused
from dagster_ckpt.spark.events import Started
from tests.helpers.local_spark import small_spark
from tests.jobs.harness import Bench, copied, deduplicated, eventually
from tests.jobs.plain.plain import BACKENDS, Plain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOBS = {"stateless": copied, "stateful": deduplicated}


def job_in(root: Path, name: str, spark: SparkSession) -> Bench:
    """A job of an earlier process, or a new one."""
    landed = len(list((root / name / "in").glob("*.json")))
    return Bench(spark, root / name, name=name, query=JOBS[name], landed=landed)


def finish(bench: Bench) -> dict[str, str | None]:
    """Read one new file to the end of the data."""
    restored = bench.tick(1).started.restored
    bench.assert_exact()
    if restored is None:
        return {}
    return {"restored": restored.kind, "of Spark": restored.facts.spark_version}


def begin_to_die(bench: Bench) -> dict[str, str | None]:
    """Read one new file in a run that goes on, without a checkpoint of it."""
    bench.until_done = False
    launch = bench.launch()
    eventually("the query starts", lambda: bool(launch.of(Started)), unless=launch.check)
    bench.land(1)
    bench.await_in_sink(launch)
    return {}


def alone(bench: Bench) -> dict[str, str | None]:
    """Run the query without the library."""
    Plain(bench, BACKENDS["rocksdb"], bench.root / "plain").tick(2)
    bench.assert_exact()
    return {}


def fork(bench: Bench) -> dict[str, str | None]:
    """Go on where Spark alone has stopped."""
    restored = bench.tick(1, fork_from=str(bench.root / "plain")).started.restored
    bench.assert_exact()
    assert restored is not None
    return {"restored": restored.kind}


def go_back(bench: Bench) -> dict[str, str | None]:
    """Show that this Spark refuses the job, and do what the hint says."""
    refusal = bench.refused(RestoreRefused)
    first, *_ = bench.checkpoints()
    bench.tick(1, restore_from=first.reference)
    bench.assert_exact()
    return {"refused": refusal.message, "hint": refusal.hint, "restored": first.facts.spark_version}


def main() -> None:
    """Run both jobs as the words say."""
    root, word = Path(sys.argv[1]), sys.argv[2]
    spark = small_spark(root / f"spark-{os.getpid()}", cores=1)
    words = {"finish": finish, "die": begin_to_die, "alone": alone, "fork": fork, "go back": go_back}
    told = {name: words[word](job_in(root, name, spark)) for name in JOBS}
    print(json.dumps({"Spark": spark.version, **told}), flush=True)  # noqa: T201 - what the test reads
    if word == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    spark.stop()


if __name__ == "__main__":
    main()
