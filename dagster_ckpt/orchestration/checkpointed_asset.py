"""What ``@checkpointed_streaming_asset`` makes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, cast, overload

import dagster as dg

from dagster_ckpt.config import CheckpointConfig, RestartStrategy, StateBackend
from dagster_ckpt.errors import InvalidConfiguration
from dagster_ckpt.orchestration.query_parameters import QueryParameters
from dagster_ckpt.orchestration.run_settings import JobSettings
from dagster_ckpt.spark import Versions

if TYPE_CHECKING:
    from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = [
    "CheckpointedStreamingAsset",
    "QueryFunction",
    "only_stream",
    "only_streams",
    "partitions_name",
    "stream_of",
    "with_or_without_brackets",
]

#: Takes the context, the session, and the resources and the configuration of its own.
QueryFunction = Callable[..., "DataStreamWriter"]
_Options = ParamSpec("_Options")


class CheckpointedStreamingAsset(dg.AssetsDefinition):
    """A streaming query under Dagster, made by :func:`checkpointed_streaming_asset`.

    It is the output asset, as ``@dg.asset`` makes one: for ``deps``, for ``Definitions(assets=[...])`` and for
    ``load_assets_from_modules``. :func:`~dagster_ckpt.build_checkpoint_definitions` adds what operates the asset.

    Attributes:
        checkpoints_key: ``<name>_checkpoints``.
        savepoints_key: ``<name>_savepoints``.
        name: the job's stable name, and the directory of its checkpoints.
        job: the Dagster job that materializes the output asset, for ``monitored_jobs`` of a sensor of yours too.
        standby: the Dagster job whose runs wait to take ``job`` over, ``None`` without ``standby=True``.
        rollback: the Dagster job that takes ``job`` back to a checkpoint.
        checkpoint_now: the Dagster job that has ``job`` take a checkpoint at once.
        op_name: the name under which ``run_config["ops"]`` configures the query.
        function: makes the query; called with the context, the session and the arguments that ``parameters`` name.
        parameters: the resources and the run configuration that ``function`` takes.
        settings: when checkpoints are taken and kept and what happens after a failure, unless a run says otherwise.
        state_backend: keeps the query's state; ``None`` for Spark's configuration.
        versions: of the query's code, and what happens when it changes.
        storage_key: resource key of the checkpoint storage.
        spark_key: resource key of Spark.
        checkpoints: the checkpoints asset.
        savepoints: the asset whose materialization takes a savepoint.
        most_restarts_per_hour: with more restarts the job is not healthy, ``None`` for any number.
        rehearses: whether a standby lets the query compute its next batch on a copy of the newest checkpoint.
        healthy: the asset check that is red when the job has ended FAILED, and yellow when it is not well.
        restorable: the asset check that is red when the newest checkpoint is not what was written.
        fresh: the asset check that is red when a batch waits too long for a checkpoint.
    """

    #: Makes a stream of an output asset, and of the stream before a transformation.
    operate: Callable[[dg.AssetsDefinition, CheckpointedStreamingAsset | None], CheckpointedStreamingAsset]
    checkpoints_key: dg.AssetKey
    savepoints_key: dg.AssetKey
    name: str
    job: UnresolvedAssetJobDefinition
    standby: UnresolvedAssetJobDefinition | None
    rollback: dg.JobDefinition
    checkpoint_now: dg.JobDefinition
    op_name: str
    function: QueryFunction
    parameters: QueryParameters
    settings: JobSettings
    state_backend: StateBackend | None
    versions: Versions
    storage_key: str
    spark_key: str
    checkpoints: dg.AssetSpec
    savepoints: dg.AssetsDefinition
    most_restarts_per_hour: int | None
    rehearses: bool
    healthy: dg.AssetChecksDefinition
    restorable: dg.AssetChecksDefinition
    fresh: dg.AssetChecksDefinition

    def with_attributes(self, *args: Any, **kwargs: Any) -> CheckpointedStreamingAsset:
        """As of any asset. With another key the jobs, the checkpoints and the savepoints have other names, too."""
        return self.operate(super().with_attributes(*args, **kwargs), self)

    def map_asset_specs(self, fn: Callable[[dg.AssetSpec], dg.AssetSpec]) -> CheckpointedStreamingAsset:
        """As of any asset."""
        return self.operate(super().map_asset_specs(fn), self)

    def with_resources(self, *args: Any, **kwargs: Any) -> CheckpointedStreamingAsset:
        """As of any asset."""
        return self.operate(super().with_resources(*args, **kwargs), self)

    @property
    def job_name(self) -> str:
        """The name of the Dagster job that materializes the output asset."""
        return self.job.name

    @property
    def config(self) -> CheckpointConfig:
        """When checkpoints are taken and kept, unless a run says otherwise."""
        return self.settings.config

    @property
    def restart(self) -> RestartStrategy:
        """What happens after a failure, unless a run says otherwise."""
        return self.settings.restart

    @property
    def launch_conf(self) -> Mapping[str, str]:
        """Settings of the state backend that take effect only when Spark is started."""
        return {} if self.state_backend is None else self.state_backend.launch_conf()

    @property
    def partitions_name(self) -> str:
        """Name of the dynamic partitions that stand for the retained checkpoints."""
        return partitions_name(self.name)


class _Decorator(Protocol[_Options]):
    @overload
    def __call__(  # type: ignore[overload-overlap] # no option is given by position
        self, function: QueryFunction, /
    ) -> CheckpointedStreamingAsset: ...

    @overload
    def __call__(
        self, *none: _Options.args, **options: _Options.kwargs
    ) -> Callable[[QueryFunction], CheckpointedStreamingAsset]: ...


def with_or_without_brackets(
    decorator: Callable[_Options, Callable[[QueryFunction], CheckpointedStreamingAsset]],
) -> _Decorator[_Options]:
    """Has a decorator whose options all have defaults stand without brackets, too, as ``@dg.asset`` may."""

    @wraps(decorator)
    def decorate(*given: Any, **options: Any) -> Any:
        if len(given) == 1 and callable(given[0]) and not options:
            return decorator()(given[0])  # type: ignore[call-arg]
        return decorator(*given, **options)

    return cast("_Decorator[_Options]", decorate)


def stream_of(context: dg.AssetExecutionContext) -> CheckpointedStreamingAsset:
    """The asset that a run materializes, with the key that it has in the run's code location.

    Raises:
        InvalidConfiguration: a transformation has made another asset of it.
    """
    return only_stream(context.assets_def, "A run of a stream")


def only_streams(assets: Iterable[Any], of: str) -> list[CheckpointedStreamingAsset]:
    """The assets, all of which ``@checkpointed_streaming_asset`` has made.

    Args:
        assets: as a user gives them.
        of: what takes them, as the subject of a sentence.

    Raises:
        InvalidConfiguration: this is no collection of such assets.
    """
    if isinstance(assets, (str, dg.AssetsDefinition)) or not isinstance(assets, Iterable):
        raise InvalidConfiguration(
            f"{of} takes a list of checkpointed streaming assets, and was given {_told(assets)}.",
            hint="Write the asset in brackets: [turnover].",
        )
    return [only_stream(item, of) for item in assets]


def only_stream(asset: Any, of: str) -> CheckpointedStreamingAsset:
    """The asset, which ``@checkpointed_streaming_asset`` has made; ``of`` takes it, as the subject of a sentence.

    Raises:
        InvalidConfiguration: this is no such asset.
    """
    if isinstance(asset, CheckpointedStreamingAsset):
        return asset
    hint = "Give what a function below @checkpointed_streaming_asset becomes."
    if isinstance(asset, dg.AssetsDefinition):
        hint = (
            "Give other assets to dg.Definitions(assets=[...]). Of what load_assets_from_modules returns, take "
            "[asset for asset in loaded if isinstance(asset, CheckpointedStreamingAsset)]."
        )
    raise InvalidConfiguration(
        f"{of} takes what @checkpointed_streaming_asset makes, and was given {_told(asset)}.", hint=hint
    )


def _told(given: object) -> str:
    """What a user has given, in a few words."""
    if isinstance(given, dg.AssetsDefinition):
        return "the asset " + (", ".join(sorted(key.to_user_string() for key in given.keys)) or "without a key")
    return f"{given!r}"


def partitions_name(job: str) -> str:
    """Name of the dynamic partitions that stand for the retained checkpoints of a job."""
    return f"{job}_checkpoints"
