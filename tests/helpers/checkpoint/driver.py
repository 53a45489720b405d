"""A run of a job as far as the protocol is concerned, and a ledger of what it was promised."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.catalog.lineage import line_of_descent
from dagster_ckpt.checkpoint.catalog.newest import Newest, fallback_of, find_newest
from dagster_ckpt.checkpoint.cleanup.dead_runs import close_earlier, finish_deletions
from dagster_ckpt.checkpoint.cleanup.pinning import pin_checkpoint, unpin_checkpoint
from dagster_ckpt.checkpoint.cleanup.start_sweep import sweep_start
from dagster_ckpt.checkpoint.control.deletion_log import DeletionLog
from dagster_ckpt.checkpoint.control.epochs import Choice, Claim, End, Epochs
from dagster_ckpt.checkpoint.format.code_versions import CodeVersion
from dagster_ckpt.checkpoint.format.facts import Facts
from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata
from dagster_ckpt.checkpoint.format.snapshot import PinnedFile, Snapshot
from dagster_ckpt.checkpoint.taking.progress import CheckpointInProgress, PendingCheckpoint
from dagster_ckpt.checkpoint.taking.retained import Discarded
from dagster_ckpt.checkpoint.taking.store import CompletedCheckpointStore
from dagster_ckpt.clock import iso
from dagster_ckpt.config.retention import Retention
from dagster_ckpt.errors import CheckpointError, Fenced, NotRestarted
from dagster_ckpt.filesystem import FileSystem
from dagster_ckpt.testing import Action, FaultInjectingFileSystem, Operation, Plan

JOB = "flights"
#: Files up to this size are inline, so that a few bytes are enough for a shared file.
INLINE = 16


class ManualClock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def time(self) -> float:
        return 1_700_000_000 + self.now

    def monotonic(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


class Pins:
    """Pinned files, one local file per content."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.released = 0
        self._files: dict[bytes, Path] = {}

    def snapshot(self, batch: int, contents: Mapping[str, bytes], *, identities: bool = True) -> Snapshot:
        return Snapshot(
            batch,
            tuple(self.file(path, data, identity=identities) for path, data in contents.items()),
            Facts(query_id="q", batch=batch),
            {"kind": "file", "batch": batch},
            self._release,
        )

    def file(self, path: str, data: bytes, *, identity: bool = True) -> PinnedFile:
        local = self._files.get(data)
        if local is None:
            local = self.directory / hashlib.sha256(data).hexdigest()
            local.write_bytes(data)
            self._files[data] = local
        known = (local.stat().st_ino, len(data)) if identity else None
        return PinnedFile(path, str(local), len(data), known, recurs="/state/" in path)

    def _release(self) -> None:
        self.released += 1


