"""What a driver process tells its test: each event a line of JSON on standard output."""

from __future__ import annotations

import json

from dagster_ckpt.spark.job import CheckpointCompleted, CheckpointFailed, Event, Restarting, Started


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
