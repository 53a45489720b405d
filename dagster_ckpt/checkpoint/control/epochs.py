"""Epochs: who may write, what each writer restored, and how it ended.

A run that starts a job claims the next epoch by creating ``control/epochs/e-N`` exclusively; from then on every
older writer is fenced. It then chooses what it restores and records that choice exclusively, and only then
starts. The end of an epoch is recorded too; an epoch without an end belongs to a run that lives or died. Who sweeps a
job that is over records what was complete then.

Only exclusive create is needed of the storage.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from dagster_ckpt.checkpoint.format.layout import CONTROL_DIR
from dagster_ckpt.checkpoint.format.records import (
    CheckpointId,
    Epoch,
    JobId,
    Line,
    RunId,
    Text,
    corrupt,
    encode_record,
    read_record,
)
from dagster_ckpt.errors import CorruptRecord, Fenced, PublishConflict, StorageUnusable
from dagster_ckpt.filesystem import FileSystem

__all__ = ["FAILING", "NOTHING", "Choice", "Claim", "End", "Epochs", "Settled"]

#: How an epoch ends whose job is to be restarted; every other end is one of Flink's job statuses.
FAILING = "FAILING"
#: The fallback of a lineage that began from nothing and has no checkpoint.
NOTHING = "nothing"

_NAME = re.compile(r"e-([0-9]{10})(?:\.(choice|end|settled))?")
_R = TypeVar("_R", "Choice", "End", "Settled")
#: How often in a row a name may be taken that no listing shows.
_UNLISTED = 10
#: Epochs kept for the record. Older ones matter to nobody; the newest choice is kept however old it is.
_KEPT = 200
#: The last that a name has room for.
_LAST = 10**10 - 1


@dataclass(frozen=True, slots=True)
class Claim:
    """A claimed epoch.

    Attributes:
        epoch: rises by one with every start of the job.
        token: unique, so that a create whose reply was lost can be recognised as our own.
        series: the epoch of the start by a user or a schedule that this start belongs to; restarts keep it, and
            the restart budget is counted within it.
        run_id: the Dagster run (or any other id of the process that drives the job).
        host: where it runs.
        pid: its process.
        claimed_at: ISO 8601 in UTC.
    """

    epoch: Epoch
    token: Line
    series: Epoch
    run_id: RunId
    host: Line
    pid: int
    claimed_at: Line


@dataclass(frozen=True, slots=True)
class Choice:
    """What an epoch began with.

    Attributes:
        job_id: the lineage it goes on with, or begins.
        restored: ``{job id}/chk-N`` or the directory of a savepoint, ``None`` for a start from nothing.
        first_id: the first checkpoint id it may use.
        last_id: the greatest id of the lineage that was complete when this was chosen.
        live: the live checkpointLocation of its query, on ``host``.
        host: where ``live`` is.
        sink: where the query writes to, ``None`` for a sink that checkpoints do not cover.
        reason: why this and no other checkpoint.
        claimed: the directory of a savepoint that the lineage was restored from and that is its own to delete.
        sink_kind: which kind of sink that is.
        fallback: where ``restored`` is a savepoint that was preferred to the newest checkpoint, the reference of that
            checkpoint, or ``nothing``. It is gone on from if the user takes the savepoint away.
        accepted_loss: what was lost or doubled in this lineage with somebody's consent, each with when and by which
            run; checkpoints of this epoch say it too.
        fell_back: that an older checkpoint than the newest was restored, and what it costs; for people, else empty.
        forked_from: the checkpoint or savepoint of another job that the lineage began with.
        complete: the ids of the lineage that were complete when this was chosen, as many as were retained. Any other
            of an older epoch is void, whenever it appears. ``None`` in a record of a release that did not list them;
            then those above ``last_id`` are.
        marks: whether its query marks what it writes to the sink, so that it can be told from what others write.
    """

    job_id: JobId
    restored: Line | None
    first_id: CheckpointId
    last_id: CheckpointId
    live: Line
    host: Line
    sink: Line | None
    reason: Text
    claimed: Line | None = None
    sink_kind: Line | None = None
    fallback: Line | None = None
    accepted_loss: tuple[Text, ...] = ()
    fell_back: Text = ""
    forked_from: Line | None = None
    complete: tuple[CheckpointId, ...] | None = None
    marks: bool = False


@dataclass(frozen=True, slots=True)
class End:
    """How an epoch ended.

    Attributes:
        status: ``FINISHED``, ``CANCELED`` or ``FAILED`` (in Flink's words), or ``FAILING`` for an attempt that is
            to be restarted.
        reason: for people.
        discarded: the job's checkpoints were given up by the cleanup policy with this end.
        ended_at: ISO 8601 in UTC.
    """

    status: Line
    reason: Text
    discarded: bool
    ended_at: Line


@dataclass(frozen=True, slots=True)
class Settled:
    """What was complete when a job that was over was swept: whatever its epochs still publish is void.

    Attributes:
        complete: by lineage the ids of its checkpoints, those included that could not be read.
    """

    complete: Mapping[JobId, Sequence[CheckpointId]]

    def voids(self, job_id: str, number: int) -> bool:
        """Whether a checkpoint of this epoch or an earlier one was published too late."""
        return job_id in self.complete and number not in self.complete[job_id]


class Epochs:
    """The epochs of one job name.

    Args:
        filesystem: the storage.
        job_name: the job's stable name.
    """

    def __init__(self, filesystem: FileSystem, job_name: str) -> None:
        self._filesystem = filesystem
        self._directory = f"{job_name}/{CONTROL_DIR}/epochs"

    def names(self) -> dict[int, set[str]]:
        """Which records each epoch has: ``claim``, ``choice``, ``end``, ``settled``."""
        found: dict[int, set[str]] = {}
        for entry in self._filesystem.list(self._directory):
            if match := _NAME.fullmatch(entry.name):
                found.setdefault(int(match[1]), set()).add(match[2] or "claim")
        return found

    def highest(self) -> int:
        """The highest epoch claimed, 0 before the first."""
        return max(self.names(), default=0)

    def claim(
        self, *, token: str, series: int | None, run_id: str, host: str, pid: int, now: str, after: int | None = None
    ) -> Claim:
        """Claim the next epoch; older writers are fenced from this moment.

        Args:
            token: unique to this claim.
            series: the series a restart belongs to, ``None`` to begin a new one.
            run_id: who claims.
            host: where it runs.
            pid: its process.
            now: ISO 8601 in UTC.
            after: claim the epoch after this one or none: nobody else may be fenced.

        Raises:
            Fenced: somebody has claimed the epoch after ``after``.
            StorageUnusable: a listing does not show the epochs that there are.
            StorageError: the storage failed.
        """
        tried = unlisted = 0
        while unlisted < _UNLISTED:
            if after is not None:
                self.check(after)
            epoch = (self.highest() if after is None else after) + 1
            unlisted = unlisted + 1 if epoch <= tried else 0
            tried = epoch
            if epoch > _LAST:
                raise corrupt(self._filesystem, self._path(epoch - 1), "nobody has started the job that often")
            claim = Claim(epoch, token, epoch if series is None else series, run_id, host, pid, now)
            try:
                path = self._path(epoch)
                self._filesystem.create(path, encode_record(claim, path))
            except PublishConflict:
                continue  # another run was faster: it holds a lower epoch than the one tried next
            self._forget_old(epoch)
            return claim
        raise StorageUnusable(
            f"Epoch {tried} cannot be claimed in {self._filesystem.url}/{self._directory}: it exists already, and "
            f"{_UNLISTED} times in a row a listing did not show it. Where listings are wrong, a run does not notice "
            "that it has been taken over.",
            hint="Switch off what caches listings between this machine and the storage (a mount's attribute cache, a "
            "proxy), or use a storage whose listings are consistent; then launch the run again.",
        )

    def check(self, epoch: int) -> None:
        """Make sure ``epoch`` is still the highest.

        Raises:
            Fenced: a newer run has taken the job over.
        """
        highest = self.highest()
        if highest > epoch:
            try:
                newer = self.read_claim(highest)
            except CorruptRecord:
                newer = None  # its name alone fences
            raise Fenced(
                f"Epoch {epoch} is fenced: run {newer.run_id if newer else '?'} on "
                f"{newer.host if newer else '?'} has claimed epoch {highest} of this job.",
                hint="This run stops. Nothing of it was added to or deleted from the checkpoints.",
            )

    def record_choice(self, epoch: int, choice: Choice) -> None:
        """Record what ``epoch`` begins with, before it starts anything.

        Raises:
            Fenced: a newer run has taken the job over meanwhile.
        """
        self.check(epoch)
        path = self._path(epoch, ".choice")
        self._filesystem.create(path, encode_record(choice, path))
        self.check(epoch)

    def record_end(self, epoch: int, end: End) -> bool:
        """Record how ``epoch`` ended; ``False`` when an end was already recorded."""
        path = self._path(epoch, ".end")
        try:
            self._filesystem.create(path, encode_record(end, path))
        except PublishConflict:
            return False
        return True

    def record_settled(self, epoch: int, settled: Settled) -> None:
        """Record what was complete when ``epoch`` was over. The first record of an epoch stands: none is added after.

        Raises:
            Fenced: the job was started meanwhile.
        """
        path = self._path(epoch, ".settled")
        with contextlib.suppress(PublishConflict):
            self._filesystem.create(path, encode_record(settled, path))
        self.check(epoch)

    def claim_path(self, epoch: int) -> str:
        """Where the claim of an epoch lies, or lay: its version is that of every record of the epoch."""
        return self._path(epoch)

    def read_settled(self, epoch: int) -> Settled | None:
        return self._read(epoch, ".settled", Settled)

    def read_claim(self, epoch: int) -> Claim | None:
        return read_record(self._filesystem, self._path(epoch), Claim, epoch=epoch)

    def read_choice(self, epoch: int) -> Choice | None:
        return self._read(epoch, ".choice", Choice)

    def read_end(self, epoch: int) -> End | None:
        return self._read(epoch, ".end", End)

    def _read(self, epoch: int, suffix: str, make: type[_R]) -> _R | None:
        """A record about an epoch, which is of the release that claimed the epoch."""
        return read_record(self._filesystem, self._path(epoch, suffix), make, sealed_as=self.claim_path(epoch))

    def _path(self, epoch: int, suffix: str = "") -> str:
        return f"{self._directory}/e-{epoch:010}{suffix}"

    def _forget_old(self, newest: int) -> None:
        names = self.names()
        chooser = max((epoch for epoch, kinds in names.items() if "choice" in kinds), default=0)
        for epoch, kinds in names.items():
            if epoch < min(newest - _KEPT, chooser):
                for kind in kinds:
                    self._filesystem.remove(self._path(epoch, "" if kind == "claim" else f".{kind}"))
