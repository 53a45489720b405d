"""Directories of live state: nobody but their user can reach, swap or make them ready in advance."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dagster_ckpt.checkpoint.cleanup.live_locations import forget_live_locations
from dagster_ckpt.checkpoint.control.epochs import Choice
from dagster_ckpt.errors import StorageUnusable
from dagster_ckpt.filesystem import default_root, is_own, make_working_directory, remove_entries, share_start
from dagster_ckpt.hosts import this_host
from dagster_ckpt.orchestration.storages import (
    CheckpointStorage,
    FileSystemCheckpointStorage,
    JobManagerCheckpointStorage,
)
from dagster_ckpt.spark.live.choose import recorded_live
from tests.helpers.checkpoint.memory import MemoryFileSystem

_NOBODY = 65534
_START = "000001-0badcafe"
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary directory that all users share, and a common umask."""
    shared = tmp_path / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    monkeypatch.setattr(tempfile, "tempdir", str(shared))
    before = os.umask(0o002)
    yield shared
    os.umask(before)


def make(storage: CheckpointStorage, job: str = "orders") -> Path:
    """As a run does at its start."""
    directory = storage.live_directory(job)
    make_working_directory(directory, storage.private_from)
    return directory


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def below(root: Path, directory: Path) -> list[Path]:
    """Each directory from below ``root`` to ``directory``."""
    parts = directory.relative_to(root).parts
    return [root.joinpath(*parts[:number]) for number in range(1, len(parts) + 1)]


def stored(tmp_path: Path, working_directory: Path | str | None = None) -> FileSystemCheckpointStorage:
    named = None if working_directory is None else str(working_directory)
    return FileSystemCheckpointStorage(checkpoint_path=str(tmp_path / "storage"), working_directory=named)


