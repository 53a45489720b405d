"""Where topics start: what is refused before anything is asked."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from dagster_ckpt.config.recovery import RestoreRequest
from dagster_ckpt.errors import InvalidConfiguration


def test_one_place_has_one_spelling() -> None:
    """So that a request that comes again is known."""
    moment = datetime(2026, 11, 1, tzinfo=UTC)
    places: list[Any] = ["2026-11-01T02:00:00+02:00", moment, moment.astimezone(timezone(timedelta(hours=5)))]
    orders: Any = {0: 17, "1": 4}
    spelled = [RestoreRequest(start_sources={"orders": orders, "1/orders": place}) for place in places]
    assert len({request.move for request in spelled}) == 1
    assert spelled[0].start_sources == {"orders": {"0": 17, "1": 4}, "1/orders": "2026-11-01T00:00:00+00:00"}
    assert spelled[0].replay_to == "none"
    assert spelled[0].move != RestoreRequest("chk-7", start_sources=spelled[0].start_sources).move
    assert RestoreRequest().move is None


def test_a_request_is_told_from_another_by_its_words_and_its_run() -> None:
    """And not by the checkpoint to which an upgrade sends the start."""
    request = RestoreRequest(start_sources={"orders": "latest"})
    sent = request.sent_to("savepoint:a")
    assert (sent.restore_from, sent.move, sent.asked_as) == ("savepoint:a", request.move, request.move)
    assert request.sent_to("latest") is request
    runs = [RestoreRequest(start_sources=request.start_sources, asked_by=run) for run in ("", "a", "b")]
    assert len({run.move for run in runs}) == 3
    assert RestoreRequest().sent_to("chk-1") == RestoreRequest("chk-1")
    with pytest.raises(InvalidConfiguration, match="start_sources"):
        request.sent_to("none")


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ({"01": 1}, "partition of orders in start_sources is '01'"),
        ({"1": 1, 1: 2}, "partition of orders in start_sources is 1"),
        ({True: 1}, "is True"),
        ({"0": -1}, "of partition 0 of orders is -1"),
        ({"0": 1 << 63}, "of partition 0 of orders"),
        ({"0": "1"}, "of partition 0 of orders is '1'"),
        ({"0": False}, "is False"),
        ({}, "start_sources of orders is {}"),
        ("2026-11-01T00:00:00", "start_sources of orders is '2026-11-01T00:00:00'"),
        ("1969-11-01T00:00:00+00:00", "start_sources of orders"),
        ("soon", "'soon'"),
        (["latest"], "['latest']"),
        (7, "is 7"),
    ],
)
def test_what_is_no_place_is_refused_by_name(place: object, told: str) -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        RestoreRequest(start_sources={"orders": place})  # type: ignore[dict-item]
    assert told in caught.value.message


@pytest.mark.parametrize("given", [{}, [], "orders", {"no topic": "latest"}, {7: "latest"}, {"a/b/c": "latest"}])
def test_what_names_no_topic_is_refused(given: object) -> None:
    with pytest.raises(InvalidConfiguration, match="start_sources"):
        RestoreRequest(start_sources=given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "beside", [{"restore_from": "none"}, {"replay_to": "latest"}, {"fork_from": "/there"}, {"state_partitions": 2}]
)
def test_it_is_asked_for_alone(beside: dict[str, object]) -> None:
    with pytest.raises(InvalidConfiguration, match="start_sources"):
        RestoreRequest(start_sources={"orders": "latest"}, **beside)  # type: ignore[arg-type]
