"""Sweeping a job that is over: every file that nothing needs goes, and nothing else, whatever happens meanwhile."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from threading import Event, Thread

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.cleanup import job_sweep
from dagster_ckpt.checkpoint.cleanup.broken_checkpoints import dispose_broken
from dagster_ckpt.checkpoint.cleanup.job_sweep import Swept, sweep_job
from dagster_ckpt.checkpoint.control.deletion_log import DeletionLog
from dagster_ckpt.checkpoint.control.epochs import End, Epochs, Settled
from dagster_ckpt.checkpoint.control.heartbeat import Heartbeat, HeartbeatFile
from dagster_ckpt.checkpoint.control.pins import Pins as PinRecords
from dagster_ckpt.checkpoint.control.quarantine import Quarantined
from dagster_ckpt.checkpoint.format.kinds import FORK, MOVED, RESCALE
from dagster_ckpt.checkpoint.processes import ProcessIdentity
from dagster_ckpt.clock import iso
from dagster_ckpt.errors import CheckpointError, CheckpointNotFound, Fenced, InvalidConfiguration, JobAlreadyRunning
from dagster_ckpt.filesystem import FileSystem
from dagster_ckpt.testing import (
    Crash,
    CrashAfter,
    Fail,
    FailAfter,
    FaultInjectingFileSystem,
    Lie,
    Operation,
    ProcessDied,
    at_operation,
    enumerate_crash_points,
    interleave,
)
from tests.helpers.checkpoint.driver import (
    JOB,
    Ledger,
    ManualClock,
    Pins,
    Run,
    content,
    directories,
    once,
    pin,
    shared,
    state,
)
from tests.helpers.checkpoint.memory import MemoryFileSystem
from tests.unit.checkpoint.protocol.interleaved import contents

DAY = timedelta(days=1)


def sweep(storage: FileSystem, clock: ManualClock | None = None, **options: bool | timedelta) -> Swept:
    clock = clock or ManualClock()
    return sweep_job(CheckpointCatalog(storage, JOB), clock, wait=clock.advance, **options)  # type: ignore[arg-type]


def stored(storage: MemoryFileSystem) -> set[str]:
    """Every file of the job but its records."""
    return {path for path in storage.files if path.startswith(f"{JOB}/") and not path.startswith(f"{JOB}/control/")}


def reachable(storage: MemoryFileSystem) -> set[str]:
    """Manifests of complete checkpoints, and what they refer to."""
    catalog, found = CheckpointCatalog(storage, JOB), set()
    for job_id in catalog.job_ids():
        for metadata in catalog.completed(job_id)[0]:
            found.add(f"{JOB}/{metadata.reference}/_metadata")
            found |= {catalog.stored_path(metadata, reference) for reference in metadata.references}
    return found


def die(run: Run, disk: FaultInjectingFileSystem, step: int) -> None:
    """In the middle of a checkpoint, just before it would be complete."""
    disk.plan = once("create", "_metadata", Crash())
    with pytest.raises(ProcessDied):
        run.checkpoint(state(step), step)


def left_behind(memory: MemoryFileSystem, ledger: Ledger, pins: Pins) -> Run:
    """A job that is over: of each of its two lineages an attempt died, and of the first a deletion was broken off."""
    disk = FaultInjectingFileSystem(memory)
    run = Run(disk, ledger, pins).start()
    run.checkpoint(state(1), 1)
    run.checkpoint(state(2), 2)
    die(run, disk, 50)
    disk = FaultInjectingFileSystem(memory)
    run = Run(disk, ledger, pins).start("chk-2", branch=True)
    run.checkpoint(state(3), 3)
    run.checkpoint(state(8), 8)
    die(run, disk, 60)
    disk = FaultInjectingFileSystem(memory)
    run = Run(disk, ledger, pins).start()
    run.checkpoint(state(9), 9)
    die(run, disk, 70)
    run = Run(memory, ledger, pins)
    run.claim = run.catalog.records.epochs.claim(token="t", series=None, run_id="r", host="h", pid=1, now=iso(1.0))
    run.finish()
    return run


class TestWhatGoes:
    def test_what_dead_attempts_left_in_every_lineage(
        self, memory: MemoryFileSystem, ledger: Ledger, pins: Pins
    ) -> None:
        left_behind(memory, ledger, pins)
        before = stored(memory)
        planned = sweep(memory, dry_run=True)
        assert stored(memory) == before
        swept = sweep(memory)
        assert {orphan.path for orphan in swept.orphans} == before - stored(memory) == before - reachable(memory)
        assert {orphan.path.split("/")[1] for orphan in swept.orphans} == {f"{1:032x}", f"{2:032x}"}
        assert planned == swept
        assert swept.size > 0
        assert sweep(memory).orphans == ()
        ledger.examine(memory)
        assert Run(memory, ledger, pins).start().store.retained[-1].checkpoint_id > 3

    def test_a_deletion_that_was_broken_off(self, memory: MemoryFileSystem, ledger: Ledger, pins: Pins) -> None:
        disk = FaultInjectingFileSystem(memory)
        run = Run(disk, ledger, pins).start()
        for step in range(1, 4):
            run.checkpoint(state(step * 2), step)
        disk.plan = once("remove", "_metadata", Crash())
        with pytest.raises(ProcessDied):
            run.subsume(1)
        Run(memory, ledger, pins).catalog.records.epochs.record_end(1, End("FAILED", "of the test", False, iso(1.0)))
        planned = sweep(memory, dry_run=True)
        assert directories(memory) == {"chk-1", "chk-2", "chk-3"}
        assert "its deletion was begun" in planned.orphans[0].reason
        assert set(sweep(memory).orphans) == set(planned.orphans)
        assert directories(memory) == {"chk-3"}
        assert stored(memory) == reachable(memory)
        assert DeletionLog(memory, JOB).pending() == []
        ledger.examine(memory)

    def test_one_that_was_void_is_struck_and_not_carried_out(
        self, memory: MemoryFileSystem, ledger: Ledger, pins: Pins
    ) -> None:
        """A writer that was fenced by the last epoch has written it down since."""
        run = Run(memory, ledger, pins).start()
        run.checkpoint(state(1), 1)
        last = Run(memory, ledger, pins).start()
        memory.create(
            f"{JOB}/control/deletions/d-0000000001-{7:032x}",
            b'{"epoch": 1, "job_id": "%032x", "checkpoints": [1], "shared": [], "reason": "", "token": "%032x"}'
            % (1, 7),
        )
        last.finish()
        assert sweep(memory, dry_run=True).orphans == ()
        assert sweep(memory).orphans == ()
        assert DeletionLog(memory, JOB).pending() == []
        ledger.examine(memory)

    def test_a_lineage_that_was_given_up(self, memory: MemoryFileSystem, ledger: Ledger, pins: Pins) -> None:
        disk = FaultInjectingFileSystem(memory)
        run = Run(disk, ledger, pins).start()
        for step in range(1, 4):
            run.checkpoint(state(step), step)
        disk.plan = lambda operation: (
            Crash() if operation.name == "create" and "/deletions/" in operation.path else None
        )
        with pytest.raises(ProcessDied):
            run.cleanup()
        planned = sweep(memory, dry_run=True)
        assert {orphan.path for orphan in planned.orphans} == stored(memory)
        assert set(sweep(memory).orphans) == set(planned.orphans)
        assert CheckpointCatalog(memory, JOB).job_ids() == []
        assert stored(memory) == set()

    @pytest.mark.parametrize("kind", [FORK, RESCALE, MOVED])
    def test_a_copy_that_its_job_never_began_with(
        self, memory: MemoryFileSystem, ledger: Ledger, pins: Pins, kind: str
    ) -> None:
        run = Run(memory, ledger, pins).start()
        run.store.write(run.begin(), pins.snapshot(1, state(1)), kind=kind)
        run.finish()
        ledger.meant[f"{1:032x}/chk-1"] = [state(1)]
        assert sweep(memory).orphans == (), "its start recorded its choice"
        memory.remove(f"{JOB}/control/epochs/e-0000000001.choice")
        planned = sweep(memory, dry_run=True)
        assert {orphan.path for orphan in planned.orphans} == stored(memory)
        again = memory.backup()
        Run(again, ledger, pins).start(f"{1:032x}/chk-1").finish()
        assert sweep(again).orphans == (), "somebody has begun with it by its name"
        sweep(memory)
        assert stored(memory) == set()

    def test_shared_files_that_only_an_unreadable_manifest_knew(
        self, memory: MemoryFileSystem, ledger: Ledger, pins: Pins
    ) -> None:
        run = left_behind(memory, ledger, pins)
        path = f"{JOB}/{1:032x}/chk-1/_metadata"
        whole = memory.files[path]
        memory.files[path] = whole[:-9]
        before = shared(memory)
        swept = sweep(memory)
        assert shared(memory) == before, "nobody can say what it needs"
        assert shared(memory, f"{2:032x}") == {
            name.rpartition("/")[2] for name in reachable(memory) if f"{2:032x}/shared" in name
        }, "the other lineage has nothing to do with it"
        (note,) = swept.notes
        assert "It may need any shared file" in note
        assert f"dagster-ckpt dispose {memory.url}/{JOB}/{1:032x}/chk-1`" in note
        memory.files[path] = whole  # somebody has found a backup
        ledger.examine(memory)
        memory.files[path] = whole[:-9]
        assert dispose_broken(run.catalog, f"{1:032x}", 1)
        sweep(memory)
        assert stored(memory) == reachable(memory)
        assert shared(memory) < before

    def test_what_is_in_quarantine_only_if_it_is_asked_for(
        self, memory: MemoryFileSystem, ledger: Ledger, pins: Pins
    ) -> None:
        run = left_behind(memory, ledger, pins)
        name = f"{1:032x}/chk-1"
        run.catalog.records.quarantine.add(Quarantined(name, "broken", 3, "r", "h", "now"))
        (note,) = sweep(memory).notes
        assert f"In quarantine, and kept unless you ask for its deletion: {name}." in note
        ledger.examine(memory)
        token = pin(memory, ledger, name)
        assert sweep(memory, quarantined=True, dry_run=True).orphans == ()
        assert sweep(memory, quarantined=True).orphans == ()
        ledger.examine(memory)
        ledger.pinned.clear()
        PinRecords(memory, JOB).clear(token)
        planned = sweep(memory, quarantined=True, dry_run=True)
        assert f"{JOB}/{name}/_metadata" in {orphan.path for orphan in planned.orphans}
        assert set(sweep(memory, quarantined=True).orphans) == set(planned.orphans)
        assert directories(memory) == {"chk-2"}
        assert stored(memory) == reachable(memory)
        assert run.catalog.records.quarantine.names() == set()


class TestWhoRuns:
    def beat(self, memory: MemoryFileSystem, clock: ManualClock, *, stopped: bool = False, skew: float = 0.0) -> None:
        process = ProcessIdentity("elsewhere", 1, 0.0)
        HeartbeatFile(memory, JOB).write(
            Heartbeat(1, "r", (process,), int(clock.monotonic()), clock.time() + skew, stopped)
        )

    @pytest.mark.parametrize("skew", [0.0, -30 * DAY.total_seconds(), 30 * DAY.total_seconds()])
    def test_a_job_that_is_alive_is_refused(
        self, memory: MemoryFileSystem, ledger: Ledger, pins: Pins, clock: ManualClock, skew: float
    ) -> None:
        """Whatever the clock of its host says."""
        run = Run(memory, ledger, pins, clock).start()
        self.beat(memory, clock, skew=skew)
        catalog = CheckpointCatalog(memory, JOB)

        def it_beats(seconds: float) -> None:
            clock.advance(seconds)
            self.beat(memory, clock, skew=skew)

        with pytest.raises(JobAlreadyRunning, match=r"is being run by run r \(epoch 1\)"):
            sweep_job(catalog, clock, wait=it_beats, older_than=DAY)
        run.finish()
        with pytest.raises(JobAlreadyRunning):
            sweep_job(catalog, clock, wait=it_beats)
        assert sweep(memory, clock).orphans == (), "it has been silent for a lease"
        self.beat(memory, clock, stopped=True)
        assert sweep(memory, clock).orphans == ()

    @pytest.mark.parametrize("failing", [False, True])
    def test_one_that_is_to_go_on_is_refused_until_it_is_old(
        self, memory: MemoryFileSystem, ledger: Ledger, pins: Pins, clock: ManualClock, failing: bool
    ) -> None:
        disk = FaultInjectingFileSystem(memory)
        run = Run(disk, ledger, pins, clock).start()
        run.checkpoint(state(1), 1)
        die(run, disk, 50)
        if failing:
            Run(memory, ledger, pins).catalog.records.epochs.record_end(1, End("FAILING", "", False, iso(clock.time())))
        clock.advance(3600)
        self.beat(memory, clock)
        clock.advance(DAY.total_seconds() - 100)
        for older_than in (None, DAY):  # each of which watches the heartbeat for half a minute
            with pytest.raises(InvalidConfiguration, match="is not over") as refused:
                sweep(memory, clock, **({} if older_than is None else {"older_than": older_than}))
            assert f"dagster-ckpt sweep {JOB} --older-than" in refused.value.hint
        clock.advance(101)
        planned = sweep(memory, clock, older_than=DAY, dry_run=True)
        assert CheckpointCatalog(memory, JOB).records.epochs.highest() == 1
        assert sweep(memory, clock, older_than=DAY).orphans == planned.orphans != ()
        end = CheckpointCatalog(memory, JOB).records.epochs.read_end(2)
        assert end is not None
        assert end.status == "SUSPENDED"
        assert stored(memory) == reachable(memory)
        again = Run(memory, ledger, pins).start()
        assert again.store.restored_from == f"{1:032x}/chk-1", "a later launch goes on"

    def test_a_run_that_wakes_up_after_it_was_ended_is_fenced(
        self, memory: MemoryFileSystem, ledger: Ledger, pins: Pins, clock: ManualClock
    ) -> None:
        run = Run(memory, ledger, pins, clock).start()
        run.checkpoint(state(1), 1)
        clock.advance(2 * DAY.total_seconds())
        sweep(memory, clock, older_than=DAY)
        with pytest.raises(Fenced):
            run.checkpoint(state(2), 2)
        ledger.examine(memory)

    def published_late(self, memory: MemoryFileSystem, ledger: Ledger, pins: Pins) -> None:
        """A writer of a lineage that was left, which passed its check before the job was over and swept."""
        disk = FaultInjectingFileSystem(memory)
        zombie = Run(disk, ledger, pins).start()
        zombie.checkpoint(state(1), 1)
        disk.plan = lambda operation: Lie() if operation.path.endswith("epochs") else None
        pending = zombie.begin()
        ledger.meant[f"{1:032x}/chk-2"] = [state(50)]

        def swept_meanwhile(operation: Operation) -> Lie | None:
            if operation.name == "create" and operation.path.endswith("_metadata"):
                last = Run(memory, ledger, pins).start("chk-1", branch=True)
                last.finish()
                assert sweep(memory).orphans
            return Lie() if operation.path.endswith("epochs") else None

        disk.plan = swept_meanwhile
        with suppress(CheckpointError):
            zombie.store.write(pending, pins.snapshot(2, state(50)))
        assert "chk-2" in directories(memory)

    def test_what_is_published_after_a_sweep_is_void(
        self, memory: MemoryFileSystem, ledger: Ledger, pins: Pins
    ) -> None:
        self.published_late(memory, ledger, pins)
        with pytest.raises(CheckpointNotFound, match="is void: epoch 1 published it after"):
            CheckpointCatalog(memory, JOB).load(f"{1:032x}", 2)
        ledger.examine(memory)
        swept = sweep(memory)
        reasons = {orphan.reason for orphan in swept.orphans if "/chk-2/" in orphan.path}
        assert reasons == {"it was published too late, and is void"}
        assert directories(memory) == {"chk-1"}

    def test_without_a_record_of_what_was_complete_it_would_be_visible_and_incomplete(
        self, memory: MemoryFileSystem, ledger: Ledger, pins: Pins, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(job_sweep, "_settle", lambda catalog, epoch: None)
        self.published_late(memory, ledger, pins)
        with pytest.raises(AssertionError, match=r"visible .*/chk-2 of epoch 1 lacks"):
            ledger.examine(memory)

    @pytest.mark.parametrize("unfenced", [False, True])
    def test_what_only_an_attempt_of_a_start_in_the_middle_needs_stays(
        self, memory: MemoryFileSystem, ledger: Ledger, pins: Pins, unfenced: bool
    ) -> None:
        """It reuses a file of a checkpoint that another attempt's subsumption drops; no manifest tells of it then."""
        first = Run(memory, ledger, pins).start()
        first.checkpoint(state(1), 1)
        first.finish()
        looked, go_on = Event(), Event()
        refused: list[JobAlreadyRunning] = []

        def pause(operation: Operation) -> None:
            if operation.name == "create" and operation.path.endswith(".settled"):
                looked.set()
                assert go_on.wait(60)

        def sweeper() -> None:
            catalog = CheckpointCatalog(FaultInjectingFileSystem(memory, pause), JOB)
            if unfenced:
                catalog.records.epochs = Unfenced(catalog.filesystem, JOB)
            try:
                sweep_job(catalog, ManualClock())
            except JobAlreadyRunning as error:
                refused.append(error)

        thread = Thread(target=sweeper)
        thread.start()
        assert looked.wait(60)
        disk = FaultInjectingFileSystem(memory)
        newer = Run(disk, ledger, pins).start()
        done: list[bool] = []
        other, attempt = newer.begin(), newer.begin()
        reference = f"{1:032x}/chk-{attempt.number}"
        ledger.meant[f"{1:032x}/chk-{other.number}"] = [{"checkpoint/state/x": b"nothing of what was there before"}]
        ledger.meant[reference] = [state(1) | {"checkpoint/state/y": b"and something that is to be written"}]

        def others_turn(operation: Operation) -> None:
            if operation.name == "write" and not done:
                done.append(True)
                newer.store.write(other, pins.snapshot(2, ledger.meant[f"{1:032x}/chk-{other.number}"][0]))
                newer.subsume(1)
                go_on.set()
                thread.join()

        disk.plan = others_turn
        newer.store.write(attempt, pins.snapshot(3, ledger.meant[reference][0]))
        assert done
        if unfenced:
            with pytest.raises(AssertionError, match=r"visible .* lacks"):
                ledger.examine(memory)
        else:
            assert refused
            ledger.examine(memory)

    def test_a_start_in_the_middle_wins(self, memory: MemoryFileSystem, ledger: Ledger, pins: Pins) -> None:
        left_behind(memory, ledger, pins)
        started: list[Run] = []

        def start(operation: Operation) -> None:
            if operation.name == "create" and operation.path.endswith(".settled"):
                started.append(Run(memory, ledger, pins).start())
                started[0].checkpoint(state(90), 90)

        with pytest.raises(JobAlreadyRunning, match="was started while it was swept; 0 files"):
            sweep(FaultInjectingFileSystem(memory, start))
        ledger.examine(memory)
        started[0].checkpoint(state(91), 91)
        ledger.examine(memory)


