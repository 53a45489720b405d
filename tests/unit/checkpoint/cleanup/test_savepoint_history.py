"""Which savepoints of a series go, when the next one is taken."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_ckpt.checkpoint.cleanup.pinning import unpin_checkpoint
from dagster_ckpt.checkpoint.cleanup.savepoint_history import (
    SavepointHistory,
    delete_surplus_savepoints,
    kept_savepoint,
    refuse_half_deleted,
)
from dagster_ckpt.checkpoint.control.epochs import FAILING, Choice, Claim, End
from dagster_ckpt.checkpoint.control.pins import Pin
from dagster_ckpt.checkpoint.control.taken_savepoints import Label, NamedSavepoint, RecordedSavepoints
from dagster_ckpt.checkpoint.format.code_versions import CodeVersion, Upgrade
from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata
from dagster_ckpt.checkpoint.format.snapshot import Snapshot
from dagster_ckpt.checkpoint.taking.requests.ask_savepoint import take_savepoint
from dagster_ckpt.checkpoint.taking.store import CompletedCheckpointStore
from dagster_ckpt.clock import Clock, SystemClock, iso
from dagster_ckpt.errors import CheckpointNotFound, InvalidConfiguration, RestoreRefused, StorageError
from dagster_ckpt.filesystem import PosixFileSystem
from tests.helpers.orchestration.stored_job import StoredJob, run_id
from tests.helpers.stepping import at_every_line

DAY = 86_400.0
NOW = 1_000 * DAY


def named(number: int, age: float) -> NamedSavepoint:
    return NamedSavepoint(f"n-{number}", f"/s/savepoint-{number}", "", "n", "a" * 32, 1, number, iso(NOW - age * DAY))


@given(
    st.lists(st.floats(0.1, 100), max_size=12).map(lambda ages: sorted(ages, reverse=True)),
    st.none() | st.integers(1, 12),
    st.none() | st.floats(0.1, 100),
)
def test_what_stays_is_what_the_limits_allow_and_always_the_newest(
    ages: list[float], keep: int | None, days: float | None
) -> None:
    savepoints = [named(number, age) for number, age in enumerate(ages)]
    history = SavepointHistory(keep, None if days is None else timedelta(days=days))
    surplus = {item.name for item in history.surplus(savepoints, NOW)}
    stays = [item for item in savepoints if item.name not in surplus]
    assert stays[-1:] == savepoints[-1:], "the newest, however old"
    moved = [*savepoints[-1:], *savepoints[:-1]]
    assert moved[:1] == [item for item in moved[:1] if item not in history.surplus(moved, NOW)], "the newest state"
    for age, item in zip(ages, savepoints, strict=True):
        newer = len(savepoints) - 1 - savepoints.index(item)
        too_many, too_old = keep is not None and newer >= keep, days is not None and age > days + 1e-6
        if newer and (too_many or too_old):
            assert item not in stays
        elif not too_many and (days is None or age < days - 1e-6):
            assert item in stays


def test_without_a_limit_there_is_no_history() -> None:
    assert SavepointHistory.of(None, None) is None
    for keep, age in ((0, None), (None, "0 s"), (None, "soon")):
        with pytest.raises(InvalidConfiguration):
            SavepointHistory.of(keep, age)


class Tomorrow(SystemClock):
    """When a name without a savepoint is one that is left over."""

    def time(self) -> float:
        return super().time() + 2 * DAY


def of_many_bytes(snapshot: Callable[[int], Snapshot]) -> Callable[[int], Snapshot]:
    """A state that is no part of the manifest."""

    def larger(batch: int) -> Snapshot:
        made = snapshot(batch)
        (file,) = made.files
        Path(file.local).write_bytes(b"x" * 100_000)
        return replace(made, files=(replace(file, size=100_000),))

    return larger


def data_of(savepoint: Path) -> list[Path]:
    return [path for path in savepoint.iterdir() if path.name != "_metadata"]


class _Series:
    """A series of savepoints, and its history."""

    @pytest.fixture
    def job(self, tmp_path: Path) -> StoredJob:
        return StoredJob(tmp_path / "storage")

    def take(self, job: StoredJob, name: str, series: str | None = "nightly") -> str:
        """A savepoint of a job that does not run, with one more checkpoint each time."""
        job.die(run_id())
        return take_savepoint(
            job.catalog,
            str(job.root.parent / "savepoints"),
            default=None,
            stop=False,
            timeout="1 min",
            clock=SystemClock(),
            wait=time.sleep,
            report=lambda _: None,
            label=Label(name, series=series),
        ).pointer

    def take_again(self, job: StoredJob) -> str:
        """The next one of the series, while the job does not run."""
        return take_savepoint(
            job.catalog,
            str(job.root.parent / "savepoints"),
            default=None,
            stop=False,
            timeout="1 min",
            clock=SystemClock(),
            wait=time.sleep,
            report=lambda _: None,
            label=Label(series="nightly"),
        ).pointer

    def save(self, job: StoredJob, store: CompletedCheckpointStore, name: str, batch: int) -> str:
        """One of the series, taken by the driver."""
        disk = PosixFileSystem(job.root.parent / "savepoints")
        label = Label(name, series="nightly")
        return store.write_savepoint(store.begin(), job._snapshot(batch), disk, label=label).reference

    def delete(self, job: StoredJob, keep: int = 1, *, clock: Clock | None = None, taken: str = "") -> list[str]:
        """Delete what is too much; ``taken`` is by default the last one."""
        self.told: list[str] = []
        last = taken or job.catalog.records.taken_savepoints.all_named()[-1].reference
        history = SavepointHistory(keep=keep)
        return delete_surplus_savepoints(
            job.catalog, "nightly", history, clock or SystemClock(), self.told.append, taken=last
        )


class TestDeleting(_Series):
    def test_others_are_left_alone(self, job: StoredJob) -> None:
        mine = self.take(job, "mine", series=None)
        weekly = self.take(job, "w", series="weekly")
        old, older, new = (self.take(job, name) for name in ("n-1", "n-2", "n-3"))
        assert self.delete(job) == [old, older]
        assert [Path(place).exists() for place in (mine, weekly, old, older, new)] == [True, True, False, False, True]
        assert {item.name for item in job.catalog.records.taken_savepoints.all_named()} == {"mine", "w", "n-3"}
        assert self.delete(job) == []

    def test_a_damaged_one_does_not_count_so_that_the_newest_sound_one_stays(
        self, job: StoredJob, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Without its manifest's bytes, without a file, with another bit in a file, and another one in its place."""
        monkeypatch.setattr(job, "_snapshot", of_many_bytes(job._snapshot))
        places = [Path(self.take(job, f"n-{number}")) for number in range(6)]
        old, sound, damaged, lacking, changed, replaced = places
        (damaged / "_metadata").write_bytes(b"{")
        (data,) = data_of(lacking)
        data.unlink()
        (data,) = data_of(changed)
        data.write_bytes(b"?" + data.read_bytes()[1:])
        other = Path(self.take(job, "mine", series=None))
        shutil.rmtree(replaced)
        other.rename(replaced)
        assert self.delete(job, taken=str(replaced)) == [str(old)]
        assert [place.exists() for place in places] == [False, True, True, True, True, True]
        assert sum("cannot be read, and stays" in text for text in self.told) == 4
        assert sound.exists()

    def test_the_newest_state_and_the_one_just_taken_stay_whatever_the_clocks_say(self, job: StoredJob) -> None:
        """While the job does not run, the copy of its newest checkpoint is older than what it was stopped with."""
        claim = job.claim(run_id())
        store = job.choose(claim)
        job.checkpoint(store, 1)
        stopped_with = self.save(job, store, "n-2", batch=2)
        job.end(claim, "FINISHED")
        copied = self.take_again(job)
        assert job.catalog.resolve(copied).key < job.catalog.resolve(stopped_with).key
        assert self.delete(job, taken=copied) == []
        assert self.take_again(job) == copied, "nothing is copied twice"
        after = self.take(job, "n-4")
        slow = job.catalog.records.taken_savepoints.named("n-4")
        assert slow is not None
        job.catalog.records.taken_savepoints.forget_name(slow)
        job.catalog.records.taken_savepoints.give(replace(slow, named_at=iso(0.0)), over=None)
        assert sorted(self.delete(job, taken=after)) == sorted([stopped_with, copied])
        assert Path(after).exists()

    def test_a_name_whose_savepoint_is_being_completed_stays(self, job: StoredJob) -> None:
        """The name is on record just before the manifest."""
        self.take(job, "n-1")
        coming = Path(self.take(job, "n-2"))
        (coming / "_metadata").rename(coming.parent / "later")
        assert self.delete(job, taken=str(coming)) == []
        (coming.parent / "later").rename(coming / "_metadata")
        assert job.catalog.resolve("savepoint:n-2").location == str(coming)

    def test_what_fails_is_told_because_the_savepoint_was_taken(
        self, job: StoredJob, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.take(job, "n-1")
        last = self.take(job, "n-2")

        def fail(_: object) -> object:
            raise StorageError("the storage is away")

        monkeypatch.setattr(RecordedSavepoints, "all_named", fail)
        assert self.delete(job, taken=last) == []
        assert "the storage is away" in self.told[0]

    @pytest.mark.parametrize("upgraded", [False, True])
    def test_what_the_job_may_go_back_to_by_itself_stays(self, job: StoredJob, *, upgraded: bool) -> None:
        old = self.take(job, "n-1")
        self.take(job, "n-2")
        claim = job.claim(run_id())
        # A new version has begun from nothing, and may be taken back.
        version = CodeVersion("2", Upgrade("1", old, claim.epoch, claim.claimed_at)) if upgraded else None
        choice = Choice(
            claim.run_id.replace("-", ""),
            None if upgraded else old,
            9,
            0,
            "/live",
            "host",
            None,
            "of the test",
            complete=(),
            code=version or CodeVersion(),
        )
        job.catalog.records.epochs.record_choice(claim.epoch, choice)
        assert self.delete(job) == []
        assert Path(old).exists()
        assert "may still go back" in self.told[0]

    def test_a_deletion_that_was_broken_off_is_finished(self, job: StoredJob) -> None:
        """Killed after the manifest went: the name still leads there."""
        old = Path(self.take(job, "n-1"))
        new = self.take(job, "n-2")
        rest = old / "_claimed"
        rest.write_bytes(b"")
        (old / "_metadata").unlink()
        rest.unlink()
        assert self.delete(job, keep=5) == []
        assert old.exists(), "it could be one that is being completed"
        assert self.delete(job, keep=5, clock=Tomorrow()) == []
        assert not old.exists()
        assert [item.reference for item in job.catalog.records.taken_savepoints.all_named()] == [new]

    def test_where_nothing_is_in_reach_nothing_is_forgotten(self, job: StoredJob) -> None:
        places = [Path(self.take(job, f"n-{number}")) for number in range(3)]
        (job.root.parent / "savepoints").rename(job.root.parent / "unmounted")
        assert self.delete(job, clock=Tomorrow()) == []
        (job.root.parent / "unmounted").rename(job.root.parent / "savepoints")
        assert len(job.catalog.records.taken_savepoints.all_named()) == 3
        assert self.delete(job) == [str(place) for place in places[:2]]

    def test_the_next_of_a_series_is_not_taken_of_the_same_checkpoint_again(self, job: StoredJob) -> None:
        first = self.take(job, "n-1")
        again = self.take_again(job)
        assert again == first, "copies of one state would push the older states out of the history"


class TestBesideARollback(_Series):
    """From the moment at which a rollback keeps its target, no history deletes the target, whoever began first."""

    def keep(self, job: StoredJob, target: str) -> ExitStack:
        """What a rollback does before it terminates the job."""
        kept = ExitStack()
        kept.enter_context(kept_savepoint(job.catalog, job.catalog.resolve(target), "rollback x", SystemClock()))
        return kept

    @pytest.mark.parametrize(
        ("module", "may_stay"), [("cleanup/savepoint_history.py", True), ("taking/savepoint_files.py", False)]
    )
    def test_a_rollback_that_begins_while_the_history_is_at_work(
        self, module: str, may_stay: bool, tmp_path: Path
    ) -> None:
        went, stayed = 0, 0
        for line in at_every_line(module):
            job = StoredJob(tmp_path / str(line.index) / "storage")
            target, _ = self.take(job, "n-1"), self.take(job, "n-2")
            kept: list[ExitStack] = []

            def begin(job: StoredJob = job, target: str = target, kept: list[ExitStack] = kept) -> None:
                with suppress(CheckpointNotFound, RestoreRefused):
                    kept.append(self.keep(job, target))

            with line.then(begin):
                self.delete(job)
            for rollback in kept:
                with rollback:
                    assert job.catalog.resolve(target).location == target, line.index
                    assert self.delete(job) == []
            went, stayed = went + (not kept), stayed + bool(kept)
            assert not job.catalog.records.pins.pinned()
            self.delete(job)
            assert not Path(target).exists()
        assert went > 1
        assert (stayed > 1) == may_stay

    def test_a_history_that_begins_while_a_rollback_keeps_its_target(self, tmp_path: Path) -> None:
        refused = 0
        for line in at_every_line("cleanup/savepoint_history.py"):
            job = StoredJob(tmp_path / str(line.index) / "storage")
            target, _ = self.take(job, "n-1"), self.take(job, "n-2")
            began = False
            with (
                suppress(CheckpointNotFound, RestoreRefused),
                line.then(partial(self.delete, job)),
                self.keep(job, target),
            ):
                assert job.catalog.resolve(target).location == target, line.index
                began = True
            refused += not began
            assert not job.catalog.records.pins.pinned()
        assert refused > 1

    def test_what_the_job_has_gone_back_to_stays_when_the_rollback_lets_go(self, tmp_path: Path) -> None:
        """The rollback lets go once the launched run has recorded its choice."""
        for line in at_every_line("cleanup/savepoint_history.py"):
            job = StoredJob(tmp_path / str(line.index) / "storage")
            target, _ = self.take(job, "n-1"), self.take(job, "n-2")
            rollback = self.keep(job, target)

            def go_back(job: StoredJob = job, target: str = target, rollback: ExitStack = rollback) -> None:
                job.choose(job.claim(run_id()), job.catalog.resolve(target))
                rollback.close()

            with line.then(go_back):
                self.delete(job)
            rollback.close()
            assert Path(target).exists(), line.index
        assert line.index > 1

    @pytest.mark.parametrize("module", ["cleanup/savepoint_history.py", "taking/savepoint_files.py"])
    def test_a_start_that_begins_while_the_history_is_at_work(self, module: str, tmp_path: Path) -> None:
        """A start that was asked for the savepoint and is not refused has the savepoint, also when it has begun."""
        went, stayed = 0, 0
        for line in at_every_line(module):
            job = StoredJob(tmp_path / str(line.index) / "storage")
            target, _ = self.take(job, "n-1"), self.take(job, "n-2")
            started: list[tuple[Claim, CheckpointMetadata]] = []

            def start(job: StoredJob = job, target: str = target, started: list[Any] = started) -> None:
                claim = job.claim(run_id())
                with suppress(CheckpointNotFound, RestoreRefused):
                    savepoint = job.catalog.resolve(target)
                    refuse_half_deleted(job.catalog, savepoint, lambda seconds: None)
                    started.append((claim, savepoint))

            with line.then(start):
                self.delete(job)
            for claim, savepoint in started:
                assert job.catalog.resolve(target) == savepoint, line.index
                assert self.delete(job) == []
                job.choose(claim, savepoint)
                assert self.delete(job) == []
                assert job.catalog.resolve(target) == savepoint, line.index
            went, stayed = went + (not started), stayed + bool(started)
        assert stayed + went > 1
        assert bool(stayed) == module.startswith("cleanup")

    def test_a_start_that_failed_before_its_choice_and_a_copy_elsewhere(self, job: StoredJob, tmp_path: Path) -> None:
        """The next start has the savepoint; a copy that somebody made is no business of the history."""
        target, _ = self.take(job, "n-1"), self.take(job, "n-2")
        claim = job.claim(run_id())
        job.catalog.records.epochs.record_end(claim.epoch, End(FAILING, "no JVM", discarded=False, ended_at=iso(NOW)))
        assert self.delete(job) == []
        savepoint = job.catalog.resolve(target)
        pin = Pin.alone(savepoint.job_id, savepoint.checkpoint_id, "the history of the series nightly deletes n-1", "")
        job.catalog.records.pins.add(pin)
        with pytest.raises(RestoreRefused, match="deletes n-1"):
            refuse_half_deleted(job.catalog, savepoint, lambda seconds: None)
        shutil.copytree(target, tmp_path / "copy")
        refuse_half_deleted(job.catalog, job.catalog.resolve(str(tmp_path / "copy")))
        refuse_half_deleted(job.catalog, savepoint, lambda seconds: job.catalog.records.pins.remove(pin))

    def test_a_history_that_begins_while_a_start_is_at_work(self, tmp_path: Path) -> None:
        for line in at_every_line("cleanup/savepoint_history.py"):
            job = StoredJob(tmp_path / str(line.index) / "storage")
            target, _ = self.take(job, "n-1"), self.take(job, "n-2")
            claim, savepoint = job.claim(run_id()), job.catalog.resolve(target)
            with line.then(partial(self.delete, job)):
                refuse_half_deleted(job.catalog, savepoint, lambda seconds: None)
            job.choose(claim, savepoint)
            assert self.delete(job) == []
            assert job.catalog.resolve(target) == savepoint, line.index
        assert line.index > 1

    def test_a_rollback_that_was_killed_keeps_its_target_until_somebody_lets_go(self, job: StoredJob) -> None:
        target, _ = self.take(job, "n-1"), self.take(job, "n-2")
        killed = self.keep(job, target)
        assert self.delete(job) == []
        (pinned,) = job.catalog.records.pins.pinned()
        assert "rollback x" in self.told[0]
        assert f"dagster-ckpt unpin orders {pinned}" in self.told[0]
        with pytest.raises(RestoreRefused, match="rollback x") as refused:
            self.keep(job, target)
        assert f"dagster-ckpt unpin orders {pinned}" in str(refused.value)
        unpin_checkpoint(job.catalog, pinned)
        assert self.delete(job) == [target]
        assert not job.catalog.records.pins.pinned()
        killed.close()

    @pytest.mark.parametrize("whose", ["history", "rollback"])
    def test_a_deletion_that_was_killed_is_finished_and_holds_nothing_any_more(
        self, whose: str, job: StoredJob
    ) -> None:
        """Nobody goes back to what has no manifest; but a rollback may be going to another copy of the same state."""
        target, _ = self.take(job, "n-1"), self.take(job, "n-2")
        savepoint = job.catalog.resolve(target)
        reason = "the history of the series nightly deletes n-1" if whose == "history" else "rollback x"
        pin = Pin(f"{savepoint.job_id}/chk-{savepoint.checkpoint_id}", reason, iso(NOW), savepoint.job_id)
        job.catalog.records.pins.add(pin)
        with pytest.raises(RestoreRefused, match=reason):
            self.keep(job, target)
        (Path(target) / "_metadata").unlink()
        assert self.delete(job, clock=Tomorrow()) == []
        assert len(job.catalog.records.taken_savepoints.all_named()) == 1
        assert len(job.catalog.records.pins.pinned()) == (whose == "rollback")