def state(step: int) -> dict[str, bytes]:
    """A job's state after a batch: files that are inline, packed or stored whole, that stay or that change."""
    return {
        "checkpoint/state/schema": b"small and stays",
        f"checkpoint/state/{step}.delta": b"small " + str(step).encode(),
        "checkpoint/commits/0": b"v1",
        f"checkpoint/offsets/{step}": b"{\xff}" + str(step).encode(),
        "checkpoint/state/base.sst": b"the same in every checkpoint of the job" * 2,
        f"checkpoint/state/{step // 2}.sst": b"the same in two checkpoints in a row" + str(step // 2).encode(),
        "checkpoint/state/manifest": b"rewritten under its name by every batch " + str(step).encode(),
    }


def content(filesystem: FileSystem, metadata: CheckpointMetadata) -> dict[str, bytes]:
    """What a restore would find, bit for bit, sizes and checksums compared."""
    found = {}
    for file in metadata.files:
        data = file.inline
        if data is None:
            assert file.reference is not None
            data = filesystem.read(f"{metadata.job_name}/{metadata.job_id}/{file.reference.removeprefix('../')}")
        if file.offset is not None:
            data = data[file.offset : file.offset + file.size]
        assert (len(data), hashlib.sha256(data).hexdigest()) == (file.size, file.sha256), file.path
        found[file.path] = data
    return found


@dataclass
class Ledger:
    """What the job was promised, whoever ran it.

    Attributes:
        meant: every content that was handed to the store for a checkpoint, by ``{job id}/chk-N``.
        acknowledged: checkpoints reported as complete, with their (epoch, id).
        given_up: checkpoints that a subsumption or the cleanup policy was told to drop.
        chosen: by epoch that started, what it went on from, and the newest of the checkpoints that were acknowledged
            before it claimed and not given up before it chose.
        wanted: what a run was told to go back to, as long as it is not known whether it did.
        issued: ids in the order they were issued, with their epoch.
        discarded: an end on record has discarded everything.
        ending: by epoch, what its end discards if that is recorded before the next start closes the epoch.
        pinned: checkpoints reported as pinned, as ``{job id}/chk-N``.
    """

    meant: dict[str, list[dict[str, bytes]]] = field(default_factory=dict)
    acknowledged: dict[str, tuple[int, int]] = field(default_factory=dict)
    given_up: set[str] = field(default_factory=set)
    chosen: dict[int, tuple[str | None, tuple[int, int]]] = field(default_factory=dict)
    wanted: set[str] = field(default_factory=set)
    issued: list[tuple[str, int, int]] = field(default_factory=list)
    discarded: bool = False
    ending: dict[int, set[str]] = field(default_factory=dict)
    pinned: set[str] = field(default_factory=set)
    floor: tuple[str | None, tuple[int, int]] = (None, (0, 0))
    job_ids: int = 0

    def new_job_id(self) -> str:
        self.job_ids += 1
        return f"{self.job_ids:032x}"

    def acceptable(self, metadata: CheckpointMetadata | None) -> bool:
        """Whether a job may go on from ``metadata``."""
        if metadata is None:
            return self.floor[0] is None or self.discarded or bool(self.ending)
        name, key = self.floor
        return metadata.reference == name or metadata.key > key or metadata.reference in self.wanted

    def settle(self, filesystem: FileSystem, epoch: int) -> None:
        """The epochs before ``epoch`` are closed: of their ends, those count that are on record now."""
        for earlier in [ending for ending in self.ending if ending < epoch]:
            names = self.ending.pop(earlier)
            end = Epochs(filesystem, JOB).read_end(earlier)
            if end is not None and end.discarded:
                self.given_up |= names
                self.discarded = True

    def examine(self, filesystem: FileSystem) -> None:
        """Compare what is stored with what was promised.

        Raises:
            AssertionError: a promise is broken.
        """
        catalog = CheckpointCatalog(filesystem, JOB)
        visible = {}
        for job_id in catalog.job_ids():
            completed, broken = catalog.completed(job_id)
            assert not broken, f"unreadable: {broken}"
            visible.update({metadata.reference: metadata for metadata in completed})
        for name, metadata in visible.items():
            try:
                found = content(filesystem, metadata)
            except FileNotFoundError as error:
                how = "acknowledged" if name in self.acknowledged else "visible"
                raise AssertionError(f"{how} {name} of epoch {metadata.epoch} lacks {error}") from error
            assert found in self.meant[name], f"{name} is not what any run meant"
        may_go = self.given_up.union(*self.ending.values())
        for name in self.acknowledged:
            assert name in visible or name in may_go, f"acknowledged {name} is gone"
        assert self.pinned <= visible.keys(), f"pinned {self.pinned - visible.keys()} are gone"


class Run:
    """One process that drives the job.

    Args:
        filesystem: as this process sees the storage.
        ledger: shared by all runs.
        pins: where its snapshots are pinned.
        clock: its clock.
        unfence: applied to the catalog and the deletion logs of this run, to switch rules off.
        prefer_checkpoint: whether it goes on from checkpoints only.
        series: the series that it resumes, ``None`` to begin one.
    """

    def __init__(
        self,
        filesystem: FileSystem,
        ledger: Ledger,
        pins: Pins,
        clock: ManualClock | None = None,
        unfence: Callable[[CheckpointCatalog | DeletionLog], None] | None = None,
        *,
        prefer_checkpoint: bool = True,
        series: int | None = None,
    ) -> None:
        self.filesystem = filesystem
        self.ledger = ledger
        self.pins = pins
        self.clock = clock or ManualClock()
        self.catalog = CheckpointCatalog(filesystem, JOB)
        self._unfence = unfence or (lambda _: None)
        self._unfence(self.catalog)
        self._prefer_checkpoint = prefer_checkpoint
        self._series = series
        self.claim: Claim
        self.store: CompletedCheckpointStore
        self._tokens = itertools.count()
        #: What it told of attempts that took long.
        self.told: list[CheckpointInProgress] = []

    def start(self, restore_from: str = "latest", *, branch: bool = False) -> Run:
        """Claim, close, finish old deletions, choose, record the choice, open the store, sweep: in this order.

        With ``branch`` the run begins a lineage of its own.
        """
        self.claim_epoch()
        self.close()
        finish_deletions(self.catalog, self.claim.epoch)
        choice = self.choose(restore_from, branch=branch)
        self.record(choice)
        self.open(choice)
        sweep_start(self.store)
        return self

    def claim_epoch(self) -> None:
        self._before = dict(self.ledger.acknowledged)
        token = f"{id(self)}-{next(self._tokens)}"
        now = iso(self.clock.time())
        self.claim = self.catalog.records.epochs.claim(
            token=token, series=self._series, run_id=token, host="h", pid=1, now=now
        )

    def close(self) -> None:
        """Close the epochs before; a run that resumes a job that is over begins nothing."""
        over = close_earlier(self.catalog, self.claim, self.clock)
        self.ledger.settle(self.beneath, self.claim.epoch)
        if over is not None:
            raise NotRestarted(over.reason)

    def choose(self, restore_from: str = "latest", *, branch: bool = False) -> Choice:
        fallback = None
        if restore_from == "latest":
            newest = self._newest()
            fallback = fallback_of(newest)
            metadata, job_id, reason = newest.metadata, newest.job_id, newest.reason
            # An older epoch that has not finished may still acknowledge, but never after this epoch's claim.
            assert self.ledger.acceptable(metadata) or self._overlapped(), f"older than promised: {reason}"
        else:
            metadata = self.catalog.resolve(restore_from)
            job_id, reason = metadata.job_id, "asked for"
            self.ledger.wanted.add(metadata.reference)
        if branch or job_id is None:
            job_id = self.ledger.new_job_id()
        restored = None if metadata is None else metadata.reference
        first_id = self.catalog.next_id(job_id, metadata)
        complete = self.catalog.completed_at_choice(self.claim.epoch, job_id, metadata)
        last_id = max(complete, default=0)
        options = {"fallback": fallback, "complete": complete, "code": CodeVersion("2")}
        return Choice(job_id, restored, first_id, last_id, "/live", "h", None, reason, **options)  # type: ignore[arg-type]

    def record(self, choice: Choice) -> None:
        epoch = self.claim.epoch
        self.catalog.records.epochs.record_choice(epoch, choice)
        before = [key for name, key in self._before.items() if name not in self.ledger.given_up]
        self.ledger.chosen[epoch] = (choice.restored, max(before, default=(0, 0)))
        if epoch == self.catalog.records.epochs.highest():
            self.ledger.floor = (choice.restored, (epoch, 0))
            self.ledger.discarded = False

    def open(self, choice: Choice) -> None:
        self.store = CompletedCheckpointStore(
            self.catalog,
            self.claim,
            job_id=choice.job_id,
            first_id=choice.first_id,
            restored_from=choice.restored,
            mode="EXACTLY_ONCE",
            clock=self.clock,
            inline_threshold=INLINE,
            tell=self.told.append,
        )
        self._unfence(self.catalog.records.deletions)

    def begin(self) -> PendingCheckpoint:
        pending = self.store.begin()
        self.ledger.issued.append((self.store.job_id, pending.number, self.claim.epoch))
        return pending

    def checkpoint(
        self, contents: Mapping[str, bytes], batch: int = 0, *, identities: bool = True
    ) -> CheckpointMetadata:
        """Take one checkpoint; noted as acknowledged when it is reported as complete."""
        pending = self.begin()
        name = f"{self.store.job_id}/chk-{pending.number}"
        self.ledger.meant.setdefault(name, []).append(dict(contents))
        with self._nothing_if_fenced():
            metadata = self.store.write(pending, self.pins.snapshot(batch, contents, identities=identities))
        self.ledger.acknowledged[name] = metadata.key
        if metadata.key > self.ledger.floor[1]:
            self.ledger.floor = (name, metadata.key)
            self.ledger.wanted.clear()
        return metadata

    def subsume(self, num_retained: int) -> list[Discarded]:
        """Drop old checkpoints; what may go is noted before, because the process may die on the way."""
        visible, _ = CheckpointCatalog(self.beneath, JOB).completed(self.store.job_id)
        line = line_of_descent(visible[-1], visible) if visible else []
        ranked = sorted(visible, key=lambda metadata: (metadata in line, metadata.key))
        self.ledger.given_up |= {metadata.reference for metadata in ranked[:-num_retained]}
        with self._nothing_if_fenced():
            return self.store.subsume(Retention(num_retained))

    def note_decisions(self) -> None:
        """Note what may go when that is decided: checkpoints complete while a deletion is under way."""
        kept = self.store._kept
        decided = kept._decided

        def noted(retention: Retention) -> tuple[Retention, dict[str, str]]:
            with_pins, drop = decided(retention)
            assert not kept.checkpoints or kept.checkpoints[-1].reference not in drop
            self.ledger.given_up |= drop.keys()
            return with_pins, drop

        kept._decided = noted  # type: ignore[method-assign]

    @property
    def beneath(self) -> FileSystem:
        """The storage as it is, without what disturbs this process."""
        storage = self.filesystem
        return storage.inner if isinstance(storage, FaultInjectingFileSystem) else storage

    @contextmanager
    def _nothing_if_fenced(self) -> Iterator[None]:
        """A process that was taken over before it begins completes nothing and deletes nothing of a checkpoint."""
        storage = self.filesystem
        if not isinstance(storage, FaultInjectingFileSystem):
            yield
            return
        fenced = Epochs(storage.inner, JOB).highest() > self.claim.epoch
        inside = f"{JOB}/{self.store.job_id}/"
        stored = {f"{inside}shared/{entry.name}" for entry in storage.inner.list(f"{inside}shared")}
        own = f"{inside}shared/{self.claim.epoch:06}-"
        begun = len(storage.log)
        try:
            yield
        finally:
            if fenced:
                changes = [item for item in storage.operations[begun:] if item.path.startswith(inside)]
                for operation in changes:
                    assert operation.name != "create", f"of a fenced process: {operation}"
                    # It may undo what it has just begun to write under its own names, and what it never came to.
                    undone = operation.path.startswith(own) and operation.path not in stored
                    assert undone or operation.name != "remove", f"of a fenced process: {operation}"

    def cleanup(self) -> None:
        """The end of a job whose cleanup policy discards its checkpoints."""
        self.ledger.ending[self.claim.epoch] = set(self.ledger.meant)
        try:
            self._end("CANCELED", discarded=True)
        except Fenced:
            self.ledger.ending.pop(self.claim.epoch, None)
            raise
        self.store.discard_all("canceled")

    def finish(self, status: str = "FINISHED") -> None:
        """The end of a job that keeps its checkpoints."""
        self._end(status, discarded=False)

    def _end(self, status: str, *, discarded: bool) -> None:
        epochs, epoch = self.catalog.records.epochs, self.claim.epoch
        epochs.check(epoch)
        if not epochs.record_end(epoch, End(status, "of the test", discarded, iso(self.clock.time()))):
            epochs.check(epoch)

    def _newest(self) -> Newest:
        try:
            return find_newest(self.catalog, prefer_checkpoint=self._prefer_checkpoint)
        except CheckpointError:
            self.catalog.records.epochs.check(self.claim.epoch)  # a newer run may have deleted what this one looks at
            raise

    def _overlapped(self) -> bool:
        return self.catalog.records.epochs.highest() > self.claim.epoch


def pin(storage: FileSystem, ledger: Ledger, pointer: str) -> str:
    """A user pins a checkpoint; noted when it is reported as pinned. ``{job id}/chk-N``."""
    catalog = CheckpointCatalog(storage, JOB)
    pinned = pin_checkpoint(catalog, catalog.resolve(pointer), "of the test", ManualClock())
    ledger.pinned.add(pinned.checkpoint)
    return pinned.checkpoint


def unpin(storage: FileSystem, ledger: Ledger, reference: str) -> None:
    """A user takes a pin off."""
    ledger.pinned.discard(reference)
    unpin_checkpoint(CheckpointCatalog(storage, JOB), reference)


def shared(storage: FileSystem, job_id: str = f"{1:032x}") -> set[str]:
    return {entry.name for entry in storage.list(f"{JOB}/{job_id}/shared")}


def directories(storage: FileSystem, job_id: str = f"{1:032x}") -> set[str]:
    return {entry.name for entry in storage.list(f"{JOB}/{job_id}") if entry.name.startswith("chk-")}


def once(name: str, ending: str, action: Action) -> Plan:
    """The first operation of that name on a path of that ending."""
    left = [action]

    def plan(operation: Operation) -> Action | None:
        return left.pop() if left and operation.name == name and operation.path.endswith(ending) else None

    return plan
