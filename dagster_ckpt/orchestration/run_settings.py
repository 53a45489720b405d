"""The settings of one run: the definition of the job, overridden by the run's configuration."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import dagster as dg

from dagster_ckpt.checkpoint import CheckpointCatalog
from dagster_ckpt.config import (
    LATEST,
    NONE,
    POISON_BATCH_ATTEMPTS,
    CheckpointConfig,
    Configuration,
    Place,
    RecoveryClaimMode,
    RestartStrategy,
    RestoreRequest,
    check_poison_batch_attempts,
)
from dagster_ckpt.errors import InvalidConfiguration
from dagster_ckpt.orchestration import names
from dagster_ckpt.orchestration.events import say

__all__ = [
    "JobSettings",
    "RunSettings",
    "asked_once",
    "config_of_run",
    "continuing",
    "going_on",
    "op_config",
    "with_resources_of",
]

#: Stands in the configuration of a run that moves sources, and no user writes it.
_ASKED_BY = "start_sources_asked_by"
_ONLY_ONCE = frozenset(
    {
        "claim_mode",
        "replay_to",
        "allow_loss",
        "fork_from",
        "state_partitions",
        "start_sources",
        "code_version",
        _ASKED_BY,
    }
)


@dataclass(frozen=True, slots=True)
class RunSettings:
    """The settings of one run of a job.

    Attributes:
        config: when checkpoints are taken and kept.
        restart: what happens after a failure.
        request: what the run begins with.
        warnings: settings without an effect, and why.
        poison_batch_attempts: how often one batch may fail with one error; ``None`` for as often as ``restart`` allows.
    """

    config: CheckpointConfig
    restart: RestartStrategy
    request: RestoreRequest
    warnings: tuple[str, ...]
    poison_batch_attempts: int | None


@dataclass(frozen=True, slots=True)
class JobSettings:
    """The settings of a job, for every run that does not override them.

    Attributes:
        config: when checkpoints are taken and kept.
        restart: what happens after a failure.
        configuration: settings by Flink's keys, which override both.
        poison_batch_attempts: how often one batch may fail with one error; ``None`` for as often as ``restart`` allows.
    """

    config: CheckpointConfig
    restart: RestartStrategy
    configuration: Configuration
    poison_batch_attempts: int | None = POISON_BATCH_ATTEMPTS

    @classmethod
    def of(
        cls,
        config: CheckpointConfig,
        restart: RestartStrategy,
        configuration: Mapping[str, Any] | Configuration | None,
        poison_batch_attempts: int | None = POISON_BATCH_ATTEMPTS,
    ) -> JobSettings:
        """The settings from the definition of a job.

        Raises:
            InvalidConfiguration: the configuration cannot be used, or a key belongs elsewhere.
        """
        given = configuration if isinstance(configuration, Configuration) else Configuration(configuration or {})
        given.require([Place.JOB, Place.STATE], "the configuration of an asset")
        check_poison_batch_attempts(poison_batch_attempts)
        strategy = given.restart_strategy() or restart.resolve(None)
        return cls(given.checkpoint_config(config), strategy, given, poison_batch_attempts)

    def of_run(self, op_config: Mapping[str, Any]) -> RunSettings:
        """The settings of the run that was launched with ``op_config``.

        Raises:
            InvalidConfiguration: the run's configuration cannot be used, or a key belongs elsewhere.
        """
        given = Configuration(op_config.get("configuration", {}))
        given.require([Place.JOB, Place.RUN], "the configuration of a run")
        both = self.configuration.updated(given)
        config = both.checkpoint_config(self.config)
        if (fall_back := op_config.get("fallback_to_older")) is not None:
            config = config.model_copy(update={"fallback_to_older": bool(fall_back)})
        restore_from = _one_of("restore_from", op_config.get("restore_from", LATEST), given.restore_path, LATEST)
        claim_mode = _one_of("claim_mode", op_config.get("claim_mode"), given.claim_mode, None)
        warnings = [*both.warnings, *config.warnings]
        if given.claim_mode is not None and restore_from in {LATEST, NONE}:
            warnings.append("execution.state-recovery.claim-mode has no effect: the run is told of nothing to restore.")
        return RunSettings(
            config,
            both.restart_strategy() or self.restart,
            RestoreRequest(
                restore_from,
                None if claim_mode is None else RecoveryClaimMode(claim_mode),
                op_config.get("replay_to"),
                allow_loss=bool(op_config.get("allow_loss", False)),
                fork_from=op_config.get("fork_from"),
                state_partitions=op_config.get("state_partitions"),
                start_sources=op_config.get("start_sources"),
                asked_by=op_config.get(_ASKED_BY, ""),
                code_version=op_config.get("code_version"),
            ),
            tuple(warnings),
            self.poison_batch_attempts,
        )

    def of_launched(self, run: dg.DagsterRun | None, op_name: str) -> RunSettings:
        """The settings of a run as it was launched; the job's own where Dagster does not know the run (``None``).

        Args:
            run: of the job.
            op_name: of the query.

        Raises:
            InvalidConfiguration: as :meth:`of_run`.
        """
        return self.of_run({} if run is None else op_config(run, op_name))

    def config_now(self, instance: dg.DagsterInstance, op_name: str, run_id: str | None) -> CheckpointConfig:
        """When checkpoints are taken and kept by a job now, for whoever judges the job beside its run.

        It is the job's own where the instance does not know the run, or nobody can use its configuration any more.

        Args:
            instance: the Dagster instance, which is asked for the run.
            op_name: of the query.
            run_id: the run that has claimed the job, ``None`` if no run has.
        """
        try:
            return self.of_launched(None if run_id is None else instance.get_run_by_id(run_id), op_name).config
        except InvalidConfiguration:  # the run goes by the code that it was launched with
            return self.config


def _one_of(name: str, own: Any, given: Any, default: str | None) -> Any:
    """The value of the option ``name`` or of its Flink key; both together are refused."""
    if given is None:
        return own
    if own not in {default, given}:
        raise InvalidConfiguration(
            f"The run has {name}: {own}, and {given} in its configuration.", hint="Leave one of them out."
        )
    return given


def op_config(run: dg.DagsterRun, op_name: str) -> Mapping[str, Any]:
    """The configuration that a run was launched with, also by the name that its asset had before it was renamed."""
    run_config: dict[str, Any] = dict(run.run_config)
    ops: dict[str, Any] = run_config.get("ops", {})
    if op_name not in ops and len(ops) == 1 and _is_of_one_asset(run):
        (op_name,) = ops
    config: Mapping[str, Any] = ops.get(op_name, {}).get("config", {})
    return config


def _is_of_one_asset(run: dg.DagsterRun) -> bool:
    job = run.tags.get(names.JOB_TAG, "")
    return len(run.asset_selection or ()) == 1 or run.job_name in {names.stream_job(job), names.standby_job(job)}


def asked_once(op_config: Mapping[str, Any]) -> dict[str, Any]:
    """What a run with ``op_config`` begins with, which a run that continues it leaves out; empty for the newest."""
    continued = going_on(op_config)
    own = {**op_config, **op_config.get("configuration", {})}
    left = {**continued, **continued.get("configuration", {}), "configuration": op_config.get("configuration")}
    return {key: value for key, value in own.items() if value and left.get(key) != value}


def going_on(op_config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a run that continues a run with ``op_config``: all of it except what that run began with."""
    found = {key: value for key, value in op_config.items() if key not in _ONLY_ONCE} | {"restore_from": LATEST}
    if configuration := op_config.get("configuration"):
        found["configuration"] = dict(Configuration(configuration).for_job.settings)
    return found