class TestDefault:
    def test_it_is_of_the_user_and_for_the_user_alone(self, temporary: Path, tmp_path: Path) -> None:
        assert default_root() == temporary / f"dagster_ckpt-{os.geteuid()}"
        for storage in (stored(tmp_path), JobManagerCheckpointStorage()):
            directory = make(storage)
            made = below(temporary, directory)
            assert made[0] == default_root()
            assert [mode(each) for each in made] == [0o700] * len(made)
            assert make(storage) == directory

    def test_a_storage_in_memory_does_not_open_it(self, temporary: Path) -> None:
        storage = JobManagerCheckpointStorage(working_directory="taskowned")
        directory = make(storage)
        storage.filesystem().probe()
        assert {mode(each) for each in below(temporary, directory)} <= {0o700}

    @as_root
    @pytest.mark.parametrize("depth", [0, 1, 2], ids=["base", "storage", "job"])
    def test_what_another_user_has_made_ready_is_refused(self, temporary: Path, tmp_path: Path, depth: int) -> None:
        directory = stored(tmp_path).live_directory("orders")
        planted = below(temporary, directory)[depth]
        planted.mkdir(mode=0o755, parents=True)
        for each in below(temporary, planted):
            each.chmod(0o700)
        os.chown(planted, _NOBODY, _NOBODY)
        with pytest.raises(StorageUnusable, match=f"{planted}: the directory belongs to user {_NOBODY}") as raised:
            make(stored(tmp_path))
        assert "set working_directory" in raised.value.hint
        assert list(planted.iterdir()) == []

    @pytest.mark.parametrize("depth", [0, 1, 2], ids=["base", "storage", "job"])
    def test_a_symbolic_link_is_refused_and_what_it_leads_to_survives(
        self, temporary: Path, tmp_path: Path, depth: int
    ) -> None:
        elsewhere = tmp_path / "elsewhere"
        (elsewhere / _START).mkdir(parents=True)
        (elsewhere / _START / "thesis.txt").write_text("the only copy")
        directory = stored(tmp_path).live_directory("orders")
        link = below(temporary, directory)[depth]
        link.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for each in below(temporary, link.parent):
            each.chmod(0o700)
        link.symlink_to(elsewhere)
        with pytest.raises(StorageUnusable, match=f"{link}: the directory is a symbolic link"):
            make(stored(tmp_path))
        assert [each.name for each in elsewhere.iterdir()] == [_START]
        assert (elsewhere / _START / "thesis.txt").read_text() == "the only copy"

    def test_a_file_in_the_place_of_a_directory_is_refused(self, temporary: Path, tmp_path: Path) -> None:
        default_root().write_text("")
        with pytest.raises(StorageUnusable, match="is no directory"):
            make(stored(tmp_path))

    @pytest.mark.parametrize("open_to", [0o770, 0o777, 0o1777])
    def test_one_that_others_can_write_to_is_refused(self, temporary: Path, tmp_path: Path, open_to: int) -> None:
        default_root().mkdir()
        default_root().chmod(open_to)
        with pytest.raises(StorageUnusable, match="can be written to by other users"):
            make(stored(tmp_path))

    def test_one_that_others_can_read_is_closed(self, temporary: Path, tmp_path: Path) -> None:
        default_root().mkdir()
        default_root().chmod(0o755)
        make(stored(tmp_path))
        assert mode(default_root()) == 0o700

    @as_root
    def test_a_second_user_has_a_directory_of_its_own(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with tempfile.TemporaryDirectory(dir="/tmp") as shared:
            root = Path(shared)
            root.chmod(0o1777)
            monkeypatch.setattr(tempfile, "tempdir", shared)
            first = make(stored(root))
            (first / "state").write_text("of root")
            os.seteuid(_NOBODY)
            try:
                second = make(stored(root))
                with pytest.raises(PermissionError):
                    (first / "state").read_text()
            finally:
                os.seteuid(0)
            assert second != first
            assert [each.stat().st_uid for each in below(root, second)] == [_NOBODY] * 3


class TestNamed:
    def test_it_is_made_for_the_user_alone(self, temporary: Path, tmp_path: Path) -> None:
        named = tmp_path / "fast" / "disk"
        directory = make(stored(tmp_path, named))
        assert mode(named) == 0o700
        assert {mode(each) for each in below(named, directory)} == {0o700}
        assert mode(named.parent) == 0o775, "what lies above was only made to be there"

    def test_what_is_there_keeps_its_mode(self, temporary: Path, tmp_path: Path) -> None:
        named = tmp_path / "named"
        named.mkdir(mode=0o755)
        named.chmod(0o755)
        directory = make(stored(tmp_path, named))
        assert mode(named) == 0o755
        assert {mode(each) for each in below(named, directory)} == {0o700}
        directory.chmod(0o770)
        assert make(stored(tmp_path, named)) == directory
        assert mode(directory) == 0o770

    def test_the_directory_of_a_start_lets_in_who_may_write_to_that_of_its_job(self, tmp_path: Path) -> None:
        job, start = tmp_path / "job", tmp_path / "job" / _START
        start.mkdir(parents=True)
        for of_job, expected in ((0o700, 0o700), (0o755, 0o700), (0o770, 0o770), (0o2775, 0o2775)):
            job.chmod(of_job)
            start.chmod(0o700)
            share_start(start)
            assert mode(start) == expected

    def test_links_above_are_the_users_own_and_links_below_are_refused(self, temporary: Path, tmp_path: Path) -> None:
        (tmp_path / "disk").mkdir()
        (tmp_path / "named").symlink_to(tmp_path / "disk")
        directory = make(stored(tmp_path, tmp_path / "named"))
        assert (tmp_path / "disk" / directory.relative_to(tmp_path / "named")).is_dir()
        directory.rmdir()
        directory.symlink_to(tmp_path / "disk")
        with pytest.raises(StorageUnusable, match="is a symbolic link"):
            make(stored(tmp_path, tmp_path / "named"))

    def test_where_everybody_can_write_a_directory_below_it_can_be_named(self, temporary: Path, tmp_path: Path) -> None:
        named = tmp_path / "everybody"
        named.mkdir()
        named.chmod(0o777)
        with pytest.raises(StorageUnusable, match="can be written to by everybody") as raised:
            make(stored(tmp_path, named))
        assert f"{named}/dagster_ckpt" in raised.value.hint
        make(stored(tmp_path, named / "dagster_ckpt"))
        assert mode(named / "dagster_ckpt") == 0o700
        named.chmod(0o1777)
        make(stored(tmp_path, named))

    @as_root
    def test_one_of_another_user_is_the_choice_of_who_named_it(self, temporary: Path, tmp_path: Path) -> None:
        """A volume that is mounted for a container often belongs to another user; what is made in it does not."""
        named = tmp_path / "theirs"
        named.mkdir()
        os.chown(named, _NOBODY, _NOBODY)
        directory = make(stored(tmp_path, named))
        assert mode(directory) == 0o700
        os.chown(directory, _NOBODY, _NOBODY)
        with pytest.raises(StorageUnusable, match=f"belongs to user {_NOBODY}"):
            make(stored(tmp_path, named))

    def test_taskowned_leaves_the_storage_as_it_is(self, temporary: Path, tmp_path: Path) -> None:
        directory = make(stored(tmp_path, "taskowned"))
        assert mode(directory) == 0o700
        assert mode(directory.parent) == 0o775
        assert mode(directory.parent.parent) == 0o775


class TestSweeping:
    def test_starts_are_removed_and_links_are_not_followed(self, tmp_path: Path) -> None:
        working, elsewhere = tmp_path / "working", tmp_path / "elsewhere"
        (elsewhere / _START).mkdir(parents=True)
        (working / _START).mkdir(parents=True)
        (working / _START / "inner").symlink_to(elsewhere)
        (working / "000002-0badcafe").symlink_to(elsewhere)
        (working / "000009-0badcafe").mkdir()
        (working / "mine").mkdir()
        forget_live_locations(working, MemoryFileSystem(), "orders", 9)
        assert sorted(each.name for each in working.iterdir()) == ["000002-0badcafe", "000009-0badcafe", "mine"]
        assert (elsewhere / _START).is_dir()

    def test_what_cannot_be_removed_holds_nothing_up(self, tmp_path: Path) -> None:
        (tmp_path / "a file").touch()
        (tmp_path / "a directory").mkdir()
        remove_entries(tmp_path, lambda _: True)
        assert [each.name for each in tmp_path.iterdir()] == ["a file"]

    def test_nothing_is_removed_through_a_link_to_the_working_directory(self, tmp_path: Path) -> None:
        (tmp_path / "elsewhere" / _START).mkdir(parents=True)
        (tmp_path / "working").symlink_to(tmp_path / "elsewhere")
        forget_live_locations(tmp_path / "working", MemoryFileSystem(), "orders", 9)
        assert (tmp_path / "elsewhere" / _START).is_dir()


class TestRecordedLocation:
    """The live location of the run before is found by its path on record, in a directory of an earlier release too."""

    def choice(self, live: Path) -> Choice:
        return Choice(
            job_id="0" * 32,
            restored=None,
            first_id=1,
            last_id=0,
            live=str(live),
            host=this_host(),
            sink=None,
            reason="",
        )

    def test_one_of_an_earlier_release_is_found(self, tmp_path: Path) -> None:
        live = tmp_path / "dagster_ckpt" / "hash" / "orders" / _START / "checkpoint"
        live.mkdir(mode=0o755, parents=True)
        found = recorded_live(self.choice(live), MemoryFileSystem())
        assert found is not None
        assert found.url == str(live)

    @as_root
    @pytest.mark.parametrize("what", ["location", "start"])
    def test_one_of_another_user_is_left_alone(self, tmp_path: Path, what: str) -> None:
        live = tmp_path / _START / "checkpoint"
        live.mkdir(parents=True)
        os.chown(live if what == "location" else live.parent, _NOBODY, _NOBODY)
        assert recorded_live(self.choice(live), MemoryFileSystem()) is None

    @as_root
    def test_one_in_a_closed_directory_of_another_user_is_left_alone(self, caplog: pytest.LogCaptureFixture) -> None:
        with tempfile.TemporaryDirectory() as closed:  # mode 0700, as the directories of live state
            live = Path(closed) / _START / "checkpoint"
            live.mkdir(parents=True)
            os.seteuid(_NOBODY)
            try:
                assert recorded_live(self.choice(live), MemoryFileSystem()) is None
            finally:
                os.seteuid(0)
        assert f"The live location {live} is left alone: it is not this user's" in caplog.text

    def test_one_whose_disk_does_not_answer_counts_as_gone(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def away(*_: object, **__: object) -> os.stat_result:
            raise OSError(errno.ESTALE, "Stale file handle")

        monkeypatch.setattr(Path, "stat", away)
        assert recorded_live(self.choice(tmp_path), MemoryFileSystem()) is None

    @pytest.mark.parametrize("what", ["location", "start"])
    def test_one_behind_a_link_is_left_alone(self, tmp_path: Path, what: str) -> None:
        (tmp_path / "elsewhere" / "checkpoint").mkdir(parents=True)
        if what == "start":
            (tmp_path / _START).symlink_to(tmp_path / "elsewhere")
        else:
            (tmp_path / _START).mkdir()
            (tmp_path / _START / "checkpoint").symlink_to(tmp_path / "elsewhere" / "checkpoint")
        assert recorded_live(self.choice(tmp_path / _START / "checkpoint"), MemoryFileSystem()) is None

    def test_one_that_everybody_can_write_to_is_left_alone(self, tmp_path: Path) -> None:
        live = tmp_path / _START / "checkpoint"
        live.mkdir(parents=True)
        assert is_own(live)
        live.chmod(0o777)
        assert recorded_live(self.choice(live), MemoryFileSystem()) is None
