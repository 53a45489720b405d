"""One look of the resume sensor at one job: collect the facts of the moment, and act on them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dagster as dg

from dagster_ckpt.checkpoint import (
    DIED,
    CheckpointCatalog,
    CheckpointMetadata,
    Claim,
    Dropped,
    End,
    Failure,
    Streak,
    end_dead_epoch,
    find_newest,
    finish_end,
    is_unfinished,
    unchanged_for,
)
from dagster_ckpt.clock import Clock, seconds_of
from dagster_ckpt.config import LATEST, CheckpointConfig
from dagster_ckpt.errors import CheckpointError, CorruptCheckpoint, Fenced
from dagster_ckpt.orchestration import names
from dagster_ckpt.orchestration.reporting import CheckpointReporter
from dagster_ckpt.orchestration.resume_decision import (
    Ended,
    EndJob,
    Facts,
    MarkDead,
    RecordFailures,
    Resume,
    RunFacts,
    Wait,
    decide,
)
from dagster_ckpt.orchestration.run_settings import RunSettings, going_on
from dagster_ckpt.orchestration.streaming_asset import CheckpointedStreamingAsset
from dagster_ckpt.spark import BatchInFlight, batch_in_flight, recorded_live

__all__ = ["JobWatch"]

_log = logging.getLogger(__name__)

_RECENT_RUNS = 25
#: Marking a run, recording a failure and deciding can follow one another within one tick.
_STEPS = 6


class JobWatch:
    """Watches one job.

    Args:
        instance: the Dagster instance.
        asset: of the job.
        catalog: the job's checkpoints.
        clock: time.
        finished: the token of the claim after whose end an earlier tick found nothing left to do.
    """

    def __init__(
        self,
        instance: dg.DagsterInstance,
        asset: CheckpointedStreamingAsset,
        catalog: CheckpointCatalog,
        clock: Clock,
        finished: str | None,
    ) -> None:
        self.finished = finished
        self._instance = instance
        self._asset = asset
        self._catalog = catalog
        self._clock = clock
        self._records = catalog.records

    def step(self) -> dg.RunRequest | str:
        """Act on the facts; return the run to request, or the reason for none."""
        dropped: Sequence[Dropped] = ()
        for _ in range(_STEPS):
            facts = self._facts()
            claim = facts.claim
            if claim is None:
                return "it has never run"
            match decide(facts):
                case Wait(reason):
                    return f"{reason}{self._fell_back(claim)}"
                case Ended(reason):
                    self._finish(claim, facts.end, dropped)
                    return f"{reason}{self._fell_back(claim)}"
                case MarkDead(run_id, canceled, reason):
                    self._mark(run_id, canceled=canceled, reason=reason)
                case RecordFailures(failures):
                    for failure in failures:
                        self._records.failures.record(claim.series, failure)
                case EndJob(status, reason, poison):
                    if poison is not None:
                        reason = self._told(poison)
                    config = self._settings(self._instance.get_run_by_id(claim.run_id)).config
                    with contextlib.suppress(Fenced):  # a run has begun meanwhile: decide anew
                        dropped = end_dead_epoch(self._catalog, claim, config, status, reason, self._clock)
                case Resume(attempt, run_key, reason):
                    return self._request(claim, attempt, run_key, reason)
        return "more is to be done; the next tick goes on"

    def _facts(self) -> Facts:
        now = self._clock.time()
        epoch = self._records.epochs.highest()
        claim = self._records.epochs.read_claim(epoch) if epoch else None
        end = self._records.epochs.read_end(epoch) if epoch else None
        dead, died_at = (None, now) if claim is None else self._records.heartbeat.judged(claim, end, self._clock)
        records = self._instance.get_run_records(
            dg.RunsFilter(tags={names.JOB_TAG: self._asset.name}), limit=_RECENT_RUNS
        )
        holder = next((item for item in records if claim is not None and item.dagster_run.run_id == claim.run_id), None)
        if holder is None and claim is not None:
            holder = self._instance.get_run_record_by_id(claim.run_id)
        failures = self._records.failures.of(claim.series) if claim else []
        settings = self._settings(None if holder is None else holder.dagster_run)
        others = [_run_facts(item) for item in records if claim is None or item.dagster_run.run_id != claim.run_id]
        active = frozenset((run.run_id, run.status) for run in others if run.is_active)
        return Facts(
            now=now,
            claim=claim,
            end=end,
            dead=dead,
            died_at=died_at,
            holder=None if holder is None else _run_facts(holder),
            others=others,
            failures=failures,
            restart=settings.restart,
            job_name=self._asset.name,
            is_durable=self._catalog.filesystem.is_durable,
            in_flight=None if claim is None or dead is None or end is not None else self._in_flight(claim, failures),
            poison_batch_attempts=settings.poison_batch_attempts,
            waited=self._unchanged_for("failures", frozenset((item.run_id, item.sequence) for item in failures)),
            starting_for=self._unchanged_for("active", active),
        )

    def _unchanged_for(self, what: str, state: frozenset[tuple[str, object]]) -> float:
        """Seconds for which this process has seen ``what`` of the job in this state, by a monotonic clock."""
        return unchanged_for((self._catalog.filesystem.url, self._asset.name, what), state, self._clock)

    def _in_flight(self, claim: Claim, failures: Sequence[Failure]) -> BatchInFlight | None:
        """The batch a dead run was running, from the files within reach; read once, until the death is on record."""
        if any((failure.run_id, failure.sequence) == (claim.run_id, DIED) for failure in failures):
            return None
        choice = self._records.epochs.read_choice(claim.epoch)
        live = None if choice is None else recorded_live(choice, self._catalog.filesystem)
        return None if live is None else batch_in_flight(live)

    def _told(self, poison: Streak) -> str:
        filesystem, before = self._catalog.filesystem, None
        with contextlib.suppress(OSError, CheckpointError):  # a run that needs the checkpoint reports it
            before = find_newest(self._catalog).metadata
        return poison.poison(
            self._asset.name,
            storage=filesystem.url if filesystem.is_durable else None,
            before=None if before is None else before.reference,
        ).in_one_line

    def _settings(self, run: dg.DagsterRun | None) -> RunSettings:
        """The settings of a run; the asset's settings when this instance does not know the run."""
        return self._asset.settings.of_run({} if run is None else self._op_config(run))

    def _op_config(self, run: dg.DagsterRun) -> Mapping[str, Any]:
        run_config: dict[str, Any] = dict(run.run_config)
        config: Mapping[str, Any] = run_config.get("ops", {}).get(self._asset.op_name, {}).get("config", {})
        return config

    def _mark(self, run_id: str, *, canceled: bool, reason: str) -> None:
        run = self._instance.get_run_by_id(run_id)
        if run is None or run.is_finished:
            return
        if canceled:
            self._instance.report_run_canceled(run, f"dagster_ckpt: {reason}")
        else:
            self._instance.report_run_failed(run, f"dagster_ckpt: {reason}")

    def _request(self, claim: Claim, attempt: int, run_key: str, reason: str) -> dg.RunRequest:
        parent = self._instance.get_run_by_id(claim.run_id)
        # Until a choice is on record, the restart repeats the same start: it restores what the user asked for.
        op_config: dict[str, Any] = {"restore_from": LATEST, **({} if parent is None else self._op_config(parent))}
        if parent is not None and self._has_chosen(claim):
            op_config = going_on(op_config)
        run = self._asset.settings.of_run(op_config)
        newest = self._newest(run.config) if run.request.restore_from == LATEST else None
        tags = {
            names.JOB_TAG: self._asset.name,
            names.MAX_RETRIES_TAG: "0",
            names.ATTEMPT_TAG: str(attempt),
            names.SERIES_TAG: str(claim.series),
            names.PARENT_RUN_TAG: claim.run_id,
            names.ROOT_RUN_TAG: parent.tags.get(names.ROOT_RUN_TAG, claim.run_id) if parent else claim.run_id,
            names.RESTORED_FROM_TAG: newest.reference if newest else run.request.restore_from,
        }
        config: dict[str, Any] = {"ops": {self._asset.op_name: {"config": op_config}}}
        if parent is not None and "resources" in parent.run_config:
            config["resources"] = parent.run_config["resources"]
        _log.info("Resuming %s: %s", self._asset.name, reason)
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
            chosen = self._catalog.choice()
            here = None if chosen is None else recorded_live(chosen[1], self._catalog.filesystem)
            if here is None and not config.fallback_to_older:
                raise
            _log.warning("The newest checkpoint of %s is broken: %s", self._asset.name, error.message)
            return None

    def _fell_back(self, claim: Claim) -> str:
        """A sentence if the run of ``claim`` continues from an older checkpoint, with the cost."""
        choice = self._records.epochs.read_choice(claim.epoch)
        return f"; {choice.fell_back}" if choice is not None and choice.fell_back else ""

    def _has_chosen(self, claim: Claim) -> bool:
        """Whether the run of ``claim`` has recorded a choice, in this epoch or in an earlier epoch of the same run."""
        epochs = self._records.epochs
        names = epochs.names()
        for epoch in range(claim.epoch, 0, -1):
            earlier = epochs.read_claim(epoch)
            if earlier is None or earlier.run_id != claim.run_id:
                return False
            if "choice" in names.get(epoch, set()):
                return True
        return False

    def _finish(self, claim: Claim, end: End | None, dropped: Sequence[Dropped]) -> None:
        """Finish the cleanup that the ended job's run has left; once for each end, unless it fails.

        Args:
            claim: of the highest epoch.
            end: of this epoch.
            dropped: the checkpoints deleted in this tick, with the reasons to show.
        """
        if end is None or self.finished == claim.token:
            return
        with contextlib.suppress(Fenced):  # a run has begun meanwhile and does the cleanup
            if is_unfinished(self._catalog):
                claim = finish_end(self._catalog, claim, end, self._clock)
            self._show_retained(claim, dropped)
            self.finished = claim.token

    def _show_retained(self, claim: Claim, dropped: Sequence[Dropped]) -> None:
        report: Callable[[Any], object] = self._instance.report_runless_asset_event
        reporter = CheckpointReporter(
            self._instance,
            report,
            self._asset.checkpoints_key,
            self._asset.partitions_name,
            self._catalog,
            self._clock,
            0,
        )
        reporter.holds(claim.epoch)
        chosen = self._catalog.choice()
        completed = self._catalog.completed(chosen[1].job_id)[0] if chosen is not None else []
        quarantined = self._records.quarantine.names()
        reporter.dropped(dropped, [item for item in completed if item.reference not in quarantined])


def _claimed_at(claim: Claim | None, now: float) -> float:
    return now if claim is None else seconds_of(claim.claimed_at)


def _run_facts(record: dg.RunRecord) -> RunFacts:
    run = record.dagster_run
    series = run.tags.get(names.SERIES_TAG)
    since = record.end_time or record.start_time or record.create_timestamp.timestamp()
    return RunFacts(
        run_id=run.run_id,
        status=run.status.value,
        since=since,
        is_resume=names.ATTEMPT_TAG in run.tags,
        series=None if series is None else int(series),
        parent=run.tags.get(names.PARENT_RUN_TAG),
    )
