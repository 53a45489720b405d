"""The component: its attributes, and the definitions that it makes of them."""

# No `from __future__ import annotations`: Dagster reads real types from the fields. Of a field with a resolver it reads
# the type of the YAML; what the resolver makes is `Any` here, because Dagster would look for the YAML's fields in it.

from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, Literal

import dagster as dg
from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.fields import FieldInfo

from dagster_ckpt.orchestration.component import attributes
from dagster_ckpt.orchestration.component.scaffolder import CheckpointedStreamScaffolder
from dagster_ckpt.orchestration.definitions import build_checkpoint_definitions
from dagster_ckpt.orchestration.proof import build_job_report, build_restore_drill
from dagster_ckpt.orchestration.savepoints import build_savepoint_schedule
from dagster_ckpt.orchestration.sensors import on_job_failed
from dagster_ckpt.orchestration.streaming_asset import checkpointed_streaming_asset

__all__ = ["CheckpointedStreamComponent"]

_Text = str | int | float | bool | None
_Texts = dict[str, str | int | float | bool] | None


def _block(make: Callable[..., Any], options: type[dg.Model]) -> dg.Resolver:
    """Makes a value of a block of options; ``make`` finds the templates in it as they are written."""
    return dg.Resolver(make, model_field_type=options, inject_before_resolve=False)


