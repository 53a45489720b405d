"""What is done for one more checkpoint, and for all of them, does not grow with the square of what is retained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.catalog.lineage import for_retention, line_of_descent
from dagster_ckpt.checkpoint.catalog.voiding import _AtChoice
from dagster_ckpt.checkpoint.control.epochs import Choice
from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata, FileEntry
from dagster_ckpt.checkpoint.taking.shared_files import SharedFiles
from dagster_ckpt.testing import FaultInjectingFileSystem
from tests.helpers.checkpoint.driver import JOB
from tests.helpers.checkpoint.manifests import JOB_ID, MANIFEST
from tests.helpers.checkpoint.memory import MemoryFileSystem


@dataclass
class Counted:
    """A checkpoint that counts how often anything is asked of it."""

    number: int
    start: int
    origin: int | None
    asked: Counter[str]

    def __getattr__(self, name: str) -> Any:
        self.asked[name] += 1
        return {
            "checkpoint_id": self.number,
            "epoch": self.start,
            "key": (self.start, self.number),
            "reference": f"{JOB_ID}/chk-{self.number}",
            "restored_from": None if self.origin is None else f"{JOB_ID}/chk-{self.origin}",
            "written_at": "2026-01-01T00:00:00+00:00",
        }[name]

    def __eq__(self, other: object) -> bool:
        self.asked["=="] += 1
        return self is other

    __hash__ = None  # type: ignore[assignment]


def lineage(count: int, per_start: int, back: Callable[[int], int]) -> tuple[list[Counted], Counter[str]]:
    """Checkpoints of starts that take ``per_start`` each; each start goes back by so many as ``back`` says."""
    asked: Counter[str] = Counter()
    taken, origin = [], None
    for number in range(1, count + 1):
        start, place = divmod(number - 1, per_start)
        if place == 0 and start:
            origin = max(1, number - 1 - back(start))
        taken.append(Counted(number, start + 1, origin, asked))
    return taken, asked


SHAPES: dict[str, tuple[Callable[[int], int], Callable[[int], int]]] = {
    "one start": (lambda count: count, lambda _: 0),
    "a start for each ten": (lambda _: 10, lambda _: 0),
    "a start for each": (lambda _: 1, lambda _: 0),
    "every third start goes back": (lambda _: 10, lambda start: 25 if start % 3 == 0 else 0),
    "all go back to the first": (lambda _: 10, lambda _: 10**6),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_line_of_descent_costs_twice_as_much_for_twice_as_many(shape: str) -> None:
    per_start, back = SHAPES[shape]

    def cost(count: int) -> int:
        taken, asked = lineage(count, per_start(count), back)
        for_retention(cast("Sequence[CheckpointMetadata]", taken))
        return asked.total()

    assert cost(2000) <= 2.1 * cost(1000) + 100


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 30)), max_size=12))
def test_the_line_is_what_each_checkpoint_says_of_its_start(starts: list[tuple[int, int]]) -> None:
    """By the definition, one checkpoint at a time: before it comes the one before it in its start, or its origin."""
    completed: list[CheckpointMetadata] = []
    for epoch, (count, back) in enumerate(starts, start=1):
        origin = completed[max(0, len(completed) - 1 - back)].reference if completed else None
        for _ in range(count):
            number = len(completed) + 1
            completed.append(replace(MANIFEST, epoch=epoch, checkpoint_id=number, restored_from=origin))
    by_reference = {item.reference: item for item in completed}
    for start in completed:
        line, current = [], start
        while True:
            line.append(current)
            before = completed[current.checkpoint_id - 2] if current.checkpoint_id > 1 else None
            if before is None or before.epoch != current.epoch:
                before = by_reference.get(current.restored_from or "")
            if before is None:
                break
            current = before
        assert line_of_descent(start, completed) == line[::-1]


def file(path: int, stored: int) -> FileEntry:
    return FileEntry(f"checkpoint/{path}", 1, f"{stored:064}", reference=f"../shared/{stored}")


class Asked:
    """A manifest that counts how often its files are gone through."""

    def __init__(self, files: Sequence[FileEntry]) -> None:
        self._files, self.times = tuple(files), 0

    @property
    def files(self) -> tuple[FileEntry, ...]:
        self.times += 1
        return self._files


def shared_files() -> SharedFiles:
    return SharedFiles(MemoryFileSystem(), f"{JOB}/{JOB_ID}/shared", 1, 16, None)


def retain(shared: SharedFiles, manifests: Sequence[Asked]) -> None:
    shared.retain(cast("Sequence[CheckpointMetadata]", manifests))


def test_one_more_checkpoint_and_one_less_are_all_that_is_gone_through() -> None:
    taken = [Asked([file(0, 0), file(1, number)]) for number in range(200)]
    shared = shared_files()
    retain(shared, taken[:100])
    for newest in range(100, 200):
        before = [item.times for item in taken]
        retain(shared, taken[newest - 99 : newest + 1])
        assert shared.in_use() == {"0", *map(str, range(max(1, newest - 99), newest + 1))}
        gone_through = [index for index, item in enumerate(taken) if item.times > before[index]]
        assert gone_through == [newest - 100, newest]


@given(st.data())
def test_what_is_in_use_is_what_the_retained_refer_to_whatever_was_retained_before(data: st.DataObject) -> None:
    entry = st.builds(file, st.integers(0, 2), st.integers(0, 5))
    taken = data.draw(st.lists(st.lists(entry, max_size=4).map(Asked), max_size=8))
    shared = shared_files()
    for _ in range(data.draw(st.integers(1, 6))):
        kept = [item for item in taken if data.draw(st.booleans())]
        retain(shared, kept)
        stored = {entry for item in kept for entry in item.files}
        assert shared.in_use() == {(entry.reference or "").rpartition("/")[2] for entry in stored}
        reusable = {entry for alike in shared._by_content.values() for entry in alike.values()}
        assert reusable <= stored, "a file that may be deleted would be shared"
        fresh = shared_files()
        retain(fresh, [Asked(sorted(stored))])
        assert shared._by_content.keys() >= {(entry.path, entry.size) for entry in reusable}
        if len({(entry.path, entry.sha256) for entry in stored}) == len(stored):
            assert shared._by_content == fresh._by_content, "and every other file would be found"


@pytest.fixture
def storage() -> FaultInjectingFileSystem:
    return FaultInjectingFileSystem(MemoryFileSystem())


def fill(storage: FaultInjectingFileSystem, count: int, starts: int) -> None:
    """The records and manifests of a job."""
    catalog = CheckpointCatalog(storage, JOB)
    for start in range(1, starts + 1):
        numbers = range(count * (start - 1) // starts + 1, count * start // starts + 1)
        claim = catalog.records.epochs.claim(token="t", series=None, run_id="r", host="h", pid=1, now="now")
        complete = tuple(range(1, numbers.start))
        choice = Choice(JOB_ID, None, numbers.start, 0, "/live", "h", None, "of the test", complete=complete)
        catalog.records.epochs.record_choice(claim.epoch, choice)
        for number in numbers:
            metadata = replace(MANIFEST, job_name=JOB, epoch=claim.epoch, checkpoint_id=number)
            storage.create(f"{JOB}/{JOB_ID}/chk-{number}/_metadata", metadata.encode())
    storage.log.clear()


@pytest.mark.parametrize("starts", [1, 20])
def test_a_lineage_is_read_with_one_request_a_checkpoint(storage: FaultInjectingFileSystem, starts: int) -> None:
    fill(storage, 100, starts)
    completed, broken = CheckpointCatalog(storage, JOB).completed(JOB_ID)
    assert (len(completed), broken) == (100, [])
    told = Counter((item.name, "chk-" in item.path) for item in storage.operations)
    # The lineage and the epochs are listed; of all choices the newest decides.
    assert told == Counter({("read", True): 100, ("list", False): 2, ("read", False): 1 if starts > 1 else 0})


def test_whether_a_checkpoint_is_void_is_asked_of_one_choice(
    storage: FaultInjectingFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(storage, 200, 40)
    asked, counts = SimpleNamespace(times=0), _AtChoice.counts

    def counted(then: _AtChoice, number: int) -> bool:
        asked.times += 1
        return counts(then, number)

    monkeypatch.setattr(_AtChoice, "counts", counted)
    assert len(CheckpointCatalog(storage, JOB).completed(JOB_ID)[0]) == 200
    assert asked.times <= 200


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every manifest that is parsed."""
    found: list[str] = []
    decode = CheckpointMetadata.decode

    def counted(data: bytes, where: str, known: dict[bytes, FileEntry] | None = None) -> CheckpointMetadata:
        found.append(where.split("/")[-2])
        return decode(data, where, known)

    monkeypatch.setattr(CheckpointMetadata, "decode", counted)
    return found


