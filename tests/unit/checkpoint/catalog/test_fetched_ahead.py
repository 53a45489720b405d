"""Files that a standby has fetched before a start needs them: the start is right whatever became of them."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dagster_ckpt.checkpoint.catalog import CheckpointCatalog, FetchedAhead, materialize_checkpoint
from dagster_ckpt.checkpoint.cleanup.live_locations import forget_live_locations
from dagster_ckpt.checkpoint.format import CheckpointMetadata
from dagster_ckpt.errors import CheckpointFileChanged, StorageError
from tests.helpers.checkpoint.driver import JOB, Ledger, Pins, Run, content, state
from tests.helpers.checkpoint.memory import MemoryFileSystem


class Distant(MemoryFileSystem):
    """Remembers which data files were read, and may be down."""

    is_distant = True

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.is_down = threading.Event()

    def read(self, path: str) -> bytes:
        if self.is_down.is_set():
            raise StorageError("The bucket is down.")
        if "/control/" not in path and not path.endswith("/_metadata"):
            self.asked.append(path)
        return super().read(path)


class Bench:
    """A job with a run that takes checkpoints, and what a standby has fetched of them."""

    def __init__(self, directory: Path) -> None:
        (directory / "pins").mkdir(parents=True)
        self.working, self.targets = directory / "working", iter(directory / f"target-{n}" for n in range(100))
        self.storage = Distant()
        self.run = Run(self.storage, Ledger(), Pins(directory / "pins")).start()
        self.catalog = CheckpointCatalog(self.storage, JOB)
        self.ahead = FetchedAhead(self.catalog, self.working, None)

    def fetch(self, metadata: CheckpointMetadata) -> None:
        self.ahead.fetch(metadata.reference)
        self.ahead.wait()

    @property
    def files(self) -> dict[str, Path]:
        """What lies in the directory of the standby."""
        return {path.name: path for path in self.working.glob("*/files/*")}

    def asked(self) -> list[str]:
        """The data files that were read since the last call."""
        asked, self.storage.asked = self.storage.asked, []
        return asked

    def restore(self, metadata: CheckpointMetadata) -> list[str]:
        """Restore a checkpoint with what was fetched, compare all of it, and return what was read for that."""
        wanted = content(self.storage, metadata)
        self.asked()
        target, told = next(self.targets), list[int]()
        self.ahead.stop()
        materialize_checkpoint(self.catalog, metadata, target, told.append, self.ahead.take)
        found = {str(path.relative_to(target)): path.read_bytes() for path in target.rglob("*") if path.is_file()}
        assert found == wanted
        assert sum(told) == metadata.size
        return self.asked()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.ahead.remove()


def test_a_host_without_room_for_a_thread_fetches_later(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    metadata = bench.run.checkpoint(state(1))
    bench.fetch(metadata)
    other = bench.run.checkpoint(state(2))
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", start)
        bench.fetch(other)
    assert bench.restore(other) != []
    bench.fetch(other)
    assert bench.restore(other) == []


def test_a_start_reads_nothing_that_was_fetched(bench: Bench) -> None:
    metadata = bench.run.checkpoint(state(1))
    bench.fetch(metadata)
    assert bench.asked()
    assert bench.restore(metadata) == []


def test_only_what_is_new_is_fetched_and_only_what_is_needed_is_kept(bench: Bench) -> None:
    first = bench.run.checkpoint(state(2))
    bench.fetch(first)
    bench.asked()
    second = bench.run.checkpoint(state(3))
    bench.fetch(second)
    new = {file.reference for file in second.files if file.reference} - {file.reference for file in first.files}
    assert {path.rpartition("/")[2] for path in bench.asked()} == {str(name).rpartition("/")[2] for name in new}
    assert set(bench.files) == {file.sha256 for file in second.files if file.reference}
    bench.fetch(second)
    assert bench.asked() == [], "it is here"


def test_what_is_lent_is_still_there_for_a_start(bench: Bench, tmp_path: Path) -> None:
    metadata = bench.run.checkpoint(state(3))
    bench.fetch(metadata)
    broken, *_ = bench.files.values()
    broken.write_bytes(b"other bytes")
    wanted = content(bench.storage, metadata)
    bench.asked()
    materialize_checkpoint(bench.catalog, metadata, tmp_path / "copy", take=bench.ahead.lend)
    assert len(bench.asked()) == 1, "what is broken is read from the storage"
    copy = tmp_path / "copy"
    assert {str(path.relative_to(copy)): path.read_bytes() for path in copy.rglob("*") if path.is_file()} == wanted
    assert len(bench.restore(metadata)) == 1


def _gone(path: Path) -> None:
    path.unlink()


def _changed(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _grown(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"!")


def _left_alone(_path: Path) -> None:
    pass


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(st.data())
def test_whatever_became_of_a_file_the_start_is_right(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    bench = Bench(tmp_path_factory.mktemp("ahead"))
    metadata = bench.run.checkpoint(state(data.draw(st.integers(0, 3))))
    bench.fetch(metadata)
    damages = st.sampled_from([_gone, _changed, _cut, _grown, _left_alone])
    damaged = set()
    for name, path in sorted(bench.files.items()):
        damage: Callable[[Path], None] = data.draw(damages)
        damage(path)
        if damage is not _left_alone:
            damaged.add(name)
    stored = {str(file.reference).rpartition("/")[2] for file in metadata.files if file.sha256 in damaged}
    assert {path.rpartition("/")[2] for path in bench.restore(metadata)} == stored


def test_a_file_that_is_broken_in_the_storage_is_named_by_the_start(bench: Bench) -> None:
    metadata = bench.run.checkpoint(state(1))
    name = next(
        path for path in bench.storage.files if "/shared/" in path and b"same in every" in bench.storage.files[path]
    )
    bench.storage.files[name] = b"X" + bench.storage.files[name][1:]
    bench.fetch(metadata)
    assert len(bench.files) == len({file.sha256 for file in metadata.files if file.reference}) - 1
    bench.ahead.stop()
    with pytest.raises(CheckpointFileChanged, match="was changed"):
        materialize_checkpoint(bench.catalog, metadata, next(bench.targets), take=bench.ahead.take)


def test_another_checkpoint_than_the_fetched_one_is_restored(bench: Bench) -> None:
    first, second = bench.run.checkpoint(state(2)), bench.run.checkpoint(state(3))
    bench.fetch(first)
    read = {path.rpartition("/")[2] for path in bench.restore(second)}
    assert read == {
        str(file.reference).rpartition("/")[2]
        for file in second.files
        if file.reference and file.reference not in {other.reference for other in first.files}
    }


def test_a_storage_that_is_down_harms_nobody(bench: Bench) -> None:
    metadata = bench.run.checkpoint(state(1))
    bench.storage.is_down.set()
    bench.ahead.fetch(metadata.reference)
    bench.ahead.stop()
    bench.ahead.wait()
    bench.storage.is_down.clear()
    assert bench.restore(metadata) != []
    bench.fetch(metadata)
    bench.asked()
    assert bench.restore(metadata) == []


def test_what_is_fetched_outlives_the_starts_beside_it_and_goes_when_its_process_is_dead(
    bench: Bench, tmp_path: Path
) -> None:
    metadata = bench.run.checkpoint(state(1))
    fetch = """
