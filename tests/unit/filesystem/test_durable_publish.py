"""What the commit step rests on: races, kills, power cuts, lost replies, full and read-only disks."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dagster_ckpt.errors import (
    PublishConflict,
    PublishUnknown,
    StorageError,
    StorageUnusable,
)
from dagster_ckpt.filesystem import (
    PosixFileSystem,
)
from tests.helpers.durability import Durability
from tests.unit.filesystem import processes

ROOT = Path(__file__).parents[3]


def never() -> bool:
    return False


def run_process(*arguments: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-m", processes.__name__, *arguments],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.splitlines()


@pytest.fixture
def disk(tmp_path: Path) -> PosixFileSystem:
    return PosixFileSystem(tmp_path / "base" / "storage")


def test_of_eight_racing_processes_exactly_one_wins(tmp_path: Path) -> None:
    assert run_process("race", str(tmp_path / "storage"), "8", "12") == ["1"] * 12


def test_what_is_visible_is_whole_wherever_the_writer_is_killed(tmp_path: Path) -> None:
    run_process("kill", str(tmp_path), "40")
    whole = unfinished = 0
    storage = PosixFileSystem(tmp_path)
    for seed in range(40):
        for entry in storage.list(str(seed)):
            if entry.name.startswith("."):
                unfinished += 1
                continue
            assert storage.read(f"{seed}/{entry.name}") == processes.pattern(int(entry.name))
            whole += 1
    assert whole >= 40, "the writers came to nothing"
    assert unfinished > 0, "no writer was killed while it wrote: the test proves nothing"


def test_create_is_durable_when_it_returns(
    disk: PosixFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    durability = Durability(monkeypatch)
    disk.create("job/id/chk-1/_metadata", b"x")
    durability.require(disk.local("job/id/chk-1/_metadata"), tmp_path)


def test_own_bytes_found_are_made_durable_too(
    disk: PosixFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever linked them may have died before the directory was synced."""
    disk.create("d/f", b"x")
    durability = Durability(monkeypatch)
    PosixFileSystem(disk.local("")).create("d/f", b"x")
    assert ("sync", disk.local("d")) in durability.events


def test_a_directory_that_somebody_else_made_is_made_durable(
    disk: PosixFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that died between `mkdir` and `fsync` leaves a directory that a power cut can take away."""
    disk.local("job/chk-1").mkdir(parents=True)
    durability = Durability(monkeypatch)
    disk.create("job/chk-1/_metadata", b"x")
    for directory in ("job/chk-1", "job", ""):
        assert ("sync", disk.local(directory)) in durability.events


def test_write_many_is_durable_when_it_returns(
    disk: PosixFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    durability = Durability(monkeypatch)
    items = []
    for number in range(20):
        source = tmp_path / str(number)
        source.write_bytes(b"x")
        items.append((f"job/shared/{number}", source))
    disk.write_many(items, never)
    last = max(durability.events.index(("sync", disk.local(path))) for path, _ in items)
    assert ("sync", disk.local("job/shared")) in durability.events[last:]
    assert ("sync", disk.local("job")) in durability.events


def test_a_directory_removed_and_made_again_is_synced_again(
    disk: PosixFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.create("job/chk-1/_metadata", b"x")
    disk.remove("job/chk-1/_metadata")
    disk.remove_directory("job/chk-1")
    durability = Durability(monkeypatch)
    disk.create("job/chk-1/_metadata", b"y")
    durability.require(disk.local("job/chk-1/_metadata"), disk.local(""))


def test_a_directory_that_another_process_removed_is_made_again(disk: PosixFileSystem) -> None:
    disk.create("job/chk-1/_metadata", b"x")
    other = PosixFileSystem(disk.local(""))
    other.remove("job/chk-1/_metadata")
    other.remove_directory("job/chk-1")
    disk.create("job/chk-1/_metadata", b"y")
    assert other.read("job/chk-1/_metadata") == b"y"


def link_fails(monkeypatch: pytest.MonkeyPatch, *, after: Callable[[Path], object], code: int) -> None:
    def failing(source: Path, target: Path) -> None:
        del source
        after(target)
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", failing)


@pytest.mark.parametrize("code", [errno.ETIMEDOUT, errno.EIO])
def test_create_whose_reply_is_lost_has_succeeded(
    disk: PosixFileSystem, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """As on NFS: the link is there, but the answer was an error."""
    link_fails(monkeypatch, after=lambda target: target.write_bytes(b"mine"), code=code)
    disk.create("d/f", b"mine")
    assert [entry.name for entry in disk.list("d")] == ["f"]


def test_create_whose_reply_is_lost_and_that_was_too_late_is_a_conflict(
    disk: PosixFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    link_fails(monkeypatch, after=lambda target: target.write_bytes(b"theirs"), code=errno.ETIMEDOUT)
    with pytest.raises(PublishConflict):
        disk.create("d/f", b"mine")


def test_create_that_failed_leaves_nothing(disk: PosixFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    link_fails(monkeypatch, after=lambda _: None, code=errno.ENOSPC)
    with pytest.raises(StorageError, match="No space left") as raised:
        disk.create("d/f", b"mine")
    assert not isinstance(raised.value, PublishUnknown)
    assert disk.list("d") == []


def test_a_link_that_was_given_up_cannot_be_late(disk: PosixFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a soft mount: the server may carry the link out at any time, here after the name was looked at."""
    link, late, read = os.link, list[tuple[Path, Path]](), Path.read_bytes

    def given_up(source: Path, target: Path) -> None:
        late.append((source, target))
        raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))

    def read_bytes(path: Path) -> bytes:
        try:
            return read(path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                link(*late[-1])

    monkeypatch.setattr(os, "link", given_up)
    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    with pytest.raises(StorageError, match="timed out") as raised:
        disk.create("d/f", b"mine")
    assert type(raised.value) is StorageError
    assert len(late) == 1
    assert disk.list("d") == []


def test_a_link_that_cannot_be_withdrawn_is_unknown(disk: PosixFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(path: Path, missing_ok: bool = False) -> None:
        del missing_ok
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    link_fails(monkeypatch, after=lambda _: monkeypatch.setattr(Path, "unlink", failing), code=errno.ETIMEDOUT)
    with pytest.raises(PublishUnknown, match="Nobody can say whether"):
        disk.create("d/f", b"mine")


def test_a_name_that_was_taken_and_is_gone_again_is_a_conflict(
    disk: PosixFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The temporary file was withdrawn before: nothing can be published any more."""
    link_fails(monkeypatch, after=lambda _: None, code=errno.EEXIST)
    with pytest.raises(PublishConflict, match="gone again"):
        disk.create("d/f", b"mine")
    assert disk.list("d") == []


def test_create_whose_directory_cannot_be_synced_is_unknown(
    disk: PosixFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.create("d/first", b"x")
    fsync = os.fsync

    def failing(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink() == disk.local("d"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(PublishUnknown, match="could not be synced"):
        disk.create("d/f", b"x")
    assert disk.read("d/f") == b"x"


def test_without_hard_links_the_storage_is_unusable(disk: PosixFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    link_fails(monkeypatch, after=lambda _: None, code=errno.EOPNOTSUPP)
    with pytest.raises(StorageUnusable, match="hard links") as raised:
        disk.probe()
    assert "ext4" in raised.value.hint
    assert disk.list("") == []


def test_a_file_where_a_directory_should_be(disk: PosixFileSystem) -> None:
    disk.create("job", b"a file")
    with pytest.raises(StorageError, match="job"):
        disk.create("job/chk-1/_metadata", b"x")


def test_a_file_size_limit_leaves_nothing_behind(tmp_path: Path) -> None:
    lines = run_process("limited", str(tmp_path / "storage"))
    assert len(lines) == 3
    assert all(line.startswith("StorageError [] ") and "File too large" in line for line in lines), lines
    assert (tmp_path / "storage" / "before").read_bytes() == b"safe"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[PosixFileSystem]:
    """A file system of 256 KiB."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system; RLIMIT_FSIZE is tested for everybody")
    mount = tmp_path / "small"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(mount)], check=True)
    try:
        yield PosixFileSystem(mount / "storage")
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=True)


