"""Epochs: which start may write, what each start restored, and how each start ended.

A run that starts a job claims the next epoch by creating ``control/epochs/e-N`` exclusively; from then on every
older writer is fenced. The run then chooses what to restore, records the choice exclusively, and only then starts the
query. The end of an epoch is recorded too, by its run or by whoever claims next: the first end counts. A sweep of a
job that is over records which checkpoints were complete then. All this needs is exclusive create.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from dagster_ckpt.checkpoint.format import (
    CONTROL_DIR,
    UNTOLD,
    CheckpointId,
    CodeVersion,
    Epoch,
    JobId,
    Line,
    Moved,
    RunId,
    Text,
    corrupt,
    encode_record,
    read_record,
    reserve_path,
)
from dagster_ckpt.checkpoint.lease import UNSAID, Lease
from dagster_ckpt.errors import CheckpointError, CorruptRecord, Fenced, MustStop, PublishConflict, StorageUnusable
from dagster_ckpt.filesystem import FileSystem, Reserve

__all__ = ["FAILING", "NOTHING", "Choice", "Claim", "End", "Epochs", "Settled"]

#: The end of an epoch whose job is to be restarted; every other end is one of Flink's job statuses.
FAILING = "FAILING"
#: The fallback of a lineage that began from nothing and has no checkpoint.
NOTHING = "nothing"

_NAME = re.compile(r"e-([0-9]{10})(?:\.(choice|end|settled))?")
_R = TypeVar("_R", "Choice", "End", "Settled")
#: Give up after so many names in a row that are taken although no listing shows them.
_UNLISTED = 10
#: Epochs whose records are kept. Nothing needs older epochs; the newest choice is kept however old it is.
_KEPT = 200
#: The last epoch that a name has room for.
_LAST = 10**10 - 1


@dataclass(frozen=True, slots=True)
class Claim:
    """A claimed epoch.

    Attributes:
        epoch: rises by one with every start of the job.
        token: unique, so that a create whose reply was lost can be recognised as our own.
        series: the epoch of the start by a user or a schedule that this start belongs to; restarts keep the series,
            and the restart budget is counted within the series.
        run_id: the Dagster run (or any other id of the process that drives the job).
        host: the host of that process.
        pid: its process id.
        claimed_at: ISO 8601 in UTC.
        lease: of the run, for as long as no heartbeat tells it.
    """

    epoch: Epoch
    token: Line
    series: Epoch
    run_id: RunId
    host: Line
    pid: int
    claimed_at: Line
    lease: Lease = UNSAID


@dataclass(frozen=True, slots=True)
class Choice:
    """What an epoch began with.

    Attributes:
        job_id: the lineage that the epoch continues or begins.
        restored: ``{job id}/chk-N`` or the directory of a savepoint, ``None`` for a start from nothing.
        first_id: the first checkpoint id that the epoch may use.
        last_id: the greatest checkpoint id of the lineage that was complete at the time of the choice.
        live: the query's live location, on ``host``.
        host: the host of ``live``.
        sink: where the query writes to, ``None`` for a sink that checkpoints do not cover.
        reason: why this checkpoint was chosen.
        claimed: the directory of a savepoint that the lineage was restored from and that the job may delete.
        sink_kind: the kind of the sink.
        fallback: set when ``restored`` is a savepoint that was preferred to the newest checkpoint: that checkpoint, or
            ``nothing``. The job continues from it if the user takes the savepoint away.
        accepted_loss: what was lost or doubled in this lineage with a user's consent; its checkpoints tell it, too.
        fell_back: for people: that a checkpoint older than the newest was restored, and what that costs; else empty.
        forked_from: the checkpoint or savepoint of another job that the lineage began with.
        complete: the ids of the lineage's checkpoints that were complete and retained then. Every other checkpoint of
            an older epoch is void; where a record of an earlier release has ``None``, every one above ``last_id``.
        marks: whether the query marks its output in the sink.
        spark_version: of the Spark that runs the query; ``None`` in a record of a release that did not tell it.
        sink_position: set where ``restored`` is of another sink: the position of ``sink`` before the job's first batch.
        code: the version of the query.
        elsewhere: set where ``restored`` is of another sink: for people, what the job has left there.
        moved: the last move of its sources in the line of ``restored``, ``None`` if there was none.
        query: a digest of the query's plan; empty in a record of a release that did not tell it.
        is_bounded: whether the query ends by itself; ``None`` in a record of a release that did not tell it.
        others_delete: whether others delete old files of the sink, so that files that are gone are no loss.
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
    spark_version: Line | None = None
    sink_position: Text | None = None
    code: CodeVersion = UNTOLD
    elsewhere: Text = ""
    moved: Moved | None = None
    query: Line = ""
    is_bounded: bool | None = None
    others_delete: bool = False


