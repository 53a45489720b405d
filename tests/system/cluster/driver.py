"""A driver of the example's stream on a cluster: ``python -m tests.system.cluster.driver MASTER ROOT``.

Everything that driver and executors share lies below ``ROOT``. Each event is a line of JSON on standard output.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path

from assets.delays import delays_query
from dagster_ckpt.config.checkpoint_config import CheckpointConfig
from dagster_ckpt.config.restart import FixedDelayRestart
from dagster_ckpt.filesystem import PosixFileSystem
from dagster_ckpt.spark.job import StreamingJob
from dagster_ckpt.spark.query.session import start_session
from dagster_ckpt.spark.run.supervisor import die_with_parent
from tests.helpers.local_spark import JVM_OPTIONS
from tests.helpers.telling import drive
from tests.system.cluster.layout import FILES_PER_TRIGGER, JOB, Shared


def main(master: str, root: Path) -> None:
    """Drive the job to its end."""
    die_with_parent()
    shared = Shared(root)
    conf = {
        "spark.cores.max": "2",
        "spark.executor.cores": "1",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": JVM_OPTIONS,
        # How long the blocks of a killed executor are asked for, three times.
        "spark.shuffle.io.retryWait": "1s",
        "spark.driver.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
    }
    job = StreamingJob(
        name=JOB,
        query=lambda session: delays_query(
            session, shared.landed, shared.output, max_files_per_trigger=FILES_PER_TRIGGER
        ).trigger(availableNow=True),
        session=lambda: start_session(JOB, master, conf),
        config=CheckpointConfig(interval="1 s", num_retained=4),
        restart=FixedDelayRestart(3, timedelta(seconds=1)),
        filesystem=PosixFileSystem(shared.storage),
        working_directory=shared.live,
        deployment="cluster",
        inline_threshold=20 * 1024,
    )
    drive(job)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
