"""``<job>_checkpoint``: the Dagster job whose run has a checkpointed job take a checkpoint at once."""

# No `from __future__ import annotations`: Dagster must find a real type on the nested op function.

import logging
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import dagster as dg
from pydantic import Field

from dagster_ckpt.clock import SystemClock
from dagster_ckpt.config import format_size
from dagster_ckpt.orchestration import names
from dagster_ckpt.orchestration.events import say
from dagster_ckpt.orchestration.storages import CheckpointStorage

__all__ = ["build_checkpoint_job"]


class CheckpointNowConfig(dg.Config):
    """Run configuration of a job that asks for a checkpoint."""

    timeout: str = Field(default="10 min", description="How long to wait for the checkpoint, such as '10 min'.")


def build_checkpoint_job(name: str, checkpoints_key: dg.AssetKey, storage_key: str) -> dg.JobDefinition:
    """The job: it asks the running job for a checkpoint, and waits until the checkpoint is complete.

    It lacks the tag of the checkpointed job: its runs do not wait for the job's run to end, and are not resumed.

    Args:
        name: of the checkpointed job.
        checkpoints_key: the asset that stands for its checkpoints.
        storage_key: resource key of the checkpoint storage.
    """

    @dg.op(
        name=f"{name}_take_checkpoint",
        config_schema=CheckpointNowConfig.to_fields_dict(),
        required_resource_keys={storage_key},
        description="Asks the running job for a checkpoint, and waits until the checkpoint is complete.",
    )
    def take_checkpoint(context: dg.OpExecutionContext) -> None:
        from dagster_ckpt.checkpoint import ask_checkpoint  # noqa: PLC0415 - only for runs

        storage: CheckpointStorage = getattr(context.resources, storage_key)
        report = partial(say, context.log, logging.INFO)
        taken = ask_checkpoint(
            storage.catalog(name),
            timeout=context.op_config["timeout"],
            clock=SystemClock(),
            wait=time.sleep,
            report=report,
        )
        if taken is not None:
            report(f"{taken.pointer} has batch {taken.batch}.")
            context.add_output_metadata(
                {
                    "checkpoint": taken.pointer,
                    "batch": taken.batch,
                    "bytes": taken.size,
                    "size": format_size(taken.size),
                }
            )

    def config_of(given: Mapping[str, Any]) -> dict[str, Any]:
        return {"ops": {take_checkpoint.name: {"config": dict(given)}}}

    @dg.job(
        name=names.checkpoint_job(name),
        config=dg.ConfigMapping(config_of, config_schema=CheckpointNowConfig.to_fields_dict()),
        description=f"Has {name}, which must be running, take a checkpoint at once, whatever its interval: launch it, "
        f"and the checkpoint is a partition of {checkpoints_key.to_user_string()}.",
        executor_def=dg.in_process_executor,
        tags={names.MAX_RETRIES_TAG: "0"},
    )
    def checkpoint() -> None:
        take_checkpoint()

    return checkpoint
