from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from dagster_ckpt.checkpoint.control.failures import DIED, Failure, FailureLog, as_happened, dated, restart_after
from dagster_ckpt.config.restart import ExponentialDelayRestart, FailureRateRestart, FixedDelayRestart, RestartStrategy
from tests.helpers.checkpoint.driver import JOB
from tests.helpers.checkpoint.memory import MemoryFileSystem

FIRST = Failure("run-a", 1, 100.0, 7, "executor lost")


def test_a_failure_seen_by_many_is_recorded_once(memory: MemoryFileSystem) -> None:
    log = FailureLog(memory, JOB)
    log.record(1, FIRST)
    log.record(1, FIRST)
    log.record(1, replace(FIRST, at=103.5, reason="as the sensor saw it"))
    assert log.of(1) == [FIRST]


def test_failures_are_told_oldest_first_and_by_series(memory: MemoryFileSystem) -> None:
    log = FailureLog(memory, JOB)
    died = Failure("run-a", DIED, 300.0, None, "the process is gone")
    second = Failure("run-a", 2, 200.0, 8, "again", recoverable=False)
    other = Failure("run-b", 1, 50.0, 1, "another series")
    for series, failure in ((1, died), (1, second), (1, FIRST), (4, other)):
        log.record(series, failure)
    assert log.of(1) == [FIRST, second, died]
    assert log.of(4) == [other]
    assert log.of(9) == []


def test_each_record_is_read_once(memory: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look of the sensor asks several times, and an outage of a weekend leaves thousands of records."""
    log = FailureLog(memory, JOB)
    failures = [replace(FIRST, sequence=number, at=float(number)) for number in range(1, 31)]
    for failure in failures:
        log.record(1, failure)
    asked: list[str] = []
    read = memory.read

    def read_and_count(path: str) -> bytes:
        asked.append(path)
        return read(path)

    monkeypatch.setattr(memory, "read", read_and_count)
    for _ in range(3):
        assert log.of(1) == failures
    assert len(asked) == 30
    log.record(1, another := replace(FIRST, sequence=31, at=31.0))
    assert log.of(1) == [*failures, another]
    assert len(asked) == 31


def test_what_a_killed_writer_left_is_ignored(memory: MemoryFileSystem) -> None:
    log = FailureLog(memory, JOB)
    log.record(1, FIRST)
    memory.create(f"{JOB}/control/failures/s-0000000001/.run-a-000002.abc.tmp", b"{half")
    assert log.of(1) == [FIRST]


def test_only_the_last_series_are_kept(memory: MemoryFileSystem) -> None:
    log = FailureLog(memory, JOB)
    for series in range(1, 41):
        log.record(series, FIRST)
    log.forget_before(40)
    assert [series for series in range(1, 41) if log.of(series)] == list(range(20, 41))


def test_a_damaged_record_counts_by_its_name(memory: MemoryFileSystem) -> None:
    """Left out, the death would be found unrecorded each time, and nothing would ever be restarted."""
    log = FailureLog(memory, JOB)
    log.record(1, Failure("run-a", DIED, 7.0, None, "it died"))
    memory.replace(f"{JOB}/control/failures/s-0000000001/run-a-{DIED}", bytes(100))
    (failure,) = log.of(1)
    assert (failure.run_id, failure.sequence) == ("run-a", DIED)
    assert restart_after([failure], FixedDelayRestart(1), JOB).allowed


def test_the_failure_that_happened_last_decides_whatever_the_clocks_say() -> None:
    of_a_clock_ahead = Failure("run-a", DIED, 4600.0, None, "run a counts as dead")
    last = Failure("run-b", 1, 1000.0, None, "rows would be lost", recoverable=False, kind="RestoreWithLoss")
    decision = restart_after([of_a_clock_ahead, last], FixedDelayRestart(9), JOB)
    assert (decision.allowed, decision.reason) == (False, "a restart cannot help")
    assert restart_after([last, of_a_clock_ahead], FixedDelayRestart(9), JOB).at == 4601, (
        "the delay begins with the later"
    )


#: Of a host that has booted with a clock two days ahead.
AHEAD = Failure("run-ahead", 1, 1e6 + 2 * 86_400, 7, "sorted in vain", kind="QueryFailed")
_RATE = FailureRateRestart(3, timedelta(minutes=10), timedelta(seconds=1))
_GROWING = ExponentialDelayRestart(attempts_before_reset_backoff=5)


@pytest.mark.parametrize("ahead", [(), (AHEAD,)], ids=["right", "ahead"])
@pytest.mark.parametrize(("strategy", "restarts"), [(_RATE, 3), (_GROWING, 5)], ids=["rate", "exponential"])
def test_a_clock_that_was_ahead_once_switches_no_limit_off(
    strategy: RestartStrategy, restarts: int, ahead: tuple[Failure, ...]
) -> None:
    """Each restart is a run of its own, or a start within one run."""
    for within_run in (False, True):
        failures = list(ahead)
        for number in range(100):
            at = 1e6 + 100 * number
            last = replace(AHEAD, run_id="run" if within_run else f"run-{number}", sequence=number + 1, at=at)
            failures.append(last)
            told = dated(failures, at) if within_run else as_happened(reversed(failures), at, last.run_id)
            if not restart_after(told, strategy, JOB).allowed:
                break
        assert number in {restarts, restarts - len(ahead)}


def test_failures_are_told_as_they_happened() -> None:
    """Whatever the clocks of their hosts said, and whoever set one right while the run went on."""
    before = [replace(FIRST, run_id=f"run-{number}", at=at) for number, at in enumerate((80.0, 90.0))]
    own = [
        replace(FIRST, sequence=1, at=5e6),
        replace(FIRST, sequence=2, at=85.0),
        replace(FIRST, sequence=DIED, at=99.0),
    ]
    after = [replace(FIRST, run_id="run-z", at=98.0)]
    ahead = replace(FIRST, run_id="run-y", at=4e6)
    told = as_happened([*own, ahead, *after, *before], 100.0, FIRST.run_id, ["run-z"])
    assert told == [replace(ahead, at=80.0), replace(own[0], at=80.0), *before, *own[1:], *after]


def test_starts_that_failed_one_after_the_other_are_told_so() -> None:
    """Else one that was launched on a host whose clock is a year ahead would be the last for a year."""
    ahead = replace(FIRST, run_id="run-z", at=4e7)
    after = [replace(FIRST, run_id=f"run-{number}", at=150.0 + number) for number in range(3)]
    launched = [ahead.run_id, *(failure.run_id for failure in after)]
    told = as_happened([FIRST, *after, ahead], 200.0, FIRST.run_id, launched)
    assert told == [replace(ahead, at=FIRST.at), FIRST, *after]


def test_the_time_of_the_last_failure_is_believed() -> None:
    """Where a host is ahead all the time, its failures are as far apart as their times say."""
    failures = [replace(FIRST, sequence=number, at=5000.0 + number) for number in range(3)]
    assert as_happened(failures, 100.0, FIRST.run_id) == failures
    assert dated(failures, 100.0) == failures
    assert dated([], 100.0) == []
