from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dagster_ckpt.checkpoint.attendance import Attendance
from dagster_ckpt.checkpoint.control.epochs import Choice, Claim, End
from dagster_ckpt.checkpoint.control.failures import DIED, Failure, Streak
from dagster_ckpt.checkpoint.control.heartbeat import INTERRUPTED
from dagster_ckpt.checkpoint.sight import Sight
from dagster_ckpt.config.checkpoint_config import JobStatus
from dagster_ckpt.config.restart import (
    ExponentialDelayRestart,
    FixedDelayRestart,
    NoRestart,
    RestartStrategy,
)
from dagster_ckpt.resume.decision import (
    ATTEND_PAUSE,
    MOST_TELLERS,
    STARTUP_LIMIT,
    Action,
    AskToCancel,
    Attend,
    Ended,
    EndJob,
    Facts,
    MarkDead,
    RecordFailures,
    Resume,
    RunFacts,
    Wait,
    decide,
    nothing_to_do,
)
from dagster_ckpt.spark.batches.in_flight import BatchInFlight

NOW = 10_000.0
GONE = "its process 7 is gone"
CLAIM = Claim(4, "token", 2, "holder", "host", 7, "2026-01-01T00:00:00.000+00:00")
LEFT = "its process 8 is gone"
UNTOLD = "the driver of run holder has ended FINISHED, and no run has told Dagster"
#: Every status Dagster has (1.13).
ACTIVE = ("NOT_STARTED", "MANAGED", "QUEUED", "STARTING", "STARTED", "CANCELING")
OVER = ("SUCCESS", "FAILURE", "CANCELED")


def run(status: str = "FAILURE", run_id: str = "holder", *, age: float = 10, resume: bool = False) -> RunFacts:
    return RunFacts(run_id, status, NOW - age, resume, 2 if resume else None, "holder" if resume else None)


def died(*, at: float = NOW - 10, recoverable: bool = True, run_id: str = "holder", sequence: int = DIED) -> Failure:
    return Failure(run_id, sequence, at, None, f"run {run_id} died", recoverable)


def facts(
    *,
    claim: Claim | None = CLAIM,
    end: str | None = None,
    dead: str | None = GONE,
    holder: RunFacts | None = None,
    others: Sequence[RunFacts] = (),
    failures: Sequence[Failure] = (),
    restart: RestartStrategy | None = None,
    in_flight: BatchInFlight | None = None,
    poison_batch_attempts: int | None = None,
    waited: float = 0,
    starting_for: float = 0,
    attendance: Attendance | None = None,
    waits: str | None = None,
) -> Facts:
    return Facts(
        now=NOW,
        claim=claim,
        end=None if end is None else End(end, "it said so", False, "2026-01-01T00:00:00.000+00:00"),
        dead=dead,
        died_at=NOW - 10,
        holder=holder,
        others=others,
        failures=failures,
        restart=restart or FixedDelayRestart(3, timedelta(seconds=5)),
        job_name="orders",
        is_durable=True,
        in_flight=in_flight,
        poison_batch_attempts=poison_batch_attempts,
        waited=waited,
        starting_for=starting_for,
        attendance=attendance,
        waits=waits,
    )


def teller(status: str, run_id: str, *, age: float = 10) -> RunFacts:
    """A run that was launched to attend the driver of the holder."""
    return replace(run(status, run_id, age=age), attends="holder")


def not_built(reason: str, *, at: float, run_id: str = "holder", sequence: int = 1) -> Failure:
    return Failure(run_id, sequence, at, None, reason, kind="QueryNotBuilt")


