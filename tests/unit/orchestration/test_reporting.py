from __future__ import annotations

import contextlib
import random
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import dagster as dg
import pytest

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.control.quarantine import FellBack, Quarantined
from dagster_ckpt.checkpoint.format.facts import Facts, Operator, Source, Topic
from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata
from dagster_ckpt.checkpoint.taking.retained import Discarded
from dagster_ckpt.config import format_size
from dagster_ckpt.config.retention import Retention
from dagster_ckpt.errors import CheckpointNotFound, StorageError
from dagster_ckpt.orchestration.names import partition_key
from dagster_ckpt.orchestration.reporting import CheckpointReporter, checkpoint_metadata, retained_metadata
from dagster_ckpt.orchestration.rollback import Launchpad
from tests.helpers.orchestration.stored_job import StoredJob, run_id

if TYPE_CHECKING:
    from dagster_ckpt.checkpoint.taking.store import CompletedCheckpointStore

_KEY = dg.AssetKey(["orders_checkpoints"])
_PARTITIONS = "orders_checkpoints"
_INTERVAL = 10.0


class ManualClock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def time(self) -> float:
        return 1_700_000_000 + self.now

    def monotonic(self) -> float:
        return self.now


class Reports:
    """A job that completes checkpoints, and what a reporter makes of them."""

    def __init__(self, instance: dg.DagsterInstance, root: Path) -> None:
        self.instance = instance
        self.clock = ManualClock()
        self.job = StoredJob(root)
        self.store: CompletedCheckpointStore = self.job.choose(self.job.claim(run_id()))
        self.reporter = self.new_reporter()
        self._batch = 0

    def new_reporter(self, interval: float = _INTERVAL, launchpad: Launchpad | None = None) -> CheckpointReporter:
        reporter = CheckpointReporter(
            self.instance,
            self.instance.report_runless_asset_event,
            _KEY,
            _PARTITIONS,
            self.job.catalog,
            self.clock,
            interval,
            launchpad,
        )
        reporter.holds(self.job.catalog.records.epochs.highest())
        return reporter

    def complete(self, *, after: float = 0, keep: int = 100) -> CheckpointMetadata:
        self.clock.now += after
        self._batch += 1
        metadata = self.job.checkpoint(self.store, self._batch)
        self.reporter.subsumed(self.store.subsume(Retention(keep)), self.store.retained)
        return metadata

    def materialized(self) -> list[str | None]:
        """Partitions materialized, the oldest first."""
        records = self.instance.fetch_materializations(_KEY, limit=100, ascending=True).records
        return [record.partition_key for record in records]

    def observed(self) -> dict[str | None, str]:
        """Why partitions went."""
        records = self.instance.fetch_observations(_KEY, limit=100).records
        return {
            record.partition_key: str(record.asset_observation.metadata["reason"].value)
            for record in records
            if record.asset_observation
        }

    def shown(self) -> set[str]:
        return set(self.instance.get_dynamic_partitions(_PARTITIONS))


@pytest.fixture
def reports(tmp_path: Path) -> Iterator[Reports]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield Reports(instance, tmp_path / "storage")


@pytest.mark.parametrize("is_new_run", [True, False], ids=["the next run", "the next start"])
def test_what_dagster_has_lost_of_the_history_is_told_by_the_next_start_once(
    reports: Reports, is_new_run: bool
) -> None:
    """A wiped asset, as one whose runs were deleted, keeps its partitions."""
    lost = [partition_key(reports.complete(after=_INTERVAL)) for _ in range(2)]
    reports.instance.wipe_assets([_KEY])
    after = partition_key(reports.complete(after=_INTERVAL))
    assert reports.materialized() == [after]
    if is_new_run:
        reports.reporter = reports.new_reporter()
    reports.reporter.began(reports.store.retained)
    assert reports.materialized() == [after, *lost, after], "the asset's latest event is its newest checkpoint"
    assert reports.instance.get_materialized_partitions(_KEY) == reports.shown()
    newest = partition_key(reports.complete(after=_INTERVAL))
    reports.reporter.began(reports.store.retained)
    assert reports.materialized() == [after, *lost, after, newest]


