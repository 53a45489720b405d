"""A live location in a bucket, on the wire: which requests it takes, and each of them fails or loses its reply."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path

import pytest

from dagster_ckpt.errors import CheckpointError
from dagster_ckpt.testing import ProcessDied
from tests.helpers.spark.stored_lives import Life
from tests.helpers.spark.stored_starts import Promised, Start
from tests.unit.filesystem.buckets.checkpoints.lives import DEATHS, ONCE, TROUBLES, Wire, every
from tests.unit.filesystem.buckets.stores import DisturbedStore

pytestmark = pytest.mark.slow

#: Of the requests `make test` takes each so-manieth, beginning elsewhere for each trouble.
STEP = 601


class LifeOnTheWire:
    def __init__(self, store: DisturbedStore, home: Path) -> None:
        self.store = store
        self.life = Life(home)

    def lead(self, at: int | None, trouble: str) -> tuple[Wire, Promised]:
        self.store.hold({})
        wire, promised = Wire(self.store.storage(), self.store, at, trouble), Promised()
        try:
            self.life.lead(wire, promised)
        except ProcessDied:
            assert trouble in DEATHS
        except (CheckpointError, OSError):
            assert trouble not in ONCE, "one fault that passes by ended the run"
        return wire, promised

    def tried(self, step: int, troubles: Sequence[str]) -> None:
        wire, promised = self.lead(None, "fails once")
        self.life.examine(self.store.storage(), promised)
        assert {request.kind for request, _ in wire.requests} >= {"put", "copy", "read", "list", "delete"}
        for index, trouble in enumerate(troubles):
            for at in every(wire.requests, trouble, step, first=23 * index):
                struck, promised = self.lead(at, trouble)
                assert struck.struck is not None
                request, operation = struck.struck
                try:
                    self.life.examine(self.store.storage(), promised)
                except Exception as error:
                    raise AssertionError(f"{request.kind} {at} of {operation} {trouble}: {error}") from error


@pytest.fixture
def life(disturbed: DisturbedStore, tmp_path: Path) -> LifeOnTheWire:
    disturbed.hurry()
    return LifeOnTheWire(disturbed, tmp_path)


@pytest.mark.parametrize(
    "disturbed",
    ["gs", *(pytest.param(kind, marks=pytest.mark.exhaustive) for kind in ("gs-customer-keys", "s3"))],
    indirect=True,
)
def test_some_requests_go_wrong(life: LifeOnTheWire) -> None:
    life.tried(STEP, TROUBLES)


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.parametrize("disturbed", ["gs"], indirect=True)  # with moto it would take hours
def test_every_request_goes_wrong(life: LifeOnTheWire, trouble: str) -> None:
    life.tried(1, [trouble])


@pytest.mark.parametrize("disturbed", ["gs", "gs-customer-keys", "s3"], indirect=True)
def test_the_bytes_of_the_state_never_come_here(disturbed: DisturbedStore, tmp_path: Path) -> None:
    promised = Promised()

    def start() -> Start:
        bucket = disturbed.storage()
        return Start(bucket, bucket, promised, tmp_path / uuid.uuid4().hex)

    first = start().start()
    first.query.run(5)
    before = len(disturbed.log)
    first.checkpoint()
    first.query.run(1)
    uploaded = len(disturbed.log)
    second = start().prepare()  # salvages, and lays out
    asked = [*disturbed.log[before:uploaded], *disturbed.log[uploaded:]]
    assert second.restored is not None
    assert (second.restored.kind, second.restored.batch) == ("salvage", 5)
    tables = [request for request in asked if request.name.endswith(".sst") and request.size]
    by_spark = {path for path in first.query.written if path.endswith(".sst")}
    assert {request.name.rpartition("/checkpoint/")[2] for request in tables} <= by_spark
    assert not [request for request in asked if request.name.endswith(".sst") and request.kind == "read"]
    assert [request for request in asked if request.kind == "copy"]


@pytest.mark.parametrize("disturbed", ["gs-customer-keys"], indirect=True)
def test_captured_salvaged_restored_and_swept(life: LifeOnTheWire) -> None:
    _, promised = life.lead(None, "fails once")
    assert len(promised.acknowledged) == 4
    life.life.examine(life.store.storage(), promised)
