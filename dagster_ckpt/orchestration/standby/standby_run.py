"""The Dagster run that waits beside a job: it looks at the heartbeat itself, and decides as the resume sensor does.

Nothing is decided here. :class:`~dagster_ckpt.orchestration.sensors.JobWatch` acts on the facts as at a tick of the
sensor, and returns the run that is to be launched: this run then is that run, if it was launched with the same
configuration. The claim of exactly the next epoch decides between several standbys and the sensor.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import dagster as dg

from dagster_ckpt.checkpoint import CheckpointCatalog, Claim, FetchedAhead, Lease, Sight, Standbys, StandbySign, look
from dagster_ckpt.clock import Clock, seconds_of
from dagster_ckpt.errors import InvalidConfiguration, StorageError
from dagster_ckpt.orchestration import names
from dagster_ckpt.orchestration.attending import SparkSubmitResource
from dagster_ckpt.orchestration.checkpointed_asset import CheckpointedStreamingAsset
from dagster_ckpt.orchestration.events import say
from dagster_ckpt.orchestration.run_settings import continuing, op_config
from dagster_ckpt.orchestration.sensors import JobWatch
from dagster_ckpt.orchestration.standby.rehearsing import Rehearsing
from dagster_ckpt.orchestration.storages import CheckpointStorage
from dagster_ckpt.resume import nothing_to_do
from dagster_ckpt.shown_text import redacted
from dagster_ckpt.spark import CheckpointCompleted, Earlier, EpochClaimed, Event, StreamingJob, WarmSession

__all__ = ["StandbyRun", "Takeover"]

#: Seconds between two looks at a job that runs; and, at most, at a job that is resumed later, for which each look asks
#: Dagster, and the next one comes somewhat later.
_TURN, _LONGEST_TURN, _LATER = 0.2, 1.0, 1.1
#: Seconds for which a standby goes on though each look fails, and not because of the storage: of Dagster's database.
_PATIENCE = 600.0
#: Seconds between two tries to tell Dagster that the run has taken the job over.
_TELL_AGAIN = 1.0


@dataclass(frozen=True, slots=True)
class Takeover:
    """What a standby goes on from, as its own run of the job.

    Attributes:
        after: the epoch of the dead run; the next one is claimed, or none.
        series: that the run continues.
        given: the run configuration of the query.
        earlier: what happened before, for the trace of the start.
    """

    after: int
    series: int
    given: Mapping[str, Any]
    earlier: Earlier


class StandbyRun:
    """A run that waits.

    Args:
        context: of the run.
        asset: of the job.
        catalog: the job's checkpoints.
        clock: of this host.
        on_turn: called between two looks; an interrupt that it raises ends the run.
        job: makes the job that the run will drive.
    """

    def __init__(
        self,
        context: dg.AssetExecutionContext,
        asset: CheckpointedStreamingAsset,
        catalog: CheckpointCatalog,
        clock: Clock,
        on_turn: Callable[[], None],
        job: Callable[[], StreamingJob],
    ) -> None:
        self._context, self._asset, self._catalog = context, asset, catalog
        self._clock, self._on_turn = clock, on_turn
        self._run_id = context.run.run_id
        lease = Lease.of(asset.settings.of_run(op_config(context.run, asset.op_name)).config)
        self._sign = StandbySign(Standbys(catalog.filesystem, asset.name), self._run_id, lease, clock)
        #: Has the newest checkpoint on this machine; ``None`` where a start reads the storage as fast.
        self.ahead = self._fetched_ahead()
        self._session = self._to_session()
        self._warm: WarmSession | None = None
        self._rehearsing = Rehearsing(context, asset, catalog, lambda: replace(job(), ahead=self.ahead))
        self._is_told = False
        self._sight: Sight | None = None
        self._beside = ""
        self._request: dg.RunRequest | None = None
        self._troubled, self._troubled_at = "", 0.0
        self._pause = _TURN
        self._tell_at = 0.0
        #: Whether this run has claimed the job.
        self.has_claimed = False

    def wait(self) -> Takeover | None:
        """Wait until the job's run is dead, and the job may be resumed now.

        Returns:
            ``None`` when there is nothing to wait for any more; the log says why.

        Raises:
            Exception: Spark did not start, or its JVM is gone.
            BaseException: the interrupt of this thread.
        """
        while True:
            found = self._turn()
            if isinstance(found, Takeover):
                return found
            if found is not None:
                self._say(f"The standby ends: {found}.")
                return None
            time.sleep(self._pause)

    def leave(self) -> None:
        """Take the sign and what was fetched away: this run ends."""
        self._sign.remove()
        self._rehearsing.end()
        if self.ahead is not None:
            self.ahead.remove()

    def happened(self, event: Event) -> None:
        """Hear what happens to the run from its claim on."""
        if isinstance(event, EpochClaimed):
            self.has_claimed = True
            if self._warm is not None:
                self._warm.take()
            self.settle()
        elif isinstance(event, CheckpointCompleted) and self.ahead is not None:
            self.ahead.remove()  # no start needs what was fetched for the takeover

    def settle(self) -> None:
        """Have Dagster know the run as a run of the job, as soon as Dagster hears it. Until then the sign stays.

        The job goes on whether or not Dagster's database answers.
        """
        if not self.has_claimed or self._request is None or self._clock.monotonic() < self._tell_at:
            return
        try:
            self._context.instance.add_run_tags(self._run_id, self._request.tags)
        except Exception as error:  # whatever Dagster's storage raises
            self._tell_at = self._clock.monotonic() + _TELL_AGAIN
            self._warn(f"Dagster cannot be told now that the standby has taken the job over: {redacted(str(error))}")
            return
        self._request = None
        self._sign.remove()

    def waits_on(self, reason: str) -> bool:
        """Whether another run drives the job by now, beside which this one goes on waiting.

        Args:
            reason: why this run could not take the job over, for people.
        """
        sight = look(self._catalog.records, self._clock, None)
        if sight is None or sight.dead is not None:
            return False
        self._pause = _TURN
        self._say(f"The standby goes on waiting: {reason}")
        return True

    def _turn(self) -> Takeover | str | None:
        """One look: the takeover that is due, the reason for which the standby ends, or ``None``."""
        is_warm = self._warm is not None and self._warm.is_warm()
        try:
            self._on_turn()
            found = self._look(is_warm=is_warm)
        except (StorageError, OSError) as error:  # the job's run is as well off
            self._troubled_at = 0.0
            self._warn(f"The records of the job cannot be read now: {redacted(str(error))}")
            return None
        except Exception as error:  # whatever Dagster's storage raises
            now = self._clock.monotonic()
            self._troubled_at = self._troubled_at or now
            if now - self._troubled_at > _PATIENCE:
                raise
            self._warn(f"The standby cannot look after the job now: {redacted(str(error))}")
            return None
        self._troubled, self._troubled_at = "", 0.0
        return found

    def _warn(self, trouble: str) -> None:
        """Warn once, as long as the same trouble lasts."""
        if self._troubled != trouble:
            self._say(trouble, logging.WARNING)
        self._troubled = trouble

    def _say(self, text: str, level: int = logging.INFO) -> None:
        say(self._context.log, level, text)

    def _look(self, *, is_warm: bool) -> Takeover | str | None:
        sight = self._sight = look(self._catalog.records, self._clock, self._sight, _TURN)
        if sight is None:
            return "the job has no records"
        if sight.is_over and sight.end is not None:
            return f"the job has ended {sight.end.status}"
        if sight.claim.run_id != self._beside:
            run = self._context.instance.get_run_by_id(sight.claim.run_id)
            if run is not None and not self._has_config(continuing(run, self._asset.op_name)):
                return f"run {sight.claim.run_id} of the job has another configuration"
            self._beside = sight.claim.run_id
        if not is_warm:
            if self._warm is None:
                self._warm = WarmSession(self._session, self._asset.state_backend)
            return None if sight.dead is None else "the job's run has died before the standby was warm"
        if not self._is_told:
            self._is_told = True
            self._say(f"The standby is warm, and watches run {self._beside} of job {self._asset.name}.")
        if not self._sign.beat(sight.claim.epoch):
            return "it is not wanted any more"
        if nothing_to_do(sight, None) is not None:
            self._pause = _TURN
            self._fetch_newest(sight)
            self._rehearsing.go_on(may_begin=self.ahead is None or self.ahead.has_any)
            return None
        if (is_free := self._rehearsing.gives_way()) is not True:
            return None if is_free is False else "the job's run has died, and the rehearsal of the standby does not end"
        self._pause = min(_LATER * self._pause, _LONGEST_TURN)
        return self._decided(sight.claim)

    def _fetched_ahead(self) -> FetchedAhead | None:
        if not self._catalog.filesystem.is_distant:
            return None
        storage: CheckpointStorage = getattr(self._context.resources, self._asset.storage_key)
        directory = storage.live_directory(self._asset.name)
        return FetchedAhead(self._catalog, directory, storage.private_from)

    def _fetch_newest(self, sight: Sight) -> None:
        if self.ahead is None or sight.heartbeat is None or sight.heartbeat.completed is None:
            return
        self.ahead.fetch(sight.heartbeat.completed.checkpoint)

    def _to_session(self) -> Callable[[], Any]:
        spark, asset = getattr(self._context.resources, self._asset.spark_key), self._asset
        if isinstance(spark, SparkSubmitResource):
            raise InvalidConfiguration(
                f"Job {asset.name!r} has standby=True, and a driver of its own by SparkSubmitResource.",
                hint="Leave standby out: the driver goes on when its Dagster run dies.",
            )
        return partial(spark.session, asset.name, asset.launch_conf)

    def _decided(self, claim: Claim) -> Takeover | str | None:
        """Do what the sensor would do, and take the job over where it would launch a run that resumes the job."""
        watch = JobWatch(self._context.instance, self._asset, self._catalog, self._clock, None, self._context.log)
        outcome = watch.step()
        if not isinstance(outcome, dg.RunRequest) or not names.is_resume(outcome.tags):
            return None
        if outcome.tags[names.RESUMES_TAG] != claim.run_id:
            return None
        if not self._has_config(outcome.run_config):
            return "the job is resumed with another configuration"
        if self._sign.is_removed():
            return "it is not wanted any more"
        if self.ahead is not None:
            self.ahead.stop()
        self._request = outcome
        tags = outcome.tags
        ended = [("detected", seconds_of(tags[names.DETECTED_AT_TAG])), ("decided", self._clock.time())]
        self._say(f"The standby takes the job over from run {claim.run_id}.")
        return Takeover(
            claim.epoch,
            claim.series,
            op_config(self._context.run, self._asset.op_name),
            Earlier(seconds_of(tags[names.FAILED_AT_TAG]), ended),
        )

    def _has_config(self, wanted: Mapping[str, Any]) -> bool:
        """Whether this run was launched with this run configuration."""
        own: dict[str, Any] = dict(self._context.run.run_config)
        return {key: own.get(key) for key in ("ops", "resources")} == {
            key: wanted.get(key) for key in ("ops", "resources")
        }
