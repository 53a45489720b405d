from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from dagster_ckpt.config.checkpoint_config import CheckpointConfig
from dagster_ckpt.config.retention import Retained, Retention

HOUR = 3600.0
#: Keeps nothing but what the job would go on from.
LEAST = Retention(1)
keys = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 30)), unique=True, max_size=20)
retentions = st.builds(
    Retention,
    st.integers(1, 25),
    st.none() | st.timedeltas(timedelta(seconds=1), timedelta(days=2)),
    st.none() | st.integers(1, 12),
    st.dictionaries(st.builds("{}/{}".format, st.integers(1, 5), st.integers(1, 30)), st.just(""), max_size=4),
)
checkpoints = st.lists(
    st.tuples(st.integers(1, 5), st.integers(1, 30), st.floats(0, 1e6), st.booleans()),
    unique_by=lambda item: item[:2],
    max_size=20,
).map(lambda items: [Retained(f"{e}/{n}", (e, n), at, abandoned) for e, n, at, abandoned in items])


def kept(retention: Retention, among: list[Retained], now: float = 0.0) -> set[str]:
    return {decision.name for decision in retention.decide(among, now) if decision.keep}


def test_by_epoch_first_then_by_number_and_never_by_name() -> None:
    among = [Retained("chk-9", (1, 9)), Retained("chk-10", (1, 10)), Retained("chk-3", (2, 3))]
    decisions = {decision.name: decision for decision in Retention(2).decide(among, 0)}
    assert {name for name, decision in decisions.items() if decision.keep} == {"chk-3", "chk-10"}
    assert decisions["chk-9"].reason == "not among the 2 newest"
    assert decisions["chk-10"].reason == "among the 2 newest"


def test_what_was_abandoned_goes_first() -> None:
    among = [Retained("a", (1, 1)), Retained("b", (1, 2), abandoned=True), Retained("c", (2, 3))]
    assert kept(Retention(2), among) == {"a", "c"}


def test_by_age() -> None:
    among = [Retained("day", (1, 1), 0), Retained("hour", (1, 2), 23 * HOUR), Retained("now", (1, 3), 24 * HOUR)]
    retention = replace(LEAST, younger=timedelta(hours=2))
    assert kept(retention, among, 24 * HOUR) == {"hour", "now"}
    assert kept(retention, among, 25 * HOUR) == {"now"}, "exactly 2 h old is not younger than 2 h"
    assert kept(retention, among, 99 * HOUR) == {"now"}, "the newest stays however old it is"


def test_every_kth_by_its_id() -> None:
    among = [Retained(str(number), (1, number)) for number in range(1, 12)]
    assert kept(replace(LEAST, every=5), among) == {"5", "10", "11"}


def test_what_is_pinned_stays_and_says_why() -> None:
    among = [Retained(str(number), (1, number)) for number in range(1, 6)]
    retention = replace(LEAST, pinned={"2": "before the upgrade", "3": "", "gone": "by hand"})
    decisions = {decision.name: decision for decision in retention.decide(among, 0)}
    assert {name: decision.reason for name, decision in decisions.items() if decision.keep} == {
        "2": "pinned: before the upgrade",
        "3": "pinned",
        "5": "among the 1 newest",
    }
    assert decisions["4"].reason == "not among those that are pinned, the 1 newest"


def test_pinning_the_oldest_does_not_make_it_what_the_job_goes_on_from() -> None:
    among = [Retained("old", (1, 1)), Retained("new", (1, 2))]
    assert kept(replace(LEAST, pinned={"old": ""}), among) == {"old", "new"}


def test_a_combination_keeps_what_any_keeps() -> None:
    among = [Retained(str(number), (1, number), number * HOUR) for number in range(1, 13)]
    retention = CheckpointConfig(num_retained=2, retain_for="4 h", retain_every=6).retention
    decisions = {decision.name: decision for decision in retention.decide(among, 12 * HOUR)}
    assert {name for name, decision in decisions.items() if decision.keep} == {"6", "9", "10", "11", "12"}
    assert decisions["12"].reason == "among the 2 newest"
    assert decisions["10"].reason == "among those younger than 4 h"
    assert decisions["6"].reason == "among those whose id is a multiple of 6"
    assert decisions["5"].reason == (
        "not among the 2 newest, those younger than 4 h, those whose id is a multiple of 6"
    )


@given(keys, st.integers(1, 25))
def test_the_newest_stay(order: list[tuple[int, int]], count: int) -> None:
    decisions = Retention(count).decide([Retained(str(key), key) for key in order], 0)
    assert [decision.name for decision in decisions] == [str(key) for key in order]
    assert {decision.name for decision in decisions if decision.keep} == {str(key) for key in sorted(order)[-count:]}


@given(retentions, checkpoints, st.floats(0, 2e6))
def test_what_the_job_would_go_on_from_stays(retention: Retention, among: list[Retained], now: float) -> None:
    decisions = retention.decide(among, now)
    assert [decision.name for decision in decisions] == [item.name for item in among]
    assert all(decision.reason for decision in decisions)
    if among:
        going_on = [item for item in among if not item.abandoned] or among
        assert max(going_on, key=lambda item: item.key).name in kept(retention, among, now)


@given(retentions, checkpoints, st.floats(0, 2e6))
def test_what_any_part_keeps_stays(retention: Retention, among: list[Retained], now: float) -> None:
    parts = [
        Retention(retention.newest),
        replace(LEAST, younger=retention.younger),
        replace(LEAST, every=retention.every),
        replace(LEAST, pinned=retention.pinned),
    ]
    assert kept(retention, among, now) == set[str]().union(*(kept(part, among, now) for part in parts))
