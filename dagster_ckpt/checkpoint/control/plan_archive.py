"""The batch plans since the oldest retained checkpoint, so that batches can be replayed with the same boundaries.

Spark plans a batch by writing down what the batch will read, and then runs the batch. Spark forgets the batch plan
later, and all batch plans are lost with the live location. The archive keeps the batch plans beside the checkpoints,
including batches after the last checkpoint.

::

    control/wal/{job-id}/e-{epoch}/begin                      how the epoch began, and the plans it took over
    control/wal/{job-id}/e-{epoch}/{first}-{last}-{unique}    plans of these batches

An epoch has plans of the batches after the batch that it began with: plans that it took over to replay, and plans of
batches that it ran. Going back from the newest epoch, epoch by epoch, gives the line that leads to the present.

A file is lines of JSON. The first line has the file's version and place, so that a file of another epoch or lineage is
refused. The content follows, and the last line is a SHA-256 of all other lines. (The first release wrote no line with
a place.)
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, takewhile
from typing import Any

from dagster_ckpt.checkpoint.control.epochs import Epochs
from dagster_ckpt.checkpoint.format import CHANGED, CONTROL_DIR, CheckpointMetadata, is_record, is_there_sealed
from dagster_ckpt.errors import CorruptRecord
from dagster_ckpt.filesystem import FileSystem, inside
from dagster_ckpt.stored_json import believed, check_tree, parsed, shown, whole

__all__ = ["PlanArchive", "PlanArchiveWriter", "PlannedBatch"]

_EPOCH = re.compile(r"e-([0-9]{10})")
_SEGMENT = re.compile(r"([0-9]{12})-([0-9]{12})-[0-9a-f]{8}")
_BEGIN = "begin"
_VERSION = 2
#: Most batches that the name of one file may claim: ten times a day of ten batches a second without a checkpoint.
_MOST_BATCHES = 10_000_000
#: After so many plans, or so many characters of them, a writer packs without a checkpoint: a job may never take one.
_MOST_UNPACKED = 1_000
_LONGEST_UNPACKED = 16 << 20
_HINT = "Put the file back from a backup; or launch with replay_to: none, and later batches get new boundaries."


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """A batch plan: what Spark wrote down before it ran the batch.

    Attributes:
        batch: the number of the batch.
        files: text by name, relative to the checkpointLocation: ``offsets/<batch>`` and the entries that the batch
            added to the logs of its sources. From a ``.compact`` entry only the lines of this batch.
    """

    batch: int
    files: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Begin:
    """After which batch an epoch began (-1 for none), after which epoch of the line, from what, with which plans."""

    after: int
    previous: int | None
    restored: str
    plans: Mapping[int, PlannedBatch]


class PlanArchive:
    """Reads the batch plans of one lineage. Every method raises ``CorruptRecord`` for a file that was changed.

    Args:
        filesystem: the storage.
        job_name: the job's stable name.
        job_id: the lineage.
    """

    def __init__(self, filesystem: FileSystem, job_name: str, job_id: str) -> None:
        self._filesystem = filesystem
        self._epochs = Epochs(filesystem, job_name)
        self._directory = f"{job_name}/{CONTROL_DIR}/wal/{job_id}"
        self._begun: dict[int, _Begin] = {}  # a cache: a begin file never changes

    def epochs(self) -> list[int]:
        """The epochs that have batch plans, ascending."""
        names = (entry.name for entry in self._filesystem.list(self._directory))
        return sorted(int(match[1]) for name in names if (match := _EPOCH.fullmatch(name)))

    def newest(self) -> int | None:
        """The newest epoch that began, ``None`` when none did."""
        return next((epoch for epoch in reversed(self.epochs()) if self._begin(epoch) is not None), None)

    def has_begun(self, epoch: int) -> bool:
        """Whether an epoch was ready to start its query. Its sink had been rolled back by then."""
        return any(entry.name == _BEGIN for entry in self._filesystem.list(self.of_epoch(epoch)))

    def began_after(self, epoch: int) -> int | None:
        """The batch after which an epoch began, -1 for a start from nothing; ``None`` when the epoch did not begin."""
        begin = self._begin(epoch)
        return None if begin is None else begin.after

    def line_through(self, metadata: CheckpointMetadata) -> int | None:
        """The newest epoch whose line contains a checkpoint, perhaps the checkpoint's own; ``None`` if none does."""
        origin = self._begun_with(metadata) if metadata.kind in CHANGED else self._origin(metadata.epoch)
        for epoch in reversed(self.epochs()):
            on_line = (at == origin and metadata.batch <= until for at, until, _ in self._line(epoch, metadata.batch))
            if origin is not None and any(on_line):
                return epoch
        return None

    def after(self, metadata: CheckpointMetadata) -> list[PlannedBatch]:
        """The batches planned after a checkpoint, on the newest line that contains it, in order up to the first gap."""
        return self._after(self.line_through(metadata), metadata.batch)

    def newest_after(self, batch: int) -> list[PlannedBatch]:
        """The batches of the newest line after ``batch`` (-1 for all), in order up to the first gap."""
        return self._after(self.newest(), batch)

    def planned(self, batch: int) -> PlannedBatch | None:
        """The newest plan of ``batch``, ``None`` if no epoch has planned it."""
        for epoch in reversed(self.epochs()):
            if plan := self._of(epoch, batch - 1).get(batch):
                return plan
        return None

    def batches(self) -> list[int]:
        """The batches that have a plan, ascending."""
        return sorted({batch for epoch in self.epochs() for some in self._numbers(epoch) for batch in some})

    def newest_batch(self) -> int | None:
        """The last batch of the newest epoch that planned a batch, ``None`` when no epoch did."""
        found = (max((some[-1] for some in self._numbers(epoch)), default=None) for epoch in reversed(self.epochs()))
        return next((batch for batch in found if batch is not None), None)

    def _numbers(self, epoch: int) -> list[range]:
        begin = self._begin(epoch)
        found = [] if begin is None else [range(batch, batch + 1) for batch in begin.plans]
        for path in self._segments(epoch):
            with self._believed(path):
                found.append(_batches_of(path))
        return found

    def _segments(self, epoch: int, after: int = -1) -> list[str]:
        """The paths of the files with plans of batches after ``after``."""
        names = (entry.name for entry in self._filesystem.list(self.of_epoch(epoch)))
        matches = (match for name in names if (match := _SEGMENT.fullmatch(name)))
        return [f"{self.of_epoch(epoch)}/{match[0]}" for match in matches if int(match[2]) > after]

    def _after(self, epoch: int | None, batch: int) -> list[PlannedBatch]:
        found: dict[int, PlannedBatch] = {}
        for at, until, _ in () if epoch is None else self._line(epoch, batch):
            plans = self._of(at, batch)
            found |= {number: plan for number, plan in plans.items() if number <= until and number not in found}
        return [found[number] for number in takewhile(found.__contains__, count(batch + 1))]

    def _line(self, epoch: int, batch: int) -> Iterator[tuple[int, float, _Begin]]:
        """The epochs of the line that leads to ``epoch``, newest first, back to the epoch that ran ``batch``.

        Each epoch comes with its last batch on the line.
        """
        until: float = math.inf
        at: int | None = epoch
        while at is not None and (begin := self._begin(at)) is not None:
            yield at, until, begin
            if begin.after < batch:
                return
            until, at = min(until, begin.after), begin.previous

    def _origin(self, epoch: int) -> int | None:
        """The epoch that ran the last batch of a checkpoint of ``epoch``.

        An epoch that died before it began can only have salvaged a checkpoint, from batches of the newest epoch that
        began before it.
        """
        began = (known for known in reversed(self.epochs()) if known <= epoch and self._begin(known) is not None)
        return next(began, None)

    def _begun_with(self, changed: CheckpointMetadata) -> int | None:
        """The epoch whose line begins with a changed copy: its own, unless that died before it began.

        Earlier releases did not tell from what an epoch began.
        """
        first = [(changed.batch, None, restored) for restored in ("", changed.reference)]
        begun = ((epoch, self._begin(epoch)) for epoch in self.epochs() if epoch >= changed.epoch)
        return next((epoch for epoch, it in begun if it and (it.after, it.previous, it.restored) in first), None)

    def _of(self, epoch: int, after: int) -> dict[int, PlannedBatch]:
        """The plans of an epoch, among them all of batches after ``after``."""
        begin = self._begin(epoch)
        found = {} if begin is None else dict(begin.plans)
        # A run of the epoch packs files together, perhaps after they were listed.
        files = self._filesystem.read_listed(lambda: self._segments(epoch, after), str)
        for path, data in files.items():
            if data is not None:
                with self._believed(path):
                    plans = _plans(self._lines(epoch, path, data))
                    batches = _batches_of(path)
                    if not all(batch in batches for batch in plans):
                        raise ValueError("it has plans of other batches than its name says")
                    found |= plans
        return found

    def _begin(self, epoch: int) -> _Begin | None:
        if epoch not in self._begun:
            path = f"{self.of_epoch(epoch)}/{_BEGIN}"
            data = self._filesystem.read_if_there(path)
            if data is None:
                return None
            with self._believed(path):
                head, *lines = self._lines(epoch, path, data)
                self._begun[epoch] = _begin(parsed(head), lines, epoch)
        return self._begun[epoch]

    def _lines(self, epoch: int, path: str, data: bytes) -> list[str]:
        body, mark, digest = data.rpartition(b"sha256:")
        if not mark or digest != hashlib.sha256(body).hexdigest().encode("ascii") + b"\n":
            raise CorruptRecord(
                f"{self._filesystem.url}/{path}, which tells how batches are replayed, is truncated or was changed.",
                hint=_HINT,
            )
        first, *others = lines = body.decode().removesuffix("\n").split("\n")
        head = parsed(first)
        if "version" not in head:
            if is_there_sealed(self._filesystem, self._epochs.claim_path(epoch)):
                raise ValueError("it is of version 1, and the release that wrote it writes version 2")
            return lines
        if head["version"] != _VERSION:
            raise ValueError(f"its version is {shown(head['version'])}; this release reads version {_VERSION}")
        if head["place"] != path:
            raise ValueError(f"it was written as {shown(head['place'])}")
        return others

    def _believed(self, path: str) -> contextlib.AbstractContextManager[None]:
        what = f"{self._filesystem.url}/{path}, which tells how batches are replayed,"
        return believed(what, _HINT, CorruptRecord)

    def of_epoch(self, epoch: int) -> str:
        """The directory of the plans of one epoch."""
        return f"{self._directory}/e-{epoch:010}"

    def forget(self, *, before: int) -> None:
        """Delete the batch plans that no checkpoint of epoch ``before`` or a later epoch needs."""
        origin = self._origin(before)
        for epoch in self.epochs():
            if origin is not None and epoch < origin:
                directory = self.of_epoch(epoch)
                for entry in self._filesystem.list(directory):
                    path = f"{directory}/{entry.name}"
                    if not entry.is_directory and is_record(path.partition(f"/{CONTROL_DIR}/")[2]):
                        self._filesystem.remove(path)
                self._filesystem.remove_directory(directory)
        self._filesystem.remove_directory(self._directory)


