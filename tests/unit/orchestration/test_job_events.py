"""What went wrong with a job is told on its asset: once, later if need be, and without a flood."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_ckpt.checkpoint import CheckpointCatalog, Failure
from dagster_ckpt.checkpoint.control.epochs import Claim, End
from dagster_ckpt.clock import SystemClock, iso
from dagster_ckpt.errors import Fenced, InvalidConfiguration, JobAlreadyRunning, RestoreWithLoss, StorageError
from dagster_ckpt.filesystem.memory import MemoryFileSystem
from dagster_ckpt.orchestration.events import JobEvents
from dagster_ckpt.orchestration.events.occurrence import EVENT, Happened, Occurrence, to_tell
from dagster_ckpt.orchestration.events.recorded import recorded
from dagster_ckpt.orchestration.health import CHECK
from dagster_ckpt.orchestration.sensors.job_watch import JobWatch
from dagster_ckpt.spark.events import CheckpointFailed, CheckpointReplaced, EpochClaimed, Restarting, describe
from tests.helpers.checkpoint.driver import ManualClock
from tests.helpers.orchestration.stored_job import StoredJob, make_asset, run_id

_KEY = dg.AssetKey(["orders"])
_REASONS = ("no space left", "the table is gone", "connection to 10.0.0.1 refused")


class Watched:
    """A job, and the Dagster that is told of it."""

    def __init__(self, instance: dg.DagsterInstance, root: Path) -> None:
        self.instance = instance
        self.job = StoredJob(root)

    @property
    def events(self) -> JobEvents:
        """As a new process has them: it remembers nothing."""
        report: Any = self.instance.report_runless_asset_event
        return JobEvents(self.instance, report, _KEY, self.job.catalog, SystemClock())

    def tick(self) -> object:
        """A tick of the resume sensor, in a process that remembers nothing."""
        log = logging.getLogger("tick")
        return JobWatch(self.instance, make_asset(), self.job.catalog, SystemClock(), None, log).step()

    def told(self) -> list[tuple[str, str, int]]:
        """The event, the reason and the times of each observation, the oldest first."""
        found = []
        for record in self.instance.fetch_observations(_KEY, limit=1000, ascending=True).records:
            observation = record.asset_observation
            assert observation is not None
            told = {key: value.value for key, value in observation.metadata.items()}
            assert observation.tags[EVENT] == told["event"]
            assert str(told["next_step"]) in str(observation.description)
            assert len(str(told["next_step"])) > 20, "nobody knows what to do"
            found.append((str(told["event"]), str(told["reason"]), int(str(told["times"]))))
        return found

    def fail(self, claim: Claim, sequence: int, reason: str, *, kind: str = "", recoverable: bool = True) -> None:
        failure = Failure(claim.run_id, sequence, time.time(), None, reason, recoverable, kind)
        self.job.failures.record(claim.series, failure)


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield Watched(instance, tmp_path / "storage")


def test_what_happened_while_nobody_told_is_told_later_and_once(watched: Watched) -> None:
    claim = watched.job.die(run_id())
    for sequence in range(1, 4):
        watched.fail(claim, sequence, "the table is gone")
    watched.fail(claim, 4, "no space left")
    watched.job.end(claim, "FAILED", "no space left (all 3 restarts are used up)")
    for _ in range(3):
        watched.events.look(goes_on=False)
        watched.tick()
    expected = [("restart", "the table is gone", 3), ("failed", "no space left (all 3 restarts are used up)", 1)]
    assert watched.told() == expected

    again = watched.job.die(run_id())
    watched.fail(again, 1, "the table is gone")
    for _ in range(2):
        watched.events.look(goes_on=True)
    assert watched.told() == [*expected, ("restart", "the table is gone", 1)], "a new series of starts"


def test_the_end_of_the_series_before_is_told_by_the_run_after_it(watched: Watched) -> None:
    claim = watched.job.die(run_id())
    watched.fail(claim, 1, "rows would be lost", kind=RestoreWithLoss.__name__, recoverable=False)
    watched.job.end(claim, "FAILED", "rows would be lost (a restart cannot help)")
    watched.job.die(run_id())
    watched.events.look(goes_on=True)
    assert watched.told() == [("refused_start", "rows would be lost (a restart cannot help)", 1)]


def test_the_sensor_tells_of_a_death_when_it_resumes_and_of_the_end_when_it_gives_up(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    claim = watched.job.die(run_id())
    with caplog.at_level(logging.INFO, "tick"):
        request = watched.tick()
    assert [record.message.partition(":")[0] for record in caplog.records if record.name == "tick"] == [
        "Job orders failed",
        "Resuming orders",
    ], "what the tick's own log shows"
    assert isinstance(request, dg.RunRequest)
    ((event, reason, _),) = watched.told()
    assert event == "restart"
    assert claim.run_id in reason
    assert isinstance(watched.tick(), dg.RunRequest), "the run was not launched"
    assert len(watched.told()) == 1

    for sequence in range(1, 4):
        watched.fail(claim, sequence, f"failure {sequence} of the query")
    assert "FAILED" in str(watched.tick())
    assert [event for event, *_ in watched.told()] == ["restart", "restart", "failed"]
    checks = watched.instance.event_log_storage.get_asset_check_execution_history(
        dg.AssetCheckKey(_KEY, CHECK), limit=9
    )
    assert [check.status.value for check in checks] == ["FAILED", "SUCCEEDED"], "the end, and the first restart"


def test_an_interruption_is_told_as_what_it_is(watched: Watched) -> None:
    claim = watched.job.claim(run_id())
    watched.job.checkpoint(watched.job.choose(claim), 0)
    watched.job.beat(claim, alive=False, stopped=True, interrupted=True)
    for _ in range(2):
        assert isinstance(watched.tick(), dg.RunRequest)
    ((event, reason, _),) = watched.told()
    assert event == "restart"
    assert "was interrupted, which is no failure" in reason


def test_a_fallback_is_told_from_the_record_and_a_salvage_by_its_run(watched: Watched) -> None:
    claim = watched.job.claim(run_id())
    store = watched.job.choose(claim)
    metadata = watched.job.checkpoint(store, 0)
    later = watched.job.claim(run_id())
    epochs = watched.job.catalog.records.epochs
    choice = epochs.read_choice(claim.epoch)
    assert choice is not None
    cost = "chk-2 is broken, and it fell back to chk-1 (batch 0): no batch is known to be run again"
    epochs.record_choice(later.epoch, replace(choice, fell_back=cost))
    replaced = CheckpointReplaced(metadata.reference, "a file is gone")
    for _ in range(2):
        watched.events.look(goes_on=True)
        watched.events.happened(replaced)
    assert [event for event, *_ in watched.told()] == ["fallback", "fallback"]
    assert watched.told()[0][1] == cost
    ((_, in_the_log),) = describe(replaced)
    for told in (watched.told()[1][1], in_the_log):
        assert f"{metadata.reference} is broken" in told
        assert "a file is gone" in told


def test_a_run_that_could_not_take_the_job_over_is_told_with_the_hint(watched: Watched) -> None:
    watched.job.beat(watched.job.claim(run_id()), alive=True)
    refused = JobAlreadyRunning(
        "Job 'orders' is already being run.", hint="Terminate run 7 first, or wait for its end."
    )
    watched.events.ended(refused, run_id(), is_resumed=False)
    assert watched.told() == [("refused_start", "Job 'orders' is already being run.", 1)]
    watched.events.ended(StorageError("The storage is down."), run_id(), is_resumed=True)
    watched.events.ended(Fenced("A newer run has it."), run_id(), is_resumed=False)
    assert len(watched.told()) == 1, "the sensor goes on, and the newer run tells"


def test_the_reason_of_the_end_comes_with_the_hint_of_its_error(watched: Watched) -> None:
    claim = watched.job.die(run_id())
    watched.fail(claim, 1, "rows would be lost", kind=RestoreWithLoss.__name__, recoverable=False)
    watched.job.end(claim, "FAILED", "rows would be lost")
    error = RestoreWithLoss("rows would be lost", hint="Put back 0002.json, or launch with allow_loss: true.")
    events = watched.events
    events.happened(EpochClaimed(claim.epoch))
    events.ended(error, claim.run_id, is_resumed=False)
    (record,) = watched.instance.fetch_observations(_KEY, limit=9).records
    assert record.asset_observation is not None
    assert record.asset_observation.metadata["next_step"].value == error.hint


def test_a_storage_that_flaps_all_day_is_told_a_few_times(watched: Watched) -> None:
    events = watched.events
    for number in range(1, 1001):
        events.happened(CheckpointFailed(number, f"attempt {number}: no space left", 1))
    told = watched.told()
    assert [times for *_, times in told] == [2**power for power in range(10)]
    events.happened(CheckpointFailed(1001, "access denied", 1))
    assert watched.told()[-1][1:] == ("access denied (1 in a row)", 1), "another reason is told at once"


def test_a_job_that_ends_while_its_storage_is_down_was_no_refused_start(watched: Watched) -> None:
    claim = watched.job.claim(run_id())
    events = watched.events
    events.happened(EpochClaimed(claim.epoch))
    epochs = watched.job.root / "orders" / "control" / "epochs"
    epochs.rename(epochs.with_name("away"))
    epochs.write_text("no directory")
    events.ended(StorageError("The storage is down."), claim.run_id, is_resumed=False)
    assert watched.told() == [], "the sensor tells of it from the records"


def test_a_damaged_record_stops_no_job(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    claim = watched.job.die(run_id())
    (record,) = watched.job.root.glob(f"orders/*/epochs/e-{claim.epoch:010}")
    record.write_text("damaged")
    watched.events.look(goes_on=True)
    assert watched.told() == []
    assert "is told later" in caplog.text


def test_what_happens_while_dagster_is_away_stops_no_job_and_is_told_once_when_it_is_back(watched: Watched) -> None:
    claim = watched.job.die(run_id())
    watched.fail(claim, 1, "the table is gone")
    report: Any = watched.instance.report_runless_asset_event
    clock, away = ManualClock(), [True]

    def log_event(event: dg.AssetObservation) -> None:
        if away[0]:
            raise ConnectionError("the database of Dagster restarts")
        report(event)

    events = JobEvents(watched.instance, log_event, _KEY, watched.job.catalog, clock)
    events.happened(Restarting("the table is gone", "attempt 1", 1.0))
    events.happened(CheckpointReplaced(f"{1:032x}/chk-7", "a file is gone"))
    events.happened(CheckpointFailed(8, "no space left", 1))
    events.ended(
        JobAlreadyRunning("Another run has it.", hint="Wait for its end, and launch again."), "r", is_resumed=False
    )
    away[0] = False
    events.tick()
    assert watched.told() == [], "not at once: Dagster is back when it is back"
    for _ in range(2):
        clock.advance(3600)
        events.tick()
    assert sorted(event for event, *_ in watched.told()) == [
        "failed_checkpoint",
        "fallback",
        "refused_start",
        "restart",
    ]


def test_a_run_that_is_refused_before_anything_is_looked_at_is_told(watched: Watched) -> None:
    asset = make_asset()
    definitions = dg.Definitions(
        [asset], jobs=[asset.job], resources={"checkpoint_storage": watched.job.storage, "spark": 1}
    )
    config = {"ops": {asset.op_name: {"config": {"configuration": {"execution.checkpointing.interval": "soon"}}}}}
    with pytest.raises(InvalidConfiguration):
        definitions.resolve_job_def(asset.job_name).execute_in_process(config, instance=watched.instance)
    ((event, reason, _),) = watched.told()
    assert event == "refused_start"
    assert "soon" in reason


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("fail"), st.sampled_from(_REASONS)),
        st.tuples(st.just("end"), st.sampled_from(["FAILED", "CANCELED"])),
        st.tuples(st.just("look"), st.booleans()),
    ),
    max_size=12,
)


@given(_STEPS)
@settings(max_examples=60)
def test_whoever_is_killed_before_it_tells_the_next_look_tells_each_end_once(steps: list[tuple[str, Any]]) -> None:
    """A run records, and is killed before it tells; nobody looks, or only later, or in the middle of a series."""
    catalog = CheckpointCatalog(MemoryFileSystem(), "orders")
    records = catalog.records
    told: dict[str, Occurrence] = {}
    ends: list[set[str]] = []

    def look(*, goes_on: bool) -> None:
        for item in to_tell(recorded(catalog, told.keys(), goes_on=goes_on), told.keys()):
            assert item.id not in told, "told twice"
            told[item.id] = item

    def claim() -> Claim:
        return records.epochs.claim(token=run_id(), series=None, run_id=run_id(), host="h", pid=1, now=iso(0))

    held, failed = claim(), 0
    for number, (step, what) in enumerate(steps):
        match step:
            case "fail":
                failed += 1
                records.failures.record(held.series, Failure(held.run_id, failed, float(number), None, what))
            case "end":
                records.epochs.record_end(held.epoch, End(what, f"no{'o' * number}", False, iso(number)))
                ends.append({f"{held.run_id}-{failed:06}-end"} if what == "FAILED" and failed else set())
                held, failed = claim(), 0
            case _:
                look(goes_on=what)
    look(goes_on=True)
    of_end = {Happened.FAILED, Happened.REFUSED_START}
    known = {item.id for item in told.values() if item.event in of_end}
    assert set().union(*ends[-4:]) <= known <= set().union(*ends)


@given(st.lists(st.tuples(st.sampled_from(_REASONS), st.sampled_from([1.0, 60.0, 5000.0])), max_size=150))
def test_each_reason_is_told_at_once_and_a_hundred_times_at_eight_counts(steps: list[tuple[str, float]]) -> None:
    """Whatever comes in whatever order: nothing is silent, nothing floods, and what is told is up to date by half."""
    known: list[Occurrence] = []
    told: dict[str, Occurrence] = {}
    now, calm = 0.0, dict.fromkeys(_REASONS, -math.inf)
    since: dict[str, list[Occurrence]] = {}
    for number, (reason, later) in enumerate(steps):
        now += later
        if now - calm[reason] > 3600:
            since[reason] = []
        calm[reason] = now
        known.append(Occurrence(Happened.RESTART, f"f-{number}", now, f"{reason} {number}", "Nothing is to be done."))
        since[reason].append(known[-1])
        for item in to_tell(known, told.keys()):
            assert item.id not in told, "told twice"
            told[item.id] = item
        own = [told[item.id] for item in since[reason] if item.id in told]
        assert own, "the first one was not told"
        assert 2 * own[-1].times > len(since[reason]), "what was told is too old"
        assert len(own) <= math.log2(len(since[reason])) + 1, "a flood"


def test_what_was_told_too_long_ago_to_be_found_is_not_told_each_time() -> None:
    known = [Occurrence(Happened.RESTART, f"f-{number}", float(number), "again", "") for number in range(1000)]
    told = [count for count in range(101, 1001) if list(to_tell(known[:count], ()))]
    assert told == list(range(200, 1001, 100))