class TestRecords:
    def given_up(self, memory: MemoryFileSystem, ledger: Ledger, pins: Pins, clock: ManualClock) -> None:
        run = Run(memory, ledger, pins, clock).start()
        run.checkpoint(state(1), 1)
        run.cleanup()

    def test_go_with_the_directory_when_the_job_has_been_over_for_long(
        self, memory: MemoryFileSystem, ledger: Ledger, pins: Pins, clock: ManualClock
    ) -> None:
        self.given_up(memory, ledger, pins, clock)
        clock.advance(DAY.total_seconds() - 1)
        (note,) = sweep(memory, clock, older_than=DAY).notes
        assert "the job has been over for less than 1 d" in note
        clock.advance(2)
        assert sweep(memory, clock).orphans == (), "nor without being told an age"
        planned = sweep(memory, clock, older_than=DAY, dry_run=True)
        swept = sweep(memory, clock, older_than=DAY)
        assert planned == swept
        assert swept.orphans[-1].path.endswith("e-0000000001.end"), "what fences goes last"
        assert memory.files == {}
        assert memory.list("") == []

    def test_stay_while_a_process_of_the_job_was_heard_of_after_its_end(
        self, memory: MemoryFileSystem, ledger: Ledger, pins: Pins, clock: ManualClock
    ) -> None:
        """Its records are what fences it."""
        self.given_up(memory, ledger, pins, clock)
        clock.advance(5 * DAY.total_seconds())
        process = ProcessIdentity("elsewhere", 1, 0.0)
        HeartbeatFile(memory, JOB).write(Heartbeat(1, "r", (process,), int(clock.monotonic()), clock.time(), True))
        clock.advance(DAY.total_seconds() - 1)
        (note,) = sweep(memory, clock, older_than=DAY).notes
        assert "the job has been over for less than 1 d" in note
        clock.advance(2)
        sweep(memory, clock, older_than=DAY)
        assert memory.files == {}

    def test_stay_while_anything_is_left(
        self, memory: MemoryFileSystem, ledger: Ledger, pins: Pins, clock: ManualClock
    ) -> None:
        run = Run(memory, ledger, pins, clock).start()
        run.checkpoint(state(1), 1)
        pin(memory, ledger, "chk-1")
        run.cleanup()
        clock.advance(9 * DAY.total_seconds())
        before = dict(memory.files)
        assert sweep(memory, clock, older_than=DAY).orphans == ()
        assert before.items() <= memory.files.items()
        ledger.examine(memory)

    def test_stay_when_checkpoints_are_expected_and_lost(
        self, memory: MemoryFileSystem, ledger: Ledger, pins: Pins, clock: ManualClock
    ) -> None:
        """Otherwise the next start would begin from nothing and say nothing."""
        run = Run(memory, ledger, pins, clock).start()
        run.checkpoint(state(1), 1)
        run.finish()
        for path in stored(memory):
            memory.remove(path)
        clock.advance(9 * DAY.total_seconds())
        (note,) = sweep(memory, clock, older_than=DAY).notes
        assert "the job did not discard its checkpoints" in note
        assert CheckpointCatalog(memory, JOB).choice() is not None

    def test_broken_off_anywhere_it_is_finished(self, pins: Pins) -> None:
        over, ledger = MemoryFileSystem(), Ledger()
        self.given_up(over, ledger, pins, ManualClock())
        Epochs(over, JOB).record_settled(1, Settled({f"{1:032x}": []}))
        later = ManualClock()
        later.advance(2 * DAY.total_seconds())

        def examine(storage: FileSystem, ledger: Ledger) -> None:
            del ledger
            sweep(storage, later, older_than=DAY)
            assert isinstance(storage, MemoryFileSystem)
            assert storage.files == {}

        enumerate_crash_points(
            lambda: (over.backup(), ledger),
            lambda storage, _: sweep(storage, later, older_than=DAY),
            examine,
            expected=(OSError, CheckpointError),
        ).require_none()


