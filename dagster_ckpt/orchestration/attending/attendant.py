"""The Dagster run of a job whose driver is a process of its own: it reports what the driver has put on record.

The storage is the only channel, and the run starts, asks and reads; so the run may die and another may go on in its
place. A run that attends leaves a sign of life in ``control/attendant``.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dagster_ckpt.checkpoint import CancelRequest, CheckpointCatalog, Claim, End, Heartbeat, Lease
from dagster_ckpt.clock import Clock
from dagster_ckpt.config import JobStatus
from dagster_ckpt.errors import (
    CheckpointError,
    DriverLost,
    Fenced,
    InvalidConfiguration,
    JobAlreadyRunning,
    NotRestarted,
    SparkNotStarted,
    StorageError,
)
from dagster_ckpt.orchestration.attending.cluster_release import check_release
from dagster_ckpt.orchestration.attending.driver_report import DriverReport, Told, Trouble
from dagster_ckpt.orchestration.attending.masters import CLUSTER, find_master
from dagster_ckpt.orchestration.attending.own_sign import OwnSign
from dagster_ckpt.orchestration.attending.own_submission import OwnSubmission
from dagster_ckpt.orchestration.attending.submit_resource import SparkSubmitResource
from dagster_ckpt.orchestration.attending.submitted_process import SubmittedProcess
from dagster_ckpt.orchestration.reporting import CheckpointReporter
from dagster_ckpt.shown_text import redacted
from dagster_ckpt.spark import RunResult

__all__ = ["Attendant"]

_log = logging.getLogger(__name__)

#: Seconds between two looks at the job's records, and between two signs of life, where a look costs nothing. Looks at a
#: bucket follow the driver's lease.
_LOOK = 2.0
#: Seconds for which this thread sleeps at a time.
_TURN = 0.2
#: Seconds for a driver that an earlier process of this run has submitted to claim the job.
_UNSEEN = 300.0
#: Seconds without a driver after which this run says that it waits.
_LONG = 60.0
#: Timeouts of the lease after which a bucket is asked for the next claim, although the driver beats: another driver may
#: have taken the job over and not beaten yet. The driver itself hears of that at its next write.
_TIMEOUTS = 6
#: Seconds for which a canceled driver may take to end.
_GRACE = 120.0
#: The errors by which Dagster hears what has become of the driver. After any other one nobody has told it.
_TELLING = (SparkNotStarted, DriverLost, NotRestarted, Fenced, JobAlreadyRunning)


class Attendant:
    """Attends the driver of one job.

    Args:
        catalog: the job's checkpoints.
        run_id: of this Dagster run.
        driver: the run that the driver was, or is to be, submitted for.
        reporter: of the checkpoints.
        told: who is told and asked.
        clock: of this host.
        wait: sleeps for so many seconds.
    """

    def __init__(
        self,
        catalog: CheckpointCatalog,
        run_id: str,
        driver: str,
        reporter: CheckpointReporter,
        told: Told,
        clock: Clock,
        wait: Callable[[float], object],
    ) -> None:
        self._catalog, self._records = catalog, catalog.records
        self._run_id, self._driver = run_id, driver
        self._told, self._clock, self._wait = told, clock, wait
        self._process: SubmittedProcess | None = None
        self._master = self._deploy_mode = ""
        self._began = clock.monotonic()
        self._sign = OwnSign(self._records, catalog.job_name, run_id, clock)
        self._claim: Claim | None = None
        #: The driver's, once it has beaten.
        self._lease = Lease()
        self._report = DriverReport(catalog, driver, reporter, told, clock, self._rest)
        self._submission = OwnSubmission(self._records, catalog.job_name, driver, clock, self._pause)
        self._trouble = Trouble(told.log)
        self._is_long = False
        self._list_at = 0.0  # on the monotonic clock: then a bucket is asked for the next claim; 0: for all epochs

    def submit(
        self,
        spark: SparkSubmitResource,
        required: Mapping[str, str] | None,
        series: int | None,
        op_config: Mapping[str, Any],
    ) -> None:
        """Start the driver, unless this run has started one before.

        Args:
            spark: how.
            required: settings of Spark that win over its own.
            series: the series that the run continues, ``None`` for a run of a user or a schedule.
            op_config: the run configuration of the query.

        Raises:
            InvalidConfiguration: the resource cannot be used, or not with this storage.
            JobAlreadyRunning: another run of the job is alive, or waits for its driver.
            SparkNotStarted: the master is away or has another Spark, or ``spark-submit`` cannot be started.
            StorageUnusable: another user has the directory of the driver's output.
        """
        job = self._catalog.job_name
        if not self._catalog.filesystem.is_durable:
            raise InvalidConfiguration(
                f"The checkpoint storage of job {job!r} is the memory of a driver, and no driver elsewhere can "
                "read that.",
                hint="Use FileSystemCheckpointStorage with SparkSubmitResource.",
            )
        command = spark.command(job, self._driver, required)
        self._master, self._deploy_mode = spark.master, spark.deploy_mode
        if self._submission.made() is not None:
            self._told.log(logging.INFO, "An earlier process of this run has submitted the driver.")
            return
        find_master(spark.master, spark.conf)
        if unsure := check_release(spark.master, spark.conf, Path(command[0]).parents[1]):
            self._told.log(logging.INFO, unsure)
        self._submission.make(series, json.dumps(dict(op_config)))
        try:
            self._sign.show(self._claim, self._lease)
            self._process = SubmittedProcess(command, spark.environment(), job, self._driver)
        except BaseException:
            self._is_withdrawn()
            raise
        self._told.log(logging.INFO, f"The driver is submitted; {self._process.log} has its output.")

    def attend(self) -> RunResult:
        """Report until the job is over, or its driver is dead.

        An interrupt of this thread that is no cancellation leaves a driver alive that has taken the job over.

        Returns:
            how the job ended.

        Raises:
            NotRestarted: the job has failed for good.
            DriverLost: the driver is dead, and the job is to be resumed.
            SparkNotStarted: the driver has ended before it took the job over.
            JobAlreadyRunning: another run attends the driver now.
            Fenced: another driver has taken the job over.
            BaseException: the interrupt of this thread.
        """
        is_interrupted = False
        try:
            while True:
                self._turn()
                ended = self._look()
                if ended is not None:
                    return self._result(ended)
                self._pause(
                    min(lease.look(_LOOK, self._catalog.filesystem) for lease in (self._lease, self._sign.lease))
                )
        except Exception as error:
            is_interrupted = not isinstance(error, _TELLING)
            if isinstance(error, (SparkNotStarted, DriverLost, NotRestarted)):
                self._report.last()
            is_own = self._claim is None and self._process is not None
            if is_own and (isinstance(error, Fenced) or self._is_withdrawn()):
                self._kill()  # the driver is not wanted, and may wait for room on the cluster for ever
            raise
        except BaseException:
            if self._is_canceled():
                self._cancel()
            else:
                is_interrupted = True
                self._leave()
            raise
        finally:
            self._sign.stop(self._claim, interrupted=is_interrupted)

    def _leave(self) -> None:
        """Leave the driver to the next run that attends it. A driver that has not come is not wanted any more."""
        if self._claim is None and self._is_withdrawn():
            self._kill()
            said = "This run is interrupted; its driver has not taken the job over, and is not wanted any more."
        else:
            said = "This run is interrupted; its driver goes on, and is attended again."
        self._told.log(logging.WARNING, said)

    def _is_withdrawn(self) -> bool:
        """Withdraw the submission; whether nobody wants the driver any more."""
        with contextlib.suppress(CheckpointError, OSError):  # nobody knows whether the driver has come
            return self._submission.withdraw()
        return False

    def _kill(self) -> None:
        """End ``spark-submit``, and in client mode the driver; a driver on the cluster finds that it is not wanted."""
        if self._process is not None:
            self._process.kill()

    def _pause(self, seconds: float) -> None:
        until = self._clock.monotonic() + seconds
        while (left := until - self._clock.monotonic()) > 0:
            self._wait(min(_TURN, left))
            self._turn()

    def _rest(self, seconds: float) -> None:
        """Sleep for less than a second, and stay alive to others."""
        self._wait(seconds)
        with contextlib.suppress(StorageError, OSError):
            self._sign.show(self._claim, self._lease)

    def _turn(self) -> None:
        try:
            self._told.turn()
        except Exception:
            _log.exception("What is done beside the job failed and is tried again")

    def _look(self) -> End | None:
        """Look at the records and report; the end of the job once the job is over.

        A storage that fails changes nothing for the driver, so the look is repeated.
        """
        try:
            self._sign.show(self._claim, self._lease)
            ended = self._seen()
        except (StorageError, OSError) as error:
            self._trouble.is_now(f"The records of the job cannot be read now: {redacted(str(error))}")
            return None
        self._trouble.is_now("")
        return ended

    def _seen(self) -> End | None:
        asked, heartbeat = self._clock.monotonic(), self._records.heartbeat.read()
        if heartbeat is not None and self._goes_on(heartbeat, asked):
            self._report.look(heartbeat)
            return None
        if (claim := self._newest_claim()) is None:
            self._check_unclaimed()
            return None
        end = self._records.epochs.read_end(claim.epoch)
        heartbeat = self._records.heartbeat.read()
        self._report.look(heartbeat)
        own = heartbeat if heartbeat is not None and heartbeat.epoch == claim.epoch else None
        self._lease = self._lease if own is None else own.lease
        if end is not None and end.is_final and own is not None and own.stopped:
            return end
        dead, _ = self._records.heartbeat.judged(claim, end, self._clock)
        self._list_at = self._clock.monotonic() + _TIMEOUTS * self._lease.timeout
        if dead is None or self._records.epochs.highest() != claim.epoch:
            return None
        end = self._records.epochs.read_end(claim.epoch)  # the driver's last word may have come between
        if end is not None and end.is_final:
            return end
        raise DriverLost(
            f"The driver of run {self._driver} is dead: {dead}.",
            hint="The resume sensor resumes the job by its restart strategy, in a new run with a new driver.",
        )

    def _goes_on(self, heartbeat: Heartbeat, asked: float) -> bool:
        """Whether the driver beats as before, so that a bucket need not be asked for its epochs yet."""
        claim = self._claim
        if claim is None or not self._catalog.filesystem.is_distant or not self._list_at or heartbeat.stopped:
            return False
        is_own = (heartbeat.epoch, heartbeat.run_id) == (claim.epoch, claim.run_id)
        if not is_own or self._records.heartbeat.judge(heartbeat, claim, None, self._clock, asked)[0]:
            return False
        self._lease = heartbeat.lease  # the first beat may come after the claim was seen
        if (is_due := asked >= self._list_at) and self._records.epochs.read_claim(claim.epoch + 1) is not None:
            return False
        self._list_at = asked + _TIMEOUTS * self._lease.timeout if is_due else self._list_at
        return True

    def _newest_claim(self) -> Claim | None:
        """The newest claim of the driver, ``None`` before the first.

        Raises:
            Fenced: another driver has taken the job over.
        """
        epoch = self._records.epochs.highest()
        if self._claim is not None and self._claim.epoch == epoch:
            return self._claim
        if (claim := self._submission.claim_of(epoch)) is not None:
            self._claim = claim
            self._report.claimed(claim)
            if self._deploy_mode == CLUSTER:
                self._kill()  # it only waits, as a JVM beside the driver, which is elsewhere
            return claim
        if self._claim is not None or not self._submission.stands(epoch):
            raise Fenced(
                f"The driver of run {self._driver} is not wanted any more: another run has taken the job over, or has "
                "submitted a driver to take it over.",
                hint="Leave the job to that run. This run changed nothing.",
            )
        return None

    def _check_unclaimed(self) -> None:
        """Make sure that the driver may still come.

        Raises:
            SparkNotStarted: it does not.
        """
        waited = self._clock.monotonic() - self._began
        if self._process is None:
            if waited < _UNSEEN:
                return
            error = SparkNotStarted(
                f"The driver that an earlier process of run {self._driver} has submitted has not taken the job over.",
                hint="Look at the master's web page for the driver, and launch the job again.",
            )
        elif not self._process.has_ended:
            if waited > _LONG and not self._is_long:
                self._is_long = True
                self._told.log(
                    logging.WARNING,
                    f"The driver has not taken the job over within {_LONG:.0f} s, and this run goes on waiting. "
                    f"{self._process.log} has what spark-submit says; with a cluster, the master's web page shows "
                    "whether a Worker has the cores and the memory for the driver.",
                )
            return
        elif self._newest_claim() is not None:
            return
        else:
            error = self._process.why(self._catalog.job_name, self._master, self._deploy_mode)
        made = self._submission.made()
        if not self._submission.withdraw():
            return
        series = None if made is None else made.series
        self._records.failures.record_failed_start(series, self._driver, error, self._clock.time())
        raise error

    def _result(self, end: End) -> RunResult:
        retained = self._report.last(end)
        if end.status == JobStatus.FAILED.value:
            raise NotRestarted(
                f"Job {self._catalog.job_name!r} has failed: {end.reason}.",
                hint="Mend the cause, and launch the job with restore_from: latest."
                if end.returns_to is None
                else f"The resume sensor launches version {end.returns_to} as soon as its code is there.",
            )
        if self._process is not None:
            self._process.forget()
        newest = retained[-1] if retained and not end.discarded else None
        return RunResult(JobStatus(end.status), newest)

    def _is_canceled(self) -> bool:
        try:
            return self._told.is_canceled()
        except BaseException as error:  # even a second interrupt
            _log.warning("Whether the job is canceled cannot be found out, so its driver goes on: %s", error)
            return False

    def _cancel(self) -> None:
        """Ask the driver to end the job as canceled, and wait until the end is on record.

        A request that nobody has answered stands: a driver that is late, or cannot be reached now, finds it.
        """
        until, is_asked, has_come = self._clock.monotonic() + _GRACE, False, False
        self._list_at = 0.0  # another run that has taken the job over is named at once
        while self._clock.monotonic() < until:
            try:
                if not is_asked:
                    has_come = self._ask_to_cancel()
                    is_asked = True
                if (self._claim is not None or has_come) and (end := self._look()) is not None:
                    self._report.last(end)
                    self._records.savepoint_requests.forget_cancel()
                    return
            except (StorageError, OSError) as error:
                _log.warning("The driver is not asked to cancel yet: %s", redacted(str(error)))
            except CheckpointError as error:
                self._told.log(logging.WARNING, f"While the job was being canceled: {error.message}")
                return
            if self._claim is None and is_asked and not has_come:
                self._kill()
                return
            self._wait(_TURN)
        name, path = self._catalog.job_name, self._catalog.filesystem.path_option
        told = f"The driver has not ended within {_GRACE:.0f} s. The resume sensor asks the driver again as soon as "
        told += f"the storage is back; or ask by `dagster-ckpt cancel {name} {path}`."
        self._told.log(logging.WARNING, told)

    def _ask_to_cancel(self) -> bool:
        """Whether the driver has come; one that appears from now on finds no submission."""
        has_come = False
        with contextlib.suppress(Fenced):
            has_come = self._newest_claim() is not None or not self._submission.withdraw()
        self._records.savepoint_requests.ask_to_cancel(CancelRequest(self._driver, self._clock.time()))
        return has_come
