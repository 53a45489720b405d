"""How long a new version may work without a checkpoint, and for how long it may fail."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.streaming.readwriter import DataStreamWriter

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.catalog.newest import find_newest
from dagster_ckpt.checkpoint.control.epochs import Claim, End
from dagster_ckpt.checkpoint.control.failures import Failure
from dagster_ckpt.checkpoint.format.code_versions import CodeVersion, Upgrade
from dagster_ckpt.clock import iso
from dagster_ckpt.config.checkpoint_config import CheckpointConfig
from dagster_ckpt.config.recovery import RestoreRequest, UpgradeMode
from dagster_ckpt.config.restart import FixedDelayRestart
from dagster_ckpt.errors import CorruptRecord, InvalidConfiguration, RestoreRefused, UpgradeFailed
from dagster_ckpt.spark.job import StreamingJob, Versions
from dagster_ckpt.spark.upgrading import Begun, Upgrading, _Late, starting_from
from tests.helpers.checkpoint.driver import JOB, Ledger, ManualClock, Pins, Run, state
from tests.helpers.checkpoint.memory import MemoryFileSystem

_DAY = 86_400.0
_PENDING = Upgrade("0", None, 1, iso(0.0))


def _function(version: str) -> Callable[..., DataStreamWriter]:
    def never(*_: object) -> DataStreamWriter:
        raise AssertionError(f"no test runs version {version}")

    return never


_FUNCTIONS = {version: _function(version) for version in "0123"}

_PREVIOUS = {"0": _FUNCTIONS["0"]}
_GREEN = {version: _FUNCTIONS[version] for version in "23"}


@pytest.mark.parametrize(
    ("delay", "failed", "now", "is_refused"),
    [
        (1, [0, 300], 301, False),
        (1, [0, 300, 605], 606, True),
        (1, [0], 601, True),
        (1, [0, 300, _DAY], _DAY + 1, False),  # the version had no input for a day
        (1, [0], _DAY, False),
        (900, [0, 905], 906, True),  # only its restart waited for longer
        (1, [2 * _DAY, 5, 300, 605], 606, True),  # its host had booted with a clock that was ahead
    ],
)
def test_a_version_that_fails_again_and_again_is_refused(
    delay: float, failed: Sequence[float], now: float, is_refused: bool, memory: MemoryFileSystem, tmp_path: Path
) -> None:
    """In ten minutes without a checkpoint."""
    ledger, pins, clock = Ledger(), Pins(tmp_path), ManualClock()
    before = Run(memory, ledger, pins).start().checkpoint(state(1))
    began = clock.time()
    run = Run(memory, ledger, pins)
    run.claim_epoch()
    upgrade = Upgrade("1", before.reference, run.claim.epoch, iso(began))
    run.record(replace(run.choose(), code=CodeVersion("2", upgrade)))
    catalog = CheckpointCatalog(memory, JOB)
    for number, at in enumerate(failed):
        failure = Failure(run.claim.run_id, number + 1, began + at, None, "of the test")
        catalog.records.failures.record(run.claim.series, failure)
    clock.advance(now)
    upgrading = Upgrading(_job(memory, delay, tmp_path), catalog, clock)
    again = replace(run.claim, epoch=run.claim.epoch + 1)
    if is_refused:
        with pytest.raises(UpgradeFailed, match=f"has failed {len(failed)} times in more than 10 min"):
            upgrading.begin(RestoreRequest(), again)
    else:
        assert upgrading.begin(RestoreRequest(), again).code == CodeVersion("2", upgrade)


@pytest.mark.parametrize(
    ("chosen", "taken_back", "versions", "runs"),
    [
        (CodeVersion("1"), None, Versions("1"), "1"),
        (CodeVersion(), None, Versions("1", previous={"0": _FUNCTIONS["0"]}), "1"),
        # Cut over, as long as that version is the one in whose place it runs, and until it is taken back.
        (CodeVersion("2", in_place_of="1"), None, Versions("1", green={"2": _FUNCTIONS["2"]}), "2"),
        (CodeVersion("2", in_place_of="1"), "2", Versions("1", green={"2": _FUNCTIONS["2"]}), "1"),
        (CodeVersion("2", in_place_of="0"), None, Versions("1", green={"2": _FUNCTIONS["2"]}), "1"),
        # A cut-over that fails returns to what ran before it, also where that is not the deployed version either.
        (CodeVersion("3", replace(_PENDING, before="2"), in_place_of="1"), "3", Versions("1", green=_GREEN), "2"),
        (CodeVersion("3", _PENDING, in_place_of="1"), "3", Versions("1", previous=_PREVIOUS, green=_GREEN), "0"),
        # Taken back, by the end of its run and by the choice of the next one; without the code before, it is tried.
        (CodeVersion("1"), "1", Versions("1", previous={"0": _FUNCTIONS["0"]}), "1"),
        (CodeVersion("1", _PENDING), None, Versions("1", previous={"0": _FUNCTIONS["0"]}), "1"),
        (CodeVersion("1", _PENDING), "1", Versions("1", previous={"0": _FUNCTIONS["0"]}), "0"),
        (CodeVersion("1", _PENDING), "1", Versions("1"), "1"),
        (CodeVersion("0", taken_back="1"), None, Versions("1", previous={"0": _FUNCTIONS["0"]}), "0"),
        # Deployed, while the version before still runs.
        (CodeVersion("0"), None, Versions("1", previous={"0": _FUNCTIONS["0"]}, timeout=600.0), "1"),
        (CodeVersion("0"), None, Versions(), "1"),
    ],
)
def test_the_function_that_is_proven_is_that_of_the_next_start(
    chosen: CodeVersion,
    taken_back: str | None,
    versions: Versions,
    runs: str,
    memory: MemoryFileSystem,
    tmp_path: Path,
) -> None:
    catalog = CheckpointCatalog(memory, JOB)
    run = Run(memory, Ledger(), Pins(tmp_path))
    run.claim_epoch()
    run.record(replace(run.choose(), code=chosen))
    if taken_back is not None:
        back = chosen.upgrade.before if chosen.upgrade else "1"
        end = End("FAILED", "of the test", False, iso(0.0), taken_back, back)
        catalog.records.epochs.record_end(run.claim.epoch, end)
    job = replace(_job(memory, 1, tmp_path), query=_FUNCTIONS["1"], versions=versions)
    upgrading = Upgrading(job, catalog, ManualClock())
    assert upgrading.job_of_next_start().query is _FUNCTIONS[runs]
    begun = upgrading.begin(RestoreRequest(), replace(run.claim, epoch=run.claim.epoch + 1))
    assert begun.job.query is _FUNCTIONS[runs]


def test_a_cut_over_that_fails_returns_to_the_cut_over_before_it(cut_over: Run, tmp_path: Path) -> None:
    """And the next start records that this version still runs in the place of the deployed one."""
    versions = Versions("1", timeout=600.0, green=_GREEN)
    failing = Run(cut_over.filesystem, cut_over.ledger, cut_over.pins)
    failing.claim_epoch()
    upgrading = _upgrading(failing, versions, tmp_path)
    code = upgrading.begin(RestoreRequest(code_version="3"), failing.claim).code
    assert (code.version, code.in_place_of) == ("3", "1")
    choice = failing.choose()
    failing.record(replace(choice, code=starting_from(code, choice.restored)))
    error = upgrading.given_up(RuntimeError("boom"), retried=False)
    assert error is not None
    assert "returns to version 2" in error.message
    end = End("FAILED", "of the test", False, iso(0.0), *upgrading.back)
    failing.catalog.records.epochs.record_end(failing.claim.epoch, end)
    for named in (RestoreRequest(), RestoreRequest(choice.restored or "")):
        begun = _upgrading(failing, versions, tmp_path).begin(named, _next(failing))
        assert (begun.job.query, begun.code) == (_FUNCTIONS["2"], CodeVersion("2", in_place_of="1"))
    with pytest.raises(InvalidConfiguration, match="is to run version 2 of its code"):
        _upgrading(failing, Versions("1", timeout=600.0), tmp_path).begin(RestoreRequest(), _next(failing))


@pytest.fixture
def cut_over(memory: MemoryFileSystem, tmp_path: Path) -> Run:
    """A job that was cut over from version 1 to version 2, which has left a checkpoint."""
    run = Run(memory, Ledger(), Pins(tmp_path))
    run.claim_epoch()
    choice = replace(run.choose(), code=CodeVersion("2", in_place_of="1"))
    run.record(choice)
    run.open(choice)
    run.checkpoint(state(1), 1)
    return run


@pytest.mark.parametrize("restore_from", ["latest", "chk-1", "none"])
def test_no_launch_of_a_job_that_was_cut_over_runs_older_code(cut_over: Run, restore_from: str, tmp_path: Path) -> None:
    """Its code location has no version 2 any more, and no ``green`` at all."""
    upgrading = _upgrading(cut_over, Versions("1"), tmp_path)
    with pytest.raises(InvalidConfiguration, match="is to run version 2 of its code, and has 1 only"):
        upgrading.begin(RestoreRequest(restore_from), _next(cut_over))
    begun = upgrading.begin(RestoreRequest(restore_from, code_version="1"), _next(cut_over))
    assert begun.code == CodeVersion("1"), "whoever asks for it gets it"


@pytest.mark.parametrize("record", ["choice", "end"])
def test_a_checkpoint_can_be_named_where_records_are_damaged(
    cut_over: Run, record: str, memory: MemoryFileSystem, tmp_path: Path
) -> None:
    """It is what the error of a damaged record tells to do."""
    memory.files[f"{JOB}/control/epochs/e-0000000001.{record}"] = b"{"
    upgrading = _upgrading(cut_over, Versions("1"), tmp_path)
    with pytest.raises(CorruptRecord, match="restore_from"):
        upgrading.begin(RestoreRequest(), _next(cut_over))
    assert upgrading.begin(RestoreRequest("chk-1"), _next(cut_over)).code == CodeVersion("1")


class Unwatched:
    """A job without ``upgrade_timeout`` and without periodic checkpoints, whose version 2 has run for a month.

    Version 1 was stopped with a savepoint. A restart of version 2 has salvaged its batch 50000, and has failed later.
    """

    def __init__(self, memory: MemoryFileSystem, directory: Path, mode: UpgradeMode) -> None:
        self.directory, self.ledger, self.pins = directory, Ledger(), Pins(directory)
        first = Run(memory, self.ledger, self.pins)
        first.claim_epoch()
        choice = replace(first.choose(), code=CodeVersion("1"))
        first.record(choice)
        first.open(choice)
        self.old = first.checkpoint(state(1), 1)
        end = End("FINISHED", "it was stopped", discarded=False, ended_at="2026", savepoint="/savepoints/of-1")
        assert first.catalog.records.epochs.record_end(first.claim.epoch, end)

        second = Run(memory, self.ledger, self.pins)
        second.claim_epoch()
        self.begun = _upgrading(second, Versions("2", mode), directory).begin(RestoreRequest(), second.claim)
        second.record(replace(second.choose(), restored=self.old.reference, code=self.begun.code))

        self.last = Run(memory, self.ledger, self.pins)
        self.last.claim_epoch()
        begun = self.begin("2", mode)
        assert begun.request == RestoreRequest(), "a restart goes on from the newest checkpoint"
        choice = replace(self.last.choose(), code=begun.code)
        self.last.open(choice)
        pending = self.last.begin()
        self.salvaged = self.last.store.write(pending, self.pins.snapshot(50_000, state(2)), kind="salvage")
        self.last.record(replace(choice, restored=self.salvaged.reference, complete=None, last_id=pending.number))
        self.last.finish("FAILED")
        newest = find_newest(self.last.catalog).metadata
        assert newest is not None
        assert newest.batch == 50_000

    def begin(self, version: str, mode: UpgradeMode) -> Begun:
        """What the first launch of a version does."""
        return _upgrading(self.last, Versions(version, mode), self.directory).begin(RestoreRequest(), _next(self.last))


@pytest.mark.parametrize("mode", [UpgradeMode.SAVEPOINT, UpgradeMode.STATELESS])
@pytest.mark.parametrize("version", ["1", "3"])
def test_a_job_that_does_not_return_goes_on_from_what_its_version_has_left(
    version: str, mode: UpgradeMode, memory: MemoryFileSystem, tmp_path: Path
) -> None:
    """Though that version has completed no checkpoint: the job takes none."""
    job = Unwatched(memory, tmp_path, mode)
    assert job.begun.request.restore_from == ("/savepoints/of-1" if mode is UpgradeMode.SAVEPOINT else "none")
    assert job.begin(version, UpgradeMode.LAST_STATE).request == RestoreRequest()
    assert job.begin(version, UpgradeMode.STATELESS).request.restore_from == "none"
    with pytest.raises(RestoreRefused, match="version 2 was not stopped with a savepoint"):
        job.begin(version, UpgradeMode.SAVEPOINT)


def test_a_version_whose_time_is_lifted_is_not_taken_back(memory: MemoryFileSystem, tmp_path: Path) -> None:
    """Or it could run for a month without a checkpoint, and the next version would begin where it began."""
    ledger, pins = Ledger(), Pins(tmp_path)
    before = Run(memory, ledger, pins).start().checkpoint(state(1))
    run = Run(memory, ledger, pins)
    run.claim_epoch()
    upgrade = Upgrade("1", before.reference, run.claim.epoch, iso(run.clock.time()))
    run.record(replace(run.choose(), code=CodeVersion("2", upgrade)))
    begun = _upgrading(run, Versions("2"), tmp_path).begin(RestoreRequest(), _next(run))
    assert (begun.request, begun.code) == (RestoreRequest(), CodeVersion("2"))


def _next(run: Run) -> Claim:
    return replace(run.claim, epoch=run.claim.epoch + 1)


def _upgrading(run: Run, versions: Versions, directory: Path) -> Upgrading:
    filesystem = run.filesystem
    assert isinstance(filesystem, MemoryFileSystem)
    job = replace(_job(filesystem, 1, directory), versions=versions)
    return Upgrading(job, CheckpointCatalog(filesystem, JOB), run.clock)


def _job(memory: MemoryFileSystem, delay: float, directory: Path) -> StreamingJob:
    def never(*_: object) -> None:
        raise AssertionError("no test runs this query")

    return StreamingJob(
        name=JOB,
        query=never,  # type: ignore[arg-type]
        session=never,  # type: ignore[arg-type]
        config=CheckpointConfig(),
        restart=FixedDelayRestart(1000, timedelta(seconds=delay)),
        filesystem=memory,
        working_directory=directory,
        deployment="tests",
        inline_threshold=0,
        versions=Versions("2", timeout=600.0),
    )


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def test_a_version_without_work_is_not_late(clock: ManualClock) -> None:
    batches: list[int] = []
    late = _Late(threading.Event(), 10, clock, lambda: bool(batches))
    for _ in range(100):
        clock.advance(1)
        assert not late.is_set()
    batches.append(1)
    clock.advance(9)
    assert not late.is_set(), "the time without work does not count"
    clock.advance(1)
    assert late.is_set()
    assert late.is_late


def test_a_version_with_a_checkpoint_is_never_late(clock: ManualClock) -> None:
    cancel = threading.Event()
    late = _Late(cancel, 10, clock, lambda: True)
    clock.advance(9)
    late.lift()
    clock.advance(100)
    assert not late.is_set()
    cancel.set()
    assert late.is_set()
    assert not late.is_late


@pytest.mark.parametrize("completes", [True, False])
def test_a_version_that_completes_a_checkpoint_while_it_is_stopped_is_not_taken_back(
    completes: bool, cut_over: Run, tmp_path: Path
) -> None:
    clock = cut_over.clock
    upgrading = _upgrading(cut_over, Versions("2", timeout=600.0), tmp_path)

    def run(flag: threading.Event) -> None:
        while not flag.is_set():
            clock.advance(30)
        if completes:  # an upload that was under way
            upgrading.completed()

    live: Any = SimpleNamespace(location=lambda: SimpleNamespace(newest=lambda: 5))
    code = CodeVersion("2", Upgrade("1", "x/chk-1", 1, iso(clock.time())))
    if completes:
        upgrading.in_time(run, threading.Event(), code, live, 1)
    else:
        with pytest.raises(UpgradeFailed, match="has completed no checkpoint in 10 min of work"):
            upgrading.in_time(run, threading.Event(), code, live, 1)


def test_a_look_that_fails_ends_nothing(clock: ManualClock) -> None:
    def works() -> bool:
        raise OSError("away")

    late = _Late(threading.Event(), 10, clock, works)
    clock.advance(1)
    assert not late.is_set()
    clock.advance(9)
    assert late.is_set()


def test_a_wait_ends_with_the_cancellation(clock: ManualClock) -> None:
    cancel = threading.Event()
    late = _Late(cancel, 10, clock, lambda: True)
    assert not late.wait(0)
    cancel.set()
    assert late.wait(60)