def test_every_operation_may_crash_fail_or_lose_its_reply(pins: Pins) -> None:
    over, promised = MemoryFileSystem(), Ledger()
    run = left_behind(over, promised, pins)
    run.catalog.records.quarantine.add(Quarantined(f"{1:032x}/chk-1", "broken", 3, "r", "h", "now"))
    promised.given_up.add(f"{1:032x}/chk-1")

    def fresh() -> tuple[FileSystem, Ledger]:
        return over.backup(), copy.deepcopy(promised)

    def examine(storage: FileSystem, ledger: Ledger) -> None:
        assert isinstance(storage, MemoryFileSystem)
        ledger.examine(storage)
        sweep(storage, quarantined=True)
        assert stored(storage) == reachable(storage)
        ledger.examine(storage)
        Run(storage, ledger, pins).start().checkpoint(state(99), 99)
        ledger.examine(storage)

    result = enumerate_crash_points(
        fresh, lambda storage, _: sweep(storage, quarantined=True), examine, expected=(OSError, CheckpointError)
    )
    assert len(result.operations) > 60
    result.require_none()


EVENTS = st.tuples(
    st.sampled_from(["start", "branch", "back", "checkpoint", "checkpoint", "checkpoint", "subsume", "cleanup"]),
    st.none() | st.tuples(st.integers(0, 25), st.sampled_from([Crash(), CrashAfter(), Fail(), FailAfter()])),
)


