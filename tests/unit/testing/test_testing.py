"""The tools themselves: what they promise to those who test their own storages."""

from __future__ import annotations

import inspect
import random
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from dagster_ckpt import testing
from dagster_ckpt.errors import PublishUnknown, StorageError
from dagster_ckpt.filesystem import Entry, FileSystem, Written
from dagster_ckpt.testing import (
    Action,
    Crash,
    CrashAfter,
    Fail,
    FailAfter,
    FaultInjectingFileSystem,
    Flip,
    Hang,
    Late,
    Lie,
    Operation,
    ProcessDied,
    Torn,
    actions_for,
    at_operation,
    enumerate_crash_points,
    enumerate_interleavings,
    interleave,
)
from tests.helpers.checkpoint.memory import MemoryFileSystem


def disturbed(memory: MemoryFileSystem, action: Action) -> FaultInjectingFileSystem:
    return FaultInjectingFileSystem(memory, at_operation(0, action))


def never() -> bool:
    return False


def test_all_is_sorted_and_public() -> None:
    assert testing.__all__ == sorted(testing.__all__)
    assert all(
        inspect.getdoc(getattr(testing, name)) for name in testing.__all__ if name not in {"Action", "Disturb", "Plan"}
    )


def test_every_operation_of_the_port_passes_the_choke_point(memory: MemoryFileSystem, tmp_path: Path) -> None:
    disk = FaultInjectingFileSystem(memory)
    disk.create("f", b"x")
    disk.replace("f", b"y")
    disk.write("g", b"z", never)
    disk.sync_directories(["b", "a"])
    disk.read("f")
    disk.fetch("f", tmp_path / "f")
    disk.checksum("f")
    disk.size("f")
    disk.list("")
    disk.remove("f")
    disk.remove_directory("d")
    abstract = {name for name in FileSystem.__abstractmethods__ if name != "url"}
    assert {operation.name for operation in disk.operations} == abstract
    assert [str(operation) for operation in disk.operations[:4]] == [
        "0:create(f)",
        "1:replace(f)",
        "2:write(g)",
        "3:sync_directories(a,b)",
    ]
    assert [operation.size for operation in disk.operations[:4]] == [1, 1, 1, None]
    assert not any(operation.changes for operation in disk.operations[4:8])


def test_fail_does_nothing(memory: MemoryFileSystem) -> None:
    with pytest.raises(StorageError, match="injected"):
        disturbed(memory, Fail()).create("f", b"x")
    with pytest.raises(KeyError):
        disturbed(memory, Fail(KeyError())).create("f", b"x")
    assert memory.files == {}


def test_a_lost_reply_comes_after_the_deed(memory: MemoryFileSystem) -> None:
    with pytest.raises(PublishUnknown):
        disturbed(memory, FailAfter()).create("f", b"x")
    with pytest.raises(StorageError):
        disturbed(memory, FailAfter()).remove("g")
    with pytest.raises(TimeoutError):
        disturbed(memory, FailAfter(TimeoutError())).replace("h", b"y")
    assert memory.files == {"f": b"x", "h": b"y"}


def test_after_a_crash_the_process_does_nothing_any_more(memory: MemoryFileSystem) -> None:
    for action, stored in ((Crash(), {}), (CrashAfter(), {"f": b"x"})):
        disk = disturbed(memory, action)
        with pytest.raises(ProcessDied):
            disk.create("f", b"x")
        for _ in range(2):
            with pytest.raises(ProcessDied):
                disk.list("")
        assert memory.files == stored
    assert not issubclass(ProcessDied, Exception)
    disk = FaultInjectingFileSystem(memory)
    disk.die()
    with pytest.raises(ProcessDied):
        disk.read("f")


def test_torn_data_files(memory: MemoryFileSystem) -> None:
    with pytest.raises(StorageError, match="full"):
        disturbed(memory, Torn(2, StorageError("full"))).write("a", b"12345", never)
    assert disturbed(memory, Torn(3)).write("b", b"12345", never).size == 5
    disk = disturbed(memory, Torn(4, ProcessDied()))
    with pytest.raises(ProcessDied):
        disk.write("c", b"12345", never)
    with pytest.raises(ProcessDied):
        disk.list("")
    assert memory.files == {"a": b"12", "b": b"123", "c": b"1234"}