def continuing(run: dg.DagsterRun | None, op_name: str) -> dict[str, Any]:
    """The whole run configuration of a run that continues ``run`` from the newest checkpoint.

    Args:
        run: ``None`` where Dagster does not know the run.
        op_name: of the query.
    """
    return with_resources_of(run, op_name, {} if run is None else going_on(op_config(run, op_name)))


def with_resources_of(run: dg.DagsterRun | None, op_name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """A run configuration of the query's configuration ``given``, and of the resources that ``run`` was given."""
    config: dict[str, Any] = {"ops": {op_name: {"config": {"restore_from": LATEST, **given}}}}
    if run is not None and "resources" in run.run_config:
        config["resources"] = run.run_config["resources"]
    return config


def config_of_run(context: dg.AssetExecutionContext, catalog: CheckpointCatalog) -> Mapping[str, Any]:
    """The configuration of a run. A re-execution does not repeat what the run before it was asked to begin with.

    A move of sources is told with the first run that was asked for it, so that another run does it once more.
    """
    given: Mapping[str, Any] = context.op_execution_context.op_config
    if names.is_resume(tags := context.run.tags) and context.instance.get_run_by_id(tags[names.RESUMES_TAG]) is None:
        say(
            context.log,
            logging.WARNING,
            f"Dagster does not know run {tags[names.RESUMES_TAG]} any more, which this run continues. What that run "
            "was configured with may be missing; to give it again, terminate this run, and launch the job with it.",
        )
    asked = asked_once(given)
    earlier = context.run.tags.get(names.PARENT_RUN_TAG) if asked else None
    chosen = catalog.records.epochs.runs_with_choice() if earlier else set()
    while earlier is not None and (parent := context.instance.get_run_by_id(earlier)) is not None:
        if earlier in chosen and asked_once(op_config(parent, context.op_execution_context.op.name)) == asked:
            say(
                context.log,
                logging.WARNING,
                f"Run {earlier} has begun with {asked}, so this re-execution goes on from the newest checkpoint. "
                "To begin with it again, launch a new run from the page of the job.",
            )
            return going_on(given)
        earlier = parent.tags.get(names.PARENT_RUN_TAG)
    first = context.run.tags.get(names.ROOT_RUN_TAG, context.run.run_id)
    return {**given, _ASKED_BY: first} if given.get("start_sources") else given
