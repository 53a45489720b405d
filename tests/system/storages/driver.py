"""A driver of the example's stream: ``python -m tests.system.storages.driver STORAGE BACKEND ROOT``."""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path

from assets.delays import delays_query
from dagster_ckpt.config.checkpoint_config import CheckpointConfig
from dagster_ckpt.config.restart import FixedDelayRestart
from dagster_ckpt.spark.job import StreamingJob
from dagster_ckpt.spark.query.session import start_session
from dagster_ckpt.spark.run.supervisor import die_with_parent
from tests.helpers.local_spark import SMALL_DRIVER
from tests.helpers.telling import drive
from tests.system.cluster.layout import FILES_PER_TRIGGER, JOB, Shared
from tests.system.storages.kinds import BACKENDS, storage

_CONF = {
    **SMALL_DRIVER,
    "spark.sql.shuffle.partitions": "2",
}


def main(kind: str, backend: str, root: Path) -> None:
    """Drive the job to its end."""
    die_with_parent()
    shared = Shared(root)
    chosen = storage(kind, shared)
    job = StreamingJob(
        name=JOB,
        query=lambda session: delays_query(
            session, shared.landed, shared.output, max_files_per_trigger=FILES_PER_TRIGGER
        ).trigger(availableNow=True),
        session=lambda: start_session(JOB, "local[2]", _CONF),
        config=CheckpointConfig(interval="300 ms", num_retained=4),
        restart=FixedDelayRestart(3, timedelta(seconds=1)),
        filesystem=chosen.filesystem(),
        working_directory=shared.live,
        deployment="storages",
        inline_threshold=chosen.inline_threshold,
        max_state_size=chosen.size_limit,
        state_backend=BACKENDS[backend],
    )
    drive(job)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
