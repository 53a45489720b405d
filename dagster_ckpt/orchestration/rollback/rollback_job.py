"""``<job>_rollback``: the Dagster job whose run takes a checkpointed job back."""

# No `from __future__ import annotations`: Dagster must find a real type on the nested op function.

from collections.abc import Mapping
from typing import Any

import dagster as dg
from pydantic import Field

from dagster_ckpt.orchestration import names
from dagster_ckpt.orchestration.run_settings import JobSettings
from dagster_ckpt.spark import Versions

__all__ = ["build_rollback_job"]


class RollbackConfig(dg.Config):
    """Run configuration of a rollback job."""

    to: str = Field(
        description="Where the job goes back to: a partition of its checkpoints asset, 'chk-12', '<job id>/chk-12', "
        "'savepoint:<name>', or the path of a checkpoint or savepoint. 'latest' restarts it from its newest "
        "checkpoint, 'now' stops it with a savepoint and goes on from there, and 'none' starts from nothing, into an "
        "empty sink.",
    )
    check_only: bool = Field(default=False, description="Tell whether that is possible, and change nothing.")
    allow_loss: bool = Field(
        default=False, description="Go back although rows would be lost or doubled, as the refused run has said."
    )
    state_partitions: int | None = Field(
        default=None, description="The number of partitions that the query's state gets there: Spark 4.2 and later."
    )
    start_sources: dict[str, Any] | None = Field(
        default=None, description="Where topics of Kafka are read from there, as in the launchpad of the job."
    )
    code_version: str | None = Field(
        default=None,
        description="The version of the code that the job runs from there on, of those that the asset has.",
    )


def build_rollback_job(
    name: str,
    *,
    checkpoints_key: dg.AssetKey,
    partitions: str,
    storage_key: str,
    op_name: str,
    settings: JobSettings,
    versions: Versions,
) -> dg.JobDefinition:
    """The job: it checks, terminates the runs of the checkpointed job, and has a run launched that goes back.

    It lacks the tag of the checkpointed job: its runs do not wait for the job's run to end, and are not resumed.

    Args:
        name: of the checkpointed job.
        checkpoints_key: the asset that stands for its checkpoints.
        partitions: name of the asset's dynamic partitions.
        storage_key: resource key of the checkpoint storage.
        op_name: of the query.
        settings: of the checkpointed job.
        versions: of its code.
    """

    @dg.op(
        name=f"{name}_go_back",
        config_schema=RollbackConfig.to_fields_dict(),
        required_resource_keys={storage_key},
        description="Checks where the job is to go back to, terminates its runs, and has one launched that goes back.",
    )
    def go_back(context: dg.OpExecutionContext) -> None:
        from dagster_ckpt.orchestration.rollback.going_back import Rollback  # noqa: PLC0415 - only for runs

        storage = getattr(context.resources, storage_key)
        Rollback(context, storage, checkpoints_key, partitions, op_name, settings, versions, name).run(
            **context.op_config
        )

    def config_of(given: Mapping[str, Any]) -> dict[str, Any]:
        return {"ops": {go_back.name: {"config": dict(given)}}}

    @dg.job(
        name=names.rollback_job(name),
        config=dg.ConfigMapping(config_of, config_schema=RollbackConfig.to_fields_dict()),
        description=f"Takes {name} back to a checkpoint or savepoint. Follow *go back* at a partition of "
        f"{checkpoints_key.to_user_string()}: the Launchpad is filled in. The run checks first, and is refused where "
        "rows would be lost; then it terminates the job's run and has a new one launched.",
        executor_def=dg.in_process_executor,
        tags={names.ROLLBACK_OF_TAG: name, names.MAX_RETRIES_TAG: "0"},
    )
    def rollback() -> None:
        go_back()

    return rollback
