"""Lives of a job in a bucket, in which one request after the other goes wrong, on the wire."""

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.catalog.file_reader import materialize_checkpoint
from dagster_ckpt.errors import CheckpointError
from dagster_ckpt.filesystem import FileSystem
from dagster_ckpt.testing import FaultInjectingFileSystem, Operation, ProcessDied
from tests.helpers.checkpoint.driver import JOB, Ledger, Pins, Run, shared, state
from tests.unit.filesystem.buckets.stores import Asked, DisturbedStore, Trouble

#: What is answered once only; the job must not notice.
ONCE = {"fails once": Trouble.BUSY, "loses its reply once": Trouble.LOST}
#: What goes on until the operation that made the request is over: its first request, and all after that.
LASTING = {
    "is refused": (Trouble.REFUSED, Trouble.REFUSED),
    "fails": (Trouble.BUSY, Trouble.BUSY),
    "is carried out, and nothing is heard any more": (Trouble.LOST, Trouble.BUSY),
}
#: The same, but what was created can be read.
UNREPEATED = "is carried out, and repeated in vain"
DEATHS = {"is the last": Trouble.RESET, "is the last, and carried out": Trouble.LOST}
TROUBLES = (*ONCE, *LASTING, UNREPEATED, *DEATHS)
#: Those of which a driver cannot know that its request was carried out.
CARRIED_OUT = (
    "loses its reply once",
    "is carried out, and nothing is heard any more",
    UNREPEATED,
    "is the last, and carried out",
)

_CHANGING = frozenset({"put", "begin", "part", "complete", "cancel", "copy", "delete"})
#: How often a part is led at most until it asks for the same as the time before.
_TRIES = 5
_LARGE = os.urandom((5 << 20) + 1000)


def can_have(request: Asked, trouble: str) -> bool:
    """Whether it makes a difference: what only reads is not carried out in any sense that matters."""
    return request.kind in _CHANGING or trouble in {"fails once", "is refused", "fails", "is the last"}


class Wire(FaultInjectingFileSystem):
    """A driver's bucket, in which the ``at``-th request meets a ``trouble``.

    Args:
        inner: the bucket.
        store: of the bucket. Requests of others than this driver meet none.
        at: the number of the request, ``None`` for none.
        trouble: one of :data:`TROUBLES`.
    """

    def __init__(self, inner: FileSystem, store: DisturbedStore, at: int | None, trouble: str) -> None:
        super().__init__(inner)
        self.requests: list[tuple[Asked, Operation]] = []
        self.struck: tuple[Asked, Operation] | None = None
        self._at = at
        self._trouble = trouble
        self._gone = False
        self._under_way: Operation | None = None
        self.plan = self._begins
        store.plan(self._answer)

    def _begins(self, operation: Operation) -> None:
        self._under_way = operation

    def _operate(self, *arguments: Any, **options: Any) -> Any:
        try:
            return super()._operate(*arguments, **options)
        except Exception as error:
            if self._gone:
                self.die()
                raise ProcessDied from error
            raise
        finally:
            self._under_way = None

    def _answer(self, request: Asked) -> Trouble | None:
        operation = self._under_way
        if operation is None:
            return None
        if self._gone:
            return Trouble.RESET
        self.requests.append((request, operation))
        if len(self.requests) - 1 == self._at:
            self.struck = (request, operation)
            if self._trouble in DEATHS:
                self._gone = True
                return DEATHS[self._trouble]
            if self._trouble == UNREPEATED:
                return Trouble.LOST
            return ONCE.get(self._trouble) or LASTING[self._trouble][0]
        if self.struck is None or self.struck[1] != operation:
            return None
        if self._trouble == UNREPEATED:
            return Trouble.BUSY if request.kind == self.struck[0].kind else None
        return LASTING[self._trouble][1] if self._trouble in LASTING else None


@dataclass
class Told:
    """What a driver was told in one part of a life: whether it came to its end, and how many checkpoints failed."""

    ended: bool = False
    failed: int = 0


@dataclass(frozen=True)
class Part:
    """A part of a life: one driver, from its start; what the storage and the ledger are before it."""

    drive: Callable[[Run, Told], None]
    objects: dict[str, bytes]
    ledger: Ledger