def test_what_is_lost_is_told_by_several_reports_where_one_takes_too_long(
    reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [partition_key(reports.complete(after=_INTERVAL)) for _ in range(4)]
    reports.instance.wipe_assets([_KEY])
    log_event = reports.instance.report_runless_asset_event

    def slowly(event: Any) -> None:
        log_event(event)
        reports.clock.now += 6

    monkeypatch.setattr(reports.instance, "report_runless_asset_event", slowly)
    reports.reporter = reports.new_reporter()
    reports.reporter.began(reports.store.retained)
    assert reports.materialized() == keys[:2]
    reports.reporter.tick()
    assert reports.materialized() == keys
    assert reports.reporter.is_told


def test_at_most_one_report_per_interval_and_the_last_always(reports: Reports) -> None:
    first = reports.complete()
    assert reports.materialized() == [partition_key(first)]
    second, third = reports.complete(after=4), reports.complete(after=5.9)
    assert reports.materialized() == [partition_key(first)], "9.9 s are not the interval"
    fourth = reports.complete(after=0.1)
    keys = [partition_key(item) for item in (first, second, third, fourth)]
    assert reports.materialized() == keys, "each retained checkpoint is a materialization, whatever the rate"
    last = reports.complete(after=1)
    assert reports.materialized() == keys
    reports.reporter.flush()
    assert reports.materialized() == [*keys, partition_key(last)]
    reports.reporter.flush()
    assert reports.materialized() == [*keys, partition_key(last)], "nothing is told twice"


def test_what_a_report_was_too_early_for_is_told_when_its_time_has_come(reports: Reports) -> None:
    """Also when the input is idle, and no other checkpoint follows."""
    first = reports.complete()
    second = reports.complete(after=4, keep=1)
    reports.reporter.tick()
    assert reports.shown() == {partition_key(first)}
    reports.clock.now += 6
    reports.reporter.tick()
    assert reports.shown() == {partition_key(second)}
    assert reports.materialized() == [partition_key(first), partition_key(second)]


def test_what_dagster_refused_is_told_again_though_nothing_follows(
    reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as refusing:
        refusing.setattr(reports.instance, "add_dynamic_partitions", _refuse)
        with pytest.raises(OSError, match="locked"):
            reports.complete()
        reports.clock.now += _INTERVAL
        with pytest.raises(OSError, match="locked"):
            reports.reporter.tick()
    reports.reporter.tick()
    assert not reports.shown(), "not before the interval"
    reports.clock.now += _INTERVAL
    reports.reporter.tick()
    assert reports.shown() == {partition_key(item) for item in reports.store.retained}


def test_a_run_that_has_lost_the_job_reports_nothing_any_more(reports: Reports) -> None:
    """It wakes up with what it knew: what the newer run has shown stays."""
    first = reports.complete()
    newer = reports.job.choose(reports.job.claim(run_id()), first)
    second = reports.job.checkpoint(newer, 9)
    successor = reports.new_reporter()
    successor.began(newer.retained)
    assert reports.shown() == {partition_key(first), partition_key(second)}
    reports.reporter.subsumed([Discarded(first, "subsumed")], [])
    reports.reporter.flush()
    assert reports.shown() == {partition_key(first), partition_key(second)}
    assert not reports.observed()


def _refuse(*_: Any) -> None:
    raise OSError("database is locked")


def test_partitions_are_the_retained_set_and_what_goes_says_why(reports: Reports) -> None:
    first = reports.complete()
    second = reports.complete(after=_INTERVAL, keep=2)
    assert reports.shown() == {partition_key(first), partition_key(second)}
    third = reports.complete(after=_INTERVAL, keep=2)
    assert reports.shown() == {partition_key(second), partition_key(third)}
    assert reports.observed() == {partition_key(first): "not among the 2 newest"}


def test_a_checkpoint_is_shown_before_what_it_subsumes_goes(reports: Reports) -> None:
    first = reports.complete()
    second = reports.job.checkpoint(reports.store, 7)
    reports.clock.now += _INTERVAL
    reports.reporter.completed(reports.store.retained)
    assert reports.shown() == {partition_key(first), partition_key(second)}
    reports.reporter.subsumed(reports.store.subsume(Retention(1)), reports.store.retained)
    reports.clock.now += _INTERVAL
    reports.reporter.tick()
    assert reports.shown() == {partition_key(second)}
    assert reports.observed() == {partition_key(first): "not among the 1 newest"}


def test_a_checkpoint_that_came_and_went_between_two_reports_is_never_shown(reports: Reports) -> None:
    first = reports.complete(keep=1)
    second = reports.complete(after=1, keep=1)
    third = reports.complete(after=1, keep=1)
    reports.reporter.flush()
    assert reports.materialized() == [partition_key(first), partition_key(third)]
    assert partition_key(second) not in reports.observed()
    assert reports.shown() == {partition_key(third)}
    assert set(reports.observed()) == {partition_key(first)}
    assert not reports.reporter._reasons, "what is never shown must not be remembered for a month"


def test_of_several_checkpoints_told_of_at_once_the_newest_has_the_table_of_all(reports: Reports) -> None:
    """Ten thousand of them would have ten thousand tables."""
    reports.complete()
    for _ in range(3):
        reports.complete(after=1)
    reports.reporter.flush()
    tables = {}
    for record in reports.instance.fetch_materializations(_KEY, limit=100).records:
        assert record.asset_materialization is not None
        retained = record.asset_materialization.metadata.get("retained_checkpoints")
        tables[record.partition_key] = None if retained is None else retained.value
    first, *between, last = (partition_key(item) for item in reports.store.retained)
    assert tables == {first: 1, **dict.fromkeys(between), last: 4}


class PassingClock(ManualClock):
    """Four seconds pass from one look to the next."""

    def monotonic(self) -> float:
        self.now += 4
        return self.now


def test_a_report_of_too_many_is_gone_on_with_in_order(reports: Reports) -> None:
    """Whoever reports has more to do: a sensor's tick is cut off after a minute."""
    completed = [reports.job.checkpoint(reports.store, batch) for batch in range(20)]
    keys = [partition_key(item) for item in completed]
    reports.clock = PassingClock()
    reporter = reports.new_reporter()
    reporter.began(reports.store.retained)
    told = len(reports.materialized())
    assert (1 < told < len(keys) / 2, reporter.is_told) == (True, False)
    for _ in range(len(keys)):
        reporter.tick()
    assert reporter.is_told
    assert reports.materialized() == keys
    assert list(reports.instance.get_dynamic_partitions(_PARTITIONS)) == keys

    gone = reports.store.subsume(Retention(1))
    reporter.subsumed(gone, reports.store.retained)
    assert (1 < len(reports.observed()) < len(gone) / 2, reporter.is_told) == (True, False)
    for _ in range(len(keys)):
        reporter.tick()
    assert (reports.shown(), reporter.is_told) == ({keys[-1]}, True)
    assert len(set(reports.observed().values())) == 1, "all have the reason that the first had"


def test_a_new_instance_is_told_of_every_retained_checkpoint(reports: Reports) -> None:
    completed = [reports.job.checkpoint(reports.store, batch) for batch in range(3)]
    reports.reporter.began(reports.store.retained)
    keys = [partition_key(item) for item in completed]
    assert reports.materialized() == keys
    again = reports.new_reporter()
    again.began(reports.store.retained)
    assert reports.materialized() == keys, "a restart on the same instance repeats nothing"


def test_partitions_of_a_lineage_that_was_left_stay_as_long_as_its_checkpoints(reports: Reports) -> None:
    old, deleted = reports.complete(), reports.complete(after=_INTERVAL)
    other = reports.job.choose(reports.job.claim(run_id()))
    new = reports.job.checkpoint(other, 1)
    reporter = reports.new_reporter()
    reporter.began(other.retained)
    assert reports.shown() == {partition_key(item) for item in (old, deleted, new)}
    assert not reports.observed()
    assert reports.materialized()[-1] == partition_key(new), "the asset's latest event is its newest checkpoint"

    (reports.job.root / "orders" / deleted.reference / "_metadata").unlink()
    reports.clock.now += _INTERVAL
    reporter.completed(other.retained)
    assert reports.shown() == {partition_key(old), partition_key(new)}
    assert list(reports.observed()) == [partition_key(deleted)]
    assert "no longer in the storage" in reports.observed()[partition_key(deleted)]


def test_partitions_of_a_lineage_that_was_left_stay_while_the_storage_does_not_answer(
    reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = reports.complete()
    other = reports.job.choose(reports.job.claim(run_id()))
    new = reports.job.checkpoint(other, 1)
    reporter = reports.new_reporter()
    with monkeypatch.context() as away:
        away.setattr(CheckpointCatalog, "job_ids", _storage_fails)
        reporter.began(other.retained)
        assert reports.shown() == {partition_key(old), partition_key(new)}
    (reports.job.root / "orders" / old.reference / "_metadata").unlink()
    reports.clock.now += _INTERVAL
    reporter.completed(other.retained)
    assert reports.shown() == {partition_key(new)}


def _storage_fails(*_: Any) -> None:
    raise StorageError("The storage is away.")


class Wandering(Reports):
    """A job that goes from lineage to lineage."""

    def restorable(self) -> list[CheckpointMetadata]:
        """What a launch can name, one by one."""
        catalog, found = self.job.catalog, []
        quarantined = catalog.records.quarantine.names()
        for job_id in catalog.job_ids():
            for number in catalog.numbers(job_id):
                with contextlib.suppress(CheckpointNotFound):
                    found.append(catalog.load(job_id, number, named=True))
        return [item for item in found if item.reference not in quarantined]

    def start(self, restored: CheckpointMetadata | None) -> None:
        """From nothing or a savepoint, which begins a lineage, or from a checkpoint of any lineage."""
        self.store = self.job.choose(self.job.claim(run_id()), restored)
        self.reporter = self.new_reporter()
        self.reporter.began(self.store.retained)

    def delete_by_hand(self, metadata: CheckpointMetadata, *, whole: bool) -> None:
        directory = self.job.root / "orders" / metadata.reference
        if whole:
            shutil.rmtree(directory)
        else:
            (directory / "_metadata").unlink()

    def quarantine(self, metadata: CheckpointMetadata) -> None:
        record = Quarantined(metadata.reference, "A file is gone.", 2, "run", "host", "then")
        self.job.catalog.records.quarantine.add(record)

    def step(self, choose: random.Random) -> None:
        there = self.restorable()
        left = [item for item in there if item.job_id != self.store.job_id]
        match choose.choice(["complete"] * 5 + ["leave", "back", "back", "delete", "quarantine", "end"]):
            case "complete":
                self.complete(after=_INTERVAL, keep=choose.randint(1, 4))
            case "leave":
                self.start(None)
            case "back" if there:
                self.start(choose.choice(there))
            case "delete" if left:
                self.delete_by_hand(choose.choice(left), whole=choose.random() < 0.5)
                self.clock.now += _INTERVAL
                self.reporter.completed(self.store.retained)
            case "quarantine" if left:
                self.quarantine(choose.choice(left))
                self.clock.now += _INTERVAL
                self.reporter.completed(self.store.retained)
            case "end":
                discarded = self.store.discard_all("FINISHED: of the test")
                self.reporter.discarded(discarded, self.store.retained)
                self.start(None)


@pytest.mark.parametrize("seed", range(6))
def test_a_partition_is_there_exactly_as_long_as_its_checkpoint_can_be_restored(tmp_path: Path, seed: int) -> None:
    """Whatever lineages the job begins, leaves and comes back to, and whatever is deleted of them."""
    choose = random.Random(seed)
    with dg.DagsterInstance.ephemeral() as instance:
        job = Wandering(instance, tmp_path / "storage")
        ever: set[str] = set()
        for _ in range(30):
            job.step(choose)
            there = {partition_key(item) for item in job.restorable()}
            assert job.shown() == there
            ever |= there
        assert len({key.partition(".")[0] for key in ever}) > 1, "the job has left a lineage"
        assert {*instance.get_materialized_partitions(_KEY)} == ever, "each was told"
        gone = {record.partition_key for record in instance.fetch_observations(_KEY, limit=1000).records}
        assert gone >= ever - there, "each that went says why"


def test_given_up_checkpoints_go_with_the_reason_of_the_policy(reports: Reports) -> None:
    only = reports.complete()
    reports.reporter.discarded([Discarded(only, "CANCELED: by the user")], [])
    assert reports.shown() == set()
    assert reports.observed() == {partition_key(only): "CANCELED: by the user"}


def test_a_reporter_that_never_heard_of_a_start_touches_nothing(reports: Reports) -> None:
    """A run that was refused must not take the partitions of the one that runs away."""
    first = reports.complete()
    reports.new_reporter().flush()
    assert reports.shown() == {partition_key(first)}


class Interrupted(BaseException):
    """What a terminated run's main thread is interrupted with."""


@pytest.mark.parametrize("error", [OSError, Interrupted])
@pytest.mark.parametrize("done", [False, True], ids=["not done", "done"])
@pytest.mark.parametrize("nth", range(1, 9))
def test_a_report_that_ends_at_any_request_is_made_by_the_next(
    reports: Reports, monkeypatch: pytest.MonkeyPatch, nth: int, error: type[BaseException], *, done: bool
) -> None:
    """Dagster refuses, or the run is interrupted or killed; the next report may be that of another process."""
    old = reports.complete()
    asked = 0

    def interrupt(name: str) -> None:
        genuine = getattr(reports.instance, name)

        def interrupted(*args: Any) -> Any:
            nonlocal asked
            asked += 1
            if asked != nth:
                return genuine(*args)
            if done:
                genuine(*args)
            raise error("the report ends here")

        monkeypatch.setattr(reports.instance, name, interrupted)

    for name in ("get", "add"):
        interrupt(f"{name}_dynamic_partitions")
    interrupt("delete_dynamic_partition")
    interrupt("report_runless_asset_event")
    reports.reporter = reports.new_reporter()

    def report() -> None:
        # A checkpoint is told and its partition added; then another, for which the oldest goes: eight requests.
        for _ in range(2):
            reports.complete(after=_INTERVAL, keep=2)

    with pytest.raises(error):
        report()
    monkeypatch.undo()
    assert asked == nth

    retained = [partition_key(item) for item in reports.store.retained]
    for reporter in (reports.reporter, reports.new_reporter()):
        reporter.began(reports.store.retained)
    assert list(dict.fromkeys(reports.materialized()))[-2:] == retained
    assert reports.shown() == set(retained)
    assert set(reports.observed()) == {partition_key(old)} - set(retained)


def test_metadata_has_numbers_for_plots_and_the_pointer_and_the_retained_table(reports: Reports) -> None:
    first, second = reports.complete(), reports.complete()
    retained = reports.store.retained
    found = {**checkpoint_metadata(second, reports.job.catalog), **retained_metadata(retained)}
    numbers: dict[str, Any] = {
        "checkpoint_id": 2,
        "epoch": 1,
        "batch": 2,
        "files": 1,
        "bytes": second.size,
        "new_bytes": second.new_bytes,
        "size": format_size(second.size),
        "input_rows": 7,
        "state_rows": 5,
        "retained_checkpoints": 2,
        "retained_bytes": first.size + second.size,
    }
    assert {key: found[key] for key in numbers} == numbers
    assert isinstance(found["duration_ms"], float)
    assert found["pointer"].value == reports.job.catalog.pointer(second)
    assert reports.job.catalog.resolve(found["pointer"].value) == second, "it can be given to restore_from"
    assert found["watermark"].value == 2.0
    assert found["restored_from"] == "nothing"
    rows = [row.data for row in found["retained"].records]
    assert [(row["checkpoint"], row["batch"]) for row in rows] == [(second.name, 2), (first.name, 1)]
    size, written = format_size(second.size), datetime.fromisoformat(second.written_at)
    assert rows[0] == {"checkpoint": "chk-2", "batch": 2, "bytes": size, "written_at": f"{written:%m-%d %H:%M:%S}Z"}

    many = [replace(first, checkpoint_id=number) for number in range(1, 10_001)]
    shown = retained_metadata(many)
    assert shown["retained_checkpoints"] == 10_000
    named = [row.data["checkpoint"] for row in shown["retained"].records]
    assert named == [f"chk-{number}" for number in range(10_000, 9_950, -1)], "each event has the table"


def test_the_newest_lists_those_to_go_back_to_with_the_newest_on_top(reports: Reports) -> None:
    """Whatever the keys are, the UI lists partitions in the order of their creation."""
    reports.reporter = reports.new_reporter(launchpad=Launchpad("here.py", "orders"))
    for _ in range(11):
        last = reports.complete()
    reports.reporter.flush()
    records = reports.instance.fetch_materializations(_KEY, limit=100).records
    listed = {
        record.partition_key: str(record.asset_materialization.metadata["go_back_to"].value)
        for record in records
        if record.asset_materialization is not None and "go_back_to" in record.asset_materialization.metadata
    }
    heading, empty, *links = listed[partition_key(last)].split("\n")
    assert (heading, empty) == ("Click one, then Launch Run:", "")
    named = [re.match(r"- \[(chk-\d+)\]\(/locations/here.py/jobs/orders_rollback/", link) for link in links]
    assert [match and match[1] for match in named] == [f"chk-{number}" for number in range(11, 0, -1)]
    for link, item in zip(links, reversed(reports.store.retained), strict=True):
        assert quote(item.reference, safe="") in link
    assert len(listed) == 2, "of several that are told of at once, only the newest has the list"

    many = [replace(last, checkpoint_id=number) for number in range(1, 10_001)]
    shown = str(Launchpad("here.py", "orders").newest_first(many).value)
    assert shown.count("chk-") // 2 == 20
    assert len(shown) < 5_000, "each event has the list"


def test_operators_and_sources_have_numbers_for_plots(reports: Reports) -> None:
    facts = Facts(
        watermark_ms=1_000,
        timestamp_ms=61_000,
        operators=[
            Operator(id="0", name="dedupe", partitions=4, stores=["default"]),
            Operator(id="1", name="stateStoreSave", partitions=2, stores=["default"]),
        ],
        sources=[
            Source(id="0", offset={"topic": {"0": 40, "1": 2}}),
            Source(id="1", offset={"logOffset": 7}),
            Source(id="2", offset=None),
        ],
        progress={"operator_0_keys": 33, "batch_ms": 120, "rows_per_second": 1.5},
    )
    metadata = replace(reports.complete(), facts=facts)
    found = checkpoint_metadata(metadata, reports.job.catalog)
    plots = {
        "operator_0_keys": 33,
        "operator_0_bytes": metadata.size,
        "operator_0_partitions": 4,
        "operator_1_bytes": 0,
        "operator_1_partitions": 2,
        "source_0_offset": 42,
        "source_1_offset": 7,
        "watermark_lag_seconds": 60.0,
        "batch_ms": 120,
        "rows_per_second": 1.5,
    }
    assert {key: found.get(key) for key in plots} == plots
    assert not {"operator_1_keys", "source_2_offset"} & found.keys()
    assert [row.data["name"] for row in found["operators"].records] == ["dedupe", "stateStoreSave"]
    assert found["source_0"] == '{"topic": {"0": 40, "1": 2}}'


def test_each_source_has_a_lag_of_its_own_and_of_its_worst_partition_beside_the_sum(reports: Reports) -> None:
    def read(id_: str, ends: dict[str, dict[str, int]]) -> Source:
        offsets = {topic: dict.fromkeys(latest, 40) for topic, latest in ends.items()}
        topics = {topic: Topic(id=topic, latest=latest) for topic, latest in ends.items()}
        return Source(id=id_, offset=offsets, topics=topics)

    two_topics = {"orders": {"0": 41, "1": 47, "2": 40}, "late": {"0": 42}}
    facts = Facts(sources=[read("0", two_topics), read("1", {"refunds": {"0": 140}}), Source(id="2", offset=7)])
    found = checkpoint_metadata(replace(reports.complete(), facts=facts), reports.job.catalog)
    assert {key: found[key] for key in found if key.endswith("lag")} == {
        "lag": 110,
        "source_0_lag": 10,
        "source_0_most_lag": 7,
        "source_1_lag": 100,
        "source_1_most_lag": 100,
    }


def test_unknown_facts_are_left_out(reports: Reports) -> None:
    metadata = reports.complete()
    bare = replace(metadata, facts=Facts())
    found = checkpoint_metadata(bare, reports.job.catalog)
    assert not {"input_rows", "state_rows", "watermark"} & found.keys()
    assert None not in found.values()


def test_partition_keys_differ_between_lineages(reports: Reports) -> None:
    first = reports.complete()
    other = reports.job.checkpoint(reports.job.choose(reports.job.claim(run_id())), 1)
    assert first.name == other.name == "chk-1"
    assert partition_key(first) != partition_key(other)


def test_a_fallback_is_told_with_what_it_costs(reports: Reports) -> None:
    """At once as an observation, with the partition that goes, and with every checkpoint of the run."""
    first, second = reports.complete(), reports.complete(after=_INTERVAL)
    quarantined = Quarantined(second.reference, "A file is gone.", 2, "run", "host", "then")
    reports.job.catalog.records.quarantine.add(quarantined)
    store = reports.job.choose(reports.job.claim(run_id()), first)
    reporter = reports.new_reporter(interval=0)
    reporter.quarantined(quarantined)
    reporter.began(store.retained)
    cost = FellBack((second.reference,), first.name, first.batch, second.batch, files=4, rows=None)
    reporter.fell_back(cost)
    third = reports.job.checkpoint(store, 7)
    reporter.completed(store.retained)

    assert reports.shown() == {partition_key(first), partition_key(third)}
    told = [record.asset_observation for record in reports.instance.fetch_observations(_KEY, limit=9).records]
    assert [observation.partition for observation in told if observation] == [None, partition_key(second)]
    assert told[1] is not None
    assert told[1].metadata["reason"].value == "it is in quarantine: A file is gone."
    (materialized,) = reports.instance.fetch_materializations(_KEY, limit=1).records
    for shown in (told[0], materialized.asset_materialization):
        assert shown is not None
        assert shown.metadata["fell_back"].value == str(cost)
        assert shown.metadata["batches_run_again"].value == 1
        assert shown.metadata["files_run_again"].value == 4
        assert "rows_run_again" not in shown.metadata