@settings(max_examples=60, derandomize=True, database=None)
@given(st.lists(EVENTS, min_size=3, max_size=14), st.booleans())
def test_after_any_life_what_is_stored_is_what_is_reachable(
    events: list[tuple[str, tuple[int, Crash] | None]], given_up: bool
) -> None:
    with somebody() as (memory, ledger, pins):
        disk = FaultInjectingFileSystem(memory)
        run = Run(disk, ledger, pins).start()
        for step, (what, fault) in enumerate(events):
            disk.plan = (lambda _: None) if fault is None else at_operation(len(disk.log) + fault[0], fault[1])
            try:
                if what == "checkpoint":
                    run.checkpoint(state(step), step)
                elif what == "subsume":
                    run.subsume(2)
                elif what == "cleanup" and given_up:
                    run.cleanup()
                    raise ProcessDied(what)
                elif what == "branch":
                    run = Run(disk, ledger, pins).start("latest", branch=True)
                elif what == "back":
                    found = CheckpointCatalog(memory, JOB).numbers(run.store.job_id)
                    run = Run(disk, ledger, pins).start(f"{run.store.job_id}/chk-{found[0]}" if found else "latest")
                else:
                    raise ProcessDied(what)
            except ProcessDied:
                disk = FaultInjectingFileSystem(memory)
                run = Run(disk, ledger, pins).start()
            except (CheckpointError, OSError):
                disk.plan = lambda _: None
                run = Run(disk, ledger, pins).start()
        disk.plan = lambda _: None
        run.finish()
        planned, before = sweep(memory, dry_run=True), stored(memory)
        swept = sweep(memory)
        assert stored(memory) == reachable(memory)
        assert {orphan.path for orphan in swept.orphans} == before - stored(memory)
        assert set(planned.orphans) == set(swept.orphans)
        ledger.examine(memory)


