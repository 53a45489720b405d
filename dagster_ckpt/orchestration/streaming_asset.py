"""``@checkpointed_streaming_asset``: a streaming query as a Dagster asset whose checkpoints are assets too."""

# No `from __future__ import annotations`: Dagster must find real types on the nested op function.

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from dagster_ckpt.checkpoint import layout
from dagster_ckpt.config import (
    POISON_BATCH_ATTEMPTS,
    CheckpointConfig,
    Configuration,
    RecoveryClaimMode,
    RestartStrategies,
    RestartStrategy,
    StateBackend,
    configured_backend,
)
from dagster_ckpt.orchestration import names
from dagster_ckpt.orchestration.run_settings import JobSettings
from dagster_ckpt.orchestration.savepoint_asset import savepoints_asset

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["CheckpointedStreamingAsset", "StreamingRunConfig", "checkpointed_streaming_asset"]

QueryFunction = Callable[[dg.AssetExecutionContext, "SparkSession"], "DataStreamWriter"]


class StreamingRunConfig(dg.Config):
    """Run configuration of a checkpointed streaming asset."""

    restore_from: str = Field(
        default="latest",
        description="'latest' goes on from the newest checkpoint; 'none' starts from nothing (the sink must be empty); "
        "'chk-12', '<job id>/chk-12' or the path of a checkpoint goes back to it; the path of a savepoint begins a new "
        "lineage from it.",
    )
    claim_mode: RecoveryClaimMode | None = Field(
        default=None,
        description="Whose what restore_from points to becomes. CLAIM: the job goes on in its lineage and deletes it "
        "when it is subsumed, a savepoint too; NO_CLAIM: a new lineage begins and never touches it. Default: CLAIM for "
        "checkpoints, NO_CLAIM for savepoints.",
    )
    replay_to: str | None = Field(
        default=None,
        description="Up to which batch those after the checkpoint are run again with the boundaries they had: "
        "'latest', 'none', or a batch. Default: 'latest' when going on from the newest checkpoint, 'none' when going "
        "back to another.",
    )
    allow_loss: bool = Field(
        default=False,
        description="Restore although rows would be lost or doubled, as a refused run or `dagster-ckpt preflight` "
        "says. What was accepted is noted in the checkpoints from then on. For this start only.",
    )
    fork_from: str | None = Field(
        default=None,
        description="The path of a checkpoint or savepoint of any job. A job that has no checkpoint of its own begins "
        "with a copy of it, into an empty sink; the other job is not touched and may be running. With restore_from: "
        "latest only.",
    )
    fallback_to_older: bool | None = Field(
        default=None,
        description="Whether this run, and those that resume it, may go on from an older checkpoint when the newest is "
        "broken; by default what the asset's CheckpointConfig says.",
    )
    configuration: dict[str, Any] = Field(
        default_factory=dict,
        description="Settings by Flink's keys for this run and those that resume it, over those of the asset, such as "
        "{execution.checkpointing.interval: 10 s, restart-strategy.type: none}.",
    )


@dataclass(frozen=True, slots=True)
class CheckpointedStreamingAsset:
    """A streaming query under Dagster, made by :func:`checkpointed_streaming_asset`.

    Attributes:
        key: the output asset; use it in ``deps`` of other assets.
        checkpoints_key: ``<name>/checkpoints``.
        savepoints_key: ``<name>/savepoints``.
        name: the job's stable name, and the directory of its checkpoints.
        job_name: the Dagster job that materializes the output asset.
        op_name: the name under which ``run_config["ops"]`` configures the query.
        settings: when checkpoints are taken and kept and what happens after a failure, unless a run says otherwise.
        state_backend: keeps the query's state; ``None`` for Spark's configuration.
        storage_key: resource key of the checkpoint storage.
        spark_key: resource key of Spark.
        definition: the output asset.
        checkpoints: the checkpoints asset.
        savepoints: the asset whose materialization takes a savepoint.
    """

    key: dg.AssetKey
    checkpoints_key: dg.AssetKey
    savepoints_key: dg.AssetKey
    name: str
    job_name: str
    op_name: str
    settings: JobSettings
    state_backend: StateBackend | None
    storage_key: str
    spark_key: str
    definition: dg.AssetsDefinition
    checkpoints: dg.AssetSpec
    savepoints: dg.AssetsDefinition

    @property
    def config(self) -> CheckpointConfig:
        """When checkpoints are taken and kept, unless a run says otherwise."""
        return self.settings.config

    @property
    def restart(self) -> RestartStrategy:
        """What happens after a failure, unless a run says otherwise."""
        return self.settings.restart

    @property
    def partitions_name(self) -> str:
        """Name of the dynamic partitions that stand for the retained checkpoints."""
        return _partitions_name(self.name)


