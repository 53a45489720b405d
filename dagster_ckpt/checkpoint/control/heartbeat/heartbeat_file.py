"""Liveness: is the run that holds a job still alive? Safety does not depend on the answer: epochs provide safety.

A live run rewrites ``control/heartbeat`` every few seconds. On the run's own host its processes can be checked
directly; on another host, a heartbeat that does not change for the length of the lease means that the run is dead. The
lease is the one that the heartbeat announces, whatever the reader's own settings are.

No two clocks are compared, because nobody knows which of them is wrong. On one host the time since boot decides, which
nobody can set. For a heartbeat of another host, only the time counts for which the reader has seen it unchanged.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable

from dagster_ckpt.checkpoint.control.epochs import Claim, End, Epochs
from dagster_ckpt.checkpoint.control.heartbeat.beat import ENDED_ELSEWHERE, INTERRUPTED, Heartbeat
from dagster_ckpt.checkpoint.control.heartbeat.silence import Silence
from dagster_ckpt.checkpoint.format import CONTROL_DIR, encode_record, read_record
from dagster_ckpt.checkpoint.lease import UNSAID
from dagster_ckpt.checkpoint.seen import unchanged_for
from dagster_ckpt.clock import Clock, seconds_of
from dagster_ckpt.errors import CorruptCheckpoint, StorageError
from dagster_ckpt.filesystem import FileSystem
from dagster_ckpt.hosts import this_host

__all__ = ["HeartbeatFile"]

#: Seconds: less may not move a clock of floating point at all.
_SHORTEST_WAIT = 0.001


class HeartbeatFile:
    """``control/heartbeat`` of one job name; or ``control/attendant``, of the run that reports of the job's driver."""

    def __init__(self, filesystem: FileSystem, job_name: str, name: str = "heartbeat") -> None:
        self.key = (filesystem.url, job_name)
        self._filesystem = filesystem
        self._epochs = Epochs(filesystem, job_name)
        self._path = f"{job_name}/{CONTROL_DIR}/{name}"
        self._silence = Silence(filesystem, job_name)
        self.url = f"{filesystem.url}/{self._path}"

    def write(self, heartbeat: Heartbeat) -> None:
        """Replace the heartbeat."""
        self._filesystem.replace(self._path, encode_record(heartbeat, self._path))

    def read(self) -> Heartbeat | None:
        """The heartbeat, ``None`` when none was ever written.

        Raises:
            CorruptCheckpoint: the heartbeat cannot be read.
        """
        return read_record(self._filesystem, self._path, Heartbeat)

    def read_by_holder(self, epoch: int) -> Heartbeat | None:
        """The heartbeat for the run that holds ``epoch``; ``None`` also for an unreadable one, which it may overwrite.

        Raises:
            Fenced: the heartbeat cannot be read, and a newer run has taken the job over.
        """
        try:
            return self.read()
        except CorruptCheckpoint:
            self._epochs.check(epoch)
            return None

    def is_claimed_after(self, epoch: int, run_id: str) -> bool:
        """Whether another process or run has claimed the job after this epoch, whether or not it has beaten.

        Args:
            epoch: that the calling process holds.
            run_id: of the run that holds the epoch. In two containers of one name, both drivers may be process 1.
        """
        if (highest := self._epochs.highest()) <= epoch:
            return False
        try:
            newer = self._epochs.read_claim(highest)
        except CorruptCheckpoint:
            newer = None  # the name of the claim is enough to fence
        return newer is None or (newer.host, newer.pid, newer.run_id) != (this_host(), os.getpid(), run_id)

    def watched(self, clock: Clock, wait: Callable[[float], object]) -> tuple[Heartbeat | None, str | None]:
        """The heartbeat of a job, and why its holder is dead, ``None`` if the holder lives.

        A heartbeat that does not show by itself how its holder is doing is watched until it changes, or for a lease.
        Only the time between the answer to the first look and the question of the last look counts: a look that hangs
        shows an old heartbeat. Where this process has looked again and again until now, as a standby does, the time
        counts from the first of these looks; after a gap, in which the storage was away, the watch begins anew. A beat
        of which another process has :meth:`told <tell_silent>` that it was the last for a lease is watched for as long
        as two beats may lie apart.

        Args:
            clock: of this host.
            wait: sleeps for so many seconds.
        """
        asked = clock.monotonic()
        heartbeat = self.read()
        if heartbeat is None:
            return None, None
        lease, silent = heartbeat.lease, heartbeat.silent_for(clock, asked=asked)
        unchanged = self._watched_for(heartbeat, clock, asked, within=lease.settled)
        dead = heartbeat.is_dead(clock, unchanged=unchanged, asked=asked)
        if dead is not None or (silent is not None and silent <= lease.timeout):
            return heartbeat, dead
        is_told = unchanged < lease.timeout and self._silence.is_told(heartbeat)
        while unchanged < (enough := lease.settled if is_told else lease.timeout):
            wait(min(lease.interval, max(enough - unchanged, _SHORTEST_WAIT)))
            is_told = is_told and self._silence.is_told(heartbeat)
            asked = clock.monotonic()
            now = self.read()
            if now is None:
                return None, None
            unchanged = self._watched_for(now, clock, asked, within=lease.settled + lease.interval)
            if now.stopped or now.name != heartbeat.name:
                return now, now.is_dead(clock, unchanged=0.0, asked=asked)
            if (dead := now.is_dead(clock, unchanged=unchanged, asked=asked)) is not None:
                return now, dead
            is_told = is_told and now == heartbeat
        if is_told and unchanged < lease.timeout:
            return heartbeat, f"no heartbeat for {lease.timeout:.0f} s, as another process has seen"
        return heartbeat, f"no heartbeat for {heartbeat.silent_for(clock, unchanged):.0f} s"

    def tell_silent(self, clock: Clock) -> None:
        """Record the beat after which this process has seen no other for a lease, looking on without a gap.

        For whoever decides that the job goes on, in another process. A record that cannot be made is left out: that
        process waits for the lease once more then.

        Args:
            clock: of this host.
        """
        with contextlib.suppress(CorruptCheckpoint, StorageError):
            asked, beat = clock.monotonic(), self.read()
            if beat is None or beat.stopped:
                return
            if self._watched_for(beat, clock, asked, within=beat.lease.settled) >= beat.lease.timeout:
                self._silence.record(beat)

    def judged(self, claim: Claim, end: End | None, clock: Clock) -> tuple[str | None, float]:
        """Why the run that made the newest claim is dead, ``None`` while it may live; and its last sign of life.

        For whoever looks again and again: how long something was seen unchanged is remembered from look to look.

        Args:
            claim: the newest.
            end: of its epoch, ``None`` where none is on record.
            clock: of this host. The last sign of life is in its seconds since the epoch.

        Raises:
            CorruptCheckpoint: the heartbeat, or the time of the claim, cannot be read.
        """
        asked = clock.monotonic()
        return self.judge(self.read(), claim, end, clock, asked)

    def judge(
        self, heartbeat: Heartbeat | None, claim: Claim, end: End | None, clock: Clock, asked: float
    ) -> tuple[str | None, float]:
        """As :meth:`judged`, by a heartbeat that was just read, and was asked for at ``asked`` (monotonic)."""
        now, claimed_at = clock.time(), seconds_of(claim.claimed_at)
        unchanged = math.inf
        if heartbeat is not None:
            unchanged = unchanged_for((self.url,), heartbeat.name, clock, asked)
            self._watched_for(heartbeat, clock, asked, within=heartbeat.lease.settled)
        if heartbeat is None or heartbeat.epoch != claim.epoch:
            if end is not None and end.is_final:
                return "it ended", claimed_at  # by whoever ended it for a dead run
            # Claimed, and not one beat since: it has just begun, or it died at once.
            silent = unchanged_for((*self.key, "claim"), claim.token, clock, asked)
            if claim.host == this_host():
                silent = max(silent, now - claimed_at)
            timeout = max(UNSAID.timeout, claim.lease.timeout)  # a first beat may take longer than the next ones
            # A late beat of an earlier epoch may have replaced a newer beat.
            if silent <= timeout or unchanged < timeout:
                return None, claimed_at
            return f"no heartbeat since it took the job over {silent:.0f} s ago", claimed_at
        # While the run's own process lives, Dagster hears from it how the run ended; it may also have more steps.
        worker = heartbeat.worker or heartbeat.processes[0]
        # By this host's clock: a holder's clock that is ahead would put the restart into the future.
        silent = heartbeat.silent_for(clock, unchanged, asked) or 0.0
        recent, last_sign = silent <= heartbeat.lease.timeout, now - silent
        ended = heartbeat.stopped or (heartbeat.worker is not None and recent)
        if ended and (worker.is_alive() if worker.is_here else recent):
            return None, last_sign
        if heartbeat.stopped and end is None:
            return INTERRUPTED if heartbeat.interrupted else "it stopped and recorded no end", last_sign
        if heartbeat.stopped and not worker.is_here:
            return ENDED_ELSEWHERE, last_sign
        return heartbeat.is_dead(clock, unchanged=unchanged, asked=asked), last_sign

    def _watched_for(self, heartbeat: Heartbeat, clock: Clock, asked: float, *, within: float = math.inf) -> float:
        return unchanged_for((self.url, "without a gap"), heartbeat.name, clock, asked, within=within)
