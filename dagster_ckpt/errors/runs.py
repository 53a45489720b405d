"""Errors of taking checkpoints, of restoring, and of running a job."""

from __future__ import annotations

from dagster_ckpt.errors.base import CheckpointError

__all__ = [
    "CaptureIncomplete",
    "CheckpointExpired",
    "CheckpointFailure",
    "CheckpointsLost",
    "DriverLost",
    "Fenced",
    "JobAlreadyRunning",
    "MustStop",
    "NotRestarted",
    "PoisonBatch",
    "QueryFailed",
    "QueryMismatch",
    "QueryNotBuilt",
    "RestoreRefused",
    "RestoreWithLoss",
    "SavepointFailed",
    "SinkMismatch",
    "SinkNotEmpty",
    "SinkOverlap",
    "SparkNotStarted",
    "StateBackendMismatch",
    "ToleranceExceeded",
    "TopicRecreated",
    "UpgradeFailed",
]


class CaptureIncomplete(CheckpointError):
    """The live location did not hold all files of a batch; a later batch may be whole.

    Spark was faster. The checkpoint is tried again with the next batch; five such errors in a row count as one failed
    checkpoint.

    Way on:
        None, unless it repeats: keep more batches (``spark.sql.streaming.minBatchesToRetain``, 100 by default).
    """


class CheckpointFailure(CheckpointError):
    """One checkpoint attempt failed; the failure counts against the tolerance.

    The query goes on.

    Way on:
        See the warning in the run's log for the cause.
    """


class CheckpointExpired(CheckpointFailure):
    """A checkpoint attempt took longer than its timeout and was discarded.

    Way on:
        A slow storage: raise ``timeout``, or mend the storage.
    """


class SavepointFailed(CheckpointError):
    """A requested savepoint was not taken. It never counts against the tolerance.

    The reason is the driver's, or nobody answered in time. If the job was to be stopped with it, the job is restarted
    from its newest checkpoint.

    Way on:
        Mend what the reason names, and ask again.
    """


class ToleranceExceeded(CheckpointError):
    """More consecutive checkpoint failures than ``tolerable_failed_checkpoints``.

    The job fails over; restarted.

    Way on:
        Mend the storage, or raise the tolerance.
    """


class MustStop(CheckpointError):
    """Whatever this run did next would be wrong, so it stops: the error is never counted, tolerated or retried."""

    recoverable = False


class Fenced(MustStop):
    """A newer run has taken the job over. The fenced writer must stop; it can change nothing any more.

    This run had been declared dead.

    Way on:
        None. If it repeats, the run's host pauses, or its storage is unreachable for longer than
        the lease (``heartbeat_timeout``).
    """


class SinkOverlap(MustStop):
    """Another query writes to the same sink, most likely the query of a run that was wrongly declared dead.

    No checkpoint covers what that query wrote.

    Way on:
        Make sure that the other run is dead, then launch the job again with ``restore_from: latest``: the sink goes
        back to the checkpoint, and what the other run wrote is removed.
    """


class TopicRecreated(MustStop):
    """A topic of Kafka was deleted and created again while the query read from it.

    Spark would skip the new topic's records below the offsets that it reached in the old topic.

    Way on:
        Launch the job again: the check before the restore tells how many records are lost, and what can be done.
    """


class JobAlreadyRunning(CheckpointError):
    """Another run of the same job is alive.

    This run changed nothing.

    Way on:
        Terminate the other run first. With the tag limit of ``dagster.yaml`` a second run is queued instead.

    Attributes:
        by: the run that is alive; ``None`` where only a process is left of a dead run.
    """

    recoverable = False
    by: str | None = None


class RestoreRefused(CheckpointError):
    """The restore would lose or double data, or cannot work. Nothing was touched.

    Such as: under ``EXACTLY_ONCE`` a sink that cannot be rolled back; a state store whose files are not known; logs of
    a newer Spark; ``fork_from`` for a job that has checkpoints of its own, or of a checkpointLocation that is in use.

    Way on:
        The hint names the setting: a file sink, ``mode="AT_LEAST_ONCE"``, another provider, an upgrade.
    """

    recoverable = False


class CheckpointsLost(RestoreRefused):
    """The checkpoints of a job were in the memory of a driver that is gone.

    That is ``JobManagerCheckpointStorage`` without a ``checkpoint_path``.

    Way on:
        Empty the sink and launch with ``restore_from: none``; give the storage a path, or use
        ``FileSystemCheckpointStorage``.
    """


class QueryMismatch(RestoreRefused):
    """The query differs from the one whose checkpoint is to be restored.

    Spark's reason is in the message. Found before batches are taken out of the sink.

    Way on:
        Run the query as it was, or start over.
    """