class BucketLife:
    """The life of a job in three drivers, each of which can be led again and again from where the one before ended."""

    def __init__(self, store: DisturbedStore, pins: Pins) -> None:
        self.store = store
        self.pins = pins
        self.parts: list[Part] = []
        ledger = Ledger()
        for drive in (self.takes, self.saves, self.goes_back):
            part = Part(drive, store.objects(), copy.deepcopy(ledger))
            self.parts.append(part)
            drive(Run(store.storage(), ledger, pins), Told())

    def takes(self, run: Run, told: Told) -> None:
        """Checkpoints with inline, packed and whole files, the older ones dropped."""
        run.start()
        for step in (1, 2, 3):
            _take(run, told, state(step), step)
        told.ended = True

    def saves(self, run: Run, told: Told) -> None:
        """A large file in several requests, and a savepoint."""
        run.start()
        _take(run, told, {**state(4), "checkpoint/state/large.sst": _LARGE}, 4)
        try:
            run.store.write_savepoint(run.begin(), self.pins.snapshot(5, state(5)), run.filesystem)
        except CheckpointError:
            told.failed += 1
        told.ended = True

    def goes_back(self, run: Run, told: Told) -> None:
        """Back to the older one, past what a dead attempt has left; restored with every byte compared."""
        job_id = f"{1:032x}"
        oldest = CheckpointCatalog(run.beneath, JOB).completed(job_id)[0][0]
        left = f"base/{JOB}/{job_id}/shared/000001-0123456789ab-left"
        self.store.put(left, b"of an attempt that died")
        run.start(oldest.reference)
        assert left not in self.store.objects()
        with tempfile.TemporaryDirectory() as directory:
            materialize_checkpoint(run.catalog, run.catalog.resolve(oldest.reference), Path(directory) / "live")
        _take(run, told, state(7), 7)
        told.ended = True

    def requests(self, number: int) -> list[tuple[Asked, Operation]]:
        """What the driver of a part asks for when all goes well, twice in a row.

        On a machine under load a connection is lost now and then, and the library asks again.
        """
        found: list[tuple[Asked, Operation]] = []
        for _ in range(_TRIES):
            before = found
            wire, told, _ledger = self._lead(number, None, "fails once")
            assert told == Told(ended=True)
            found = wire.requests
            if len(found) == len(before):
                return found
        raise AssertionError(f"part {number} is another one each time")

    def violation(self, number: int, at: int, trouble: str) -> str | None:
        """What is wrong when a request of a part goes wrong; ``None`` if nothing is."""
        where = f"part {number}, request {at} {trouble}"
        try:
            wire, told, ledger = self._lead(number, at, trouble)
            assert wire.struck is not None, f"the driver ended after {len(wire.requests)} requests"
            where = f"part {number}, {wire.struck[0].kind} {at} of {wire.struck[1]} {trouble}"
            if trouble in ONCE:
                assert told == Told(ended=True), f"one fault that passes by came to {told}"
            assert told.failed <= 1, f"one operation made {told.failed} checkpoints fail"
            self._examine(ledger)
        except Exception as error:  # whatever it is, it should not have been
            return f"{where}: {type(error).__name__}: {error}"
        return None

    def _lead(self, number: int, at: int | None, trouble: str) -> tuple[Wire, Told, Ledger]:
        part = self.parts[number]
        self.store.hold(part.objects)
        ledger, told = copy.deepcopy(part.ledger), Told()
        wire = Wire(self.store.storage(), self.store, at, trouble)
        try:
            part.drive(Run(wire, ledger, self.pins), told)
        except ProcessDied:
            assert trouble in DEATHS
        except CheckpointError:
            assert trouble not in ONCE, "one fault that passes by ended the run"
        return wire, told, ledger

    def _examine(self, ledger: Ledger) -> None:
        """As the next driver finds it, whom nothing disturbs."""
        storage = self.store.storage()
        ledger.examine(storage)
        run = Run(storage, ledger, self.pins).start()  # finds that nothing acknowledged is newer
        needed = {name.rpartition("/")[2] for item in run.store.retained for name in item.references}
        assert shared(storage) == needed, "what a dead attempt has left is still there"
        issued = {number for job_id, number, _ in ledger.issued if job_id == run.store.job_id}
        assert run.checkpoint(state(20), 20).checkpoint_id not in issued, "an id was issued twice"
        run.subsume(2)
        ledger.examine(storage)


def every(requests: Sequence[tuple[Asked, Operation]], trouble: str, step: int = 1, first: int = 0) -> list[int]:
    """The numbers of the requests that can have a trouble; of these each ``step``-th."""
    able = [number for number, (request, _) in enumerate(requests) if can_have(request, trouble)]
    return able[first % min(step, len(able)) :: step]


def _take(run: Run, told: Told, contents: dict[str, bytes], batch: int) -> None:
    """As the coordinator does it: a checkpoint that fails is counted, and the job goes on."""
    try:
        run.checkpoint(contents, batch)
    except CheckpointError:
        told.failed += 1
        return
    try:
        run.subsume(2)
    except CheckpointError:
        return  # old ones could not be deleted: it is tried again with the next checkpoint
