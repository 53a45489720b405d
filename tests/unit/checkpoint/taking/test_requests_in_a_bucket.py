"""Requests in a bucket, where each look is paid for: how seldom the driver looks, and that it sees every request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from dagster_ckpt.checkpoint.control.savepoint_requests import SavepointRequest, SavepointRequests
from dagster_ckpt.checkpoint.format.records import encode_record
from dagster_ckpt.checkpoint.lease import Lease
from dagster_ckpt.testing import Operation
from tests.helpers.checkpoint.driver import JOB
from tests.helpers.checkpoint.serving import Served

QUIET = Lease(60, 300)


@pytest.fixture
def served(make: Callable[..., Served]) -> Served:
    """A quiet job that has been idle for a while."""
    found = make(lease=QUIET, interval="1 h")
    found.job.stream.committed = 3
    found.pass_time(1000)
    return found


def asked(served: Served, seconds: float) -> Counter[str]:
    """What the storage is asked within so many seconds."""
    before = len(served.job.disk.operations)
    served.pass_time(seconds)
    return Counter(operation.name for operation in served.job.disk.operations[before:])


def test_a_quiet_job_costs_one_read_for_each_beat_and_a_listing_for_sixty(served: Served) -> None:
    assert asked(served, 6000) == {"read": 100, "list": 1}


def test_with_the_default_lease_too(make: Callable[..., Served]) -> None:
    served = make(lease=Lease(), interval="1 h")
    served.job.stream.committed = 3
    served.pass_time(100)
    counted = asked(served, 600)
    assert counted == {"read": pytest.approx(300, abs=1), "list": pytest.approx(5, abs=1)}


def test_a_request_is_taken_up_at_the_next_look_and_those_beside_it_right_after(served: Served) -> None:
    tokens = [served.ask(number) for number in range(3)]
    served.pass_time(65)
    assert all(served.answer(token).savepoint for token in tokens)
    assert asked(served, 120) == {"read": 2}, "nothing is open any more"


def test_a_request_that_rings_while_the_requests_are_listed_is_taken_up(served: Served) -> None:
    """The listing does not have it, and the bell was read before."""
    tokens = [served.ask(1)]

    def ask_after_the_listing(operation: Operation) -> None:
        if operation.name == "read" and operation.path.endswith(tokens[0]) and len(tokens) == 1:
            tokens.append(served.ask(2))

    served.job.disk.plan = ask_after_the_listing
    served.pass_time(65)
    assert all(served.answer(token).savepoint for token in tokens)


@pytest.mark.parametrize("again", [False, True], ids=["the same driver", "the next driver"])
def test_a_request_that_did_not_ring_is_taken_up_in_a_while(served: Served, again: bool) -> None:
    """Its asker is of an earlier release, or died before it rang. The next driver looks at once."""
    now = served.job.clock.time()
    request = SavepointRequest(f"{1:032x}", None, False, now, now + 3600)
    path = f"{JOB}/control/requests/r-{request.token}"
    served.job.memory.create(path, encode_record(request, path))
    if again:
        served.serve(served.job.run, served.job.disk)
    served.pass_time(1 if again else 3601)
    assert served.holds(request.token) == 3


def test_where_a_listing_costs_nothing_nobody_rings(make: Callable[..., Served]) -> None:
    served = make(interval="1 h")
    served.job.stream.committed = 3
    token = served.ask()
    assert served.requests.bell() is None
    served.pass_time(1)
    assert served.holds(token) == 3
    assert not any(name.endswith("/bell") for name in served.job.memory.files)


def test_each_request_changes_the_bell(served: Served) -> None:
    requests = SavepointRequests(served.job.memory, JOB)
    bells = {requests.bell()}
    for number in range(3):
        served.ask(number)
        bells.add(requests.bell())
    assert len(bells) == 4
