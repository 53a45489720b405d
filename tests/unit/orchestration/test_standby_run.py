"""The run that waits beside a job, without Spark: what it does when its surroundings fail, and what it asks for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import dagster as dg
import pytest
from dagster._core.log_manager import DagsterLogManager

from dagster_ckpt.checkpoint.control.epochs import Claim
from dagster_ckpt.checkpoint.control.heartbeat import Heartbeat
from dagster_ckpt.checkpoint.lease import Lease
from dagster_ckpt.clock import SystemClock
from dagster_ckpt.errors import DriverLost, StorageError
from dagster_ckpt.orchestration import names
from dagster_ckpt.orchestration.standby import StandbyRun, Takeover, standby_run
from dagster_ckpt.orchestration.standby.rehearsing import Rehearsing
from dagster_ckpt.spark.events import EpochClaimed
from tests.helpers.orchestration.stored_job import make_asset
from tests.unit.orchestration.test_standby_runs import Bench, Status


class Over(BaseException):
    """The test has seen enough: an interrupt."""


class Warm:
    """Stands for a session that is warm at once."""

    error: Exception | None = None

    def __init__(self, *_: object) -> None:
        pass

    def is_warm(self) -> bool:
        if self.error is not None:
            raise self.error
        return True

    def take(self) -> None:
        pass


class Beside:
    """A standby beside a job that runs; ``turns`` is what happens at its turns, one after the other."""

    def __init__(self, bench: Bench, given: Mapping[str, Any] | None = None) -> None:
        self.bench, self.claim = bench, bench.run(given=given)
        (request,) = bench.tick()
        self.run_id = bench.launched(request)
        self.turns: Iterator[Callable[[], object]] = iter(())
        run = SimpleNamespace(run_id=self.run_id, run_config=request.run_config, tags=request.tags)
        beside = bench.instance.get_run_by_id(self.run_id)
        self.context = SimpleNamespace(
            run=run,
            instance=bench.instance,
            log=DagsterLogManager.create([], instance=bench.instance, dagster_run=cast("dg.DagsterRun", beside)),
            resources=SimpleNamespace(**bench.resources),
        )
        self.standby = StandbyRun(
            cast("dg.AssetExecutionContext", self.context),
            make_asset(standby=True),
            bench.job.catalog,
            SystemClock(),
            self._turn,
            cast("Any", None),
        )

    def _turn(self) -> None:
        next(self.turns, _end)()

    @property
    def sign(self) -> Path:
        (sign,) = self.bench.job.root.rglob("standbys/*")
        return sign

    def die(self) -> None:
        """The job's run is dead."""
        self.bench.job.beat(self.claim, alive=False)

    def takes_over(self) -> Claim:
        """The standby sees that the job's run is dead, and claims the job."""
        self.turns = iter([list, list, self.die, *[list] * 100])
        assert isinstance(self.standby.wait(), Takeover)
        return self.bench.job.claim(self.run_id, series=self.claim.series)


def _end() -> None:
    raise Over


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(standby_run, "WarmSession", Warm)
    sleep = time.sleep
    monkeypatch.setattr(time, "sleep", lambda _: sleep(0.002))
    monkeypatch.setattr(Warm, "error", None)
    with dg.DagsterInstance.ephemeral() as instance:
        yield Bench(instance, tmp_path)


@pytest.fixture
def beside(bench: Bench) -> Beside:
    return Beside(bench)


