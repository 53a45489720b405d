"""Which failures in a row are of one batch with one error: a pure decision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_ckpt.checkpoint.control.failures import (
    DIED,
    Failure,
    Streak,
    beyond_restart,
    is_outage,
    so_far,
    symptom,
)
from dagster_ckpt.config.restart import check_poison_batch_attempts
from dagster_ckpt.errors import InvalidConfiguration, PoisonBatch

ONE = Failure("run", 1, 1.0, 7, "ValueError: row 12 is bad", kind="QueryFailed", plan="p")
#: Failures that can be part of a streak, each of another one, and failures that cannot.
SORTS = {
    "one": ONE,
    "another batch": replace(ONE, batch=8),
    "another error": replace(ONE, reason="KeyError: 'column'"),
    "another plan": replace(ONE, plan="q"),
    "died": replace(ONE, sequence=DIED, kind="", reason="run r died: its process 7 is gone"),
}
OTHERS = [
    replace(ONE, batch=None),
    replace(ONE, kind="StorageError"),
    replace(ONE, kind="ToleranceExceeded"),
    replace(ONE, kind="CheckpointFailure"),
    replace(ONE, kind=""),
    replace(ONE, recoverable=False),
    replace(ONE, reason="java.net.ConnectException: Connection refused"),
    replace(ONE, batch=None, sequence=DIED, kind=""),
]
_sorts = st.sampled_from([*SORTS, None])


def failures_of(sorts: Sequence[str | None], other: Failure) -> list[Failure]:
    every = [other if sort is None else SORTS[sort] for sort in sorts]
    return [replace(failure, run_id=f"run-{at}", at=float(at)) for at, failure in enumerate(every)]


@given(st.lists(_sorts, max_size=12), st.sampled_from(OTHERS))
def test_a_streak_is_what_the_series_ends_with(sorts: list[str | None], other: Failure) -> None:
    runs = [(sort, len(list(group))) for sort, group in groupby(sorts)]
    found = Streak.of(failures_of(sorts, other))
    if not runs or runs[-1][0] is None:
        assert found is None
        return
    sort, times = runs[-1]
    assert sort is not None
    assert found == Streak(SORTS[sort].batch or 0, times, SORTS[sort].reason)


@given(st.lists(_sorts, min_size=1, max_size=12), st.sampled_from(OTHERS), st.integers(2, 6))
def test_a_loop_ends_with_the_first_full_streak_and_never_before(
    sorts: list[str | None], other: Failure, attempts: int
) -> None:
    """Failures come one by one, as the run and the sensor see them."""
    failures = failures_of(sorts, other)
    for count in range(1, len(failures) + 1):
        found = Streak.of(failures[:count])
        last = sorts[max(count - attempts, 0) : count]
        full = len(last) == attempts and len(set(last)) == 1 and last[0] is not None
        assert (found is not None and found.ends_loop(attempts)) == full
        assert found is None or not found.ends_loop(None)
        if full:
            return


@given(st.lists(st.sampled_from(["p", "q", None]), min_size=1, max_size=8))
def test_a_plan_that_is_not_known_is_no_other_plan_and_hides_none(plans: list[str | None]) -> None:
    found = Streak.of([replace(ONE, plan=plan) for plan in plans])
    assert found is not None
    within, before = plans[-found.times :], plans[: -found.times]
    assert len({plan for plan in within if plan is not None}) <= 1
    if before:
        assert len({plan for plan in [before[-1], *within] if plan is not None}) == 2


_numbers = st.integers(0, 10**12)
_ids = st.uuids(version=4).map(str)
_hex = st.binary(min_size=4, max_size=20).map(bytes.hex).filter(lambda text: any(map(str.isdigit, text)))
_parts = st.lists(st.from_regex(r"[A-Za-z0-9_.=-]{1,12}", fullmatch=True), min_size=1, max_size=4)
_paths = st.tuples(st.sampled_from(["/", "file:/", "file:///", "s3a://"]), _parts).map(
    lambda it: it[0] + "/".join(it[1])
)
_SAYINGS = (
    "Query [id = {id}, runId = {id}] terminated with exception: Task {n} in stage {n}.{n} failed {n} times, most "
    "recent failure: Lost task {n}.{n} in stage {n}.{n} (TID {n}) (10.0.{n}.{n} executor driver): row {n} is bad",
    "The query of job 'tiny' failed: File {path} does not exist",
    "Cannot read '{path}', version {n}",
    "Object Foo@{hex} of 0x{hex} failed after {n} ms at {n}:{n}:{n}",
    "checksum {hex} differs",
)


@given(st.data(), st.sampled_from(_SAYINGS))
def test_what_differs_each_time_does_not_make_another_error(data: st.DataObject, saying: str) -> None:
    draw = data.draw

    def said() -> str:
        text = saying
        for mark, values in (("{n}", _numbers), ("{id}", _ids), ("{hex}", _hex), ("{path}", _paths)):
            while mark in text:
                text = text.replace(mark, str(draw(values)), 1)
        return text

    one, other = said(), said()
    assert symptom(one) == symptom(other)
    assert symptom(symptom(one)) == symptom(one)
    found = Streak.of([replace(ONE, reason=one), replace(ONE, reason=other)])
    assert found == Streak(7, 2, other)


def test_errors_that_say_other_things_are_others() -> None:
    assert len({symptom(saying) for saying in _SAYINGS}) == len(_SAYINGS)
    assert symptom("ValueError: row 12 is bad\nTraceback 1") == symptom("ValueError: row 13 is bad\nTraceback 2")
    assert symptom("bad row") != symptom("bad column")
    assert symptom("deadbeef") == "deadbeef", "a word of letters is a word"


@pytest.mark.parametrize(
    "error",
    [
        "java.net.ConnectException: Connection refused",
        "org.postgresql.util.PSQLException: Connection to db:5432 refused. Check that the hostname is correct",
        "ConnectionRefusedError: [Errno 111] Connection refused",
        "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='x', port=443): Max retries exceeded",
        "java.net.UnknownHostException: broker",
        "java.net.SocketTimeoutException: Read timed out",
        "org.apache.kafka.common.errors.TimeoutException: Topic t not present in metadata after 60000 ms",
        "TimeoutError: [Errno 110] Connection timed out",
        "BrokenPipeError: [Errno 32] Broken pipe",
        "503 Service Unavailable",
        "HTTP 429: Too Many Requests",
        "com.amazonaws.AmazonS3Exception: Please reduce your request rate (503 Slow Down)",
        "OSError: [Errno 28] No space left on device",
        "socket.gaierror: [Errno -3] Temporary failure in name resolution",
    ],
)
def test_an_outage_is_no_poison(error: str) -> None:
    assert is_outage(error)
    assert Streak.of([replace(ONE, reason=error)] * 9) is None


@pytest.mark.parametrize(
    "error",
    [
        "ValueError: row 12 is bad",
        "java.lang.NumberFormatException: For input string: 'x'",
        "KeyError: 'connection_id'",
        "[UNRESOLVED_COLUMN] `timeout`",
        "File /data/TimeoutError/BrokenPipe.json does not exist",
        "java.lang.OutOfMemoryError: Java heap space",
        "Python worker exited unexpectedly (crashed)",
        "org.apache.spark.SparkArithmeticException: [DIVIDE_BY_ZERO] Division by zero",
    ],
)
def test_what_is_no_outage_counts(error: str) -> None:
    assert (found := Streak.of([replace(ONE, reason=error)] * 9)) is not None
    assert found.times == 9


def test_a_driver_that_is_gone_is_gone_whoever_saw_it() -> None:
    """The JVM alone, found by the run; the process, found by the sensor, in one way or another."""
    lost = replace(ONE, run_id="b", kind="DriverLost", reason="The JVM of job 'tiny' is gone: Connection refused")
    died = replace(SORTS["died"], run_id="c", reason="run r died: no heartbeat for 31 s")
    assert (found := Streak.of([SORTS["died"], lost, died])) is not None
    assert (found.times, found.reason) == (3, died.reason)


def test_a_run_dies_once() -> None:
    """It found its JVM gone and said so, and then died before the end of its epoch was on record."""
    deaths = [
        replace(ONE, run_id=run, sequence=sequence, kind=kind, at=at)
        for run, at in (("a", 1.0), ("b", 2.0))
        for sequence, kind in ((1, "DriverLost"), (DIED, ""))
    ]
    assert Streak.of(deaths) == Streak(7, 2, ONE.reason)


def test_what_is_told() -> None:
    found = Streak(7, 3, "ValueError: row 12 is bad.")
    assert so_far(None, 3) == so_far(found, None) == so_far(replace(found, times=1), 3) == ""
    assert so_far(found, 5) == ", after batch 7 failed 3 times in a row with the same error (5 end the job)"
    assert "failed 2 times" in so_far(replace(found, times=2), 3)
    error = found.poison("orders", storage="/ckpt", before="abc/chk-6")
    assert type(error) is PoisonBatch
    assert not error.recoverable
    assert "`dagster-ckpt batch orders 7 --path /ckpt`" in error.hint
    assert "ValueError: row 12 is bad. The checkpoint before it is abc/chk-6." in error.message
    assert error.in_one_line == str(error).replace("\n", " ")
    assert "dagster-ckpt" not in str(found.poison("orders", storage=None, before=None)), "nobody else can read it"


@pytest.mark.parametrize("attempts", [1, 0, -1])
def test_one_failure_is_no_poison(attempts: int) -> None:
    with pytest.raises(InvalidConfiguration, match="poison_batch_attempts"):
        check_poison_batch_attempts(attempts)
    check_poison_batch_attempts(2)
    check_poison_batch_attempts(None)


NOT_BUILT = Failure(
    "run", 1, 1.0, None, "The function of job 'a' did not build it: KeyError: 'x'", kind="QueryNotBuilt"
)


@pytest.mark.parametrize(
    ("failures", "ends"),
    [
        ([replace(ONE, recoverable=False)], True),
        ([ONE], False),
        ([ONE, ONE], False),  # whether a batch is poison is told elsewhere
        ([NOT_BUILT], False),
        ([NOT_BUILT, NOT_BUILT], True),
        ([NOT_BUILT, replace(NOT_BUILT, run_id="another", reason=NOT_BUILT.reason)], True),
        ([replace(NOT_BUILT, reason="no file /a/1"), replace(NOT_BUILT, reason="no file /a/2")], True),
        ([NOT_BUILT, replace(NOT_BUILT, reason="KeyError: 'y'")], False),
        ([NOT_BUILT, ONE, NOT_BUILT], False),
        ([NOT_BUILT, NOT_BUILT, ONE], False),
        ([NOT_BUILT, replace(NOT_BUILT, sequence=DIED, kind=""), NOT_BUILT], False),
        ([replace(NOT_BUILT, reason="ConnectionRefusedError: [Errno 111] Connection refused")] * 9, False),
        ([replace(NOT_BUILT, reason="OSError: [Errno 28] No space left on device")] * 9, False),
    ],
)
def test_what_a_restart_cannot_help(failures: list[Failure], ends: bool) -> None:
    why = beyond_restart(failures)
    assert (why is not None) is ends
    assert why is None or "a restart cannot help" in why


def test_what_to_do_about_a_poison_batch_is_told() -> None:
    found = Streak(7, 3, "division by zero.")
    told = found.poison("orders", storage="/storage", before="chk-6")
    assert told.message == (
        "Batch 7 of job 'orders' is poison: it failed 3 times in a row with the same error, and is not tried again. "
        "division by zero. The checkpoint before it is chk-6."
    )
    assert told.hint.startswith("See what is in it: `dagster-ckpt batch orders 7 --path /storage`. Mend the code")
    alone = found.poison("orders", storage=None, before=None)
    assert alone.message.endswith("division by zero.")
    assert alone.hint.startswith("Mend the code")


@pytest.mark.parametrize(
    ("times", "attempts", "ends", "told"),
    [
        (1, 3, False, ""),
        (2, 3, False, "failed 2 times"),
        (3, 3, True, "failed 3 times"),
        (4, 3, True, "4"),
        (9, None, False, ""),
    ],
)
def test_a_streak_ends_the_job_at_its_limit(times: int, attempts: int | None, ends: bool, told: str) -> None:
    found = Streak(7, times, "it broke")
    assert found.ends_loop(attempts) is ends
    assert told in so_far(found, attempts)
    assert bool(so_far(found, attempts)) is bool(told)
    assert so_far(None, attempts) == ""