TABLE: list[tuple[str, Facts, Action]] = [
    ("never ran", facts(claim=None), Wait("it has never run")),
    ("alive", facts(dead=None, holder=run("STARTED")), Wait("run holder is alive")),
    ("alive, though Dagster says failed", facts(dead=None, holder=run("FAILURE")), Wait("run holder is alive")),
    (
        "attended by its own run",
        facts(dead=None, holder=run("STARTED"), attendance=Attendance("holder", None)),
        Wait("run holder is alive"),
    ),
    (
        "its run died, its driver lives",
        facts(dead=None, holder=run("STARTED"), attendance=Attendance("holder", LEFT)),
        MarkDead("holder", False, f"its driver goes on without it: {LEFT}"),
    ),
    (
        "its run is marked as dead, its driver lives",
        facts(dead=None, holder=run("FAILURE"), attendance=Attendance("holder", LEFT)),
        Attend("holder", "orders:token:attend:holder:0", "the driver of run holder is alive, and nobody attends it"),
    ),
    (
        "the next run that attended died too",
        facts(
            dead=None,
            holder=run(),
            others=[replace(run("FAILURE", "second"), attends="holder")],
            attendance=Attendance("second", LEFT),
        ),
        Attend("holder", "orders:token:attend:second:0", "the driver of run holder is alive, and nobody attends it"),
    ),
    (
        "the next run failed before it attended",
        facts(
            dead=None,
            holder=run(),
            others=[
                replace(run("FAILURE", "third", age=20), attends="holder"),
                replace(run("FAILURE", "second", age=90), attends="holder"),
            ],
            attendance=Attendance("holder", LEFT),
        ),
        Wait("run third failed to attend the driver of run holder, which goes on; the next run attends it in 40 s"),
    ),
    (
        "its run is canceled by force, its driver lives",
        facts(dead=None, holder=run("CANCELED"), attendance=Attendance("holder", LEFT)),
        AskToCancel("holder", "run holder was canceled, and its driver lives"),
    ),
    (
        "its run died while it was being canceled, its driver lives",
        facts(dead=None, holder=run("CANCELING"), attendance=Attendance("holder", LEFT)),
        AskToCancel("holder", "run holder was canceled, and its driver lives"),
    ),
    (
        "its driver has recorded the end, and is about to be gone",
        facts(dead=None, end="CANCELED", holder=run("CANCELED"), attendance=Attendance("holder", LEFT)),
        Wait("run holder is alive"),
    ),
    (
        "attended by a run of another instance",
        facts(dead=None, holder=run("FAILURE"), attendance=Attendance("elsewhere", None)),
        Wait("run holder is alive"),
    ),
    (
        "its driver died, and the run that attends it is about to say so",
        facts(holder=run("STARTED"), attendance=Attendance("holder", None)),
        Wait("the driver is dead, and run holder is about to end"),
    ),
    (
        "its driver died, and so did the other run that attended it",
        facts(holder=run(), others=[run("STARTED", "second")], attendance=Attendance("second", LEFT)),
        MarkDead("second", False, f"the run counts as dead: {LEFT}"),
    ),
    (
        "its driver died when the run that attended it was canceled",
        facts(holder=run(), others=[run("CANCELED", "second")], attendance=Attendance("second", LEFT)),
        EndJob(JobStatus.CANCELED, "run second was canceled"),
    ),
    (
        "its driver has finished after its run had died",
        facts(end="FINISHED", holder=run("STARTED"), attendance=Attendance("holder", LEFT)),
        MarkDead("holder", False, f"the run counts as dead: {LEFT}"),
    ),
    (
        "its driver has finished, and no run has told that",
        facts(end="FINISHED", holder=run(), attendance=Attendance("holder", LEFT)),
        Attend("holder", "orders:token:attend:holder:0", UNTOLD),
    ),
    (
        "its driver has finished, and a run is about to tell that",
        facts(end="FINISHED", holder=run(), others=[teller("QUEUED", "second")], attendance=Attendance("holder", LEFT)),
        Wait("run second is about to attend the driver of run holder"),
    ),
    (
        "its driver has finished, and the run that was to tell that did not begin",
        facts(
            end="FINISHED",
            holder=run(),
            others=[teller("STARTING", "second", age=STARTUP_LIMIT)],
            attendance=Attendance("holder", LEFT),
        ),
        MarkDead("second", False, f"it did not begin within {STARTUP_LIMIT:.0f} s"),
    ),
    (
        "its driver has finished, and the run that was to tell that failed before",
        facts(
            end="FINISHED", holder=run(), others=[teller("FAILURE", "second")], attendance=Attendance("holder", LEFT)
        ),
        Attend("holder", "orders:token:attend:holder:second", UNTOLD),
    ),
    (
        "its driver has finished, and no run could tell that",
        facts(
            end="FINISHED",
            holder=run(),
            others=[teller("FAILURE", f"run {number}") for number in range(MOST_TELLERS)],
            attendance=Attendance("holder", LEFT),
        ),
        Ended("it ended FINISHED: it said so"),
    ),
    (
        "its driver has finished, and the runs that attended it died one after another",
        facts(
            end="FINISHED",
            holder=run(),
            others=[teller("FAILURE", f"run {number}") for number in (4, 3, 2, 1)],
            attendance=Attendance("run 4", LEFT),
        ),
        Attend("holder", "orders:token:attend:run 4:0", UNTOLD),
    ),
    (
        "its driver has finished, and the run that tells that is still at work downstream",
        facts(end="FINISHED", holder=run("STARTED"), attendance=Attendance("holder", "it ended", has_told=True)),
        Ended("it ended FINISHED: it said so"),
    ),
    (
        "its driver has finished, and another run has told that",
        facts(
            end="FINISHED",
            holder=run(),
            others=[teller("STARTED", "second")],
            attendance=Attendance("second", "it ended", has_told=True),
        ),
        Ended("it ended FINISHED: it said so"),
    ),
    (
        "its driver has finished, and the last word of its run was lost",
        facts(end="FINISHED", holder=run("SUCCESS"), attendance=Attendance("holder", LEFT)),
        Ended("it ended FINISHED: it said so"),
    ),
    (
        "its driver has finished, and the user has canceled its run",
        facts(end="FINISHED", holder=run("CANCELED"), attendance=Attendance("holder", LEFT)),
        Ended("it ended FINISHED: it said so"),
    ),
    (
        "its driver has finished, and nobody knows yet whether its run on another host lives",
        facts(end="FINISHED", holder=run(), attendance=Attendance("holder", None)),
        Wait("run holder may be about to tell how the driver of run holder has ended"),
    ),
    (
        "its driver has finished, on an instance that knows no run of it",
        facts(end="FINISHED", attendance=Attendance("holder", LEFT)),
        Ended("it ended FINISHED: it said so"),
    ),
    (
        "its driver has failed for good after its run had died",
        facts(end="FAILED", holder=run("STARTED"), attendance=Attendance("holder", LEFT)),
        MarkDead("holder", False, GONE),
    ),
    (
        "its driver has failed for good, and its run is marked as dead",
        facts(end="FAILED", holder=run(), attendance=Attendance("holder", LEFT)),
        Ended("it ended FAILED: it said so"),
    ),
    (
        "died unnoticed",
        facts(holder=run("STARTED")),
        MarkDead("holder", False, f"the run counts as dead: {GONE}"),
    ),
    (
        "died while it was being canceled",
        facts(holder=run("CANCELING")),
        MarkDead("holder", True, f"the run counts as dead: {GONE}"),
    ),
    (
        "forced termination, or canceled and killed",
        facts(holder=run("CANCELED")),
        EndJob(JobStatus.CANCELED, "run holder was canceled"),
    ),
    ("finished", facts(end="FINISHED", holder=run("SUCCESS")), Ended("it ended FINISHED: it said so")),
    ("failed for good", facts(end="FAILED", holder=run("FAILURE")), Ended("it ended FAILED: it said so")),
    ("canceled", facts(end="CANCELED", holder=run("CANCELED")), Ended("it ended CANCELED: it said so")),
    ("canceled, on a new instance", facts(end="CANCELED"), Ended("it ended CANCELED: it said so")),
    (
        "ended, and killed before Dagster knew",
        facts(end="FINISHED", holder=run("STARTED")),
        MarkDead("holder", False, GONE),
    ),
    (
        "canceled, killed before Dagster knew",
        facts(end="CANCELED", holder=run("CANCELING")),
        MarkDead("holder", True, GONE),
    ),
    (
        "the death is not on record yet",
        facts(holder=run("FAILURE")),
        RecordFailures([Failure("holder", DIED, NOW - 10, None, f"run holder counts as dead: {GONE}")]),
    ),
    (
        "the death is not on record yet, on a new instance",
        facts(),
        RecordFailures([Failure("holder", DIED, NOW - 10, None, f"run holder counts as dead: {GONE}")]),
    ),
    (
        "failed before it claimed",
        facts(holder=run(), failures=[died()], others=[run("FAILURE", "second", age=1, resume=True)]),
        RecordFailures([Failure("second", DIED, NOW - 1, None, "run second failed before it took the job over")]),
    ),
    (
        "a user's run that failed before it claimed is no failure of the job",
        facts(holder=run(), failures=[died()], others=[run("FAILURE", "second", age=1)]),
        Resume(1, "orders:token:1", "restart 1 of 3 (fixed delay 5 s, 3 attempts)"),
    ),
    (
        "a resume that failed before this claim was counted then",
        facts(
            holder=run(), failures=[died()], others=[replace(run("FAILURE", "second", resume=True), parent="earlier")]
        ),
        Resume(1, "orders:token:1", "restart 1 of 3 (fixed delay 5 s, 3 attempts)"),
    ),
    (
        "a resume of another series that failed is no failure of this one",
        facts(holder=run(), failures=[died()], others=[replace(run("FAILURE", "second", resume=True), series=1)]),
        Resume(1, "orders:token:1", "restart 1 of 3 (fixed delay 5 s, 3 attempts)"),
    ),
    (
        "a resume that failed before it claimed, by a clock that was set back since the claim",
        facts(holder=run(), failures=[died()], others=[run("FAILURE", "second", age=100_000, resume=True)]),
        RecordFailures([Failure("second", DIED, NOW - 100_000, None, "run second failed before it took the job over")]),
    ),
    (
        "a resume that told why it could not claim",
        facts(
            holder=run(),
            failures=[died(), replace(died(run_id="second", sequence=1), reason="no space left", at=NOW - 9)],
            others=[run("FAILURE", "second", age=8, resume=True)],
        ),
        Resume(2, "orders:token:2", "restart 2 of 3 (fixed delay 5 s, 3 attempts)"),
    ),
    (
        "a resume that found that it can never claim",
        facts(
            holder=run(),
            failures=[
                died(),
                replace(died(run_id="second", sequence=1, recoverable=False), reason="wrong value", at=NOW - 9),
            ],
            others=[run("FAILURE", "second", age=8, resume=True)],
        ),
        EndJob(JobStatus.FAILED, "wrong value (a restart cannot help)"),
    ),
    (
        "a resume that found that it can never claim, and the clock of the run before is ahead",
        facts(
            holder=run(),
            failures=[died(at=NOW + 3600), died(run_id="second", sequence=1, recoverable=False, at=NOW - 9)],
            others=[run("FAILURE", "second", age=8, resume=True)],
        ),
        EndJob(JobStatus.FAILED, "run second died (a restart cannot help)"),
    ),
    (
        "a resume that could never claim was followed by one that may",
        facts(
            holder=run(),
            failures=[
                died(at=NOW - 30),
                died(run_id="second", sequence=1, recoverable=False, at=NOW - 20),
                died(run_id="third", sequence=1, at=NOW - 9),
            ],
            others=[run("FAILURE", "third", age=8, resume=True), run("FAILURE", "second", age=19, resume=True)],
        ),
        Resume(3, "orders:token:3", "restart 3 of 3 (fixed delay 5 s, 3 attempts)"),
    ),
    (
        "a query that was not built",
        facts(end="FAILING", holder=run(), failures=[not_built("KeyError: 'a'", at=NOW - 10)]),
        Resume(1, "orders:token:1", "restart 1 of 3 (fixed delay 5 s, 3 attempts)"),
    ),
    (
        "a query that was not built twice in a row, in two runs",
        facts(
            end="FAILING",
            holder=run(),
            failures=[not_built("KeyError: 'a'", at=NOW - 99, run_id="a"), not_built("KeyError: 'a'", at=NOW - 10)],
        ),
        EndJob(
            JobStatus.FAILED,
            "KeyError: 'a' (twice in a row the query was not built, for the same reason: a restart cannot help)",
        ),
    ),
    (
        "a restart that a clock, set back since, would let wait for a day, has waited as long as any",
        facts(holder=run(), failures=[died(at=NOW + 86_400)], waited=5),
        Resume(1, "orders:token:1", "restart 1 of 3 (fixed delay 5 s, 3 attempts)"),
    ),
    (
        "a restart that a clock, set back since, would let wait for a day, waits as long as any",
        facts(holder=run(), failures=[died(at=NOW + 86_400)], waited=2),
        Wait("restart 1 of 3 (fixed delay 5 s, 3 attempts), in 3 s"),
    ),
    (
        "another is starting",
        facts(failures=[died()], others=[run("STARTING", "second"), run("STARTING", "third")]),
        Wait("run second is starting"),
    ),
    (
        "the user's run that was launched meanwhile is waiting",
        facts(failures=[died()], others=[run("QUEUED", "second")]),
        Wait("run second is starting"),
    ),
    (
        "a resumed run that never began",
        facts(failures=[died()], others=[run("STARTED", "second", age=STARTUP_LIMIT, resume=True)]),
        MarkDead("second", False, "it did not begin within 120 s"),
    ),
    (
        "a resumed run that waits for the driver that it has submitted",
        facts(
            failures=[died()],
            others=[run("STARTED", "second", age=10 * STARTUP_LIMIT, resume=True)],
            starting_for=9 * STARTUP_LIMIT,
            waits="second",
        ),
        Wait("run second waits for the driver that it has submitted"),
    ),
    (
        "a run of this instance that never began, while a run of another one waits for its driver",
        facts(
            failures=[died()],
            others=[run("STARTED", "second", age=STARTUP_LIMIT, resume=True)],
            waits="elsewhere",
        ),
        MarkDead("second", False, "it did not begin within 120 s"),
    ),
    (
        "a resumed run that never began, by a clock that was set back since",
        facts(
            failures=[died()],
            others=[run("STARTED", "second", age=-86_400, resume=True)],
            starting_for=STARTUP_LIMIT,
        ),
        MarkDead("second", False, "it did not begin within 120 s"),
    ),
    (
        "a resumed run that waits in the queue is not stuck",
        facts(failures=[died()], others=[run("QUEUED", "second", age=STARTUP_LIMIT, resume=True)]),
        Resume(1, "orders:token:1", "restart 1 of 3 (fixed delay 5 s, 3 attempts)"),
    ),
    (
        "a resumed run that the user canceled before it began",
        facts(holder=run(), failures=[died()], others=[run("CANCELED", "second", resume=True)]),
        EndJob(JobStatus.CANCELED, "run second was canceled before it took the job over"),
    ),
    (
        "a restart cannot help",
        facts(end="FAILING", failures=[died(recoverable=False)]),
        EndJob(JobStatus.FAILED, "run holder died (a restart cannot help)"),
    ),
    (
        "a restart cannot help, and the clock of an earlier run is ahead",
        facts(end="FAILING", failures=[died(run_id="earlier", at=NOW - 1), died(sequence=2, recoverable=False)]),
        EndJob(JobStatus.FAILED, "run holder died (a restart cannot help)"),
    ),
    (
        "a restart cannot help, and the run died before it could record its end",
        facts(holder=run(), failures=[died(sequence=1, at=NOW - 20, recoverable=False), died()]),
        EndJob(JobStatus.FAILED, "run holder died (a restart cannot help)"),
    ),
    (
        "a start of the run was tried again after an error that has passed since",
        facts(end="FAILING", failures=[died(sequence=1, at=NOW - 20, recoverable=False), died(sequence=2)]),
        Resume(2, "orders:token:2", "restart 2 of 3 (fixed delay 5 s, 3 attempts)"),
    ),
    (
        "used up",
        facts(holder=run(), failures=[died(), *(died(run_id=name, at=NOW - 20) for name in "abc")]),
        EndJob(JobStatus.FAILED, "run holder died (all 3 restarts are used up (fixed delay 5 s, 3 attempts))"),
    ),
    (
        "deactivated",
        facts(holder=run(), failures=[died()], restart=NoRestart()),
        EndJob(JobStatus.FAILED, "run holder died (Restart deactivated.)"),
    ),
    (
        "not yet",
        facts(holder=run(), failures=[died(at=NOW - 2)]),
        Wait("restart 1 of 3 (fixed delay 5 s, 3 attempts), in 3 s"),
    ),
    (
        "resume",
        facts(holder=run(), failures=[died(run_id="a", at=NOW - 99), died()]),
        Resume(2, "orders:token:2", "restart 2 of 3 (fixed delay 5 s, 3 attempts)"),
    ),
    (
        "a run that recorded its own failure is not counted twice",
        facts(end="FAILING", holder=run(), failures=[died(sequence=1)]),
        Resume(1, "orders:token:1", "restart 1 of 3 (fixed delay 5 s, 3 attempts)"),
    ),
    (
        "the death is recorded with the batch in flight",
        facts(holder=run("FAILURE"), in_flight=BatchInFlight(7, "plan")),
        RecordFailures([Failure("holder", DIED, NOW - 10, 7, f"run holder counts as dead: {GONE}", plan="plan")]),
    ),
    (
        "poison, though the strategy would go on",
        facts(
            holder=run(),
            failures=[replace(died(run_id="a", at=NOW - 99), batch=7), replace(died(), batch=7)],
            poison_batch_attempts=2,
        ),
        EndJob(JobStatus.FAILED, "run holder died (batch 7 is poison)", Streak(7, 2, "run holder died")),
    ),
    (
        "interrupted",
        facts(dead=INTERRUPTED, holder=run()),
        Resume(0, "orders:token:0", "run holder was interrupted, which is no failure"),
    ),
    (
        "interrupted, without a restart left",
        facts(dead=INTERRUPTED, holder=run(), failures=[died(sequence=1)], restart=FixedDelayRestart(1, timedelta(1))),
        Resume(1, "orders:token:1", "run holder was interrupted, which is no failure"),
    ),
    (
        "interrupted, and the run that was to go on failed",
        facts(dead=INTERRUPTED, holder=run(), others=[run(run_id="second", resume=True)]),
        RecordFailures([Failure("second", DIED, NOW - 10, None, "run second failed before it took the job over")]),
    ),
    (
        "interrupted after its death was on record",
        facts(dead=INTERRUPTED, holder=run(), failures=[died()], restart=NoRestart()),
        EndJob(JobStatus.FAILED, "run holder died (Restart deactivated.)"),
    ),
    (
        "interrupted, and its checkpoints were in its memory",
        replace(facts(dead=INTERRUPTED, holder=run()), is_durable=False),
        RecordFailures([Failure("holder", DIED, NOW - 10, None, f"run holder counts as dead: {INTERRUPTED}")]),
    ),
    (
        "its checkpoints were in its memory, and its death is on record",
        replace(
            facts(holder=run(), failures=[died(at=NOW - 99, run_id="a"), replace(died(), reason="no memory left")]),
            is_durable=False,
        ),
        EndJob(JobStatus.FAILED, "no memory left (its checkpoints were in the memory of its driver)"),
    ),
    (
        "interrupted, and the run that was to go on waits in the queue for long",
        facts(dead=INTERRUPTED, holder=run(), others=[run("QUEUED", "second", age=STARTUP_LIMIT, resume=True)]),
        Resume(0, "orders:token:0", "run holder was interrupted, which is no failure"),
    ),
    (
        "failed, and the storage took only the end",
        facts(end="FAILING", holder=run()),
        RecordFailures([Failure("holder", DIED, NOW - 10, None, "it said so")]),
    ),
]