import sys, time
from pathlib import Path
from dagster_ckpt.checkpoint.catalog import FetchedAhead
from tests.unit.checkpoint.catalog.test_fetched_ahead import Bench
from tests.helpers.checkpoint.driver import state
other = Bench(Path(sys.argv[1]))
other.ahead = FetchedAhead(other.catalog, Path(sys.argv[2]), None)
other.fetch(other.run.checkpoint(state(1)))
print(other.ahead.has_any, flush=True)
time.sleep(600)
"""
    with subprocess.Popen(
        [sys.executable, "-c", fetch, str(tmp_path / "other"), str(bench.working)], stdout=subprocess.PIPE, text=True
    ) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline().strip() == "True"
            (of_the_other,) = bench.working.iterdir()
            bench.fetch(metadata)
            for epoch in (2, 3):
                forget_live_locations(bench.working, bench.storage, JOB, epoch)
            assert of_the_other.is_dir()
            assert len(list(bench.working.iterdir())) == 2
        finally:
            other.kill()
    forget_live_locations(bench.working, bench.storage, JOB, 3)
    assert not of_the_other.exists()
    bench.asked()
    assert bench.restore(metadata) == []


def test_a_disk_without_room_is_left_alone(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = bench.run.checkpoint(state(1))
    size = sum(file.size for file in metadata.files if file.reference)
    usage = type("Usage", (), {"free": size})
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    bench.fetch(metadata)
    assert bench.files == {}
    assert bench.asked() == []


def test_the_directory_is_for_this_user_alone_and_goes_when_nobody_needs_it(bench: Bench) -> None:
    bench.fetch(bench.run.checkpoint(state(1)))
    (directory,) = bench.working.iterdir()
    assert directory.stat().st_mode & 0o077 == 0
    bench.ahead.remove()
    assert list(bench.working.iterdir()) == []