@pytest.fixture
def pass_time(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    passed, monotonic = 0.0, SystemClock.monotonic

    def advance(seconds: float) -> None:
        nonlocal passed
        passed += seconds

    monkeypatch.setattr(SystemClock, "monotonic", lambda clock: monotonic(clock) + passed)
    return advance


class Away(Exception):
    """What the driver of a database raises."""


class Database:
    """That of Dagster: while it is away, it takes no event, no line of a log and no tag, and answers nothing."""

    def __init__(self, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_away, self.refused = False, 0
        for storage, names_ in {
            instance.event_log_storage: ["store_event", "store_event_batch"],
            instance.run_storage: ["add_run_tags", "get_runs", "get_run_records"],
        }.items():
            for name in names_:
                monkeypatch.setattr(storage, name, self._guarded(getattr(storage, name)))

    def _guarded(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*args: Any, **options: Any) -> Any:
            if self.is_away:
                self.refused += 1
                raise Away("server closed the connection")
            return call(*args, **options)

        return guarded

    def goes(self) -> None:
        self.is_away = True

    def returns(self) -> None:
        self.is_away = False


@pytest.fixture
def database(beside: Beside, monkeypatch: pytest.MonkeyPatch) -> Database:
    return Database(beside.bench.instance, monkeypatch)


def test_a_standby_beats_as_the_run_beside_it_was_launched_to(bench: Bench) -> None:
    beside = Beside(bench, {"configuration": {"heartbeat.interval": "20 s", "heartbeat.timeout": "2 min"}})
    beside.turns = iter([list] * 5)
    with pytest.raises(Over):
        beside.standby.wait()
    (sign,) = bench.standbys.all()
    assert sign.lease == Lease(20, 120)


def test_a_database_that_takes_no_line_of_the_log_either_ends_no_standby(
    beside: Beside, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """Dagster answers a line that it cannot write with another write, and raises what that one raises."""
    refused = list[int]()

    def counted() -> None:
        refused.append(database.refused)

    beside.turns = iter([list, list, database.goes, beside.die, *[list] * 5, counted, database.returns, *[list] * 100])
    assert isinstance(beside.standby.wait(), Takeover)
    assert refused[0] > 5, "a line, the event that tells of it, and each look"
    warned = [line.getMessage() for line in caplog.records if "cannot look after the job now" in line.getMessage()]
    assert len(warned) == 1, "once, in the output of the process"


def test_a_run_that_has_taken_the_job_over_goes_on_though_the_database_takes_nothing(
    beside: Beside, database: Database, pass_time: Callable[[float], None]
) -> None:
    beside.takes_over()
    database.goes()
    beside.standby.happened(EpochClaimed(1))
    assert database.refused
    pass_time(5)
    database.returns()
    beside.standby.settle()
    run = beside.bench.instance.get_run_by_id(beside.run_id)
    assert run is not None
    assert run.tags[names.RESUMES_TAG] == beside.claim.run_id


def test_a_rehearsal_that_cannot_be_tagged_does_not_begin_and_ends_no_standby(
    beside: Beside, database: Database
) -> None:
    asset = make_asset(standby=True)
    asset.rehearses = True
    context = cast("dg.AssetExecutionContext", beside.context)
    rehearsing = Rehearsing(context, asset, beside.bench.job.catalog, cast("Any", None))
    database.goes()
    rehearsing.go_on(may_begin=True)
    assert database.refused
    assert rehearsing.gives_way()


def test_trouble_with_the_storage_between_ends_the_count_of_trouble_with_the_database(
    beside: Beside, pass_time: Callable[[float], None]
) -> None:
    def fail() -> None:
        raise Away("server closed the connection")

    def fail_to_read() -> None:
        pass_time(700)
        raise StorageError("the storage is away")

    beside.turns = iter([list, list, fail, fail_to_read, fail])
    with pytest.raises(Over):
        beside.standby.wait()


def test_dagster_hears_of_a_takeover_as_soon_as_its_database_answers(
    beside: Beside, pass_time: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then the sign of the standby stays, and nothing ends the run."""
    beside.takes_over()
    instance, tag = beside.bench.instance, beside.bench.instance.add_run_tags

    def fail(*_: object) -> None:
        raise RuntimeError("the database is away")

    monkeypatch.setattr(instance, "add_run_tags", fail)
    beside.standby.happened(EpochClaimed(1))
    pass_time(5)
    beside.standby.settle()
    assert beside.sign.exists()
    monkeypatch.setattr(instance, "add_run_tags", tag)
    beside.standby.settle()
    assert beside.sign.exists(), "it is not asked at each turn"
    pass_time(5)
    beside.standby.settle()
    run = instance.get_run_by_id(beside.run_id)
    assert run is not None
    assert run.tags.items() >= {names.JOB_TAG: "orders", names.RESUMES_TAG: beside.claim.run_id}.items()
    assert not list(beside.bench.job.root.rglob("standbys/*"))


def test_dagster_knows_of_a_takeover_before_the_sign_goes_and_not_before_the_claim(
    beside: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside.takes_over()
    beside.standby.settle()
    tag, known = beside.bench.instance.add_run_tags, list[bool]()

    def tell(*args: Any) -> None:
        known.append(beside.sign.exists())
        tag(*args)

    monkeypatch.setattr(beside.bench.instance, "add_run_tags", tell)
    beside.standby.happened(EpochClaimed(1))
    assert known == [True]


def test_a_database_of_dagster_that_is_away_for_a_while_ends_no_standby(
    beside: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    records, failed = beside.bench.instance.get_run_records, list[int]()

    def fail(*args: Any, **options: Any) -> Any:
        if len(failed) < 5:
            failed.append(1)
            raise RuntimeError("the database is away")
        return records(*args, **options)

    monkeypatch.setattr(beside.bench.instance, "get_run_records", fail)
    beside.takes_over()
    assert len(failed) == 5
    assert beside.bench.status(beside.claim.run_id) is Status.FAILURE


def test_a_look_at_the_run_itself_that_fails_ends_no_standby(beside: Beside) -> None:
    def fail() -> None:
        raise RuntimeError("the database is away")

    beside.turns = iter([list, fail, list, fail, list])
    with pytest.raises(Over):
        beside.standby.wait()


def test_another_configuration_is_seen_though_the_database_was_away_at_first(
    beside: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    get, failed = beside.bench.instance.get_run_by_id, list[str]()

    def of_another(run_id: str) -> Any:
        if not failed:
            failed.append(run_id)
            raise RuntimeError("the database is away")
        run = get(run_id)
        assert run is not None
        return run._replace(run_config={"ops": {"orders": {"config": {"restore_from": "latest", "resources": {}}}}})

    monkeypatch.setattr(beside.bench.instance, "get_run_by_id", of_another)
    monkeypatch.setattr(standby_run, "continuing", lambda run, _: run.run_config)
    beside.turns = iter([list] * 5)
    assert beside.standby.wait() is None


def test_trouble_that_does_not_pass_ends_the_standby(
    beside: Beside, pass_time: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("there is no such table")

    monkeypatch.setattr(beside.bench.instance, "get_run_records", fail)
    passed = list[str]()
    beside.turns = iter(
        [list, list, beside.die, *[list] * 20, lambda: passed.append("20 turns"), lambda: pass_time(700)]
    )
    with pytest.raises(RuntimeError, match="no such table"):
        beside.standby.wait()
    assert passed == ["20 turns"]


def test_a_session_that_is_gone_ends_the_standby_at_once(beside: Beside, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = DriverLost("The JVM is gone.", hint="None.")
    beside.turns = iter([list, list, lambda: monkeypatch.setattr(Warm, "error", lost)])
    with pytest.raises(DriverLost):
        beside.standby.wait()


def test_a_standby_whose_own_sign_is_damaged_replaces_it(beside: Beside, pass_time: Callable[[float], None]) -> None:
    seen: list[Heartbeat] = []

    def look() -> None:
        seen.extend(beside.bench.standbys.all())

    beside.turns = iter([list, list, lambda: beside.sign.write_bytes(b""), lambda: pass_time(6), list, look])
    with pytest.raises(Over):
        beside.standby.wait()
    assert [sign.run_id for sign in seen] == [beside.run_id]


def test_in_a_bucket_a_standby_reads_the_heartbeat_as_often_as_the_run_beats(
    beside: Beside, pass_time: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    filesystem = beside.bench.job.catalog.filesystem
    monkeypatch.setattr(filesystem, "is_distant", True)
    read, paths = filesystem.read, list[str]()

    def counted(path: str, *args: Any) -> bytes:
        paths.append(path.rpartition("/")[2])
        return read(path, *args)

    monkeypatch.setattr(filesystem, "read", counted)
    beside.turns = iter([lambda: pass_time(0.2)] * 100)
    with pytest.raises(Over):
        beside.standby.wait()
    assert 8 <= paths.count("heartbeat") <= 13, "in 20 s"
