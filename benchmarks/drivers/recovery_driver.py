"""A driver of a small stream with state, in a process of its own, for ``recovery.py``.

    python benchmarks/drivers/recovery_driver.py ROOT LIVE LEASE [standby]

ROOT has the input (``in``), the output and the storage; LIVE is the name of the working directory of this host; LEASE
is in seconds, with a heartbeat each fifth of it. With ``standby`` it goes on in a standby's JVM, and keeps another one.
"""

from __future__ import annotations

import os
import sys
import uuid
from datetime import timedelta
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.failures.stream import CONF, JOB, PARALLELISM, query
from dagster_ckpt.checkpoint.taking.shared_files import DEFAULT_INLINE_THRESHOLD
from dagster_ckpt.clock import SystemClock
from dagster_ckpt.config.checkpoint_config import CheckpointConfig
from dagster_ckpt.config.recovery import RestoreRequest
from dagster_ckpt.config.restart import RestartStrategies
from dagster_ckpt.filesystem import open_filesystem
from dagster_ckpt.orchestration import SparkSessionResource
from dagster_ckpt.spark import StreamingJob, StreamingRun


def main(root: Path, live: str, lease: timedelta, *, standby: bool) -> None:
    """Drive the stream until this process is killed."""
    spark = SparkSessionResource(master=f"local[{PARALLELISM}]", conf=CONF, standby=int(standby))

    job = StreamingJob(
        name=JOB,
        query=lambda session: query(session, root),
        session=partial(spark.session, JOB),
        start_jvm=partial(spark.start_jvm, JOB),
        config=CheckpointConfig(interval="1 s", heartbeat_interval=lease / 5, heartbeat_timeout=lease),
        restart=RestartStrategies.fixed_delay_restart(1000, "0 s"),
        filesystem=open_filesystem(str(root / "checkpoints")),
        working_directory=root / live,
        deployment="benchmark",
        inline_threshold=DEFAULT_INLINE_THRESHOLD,
    )
    run_id, asked = str(uuid.uuid4()), RestoreRequest()
    spark.supervise(
        lambda emit: StreamingRun(job, run_id=run_id, request=asked, series=None, clock=SystemClock(), emit=emit),
        lambda _: None,
    )
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], timedelta(seconds=float(sys.argv[3])), standby=sys.argv[4:] == ["standby"])
