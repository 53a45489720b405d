"""A checkpoint that is asked for, and when the driver looks for requests: each rule alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import pytest

from dagster_ckpt.checkpoint.control.savepoint_requests import SavepointRequest, SavepointRequests
from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata
from dagster_ckpt.checkpoint.format.snapshot import Progress
from dagster_ckpt.checkpoint.taking.requests.checkpoints_at_once import CheckpointsAtOnce
from dagster_ckpt.checkpoint.taking.requests.request_watch import LOOK, RequestWatch
from tests.helpers.checkpoint.driver import JOB, ManualClock
from tests.helpers.checkpoint.manifests import MANIFEST
from tests.helpers.checkpoint.memory import MemoryFileSystem

ASKED = SavepointRequest("0" * 32, None, stop=False, asked_at=1.0, until=2e9, checkpoint=True)


@dataclass
class Query:
    """What has committed, what is captured, and how often a checkpoint was to be taken at once."""

    committed: int | None
    captured: int | None = None
    looked = taken = 0

    def look_again(self) -> None:
        self.looked += 1

    def progress(self) -> Progress:
        return Progress(self.committed, None)

    def take_at_once(self) -> None:
        self.taken += 1


def waiting(query: Query, restored: CheckpointMetadata | None = None) -> CheckpointsAtOnce:
    return CheckpointsAtOnce(cast("Any", query), cast("Any", query), restored)


@pytest.mark.parametrize(("committed", "captured", "taken"), [(4, None, 1), (4, 3, 1), (4, 4, 0), (None, None, 1)])
def test_a_checkpoint_is_taken_at_once_unless_it_is_under_way(
    committed: int | None, captured: int | None, taken: int
) -> None:
    query = Query(committed, captured)
    requests = waiting(query)
    assert requests.ask(ASKED)
    assert (query.looked, query.taken) == (1, taken)
    assert not requests.ask(ASKED), "it waits already"
    assert (query.looked, query.taken) == (1, taken)
    assert requests.ask(replace(ASKED, token="1" * 32))


@pytest.mark.parametrize(
    ("committed", "newest", "error", "over", "reason"),
    [
        (4, None, "", False, None),
        (4, 3, "", False, None),
        (4, 4, "", False, ""),
        (4, 5, "", False, ""),
        (None, 0, "", False, ""),
        (None, None, "", False, None),
        (None, None, "", True, "The query has ended, and no batch has committed."),
        (4, 3, "the storage is full", False, "the storage is full"),
        (4, 3, "the storage is full", True, "the storage is full"),
        (4, 4, "the storage is full", False, "the storage is full"),
    ],
)
def test_what_answers_a_request(
    committed: int | None, newest: int | None, error: str, over: bool, reason: str | None
) -> None:
    requests = waiting(Query(committed))
    requests.ask(ASKED)
    metadata = None if newest is None else replace(MANIFEST, batch=newest)
    if metadata is not None:
        requests.completed(metadata)
    if error:
        requests.failed(error)
    covered = newest is not None and (committed is None or newest >= committed)
    expected = [] if reason is None else [(ASKED, metadata if covered else None, reason)]
    assert list(requests.answered(over=over)) == expected
    assert list(requests.answered(over=over)) == [], "each is answered once"


def test_what_the_start_began_with_may_cover_the_batch() -> None:
    restored = replace(MANIFEST, batch=4)
    requests = waiting(Query(4), restored)
    requests.ask(ASKED)
    assert list(requests.answered(over=False)) == [(ASKED, restored, "")]


def open_at(watch: RequestWatch) -> list[SavepointRequest]:
    """The open requests that a look finds."""
    return [asked.request for asked in watch.look() if asked.answer is None]


class TestWatch:
    @pytest.fixture
    def bucket(self, memory: MemoryFileSystem) -> MemoryFileSystem:
        memory.is_distant = True
        return memory

    def test_a_look_that_fails_is_made_again_a_second_later(self, bucket: MemoryFileSystem, clock: ManualClock) -> None:
        watch = RequestWatch(SavepointRequests(bucket, JOB), clock, every=60)
        assert watch.left == 0
        assert watch.is_due()
        assert watch.left == LOOK == 1
        assert not watch.is_due()
        clock.advance(0.5)
        assert watch.left == 0.5
        assert not watch.is_due()
        clock.advance(0.5)
        assert watch.is_due()

    @pytest.mark.parametrize(("every", "listed_after"), [(1, 60), (6, 360), (60, 3600)])
    def test_without_a_bell_the_requests_are_listed_now_and_then(
        self, bucket: MemoryFileSystem, clock: ManualClock, every: float, listed_after: float
    ) -> None:
        requests = SavepointRequests(bucket, JOB)
        watch = RequestWatch(requests, clock, every)
        assert open_at(watch) == []
        assert watch.left == every
        path = f"{JOB}/control/requests/r-{ASKED.token}"
        elsewhere = MemoryFileSystem()
        SavepointRequests(elsewhere, JOB).ask(ASKED)
        bucket.files[path] = elsewhere.files[path]
        clock.advance(listed_after - 0.5)
        assert open_at(watch) == [], "nobody has rung"
        clock.advance(0.5)
        assert open_at(watch) == [ASKED]
        assert watch.left == every - 0.5, "the next look after one that has found something is soon"
        assert open_at(watch) == [ASKED], "as long as it is open"

    def test_who_rings_is_heard_at_the_next_look(self, bucket: MemoryFileSystem, clock: ManualClock) -> None:
        requests = SavepointRequests(bucket, JOB)
        watch = RequestWatch(requests, clock, 60)
        assert open_at(watch) == []
        requests.ask(ASKED)
        assert open_at(watch) == [ASKED]
