"""``control/silent``: the beat after which somebody has seen no other beat for a whole lease.

A lease on another host is waited for by whoever decides that the job goes on: the resume sensor, as a rule. The run
that the sensor launches is another process, and has seen nothing yet. By this record that run need not wait for a
second lease, and neither need the driver of its own that it submits.

The record is evidence and no permission: the epoch decides who may write, as it does without the record. It is believed
only as far as the storage itself confirms it:

* It holds the whole beat, and counts only while the heartbeat is the same beat. One more beat, and the record is void;
  nobody has to withdraw it. So nothing depends on its age or on a clock, and a record that is late, of an earlier
  epoch, from before a sweep, or of another sensor tells nothing.
* Whoever believes it has seen the same beat for as long as two beats may lie apart. A client of a storage may send a
  request twice, so a beat that was overwritten can come back. The next beat of a living run shows that.
* It counts only while the epoch of the beat is the newest. A run that has just claimed the job has not beaten yet, and
  the old beat says nothing of that run.
* Whoever writes it has looked again and again without a gap, with its own monotonic clock, and looks once more before
  it writes. After an outage of the storage its watch begins anew, so that a run that was cut off can beat again.
* A record that is missing or damaged tells nothing, and one that cannot be written is left out: the lease is waited
  for once more then.

Whoever forges the record can forge a heartbeat that says that the run has ended, which takes effect in the same way.
"""

from __future__ import annotations

from dagster_ckpt.checkpoint.control.epochs import Epochs
from dagster_ckpt.checkpoint.control.heartbeat.beat import Heartbeat
from dagster_ckpt.checkpoint.format import CONTROL_DIR, encode_record, read_record
from dagster_ckpt.errors import CorruptCheckpoint, StorageError
from dagster_ckpt.filesystem import FileSystem

__all__ = ["Silence"]


class Silence:
    """The record of one job."""

    def __init__(self, filesystem: FileSystem, job_name: str) -> None:
        self._filesystem = filesystem
        self._epochs = Epochs(filesystem, job_name)
        self._path = f"{job_name}/{CONTROL_DIR}/silent"

    def record(self, beat: Heartbeat) -> None:
        """Tell that no beat has followed this one for its lease.

        Raises:
            StorageError: the storage failed.
        """
        self._filesystem.replace(self._path, encode_record(beat, self._path))

    def is_told(self, beat: Heartbeat) -> bool:
        """Whether somebody has told so of this beat, and no run has claimed the job since it was made.

        A record or an epoch that cannot be read tells nothing. Only a look at the heartbeat that begins afterwards
        shows whether the beat is still the last one.
        """
        try:
            told = read_record(self._filesystem, self._path, Heartbeat)
            return told == beat and self._epochs.highest() == beat.epoch
        except (CorruptCheckpoint, StorageError):
            return False
