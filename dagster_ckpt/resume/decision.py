"""What is to be done about a job whose run may be dead: a pure decision over the facts of the moment.

Level-triggered: the decision depends on what is true now, not on what was seen before, so ticks may be missed,
doubled, or begin on an instance that does not know the job.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from dagster_ckpt.checkpoint import (
    DIED,
    ENDED_ELSEWHERE,
    INTERRUPTED,
    Attendance,
    Choice,
    Claim,
    End,
    Failure,
    Sight,
    Streak,
    as_happened,
    restart_after,
    so_far,
)
from dagster_ckpt.config import JobStatus, RestartStrategy
from dagster_ckpt.spark import BatchInFlight

__all__ = [
    "Action",
    "AskToCancel",
    "Attend",
    "EndJob",
    "Ended",
    "Facts",
    "MarkDead",
    "RecordFailures",
    "Resume",
    "RunFacts",
    "Wait",
    "decide",
    "nothing_to_do",
]

#: Seconds for which other runs wait for a started run to claim the job.
STARTUP_LIMIT = 120.0
_NEVER_BEGAN = f"it did not begin within {STARTUP_LIMIT:.0f} s"
#: Seconds after a run has failed to attend a driver, before the next one is launched.
ATTEND_PAUSE = 60.0
#: Runs that are launched to tell how a driver has ended, if those before have failed: the job is over, and each run
#: that fails is one more alarm.
MOST_TELLERS = 3
_ACTIVE = frozenset({"NOT_STARTED", "MANAGED", "QUEUED", "STARTING", "STARTED", "CANCELING"})


@dataclass(frozen=True, slots=True)
class RunFacts:
    """A run of the job, as Dagster or ``dagster-ckpt run`` knows it.

    Attributes:
        run_id: its id.
        status: Dagster's name of its status.
        since: when the run was created, launched, started or ended (the latest known), seconds since the epoch.
        is_resume: the sensor or ``dagster-ckpt run`` launched the run.
        series: the series that the run was launched for.
        parent: the run that this run continues.
        attends: the run whose driver this run was launched to attend.
    """

    run_id: str
    status: str
    since: float
    is_resume: bool
    series: int | None
    parent: str | None = None
    attends: str | None = None

    @property
    def is_active(self) -> bool:
        return self.status in _ACTIVE

    @property
    def before_its_claim(self) -> Failure:
        """The failure of a run that has failed before it took the job over."""
        return Failure(self.run_id, DIED, self.since, None, f"run {self.run_id} failed before it took the job over")


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything the decision depends on.

    Attributes:
        now: seconds since the epoch.
        claim: the claim of the highest epoch, ``None`` when the job never ran.
        end: how that epoch ended, ``None`` while the epoch is open.
        dead: why the epoch's holder counts as dead, ``None`` while the holder may live.
        died_at: the holder's last sign of life, seconds since the epoch.
        holder: the holder's Dagster run, ``None`` when the instance does not know the run, or nobody asks Dagster.
        others: the other recent runs of the job, the newest first.
        failures: recorded in the claim's series.
        restart: the strategy.
        job_name: for the jitter's seed.
        is_durable: the checkpoints outlive the driver that took them.
        in_flight: the batch under way when the holder died, if it is known and not on record yet.
        poison_batch_attempts: how often one batch may fail with one error, ``None`` for no limit.
        waited: seconds for which the caller has known ``failures``, by a monotonic clock.
        starting_for: seconds for which the caller has seen the same ``others`` active, by a monotonic clock.
        attendance: who attends the holder's driver, ``None`` for a driver that is the holder's own process.
        waits: the living run that has submitted a driver, and waits for the cluster to start it; ``None`` for none.
    """

    now: float
    claim: Claim | None
    end: End | None
    dead: str | None
    died_at: float
    holder: RunFacts | None
    others: Sequence[RunFacts]
    failures: Sequence[Failure]
    restart: RestartStrategy
    job_name: str
    is_durable: bool
    in_flight: BatchInFlight | None
    poison_batch_attempts: int | None
    waited: float
    starting_for: float
    attendance: Attendance | None
    waits: str | None = None

    @property
    def attending(self) -> RunFacts | None:
        """The run that attended the driver last, where that is another run than the holder."""
        run_id = None if self.attendance is None else self.attendance.run_id
        return next((run for run in self.others if run.run_id == run_id), None)


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing, for this reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The job is over, for this reason; its cleanup may be unfinished."""

    reason: str


@dataclass(frozen=True, slots=True)
class MarkDead:
    """Tell Dagster that a run is over: its process died unnoticed."""

    run_id: str
    canceled: bool
    reason: str


@dataclass(frozen=True, slots=True)
class RecordFailures:
    """Record failures, so that they count; then decide again."""

    failures: Sequence[Failure]


@dataclass(frozen=True, slots=True)
class EndJob:
    """Record that the job ended, and clean up as its policy says; ``poison`` is the batch that ended the job."""

    status: JobStatus
    reason: str
    poison: Streak | None = None


@dataclass(frozen=True, slots=True)
class Resume:
    """Launch a run that continues from the newest checkpoint."""

    attempt: int
    run_key: str
    reason: str


@dataclass(frozen=True, slots=True)
class Attend:
    """Launch a run that reports of the driver of run ``driver``: the driver lives, or has ended and nobody has told."""

    driver: str
    run_key: str
    reason: str


@dataclass(frozen=True, slots=True)
class AskToCancel:
    """Ask the living driver of run ``driver`` to end the job as canceled."""

    driver: str
    reason: str


Action: TypeAlias = Wait | Ended | MarkDead | RecordFailures | EndJob | Resume | Attend | AskToCancel


def nothing_to_do(sight: Sight | None, finished: str | None) -> str | None:
    """Why a look is enough to see that there is nothing to do about a job; ``None`` when :func:`decide` must say.

    Args:
        sight: what the look has shown, ``None`` for a job that has never run.
        finished: the token of the claim after whose end an earlier tick found nothing left to do.
    """
    if sight is None:
        return "it has never run"
    if sight.dead is None and sight.is_attended:
        return f"run {sight.claim.run_id} is alive{fell_back(sight.choice)}"
    if sight.is_over and sight.end is not None and sight.claim.token == finished:
        return f"it ended {sight.end.status}: {sight.end.reason}{fell_back(sight.choice)}"
    return None


def fell_back(choice: Choice | None) -> str:
    """What to add to the reason if a run continues from an older checkpoint: a sentence with the cost, or nothing."""
    return f"; {choice.fell_back}" if choice is not None and choice.fell_back else ""


def decide(facts: Facts) -> Action:
    """The one next thing to do about a job."""
    claim = facts.claim
    if claim is None:
        return Wait("it has never run")
    holder, attending, attendance = facts.holder, facts.attending, facts.attendance
    if attendance is not None:
        last = attending or holder
        over = facts.end is not None and facts.end.is_final
        if facts.dead is None and attendance.dead is not None and not over:
            return _attend(facts, claim, attendance)
        if facts.dead is not None and attendance.dead is None and last is not None and last.is_active:
            return Wait(f"the driver is dead, and run {last.run_id} is about to end")
        if facts.dead is not None and facts.end is not None and over:
            if attendance.has_told:  # Dagster hears from the run itself, which may have more to do
                return Ended(f"it ended {facts.end.status}: {facts.end.reason}")
            if (untold := _tell(facts, claim, facts.end, attendance)) is not None:
                return untold
        if facts.dead is not None and attending is not None and attending.is_active:
            reason = f"the run counts as dead: {attendance.dead}"
            return MarkDead(attending.run_id, attending.status == "CANCELING", reason)
    if facts.dead is None:
        return Wait(f"run {claim.run_id} is alive")
    if facts.end is not None and facts.end.is_final:
        # A run on another host may have more steps, and only Dagster hears whether its process lives.
        if holder is not None and holder.is_active and facts.dead != ENDED_ELSEWHERE:
            return MarkDead(holder.run_id, facts.end.status == JobStatus.CANCELED.value, f"{facts.dead}")
        return Ended(f"it ended {facts.end.status}: {facts.end.reason}")
    if holder is not None and holder.is_active:
        return MarkDead(holder.run_id, holder.status == "CANCELING", f"the run counts as dead: {facts.dead}")
    if gone := [run for run in (holder, attending) if run is not None and run.status == "CANCELED"]:
        return EndJob(JobStatus.CANCELED, f"run {gone[0].run_id} was canceled")
    if canceled := [run for run in _resumes(facts, claim) if run.status == "CANCELED"]:
        return EndJob(JobStatus.CANCELED, f"run {canceled[0].run_id} was canceled before it took the job over")
    if waiting := [run for run in facts.others if run.is_active and run.run_id == facts.waits]:
        return Wait(f"run {waiting[0].run_id} waits for the driver that it has submitted")
    if starting := [run for run in facts.others if run.is_active and _may_begin(run, facts)]:
        return Wait(f"run {starting[0].run_id} is starting")
    if stuck := [run for run in facts.others if run.is_active and run.is_resume and run.status != "QUEUED"]:
        return MarkDead(stuck[0].run_id, False, _NEVER_BEGAN)
    if unrecorded := _unrecorded(facts, claim):
        return RecordFailures(unrecorded)
    return _restart(facts, claim)


def _attend(facts: Facts, claim: Claim, attendance: Attendance) -> Action:
    """What is to be done about a living driver that nobody attends."""
    left = f"its driver goes on without it: {attendance.dead}"
    own = [run for run in (facts.holder, facts.attending) if run is not None]
    if canceled := [run for run in own if run.status in {"CANCELED", "CANCELING"}]:
        return AskToCancel(claim.run_id, f"run {canceled[0].run_id} was canceled, and its driver lives")
    if active := [run for run in own if run.is_active]:
        return MarkDead(active[0].run_id, False, left)
    launched = [run for run in facts.others if run.attends == claim.run_id and run not in own]
    if canceled := [run for run in launched if run.status == "CANCELED"]:
        return AskToCancel(claim.run_id, f"run {canceled[0].run_id} was canceled, and the driver lives")
    if (coming := _coming(launched, facts, claim)) is not None:
        return coming
    failed = launched[0] if launched else None
    # A run that ends in the future was launched before the clock was set back: then nobody waits.
    if failed is not None and 0 <= (since := facts.now - failed.since) < ATTEND_PAUSE:
        return Wait(
            f"run {failed.run_id} failed to attend the driver of run {claim.run_id}, which goes on; the next run "
            f"attends it in {ATTEND_PAUSE - since:.0f} s"
        )
    reason = f"the driver of run {claim.run_id} is alive, and nobody attends it"
    return Attend(claim.run_id, _attend_key(facts, claim, attendance, failed), reason)


def _tell(facts: Facts, claim: Claim, end: End, attendance: Attendance) -> Action | None:
    """What is to be done about a driver that has finished unattended; ``None`` when Dagster needs no run to hear of it.

    Of a job that has failed or was canceled, the run that is marked as dead tells enough. An instance that knows no run
    of the driver waits for none.
    """
    own = [run for run in (facts.holder, facts.attending) if run is not None]
    last = facts.attending
    later = facts.others if last is None else facts.others[: facts.others.index(last)]  # the newest first
    launched = [run for run in later if run.attends == claim.run_id]
    heard = any(run.status in {"SUCCESS", "CANCELED", "CANCELING"} for run in (*own, *launched))
    if end.status != JobStatus.FINISHED.value or not (own or launched) or heard:
        return None
    if attendance.dead is None:
        return Wait(f"run {attendance.run_id} may be about to tell how the driver of run {claim.run_id} has ended")
    if active := [run for run in own if run.is_active]:
        return MarkDead(active[0].run_id, False, f"the run counts as dead: {attendance.dead}")
    if (coming := _coming(launched, facts, claim)) is not None or len(launched) >= MOST_TELLERS:
        return coming
    reason = f"the driver of run {claim.run_id} has ended {end.status}, and no run has told Dagster"
    return Attend(claim.run_id, _attend_key(facts, claim, attendance, launched[0] if launched else None), reason)


def _coming(launched: Sequence[RunFacts], facts: Facts, claim: Claim) -> Action | None:
    """What is to be done about a run that was launched to attend a driver and has not begun; ``None`` for none."""
    if starting := [run for run in launched if run.is_active and _may_begin(run, facts)]:
        return Wait(f"run {starting[0].run_id} is about to attend the driver of run {claim.run_id}")
    if stuck := [run for run in launched if run.is_active and run.status != "QUEUED"]:
        return MarkDead(stuck[0].run_id, False, _NEVER_BEGAN)
    return None


def _attend_key(facts: Facts, claim: Claim, attendance: Attendance, failed: RunFacts | None) -> str:
    """Dagster never launches a run key twice: each run that attended, and each that failed to, makes another key."""
    return f"{facts.job_name}:{claim.token[:12]}:attend:{attendance.run_id}:{failed.run_id if failed else 0}"


def _may_begin(run: RunFacts, facts: Facts) -> bool:
    """Whether others wait for ``run`` to start; the wait ends even if the clock was set back since the launch."""
    return facts.now - run.since < STARTUP_LIMIT and facts.starting_for < STARTUP_LIMIT


def _unrecorded(facts: Facts, claim: Claim) -> list[Failure]:
    known = {(failure.run_id, failure.sequence) for failure in facts.failures}
    found = []
    if facts.end is None and not _is_interrupted(facts, claim) and (claim.run_id, DIED) not in known:
        batch, plan = (None, None) if facts.in_flight is None else (facts.in_flight.batch, facts.in_flight.plan)
        reason = f"run {claim.run_id} counts as dead: {facts.dead}"
        found.append(Failure(claim.run_id, DIED, facts.died_at, batch, reason, plan=plan))
    # A run that recorded the end of its last start has also recorded the failure, if the storage took the record.
    if facts.end is not None and all(run_id != claim.run_id for run_id, _ in known):
        found.append(Failure(claim.run_id, DIED, facts.died_at, None, facts.end.reason))
    found += [
        run.before_its_claim
        for run in _resumes(facts, claim)
        if run.status == "FAILURE" and not any(run_id == run.run_id for run_id, _ in known)
    ]
    return found


def _is_interrupted(facts: Facts, claim: Claim) -> bool:
    """Whether the holder stopped because its process was told to end: no failure, so no restart is used up.

    A holder whose checkpoints are gone with its memory has failed. So has a holder whose death is on record.
    """
    stopped = facts.end is None and facts.dead == INTERRUPTED and facts.is_durable
    return stopped and all((item.run_id, item.sequence) != (claim.run_id, DIED) for item in facts.failures)


def _resumes(facts: Facts, claim: Claim) -> list[RunFacts]:
    """The runs that were launched to continue the run of the claim, their parent; none of them has claimed the job."""
    return [run for run in facts.others if run.is_resume and run.series == claim.series and run.parent == claim.run_id]


def _restart(facts: Facts, claim: Claim) -> Action:
    resumes = _resumes(facts, claim)
    failures = as_happened(facts.failures, facts.now, claim.run_id, [run.run_id for run in reversed(resumes)])
    tried = [run.run_id for run in resumes if run.status == "FAILURE"][:1]  # the newest
    if _is_interrupted(facts, claim) and not tried:
        return _resume(facts, claim, len(failures), f"run {claim.run_id} was interrupted, which is no failure")
    if not failures:
        return Wait("no failure is on record")  # another tick is recording it
    # A run that records such a failure records its end next, and nobody needs a clock to know which one is its last.
    own = [item for item in failures if item.run_id == claim.run_id and item.sequence != DIED]
    last = max(own, key=lambda failure: failure.sequence, default=None)
    if vain := [item for item in failures if not item.recoverable and (item is last or item.run_id in tried)]:
        return EndJob(JobStatus.FAILED, f"{vain[0].reason} (a restart cannot help)")
    found = Streak.of(failures)
    if found is not None and found.ends_loop(facts.poison_batch_attempts):
        return EndJob(JobStatus.FAILED, f"{found.reason} (batch {found.batch} is poison)", found)
    decision = restart_after(failures, facts.restart, facts.job_name)
    if not decision.allowed:
        return EndJob(JobStatus.FAILED, f"{failures[-1].reason} ({decision.reason})")
    if not facts.is_durable:
        return EndJob(JobStatus.FAILED, f"{failures[-1].reason} (its checkpoints were in the memory of its driver)")
    reason = f"{decision.reason}{so_far(found, facts.poison_batch_attempts)}"
    if (left := facts.restart.seconds_left(decision, facts.now, facts.waited)) > 0:
        return Wait(f"{reason}, in {left:.0f} s")
    return _resume(facts, claim, decision.attempt, reason)


def _resume(facts: Facts, claim: Claim, attempt: int, reason: str) -> Resume:
    # Dagster never launches a run key twice, so the key must differ even from a key before the storage was wiped.
    return Resume(attempt, f"{facts.job_name}:{claim.token[:12]}:{len(facts.failures)}", reason)
