"""Which scratch directories the next one removes: those of dead processes, and none of a living process."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from dagster_ckpt.filesystem import scratch_directory

_DAY = 86_400.0
_HOLDS = """
import sys, time
from pathlib import Path
from dagster_ckpt.filesystem import scratch_directory
with scratch_directory(Path(sys.argv[1])) as directory:
    (directory / "copy").mkdir()
    print(directory.name, flush=True)
    time.sleep(600)
"""

Mounted = Callable[[str], None]


@pytest.fixture
def mounted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Mounted:
    """Makes the place one of another kind of file system."""

    def mount(kind: str) -> None:
        mounts = [SimpleNamespace(mountpoint=at, fstype=of) for at, of in (("/", "ext4"), (str(tmp_path), kind))]
        monkeypatch.setattr(psutil, "disk_partitions", lambda all: mounts)  # noqa: A006 - psutil's name

    mount("ext4")
    return mount


def _make_next(place: Path) -> None:
    with scratch_directory(place):
        pass


def _elsewhere(directory: Path) -> Path:
    """As a process of another boot or container has named it, whose pid is that of a process here."""
    return directory.rename(directory.parent / f"dagster-ckpt-scratch-0123456789ab-{os.getpid()}-x")


def _aged(directory: Path, days: float) -> Path:
    at = directory.stat().st_mtime - days * _DAY
    os.utime(directory, (at, at))
    return directory


@contextmanager
def _held_elsewhere(place: Path) -> Iterator[tuple[Path, Callable[[], None]]]:
    """A directory of a living process of another boot or container, and what kills that process."""
    with subprocess.Popen([sys.executable, "-c", _HOLDS, str(place)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None

        def kill() -> None:
            process.send_signal(signal.SIGKILL)
            process.wait()

        try:
            yield _elsewhere(place / process.stdout.readline().strip()), kill
        finally:
            kill()


def test_the_directory_is_for_its_user_alone_and_is_removed_at_the_end(tmp_path: Path, mounted: Mounted) -> None:
    del mounted
    with scratch_directory(tmp_path / "place") as directory:
        assert directory.stat().st_mode & 0o777 == 0o700
        with scratch_directory(tmp_path / "place"):
            assert directory.is_dir(), "of this process, which lives"
    assert not list((tmp_path / "place").iterdir())


def test_a_copy_of_a_killed_process_of_another_boot_or_container_is_removed(tmp_path: Path, mounted: Mounted) -> None:
    del mounted
    with _held_elsewhere(tmp_path) as (directory, kill):
        _aged(directory, 30)
        _make_next(tmp_path)
        assert directory.is_dir(), "its process lives"
        kill()
        _make_next(tmp_path)
        assert not directory.exists()


@pytest.mark.parametrize("kind", ["nfs4", "fuse.juicefs", "lustre"])
def test_a_free_lock_on_a_network_file_system_proves_nothing_and_a_week_does(
    kind: str, tmp_path: Path, mounted: Mounted
) -> None:
    mounted(kind)
    with _held_elsewhere(tmp_path) as (directory, kill):
        _aged(directory, 30)
        _make_next(tmp_path)
        assert directory.is_dir(), "the lock is held"
        kill()
        _aged(directory, -24)
        _make_next(tmp_path)
        assert directory.is_dir(), "another host may hold a lock that is not seen here"
        _aged(directory, 2)
        _make_next(tmp_path)
        assert not directory.exists()


@pytest.mark.parametrize(("days", "is_left"), [(0, True), (6.9, True), (7.1, False)])
def test_a_copy_without_a_lock_is_removed_after_a_week(
    days: float, is_left: bool, tmp_path: Path, mounted: Mounted
) -> None:
    """As of an earlier release, or of a process that was killed before it held its lock."""
    del mounted
    directory = tmp_path / "dagster-ckpt-scratch-0123456789ab-1-x"
    directory.mkdir()
    (directory / "lock.new").touch()
    _aged(directory, days)
    _make_next(tmp_path)
    assert directory.exists() == is_left


def test_without_locks_a_copy_is_made_all_the_same_and_left_to_its_age(
    tmp_path: Path, mounted: Mounted, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise OSError(45, "no locks available")

    del mounted
    monkeypatch.setattr(fcntl, "flock", refused)
    with scratch_directory(tmp_path) as directory:
        assert [path.name for path in directory.iterdir()] == ["lock.new"]
        other = _elsewhere(directory)
        _make_next(tmp_path)
        assert other.is_dir()
        _aged(other, 8)
        _make_next(tmp_path)
        assert not other.exists()


def test_what_is_no_scratch_directory_stays(tmp_path: Path, mounted: Mounted) -> None:
    del mounted
    target = tmp_path / "target"
    target.mkdir()
    link, file = (tmp_path / f"dagster-ckpt-scratch-0123456789ab-1-{name}" for name in ("link", "file"))
    link.symlink_to(target)
    file.touch()
    fifo = tmp_path / "dagster-ckpt-scratch-0123456789ab-1-fifo"
    fifo.mkdir()
    os.mkfifo(fifo / "lock")  # whoever opens it to read would wait for a writer
    _aged(tmp_path / "target", 30)
    before = {link, file, target}
    _make_next(tmp_path)
    assert before <= set(tmp_path.iterdir())


def test_what_belongs_to_somebody_else_stays(tmp_path: Path, mounted: Mounted, monkeypatch: pytest.MonkeyPatch) -> None:
    del mounted
    directory = tmp_path / "dagster-ckpt-scratch-0123456789ab-1-x"
    directory.mkdir()
    _aged(directory, 30)
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    _make_next(tmp_path)
    assert directory.is_dir()


def test_a_place_whose_other_entries_cannot_be_seen_takes_a_directory_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(**_: object) -> None:
        raise PermissionError(13, "Permission denied", "/proc/self/mounts")

    monkeypatch.setattr(psutil, "disk_partitions", refused)
    with scratch_directory(tmp_path) as directory:
        assert directory.is_dir()


@pytest.mark.parametrize(
    "error", [OverflowError("signed integer is greater than maximum"), RecursionError(), OSError()]
)
def test_what_cannot_be_looked_at_or_removed_stops_nobody(
    error: Exception, tmp_path: Path, mounted: Mounted, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> bool:
        raise error

    del mounted
    own = hosts_prefix(tmp_path)
    (tmp_path / f"{own}99999999999-x").mkdir()
    monkeypatch.setattr(psutil, "pid_exists", failing)
    _make_next(tmp_path)


def hosts_prefix(place: Path) -> str:
    """What the names of this host's directories begin with."""
    with scratch_directory(place) as directory:
        return directory.name.partition(f"{os.getpid()}-")[0]
