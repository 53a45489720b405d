"""What a driver process tells its test: each event a line of JSON on standard output."""

from __future__ import annotations

import json
import os
import sys
import uuid

from dagster_ckpt.clock import SystemClock
from dagster_ckpt.config.recovery import RestoreRequest
from dagster_ckpt.spark.events import CheckpointCompleted, CheckpointFailed, Event, Restarting, Started
from dagster_ckpt.spark.job import StreamingJob
from dagster_ckpt.spark.run.job_run import StreamingRun
from dagster_ckpt.spark.run.supervisor import supervise


def drive(job: StreamingJob, request: RestoreRequest | None = None) -> None:
    """Drive a job to its end, telling its events, and end the process."""
    asked = request or RestoreRequest()
    result = supervise(
        lambda emit: StreamingRun(
            job, run_id=str(uuid.uuid4()), request=asked, series=None, clock=SystemClock(), emit=emit
        ),
        tell,
    )
    say(event="Ended", status=result.status.value)
    # Spark's shutdown hooks would wait for a cluster that may be gone; nothing is left to be done.
    sys.stdout.flush()
    os._exit(0)


def tell(event: Event) -> None:
    match event:
        case Started():
            restored = event.restored
            say(
                event="Started",
                epoch=event.epoch,
                restored=None if restored is None else restored.reference,
                kind=None if restored is None else restored.kind,
                batch=None if restored is None else restored.batch,
                sink=event.sink,
            )
        case CheckpointCompleted():
            say(event="Completed", checkpoint=event.metadata.reference, batch=event.metadata.batch)
        case CheckpointFailed():
            say(event="Failed", reason=event.reason)
        case Restarting():
            say(event="Restarting", error=event.error, reason=event.reason)


def say(**facts: object) -> None:
    print(json.dumps(facts), flush=True)  # noqa: T201 - what the test reads
