"""Every request of a job's life in a bucket fails, loses its reply or is the last one of its driver."""

from __future__ import annotations

import pytest

from dagster_ckpt.filesystem.buckets import bucket as object_store
from tests.helpers.checkpoint.driver import Pins
from tests.unit.filesystem.buckets.checkpoints.lives import CARRIED_OUT, TROUBLES, BucketLife, every
from tests.unit.filesystem.buckets.stores import AmazonStore, DisturbedStore

pytestmark = pytest.mark.slow

#: Of the requests of a part `make test` takes each so-manieth, beginning elsewhere for each trouble.
STEP = 60
PARTS = (0, 1, 2)


@pytest.fixture
def life(
    disturbed: DisturbedStore, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> BucketLife:
    monkeypatch.setattr(object_store, "CHUNK", 2 << 20)  # so that five megabytes are a large file
    disturbed.hurry()
    return BucketLife(disturbed, Pins(tmp_path_factory.mktemp("pins")))


def test_some_requests_go_wrong(life: BucketLife) -> None:
    slow = isinstance(life.store, AmazonStore)  # moto takes ten times as long as our own server
    violations, kinds = [], set()
    for part in PARTS:
        requests = life.requests(part)
        kinds |= {request.kind for request, _ in requests}
        for index, trouble in enumerate(TROUBLES):
            chosen = every(requests, trouble, STEP, first=2 * index + part)
            assert chosen
            if slow:  # one request for each trouble that is hard to tell from success, in one of the parts
                chosen = chosen[:1] if trouble in CARRIED_OUT and index % len(PARTS) == part else []
            violations += [life.violation(part, at, trouble) for at in chosen]
    assert not any(violations), [item for item in violations if item][:10]
    assert kinds >= {"put", "begin", "part", "read", "list", "stat", "delete"}


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.parametrize("part", PARTS)
def test_every_request_goes_wrong(life: BucketLife, part: int, trouble: str) -> None:
    chosen = every(life.requests(part), trouble)
    assert len(chosen) > 10
    violations = [life.violation(part, at, trouble) for at in chosen]
    assert not any(violations), [item for item in violations if item][:10]