@dataclass(frozen=True, slots=True)
class End:
    """How an epoch ended.

    Attributes:
        status: ``FINISHED``, ``CANCELED``, ``FAILED`` (Flink's words), or ``FAILING`` when the job is to be restarted.
        reason: for people.
        discarded: whether the cleanup policy discarded the job's checkpoints at this end.
        ended_at: ISO 8601 in UTC.
        taken_back: the version that has failed before its first checkpoint, if the job is to return to another one.
        returns_to: the version before.
        savepoint: the savepoint that the job was stopped with.
    """

    status: Line
    reason: Text
    discarded: bool
    ended_at: Line
    taken_back: Line | None = None
    returns_to: Line | None = None
    savepoint: Line | None = None

    @property
    def is_final(self) -> bool:
        """Whether the job is over with this end: no restart is wanted."""
        return self.status != FAILING


@dataclass(frozen=True, slots=True)
class Settled:
    """Which checkpoints were complete when a job that was over was swept: what its epochs publish later is void.

    Attributes:
        complete: the checkpoint ids of each lineage, unreadable checkpoints included.
    """

    complete: Mapping[JobId, Sequence[CheckpointId]]


class Epochs:
    """The epochs of one job name in a storage."""

    def __init__(self, filesystem: FileSystem, job_name: str) -> None:
        self._filesystem = filesystem
        self._directory = f"{job_name}/{CONTROL_DIR}/epochs"
        self._reserve = Reserve(filesystem, reserve_path(job_name))

    def names(self) -> dict[int, set[str]]:
        """Which records each epoch has: ``claim``, ``choice``, ``end``, ``settled``; the epochs in ascending order."""
        found: dict[int, set[str]] = {}
        for entry in self._filesystem.list(self._directory):
            if match := _NAME.fullmatch(entry.name):
                found.setdefault(int(match[1]), set()).add(match[2] or "claim")
        return dict(sorted(found.items(), key=lambda item: item[0]))

    def highest(self) -> int:
        """The highest epoch claimed, 0 before the first."""
        return max(self.names(), default=0)

    def claim(
        self,
        *,
        token: str,
        series: int | None,
        run_id: str,
        host: str,
        pid: int,
        now: str,
        after: int | None = None,
        is_start: bool = False,
        lease: Lease = UNSAID,
    ) -> Claim:
        """Claim the next epoch; older writers are fenced from this moment.

        Args:
            token: unique to this claim. A claim that is tried again with its token and ``after`` finds the epoch that
                it has created, if only the reply was lost.
            series: the series that a restart belongs to, ``None`` to begin a new series.
            run_id: the run that claims.
            host: the host of the run.
            pid: the process of the run.
            now: ISO 8601 in UTC.
            after: claim exactly the epoch after ``after``, so that only the holder of ``after`` is fenced.
            is_start: the claim begins a start also where it names ``after``. A claim that names ``after`` and begins no
                start ends a dead job, and may use the reserve.
            lease: of the run.

        Raises:
            Fenced: another run has claimed the epoch after ``after``.
            StorageUnusable: listings do not show all existing epochs.
            StorageError: the storage failed.
        """
        tried = unlisted = 0
        while unlisted < _UNLISTED:
            if after is not None:
                try:
                    self.check(after)
                except Fenced:
                    if (created := self._created(after + 1, token)) is None:
                        raise
                    return created
            epoch = (self.highest() if after is None else after) + 1
            unlisted, tried = (unlisted + 1 if epoch <= tried else 0), epoch
            if epoch > _LAST:
                raise corrupt(self._filesystem, self._path(epoch - 1), "no job has been started that often")
            claim = Claim(epoch, token, epoch if series is None else series, run_id, host, pid, now, lease)
            try:
                path = self._path(epoch)
                # A start would only fill the reserve with data; whoever ends a dead job is about to delete files.
                create = self._filesystem.create if after is None or is_start else self._reserve.create
                create(path, encode_record(claim, path))
            except PublishConflict:
                continue  # another run was faster, and this run now tries a higher epoch
            self._forget_old(epoch)
            return claim
        raise StorageUnusable(
            f"Epoch {tried} cannot be claimed in {self._filesystem.url}/{self._directory}: the epoch exists already, "
            f"but {_UNLISTED} times in a row a listing did not show it. With wrong listings, a run does not notice "
            "that another run has taken the job over.",
            hint="Switch off what caches listings between this machine and the storage (a mount's attribute cache, a "
            "proxy), or use a storage whose listings are consistent; then launch the run again.",
        )

    def _created(self, epoch: int, token: str) -> Claim | None:
        """The claim of the highest epoch, if the claim has this token; else ``None``."""
        with contextlib.suppress(CorruptRecord):  # then nobody knows whose claim it is
            claim = self.read_claim(epoch)
            if claim is not None and claim.token == token and self.highest() == epoch:
                return claim
        return None

    def check(self, epoch: int) -> None:
        """Make sure ``epoch`` is still the highest.

        Raises:
            Fenced: a newer run has taken the job over.
        """
        highest = self.highest()
        if highest > epoch:
            newer = None
            with contextlib.suppress(CorruptRecord):  # the name of the claim is enough to fence
                newer = self.read_claim(highest)
            who, where = (newer.run_id, newer.host) if newer else ("?", "?")
            raise Fenced(
                f"Epoch {epoch} is fenced: run {who} on {where} has claimed epoch {highest} of this job.",
                hint="This run stops. It added nothing to the checkpoints and deleted nothing from them.",
            )

    @contextlib.contextmanager
    def fenced_first(self, epoch: int) -> Iterator[None]:
        """Around work of the holder of ``epoch``: if a newer run has taken the job over, every failure is ``Fenced``.

        The newer run sweeps what the holder has begun to write, so the holder may fail at any step that needs it.

        Raises:
            Fenced: the work failed, and a newer run has taken the job over.
        """
        try:
            yield
        except (CheckpointError, OSError) as error:
            if not isinstance(error, MustStop):
                with contextlib.suppress(OSError):  # the storage may fail again
                    self.check(epoch)
            raise

    def record_choice(self, epoch: int, choice: Choice) -> None:
        """Record what ``epoch`` begins with, before it starts anything.

        Raises:
            Fenced: a newer run has taken the job over meanwhile.
        """
        self.check(epoch)
        path = self._path(epoch, ".choice")
        self._filesystem.create(path, encode_record(choice, path))
        self.check(epoch)

    def record_end(self, epoch: int, end: End, *, ends_job: bool = False) -> bool:
        """Record how ``epoch`` ended; ``False`` when an end was already recorded, which counts."""
        path = self._path(epoch, ".end")
        try:
            (self._reserve if ends_job or end.is_final else self._filesystem).create(path, encode_record(end, path))
        except PublishConflict:
            return False
        return True

    def record_own_end(self, epoch: int, end: End) -> bool:
        """Record how the caller's ``epoch`` ended; ``False`` when the caller has recorded an end already, which counts.

        Raises:
            Fenced: a newer run has taken the job over, and has closed the epoch.
        """
        is_first = self.record_end(epoch, end)
        if not is_first:
            self.check(epoch)
        return is_first

    def record_settled(self, epoch: int, settled: Settled) -> None:
        """Record which checkpoints were complete when ``epoch`` was over. Only the first record of an epoch counts.

        Raises:
            Fenced: the job was started meanwhile.
        """
        path = self._path(epoch, ".settled")
        with contextlib.suppress(PublishConflict):
            self._reserve.create(path, encode_record(settled, path))
        self.check(epoch)

    def runs_with_choice(self) -> set[str]:
        """The runs that have recorded a choice, as far as their records are kept."""
        chosen = (self.read_claim(epoch) for epoch, kinds in self.names().items() if "choice" in kinds)
        return {claim.run_id for claim in chosen if claim is not None}

    def claim_path(self, epoch: int) -> str:
        """The path of an epoch's claim, even after its removal. All records of an epoch have the claim's version."""
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
        """A record about an epoch. The release that claimed the epoch wrote the record."""
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