def test_lies(memory: MemoryFileSystem) -> None:
    memory.create("f", b"x")
    disturbed(memory, Lie()).create("g", b"x")
    disturbed(memory, Lie()).remove("f")
    assert disturbed(memory, Lie()).write("h", b"xyz", never).size == 3
    assert list(disturbed(memory, Lie()).list("")) == []
    stale = (Entry("e", is_directory=False),)
    assert disturbed(memory, Lie(stale)).list("") == stale
    assert memory.files == {"f": b"x"}


def test_what_the_network_holds_back_happens_when_it_arrives(memory: MemoryFileSystem) -> None:
    held: list[Callable[[], None]] = []
    with pytest.raises(PublishUnknown):
        disturbed(memory, Late(held)).create("f", b"late")
    with pytest.raises(TimeoutError):
        disturbed(memory, Late(held, TimeoutError())).replace("g", b"late")
    memory.create("f", b"in time")
    assert "g" not in memory.files
    for arrive in held:
        arrive()
    assert memory.files == {"f": b"in time", "g": b"late"}, "nobody is told that it came too late"


def test_what_hangs_happens_when_it_is_let_go(memory: MemoryFileSystem) -> None:
    gate = threading.Event()
    disk = disturbed(memory, Hang(gate.wait))
    hanging = threading.Thread(target=lambda: disk.create("f", b"x"))
    hanging.start()
    disk.create("g", b"y")
    assert set(memory.files) == {"g"}
    gate.set()
    hanging.join()
    assert set(memory.files) == {"f", "g"}