@contextmanager
def somebody() -> Iterator[tuple[MemoryFileSystem, Ledger, Pins]]:
    with tempfile.TemporaryDirectory() as directory:
        yield MemoryFileSystem(), Ledger(), Pins(Path(directory))


SEEDS = 100


def sweep_beside_others(seed: int, pins: Pins) -> None:
    """A writer of a lineage that was left, a job that ends and is swept, and a start in the middle of it."""
    storage, ledger = MemoryFileSystem(), Ledger()
    disk = FaultInjectingFileSystem(storage)
    run = Run(disk, ledger, pins).start()
    run.checkpoint(state(1), 1)
    die(run, disk, 50)
    wire = FaultInjectingFileSystem(storage)
    zombie = Run(wire, ledger, pins).start()

    def ending(view: FileSystem) -> None:
        last = Run(view, ledger, pins)
        with suppress(CheckpointError):  # it is fenced; or what it begins with was subsumed by the newer one
            last.start(f"{1:032x}/chk-1", branch=True)
            last.checkpoint(contents(0, 0), 2)
            last.finish()
        with suppress(CheckpointError):
            sweep(view)

    def writing(view: FileSystem) -> None:
        assert isinstance(view, FaultInjectingFileSystem)
        wire.plan = view.plan
        with suppress(CheckpointError):
            for step in range(1, 3):
                zombie.checkpoint(contents(1, step), step)

    def starting(view: FileSystem) -> None:
        newer = Run(view, ledger, pins)
        with suppress(CheckpointError):
            newer.start()
            for step in range(3):
                newer.checkpoint(contents(2, step), 10 + step)
                newer.subsume(1)
                ledger.examine(storage)

    interleave(storage, [ending, writing, starting], seed)
    ledger.examine(storage)
    last = Run(storage, ledger, pins).start()
    last.checkpoint(state(99), 99)
    last.finish()
    sweep(storage)
    ledger.examine(storage)
    assert stored(storage) == reachable(storage)


class Unfenced(Epochs):
    """Epochs that let the sweep pass."""

    def check(self, epoch: int) -> None:
        """Fence nobody."""


def broken(pins: Pins, seeds: range) -> list[str]:
    found = []
    for seed in seeds:
        try:
            sweep_beside_others(seed, pins)
        except AssertionError as error:
            found.append(f"seed {seed}: {error}")
    return found


def test_beside_a_start_and_a_zombie_no_promise_is_broken(pins: Pins) -> None:
    assert broken(pins, range(SEEDS)) == []


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
def test_nor_under_many_more_seeds(pins: Pins) -> None:
    assert broken(pins, range(SEEDS, SEEDS + 3000)) == []


def test_what_stays_can_be_restored_bit_for_bit(memory: MemoryFileSystem, ledger: Ledger, pins: Pins) -> None:
    left_behind(memory, ledger, pins)
    sweep(memory)
    for job_id, numbers in ((f"{1:032x}", (1, 2)), (f"{2:032x}", (3, 4))):
        for number in numbers:
            metadata = CheckpointCatalog(memory, JOB).load(job_id, number)
            assert content(memory, metadata) in ledger.meant[metadata.reference]
