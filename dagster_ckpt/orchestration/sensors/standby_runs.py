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
from dagster_ckpt.orchestration.sensors.run_records import since

__all__ = ["StandbyRuns"]

_WAITS = {dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.NOT_STARTED}
_ACTIVE = [*_WAITS, dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]
#: Seconds from the launch of a standby to its first sign of life, which it leaves when it is warm.
_WARMING = 600.0
#: Seconds after which a run without a checkpoint of its own has started, too: its source may have nothing new.
_START = 30.0
#: Seconds from the last sign of a standby to the end of its run: a standby that leaves takes its sign away first.
_LEAVING = 60.0
#: Seconds after a standby has failed, before the next one is launched. Each further one that fails doubles them, up to
#: the second figure; one that has lived for longer than that has failed for a reason of its own.
_PAUSE, _LONGEST_PAUSE = 30.0, 1800.0
#: Runs of a job's standbys that are looked at: more than it takes to come to the longest pause.
_RECENT = 10


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

        Standbys of other code, or that nobody wants any more, are told to end. A dead one is marked as failed. The run
        that holds the job is no standby any more, even before Dagster has heard of that.

        Raises:
            StorageError: the storage failed.
        """
        has_one = False
        for run in self._active.get(asset.name, []):
            if sight is None or run.run_id != sight.claim.run_id:
                has_one |= self._is_kept(asset, storage, run)
        if not asset.standby or has_one or sight is None or not self._is_under_way((storage.url, asset.name), sight):
            return None
        records = self._of(asset.name)
        latest = next((record for record in records if names.stands_by(record.dagster_run.tags)), None)
        failed = latest if latest is not None and _has_failed(latest) else None
        if failed is not None and 0 <= self._clock.time() - (failed.end_time or 0.0) < self._pause(records):
            return None
        beside = f"{asset.name}:standby:{sight.claim.run_id}:{self._code}:"
        tags = {} if latest is None else latest.dagster_run.tags
        has_ended = failed is None and names.UNWANTED_TAG not in tags
        if has_ended and tags.get(names.RUN_KEY_TAG, "").startswith(beside):
            return None  # it has ended by itself, or its user has canceled it; the job's next run gets another one
        key = f"{beside}{latest.dagster_run.run_id if latest else 0}"
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

    def _pause(self, records: Sequence[dg.RunRecord]) -> float:
        """Seconds between the last failure and the next standby: longer while one after the other fails soon."""
        soon = 0
        for record in records:
            ended = record.end_time or 0.0
            is_of_code = record.dagster_run.tags.get(names.CODE_TAG) == self._code
            if not _has_failed(record) or not is_of_code or ended - (record.start_time or ended) > _LONGEST_PAUSE:
                break
            soon += 1
        return float(min(_PAUSE * 2 ** max(soon - 1, 0), _LONGEST_PAUSE))

    def _is_kept(self, asset: CheckpointedStreamingAsset, storage: FileSystem, run: dg.DagsterRun) -> bool:
        """Whether a standby lives and is wanted."""
        standbys = Standbys(storage, asset.name)
        asked = self._clock.monotonic()
        sign = standbys.read(run.run_id)
        has_sign_for = unchanged_for((storage.url, asset.name, "has a sign", run.run_id), sign is not None, self._clock)
        if not asset.standby or run.tags.get(names.CODE_TAG, self._code) != self._code:
            if names.UNWANTED_TAG not in run.tags:  # where it is wanted again, there is to be another one
                self._instance.add_run_tags(run.run_id, {names.UNWANTED_TAG: "true"})
            standbys.remove(run.run_id)
            return False
        if sign is None:
            warming = self._clock.time() - self._launched_at(run) < _WARMING
            if run.status in _WAITS or warming or has_sign_for < _LEAVING:
                return True
            why = f"there is no sign of it, {_WARMING:.0f} s after its launch"
        elif (dead := standbys.why_dead(sign, self._clock, asked)) is not None:
            why = f"it counts as dead: {dead}"
        else:
            return True
        now = self._instance.get_run_by_id(run.run_id)
        if now is None or now.is_finished or not names.stands_by(now.tags):
            return True  # it has ended by itself, or taken the job over, since this tick has asked for it
        self._instance.report_run_failed(now, f"dagster_ckpt: the standby has ended, {why}. The job is not concerned.")
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
        return self._clock.time() if record is None else since(record)

    def _of(self, job: str) -> Sequence[dg.RunRecord]:
        """The runs that were launched as standbys of a job, the newest first; some have taken the job over."""
        return self._instance.get_run_records(dg.RunsFilter(tags={names.STANDBY_OF_TAG: job}), limit=_RECENT)

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


def _has_failed(record: dg.RunRecord) -> bool:
    return record.dagster_run.status is dg.DagsterRunStatus.FAILURE and names.stands_by(record.dagster_run.tags)