def test_flipped_bits(memory: MemoryFileSystem, tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"\x00\x00")
    reported = disturbed(memory, Flip(9)).write("f", tmp_path / "source", never)
    assert memory.files["f"] == b"\x00\x02"
    assert reported == disturbed(memory, Flip(9)).checksum("f"), "the writer is told that all is well"
    assert disturbed(memory, Flip(0)).read("f") == b"\x01\x02"
    fetched = disturbed(memory, Flip(16)).fetch("f", tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == b"\x01\x02"
    assert isinstance(fetched, Written)
    disturbed(memory, Flip()).create("empty", b"")
    assert memory.files["empty"] == b""


@pytest.mark.parametrize(
    ("name", "action"), [("create", Torn(1)), ("read", Lie()), ("list", Flip()), ("read", Torn(1)), ("read", Late([]))]
)
def test_what_an_operation_cannot_have_is_refused(memory: MemoryFileSystem, name: str, action: Action) -> None:
    memory.create("f", b"x")
    disk = disturbed(memory, action)
    calls: dict[str, Callable[[], object]] = {
        "create": lambda: disk.create("f", b"x"),
        "read": lambda: disk.read("f"),
        "list": lambda: disk.list(""),
    }
    with pytest.raises(ValueError, match=r"cannot have|can be torn"):
        calls[name]()


def careless(storage: FileSystem, memory: list[str]) -> None:
    """Publishes before its data is there."""
    storage.create("chk-1/_metadata", b"chk-1/data")
    storage.write("chk-1/data", b"state", never)
    memory.append("chk-1")


def careful(storage: FileSystem, memory: list[str]) -> None:
    storage.write("chk-1/data", b"state", never)
    storage.create("chk-1/_metadata", b"chk-1/data")
    memory.append("chk-1")


def complete_or_invisible(storage: FileSystem, memory: list[str]) -> None:
    visible = "_metadata" in {entry.name for entry in storage.list("chk-1")}
    assert visible or not memory
    assert not visible or storage.read("chk-1/data") == b"state"


def test_the_enumerator_finds_what_is_wrong() -> None:
    right = enumerate_crash_points(lambda: (MemoryFileSystem(), []), careful, complete_or_invisible)
    right.require_none()
    assert len(right.operations) == 2
    assert right.runs == sum(len(actions_for(operation)) for operation in right.operations) == 9
    wrong = enumerate_crash_points(lambda: (MemoryFileSystem(), []), careless, complete_or_invisible)
    with pytest.raises(AssertionError, match=r"CrashAfter at 0:create\(chk-1/_metadata\)"):
        wrong.require_none()


def test_the_enumerator_reports_what_it_did_not_expect() -> None:
    def surprised(storage: FileSystem, memory: list[str]) -> None:
        try:
            storage.list("")
        except StorageError as error:
            raise KeyError("surprise") from error

    found = enumerate_crash_points(lambda: (MemoryFileSystem(), []), surprised, lambda *_: None)
    assert [violation for violation in found.violations if "KeyError" in violation]

    calls: list[int] = []

    def different_each_time(storage: FileSystem, memory: list[str]) -> None:
        calls.append(1)
        if len(calls) == 1:
            storage.read("f") if storage.list("") else storage.create("f", b"")

    found = enumerate_crash_points(lambda: (MemoryFileSystem(), []), different_each_time, lambda *_: None)
    assert all("not the same each time" in violation for violation in found.violations)
    assert found.violations


def count(storage: FileSystem) -> None:
    """Adds to a counter, as if nobody else did."""
    for _ in range(60):
        now = int(storage.read("counter"))
        storage.replace("counter", str(now + 1).encode())


def counter() -> tuple[MemoryFileSystem, None]:
    storage = MemoryFileSystem()
    storage.create("counter", b"0")
    return storage, None


def all_counted(storage: FileSystem, memory: None) -> None:
    assert storage.read("counter") == b"180"


def test_interleavings_find_what_is_wrong_only_side_by_side() -> None:
    drivers: list[Callable[[FileSystem, None], object]] = [lambda storage, _: storage.list("")]
    alone = enumerate_interleavings(counter, drivers, lambda storage, _: None, range(3))
    alone.require_none()
    assert alone.runs == 3
    thrice: list[Callable[[FileSystem, None], object]] = [lambda storage, _: count(storage)] * 3
    found = enumerate_interleavings(counter, thrice, all_counted, range(10), zombie=True)
    again = enumerate_interleavings(counter, thrice, all_counted, range(10), zombie=True)
    assert found.violations
    assert found == again, "a seed tells all"
    with pytest.raises(AssertionError, match="seed"):
        found.require_none()


def test_a_zombie_wakes_up_when_all_others_have_ended() -> None:
    storage, _ = counter()
    ended: list[int] = []

    def drive(number: int, view: FileSystem) -> None:
        for step in range(200):
            view.replace(f"{number}/{step}", b"")
        ended.append(number)

    for seed in range(6):
        ended.clear()
        interleave(storage, [partial(drive, number) for number in range(3)], seed, zombie=True)
        assert ended[-1] == random_zombie(seed), seed


def random_zombie(seed: int) -> int:
    """As it is drawn: after when each of three joins."""
    chance = random.Random(seed)
    for _ in range(3):
        chance.randint(0, 150)
    return chance.randrange(3)


def test_a_driver_dies_of_what_disturbs_it_and_the_others_go_on() -> None:
    storage, _ = counter()
    ended = []

    def drive(number: int, view: FileSystem) -> None:
        view.list("")
        ended.append(number)

    def first_dies(driver: int, operation: Operation, chance: random.Random) -> Action | None:
        return Crash() if driver == 0 else None

    interleave(storage, [partial(drive, number) for number in range(3)], 1, disturb=first_dies)
    assert sorted(ended) == [1, 2]
    with pytest.raises(KeyError):
        interleave(storage, [lambda view: vars()[view.url], lambda view: view.list("")], 1)


def test_actions_for() -> None:
    read, write = Operation(0, "read", "f"), Operation(1, "write", "f", 10)
    assert actions_for(read) == (Crash(), Fail())
    kinds = [type(action) for action in actions_for(write)]
    assert kinds == [Crash, CrashAfter, Fail, FailAfter, Torn]