class PlanArchiveWriter:
    """Writes the batch plans of one epoch of a lineage. Not to be used by two threads at once.

    Args:
        filesystem: the storage.
        job_name: the job's stable name.
        job_id: the lineage.
        epoch: the writer's epoch.
        check_owner: raises when a newer epoch has taken the job over.
    """

    def __init__(
        self, filesystem: FileSystem, job_name: str, job_id: str, epoch: int, check_owner: Callable[[], None]
    ) -> None:
        self._filesystem = filesystem
        self._archive = PlanArchive(filesystem, job_name, job_id)
        self._directory = self._archive.of_epoch(epoch)
        self._check_owner = check_owner
        #: The files that are not packed yet, their plans, and how many characters the plans have.
        self._loose: list[str] = []
        self._unpacked: list[PlannedBatch] = []
        self._length = 0

    def begin(self, after: int, previous: int | None, pending: Sequence[PlannedBatch], restored: str = "") -> None:
        """Record how the epoch begins, from which checkpoint if from one, and the batch plans that it takes over.

        Raises:
            Fenced: a newer epoch has taken the job over.
        """
        self._check_owner()
        head = json.dumps({"after": after, "previous": previous, "restored": restored})
        path = f"{self._directory}/{_BEGIN}"
        self._filesystem.create(path, _encode(path, [head, *map(_line, pending)]))

    def append(self, plans: Sequence[PlannedBatch]) -> None:
        """Make batch plans durable.

        Raises:
            Fenced: a newer epoch has taken the job over.
            StorageError: the storage failed.
        """
        if not plans:
            return
        self._check_owner()
        if len(self._unpacked) >= _MOST_UNPACKED or self._length >= _LONGEST_UNPACKED:
            self._pack()
        self._loose.append(self._write(plans))
        self._unpacked += plans
        self._length += sum(len(text) for plan in plans for text in plan.files.values())

    def pack(self, retained: Sequence[CheckpointMetadata]) -> None:
        """Pack the loose batch plans into one file, and delete the plans that nobody needs any more.

        Needed are the batch plans after the oldest checkpoint in ``retained``; without one, all of them.

        Raises:
            Fenced: a newer epoch has taken the job over.
            StorageError: the storage failed; all needed batch plans are still there.
        """
        self._check_owner()
        self._pack()
        if not retained:
            return
        self._archive.forget(before=min(metadata.epoch for metadata in retained))
        oldest = min(metadata.batch for metadata in retained)
        for entry in self._filesystem.list(self._directory):
            match = _SEGMENT.fullmatch(entry.name)
            if match is not None and int(match[2]) <= oldest:
                self._filesystem.remove(f"{self._directory}/{entry.name}")

    def _pack(self) -> None:
        """Replace the loose files by one file. If the storage does not take that file, the next call tries again."""
        packed = self._loose if len(self._loose) > 1 else []
        if packed:
            self._write(self._unpacked)
        self._loose, self._unpacked, self._length = [], [], 0
        for name in packed:
            self._filesystem.remove(f"{self._directory}/{name}")

    def _write(self, plans: Sequence[PlannedBatch]) -> str:
        name = f"{plans[0].batch:012}-{plans[-1].batch:012}-{uuid.uuid4().hex[:8]}"
        path = f"{self._directory}/{name}"
        self._filesystem.create(path, _encode(path, list(map(_line, plans))))
        return name