def test_a_start_reads_each_manifest_once_and_what_is_new_meanwhile(
    storage: FaultInjectingFileSystem, parsed: list[str]
) -> None:
    fill(storage, 30, 1)
    catalog = CheckpointCatalog(storage, JOB)
    assert len(catalog.completed_at_choice(2, JOB_ID, None)) == 30
    assert len(parsed) == 30
    path = f"{JOB}/{JOB_ID}/chk-{{}}"
    new = replace(MANIFEST, job_name=JOB, checkpoint_id=31, batch=77)
    storage.create(f"{path.format(31)}/_metadata", new.encode())
    storage.create(f"{path.format(32)}/_metadata", b"damaged!")
    storage.remove(f"{path.format(11)}/_metadata")
    storage.remove_directory(path.format(11))
    completed, broken = catalog.completed(JOB_ID)
    assert parsed[30:] == ["chk-31", "chk-32"]
    assert [error.checkpoint for error in broken] == [f"{JOB_ID}/chk-32"]
    assert [item.checkpoint_id for item in completed] == [n for n in range(1, 32) if n != 11]
    assert completed[-1] == new
    parsed.clear()
    storage.replace(f"{path.format(7)}/_metadata", storage.read(f"{path.format(8)}/_metadata"))
    assert [error.checkpoint for error in catalog.completed(JOB_ID)[1]] == [f"{JOB_ID}/chk-{n}" for n in (7, 32)]
    assert len(parsed) == 31, "nothing is remembered for longer than the start needs it"
