"""What is told of an attempt that takes long to store, while it is stored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path

import pytest

from dagster_ckpt.checkpoint.taking.requests.ask_savepoint import take_savepoint
from dagster_ckpt.filesystem import PosixFileSystem, Written
from tests.helpers.checkpoint.driver import Ledger, ManualClock, Pins, Run
from tests.helpers.checkpoint.memory import MemoryFileSystem

#: Larger than what is packed or kept in the manifest.
FILE = b"x" * 100


class Slow(MemoryFileSystem):
    """A storage that takes six seconds for each file."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self.clock = clock

    def write(self, path: str, source: Path | bytes, stop: Callable[[], bool]) -> Written:
        written = super().write(path, source, stop)
        self.clock.advance(6)
        return written


@pytest.fixture
def slow(clock: ManualClock) -> Slow:
    return Slow(clock)


@pytest.fixture
def run(slow: Slow, pins: Pins) -> Run:
    return Run(slow, Ledger(), pins, slow.clock).start()


def files(count: int) -> dict[str, bytes]:
    return {f"checkpoint/state/0/{number}.sst": FILE for number in range(count)}


def test_every_ten_seconds_how_many_bytes_of_how_many(run: Run) -> None:
    metadata = run.checkpoint(files(4))
    assert [astuple(progress) for progress in run.told] == [
        (metadata.checkpoint_id, 200, 400, 12),
        (metadata.checkpoint_id, 400, 400, 24),
    ]


def test_only_what_is_new_counts(run: Run) -> None:
    run.checkpoint(files(3))
    run.told.clear()
    second = run.checkpoint(files(5))
    assert [astuple(progress) for progress in run.told] == [(second.checkpoint_id, 200, 200, 12)]


def test_a_quick_one_is_not_worth_a_word(memory: MemoryFileSystem, pins: Pins) -> None:
    quick = Run(memory, Ledger(), pins).start()
    quick.checkpoint(files(40))
    assert quick.told == []


def test_small_files_in_packs_count(run: Run) -> None:
    small = {f"checkpoint/state/0/{number}.delta": b"few bytes" for number in range(3)}
    run.checkpoint({**files(1), **small})
    (progress,) = run.told
    assert (progress.stored, progress.total) == (100 + 27, 100 + 27)


def test_also_between_the_pieces_of_one_large_file(tmp_path: Path, pins: Pins) -> None:
    class Passing(ManualClock):
        """Four seconds from one look to the next."""

        def monotonic(self) -> float:
            self.advance(4)
            return super().monotonic()

    run = Run(PosixFileSystem(tmp_path / "storage", write_buffer_size=1000), Ledger(), pins, Passing()).start()
    run.checkpoint({"checkpoint/state/0/large.sst": b"x" * 20_000})
    (before, *_), after = run.told, run.told[-1]
    assert (before.stored, before.total) == (0, 20_000)
    assert after.seconds > before.seconds


def test_a_savepoint_tells_of_all_its_bytes(run: Run) -> None:
    run.checkpoint(files(3))
    run.told.clear()
    target = Slow(run.clock)
    run.store.write_savepoint(run.begin(), run.pins.snapshot(1, files(3)), target)
    assert [(progress.stored, progress.total) for progress in run.told] == [(200, 300)]


def test_who_copies_a_checkpoint_is_told(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "dagster_ckpt.checkpoint.taking.requests.ask_savepoint.savepoint_storage", lambda *_, **__: Slow(run.clock)
    )
    run.checkpoint(dict.fromkeys(files(3), b"x" * 2**20))
    reports: list[str] = []
    take_savepoint(
        run.catalog,
        str(tmp_path),
        default=None,
        stop=False,
        timeout="1 min",
        clock=run.clock,
        wait=run.clock.advance,
        report=reports.append,
    )
    assert reports[-1] == "Checkpoint 1: 2.0 of 3.0 MiB are stored after 12 s."