def test_a_full_disk_leaves_nothing_behind(small_disk: PosixFileSystem, tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"x" * 300_000)
    small_disk.create("d/before", b"safe")
    with pytest.raises(StorageError, match="No space left"):
        small_disk.create("d/f", b"x" * 300_000)
    with pytest.raises(StorageError, match="No space left"):
        small_disk.replace("d/f", b"x" * 300_000)
    with pytest.raises(StorageError, match="No space left"):
        small_disk.write("d/f", tmp_path / "source", never)
    assert [entry.name for entry in small_disk.list("d")] == ["before"]
    small_disk.create("d/after", b"there is space again")


def test_a_directory_that_may_not_be_written() -> None:
    # Not below tmp_path: its parents are closed to the user the process changes to.
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o555)
        create, replace, probe = run_process("read-only", directory)
        assert create.startswith("StorageError: Could not create")
        assert replace.startswith("StorageError: Could not write")
        assert probe.startswith("StorageUnusable: Checkpoints cannot be written to")
        assert "is writable by this user and has space left; then launch the run again." in probe
        assert list(Path(directory).iterdir()) == []


def test_a_directory_below_one_that_may_only_be_passed_through() -> None:
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        scratch = Path(directory, "scratch")
        mine = scratch / "mine"
        mine.mkdir(parents=True)
        mine.chmod(0o777)
        scratch.chmod(0o333)
        assert run_process("probe", str(mine)) == ["well"]
        assert run_process("probe", str(mine / "below")) == ["well"]
        for _ in range(2):  # what the first one made is no reason for the second one to trust it
            [refused] = run_process("probe", str(scratch / "new"))
            assert f"{scratch} may not be opened" in refused
        [refused] = run_process("probe", str(scratch / "new" / "below"))
        assert f"{scratch} may not be opened" in refused
        assert [path.name for path in scratch.iterdir()] == ["mine"]
        scratch.chmod(0o755)


def test_a_link_that_may_not_be_followed_hides_nothing() -> None:
    with tempfile.TemporaryDirectory() as directory:
        root, closed = Path(directory, "root"), Path(directory, "closed")
        (root / "open").mkdir(parents=True)
        (closed / "job").mkdir(parents=True)
        (root / "link").symlink_to(closed / "job")
        Path(directory).chmod(0o755)
        closed.chmod(0o000)
        assert run_process("list", str(root)) == ["link True", "open True"]
        closed.chmod(0o755)


def test_what_is_in_the_place_of_a_file_is_no_reason_to_doubt_in_silence(disk: PosixFileSystem) -> None:
    disk.create("d/f", b"x")
    with pytest.raises(PublishUnknown, match=r"Nobody can say whether .*/d was created") as caught:
        disk.create("d", b"x")
    assert "complete if it can be read" in caught.value.hint
    for path in ("d/f/g", "d/f/g/h"):
        with pytest.raises(StorageError, match="Could not create"):
            disk.create(path, b"x")
    assert disk.read("d/f") == b"x"