def _encode(place: str, lines: Sequence[str]) -> bytes:
    """The bytes of the file at ``place``: its lines, and their checksum in the last line."""
    head = json.dumps({"version": _VERSION, "place": place})
    body = "".join(f"{line}\n" for line in (head, *lines)).encode()
    return body + f"sha256:{hashlib.sha256(body).hexdigest()}\n".encode("ascii")


def _line(plan: PlannedBatch) -> str:
    return json.dumps({"batch": plan.batch, "files": dict(plan.files)})


def _begin(fields: Any, lines: Iterable[str], epoch: int) -> _Begin:
    previous = fields["previous"]
    # Each epoch of a line is older than the epoch after it, so every line ends.
    if previous is not None and whole(previous, "the epoch before") >= epoch:
        raise ValueError(f"epoch {previous} was not before {epoch}")
    after, restored = whole(fields["after"], "the last batch", least=-1), str(fields.get("restored", ""))
    return _Begin(after, previous, restored, _plans(lines))


def _plans(lines: Iterable[str]) -> dict[int, PlannedBatch]:
    return {plan.batch: plan for plan in map(_plan, lines)}


def _plan(line: str) -> PlannedBatch:
    fields = parsed(line)
    check_tree(fields)
    batch, files = whole(fields["batch"], "a batch"), fields["files"]
    if f"offsets/{batch}" not in files or not all(isinstance(text, str) for text in files.values()):
        raise ValueError(f"it has no plan of batch {batch}")
    for name in files:
        inside(name)
    return PlannedBatch(batch, files)


def _batches_of(path: str) -> range:
    """The batches that a file has plans of, read from its name."""
    first, last = map(int, path.rpartition("/")[2].split("-")[:2])
    if not 0 <= last - first < _MOST_BATCHES:
        raise ValueError(f"its name says that it has plans of batches {first} to {last}")
    return range(first, last + 1)
