"""What a run of ``<job>_rollback`` does: check, tell, terminate, and have a run launched that goes back."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import dagster as dg

from dagster_ckpt.checkpoint import (
    CheckpointMetadata,
    find_newest,
    kept_savepoint,
    pin_checkpoint,
    take_savepoint,
)
from dagster_ckpt.clock import SystemClock, iso
from dagster_ckpt.config import LATEST, NONE, NOW, RestoreRequest, StartSources
from dagster_ckpt.errors import CheckpointError, CheckpointNotFound, JobAlreadyRunning, RestoreRefused, StorageError
from dagster_ckpt.orchestration import names
from dagster_ckpt.orchestration.events import say
from dagster_ckpt.orchestration.rollback.deleting_end import DELETING_END, deleting_end
from dagster_ckpt.orchestration.rollback.handover import (
    ACCEPTED,
    ask,
    goes_back,
    has_chosen,
    last_config,
    settle,
    why_over,
)
from dagster_ckpt.orchestration.rollback.launchpad import Launchpad
from dagster_ckpt.orchestration.rollback.terminating import active_runs, terminate, terminate_all
from dagster_ckpt.orchestration.run_settings import JobSettings
from dagster_ckpt.orchestration.storages import CheckpointStorage
from dagster_ckpt.shown_text import in_one_line, redacted
from dagster_ckpt.spark import Finding, Preflight, Verdict, Versions, check_stored

__all__ = ["Rollback"]

_PARTITION = re.compile(r"([0-9a-f]{8})\.(chk-\d+)")
#: Seconds in which the sensor should launch the run, and the queue let it start.
_PATIENCE = 120.0
_LOOK = 1.0
#: How long a running job may take for the savepoint that it is stopped with.
_STOP_PATIENCE = "10 min"
_WAITING = {dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.NOT_STARTED}


class Rollback:
    """One run of a rollback job.

    Nothing is changed before the verdict. From then on whatever breaks off leaves a job that is stopped, or that goes
    back: the new run checks everything again, with its query, before it touches the sink.

    Args:
        context: of the run.
        storage: of the checkpoints.
        checkpoints_key: the asset that stands for them.
        partitions: name of the asset's dynamic partitions.
        op_name: of the query.
        settings: of the job.
        versions: of the job's code.
        job: the name of the job.
    """

    def __init__(
        self,
        context: dg.OpExecutionContext,
        storage: CheckpointStorage,
        checkpoints_key: dg.AssetKey,
        partitions: str,
        op_name: str,
        settings: JobSettings,
        versions: Versions,
        job: str,
    ) -> None:
        self._context = context
        self._instance = context.instance
        self._catalog = catalog = storage.catalog(job)
        self._savepoint_path = storage.savepoint_path
        self._versions = versions
        self._checkpoints_key = checkpoints_key
        self._partitions = partitions
        self._settings = settings.of_run(last_config(context.instance, catalog, op_name))
        self._clock = SystemClock()
        self._say = partial(say, context.log, logging.INFO)

    def run(
        self,
        to: str,
        *,
        check_only: bool,
        allow_loss: bool,
        state_partitions: int | None = None,
        start_sources: StartSources | None = None,
        code_version: str | None = None,
    ) -> None:
        """Go back to ``to``, or only tell whether that is possible.

        Args:
            to: where the job goes back to.
            check_only: change nothing.
            allow_loss: go back although rows would be lost or doubled.
            state_partitions: of the query's state in the restored copy, ``None`` to keep their number.
            start_sources: where topics are read from in the restored copy, ``None`` for where the checkpoint is.
            code_version: the version of the code that runs from there on, ``None`` for the one of now.

        Raises:
            InvalidConfiguration: there can be no such number, place or version, or no checkpoint for it; nothing is
                changed.
            SavepointFailed: the running job could not be stopped with a savepoint, and goes on.
            RestoreWithLoss: rows would be lost or doubled, and that is not allowed; nothing is changed.
            StorageError: the storage failed during the checks, and there is no verdict; nothing is changed.
            CheckpointError: going back is impossible, and nothing is changed; or a run of the job has not stopped, or
                the run that was to go back has failed.
        """
        self._versions.check_known(code_version)
        request = RestoreRequest(to, state_partitions=state_partitions, start_sources=start_sources)
        try:
            target = self._target(to)
        except CheckpointNotFound:
            self._instance.add_run_tags(self._context.run_id, {names.VERDICT_TAG: Verdict.NOT_RESTORABLE.value})
            raise
        verdict = self._verdict(target, request)
        error = verdict.refusal(self._settings.config.mode, None if allow_loss else ())
        refused = error is not None
        self._instance.add_run_tags(
            self._context.run_id,
            {names.VERDICT_TAG: verdict.verdict.value, **({} if refused or check_only else ACCEPTED)},
        )
        changes: dict[str, Any] = {
            "state_partitions": state_partitions,
            "start_sources": start_sources,
            "code_version": code_version,
        }
        others = {key: value for key, value in changes.items() if value}
        if refused:
            others["allow_loss"] = True
        self._tell(verdict, to, target, others, link=verdict.verdict is Verdict.WITH_LOSS if refused else check_only)
        if check_only:
            return
        if error is not None:
            raise error
        self._refuse_beside_another()
        if to == NOW:
            target = self._stopped(target)
            # Where the end of the job has discarded its checkpoints, the newest one would be a start from nothing.
            to = LATEST if target is None or self._catalog.given_up() is None else target.reference
        with self._kept(target):
            terminate_all(self._instance, self._catalog, self._clock, time.sleep, self._say)
            run = self._hand_over(to if target is None or to == LATEST else target.reference)
        self._say(f"Run {run.run_id} of job {self._catalog.job_name} goes back to {verdict.subject}.")
        self._context.add_output_metadata({"run": dg.MetadataValue.dagster_run(run.run_id)})

    def _stopped(self, newest: CheckpointMetadata | None) -> CheckpointMetadata | None:
        """Stop the job with a savepoint, if a run of it is alive; returns what the job goes on from.

        Whatever breaks off from here on leaves a stopped job: the next launch, or this rollback once more, goes on
        from the savepoint; by its name, where the end of the job has discarded the checkpoints.
        """
        if not active_runs(self._instance, self._catalog.job_name):
            return newest
        taken = take_savepoint(
            self._catalog,
            None,
            default=self._savepoint_path,
            stop=True,
            timeout=_STOP_PATIENCE,
            clock=self._clock,
            wait=time.sleep,
            report=self._say,
        )
        self._say(f"Job {self._catalog.job_name} is stopped with savepoint {taken.pointer}.")
        return self._catalog.resolve(taken.pointer)

    def _refuse_beside_another(self) -> None:
        job, mine = self._catalog.job_name, self._context.run_id
        for run in active_runs(self._instance, job, tag=names.ROLLBACK_OF_TAG):
            if run.run_id != mine and run.status is dg.DagsterRunStatus.STARTED:
                raise JobAlreadyRunning(
                    f"Run {run.run_id} is rolling job {job!r} back or checking a rollback now.",
                    hint=f"Wait for the end of run {run.run_id}, or terminate that run, and roll back again.",
                )

    def _target(self, to: str) -> CheckpointMetadata | None:
        """The checkpoint to go back to, ``None`` for a start from nothing."""
        if to == NONE:
            return None
        if to in {LATEST, NOW}:
            prefer_checkpoint = self._settings.config.prefer_checkpoint_for_recovery
            return find_newest(self._catalog, prefer_checkpoint=prefer_checkpoint).metadata
        if partition := _PARTITION.fullmatch(to):
            lineages = [job_id for job_id in self._catalog.job_ids() if job_id.startswith(partition[1])]
            if not lineages:
                raise CheckpointNotFound(
                    f"Job {self._catalog.job_name!r} has no lineage {partition[1]}.",
                    hint="Name a partition that the checkpoints asset has now.",
                )
            to = f"{lineages[0]}/{partition[2]}"
        return self._catalog.resolve(to)

    def _verdict(self, target: CheckpointMetadata | None, request: RestoreRequest) -> Preflight:
        job = self._catalog.job_name
        runs = active_runs(self._instance, job)
        findings: Sequence[Finding] = ()
        if target is None:
            subject, findings = "nothing", [_nothing(job, runs)]
        else:
            found = check_stored(
                self._catalog,
                target,
                request,
                clock=self._clock,
                wait=time.sleep,
                # A run that attends a driver ends the driver, whose heartbeat names the run that has submitted it.
                terminates={id_ for run in runs for id_ in (run.run_id, names.attends(run.tags)) if id_},
            )
            for item in found.findings:
                if isinstance(item.error, StorageError):  # it says nothing of the checkpoint
                    raise item.error
            subject, findings = found.subject, found.findings
            runs = active_runs(self._instance, job)  # the checks read every byte: a run may have begun meanwhile
        end = deleting_end(self._catalog, self._settings.config, request.restore_from, target, runs)
        return Preflight(subject, (*findings, *end))

    def _tell(
        self, verdict: Preflight, to: str, target: CheckpointMetadata | None, others: Mapping[str, Any], *, link: bool
    ) -> None:
        """Tell the verdict, in the log and at the partition; with a link that goes on, configured with ``others``."""
        for line in verdict.lines():
            self._say(line)
        ends = [item for item in verdict.findings if item.check == DELETING_END and item not in verdict.bad]
        why = " ".join(f"{item.check}: {item.reason}" for item in [*verdict.bad, *ends])
        told = in_one_line(redacted(f"{verdict.verdict} at {iso(self._clock.time())}{why and f': {why}'}"))
        metadata: dict[str, dg.MetadataValue] = {"verdict": dg.MetadataValue.text(told)}
        pad = Launchpad.of_run(self._context.run, self._catalog.job_name)
        if pad is not None and link:
            words = f"go back to {verdict.subject}{' nevertheless' if 'allow_loss' in others else ''}"
            way = pad.link(words, to, **others)
            metadata["go_on"] = dg.MetadataValue.md(f"Click, then Launch Run: {way}.")
        key = None if target is None or target.location is not None else names.partition_key(target)
        known = key is not None and self._instance.has_dynamic_partition(self._partitions, key)
        self._context.log_event(
            dg.AssetObservation(
                self._checkpoints_key,
                partition=key if known else None,
                description=f"{verdict.subject}: {told}",
                metadata=metadata,
            )
        )

    @contextmanager
    def _kept(self, target: CheckpointMetadata | None) -> Iterator[None]:
        """Let nobody delete the target before a run restores it.

        A checkpoint is deleted for a newer one or at the end of the job, and a savepoint by the history of its series.
        """
        reason = f"rollback {self._context.run_id}"
        if target is None:
            yield
            return
        if target.location is not None:
            with kept_savepoint(self._catalog, target, reason, self._clock):
                yield
            return
        pin = pin_checkpoint(self._catalog, target, reason, self._clock)
        try:
            yield
        finally:
            self._catalog.records.pins.remove(pin)

    def _hand_over(self, to: str) -> dg.DagsterRun:
        """Have a run launched, and wait until it has chosen; a run that the sensor has just resumed gives way.

        Raises:
            RestoreRefused: no run was launched in time, or the launched run has waited for too long and is terminated.
            JobAlreadyRunning: a resumed run has not stopped in time.
            CheckpointError: the launched run is over.
        """
        job, mine = self._catalog.job_name, self._context.run_id
        ask(self._instance, mine, to)
        try:
            began = self._clock.monotonic()
            while True:
                # Looked for before the launched run: whoever resumes that run, once it is over, stays.
                active = active_runs(self._instance, job)
                resumed = [other for other in active if names.is_resumed(other, self._instance)]
                run = goes_back(self._instance, mine)
                if run is not None and self._is_back(run, to) and not resumed:
                    return run
                if self._clock.monotonic() - began >= _PATIENCE:
                    if run is None or run.status in _WAITING:
                        break
                    if resumed:
                        raise JobAlreadyRunning(
                            f"Run {resumed[0].run_id} of job {job!r} was resumed beside run {run.run_id}, which goes "
                            f"back to {to}, and has not stopped within {_PATIENCE:.0f} s.",
                            hint=f"Terminate run {resumed[0].run_id}, and see whether run {run.run_id} goes on.",
                        )
                for other in resumed:
                    terminate(self._instance, other, self._say)
                time.sleep(_LOOK)
        finally:
            settle(self._instance, mine)
        run = goes_back(self._instance, mine)  # the sensor may have launched the run at the last moment
        if run is None:
            raise RestoreRefused(
                f"Job {job!r} is stopped, and the resume sensor has not launched a run within {_PATIENCE:.0f} s.",
                hint=f"Start the sensor, or launch the job with restore_from: {to}.",
            )
        terminate(self._instance, run, self._say)
        raise RestoreRefused(
            f"Job {job!r} is stopped: run {run.run_id}, which was to go back to {to}, has waited for more than "
            f"{_PATIENCE:.0f} s, and is terminated.",
            hint="See in Dagster what runs wait for (a limit of the queue, a daemon that does not run), and roll back "
            "again.",
        )

    def _is_back(self, run: dg.DagsterRun, to: str) -> bool:
        """Whether the job goes on from ``to``; raises if the launched run is over, but for one that has finished."""
        chosen = has_chosen(self._catalog, run)
        if not run.is_finished or (chosen and run.is_success):
            return chosen
        told = f"{run.status.value}: {why_over(self._instance, run)}"
        if chosen:
            raise CheckpointError(
                f"Run {run.run_id} of job {self._catalog.job_name!r} has gone back to {to}, and is over: {told}",
                hint=f"See run {run.run_id}. The resume sensor resumes a failed run under its restart strategy; after "
                "a cancellation launch the job.",
            )
        raise CheckpointError(
            f"Run {run.run_id} of job {self._catalog.job_name!r} was to go back to {to}, and is over: {told}",
            hint="The job has not gone back. Mend what the run says, and roll back again.",
        )


def _nothing(job: str, runs: Sequence[dg.DagsterRun]) -> Finding:
    check = "sink position"
    if not runs:
        return Finding.fine(check, "not checked: the start is refused if the sink has data.")
    error = JobAlreadyRunning(
        f"Run {runs[0].run_id} drives job {job!r}, and a start from nothing needs an empty sink.",
        hint=f"Terminate run {runs[0].run_id}, empty the sink, and roll back again.",
    )
    return Finding.of_error(check, error)
