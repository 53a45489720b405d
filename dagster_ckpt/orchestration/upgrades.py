"""The versions of a job's code under Dagster: what the asset says of them, and the run that returns to one."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

import dagster as dg

from dagster_ckpt.checkpoint import CheckpointCatalog, Claim, End, dated, restart_after, unchanged_for
from dagster_ckpt.clock import Clock
from dagster_ckpt.config import CheckpointConfig, UpgradeMode, duration_of
from dagster_ckpt.errors import InvalidConfiguration
from dagster_ckpt.orchestration import names
from dagster_ckpt.orchestration.checkpointed_asset import CheckpointedStreamingAsset, QueryFunction
from dagster_ckpt.orchestration.run_settings import continuing
from dagster_ckpt.resume import Facts
from dagster_ckpt.spark import Versions

__all__ = ["is_to_return", "returning", "try_to_return", "versions_of"]


def versions_of(
    config: CheckpointConfig,
    current: str | None,
    mode: UpgradeMode | str,
    timeout: str | timedelta | None,
    previous: Mapping[str, QueryFunction],
    green: Mapping[str, QueryFunction] | None = None,
) -> Versions:
    """The versions that an asset is defined with; the arguments are those of the decorator.

    Raises:
        InvalidConfiguration: a value cannot be used, or has no effect without another one.
    """
    if mode not in list(UpgradeMode):
        known = ", ".join(UpgradeMode)
        raise InvalidConfiguration(f"upgrade_mode is {mode!r}.", hint=f"Set upgrade_mode to one of {known}.")
    needs = {
        "upgrade_mode": (mode != UpgradeMode.LAST_STATE, "code_version", current),
        "upgrade_timeout": (timeout is not None, "code_version", current),
        "previous": (bool(previous), "upgrade_timeout", timeout),
        "green": (bool(green), "code_version", current),
    }
    for option, (is_given, needed, value) in needs.items():
        if is_given and value is None:
            raise InvalidConfiguration(
                f"{option} has no effect without {needed}.",
                hint=f"Give the asset a {needed}, or leave {option} out.",
            )
    if twice := {str(current), *previous} & set(green or {}):
        raise InvalidConfiguration(
            f"green has version {min(twice)}, which the asset has already.",
            hint="Give the function of green a version of its own.",
        )
    limit = None if timeout is None else duration_of("upgrade_timeout", timeout, "10 min")
    versions = Versions(
        current, UpgradeMode(mode), None if limit is None else limit.total_seconds(), previous, green or {}
    )
    versions.check(config)
    return versions


def is_to_return(versions: Versions, end: End | None, catalog: CheckpointCatalog) -> bool:
    """Whether a job that has ended so returns to the version before, whose code is here.

    Raises:
        CorruptRecord: the record of its last start cannot be read.
    """
    if end is None or end.returns_to is None:
        return False
    if versions.current == end.returns_to or end.returns_to not in versions.others:
        return versions.current == end.returns_to
    if versions.current == end.taken_back:
        return True
    # Neither is deployed: the job was cut over to the one, and ran the other in the place of the deployed version, too.
    chosen = catalog.choice()
    code = None if chosen is None else chosen[1].code
    return code is not None and (code.version, code.in_place_of) == (end.taken_back, versions.current)


def try_to_return(facts: Facts, claim: Claim, clock: Clock) -> int | str:
    """Which try to return is due now, from 1; or why none is.

    A run that has failed before it took the job over is followed by another one, as the restart strategy says.
    """
    tried = [run for run in facts.others if run.parent == claim.run_id and not run.is_resume and run.attends is None]
    if any(run.is_active for run in facts.others):
        return "a run that may take the job over is under way"
    if any(run.status != "FAILURE" for run in tried):
        return "the run that was to return was canceled; launch the job to return"
    if tried:
        failures = dated([run.before_its_claim for run in reversed(tried)], facts.now)
        decision = restart_after(failures, facts.restart, facts.job_name)
        if not decision.allowed:
            return (
                f"{len(tried)} runs that were to return have failed, and the restart strategy allows no more; "
                "mend what the newest of them says, and launch the job to return"
            )
        waited = unchanged_for((facts.job_name, claim.token, "the run that was to return"), tried[0].run_id, clock)
        if facts.restart.seconds_left(decision, facts.now, waited) > 0:
            return "the next run that returns waits, as the restart strategy says"
    return 1 + len(tried)


def returning(
    asset: CheckpointedStreamingAsset, claim: Claim, failed: dg.DagsterRun | None, attempt: int
) -> dg.RunRequest:
    """The run that returns; it begins a series of its own, and Dagster launches each try once.

    Args:
        asset: of the job.
        claim: of the run that has failed.
        failed: that run, ``None`` where Dagster does not know it.
        attempt: of the tries to return.
    """
    config = continuing(failed, asset.op_name)
    tags = {
        **({} if failed is None else names.of_user(failed.tags)),
        names.JOB_TAG: asset.name,
        names.MAX_RETRIES_TAG: "0",
        names.PARENT_RUN_TAG: claim.run_id,
        names.ROOT_RUN_TAG: claim.run_id if failed is None else failed.tags.get(names.ROOT_RUN_TAG, claim.run_id),
    }
    key = f"{asset.name}:{claim.token[:12]}:return:{attempt}"
    return dg.RunRequest(run_key=key, job_name=asset.job_name, run_config=config, tags=tags)