@pytest.mark.parametrize(("given_facts", "action"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_decision(given_facts: Facts, action: Action) -> None:
    assert decide(given_facts) == action


SECOND, THIRD = "second", "third"
BOTH_LOST = Attendance(SECOND, LEFT)
#: Where two runs are in the same state, the decision names one: the holder before others, a newer run before an older.
PAIRS: list[tuple[str, Facts, str]] = [
    (
        "marked",
        facts(dead=None, holder=run("STARTED"), others=[run("STARTED", SECOND)], attendance=BOTH_LOST),
        "holder",
    ),
    (
        "asks",
        facts(dead=None, holder=run("CANCELED"), others=[run("CANCELED", SECOND)], attendance=BOTH_LOST),
        "holder",
    ),
    ("ends", facts(holder=run("CANCELED"), others=[run("CANCELED", SECOND)], attendance=BOTH_LOST), "holder"),
    (
        "tells",
        facts(end="FINISHED", holder=run("STARTED"), others=[run("STARTED", SECOND)], attendance=BOTH_LOST),
        "holder",
    ),
    (
        "canceled before it began",
        facts(holder=run(), others=[run("CANCELED", name, resume=True) for name in (SECOND, THIRD)]),
        SECOND,
    ),
    (
        "did not begin",
        facts(failures=[died()], others=[run("STARTED", name, age=999, resume=True) for name in (SECOND, THIRD)]),
        SECOND,
    ),
    *(
        (
            f"was to attend and is {status}",
            facts(
                dead=None,
                holder=run(),
                others=[teller(status, SECOND, age=age), teller(status, THIRD, age=age)],
                attendance=Attendance("holder", LEFT),
            ),
            SECOND,
        )
        for status, age in [("CANCELED", 10), ("QUEUED", 10), ("STARTING", 999), ("FAILURE", 10)]
    ),
    (
        "failed to tell",
        facts(
            end="FINISHED",
            holder=run(),
            others=[teller("FAILURE", SECOND), teller("FAILURE", THIRD)],
            attendance=Attendance("holder", LEFT),
        ),
        SECOND,
    ),
]


@pytest.mark.parametrize(("given_facts", "named"), [row[1:] for row in PAIRS], ids=[row[0] for row in PAIRS])
def test_of_two_runs_alike_the_decision_names_one(given_facts: Facts, named: str) -> None:
    told = str(decide(given_facts))
    assert named in told
    assert (SECOND if named == "holder" else THIRD) not in told


@pytest.mark.parametrize(("failed", "asks"), [(2, True), (3, False)])
def test_three_runs_are_to_tell_how_a_driver_has_ended(failed: int, asks: bool) -> None:
    tellers = [teller("FAILURE", f"run {number}") for number in range(failed)]
    told = facts(end="FINISHED", holder=run(), others=tellers, attendance=Attendance("holder", LEFT))
    assert isinstance(decide(told), Attend if asks else Ended)


def test_a_run_that_failed_in_the_future_is_not_waited_for() -> None:
    ahead = facts(
        dead=None, holder=run(), others=[teller("FAILURE", SECOND, age=-0.5)], attendance=Attendance("holder", LEFT)
    )
    assert isinstance(decide(ahead), Attend)
    now = replace(ahead, now=NOW + 0.5)
    assert isinstance(decide(now), Wait)


def test_a_run_key_names_the_claim_by_twelve_characters() -> None:
    """Dagster knows the key of each run that it has launched: another key would launch that run once more."""
    claim = replace(CLAIM, token="0123456789abcdef")
    resumed = decide(facts(claim=claim, holder=run(), failures=[died()]))
    attended = decide(facts(claim=claim, dead=None, holder=run(), attendance=Attendance("holder", LEFT)))
    assert isinstance(resumed, Resume)
    assert resumed.run_key == "orders:0123456789ab:1"
    assert isinstance(attended, Attend)
    assert attended.run_key == "orders:0123456789ab:attend:holder:0"


CHOICE = Choice("a" * 32, None, 1, 0, "/live", "host", None, "it began from nothing")
FELL_BACK = replace(CHOICE, fell_back="chk-3 is broken, and it fell back to chk-2")


@pytest.mark.parametrize(
    ("end", "dead", "attendance", "finished", "choice", "why"),
    [
        (None, None, None, None, None, "run holder is alive"),
        (None, None, None, None, CHOICE, "run holder is alive"),
        (None, None, None, None, FELL_BACK, f"run holder is alive; {FELL_BACK.fell_back}"),
        (None, None, Attendance("holder", None), None, CHOICE, "run holder is alive"),
        (None, None, Attendance("holder", LEFT), None, CHOICE, None),
        (None, GONE, None, None, CHOICE, None),
        (None, GONE, None, CLAIM.token, CHOICE, None),
        ("FAILING", GONE, None, CLAIM.token, CHOICE, None),
        ("FINISHED", GONE, None, None, CHOICE, None),
        ("FINISHED", GONE, None, "earlier", CHOICE, None),
        ("FINISHED", GONE, None, CLAIM.token, CHOICE, "it ended FINISHED: it said so"),
        ("FINISHED", GONE, None, CLAIM.token, FELL_BACK, f"it ended FINISHED: it said so; {FELL_BACK.fell_back}"),
    ],
)
def test_a_look_is_enough(
    end: str | None,
    dead: str | None,
    attendance: Attendance | None,
    finished: str | None,
    choice: Choice | None,
    why: str | None,
) -> None:
    ended = None if end is None else End(end, "it said so", False, "2026-01-01T00:00:00.000+00:00")
    assert nothing_to_do(Sight(CLAIM, choice, ended, dead, 0.0, None, 0.0, attendance), finished) == why


def test_a_job_that_never_ran_needs_nothing() -> None:
    assert nothing_to_do(None, None) == "it has never run"


@pytest.mark.parametrize("status", ACTIVE)
def test_a_dead_holder_that_dagster_takes_for_alive_is_marked_first(status: str) -> None:
    assert decide(facts(holder=run(status))) == MarkDead(
        "holder", status == "CANCELING", f"the run counts as dead: {GONE}"
    )


_runs = st.builds(
    RunFacts,
    run_id=st.sampled_from(["second", "third"]),
    status=st.sampled_from([*ACTIVE, *OVER]),
    since=st.floats(NOW - 1000, NOW),
    is_resume=st.booleans(),
    series=st.sampled_from([None, 1, 2]),
    parent=st.sampled_from([None, "holder", "earlier"]),
    attends=st.sampled_from([None, "holder", "earlier"]),
)
_failures = st.builds(
    Failure,
    run_id=st.sampled_from(["holder", "second", "third"]),
    sequence=st.sampled_from([1, 2, DIED]),
    at=st.floats(NOW - 1000, NOW),
    batch=st.sampled_from([None, 3]),
    reason=st.just("it failed"),
    recoverable=st.booleans(),
    kind=st.sampled_from(["QueryFailed", "StorageError", "QueryNotBuilt"]),
)
_strategies: st.SearchStrategy[RestartStrategy] = st.one_of(
    st.just(NoRestart()),
    st.builds(FixedDelayRestart, st.integers(0, 4), st.timedeltas(timedelta(), timedelta(minutes=5))),
    st.builds(ExponentialDelayRestart, attempts_before_reset_backoff=st.sampled_from([None, 1, 2])),
)
_facts = st.builds(
    facts,
    claim=st.sampled_from([CLAIM, CLAIM, CLAIM, None]),
    end=st.sampled_from([None, "FAILING", "FINISHED", "CANCELED", "FAILED"]),
    dead=st.sampled_from([None, GONE, "no heartbeat for 31 s", INTERRUPTED]),
    holder=st.one_of(st.none(), st.sampled_from([*ACTIVE, *OVER]).map(run)),
    others=st.lists(_runs, max_size=2, unique_by=lambda other: other.run_id),
    failures=st.lists(_failures, max_size=5, unique_by=lambda failure: (failure.run_id, failure.sequence)),
    restart=_strategies,
    in_flight=st.sampled_from([None, BatchInFlight(3, "plan")]),
    poison_batch_attempts=st.sampled_from([None, 2, 3]),
    waited=st.sampled_from([0.0, 1.0, 1e6]),
    starting_for=st.sampled_from([0.0, 1.0, 1e6]),
    attendance=st.one_of(
        st.none(),
        st.builds(
            Attendance,
            st.sampled_from(["holder", "second", "elsewhere"]),
            st.sampled_from([None, LEFT]),
            st.booleans(),
        ),
    ),
    waits=st.sampled_from([None, "second", "elsewhere"]),
)


@given(_facts)
def test_every_decision_explains_itself_and_is_the_same_again(given_facts: Facts) -> None:
    action = decide(given_facts)
    assert decide(given_facts) == action
    if isinstance(action, RecordFailures):
        assert action.failures
        assert all(failure.reason for failure in action.failures)
    else:
        assert action.reason


@given(_facts)
def test_nothing_is_resumed_that_lives_ended_or_may_not(given_facts: Facts) -> None:
    action = decide(given_facts)
    if given_facts.dead is None:
        attended = given_facts.attendance is None or given_facts.attendance.dead is None
        assert isinstance(action, Wait if attended else Wait | Attend | AskToCancel | MarkDead)
    else:
        assert not isinstance(action, AskToCancel)
        untold = given_facts.attendance is not None and not given_facts.attendance.has_told
        has_finished = given_facts.end is not None and given_facts.end.status == "FINISHED"
        assert not isinstance(action, Attend) or (untold and has_finished)
    if given_facts.end is not None and given_facts.end.is_final:
        assert not isinstance(action, AskToCancel)
    if not isinstance(action, Resume):
        return
    assert given_facts.claim is not None
    assert given_facts.end is None or given_facts.end.status == "FAILING"
    assert given_facts.holder is None or given_facts.holder.status in ("SUCCESS", "FAILURE")
    if given_facts.starting_for < STARTUP_LIMIT:
        assert not [other for other in given_facts.others if other.is_active and NOW - other.since < STARTUP_LIMIT]
    assert not [other for other in given_facts.others if other.is_active and other.run_id == given_facts.waits]
    if given_facts.dead == INTERRUPTED and action.reason.endswith("which is no failure"):
        assert ("holder", DIED) not in {(failure.run_id, failure.sequence) for failure in given_facts.failures}
        return
    newest = max(given_facts.failures, key=lambda failure: failure.at)
    assert newest.recoverable
    if isinstance(given_facts.restart, FixedDelayRestart):
        assert action.attempt == len(given_facts.failures) <= given_facts.restart.attempts
        delay = given_facts.restart.delay.total_seconds()
        assert newest.at + delay <= NOW or given_facts.waited >= delay
    assert not isinstance(given_facts.restart, NoRestart)
    found = Streak.of(sorted(given_facts.failures, key=lambda failure: failure.at))
    assert found is None or not found.ends_loop(given_facts.poison_batch_attempts)


def test_a_batch_that_kills_each_driver_is_poison_though_one_clock_was_ahead() -> None:
    """The host of the first run had booted with a clock two days ahead, and its failure is another one."""
    deaths = [replace(died(run_id=name, at=NOW - 100 + at), batch=7) for at, name in enumerate(("a", "b", "holder"))]
    ahead = not_built("no such table", at=NOW + 2 * 86_400, run_id="ahead")
    found = facts(holder=run(), failures=[*deaths, ahead], poison_batch_attempts=3, restart=ExponentialDelayRestart())
    action = decide(found)
    assert isinstance(action, EndJob)
    assert action.poison == Streak(7, 3, "run holder died")


def test_a_query_that_is_not_built_twice_is_given_up_though_one_clock_was_ahead() -> None:
    twice = [not_built("no such table", at=NOW - 100 + number, run_id=f"run-{number}") for number in range(2)]
    ahead = died(at=NOW + 2 * 86_400, run_id="ahead")
    action = decide(facts(claim=replace(CLAIM, run_id="run-1"), end="FAILING", failures=[ahead, *twice]))
    assert isinstance(action, EndJob)
    assert "twice in a row the query was not built" in action.reason


#: The run that attended the driver last is soon none of the newest runs any more, and nobody knows the holder's run.
_TOLD_BY_OTHERS = facts(
    end="FINISHED",
    dead=GONE,
    holder=None,
    others=[run("NOT_STARTED", "second", age=1000)],
    attendance=Attendance("second", LEFT),
)


@given(_facts)
@example(_TOLD_BY_OTHERS)
def test_doing_what_is_decided_comes_to_rest(given_facts: Facts) -> None:
    """No action is decided again once it was carried out: a second sensor, or a doubled tick, changes nothing."""
    seen: list[Action] = []
    while not isinstance(action := decide(given_facts), Wait | Ended | Resume | Attend | AskToCancel):
        assert action not in seen
        seen.append(action)
        given_facts = carried_out(given_facts, action)
    assert len(seen) <= 6
    if any(isinstance(done, EndJob) for done in seen):
        assert isinstance(action, Ended)
    if isinstance(action, Resume):
        launched = run("QUEUED", "launched", age=0, resume=True)
        given_facts = replace(given_facts, others=[launched, *given_facts.others], starting_for=0)
        assert decide(given_facts) == Wait("run launched is starting")
    if isinstance(action, Attend):
        launched = replace(run("QUEUED", "launched", age=0), attends="holder")
        keys = {action.run_key}
        # Dagster tells of the newest runs only, so that their number says nothing.
        for number in range(3):
            one = replace(launched, run_id=f"launched {number}")
            given_facts = replace(given_facts, others=[one, *given_facts.others[:2]], starting_for=0)
            assert decide(given_facts) == Wait(f"run {one.run_id} is about to attend the driver of run holder")
            failed = [replace(one, status="FAILURE"), *given_facts.others[1:]]
            given_facts = replace(given_facts, others=failed)
            if given_facts.dead is None:
                assert isinstance(decide(given_facts), Wait), "not at each tick"
                given_facts = replace(given_facts, now=given_facts.now + ATTEND_PAUSE)
            again = decide(given_facts)
            if isinstance(again, Ended):
                assert given_facts.dead is not None, "a driver that lives is attended in the end"
                break
            assert isinstance(again, Attend)
            assert again.run_key not in keys, "Dagster launches a run key once"
            keys.add(again.run_key)
            launched = replace(launched, since=given_facts.now)


@given(
    attempts=st.integers(0, 5),
    in_run=st.integers(0, 3),
    claims=st.booleans(),
    interruptions=st.sets(st.integers(0, 8)),
)
def test_runs_that_die_again_and_again_use_the_budget_up_exactly(
    attempts: int, in_run: int, claims: bool, interruptions: set[int]
) -> None:
    """Deaths before and after the claim, and failures within a run, count against one budget; interruptions do not."""
    current = facts(
        holder=run(),
        failures=[died(run_id="holder", sequence=number + 1, at=NOW - 100 + number) for number in range(in_run)],
        restart=FixedDelayRestart(attempts, timedelta()),
    )
    keys: list[str] = []
    restarts = 0
    while not isinstance(action := decide(current), Wait | Ended):
        if not isinstance(action, Resume):
            current = carried_out(current, action)
            continue
        restarts += current.dead != INTERRUPTED
        assert action.attempt == in_run + restarts
        keys.append(action.run_key)
        name = f"resumed-{len(keys)}"
        assert current.claim is not None
        if claims:
            current = replace(
                current,
                claim=replace(current.claim, epoch=current.claim.epoch + 1, token=name, run_id=name),
                holder=run("FAILURE", name, resume=True),
                dead=INTERRUPTED if len(keys) in interruptions else GONE,
            )
        else:
            current = replace(current, others=[run("FAILURE", name, resume=True), *current.others])
    assert len(keys) == len(set(keys))
    assert restarts == max(attempts - in_run, 0)
    assert "restarts are used up" in action.reason


def carried_out(before: Facts, action: Action) -> Facts:
    """The facts after an action."""
    match action:
        case MarkDead(run_id, canceled, _):
            status = "CANCELED" if canceled else "FAILURE"

            def marked(item: RunFacts) -> RunFacts:
                return replace(item, status=status, since=NOW) if item.run_id == run_id else item

            holder = None if before.holder is None else marked(before.holder)
            return replace(before, holder=holder, others=[marked(other) for other in before.others])
        case RecordFailures(failures):
            return replace(before, failures=[*before.failures, *failures])
        case EndJob(status, reason):
            return replace(before, end=End(status.value, reason, False, "2026-01-01T00:00:00.000+00:00"))
        case _:
            raise AssertionError(f"{action} is no step towards another decision")
