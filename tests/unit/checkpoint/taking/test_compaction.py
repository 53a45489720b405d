"""Packs that are mostly dead: the space a job takes, and what it writes for that, over any history of small files."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata, FileEntry
from dagster_ckpt.checkpoint.taking import shared_files as shared_state
from dagster_ckpt.checkpoint.taking.compaction import LARGEST, mostly_dead
from dagster_ckpt.errors import StorageError
from dagster_ckpt.filesystem import FileSystem
from dagster_ckpt.testing import Fail, FaultInjectingFileSystem
from tests.helpers.checkpoint.driver import INLINE, JOB, Ledger, Pins, Run, content, once, pin, shared
from tests.helpers.checkpoint.memory import MemoryFileSystem
from tests.helpers.checkpoint.savepoints import quiet


@dataclass(frozen=True)
class Step:
    """What happens between two checkpoints, and then.

    Attributes:
        appear: sizes of new files; those of more than INLINE bytes are no small files.
        vanish: which of the files there are go, by position.
        back: which of the files that ever vanished comes back as it was, if there is one.
        keep: how many checkpoints are retained.
        restart: the job is started again before.
        pin: the checkpoint is pinned.
    """

    appear: tuple[int, ...]
    vanish: tuple[bool, ...]
    back: int | None = None
    keep: int = 1
    restart: bool = False
    pin: bool = False


STEPS = st.builds(
    Step,
    appear=st.lists(st.integers(0, INLINE + 4), max_size=6).map(tuple),
    vanish=st.lists(st.booleans(), min_size=12, max_size=12).map(tuple),
    back=st.none() | st.integers(0, 20),
    keep=st.integers(1, 3),
    restart=st.sampled_from([False, False, False, True]),
    pin=st.sampled_from([False] * 9 + [True]),
)
HISTORIES = st.lists(STEPS, min_size=1, max_size=15)


class Life:
    """A job that lives through a history; tells what its small files take and cost."""

    def __init__(self, pins: Pins) -> None:
        self.storage = MemoryFileSystem()
        self.disk = FaultInjectingFileSystem(self.storage)
        self.ledger = Ledger()
        self.pins = pins
        self.run = Run(self.disk, self.ledger, pins).start()
        self.files: dict[str, bytes] = {}
        self.vanished: list[tuple[str, bytes]] = []
        self.appeared_bytes = self.vanished_bytes = 0
        self._names = 0

    def live(self, step: Step) -> None:
        """Up to a checkpoint and the subsumption after it."""
        stay = [not gone for gone in step.vanish] + [True] * len(self.files)
        before, self.files = self.files, {}
        for (path, data), stays in zip(before.items(), stay, strict=False):
            if stays:
                self.files[path] = data
            else:
                self.vanished.append((path, data))
                self.vanished_bytes += small([data])
        if step.back is not None and self.vanished:
            path, data = self.vanished[step.back % len(self.vanished)]
            if path not in self.files:
                self._appear(path, data)
        for size in step.appear:
            self._names += 1
            self._appear(f"checkpoint/state/{self._names}", (b"%x" % self._names * INLINE * 2)[:size])
        if step.restart:
            self.run = Run(self.disk, self.ledger, self.pins).start()
        taken = self.run.checkpoint(self.files)
        assert content(self.storage, taken) == self.files
        if step.pin:
            pin(self.storage, self.ledger, taken.reference)
        self.run.subsume(step.keep)

    def _appear(self, path: str, data: bytes) -> None:
        self.files[path] = data
        self.appeared_bytes += small([data])

    def written(self) -> int:
        return sum(
            operation.size or 0
            for operation in self.disk.operations
            if operation.name == "write" and operation.path.endswith("-pack")
        )

    def examine(self) -> None:
        """Nothing unreachable is stored, and both bounds hold.

        Raises:
            AssertionError: something of that is not so.
        """
        retained = self.run.store.retained
        assert shared(self.storage) == names(retained), "what is stored is what is referred to"
        for metadata in retained:
            packs = {entry.reference for entry in packed(metadata) if entry.reference}
            stored = sum(len(self.storage.read(stored_path(pack))) for pack in packs)
            assert stored <= LARGEST * needed(metadata), f"{metadata.name} takes {stored} for {needed(metadata)}"
        total = sum(len(self.storage.read(stored_path(name))) for name in shared(self.storage) if name.endswith("pack"))
        assert total <= LARGEST * sum(map(needed, retained))
        assert self.vanished_bytes <= self.appeared_bytes
        assert self.written() <= self.appeared_bytes + self.vanished_bytes, "written anew is more than has vanished"


def small(contents: Iterable[bytes]) -> int:
    return sum(len(data) for data in contents if len(data) <= INLINE)


def packed(metadata: CheckpointMetadata) -> list[FileEntry]:
    return [entry for entry in metadata.files if entry.offset is not None]


def needed(metadata: CheckpointMetadata) -> int:
    return sum(entry.size for entry in packed(metadata))


def names(checkpoints: Sequence[CheckpointMetadata]) -> set[str]:
    return {name.rpartition("/")[2] for metadata in checkpoints for name in metadata.references}


def stored_path(name: str) -> str:
    return f"{JOB}/{1:032x}/shared/{name.rpartition('/')[2]}"


@contextmanager
def life() -> Iterator[Life]:
    with tempfile.TemporaryDirectory() as directory:
        yield Life(Pins(Path(directory)))


def breaks_a_bound(history: Sequence[Step]) -> bool:
    with life() as job:
        try:
            for step in history:
                job.live(step)
                job.examine()
        except AssertionError:
            return True
    return False


def lives(history: Sequence[Step]) -> None:
    with life() as job:
        for step in history:
            job.live(step)
            job.examine()
        job.ledger.examine(job.storage)


@settings(max_examples=40, derandomize=True, database=None)
@given(HISTORIES)
def test_space_and_writing_are_bounded_over_any_history(history: list[Step]) -> None:
    lives(history)


@pytest.mark.exhaustive
@settings(max_examples=500, database=None)
@given(st.lists(STEPS, min_size=1, max_size=30))
def test_they_are_over_many_more_and_longer_ones(history: list[Step]) -> None:
    lives(history)


def never(entries: Iterable[FileEntry], sizes: Mapping[str, int | None]) -> frozenset[str]:
    del entries, sizes
    return frozenset()


def always(entries: Iterable[FileEntry], sizes: Mapping[str, int | None]) -> frozenset[str]:
    del entries
    return frozenset(sizes)


def too_late(entries: Iterable[FileEntry], sizes: Mapping[str, int | None]) -> frozenset[str]:
    return mostly_dead(entries, {pack: None if size is None else size // 2 for pack, size in sizes.items()})


def too_early(entries: Iterable[FileEntry], sizes: Mapping[str, int | None]) -> frozenset[str]:
    return mostly_dead(entries, {pack: None if size is None else size * 3 // 2 for pack, size in sizes.items()})


@pytest.mark.parametrize("rule", [never, always, too_late, too_early])
def test_by_another_rule_a_bound_is_broken(
    rule: Callable[..., frozenset[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proof that the test above can find anything."""
    monkeypatch.setattr(shared_state, "mostly_dead", rule)
    found = settings(max_examples=400, derandomize=True, database=None, phases=[Phase.generate])
    assert find(HISTORIES, breaks_a_bound, settings=found)


