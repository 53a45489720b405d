"""``@checkpointed_streaming_asset``: a streaming query as a Dagster asset whose checkpoints are assets too."""

# No `from __future__ import annotations`: Dagster must find real types on the nested op function.

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import timedelta
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
    UpgradeMode,
    configured_backend,
    duration_of,
)
from dagster_ckpt.errors import InvalidConfiguration
from dagster_ckpt.orchestration import names
from dagster_ckpt.orchestration.checkpointed_asset import (
    CheckpointedStreamingAsset,
    QueryFunction,
    partitions_name,
    stream_of,
    with_or_without_brackets,
)
from dagster_ckpt.orchestration.health import healthy_check
from dagster_ckpt.orchestration.proof import fresh_check, restorable_check
from dagster_ckpt.orchestration.query_parameters import QueryParameters
from dagster_ckpt.orchestration.rollback import build_rollback_job
from dagster_ckpt.orchestration.run_settings import JobSettings
from dagster_ckpt.orchestration.savepoints import build_checkpoint_job, savepoints_asset
from dagster_ckpt.orchestration.upgrades import versions_of

if TYPE_CHECKING:
    from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

__all__ = ["CheckpointedStreamingAsset", "StreamingRunConfig", "checkpointed_streaming_asset"]


class StreamingRunConfig(dg.Config):
    """Run configuration of a checkpointed streaming asset."""

    restore_from: str = Field(
        default="latest",
        description="'latest' goes on from the newest checkpoint; 'none' starts from nothing (the sink must be empty); "
        "'chk-12', '<job id>/chk-12' or the path of a checkpoint goes back to it; the path of a savepoint, or "
        "'savepoint:<name>', begins a new lineage from it.",
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
    state_partitions: int | None = Field(
        default=None,
        description="The number of partitions that the query's state gets, in the restored copy: Spark 4.2 and later "
        "repartition it before the query starts. The checkpoint itself stays as it is. For this start only.",
    )
    start_sources: dict[str, Any] | None = Field(
        default=None,
        description="Where topics of Kafka are read from, in the restored copy: by topic, offsets by partition as in "
        '{orders: {"0": 17}}, a time in ISO 8601 with its zone, "earliest" or "latest". With allow_loss if records are '
        "skipped or read twice, which a refused run counts. For this start only.",
    )
    code_version: str | None = Field(
        default=None,
        description="The version of the code that the job runs from now on, of those that the asset has; by default "
        "the one that is deployed, or was cut over to.",
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


_NOTHING: Any = dg.Nothing
#: Dagster takes less than a storage does: of a job's name the letters, of a tag's value the length.
_NAME_IN_DAGSTER = re.compile(r"[A-Za-z0-9_]{1,63}")
#: What the figures of a checkpoint are, for those who read them in the UI.
_FIGURES = (
    "Of each checkpoint: *bytes*, what a restore reads; *new_bytes*, what no earlier checkpoint had; *duration_ms*, "
    "pinning and writing; *pin_ms*, pinning alone, the only step that has to keep up with the query; *align_ms*, "
    "waiting for the batch in flight. In *deleted_when*, SUBSUMED means that newer checkpoints take its place, and the "
    "other words are ends of the job."
)


@with_or_without_brackets
def checkpointed_streaming_asset(
    *,
    name: str | None = None,
    key_prefix: str | Sequence[str] | None = None,
    job_name: str | None = None,
    deps: Iterable[Any] | None = None,
    config: CheckpointConfig | None = None,
    restart: RestartStrategy | None = None,
    poison_batch_attempts: int | None = POISON_BATCH_ATTEMPTS,
    configuration: Mapping[str, Any] | Configuration | None = None,
    state_backend: StateBackend | None = None,
    storage_key: str = "checkpoint_storage",
    spark_key: str = "spark",
    report_interval: str | timedelta = "10 s",
    most_restarts_per_hour: int | None = 10,
    group_name: str | None = None,
    kinds: set[str] | None = None,
    description: str | None = None,
    owners: Sequence[str] | None = None,
    tags: Mapping[str, str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    code_version: str | None = None,
    upgrade_mode: UpgradeMode | str = UpgradeMode.LAST_STATE,
    upgrade_timeout: str | timedelta | None = None,
    previous: Mapping[str, QueryFunction] | None = None,
    green: Mapping[str, QueryFunction] | None = None,
    standby: bool = False,
    rehearsal: bool = False,
    automation_condition: dg.AutomationCondition[Any] | None = None,
    freshness_policy: Any = None,
    pool: str | None = None,
    op_tags: Mapping[str, Any] | None = None,
    run_tags: Mapping[str, str] | None = None,
    hooks: AbstractSet[dg.HookDefinition] | None = None,
) -> Callable[[QueryFunction], CheckpointedStreamingAsset]:
    """Make a streaming query an asset that is checkpointed, and continues from its newest checkpoint.

    The function takes ``context`` and ``spark`` and returns a ``DataStreamWriter`` that is not started. This library
    sets the live checkpointLocation, starts and stops the query, and takes the checkpoints.

    A third parameter and more are resources, by the names of their keys. A parameter whose type is a ``dg.Config`` is
    the function's own part of the run configuration, whose fields lie beside those of :class:`StreamingRunConfig`.

    .. code-block:: python

        @checkpointed_streaming_asset(deps=[landed], config=CheckpointConfig(interval="1 min"))
        def delays(context: dg.AssetExecutionContext, spark: SparkSession) -> DataStreamWriter:
            flights = spark.readStream.schema(SCHEMA).parquet("landing")
            return flights.writeStream.format("parquet").option("path", "delays")

    Args:
        name: the asset's name; the function's by default.
        key_prefix: before the name in the asset key, as if ``load_assets_from_modules`` had given it.
        job_name: the job's stable name, under which its checkpoints are kept; by default the asset key. An asset that
            is renamed goes on from its checkpoints with the name that it had.
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
        report_interval: the least time between two reports of checkpoints to Dagster.
        most_restarts_per_hour: with more restarts the check ``healthy`` is yellow; ``None`` for any number.
        group_name: as of any asset.
        kinds: as of any asset.
        description: as of any asset.
        owners: as of any asset.
        tags: as of any asset.
        metadata: as of any asset.
        code_version: as of any asset. Checkpoints record it, so that the next start notices a change.
        upgrade_mode: what a new ``code_version`` goes on from: ``last-state``, the newest checkpoint; ``savepoint``,
            only the savepoint that the version before was stopped with; ``stateless``, nothing.
        upgrade_timeout: a new ``code_version`` that has worked, or failed, for so long without a checkpoint is taken
            back, and the job returns to the version before; longer than the interval of checkpoints. ``None``: never.
        previous: the functions of earlier versions by their ``code_version``, so that the job returns to one at once.
            Without them the job returns when the code of the version before is deployed again.
        green: the functions of versions that a cut-over may put in the place of ``code_version``, by their version. One
            of them runs from when a run is launched with its version as ``code_version``.
        standby: beside a running job another Dagster run waits, with a Spark that is started and warm, and takes the
            job over when the job's run is dead.
        rehearsal: the standby lets the query compute its next batch on a copy of the newest checkpoint, for nobody;
            for that it calls the function once more beside the running job.
        automation_condition: as of any asset.
        freshness_policy: as of any asset.
        pool: as of any asset.
        op_tags: as of any asset.
        run_tags: tags of the runs of the job; a resumed run has the tags of the run that it resumes.
        hooks: as of any asset.

    Raises:
        InvalidConfiguration: a job cannot have the name, the configuration or the parameters of the
            function cannot be used, or a pool is to hold a standby.
    """
    settings = JobSettings.of(
        config or CheckpointConfig(),
        restart or RestartStrategies.fall_back_restart(),
        configuration,
        poison_batch_attempts,
    )
    if standby and pool is not None:
        raise InvalidConfiguration(
            "standby=True has no effect together with a pool: the standby would wait for the place of the job's run.",
            hint="Leave out the pool or the standby.",
        )
    report_every = duration_of("report_interval", report_interval, "10 s")
    if most_restarts_per_hour is not None and most_restarts_per_hour < 0:
        raise InvalidConfiguration(
            f"most_restarts_per_hour is {most_restarts_per_hour}, and no job can restart less often than never.",
            hint="Set it to 0 or more, or to None for any number.",
        )
    versions = versions_of(settings.config, code_version, upgrade_mode, upgrade_timeout, previous or {}, green)

    def decorate(function: QueryFunction) -> CheckpointedStreamingAsset:
        parameters = QueryParameters.of(function, set(StreamingRunConfig.model_fields))
        prefix = [key_prefix] if isinstance(key_prefix, str) else list(key_prefix or ())

        @dg.asset(
            key=dg.AssetKey([*prefix, name or function.__name__]),
            deps=list(deps or ()),
            group_name=group_name,
            kinds=kinds,
            description=description or function.__doc__,
            owners=owners,
            tags=tags,
            metadata=metadata,
            code_version=code_version,
            automation_condition=automation_condition,
            freshness_policy=freshness_policy,
            pool=pool,
            op_tags=op_tags,
            hooks=hooks,
            required_resource_keys={storage_key, spark_key, *parameters.resources},
            config_schema={**StreamingRunConfig.to_fields_dict(), **parameters.config_fields()},
            output_required=not standby,  # a standby that has nothing to do materializes nothing
            dagster_type=_NOTHING,
        )
        def streaming(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult[None]]:
            from dagster_ckpt.orchestration.streaming_run import execute  # noqa: PLC0415 - Spark, only for runs

            # A run of the asset graph has no tags of the job's.
            missing = names.of_stream(context.run.tags).items() - context.run.tags.items()
            if missing:
                context.instance.add_run_tags(context.run.run_id, dict(missing))
            yield from execute(context, stream_of(context), report_every.total_seconds())

        def operate(
            output: dg.AssetsDefinition, before: CheckpointedStreamingAsset | None
        ) -> CheckpointedStreamingAsset:
            # Dagster makes an asset in too many steps to repeat them in a subclass, so the subclass takes the result.
            asset = CheckpointedStreamingAsset.__new__(CheckpointedStreamingAsset)
            vars(asset).update(
                vars(output),
                operate=operate,
                function=function,
                parameters=parameters,
                settings=settings,
                state_backend=state_backend or configured_backend(settings.configuration),
                versions=versions,
                storage_key=storage_key,
                spark_key=spark_key,
                most_restarts_per_hour=most_restarts_per_hour,
                rehearses=rehearsal,
                op_name=output.op.name,
            )
            if before is None or before.key != asset.key:
                _name(asset, job_name or "__".join(asset.key.path), run_tags, standby=standby)
            else:  # a sensor that watches the job of the one watches the job of the other
                vars(asset).update({given: getattr(before, given) for given in _OF_THE_KEY})
            _keep_in_group(asset)
            return asset

        return operate(streaming, None)

    return decorate


#: What follows from the key of the output asset.
_OF_THE_KEY = (
    *("checkpoints_key", "savepoints_key", "name", "job", "standby", "rollback", "checkpoint_now"),
    *("healthy", "restorable", "fresh"),
)


def _name_in_dagster(job_name: str) -> str:
    if _NAME_IN_DAGSTER.fullmatch(layout.validate_job_name(job_name)) is None:
        raise InvalidConfiguration(
            f"{job_name!r} cannot be the name of a job in Dagster: jobs and tags of Dagster have that name.",
            hint="Give @checkpointed_streaming_asset a job_name of at most 63 letters, digits and '_'.",
        )
    return job_name


def _name(
    asset: CheckpointedStreamingAsset, job_name: str, run_tags: Mapping[str, str] | None, *, standby: bool
) -> None:
    """Give an asset what follows from its key, but for the group: Dagster jobs, checks and the keys beside it."""
    key, job, storage_key = asset.key, _name_in_dagster(job_name), asset.storage_key
    # Where the UI is short of space it shows the last part of a key only, so that part names the job.
    checkpoints_key, savepoints_key = (
        dg.AssetKey([*key.path[:-1], f"{key.path[-1]}_{kept}"]) for kept in ("checkpoints", "savepoints")
    )
    vars(asset).update(
        checkpoints_key=checkpoints_key,
        savepoints_key=savepoints_key,
        name=job,
        job=_job(job, key, run_tags),
        standby=_standby_job(job, key) if standby else None,
        rollback=build_rollback_job(
            job,
            checkpoints_key=checkpoints_key,
            partitions=partitions_name(job),
            storage_key=storage_key,
            op_name=asset.op_name,
            settings=asset.settings,
            versions=asset.versions,
        ),
        checkpoint_now=build_checkpoint_job(job, checkpoints_key, storage_key),
        healthy=healthy_check(key, job, storage_key, asset.settings, asset.op_name, asset.most_restarts_per_hour),
        restorable=restorable_check(key, job, storage_key),
        fresh=fresh_check(key, job, storage_key, asset.settings, asset.op_name),
    )


def _keep_in_group(asset: CheckpointedStreamingAsset) -> None:
    """Give an asset its checkpoints and savepoints, which are in the group that the asset is in."""
    key, job = asset.key, asset.name
    group_name = asset.get_asset_spec(key).group_name
    vars(asset).update(
        checkpoints=dg.AssetSpec(
            asset.checkpoints_key,
            deps=[key],
            group_name=group_name,
            kinds={"spark"},
            description=f"The retained checkpoints of {key.to_user_string()}. A partition is a checkpoint that "
            "can be restored now; it goes when the checkpoint is subsumed. To go back to a checkpoint, click its "
            f"partition, then *go back* in its metadata, then *Launch Run*; or launch {names.rollback_job(job)}."
            f"\n\n{_FIGURES}",
            tags={names.JOB_TAG: job},
            metadata={"deleted_when": asset.config.discarded_when()},
            partitions_def=dg.DynamicPartitionsDefinition(name=partitions_name(job)),
        ),
        savepoints=savepoints_asset(
            asset.savepoints_key,
            key,
            job,
            asset.storage_key,
            group_name,
        ),
    )


def _standby_job(name: str, key: dg.AssetKey) -> "UnresolvedAssetJobDefinition":
    return dg.define_asset_job(
        names.standby_job(name),
        selection=dg.AssetSelection.assets(key).without_checks(),
        description=f"Waits beside the run of {key.to_user_string()} with a warm Spark, and takes the job over when "
        "that run is dead. The resume sensor launches it.",
        executor_def=dg.in_process_executor,
        # Not the job's own tag before the run has taken the job over: one run at a time may have that.
        tags=names.of_stream({names.STANDBY_OF_TAG: name}),
    )


def _job(name: str, key: dg.AssetKey, run_tags: Mapping[str, str] | None) -> "UnresolvedAssetJobDefinition":
    return dg.define_asset_job(
        names.stream_job(name),
        # A check that is planned with the run would count as running for as long as the stream runs.
        selection=dg.AssetSelection.assets(key).without_checks(),
        description=f"Runs {key.to_user_string()}, going on from its newest checkpoint.",
        # One process: a dying run worker then leaves no step process behind.
        executor_def=dg.in_process_executor,
        tags=names.of_stream({**(run_tags or {}), names.JOB_TAG: name}),
    )
