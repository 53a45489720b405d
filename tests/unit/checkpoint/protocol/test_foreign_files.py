"""What somebody else has put into a job's directories stays where it is, is named, and is in nobody's way."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

import dagster_ckpt
from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.catalog.newest import find_newest
from dagster_ckpt.checkpoint.cleanup.dead_runs import finish_deletions
from dagster_ckpt.checkpoint.cleanup.job_sweep import Swept, sweep_job
from dagster_ckpt.checkpoint.control.deletion_log import DeletionLog
from dagster_ckpt.checkpoint.control.epochs import Settled
from dagster_ckpt.checkpoint.control.failures import Failure, FailureLog
from dagster_ckpt.checkpoint.control.heartbeat import Heartbeat
from dagster_ckpt.checkpoint.control.plan_archive import PlanArchive, PlanArchiveWriter
from dagster_ckpt.checkpoint.format import layout
from dagster_ckpt.checkpoint.format.file_names import is_checkpoint_file, is_record, is_records_directory, written_by
from dagster_ckpt.checkpoint.processes import ProcessIdentity
from dagster_ckpt.checkpoint.standbys import Standbys
from dagster_ckpt.cli import main
from dagster_ckpt.errors import CheckpointError
from dagster_ckpt.filesystem import FileSystem, PosixFileSystem
from dagster_ckpt.testing import Crash, FaultInjectingFileSystem, ProcessDied, enumerate_crash_points
from tests.helpers.checkpoint.driver import JOB, Ledger, ManualClock, Pins, Run, directories, once, pin, shared, state
from tests.helpers.checkpoint.memory import MemoryFileSystem
from tests.unit.checkpoint.protocol.story import CONTROL, told

LINEAGE = f"{JOB}/{1:032x}"
NOTES = "notes.txt"
DAY = timedelta(days=1)


@pytest.fixture(params=["memory", "disk"])
def storage(request: pytest.FixtureRequest) -> FileSystem:
    storage: FileSystem = request.getfixturevalue(request.param)
    return storage


def files(storage: FileSystem, directory: str = "") -> set[str]:
    """Every file below a directory."""
    found = set()
    for entry in storage.list(directory):
        path = f"{directory}/{entry.name}".lstrip("/")
        found |= files(storage, path) if entry.is_directory else {path}
    return found


def sign(run_id: str, clock: ManualClock) -> Heartbeat:
    """The sign of a standby on another host."""
    return Heartbeat(1, run_id, (ProcessIdentity("elsewhere", 1, 1.0),), 4, clock.time())


def swept(storage: FileSystem, clock: ManualClock | None = None, older_than: timedelta | None = None) -> Swept:
    """A sweep, of which the dry run told the truth."""
    clock = clock or ManualClock()
    catalog = CheckpointCatalog(storage, JOB)
    planned = sweep_job(catalog, clock, older_than=older_than, dry_run=True)
    before = files(storage)
    done = sweep_job(catalog, clock, older_than=older_than)
    # What was complete is put on record on the way.
    gone = {orphan.path for orphan in done.orphans if not orphan.path.endswith(".settled")}
    assert {orphan.path for orphan in planned.orphans} == gone == before - files(storage)
    assert planned.notes == done.notes
    return done


def die(storage: FileSystem, ledger: Ledger, pins: Pins) -> Run:
    """A run that dies just before its second checkpoint is complete."""
    disturbed = FaultInjectingFileSystem(storage)
    run = Run(disturbed, ledger, pins).start()
    run.checkpoint(state(1), 1)
    disturbed.plan = once("create", "_metadata", Crash())
    with pytest.raises(ProcessDied):
        run.checkpoint(state(50), 2)
    return run


@pytest.mark.parametrize("name", ["_metadata", "data", "000001-0123456789ab-x.sst"])
def test_a_directory_in_an_unfinished_checkpoint_is_left_by_the_sweep_of_a_start(
    storage: FileSystem, ledger: Ledger, pins: Pins, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    died = die(storage, ledger, pins)
    mine = f"{LINEAGE}/chk-2/{name}/{NOTES}"
    storage.create(mine, b"of mine")
    storage.create(f"{LINEAGE}/chk-2/{NOTES}", b"of mine")
    before = shared(storage)
    run = Run(storage, ledger, pins).start()
    assert shared(storage) < before, "what the dead attempt left goes all the same"
    assert storage.read(mine) == storage.read(f"{LINEAGE}/chk-2/{NOTES}") == b"of mine"
    (said,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert f"{storage.url}/{LINEAGE}/chk-2" in said
    assert name in said
    assert NOTES in said
    run.checkpoint(state(2), 2)
    ledger.examine(storage)
    assert died.claim.epoch == 1


@pytest.mark.parametrize("name", ["_metadata", "data"])
def test_a_directory_in_a_checkpoint_that_is_dropped_stays_and_the_deletion_is_over(
    storage: FileSystem, ledger: Ledger, pins: Pins, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    run = Run(storage, ledger, pins).start()
    run.checkpoint(state(1), 1)
    if name != "_metadata" or isinstance(storage, MemoryFileSystem):  # a disk has one thing of a name
        storage.create(f"{LINEAGE}/chk-1/{name}/{NOTES}", b"of mine")
    storage.create(f"{LINEAGE}/chk-1/{NOTES}", b"of mine")
    for step in (2, 3):
        run.checkpoint(state(step), step)
        run.subsume(1)
    assert DeletionLog(storage, JOB).pending() == []
    assert directories(storage) == {"chk-1", "chk-3"}
    assert all(path.endswith(NOTES) for path in files(storage, f"{LINEAGE}/chk-1"))
    assert f"{storage.url}/{LINEAGE}/chk-1: " in caplog.text
    ledger.examine(storage)
    assert Run(storage, ledger, pins).start().checkpoint(state(4)).checkpoint_id == 4


def test_a_directory_where_a_manifest_should_be_is_no_checkpoint(
    storage: FileSystem, ledger: Ledger, pins: Pins
) -> None:
    run = Run(storage, ledger, pins).start()
    run.checkpoint(state(1), 1)
    storage.create(f"{LINEAGE}/chk-7/_metadata/{NOTES}", b"of mine")
    ledger.examine(storage)
    again = Run(storage, ledger, pins).start()
    assert again.store.retained[-1].checkpoint_id == 1
    assert again.checkpoint(state(2)).checkpoint_id == 8, "its number is not used"
    again.finish()
    assert any(f"{LINEAGE}/chk-7: _metadata/" in note for note in swept(storage).notes)
    assert storage.read(f"{LINEAGE}/chk-7/_metadata/{NOTES}") == b"of mine"


def test_a_file_named_like_a_checkpoint_is_none(storage: FileSystem, ledger: Ledger, pins: Pins) -> None:
    run = Run(storage, ledger, pins).start()
    run.checkpoint(state(1), 1)
    storage.create(f"{LINEAGE}/chk-5", b"of mine")
    again = Run(storage, ledger, pins).start()
    assert again.checkpoint(state(2)).checkpoint_id == 6
    again.finish()
    assert swept(storage).orphans == ()
    assert storage.read(f"{LINEAGE}/chk-5") == b"of mine"
    assert again.catalog.next_id(f"{1:032x}") == 7


class TestWhatIsGivenUp:
    def given_up(self, storage: FileSystem, ledger: Ledger, pins: Pins) -> Run:
        run = Run(storage, ledger, pins).start()
        for step in (1, 2):
            run.checkpoint(state(step), step)
        for name in (NOTES, "000001-notes.txt", "20240101-report.csv", "000001-0123456789ab-x/y"):
            storage.create(f"{LINEAGE}/shared/{name}", b"of mine")
        return run

    def mine(self, storage: FileSystem) -> set[str]:
        return {path for path in files(storage) if storage.read(path) == b"of mine"}

    def test_by_its_own_end(
        self, storage: FileSystem, ledger: Ledger, pins: Pins, caplog: pytest.LogCaptureFixture
    ) -> None:
        run = self.given_up(storage, ledger, pins)
        before = self.mine(storage)
        run.cleanup()
        assert self.mine(storage) == before == files(storage, LINEAGE)
        assert f"{storage.url}/{LINEAGE}/shared: " in caplog.text
        assert NOTES in caplog.text

    def test_by_the_next_start(
        self, storage: FileSystem, ledger: Ledger, pins: Pins, caplog: pytest.LogCaptureFixture
    ) -> None:
        run = self.given_up(storage, ledger, pins)
        before = self.mine(storage)
        storage.create(f"{LINEAGE}/shared/000001-0123456789ab-left", b"by a dead attempt")
        disturbed = FaultInjectingFileSystem(
            storage, lambda operation: Crash() if "deletions/" in operation.path else None
        )
        run.store._records.deletions = DeletionLog(disturbed, JOB)
        with pytest.raises(ProcessDied):
            run.cleanup()
        assert directories(storage) == {"chk-1", "chk-2"}
        finish_deletions(Run(storage, ledger, pins).catalog, 2)
        assert self.mine(storage) == before == files(storage, LINEAGE)
        assert f"{storage.url}/{LINEAGE}/shared: " in caplog.text

    def test_by_a_sweep(self, storage: FileSystem, ledger: Ledger, pins: Pins) -> None:
        run = self.given_up(storage, ledger, pins)
        before = self.mine(storage)
        storage.create(f"{LINEAGE}/shared/000001-0123456789ab-left", b"by a dead attempt")
        run.finish()
        done = swept(storage)
        assert [orphan.path.rpartition("/")[2] for orphan in done.orphans] == ["000001-0123456789ab-left"]
        assert self.mine(storage) == before
        (note,) = done.notes
        assert f"{storage.url}/{LINEAGE}/shared: 000001-0123456789ab-x/, 000001-notes.txt, 20240101-report.csv" in note

    def test_a_deletion_on_record_that_names_them(self, storage: FileSystem, ledger: Ledger, pins: Pins) -> None:
        """A release before this one wrote down whatever it found in `shared/`."""
        self.given_up(storage, ledger, pins)
        before = self.mine(storage)
        DeletionLog(storage, JOB).ask(1, f"{1:032x}", [1], [NOTES, "000001-notes.txt"], "of the test")
        finish_deletions(CheckpointCatalog(storage, JOB), 2)
        assert self.mine(storage) == before
        assert directories(storage) == {"chk-2"}


class TestRecords:
    def test_an_old_job_goes_and_what_is_not_its_own_stays(
        self, storage: FileSystem, ledger: Ledger, pins: Pins, clock: ManualClock
    ) -> None:
        run = Run(storage, ledger, pins, clock).start()
        run.checkpoint(state(1), 1)
        foreign = {
            f"{JOB}/control/{NOTES}",
            f"{JOB}/control/epochs/{NOTES}",
            f"{JOB}/control/epochs/e-1",
            f"{JOB}/control/deletions/d-{NOTES}",
            f"{JOB}/control/failures/s-0000000001/{NOTES}",
            f"{JOB}/control/failures/s-of-mine/{NOTES}",
            f"{JOB}/control/mine/heartbeat",
            f"{JOB}/control/standbys/{NOTES}",
            f"{JOB}/control/wal/{1:032x}/e-0000000001/{NOTES}",
            f"{LINEAGE}/shared/{NOTES}",
            f"{LINEAGE}/{NOTES}",
            f"{JOB}/{NOTES}",
        }
        for path in foreign:
            storage.create(path, b"of mine")
        standbys = Standbys(storage, JOB)
        for name in ("of-a-killed-one", "ended"):
            standbys.write(sign(name, clock))
        standbys.remove("ended")
        run.cleanup()
        clock.advance(2 * DAY.total_seconds())
        done = swept(storage, clock, older_than=DAY)
        assert done.orphans[-1].path.endswith("e-0000000001.end"), "what fences goes last"
        assert files(storage) == foreign
        said = "\n".join(done.notes)
        assert f"{storage.url}/{JOB}/control: mine/, {NOTES}" in said
        assert f"{storage.url}/{JOB}/control/epochs: e-1, {NOTES}" in said
        again = Run(storage, ledger, pins, clock).start()
        assert again.claim.epoch == 1
        again.checkpoint(state(2), 2)

    def test_the_directory_of_standbys_that_have_ended_goes_with_the_job(
        self, disk: PosixFileSystem, ledger: Ledger, pins: Pins, clock: ManualClock
    ) -> None:
        run = Run(disk, ledger, pins, clock).start()
        standbys = Standbys(disk, JOB)
        standbys.write(sign("ended", clock))
        standbys.remove("ended")
        run.cleanup()
        clock.advance(2 * DAY.total_seconds())
        assert swept(disk, clock, older_than=DAY).notes == ()
        assert disk.list(f"{JOB}/control") == []
        assert not disk.local(JOB).exists()

    def test_a_directory_of_somebody_elses_stays_though_it_is_empty(
        self, disk: PosixFileSystem, ledger: Ledger, pins: Pins, clock: ManualClock
    ) -> None:
        run = Run(disk, ledger, pins, clock).start()
        mine = disk.local(f"{JOB}/control/mine")
        mine.mkdir()
        run.cleanup()
        clock.advance(2 * DAY.total_seconds())
        swept(disk, clock, older_than=DAY)
        assert mine.is_dir()
        assert files(disk) == set()

    def test_failures_are_read_past_it(self, storage: FileSystem) -> None:
        failures = FailureLog(storage, JOB)
        for series in range(1, 32):
            failures.record(series, Failure("run-1", series, 1.0, None, "of the test"))
            storage.create(f"{JOB}/control/failures/s-{series:010}/{NOTES}", b"of mine")
        storage.create(f"{JOB}/control/failures/s-of-mine/{NOTES}", b"of mine")
        assert [failure.sequence for failure in failures.of(3)] == [3]
        failures.forget_before(32)
        assert failures.of(1) == []
        assert len([path for path in files(storage) if path.endswith(NOTES)]) == 32

    def test_plans_are_forgotten_around_it(self, storage: FileSystem) -> None:
        archive = PlanArchive(storage, JOB, f"{1:032x}")
        for epoch in (1, 2):
            PlanArchiveWriter(storage, JOB, f"{1:032x}", epoch, lambda: None).begin(-1, None, [])
        mine = f"{archive.of_epoch(1)}/{NOTES}"
        storage.create(mine, b"of mine")
        archive.forget(before=2)
        assert archive.epochs() == [1, 2]
        assert not archive.has_begun(1)
        assert storage.read(mine) == b"of mine"

    def test_every_record_that_a_job_writes_is_known_as_one(
        self, memory: MemoryFileSystem, ledger: Ledger, pins: Pins
    ) -> None:
        """Of a life with everything that ever is on record, as it was after each operation."""
        seen: set[str] = set()

        def look(operation: object) -> None:
            seen.update(memory.files)

        disturbed = FaultInjectingFileSystem(memory, look)
        run = Run(disturbed, ledger, pins).start()
        run.checkpoint(state(1), 1)
        pin(disturbed, ledger, "chk-1")
        run.checkpoint(state(2), 2)
        run.subsume(1)
        run.catalog.records.epochs.record_settled(1, Settled({}))
        run.cleanup()
        look(None)
        control = f"{JOB}/control/"
        records = {path.removeprefix(control) for path in seen if path.startswith(control)}
        assert {path.partition("/")[0] for path in records} >= {"epochs", "issued", "deletions", "pins"}
        assert all(map(is_record, records)), [path for path in records if not is_record(path)]
        for path in seen:
            directory, _, name = path.removeprefix(f"{LINEAGE}/").rpartition("/")
            assert directory != "shared" or written_by(name) == 1
            assert not directory.startswith("chk-") or is_checkpoint_file(name)


def test_a_record_of_every_kind_is_known_as_one(pins: Pins) -> None:
    records = [path.removeprefix(CONTROL) for path in told(pins).records()]
    assert [path for path in records if not is_record(path)] == []


def test_every_place_of_records_that_the_code_names_is_known_and_is_in_the_layout() -> None:
    package = Path(dagster_ckpt.__file__).parent
    found = {
        name
        for source in package.rglob("*.py")
        for name in re.findall(r"\{CONTROL_DIR\}/(\w+)", source.read_text(encoding="utf-8"))
    }
    assert found >= {"epochs", "standbys", "starts", "owner"}, "the code says it otherwise: a test of nothing"
    assert [name for name in sorted(found) if not is_record(name) and not is_records_directory(name)] == []
    said = re.findall(r"\w+", (layout.__doc__ or "").partition("control/  ")[2].partition("{savepoint_path}")[0])
    assert found - set(said) == set()
    assert [name for name in said if not is_record(name) and not is_records_directory(name)] == []


@pytest.mark.parametrize(
    ("name", "epoch"),
    [
        ("000012-0123456789ab-x.sst", 12),
        ("1234567-0123456789ab-pack", 1234567),
        (f".000012-0123456789ab-pack.{1:032x}.tmp", 12),
        ("000012-notes.txt", None),
        ("20240101-0123456789ab", None),
        ("000012-0123456789AB-x", None),
        ("12-0123456789ab-x", None),
        ("000012-0123456789ab-", None),
        (f".notes.{1:032x}.tmp", None),
    ],
)
def test_whose_a_shared_file_is(name: str, epoch: int | None) -> None:
    assert written_by(name) == epoch


def test_a_sweep_that_is_broken_off_anywhere_leaves_them_too(pins: Pins) -> None:
    over, promised = MemoryFileSystem(), Ledger()
    die(over, promised, pins)
    Run(over, promised, pins).start().finish()
    die_again = die(over, promised, pins)
    foreign = {f"{LINEAGE}/chk-2/{NOTES}", f"{LINEAGE}/chk-3/_metadata/{NOTES}", f"{LINEAGE}/shared/{NOTES}"}
    for path in foreign:
        over.create(path, b"of mine")
    last = Run(over, promised, pins)
    last.claim_epoch()
    last.finish()
    assert die_again.claim.epoch < last.claim.epoch

    def examine(storage: FileSystem, ledger: Ledger) -> None:
        assert foreign <= files(storage)
        ledger.examine(storage)

    enumerate_crash_points(
        lambda: (over.backup(), promised),
        lambda storage, _: sweep_job(CheckpointCatalog(storage, JOB), ManualClock()),
        examine,
        expected=(OSError, CheckpointError),
    ).require_none()


class TestTheBase:
    """Directories of others beside those of jobs."""

    @pytest.fixture
    def base(self, tmp_path: Path, ledger: Ledger, pins: Pins) -> PosixFileSystem:
        storage = PosixFileSystem(tmp_path / "base")
        run = Run(storage, ledger, pins).start()
        run.checkpoint(state(1), 1)
        run.finish()
        storage.create("lost+found/x", b"of mine")
        storage.create("with space/control/x", b"of mine")
        storage.create(".hidden/control/epochs/e-0000000001", b"of mine")
        storage.create("ünï/control/x", b"of mine")
        storage.create("control/control/x", b"of mine")
        storage.create("table/control", b"of mine")
        storage.create("report.csv", b"of mine")
        (tmp_path / "base/empty").mkdir()
        return storage

    @pytest.fixture
    def command(self, base: PosixFileSystem, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
        monkeypatch.setenv("DAGSTER_CKPT_PATH", base.url)

        def run(*arguments: str) -> str:
            result = CliRunner().invoke(main, arguments)
            assert result.exit_code == 0, result.output
            return result.output

        return run

    def test_are_no_jobs(self, command: Callable[..., str]) -> None:
        assert {row["job"] for row in json.loads(command("list", "--json"))} == {JOB}

    def test_are_not_swept(self, command: Callable[..., str], base: PosixFileSystem) -> None:
        before = files(base)
        told = command("sweep", "--older-than", "1 d", "--json")
        assert JOB in told
        assert {path for path in before - files(base) if not path.startswith(f"{JOB}/")} == set()

    def test_are_in_nobodys_way(self, base: PosixFileSystem, ledger: Ledger, pins: Pins) -> None:
        newest = find_newest(CheckpointCatalog(base, JOB)).metadata
        assert newest is not None
        run = Run(base, ledger, pins).start()
        run.checkpoint(state(2), 2)
        ledger.examine(base)