class TestAPack:
    def files(self, *numbers: int) -> dict[str, bytes]:
        return {f"checkpoint/state/{number}": b"%010d" % number for number in numbers}

    def packs(self, metadata: CheckpointMetadata) -> Counter[str]:
        return Counter(entry.reference for entry in packed(metadata) if entry.reference)

    def test_stays_while_half_of_it_is_needed(self, run: Run) -> None:
        first = run.checkpoint(self.files(1, 2, 3, 4))
        second = run.checkpoint(self.files(3, 4, 5))
        assert self.packs(second).keys() > self.packs(first).keys()
        assert second.new_bytes == 10

    def test_is_left_when_less_of_it_is_needed(self, run: Run, memory: MemoryFileSystem) -> None:
        first = run.checkpoint(self.files(1, 2, 3, 4))
        second = run.checkpoint(self.files(4, 5))
        assert list(self.packs(second).values()) == [2], "with what is new, in one pack"
        assert self.packs(second).keys().isdisjoint(self.packs(first))
        assert second.new_bytes == 20
        run.subsume(1)
        assert sum(len(memory.read(stored_path(name))) for name in shared(memory)) == 20

    def test_is_not_written_twice_by_later_checkpoints(self, run: Run) -> None:
        run.checkpoint(self.files(1, 2, 3, 4))
        second = run.checkpoint(self.files(4, 5))
        third = run.checkpoint(self.files(4, 5))
        assert third.new_bytes == 0
        assert third.references == second.references

    def test_is_measured_once_after_a_restart(self, memory: MemoryFileSystem, ledger: Ledger, pins: Pins) -> None:
        Run(memory, ledger, pins).start().checkpoint(self.files(1, 2, 3))
        disk = FaultInjectingFileSystem(memory)
        run = Run(disk, ledger, pins).start()
        for number in range(4, 7):
            run.checkpoint(self.files(1, 2, 3, number))
        assert [operation.name for operation in disk.operations].count("size") == 1

    def test_that_cannot_be_measured_fails_the_checkpoint_only(
        self, memory: MemoryFileSystem, ledger: Ledger, pins: Pins
    ) -> None:
        Run(memory, ledger, pins).start().checkpoint(self.files(1, 2, 3))
        disk = FaultInjectingFileSystem(memory)
        run = Run(disk, ledger, pins).start()
        disk.plan = once("size", "-pack", Fail())
        with pytest.raises(StorageError):
            run.checkpoint(self.files(2, 3))
        assert content(memory, run.checkpoint(self.files(2, 3))) == self.files(2, 3)
        ledger.examine(memory)

    def test_that_is_gone_is_not_referred_to_again(self, memory: MemoryFileSystem, ledger: Ledger, pins: Pins) -> None:
        """Somebody has deleted it; the files are at hand, so the new checkpoint is whole again."""
        run = Run(memory, ledger, pins).start()
        (pack,) = run.checkpoint(self.files(1, 2, 3)).references
        run.store._shared._pack_sizes.clear()
        memory.remove(stored_path(pack))
        assert content(memory, run.checkpoint(self.files(1, 2, 3))) == self.files(1, 2, 3)

    def test_of_another_lineage_is_nothing_to_this_one(
        self, memory: MemoryFileSystem, ledger: Ledger, pins: Pins
    ) -> None:
        """After NO_CLAIM a lineage has files of its own, whatever the one before has."""
        run = Run(memory, ledger, pins).start()
        run.checkpoint(self.files(1, 2, 3, 4))
        store = shared_state.SharedFiles(memory, f"{JOB}/{2:032x}/shared", 2, INLINE, None)
        entries, new = store.store(1, pins.snapshot(1, self.files(4)), lambda: False, quiet())
        assert new == 10
        assert {entry.reference for entry in entries}.isdisjoint(names(run.store.retained))


def test_a_whole_pack_is_asked_for_at_once(memory: FileSystem) -> None:
    """Also of a bucket: one request each, side by side, and no error for one that is not there."""
    memory.create("a", b"four")
    assert memory.size_many(["a", "b"]) == [4, None]
    assert memory.size_many([]) == []