class RestoreWithLoss(RestoreRefused):
    """The restore would work, but lose rows, or double rows under ``EXACTLY_ONCE``; the user has not accepted that.

    Input files of a batch that is read again are gone, or output files that the checkpoint covers; or a sink that
    cannot go back has batches whose boundaries are not known. Under ``AT_LEAST_ONCE`` what is doubled is a warning in
    the run's log.

    Way on:
        Put back what is named; or launch with ``allow_loss: true``.
    """


class SinkNotEmpty(RestoreRefused):
    """A start from nothing was asked for, but the sink already has data.

    Spark would skip every batch id that the sink has seen, and their rows would be lost. A fork is refused in the same
    way, also where the sink is put back by a callable of yours and does not tell whether it is empty.

    Way on:
        Empty the sink with its ``_spark_metadata`` or ``_transactions``, write elsewhere, or go on with ``restore_from:
        latest``. Give a sink of your own a ``newest_batch``.
    """


class SinkMismatch(RestoreRefused):
    """The sink does not hold the data that the checkpoint says it holds.

    The query writes to another place than when the checkpoint was taken, or files that the sink had written by then
    have another size. Or a rollback has abandoned the checkpoint since, and the sink does not hold its rows any more.

    Way on:
        Write to the same place; put the files back; or restore a checkpoint from before those files.
    """


class StateBackendMismatch(RestoreRefused):
    """The job's state backend is not the one whose state the checkpoint holds.

    The state is of another provider than the job's ``state_backend``, or of one of yours that the job no longer names.

    Way on:
        Give the job the state backend that the hint names, or start over.
    """


class UpgradeFailed(CheckpointError):
    """A new version of the code has completed no checkpoint in time, and the job returns to the version before.

    What the version before goes on from is kept, and the next start rolls the sink back to it.

    Way on:
        See the message for the cause. Put the code of the version before back, or name it in ``previous``.
    """

    recoverable = False


class QueryFailed(CheckpointError):
    """The streaming query ended with an error; Spark's own error is in ``__cause__``.

    Restarted.

    Way on:
        Mend what the error names, and launch again.
    """


class QueryNotBuilt(QueryFailed):
    """The job's function raised, or Spark could not plan the query; that error is in ``__cause__``.

    The first time, the cause may pass, such as a catalog that is away. The same error in the very next start is a
    mistake.

    Restarted. If the next start fails in the same way (the same error but for numbers, ids and paths), the job ends.
    Only an error that speaks of an outage (a refused connection, a timeout, a full disk) is tried again for as long as
    the strategy allows.

    Way on:
        Mend the function, and launch again.
    """


class PoisonBatch(QueryFailed):
    """The same batch failed with the same error each time it was tried; the last error is in ``__cause__``.

    The batch failed ``poison_batch_attempts`` times in a row, and is not tried again, whatever the restart strategy
    still allows.

    Way on:
        The guide "Deal with a batch that fails again and again".
    """

    recoverable = False


class SparkNotStarted(CheckpointError):
    """Spark's JVM, or Spark in the JVM, did not start; PySpark's error is in ``__cause__``.

    Too little memory, a port that is taken, a master that is away. The message has PySpark's reason. With
    ``SparkSubmitResource``: the driver has not taken the job over, and the message has its last words. Restarted.

    Way on:
        The JVM's own words are in the run's error output (in Dagster: *stderr* of the run), or in the log that the hint
        names. Look at the machine's memory, ``spark.driver.memory`` and ``JAVA_HOME``.
    """


class DriverLost(CheckpointError):
    """The JVM of the Spark driver is gone; with ``SparkSubmitResource``, the driver.

    It was killed, or out of memory, or Spark has lost its cluster. The run starts another JVM and goes on, as its
    restart strategy allows. If only a new process can go on (``needs_process``, and always with
    ``SparkSubmitResource``), the run fails, and the sensor or ``dagster-ckpt run`` resumes the job.

    Way on:
        If it repeats: ``spark.driver.memory``, and the memory that the machine has left.

    Attributes:
        needs_process: whether this process cannot use another JVM.
    """

    needs_process: bool = False


class NotRestarted(CheckpointError):
    """A run of the job has failed or died, and the restart strategy allows no restart.

    Found by a run without Dagster, which records the job as FAILED, and told by a run that attends a driver of its own;
    else the sensor records the job as FAILED.

    Way on:
        Mend the cause, and run the job again: it goes on from its newest checkpoint, with a new budget.
    """

    recoverable = False
