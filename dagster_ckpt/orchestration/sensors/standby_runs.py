"""The standbys of one code location, as the resume sensor sees to them: one for each job that wants one and runs."""

from __future__ import annotations

from collections.abc import Sequence

import dagster as dg

from dagster_ckpt.checkpoint import Sight, Standbys, unchanged_for
from dagster_ckpt.clock import Clock
from dagster_ckpt.filesystem import FileSystem
from dagster_ckpt.orchestration import names
from dagster_ckpt.orchestration.checkpointed_asset import CheckpointedStreamingAsset
from dagster_ckpt.orchestration.run_settings import continuing

__all__ = ["StandbyRuns"]

_WAITS = {dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.NOT_STARTED}
_ACTIVE = [*_WAITS, dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]
#: Seconds from the launch of a standby to its first sign of life, which it leaves when it is warm.
_WARMING = 600.0
#: Seconds after which a run without a checkpoint of its own has started, too: its source may have nothing new.
_START = 30.0
#: Seconds after a standby has failed, before the next one is launched.
_PAUSE = 30.0


class StandbyRuns:
    """The standbys that Dagster counts as active, at one tick.

    Args:
        instance: the Dagster instance.
        assets: of the code location.
        code: the digest of the code that is loaded now.
        clock: of this host.
    """

    def __init__(
        self, instance: dg.DagsterInstance, assets: Sequence[CheckpointedStreamingAsset], code: str, clock: Clock
    ) -> None:
        self._instance, self._code, self._clock = instance, code, clock
        wanted = [asset.name for asset in assets]
        asked = dg.RunsFilter(tags={names.STANDBY_OF_TAG: wanted}, statuses=_ACTIVE) if wanted else None
        self._active: dict[str, list[dg.DagsterRun]] = {}
        for run in instance.get_runs(asked) if asked is not None else []:
            if names.stands_by(run.tags):
                self._active.setdefault(run.tags[names.STANDBY_OF_TAG], []).append(run)

    @property
    def has_any(self) -> bool:
        """Whether a standby is active."""
        return bool(self._active)

    def living(self, asset: CheckpointedStreamingAsset, storage: FileSystem) -> str | None:
        """The standby that is about to take a job over, if the job's run is dead; ``None`` for none.

        Raises:
            StorageError: the storage failed.
        """
        for run in self._active.get(asset.name, []):
            asked = self._clock.monotonic()
            standbys = Standbys(storage, asset.name)
            sign = standbys.read(run.run_id)
            if sign is not None and standbys.why_dead(sign, self._clock, asked) is None:
                return run.run_id
        return None

    def request(
        self, asset: CheckpointedStreamingAsset, storage: FileSystem, sight: Sight | None
    ) -> dg.RunRequest | None:
        """See to the standbys of a job; the standby to be launched, ``None`` for none.

        Standbys of other code, or that nobody wants any more, are told to end. A dead one is marked as failed.

        Raises:
            StorageError: the storage failed.
        """
        has_one = False
        for run in self._active.get(asset.name, []):
            has_one |= self._is_kept(asset, Standbys(storage, asset.name), run)
        if not asset.standby or has_one or sight is None or not self._is_under_way((storage.url, asset.name), sight):
            return None
        latest = next(iter(self._of(asset.name)), None)
        failed = latest if latest is not None and latest.dagster_run.status is dg.DagsterRunStatus.FAILURE else None
        if failed is not None and 0 <= self._clock.time() - (failed.end_time or 0.0) < _PAUSE:
            return None
        key = f"{asset.name}:standby:{sight.claim.run_id}:{self._code}:{failed.dagster_run.run_id if failed else 0}"
        if latest is not None and latest.dagster_run.tags.get(names.RUN_KEY_TAG) == key:
            return None  # it has ended by itself, or its user has canceled it; the job's next run gets another one
        self._sweep(asset, Standbys(storage, asset.name))
        has_died = failed is not None and failed.dagster_run.tags.get(names.REHEARSAL_TAG) == names.BEGUN
        return self._launching(asset, sight.claim.run_id, key, rehearses=not has_died)

    def _is_under_way(self, job: tuple[str, str], sight: Sight) -> bool:
        """Whether the job's run is over its start, which needs the processors more than a standby does."""
        beat = sight.heartbeat
        if sight.dead is not None or beat is None or beat.completed is None or beat.stopped:
            return False
        seen = unchanged_for((*job, "its start"), sight.claim.epoch, self._clock)
        return beat.completed.epoch == sight.claim.epoch or seen >= _START

    def _is_kept(self, asset: CheckpointedStreamingAsset, standbys: Standbys, run: dg.DagsterRun) -> bool:
        """Whether a standby lives and is wanted."""
        asked = self._clock.monotonic()
        sign = standbys.read(run.run_id)
        if not asset.standby or run.tags.get(names.CODE_TAG, self._code) != self._code:
            standbys.remove(run.run_id)
            return False
        if sign is None:
            if run.status in _WAITS or self._clock.time() - self._launched_at(run) < _WARMING:
                return True
            why = f"it was not warm within {_WARMING:.0f} s"
        elif (dead := standbys.why_dead(sign, self._clock, asked)) is not None:
            why = f"it counts as dead: {dead}"
        else:
            return True
        self._instance.report_run_failed(run, f"dagster_ckpt: the standby has ended, {why}. The job is not concerned.")
        standbys.remove(run.run_id)
        return False

    def _sweep(self, asset: CheckpointedStreamingAsset, standbys: Standbys) -> None:
        """Remove what standbys have left that were killed, and whose runs Dagster itself has marked."""
        active = {run.run_id for run in self._active.get(asset.name, [])}
        asked = self._clock.monotonic()
        for sign in standbys.all():
            if sign.run_id not in active and standbys.why_dead(sign, self._clock, asked) is not None:
                standbys.remove(sign.run_id)

    def _launched_at(self, run: dg.DagsterRun) -> float:
        record = self._instance.get_run_record_by_id(run.run_id)
        return self._clock.time() if record is None else record.start_time or record.create_timestamp.timestamp()

    def _of(self, job: str) -> Sequence[dg.RunRecord]:
        """The newest run that was launched as a standby of a job, and has not taken the job over."""
        asked = dg.RunsFilter(tags={names.STANDBY_OF_TAG: job})
        records = self._instance.get_run_records(asked, limit=5)
        return [record for record in records if names.stands_by(record.dagster_run.tags)]

    def _launching(self, asset: CheckpointedStreamingAsset, beside: str, key: str, *, rehearses: bool) -> dg.RunRequest:
        parent = self._instance.get_run_by_id(beside)
        tags = {
            **({} if parent is None else names.of_user(parent.tags)),
            names.STANDBY_OF_TAG: asset.name,
            names.CODE_TAG: self._code,
            names.MAX_RETRIES_TAG: "0",
            **({} if rehearses else {names.REHEARSAL_TAG: names.LEFT_OUT}),
        }
        config = continuing(parent, asset.op_name)
        return dg.RunRequest(run_key=key, job_name=names.standby_job(asset.name), run_config=config, tags=tags)
