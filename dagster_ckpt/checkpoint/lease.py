"""The lease of a run: how often it beats, and after which silence other runs may take its job over.

The run that writes the heartbeat chooses its lease and announces the lease in each heartbeat, so that whoever reads the
heartbeat judges by the writer's figures. What is read is bounded: nobody can make a job wait for ever, or make it look
dead between two beats.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from dagster_ckpt.config import (
    HEARTBEAT_INTERVAL,
    HEARTBEAT_TIMEOUT,
    INTERVALS_PER_TIMEOUT,
    LONGEST_HEARTBEAT_TIMEOUT,
    CheckpointConfig,
)
from dagster_ckpt.filesystem import FileSystem

__all__ = ["UNSAID", "Lease"]

#: Beats that may hang side by side within one timeout, at least.
_AT_ONCE = 6
#: Seconds for which whoever begins a beat waits for the beat, at most: a run starts and stops also while beats hang.
_PATIENCE = 5.0
#: The parts of the timeout after which the writer pauses its query, and after which a JVM whose Python hangs ends.
_OWN, _LAST = 0.8, 0.9
#: Seconds between two looks at a bucket, at most: whoever asks a run for something waits so long.
_LONGEST_LOOK = 60.0

_Bounded = Annotated[float, Field(gt=0, le=LONGEST_HEARTBEAT_TIMEOUT, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True)
class Lease:
    """Seconds that the writer and the readers of a heartbeat share.

    Attributes:
        interval: between two beats.
        timeout: without a beat, after which the run counts as dead.
    """

    interval: _Bounded = HEARTBEAT_INTERVAL
    timeout: _Bounded = HEARTBEAT_TIMEOUT

    def __post_init__(self) -> None:
        """Refuse a lease under which one late beat would be a death."""
        if self.timeout < INTERVALS_PER_TIMEOUT * self.interval:
            raise ValueError("the timeout is shorter than three intervals")

    @classmethod
    def of(cls, config: CheckpointConfig) -> Lease:
        """The lease that the user has chosen."""
        return cls(config.heartbeat_interval.total_seconds(), config.heartbeat_timeout.total_seconds())

    @property
    def patience(self) -> float:
        """After so long nobody waits for a beat that has not returned, and the next beat is tried beside that beat."""
        return min(self.timeout / _AT_ONCE, _PATIENCE)

    @property
    def at_once(self) -> int:
        """Beats that may be in progress at once: as many as fit into the timeout."""
        return max(_AT_ONCE, math.ceil(self.timeout / (self.interval + self.patience)))

    @property
    def settled(self) -> float:
        """Within so long the holder of a job beats again, unless beats hang."""
        return self.interval + self.patience

    @property
    def own(self) -> float:
        """For so long after a beat the writer may go on: less than the timeout, which its readers wait for."""
        return _OWN * self.timeout

    @property
    def grace(self) -> float:
        """For so long after that, the writer's JVM waits to be paused, before the JVM ends itself."""
        return (_LAST - _OWN) * self.timeout

    def of_attendant(self, storage: FileSystem) -> Lease:
        """The lease of the run that attends the driver which keeps this lease.

        In a bucket each sign of life is paid for. Without the run the driver goes on, and nothing is lost but time
        until Dagster hears of it, so the run's signs are rarer than the driver's beats.

        Args:
            storage: of the job.
        """
        if not storage.is_distant:
            return self
        interval = min(self.timeout, LONGEST_HEARTBEAT_TIMEOUT / INTERVALS_PER_TIMEOUT)
        return Lease(interval, INTERVALS_PER_TIMEOUT * interval)

    def look(self, quick: float, storage: FileSystem) -> float:
        """Seconds between two looks at the job's storage: a look at a bucket is paid for, so it follows the lease.

        Args:
            quick: the seconds where a look costs nothing, and the least seconds anywhere.
            storage: of the job.
        """
        return max(quick, min(self.interval, _LONGEST_LOOK)) if storage.is_distant else quick


#: The lease of a run that has announced none, which a release before leases were told did not.
UNSAID = Lease()