@dg.scaffold_with(CheckpointedStreamScaffolder)
class CheckpointedStreamComponent(dg.Component, dg.Resolvable, dg.Model):
    """A Spark stream that is checkpointed, and continues from its newest checkpoint after a failure.

    .. code-block:: yaml

        type: dagster_ckpt.CheckpointedStreamComponent
        attributes:
          function: my_project.defs.turnover.query:turnover
          storage: {checkpoint_path: /data/checkpoints, savepoint_path: /data/savepoints}
          checkpoint: {interval: 30 s, num_retained: 20}
          restart: {type: fixed_delay, restart_attempts: 3, delay_between_attempts: 10 s}
          spark: {master: "local[4]", conf: {spark.sql.shuffle.partitions: 4}}
          savepoints:
            - {cron_schedule: "0 3 * * *", name: nightly, keep: 14}
    """

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    function: Annotated[
        Callable[..., Any],
        dg.Resolver(
            attributes.query_function,
            model_field_type=str,
            description="'module:name' of the function that takes context and spark and returns a DataStreamWriter.",
        ),
    ]
    name: str | None = Field(default=None, description="Of the asset; by default that of the function.")
    key_prefix: list[str] | None = Field(default=None, description="Before the name in the asset key.")
    job_name: str | None = Field(
        default=None, description="The job's stable name, of its checkpoints; by default the asset key."
    )
    deps: list[str] = Field(default_factory=list, description="Keys of the assets that the query reads.")
    storage: Annotated[Any, _block(attributes.storage, attributes.StorageAttributes)] = Field(
        default=None, description="Where checkpoints are kept; by default the resource called storage_key."
    )
    storage_key: str = Field(default="checkpoint_storage", description="Of the project's storage, without `storage`.")
    checkpoint: Annotated[Any, _block(attributes.checkpoint_config, attributes.CheckpointAttributes)] = Field(
        default=None, description="When checkpoints are taken, and how many are kept."
    )
    restart: Annotated[Any, _block(attributes.restart_strategy, attributes.RestartAttributes)] = Field(
        default=None, description="What happens after a failure; by default exponential delay."
    )
    poison_batch_attempts: int | None = Field(
        default=5, description="How often one batch may fail with one error; null for any number."
    )
    most_restarts_per_hour: int | None = Field(
        default=10, description="With more restarts the check `healthy` is yellow; null for any number."
    )
    spark: Annotated[Any, _block(attributes.spark_session, attributes.SparkAttributes)] = Field(
        default=None, description="How to start Spark; by default the resource called spark_key."
    )
    spark_key: str = Field(default="spark", description="Of the project's Spark, without `spark`.")
    configuration: dict[str, Any] = Field(
        default_factory=dict, description="Settings by Flink's keys, also of the state backend."
    )
    savepoints: list[attributes.SavepointScheduleAttributes] = Field(
        default_factory=list, description="Schedules that take savepoints."
    )
    group_name: str | None = Field(default=None, description="As of any asset.")
    kinds: list[str] | None = Field(default=None, description="As of any asset.")
    description: str | None = Field(default=None, description="As of any asset; by default that of the function.")
    owners: list[str] | None = Field(default=None, description="As of any asset.")
    tags: Annotated[Any, dg.Resolver(attributes.texts, model_field_type=_Texts)] = Field(
        default=None, description="As of any asset."
    )
    metadata: dict[str, Any] | None = Field(default=None, description="As of any asset.")
    code_version: Annotated[Any, dg.Resolver(attributes.text, model_field_type=_Text, inject_before_resolve=False)] = (
        Field(default=None, description="As of any asset; quote it in YAML, such as '1.10'.")
    )
    upgrade_mode: Literal["savepoint", "last-state", "stateless"] = Field(
        default="last-state", description="What a new code_version goes on from."
    )
    upgrade_timeout: str | None = Field(
        default=None, description="How long a new code_version may go without a checkpoint; null for any time."
    )
    previous: Annotated[Any, dg.Resolver(attributes.imported_by_name, model_field_type=dict[str, str] | None)] = Field(
        default=None, description="'module:name' of the functions of earlier versions, by their code_version."
    )
    green: Annotated[Any, dg.Resolver(attributes.imported_by_name, model_field_type=dict[str, str] | None)] = Field(
        default=None, description="'module:name' of the functions that a cut-over may put in place, by their version."
    )
    report_interval: str | None = Field(
        default="10 s", description="The least time between two reports of checkpoints to Dagster."
    )
    standby: bool = Field(default=False, description="Another run waits with a warm Spark, to take the job over.")
    rehearsal: bool = Field(
        default=False, description="A standby lets the query compute its next batch on a copy of the newest checkpoint."
    )
    pool: str | None = Field(default=None, description="As of any asset.")
    op_tags: dict[str, Any] | None = Field(default=None, description="As of any asset.")
    run_tags: Annotated[Any, dg.Resolver(attributes.texts, model_field_type=_Texts)] = Field(
        default=None, description="Of the runs of the job."
    )

    automation_condition: Annotated[Any, dg.Resolver(attributes.imported, model_field_type=str | None)] = Field(
        default=None, description="'module:name' of a dg.AutomationCondition."
    )
    freshness_policy: Annotated[Any, dg.Resolver(attributes.imported, model_field_type=str | None)] = Field(
        default=None, description="'module:name' of a dg.FreshnessPolicy."
    )
    hooks: Annotated[Any, dg.Resolver(attributes.imported_set, model_field_type=list[str] | None)] = Field(
        default=None, description="'module:name' of each hook."
    )
    drill: Annotated[Any, _block(attributes.drill, attributes.DrillAttributes)] = Field(
        default=None, description="A restore drill of the job, and its schedules."
    )
    report: Annotated[Any, _block(attributes.report, attributes.ReportAttributes)] = Field(
        default=None, description="A report of the job with charts, and its schedule."
    )
    alert: Annotated[Any, dg.Resolver(attributes.imported, model_field_type=str | None)] = Field(
        default=None, description="'module:name' of a function that is told once of each job that has FAILED."
    )
    sensor_name: str | None = Field(
        default=None, description="Of the resume sensor; by default the job's name and _resume_sensor."
    )

    @classmethod
    @cache
    def model(cls) -> type[BaseModel]:
        """What the YAML may say.

        Dagster would take a template for a whole block, too. Then no error could say which option is wrong, and where.
        """
        derived = super().model()
        blocks: dict[str, Any] = {
            name: (block, FieldInfo.merge_field_infos(derived.model_fields[name], annotation=block))
            for name, block in attributes.BLOCKS.items()
        }
        return create_model(derived.__name__, __base__=derived, **blocks)

    @classmethod
    def get_spec(cls) -> dg.ComponentTypeSpec:
        """What ``dg list components`` tells."""
        return dg.ComponentTypeSpec(
            description="A Spark stream with checkpoints and savepoints, resumed after failures.",
            produces=["asset", "asset_check", "job", "schedule", "sensor"],
        )

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """The asset and what operates it: as :func:`~dagster_ckpt.build_checkpoint_definitions`, and the schedules."""
        del context
        prefix = "__".join([*(self.key_prefix or ()), self.name or self.function.__name__])
        # Resources of the component's own have keys of their own, so that components beside it can have others.
        storage_key = self.storage_key if self.storage is None else f"{prefix}_checkpoint_storage"
        spark_key = self.spark_key if self.spark is None else f"{prefix}_spark"
        asset = checkpointed_streaming_asset(
            name=self.name,
            key_prefix=self.key_prefix,
            job_name=self.job_name,
            deps=[dg.AssetKey.from_user_string(key) for key in self.deps],
            config=self.checkpoint,
            restart=self.restart,
            poison_batch_attempts=self.poison_batch_attempts,
            most_restarts_per_hour=self.most_restarts_per_hour,
            configuration=self.configuration,
            storage_key=storage_key,
            spark_key=spark_key,
            group_name=self.group_name,
            kinds=None if self.kinds is None else set(self.kinds),
            description=self.description,
            owners=self.owners,
            tags=self.tags,
            metadata=self.metadata,
            code_version=self.code_version,
            upgrade_mode=self.upgrade_mode,
            upgrade_timeout=self.upgrade_timeout,
            previous=self.previous,
            green=self.green,
            report_interval=self.report_interval or "0 s",
            standby=self.standby,
            rehearsal=self.rehearsal,
            automation_condition=self.automation_condition,
            freshness_policy=self.freshness_policy,
            hooks=self.hooks,
            pool=self.pool,
            op_tags=self.op_tags,
            run_tags=self.run_tags,
        )(self.function)
        own = {storage_key: self.storage, spark_key: self.spark}
        schedules = [
            build_savepoint_schedule(asset, **attributes.savepoint_schedule(given)) for given in self.savepoints
        ]
        alerts = [] if self.alert is None else [on_job_failed([asset], self.alert, name=f"{asset.name}_failed_sensor")]
        drill = dg.Definitions() if self.drill is None else build_restore_drill(asset, **self.drill)
        report = dg.Definitions() if self.report is None else build_job_report(asset, **self.report)
        return dg.Definitions.merge(
            build_checkpoint_definitions(
                [asset],
                {key: item for key, item in own.items() if item is not None},
                sensor_name=self.sensor_name,
            ),
            dg.Definitions(schedules=schedules, sensors=alerts),
            drill,
            report,
        )