def checkpointed_streaming_asset(
    *,
    name: str | None = None,
    key_prefix: str | Sequence[str] | None = None,
    deps: Iterable[Any] | None = None,
    config: CheckpointConfig | None = None,
    restart: RestartStrategy | None = None,
    poison_batch_attempts: int | None = POISON_BATCH_ATTEMPTS,
    configuration: Mapping[str, Any] | Configuration | None = None,
    state_backend: StateBackend | None = None,
    storage_key: str = "checkpoint_storage",
    spark_key: str = "spark",
    report_interval: float = 10.0,
    group_name: str | None = None,
    kinds: set[str] | None = None,
    description: str | None = None,
    owners: Sequence[str] | None = None,
    tags: Mapping[str, str] | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Callable[[QueryFunction], CheckpointedStreamingAsset]:
    """Make a streaming query an asset that is checkpointed, and continues from its newest checkpoint.

    The function takes ``context`` and ``spark`` and returns a ``DataStreamWriter`` that is not started. This library
    sets the live checkpointLocation, starts and stops the query, and takes the checkpoints.

    .. code-block:: python

        @checkpointed_streaming_asset(deps=[landed], config=CheckpointConfig(interval="1 min"))
        def delays(context: dg.AssetExecutionContext, spark: SparkSession) -> DataStreamWriter:
            flights = spark.readStream.schema(SCHEMA).parquet("landing")
            return flights.writeStream.format("parquet").option("path", "delays")

    Args:
        name: the asset's name; the function's by default.
        key_prefix: before the name in the asset key.
        deps: assets that the query reads.
        config: when checkpoints are taken and kept; by default the safe values of :class:`CheckpointConfig`.
        restart: what happens after a failure; exponential delay by default.
        poison_batch_attempts: the job ends when the same batch failed this many times in a row with the same error,
            whatever ``restart`` still allows; 2 or more, or ``None`` for as often as ``restart`` allows.
        configuration: settings by Flink's keys, which win over ``config`` and ``restart``, and describe the state
            backend if ``state_backend`` is not given.
        state_backend: keeps the query's state; by default Spark's configuration decides, and without it RocksDB is
            used.
        storage_key: resource key of the checkpoint storage.
        spark_key: resource key of Spark.
        report_interval: the least seconds between two reports of checkpoints to Dagster.
        group_name: as of any asset.
        kinds: as of any asset.
        description: as of any asset.
        owners: as of any asset.
        tags: as of any asset.
        metadata: as of any asset.

    Raises:
        InvalidConfiguration: the name is not a possible directory name, or the configuration cannot be used.
    """
    settings = JobSettings.of(
        config or CheckpointConfig(),
        restart or RestartStrategies.fall_back_restart(),
        configuration,
        poison_batch_attempts,
    )

    def decorate(function: QueryFunction) -> CheckpointedStreamingAsset:
        prefix = [key_prefix] if isinstance(key_prefix, str) else list(key_prefix or ())
        key = dg.AssetKey([*prefix, name or function.__name__])
        checkpoints_key = dg.AssetKey([*key.path, "checkpoints"])
        savepoints_key = dg.AssetKey([*key.path, "savepoints"])
        job = layout.validate_job_name("__".join(key.path))
        dependencies = list(deps or ())

        @dg.asset(
            key=key,
            deps=dependencies,
            group_name=group_name,
            kinds=kinds,
            description=description or function.__doc__,
            owners=owners,
            tags=tags,
            metadata=metadata,
            required_resource_keys={storage_key, spark_key},
            config_schema=StreamingRunConfig.to_fields_dict(),
        )
        def streaming(context: dg.AssetExecutionContext) -> dg.MaterializeResult[None]:
            from dagster_ckpt.orchestration.streaming_run import execute  # noqa: PLC0415 - Spark, only for runs

            return execute(
                context,
                settings.of_run(context.op_execution_context.op_config),
                lambda session: function(context, session),
                name=asset.name,
                storage=getattr(context.resources, storage_key),
                spark=getattr(context.resources, spark_key),
                state_backend=asset.state_backend,
                checkpoints_key=checkpoints_key,
                partitions=asset.partitions_name,
                report_interval=report_interval,
            )

        asset = CheckpointedStreamingAsset(
            key=key,
            checkpoints_key=checkpoints_key,
            savepoints_key=savepoints_key,
            name=job,
            job_name=f"{job}_job",
            op_name=streaming.op.name,
            settings=settings,
            state_backend=state_backend or configured_backend(settings.configuration),
            storage_key=storage_key,
            spark_key=spark_key,
            definition=streaming,
            checkpoints=dg.AssetSpec(
                checkpoints_key,
                deps=dependencies,
                group_name=group_name,
                kinds={"spark"},
                description=f"The retained checkpoints of {key.to_user_string()}. A partition is a checkpoint that "
                "can be restored now; it goes when the checkpoint is subsumed.",
                tags={names.JOB_TAG: job},
                metadata={"deleted_when": settings.config.discarded_when()},
                partitions_def=dg.DynamicPartitionsDefinition(name=_partitions_name(job)),
            ),
            savepoints=savepoints_asset(
                savepoints_key,
                key,
                job,
                storage_key,
                group_name,
                deleted_when=settings.config.discarded_when(savepoint=True),
            ),
        )
        return asset

    return decorate


def _partitions_name(job: str) -> str:
    return f"{job}/checkpoints"
