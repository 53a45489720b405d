"""One look of the resume sensor at one job: collect the facts of the moment, and act on them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import dagster as dg

from dagster_ckpt.checkpoint import (
    INTERRUPTED,
    CancelRequest,
    CheckpointCatalog,
    CheckpointMetadata,
    Claim,
    Discarded,
    End,
    end_dead_epoch,
    find_newest,
    finish_end,
    is_unfinished,
    unchanged_for,
)
from dagster_ckpt.clock import Clock, iso, seconds_of
from dagster_ckpt.config import LATEST, CheckpointConfig
from dagster_ckpt.errors import CheckpointError, CorruptCheckpoint, Fenced, InvalidConfiguration, StorageError
from dagster_ckpt.orchestration import names
from dagster_ckpt.orchestration.checkpointed_asset import CheckpointedStreamingAsset
from dagster_ckpt.orchestration.events import JobEvents, RequestEvents
from dagster_ckpt.orchestration.health import evaluation, goes_past_damage, refused, reported
from dagster_ckpt.orchestration.reporting import CheckpointReporter
from dagster_ckpt.orchestration.rollback import Launchpad
from dagster_ckpt.orchestration.run_settings import RunSettings, going_on, op_config, with_resources_of
from dagster_ckpt.orchestration.sensors.run_records import since
from dagster_ckpt.orchestration.upgrades import is_to_return, returning, try_to_return
from dagster_ckpt.resume import (
    AskToCancel,
    Attend,
    Ended,
    EndJob,
    Facts,
    MarkDead,
    RecordFailures,
    Resume,
    RunFacts,
    Wait,
    decide,
    fell_back,
    poison_of,
    stored_facts,
)

__all__ = ["JobWatch"]

_log = logging.getLogger(__name__)

_RECENT_RUNS = 25
#: Marking a run, recording a failure and deciding can follow one another within one tick.
_STEPS = 6
#: Seconds for which a standby has its turn to take the job over, before a run is launched that resumes the job.
_TURN_OF_STANDBY = 15.0


class JobWatch:
    """Watches one job.

    Args:
        instance: the Dagster instance.
        asset: of the job.
        catalog: the job's checkpoints.
        clock: time.
        finished: the token of the claim after whose end an earlier tick found nothing left to do.
        log: of the tick, which the UI shows uncut.
        standby: the run that waits to take the job over and is alive, ``None`` for none.
        why_refused: why Dagster would refuse a run, empty if Dagster takes the run.
    """

    def __init__(
        self,
        instance: dg.DagsterInstance,
        asset: CheckpointedStreamingAsset,
        catalog: CheckpointCatalog,
        clock: Clock,
        finished: str | None,
        log: logging.Logger = _log,
        standby: str | None = None,
        why_refused: Callable[[dg.RunRequest], str] = lambda _: "",
    ) -> None:
        self._why_refused = why_refused
        self.finished = finished
        self._standby = standby
        self._instance = instance
        self._asset = asset
        self._catalog = catalog
        self._clock = clock
        self._log = log
        self._records = catalog.records
        report: Callable[[Any], object] = instance.report_runless_asset_event
        self._events = JobEvents(instance, report, asset.key, catalog, clock)
        self._requests = RequestEvents(instance, report, asset.savepoints_key, asset.checkpoints_key, catalog, clock)
        self._is_dead = False
        #: Whether a step has found out that the job's run is over.
        self.has_news = False

    def step(self) -> dg.RunRequest | str:
        """Act on the facts; return the run to request, or the reason for none."""
        outcome = self._step()
        if self._is_dead:
            resumed = "the run that goes on with the job is launched now"
            self._requests.look(f"no run is alive: {outcome if isinstance(outcome, str) else resumed}")
        return outcome

    def step_for_another(self) -> dg.RunRequest | str:
        """As :meth:`step`, for a run in another process, which need not wait for the lease that is over."""
        outcome = self.step()
        if isinstance(outcome, dg.RunRequest):
            self._records.heartbeat.tell_silent(self._clock)
        return outcome

    def _step(self) -> dg.RunRequest | str:
        discarded: Sequence[Discarded] = ()
        for _ in range(_STEPS):
            try:
                facts = self._facts()
            except InvalidConfiguration as error:  # the run's settings, for the code that is deployed now
                if not self._is_dead:
                    raise
                return self._not_resumed(f"{error.message} {error.hint}".strip())
            claim = facts.claim
            if claim is None:
                return "it has never run"
            match decide(facts):
                case Wait(reason):
                    return f"{reason}{self._fell_back(claim)}"
                case Ended(reason):
                    self._finish(claim, facts.end, discarded)
                    if is_to_return(self._asset.versions, facts.end, self._catalog):
                        attempt = try_to_return(facts, claim, self._clock)
                        if isinstance(attempt, str):
                            return f"{reason}; {attempt}"
                        return returning(self._asset, claim, self._instance.get_run_by_id(claim.run_id), attempt)
                    return f"{reason}{self._fell_back(claim)}"
                case MarkDead(run_id, canceled, reason):
                    self._log.warning("Run %s of job %s is over: %s", run_id, self._asset.name, reason)
                    self._mark(run_id, canceled=canceled, reason=reason)
                    self.has_news = True
                case RecordFailures(failures):
                    for failure in failures:
                        self._log.warning("Job %s failed: %s", self._asset.name, failure.reason)
                        self._records.failures.record(claim.series, failure)
                    self.has_news = True
                case EndJob(status, reason, poison):
                    if poison is not None:
                        reason = poison_of(self._catalog, poison).in_one_line
                    self._log.error("Job %s ends %s: %s", self._asset.name, status.value, reason)
                    config = self._settings(self._instance.get_run_by_id(claim.run_id)).config
                    with contextlib.suppress(Fenced):  # a run has begun meanwhile: decide anew
                        discarded = end_dead_epoch(self._catalog, claim, config, status, reason, self._clock)
                case AskToCancel(driver, reason):
                    # At each tick: the one before may have failed to ring.
                    self._records.savepoint_requests.ask_to_cancel(CancelRequest(driver, self._clock.time()))
                    return reason
                case Attend(driver, run_key, reason):
                    return self._attending(driver, run_key, reason)
                case Resume(attempt, run_key, reason):
                    if self._standby is not None and self._is_turn_of(self._standby, run_key):
                        return f"{reason}: the standby, run {self._standby}, is about to take the job over"
                    return self._resume(facts, claim, attempt, run_key, reason)
        return "more is to be done; the next tick goes on"

    def _is_turn_of(self, standby: str, run_key: str) -> bool:
        what = (*self._records.heartbeat.key, "turn of the standby")
        return unchanged_for(what, (standby, run_key), self._clock) < _TURN_OF_STANDBY

    def _facts(self) -> Facts:
        now = self._clock.time()
        epoch = self._records.epochs.highest()
        claim = self._records.epochs.read_claim(epoch) if epoch else None
        end = self._records.epochs.read_end(epoch) if epoch else None
        dead, died_at = (None, now) if claim is None else self._records.heartbeat.judged(claim, end, self._clock)
        self._is_dead = dead is not None
        records = self._instance.get_run_records(
            dg.RunsFilter(tags={names.JOB_TAG: self._asset.name}), limit=_RECENT_RUNS
        )
        holder = next((item for item in records if claim is not None and item.dagster_run.run_id == claim.run_id), None)
        if holder is None and claim is not None:
            holder = self._instance.get_run_record_by_id(claim.run_id)
        settings = self._settings(None if holder is None else holder.dagster_run)
        return stored_facts(
            self._catalog,
            self._clock,
            claim,
            end,
            (dead, died_at),
            restart=settings.restart,
            poison_batch_attempts=settings.poison_batch_attempts,
            holder=None if holder is None else _run_facts(holder, self._instance),
            others=[
                _run_facts(item, self._instance)
                for item in records
                if claim is None or item.dagster_run.run_id != claim.run_id
            ],
        )

    def _settings(self, run: dg.DagsterRun | None) -> RunSettings:
        return self._asset.settings.of_launched(run, self._asset.op_name)

    def _mark(self, run_id: str, *, canceled: bool, reason: str) -> None:
        run = self._instance.get_run_by_id(run_id)
        if run is None or run.is_finished:
            return
        if canceled:
            self._instance.report_run_canceled(run, f"dagster_ckpt: {reason}")
        else:
            self._instance.report_run_failed(run, f"dagster_ckpt: {reason}")

    def _resume(self, facts: Facts, claim: Claim, attempt: int, run_key: str, reason: str) -> dg.RunRequest | str:
        """The run that resumes the job, told of and with the check ``healthy``; or why there can be none."""
        try:
            request = self._request(facts, claim, attempt, run_key, reason)
            refusal = self._why_refused(request)
        except StorageError:
            raise
        except CheckpointError as error:
            refusal = f"{error.message} {error.hint}".strip()
        if refusal:
            return self._not_resumed(refusal)
        if facts.end is None and facts.dead == INTERRUPTED:
            self._events.interrupted(claim.token, reason)
        else:
            self._events.look(goes_on=True)
        self._show_health("")
        return request

    def _not_resumed(self, refusal: str) -> str:
        self._show_health(refusal)
        return f"it cannot be resumed: {refusal}"

    def _show_health(self, refusal: str) -> None:
        """Report the check ``healthy`` if what it says has changed: a run reports it, too, but only once it has begun.

        Args:
            refusal: why the job cannot be resumed, the same at each tick; empty if the job is resumed.
        """
        try:
            before = reported(self._instance, self._asset.key)
            if before is not None and refusal and before.description == refused(refusal):
                return
            found = self._health(refusal)
            if refusal or before is None or (found.passed, found.severity) != (before.passed, before.severity):
                self._instance.report_runless_asset_event(found)
        except Exception:  # the job is resumed all the same, and the next look reports
            self._log.exception("How job %s is doing could not be reported", self._asset.name)

    def _health(self, refusal: str | None = None) -> dg.AssetCheckEvaluation:
        asset = self._asset
        config_of = partial(asset.settings.config_now, self._instance, asset.op_name)
        return evaluation(
            asset.key, self._catalog, self._clock, config_of, asset.most_restarts_per_hour, refusal=refusal
        )

    def _request(self, facts: Facts, claim: Claim, attempt: int, run_key: str, reason: str) -> dg.RunRequest:
        parent = self._instance.get_run_by_id(claim.run_id)
        # Until a choice is on record, the restart repeats the same start: it restores what the user asked for.
        given: Mapping[str, Any] = {} if parent is None else op_config(parent, self._asset.op_name)
        if parent is not None and self._has_chosen(claim):
            given = going_on(given)
        run = self._asset.settings.of_run(given)
        newest = self._newest(run.config) if run.request.restore_from == LATEST else None
        tags = {
            **({} if parent is None else names.of_user(parent.tags)),
            names.JOB_TAG: self._asset.name,
            names.MAX_RETRIES_TAG: "0",
            names.ATTEMPT_TAG: str(attempt),
            names.SERIES_TAG: str(claim.series),
            names.PARENT_RUN_TAG: claim.run_id,
            names.RESUMES_TAG: claim.run_id,
            names.FAILED_AT_TAG: iso(max((item.at for item in facts.failures), default=facts.died_at)),
            names.DETECTED_AT_TAG: iso(facts.now - facts.waited),
            names.ROOT_RUN_TAG: parent.tags.get(names.ROOT_RUN_TAG, claim.run_id) if parent else claim.run_id,
            names.RESTORED_FROM_TAG: newest.reference if newest else run.request.restore_from,
        }
        config = with_resources_of(parent, self._asset.op_name, given)
        self._log.info("Resuming %s: %s", self._asset.name, reason)
        return dg.RunRequest(run_key=run_key, job_name=self._asset.job_name, run_config=config, tags=tags)

    def _attending(self, driver: str, run_key: str, reason: str) -> dg.RunRequest:
        """The run that attends a living driver; configured as the driver's own run, whose settings it does not use."""
        parent = self._instance.get_run_by_id(driver)
        given = {} if parent is None else going_on(op_config(parent, self._asset.op_name))
        tags = {
            **({} if parent is None else names.of_user(parent.tags)),
            names.JOB_TAG: self._asset.name,
            names.MAX_RETRIES_TAG: "0",
            names.ATTENDS_TAG: driver,
            names.PARENT_RUN_TAG: driver,
            names.ROOT_RUN_TAG: parent.tags.get(names.ROOT_RUN_TAG, driver) if parent else driver,
        }
        config = {"ops": {self._asset.op_name: {"config": {"restore_from": LATEST, **given}}}}
        self._log.info("Attending %s: %s", self._asset.name, reason)
        return dg.RunRequest(run_key=run_key, job_name=self._asset.job_name, run_config=config, tags=tags)

    def _newest(self, config: CheckpointConfig) -> CheckpointMetadata | None:
        """The checkpoint the run will find, by its manifest; ``None`` when it is broken and the run can do without.

        Raises:
            CorruptCheckpoint: the run may not fall back, and the previous run's live location is not on this host.
        """
        try:
            prefer_checkpoint = config.prefer_checkpoint_for_recovery
            return find_newest(self._catalog, prefer_checkpoint=prefer_checkpoint).metadata
        except CorruptCheckpoint as error:
            if not goes_past_damage(self._catalog, lambda: config):
                raise
            self._log.warning("The newest checkpoint of %s is broken: %s", self._asset.name, error.message)
            return None

    def _fell_back(self, claim: Claim) -> str:
        """A sentence if the run of ``claim`` continues from an older checkpoint, with the cost."""
        return fell_back(self._records.epochs.read_choice(claim.epoch))

    def _has_chosen(self, claim: Claim) -> bool:
        """Whether the run of ``claim`` has recorded a choice, in this epoch or in an earlier epoch of the same run."""
        epochs = self._records.epochs
        recorded = epochs.names()
        for epoch in range(claim.epoch, 0, -1):
            earlier = epochs.read_claim(epoch)
            if earlier is None or earlier.run_id != claim.run_id:
                return False
            if "choice" in recorded.get(epoch, set()):
                return True
        return False

    def _finish(self, claim: Claim, end: End | None, discarded: Sequence[Discarded]) -> None:
        """Finish the cleanup that the ended job's run has left; once for each end, unless it fails or is too much.

        Args:
            claim: of the highest epoch.
            end: of this epoch.
            discarded: the checkpoints deleted in this tick, with the reasons to show.
        """
        if end is None or self.finished == claim.token:
            return
        with contextlib.suppress(Fenced):  # a run has begun meanwhile and does the cleanup
            if is_unfinished(self._catalog):
                claim = finish_end(self._catalog, claim, end, self._clock)
            if not self._show_retained(claim, discarded):
                return  # the next tick goes on
            self._events.look(goes_on=False)
            self._instance.report_runless_asset_event(self._health())
            self.finished = claim.token

    def _show_retained(self, claim: Claim, discarded: Sequence[Discarded]) -> bool:
        """Whether Dagster has been told of all: one tick can tell of some hundred."""
        report: Callable[[Any], object] = self._instance.report_runless_asset_event
        reporter = CheckpointReporter(
            self._instance,
            report,
            self._asset.checkpoints_key,
            self._asset.partitions_name,
            self._catalog,
            self._clock,
            0,
            Launchpad.of_run(self._instance.get_run_by_id(claim.run_id), self._asset.name),
        )
        reporter.holds(claim.epoch)
        chosen = self._catalog.choice()
        completed = self._catalog.completed(chosen[1].job_id)[0] if chosen is not None else []
        quarantined = self._records.quarantine.names()
        reporter.discarded(discarded, [item for item in completed if item.reference not in quarantined])
        return reporter.is_told


def _run_facts(record: dg.RunRecord, instance: dg.DagsterInstance) -> RunFacts:
    run, known_since = record.dagster_run, since(record)
    series = run.tags.get(names.SERIES_TAG)
    if names.STANDBY_OF_TAG in run.tags and names.DETECTED_AT_TAG in run.tags:
        known_since = max(known_since, seconds_of(run.tags[names.DETECTED_AT_TAG]))  # before, it was no run of the job
    return RunFacts(
        run_id=run.run_id,
        status=run.status.value,
        since=known_since,
        is_resume=names.is_resumed(run, instance),
        series=None if series is None else int(series),
        parent=run.tags.get(names.PARENT_RUN_TAG),
        attends=names.attends(run.tags),
    )
