"""Which checkpoint is gone on from when some are broken: every history, every damage, no Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.catalog.file_reader import verify_checkpoint
from dagster_ckpt.checkpoint.catalog.newest import Newest, find_newest
from dagster_ckpt.checkpoint.control.plan_archive import PlannedBatch
from dagster_ckpt.checkpoint.control.quarantine import FellBack
from dagster_ckpt.checkpoint.format.facts import Facts
from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata
from dagster_ckpt.errors import (
    CheckpointError,
    CheckpointFileMissing,
    CorruptCheckpoint,
    CorruptMetadata,
    StorageError,
    UnknownMetadataVersion,
)
from dagster_ckpt.filesystem import FileSystem
from dagster_ckpt.spark.events import CheckpointQuarantined, Event
from dagster_ckpt.spark.run.fallback import FallbackChain, cost_of
from dagster_ckpt.spark.run.salvage import Salvaging
from dagster_ckpt.spark.sinks.user_sinks import CustomSink
from dagster_ckpt.testing import Action, Crash, Fail, FaultInjectingFileSystem, Operation, ProcessDied
from tests.helpers.checkpoint.driver import JOB, Ledger, ManualClock, Pins, Run, state
from tests.helpers.checkpoint.memory import MemoryFileSystem


@dataclass
class History:
    """A job that was run, restarted and rolled back, and the line that leads to where it is now."""

    pins: Path
    storage: MemoryFileSystem = field(default_factory=MemoryFileSystem)
    ledger: Ledger = field(default_factory=Ledger)
    line: list[str] = field(default_factory=list)
    taken: int = 0

    def __post_init__(self) -> None:
        self._pins = Pins(self.pins)
        self.run = Run(self.storage, self.ledger, self._pins).start()

    def checkpoint(self) -> None:
        self.taken += 1
        self.line.append(self.run.checkpoint(state(self.taken), batch=self.taken).reference)

    def restart(self) -> None:
        self.run = Run(self.storage, self.ledger, self._pins).start()

    def roll_back(self, by: int) -> None:
        if len(self.line) > by:
            del self.line[len(self.line) - by :]
            self.run = Run(self.storage, self.ledger, self._pins).start(self.line[-1])

    def own_file(self, reference: str) -> str:
        """A stored file that only this checkpoint needs."""
        metadata = CheckpointCatalog(self.storage, JOB).resolve(reference)
        (name,) = [file.reference for file in metadata.files if file.path == "checkpoint/state/manifest"]
        return f"{JOB}/{metadata.job_id}/{str(name).removeprefix('../')}"

    def damage(self, reference: str, how: str) -> None:
        path = f"{JOB}/{reference}/_metadata" if how == "manifest" else self.own_file(reference)
        data = self.storage.files[path]
        if how == "missing":
            del self.storage.files[path]
        else:
            self.storage.files[path] = data[:-30] + bytes([data[-30] ^ 1]) + data[-29:]


@contextmanager
def history() -> Iterator[History]:
    with TemporaryDirectory() as pins:
        yield History(Path(pins))


def choose(storage: FileSystem, *, opted_in: bool = True) -> tuple[Newest, list[Event]]:
    """What a new start of the job goes on from. The live location of the run before is on another host."""
    catalog = CheckpointCatalog(storage, JOB)
    epoch = catalog.records.epochs.highest() + 1
    claim = catalog.records.epochs.claim(token=f"t{epoch}", series=None, run_id="again", host="here", pid=1, now="now")
    previous = catalog.choice()
    assert previous is not None

    def no_store(*_: object) -> object:
        raise AssertionError("there is nothing to salvage")

    salvaging = Salvaging(catalog, {}, previous, None, Path("/nowhere"), no_store)  # type: ignore[arg-type]
    events: list[Event] = []
    chain = FallbackChain(
        catalog,
        claim,
        ManualClock(),
        events.append,
        opted_in=opted_in,
        newest=partial(find_newest, catalog),
        unpack=partial(verify_checkpoint, catalog),
        salvaging=salvaging,
    )
    return chain.newest(), events


_STEPS = st.one_of(
    st.just(("checkpoint", 0)),
    st.just(("checkpoint", 0)),
    st.just(("restart", 0)),
    st.tuples(st.just("roll back"), st.integers(1, 3)),
)
_DAMAGE = st.sampled_from(["manifest", "missing", "changed", "none", "none"])


@settings(max_examples=60, deadline=None)
@given(st.lists(_STEPS, min_size=1, max_size=12), st.data())
def test_the_newest_whole_one_on_the_line_of_descent(steps: list[tuple[str, int]], data: st.DataObject) -> None:
    with history() as job:
        for what, by in steps:
            if what == "checkpoint":
                job.checkpoint()
            elif what == "restart":
                job.restart()
            else:
                job.roll_back(by)
        abandoned = sorted(job.ledger.acknowledged.keys() - set(job.line))
        for reference in abandoned:
            if data.draw(_DAMAGE, label=f"abandoned {reference}") == "manifest":
                job.damage(reference, "manifest")
        whole = []
        for reference in job.line:
            how = data.draw(_DAMAGE, label=reference)
            if how == "none":
                whole.append(reference)
            else:
                job.damage(reference, how)
        before = {path: found for path, found in job.storage.files.items() if "/control/" not in path}
        passed = job.line[job.line.index(whole[-1]) + 1 :] if whole else job.line
        if not job.line:
            assert choose(job.storage)[0].metadata is None
        elif whole:
            target, events = choose(job.storage)
            assert target.metadata is not None
            assert target.metadata.reference == whole[-1]
            assert list(target.passed_over) == passed[::-1]
            told = [event.record.checkpoint for event in events if isinstance(event, CheckpointQuarantined)]
            assert told == passed[::-1]
            assert choose(job.storage) == (target, []), "found out once, and remembered"
        else:
            with pytest.raises(CorruptCheckpoint, match="no checkpoint left"):
                choose(job.storage)
        assert CheckpointCatalog(job.storage, JOB).records.quarantine.names() == set(passed)
        assert {path: found for path, found in job.storage.files.items() if "/control/" not in path} == before


@pytest.fixture
def broken() -> Iterator[History]:
    """Four checkpoints over a restart; the newest two are broken, one in its manifest."""
    with history() as job:
        job.checkpoint()
        job.checkpoint()
        job.restart()
        job.checkpoint()
        job.checkpoint()
        job.damage(job.line[-1], "manifest")
        job.damage(job.line[-2], "missing")
        yield job


def test_wherever_the_process_dies_the_next_one_ends_the_same(broken: History) -> None:
    counted = FaultInjectingFileSystem(broken.storage.backup())
    expected, _ = choose(counted)
    assert expected.passed_over == (broken.line[3], broken.line[2])
    changing = 0
    for number in range(len(counted.operations)):
        copy = broken.storage.backup()
        with pytest.raises(ProcessDied):
            choose(FaultInjectingFileSystem(copy, at(number, Crash())))
        changing += len(CheckpointCatalog(copy, JOB).records.quarantine.names()) == 1
        assert choose(copy)[0] == expected
    assert changing, "some died with one of two in quarantine"


def test_a_storage_that_is_down_is_no_reason(broken: History) -> None:
    """Whichever operation fails: either nothing comes of it, or the same as ever."""
    counted = FaultInjectingFileSystem(broken.storage.backup())
    expected, _ = choose(counted)
    for number in range(len(counted.operations)):
        copy = broken.storage.backup()
        try:
            found = choose(FaultInjectingFileSystem(copy, at(number, Fail())))[0]
        except StorageError:
            assert CheckpointCatalog(copy, JOB).records.quarantine.names() <= set(expected.passed_over)
        else:
            assert found == expected


def at(number: int, action: Action) -> Callable[[Operation], Action | None]:
    return lambda operation: action if operation.sequence == number else None


def test_without_the_option_it_fails_and_nothing_is_written(broken: History) -> None:
    with pytest.raises(CorruptMetadata) as caught:
        choose(broken.storage, opted_in=False)
    assert "fallback_to_older: true" in caught.value.hint
    assert not CheckpointCatalog(broken.storage, JOB).records.quarantine.names()


def test_a_manifest_of_a_newer_release_is_not_broken(broken: History) -> None:
    path = f"{JOB}/{broken.line[-1]}/_metadata"
    broken.storage.files[path] = b'{"format": "dagster_ckpt", "version": 99}'
    with pytest.raises(UnknownMetadataVersion):
        choose(broken.storage)
    assert not CheckpointCatalog(broken.storage, JOB).records.quarantine.names()


def test_a_fenced_run_puts_nothing_into_quarantine(broken: History) -> None:
    def take_over(operation: Operation) -> None:
        """When the files of the second one are read, and the first is in quarantine."""
        if operation.name == "checksum":
            epochs = CheckpointCatalog(broken.storage, JOB).records.epochs
            epochs.claim(token="z", series=None, run_id="z", host="z", pid=1, now="z")

    with pytest.raises(CheckpointError, match="is fenced"):
        choose(FaultInjectingFileSystem(broken.storage, take_over))
    assert CheckpointCatalog(broken.storage, JOB).records.quarantine.names() == {broken.line[-1]}, "from before"


def test_what_it_costs(broken: History) -> None:
    catalog = CheckpointCatalog(broken.storage, JOB)
    target, _ = choose(broken.storage)
    restored = target.metadata
    assert restored is not None
    plans = [PlannedBatch(number, {"sources/0/0": f'v1\n{{"path":"file:///{number}"}}'}) for number in (3, 4, 5)]
    passed = (broken.line[3], broken.line[2])
    assert cost_of(catalog, target, plans, None) == FellBack(passed, "chk-2", 2, 5, files=3, rows=None)
    # Of the two, only the manifest of chk-3 can be read; without plans the number of files is not known.
    assert cost_of(catalog, target, [], None) == FellBack(passed, "chk-2", 2, 3, files=None, rows=None)
    sink = CustomSink("s", position=lambda batch: batch, rollback_to=lambda *_: None, newest_batch=lambda: 4)
    assert cost_of(catalog, target, [], sink) == FellBack(passed, "chk-2", 2, 4, files=None, rows=None)
    assert cost_of(catalog, Newest(restored, restored.job_id, ""), plans, sink) is None


@pytest.mark.parametrize(
    ("cost", "text"),
    [
        (
            FellBack(("j/chk-9", "j/chk-8"), "chk-7", 12, 15, files=4, rows=80),
            "chk-9, chk-8 are broken, and it fell back to chk-7 (batch 12): batches 13 to 15 are run again "
            "(3 batches, 4 files, 80 rows)",
        ),
        (
            FellBack(("j/chk-9",), "chk-7", 12, 13, files=None, rows=None),
            "chk-9 is broken, and it fell back to chk-7 (batch 12): batch 13 is run again (1 batch)",
        ),
        (
            FellBack(("j/chk-9",), "chk-7", 12, 12, files=None, rows=None),
            "chk-9 is broken, and it fell back to chk-7 (batch 12): no batch is known to be run again",
        ),
    ],
)
def test_how_it_is_said(cost: FellBack, text: str) -> None:
    assert str(cost) == text


def test_the_error_names_the_checkpoint(broken: History) -> None:
    catalog = CheckpointCatalog(broken.storage, JOB)
    metadata: CheckpointMetadata = catalog.resolve(broken.line[2])
    with pytest.raises(CheckpointFileMissing) as caught:
        verify_checkpoint(catalog, metadata)
    assert caught.value.checkpoint == broken.line[2]


def test_the_rows_are_told_where_each_batch_is_on_record() -> None:
    with history() as job:
        for batch in range(1, 5):
            snapshot = job.run.pins.snapshot(batch, state(batch))
            facts = Facts(progress={"batch": batch, "input_rows": 10 * batch})
            metadata = job.run.store.write(job.run.store.begin(), replace(snapshot, facts=facts))
            job.line.append(metadata.reference)
        for reference in job.line[2:]:
            job.damage(reference, "changed")
        target, _ = choose(job.storage)
        catalog = CheckpointCatalog(job.storage, JOB)
        cost = cost_of(catalog, target, [], None)
        assert cost is not None
        assert (cost.batches, cost.rows) == (2, 70)
        later = [PlannedBatch(batch, {}) for batch in (3, 4, 5)]
        cost = cost_of(catalog, target, later, None)
        assert cost is not None
        assert (cost.batches, cost.files, cost.rows) == (3, None, None), "of the last batch nothing is on record"
