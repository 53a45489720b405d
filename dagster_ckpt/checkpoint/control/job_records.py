"""The records of one job, through which its runs know of each other: one directory under ``control/`` per kind."""

from __future__ import annotations

from dataclasses import dataclass

from dagster_ckpt.checkpoint.control.deletion_log import DeletionLog
from dagster_ckpt.checkpoint.control.driver_messages import DriverMessages
from dagster_ckpt.checkpoint.control.epochs import Epochs
from dagster_ckpt.checkpoint.control.failures import FailureLog
from dagster_ckpt.checkpoint.control.heartbeat import HeartbeatFile
from dagster_ckpt.checkpoint.control.issued_ids import IssuedIds
from dagster_ckpt.checkpoint.control.pins import Pins
from dagster_ckpt.checkpoint.control.plan_archive import PlanArchive
from dagster_ckpt.checkpoint.control.quarantine import Quarantine
from dagster_ckpt.checkpoint.control.savepoint_requests import SavepointRequests
from dagster_ckpt.checkpoint.control.taken_savepoints import RecordedSavepoints
from dagster_ckpt.checkpoint.format import (
    CONTROL_DIR,
    Line,
    encode_record,
    read_record,
    reserve_path,
    validate_job_name,
)
from dagster_ckpt.checkpoint.start_traces import StartTraces
from dagster_ckpt.checkpoint.submissions import Submissions
from dagster_ckpt.errors import ForeignCheckpoint, PublishConflict
from dagster_ckpt.filesystem import FileSystem, Reserve

__all__ = ["JobRecords"]


@dataclass(frozen=True, slots=True)
class _Owner:
    deployment: Line


class JobRecords:
    """The records of one job.

    Args:
        filesystem: the job's storage.
        job_name: the job's stable name.

    Attributes:
        filesystem: the job's storage.
        epochs: which start may write, what each start began with, and how each start ended.
        heartbeat: the sign of life of the run that holds the job.
        failures: why starts failed.
        pins: checkpoints that a user wants kept.
        quarantine: checkpoints that were found broken.
        deletions: deletions that are not yet carried out.
        savepoint_requests: savepoints that a user asks for.
        taken_savepoints: savepoints that the job has taken.
        starts: where the seconds of each start went.
        submissions: which run has handed the job to a driver of its own.
        attendant: the sign of life of the Dagster run that reports of that driver.
        reserve: space for the records of deletions on a full disk.
    """

    def __init__(self, filesystem: FileSystem, job_name: str) -> None:
        self.filesystem = filesystem
        self._job_name = validate_job_name(job_name)
        self.epochs = Epochs(filesystem, job_name)
        self.heartbeat = HeartbeatFile(filesystem, job_name)
        self.failures = FailureLog(filesystem, job_name)
        self.pins = Pins(filesystem, job_name)
        self.quarantine = Quarantine(filesystem, job_name)
        self.deletions = DeletionLog(filesystem, job_name)
        self.savepoint_requests = SavepointRequests(filesystem, job_name)
        self.taken_savepoints = RecordedSavepoints(filesystem, job_name)
        self.starts = StartTraces(filesystem, job_name)
        self.submissions = Submissions(filesystem, job_name)
        self.attendant = HeartbeatFile(filesystem, job_name, "attendant")
        self.reserve = Reserve(filesystem, reserve_path(job_name))

    def issued(self, job_id: str) -> IssuedIds:
        """The ids issued in a lineage."""
        return IssuedIds(self.filesystem, self._job_name, job_id)

    def plans(self, job_id: str) -> PlanArchive:
        """The batch plans of a lineage."""
        return PlanArchive(self.filesystem, self._job_name, job_id)

    def messages(self, submission: int) -> DriverMessages:
        """What the driver of a submission, by its number, tells its Dagster run."""
        return DriverMessages(self.filesystem, self._job_name, submission)

    def claim_ownership(self, deployment: str) -> None:
        """Make ``deployment`` the owner of the job's directory, unless it is already.

        Two deployments must not share a directory by accident.

        Raises:
            ForeignCheckpoint: another deployment owns it.
        """
        path = f"{self._job_name}/{CONTROL_DIR}/owner"
        try:
            self.filesystem.create(path, encode_record(_Owner(deployment), path))
        except PublishConflict:
            owner = read_record(self.filesystem, path, _Owner)
            if owner is not None and owner.deployment != deployment:
                raise ForeignCheckpoint(
                    f"{self.filesystem.url}/{self._job_name} belongs to deployment {owner.deployment!r}, and this is "
                    f"{deployment!r}.",
                    hint="Give this deployment another checkpoint_path or job name; if this deployment is to take the "
                    f"job over, set deployment={owner.deployment!r} on its checkpoint storage.",
                ) from None
