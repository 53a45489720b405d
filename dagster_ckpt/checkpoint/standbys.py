"""Signs of life of the runs that wait beside a job to take it over: one file for each in ``control/standbys/``.

A standby holds nothing of the job: only a claim of the next epoch does. Its sign tells the sensor that somebody is
about to take the job over, and people that somebody waits. A standby whose sign somebody has removed is not wanted any
more, and ends.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from dagster_ckpt.checkpoint.control import Heartbeat, HeartbeatFile
from dagster_ckpt.checkpoint.format import CONTROL_DIR
from dagster_ckpt.checkpoint.lease import Lease
from dagster_ckpt.checkpoint.seen import unchanged_for
from dagster_ckpt.clock import Clock
from dagster_ckpt.errors import CorruptCheckpoint, StorageError
from dagster_ckpt.filesystem import FileSystem

__all__ = ["StandbySign", "Standbys"]


class Standbys:
    """The standbys of one job name.

    Args:
        filesystem: the job's storage.
        job_name: the job's stable name.
    """

    def __init__(self, filesystem: FileSystem, job_name: str) -> None:
        self._filesystem, self._job_name = filesystem, job_name

    def all(self) -> Sequence[Heartbeat]:
        """The signs of all standbys, dead ones too; a sign that cannot be read is left out.

        Raises:
            StorageError: the storage failed.
        """
        found = []
        for entry in self._filesystem.list(f"{self._job_name}/{CONTROL_DIR}/standbys"):
            with contextlib.suppress(CorruptCheckpoint):
                if (sign := self._file(entry.name).read()) is not None:
                    found.append(sign)
        return found

    def read(self, run_id: str) -> Heartbeat | None:
        """The sign of one standby; ``None`` before its first, and after its last, and for one that cannot be read.

        A standby that lives replaces a damaged sign with its next one.

        Raises:
            StorageError: the storage failed.
        """
        with contextlib.suppress(CorruptCheckpoint):
            return self._file(run_id).read()
        return None

    def has(self, run_id: str) -> bool:
        """Whether there is a sign of one standby, even one that cannot be read.

        Raises:
            StorageError: the storage failed.
        """
        with contextlib.suppress(CorruptCheckpoint):
            return self._file(run_id).read() is not None
        return True

    def why_dead(self, sign: Heartbeat, clock: Clock, asked: float) -> str | None:
        """Why a standby is dead, ``None`` while it may live; for whoever looks again and again.

        Args:
            sign: of the standby.
            clock: of this host.
            asked: when the look that has shown the sign began, on the monotonic clock.
        """
        key = (self._filesystem.url, self._job_name, "standby", sign.run_id)
        return sign.is_dead(clock, unchanged=unchanged_for(key, sign.sequence, clock, asked), asked=asked)

    def write(self, sign: Heartbeat) -> None:
        """Replace the sign of one standby."""
        self._file(sign.run_id).write(sign)

    def remove(self, run_id: str) -> None:
        """Remove the sign of one standby, which ends if it lives."""
        self._filesystem.remove(f"{self._job_name}/{CONTROL_DIR}/standbys/{run_id}")

    def _file(self, run_id: str) -> HeartbeatFile:
        return HeartbeatFile(self._filesystem, self._job_name, f"standbys/{run_id}")


class StandbySign:
    """The sign of one standby, as the standby itself keeps it.

    Args:
        standbys: of the job.
        run_id: of the standby.
        lease: how often it beats, and after which silence it counts as dead.
        clock: of this host.
    """

    def __init__(self, standbys: Standbys, run_id: str, lease: Lease, clock: Clock) -> None:
        self._standbys, self._run_id, self._lease, self._clock = standbys, run_id, lease, clock
        self._last: Heartbeat | None = None

    def beat(self, epoch: int) -> bool:
        """Leave a sign, if the last one is as old as the interval of the lease.

        Args:
            epoch: of the run that the standby waits beside.

        Returns:
            ``False`` if somebody has removed the last sign: the standby is not wanted any more.

        Raises:
            StorageError: the storage failed.
        """
        now = self._clock.monotonic()
        if self._last is not None and now - (self._last.uptime or 0.0) < self._lease.interval:
            return True
        if self.is_removed():
            return False
        sign = Heartbeat.following(self._last, epoch, self._run_id, self._lease, self._clock)
        self._standbys.write(sign)
        self._last = sign
        return True

    def is_removed(self) -> bool:
        """Whether somebody has removed the sign: the standby is not wanted any more.

        Raises:
            StorageError: the storage failed.
        """
        return self._last is not None and not self._standbys.has(self._run_id)

    def remove(self) -> None:
        """Remove the sign, if the storage lets it be removed; a sign that is left over dies with its process."""
        if self._last is not None:
            with contextlib.suppress(StorageError, OSError):
                self._standbys.remove(self._run_id)
            self._last = None
