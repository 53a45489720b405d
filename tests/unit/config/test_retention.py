from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_ckpt.config.checkpoint_config import CheckpointConfig
from dagster_ckpt.config.retention import (
    AnyOf,
    KeepEvery,
    KeepNewest,
    KeepPinned,
    KeepYounger,
    Retained,
    RetentionPolicy,
    decide,
)
from dagster_ckpt.errors import InvalidConfiguration

HOUR = 3600.0
keys = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 30)), unique=True, max_size=20)
policies: st.SearchStrategy[RetentionPolicy] = st.recursive(
    st.one_of(
        st.builds(KeepNewest, st.integers(1, 25)),
        st.builds(KeepYounger, st.timedeltas(timedelta(seconds=1), timedelta(days=2))),
        st.builds(KeepEvery, st.integers(1, 12)),
        st.builds(
            lambda keys: KeepPinned({f"{e}/{n}": "" for e, n in keys}),
            st.lists(st.tuples(st.integers(1, 5), st.integers(1, 30)), max_size=4),
        ),
    ),
    lambda inner: st.builds(lambda found: AnyOf(tuple(found)), st.lists(inner, min_size=1, max_size=3)),
    max_leaves=4,
)
checkpoints = st.lists(
    st.tuples(st.integers(1, 5), st.integers(1, 30), st.floats(0, 1e6), st.booleans()),
    unique_by=lambda item: item[:2],
    max_size=20,
).map(lambda items: [Retained(f"{e}/{n}", (e, n), at, abandoned) for e, n, at, abandoned in items])


def kept(policy: RetentionPolicy, among: list[Retained], now: float = 0.0) -> set[str]:
    return {decision.name for decision in decide(policy, among, now) if decision.keep}


def test_by_epoch_first_then_by_number_and_never_by_name() -> None:
    among = [Retained("chk-9", (1, 9)), Retained("chk-10", (1, 10)), Retained("chk-3", (2, 3))]
    decisions = {decision.name: decision for decision in decide(KeepNewest(2), among, 0)}
    assert {name for name, decision in decisions.items() if decision.keep} == {"chk-3", "chk-10"}
    assert decisions["chk-9"].reason == "not among the 2 newest"
    assert decisions["chk-10"].reason == "among the 2 newest"


def test_what_was_abandoned_goes_first() -> None:
    among = [Retained("a", (1, 1)), Retained("b", (1, 2), abandoned=True), Retained("c", (2, 3))]
    assert kept(KeepNewest(2), among) == {"a", "c"}


def test_by_age() -> None:
    among = [Retained("day", (1, 1), 0), Retained("hour", (1, 2), 23 * HOUR), Retained("now", (1, 3), 24 * HOUR)]
    policy = KeepYounger(timedelta(hours=2))
    assert kept(policy, among, 24 * HOUR) == {"hour", "now"}
    assert kept(policy, among, 25 * HOUR) == {"now"}, "exactly 2 h old is not younger than 2 h"
    assert kept(policy, among, 99 * HOUR) == {"now"}, "the newest stays however old it is"
    (last,) = [decision for decision in decide(policy, among, 99 * HOUR) if decision.keep]
    assert last.reason == "what the job would go on from"


def test_every_kth_by_its_id() -> None:
    among = [Retained(str(number), (1, number)) for number in range(1, 12)]
    assert kept(KeepEvery(5), among) == {"5", "10", "11"}


def test_what_is_pinned_stays_and_says_why() -> None:
    among = [Retained(str(number), (1, number)) for number in range(1, 6)]
    policy = AnyOf((KeepPinned({"2": "before the upgrade", "3": "", "gone": "by hand"}), KeepNewest(1)))
    decisions = {decision.name: decision for decision in decide(policy, among, 0)}
    assert {name: decision.reason for name, decision in decisions.items() if decision.keep} == {
        "2": "pinned: before the upgrade",
        "3": "pinned",
        "5": "among the 1 newest",
    }
    assert decisions["4"].reason == "not among those that are pinned, the 1 newest"


def test_pinning_the_oldest_does_not_make_it_what_the_job_goes_on_from() -> None:
    among = [Retained("old", (1, 1)), Retained("new", (1, 2))]
    assert kept(KeepPinned({"old": ""}), among) == {"old", "new"}


def test_a_combination_keeps_what_any_keeps() -> None:
    among = [Retained(str(number), (1, number), number * HOUR) for number in range(1, 13)]
    policy = CheckpointConfig(num_retained=2, retain_for="4 h", retain_every=6).retention
    decisions = {decision.name: decision for decision in decide(policy, among, 12 * HOUR)}
    assert {name for name, decision in decisions.items() if decision.keep} == {"6", "9", "10", "11", "12"}
    assert decisions["12"].reason == "among the 2 newest"
    assert decisions["10"].reason == "among those younger than 4 h"
    assert decisions["6"].reason == "among those whose id is a multiple of 6"
    assert decisions["5"].reason == (
        "not among the 2 newest, those younger than 4 h, those whose id is a multiple of 6"
    )


@given(keys, st.integers(1, 25))
def test_the_newest_stay(order: list[tuple[int, int]], count: int) -> None:
    decisions = decide(KeepNewest(count), [Retained(str(key), key) for key in order], 0)
    assert [decision.name for decision in decisions] == [str(key) for key in order]
    assert {decision.name for decision in decisions if decision.keep} == {str(key) for key in sorted(order)[-count:]}


@given(policies, checkpoints, st.floats(0, 2e6))
def test_no_policy_drops_what_the_job_would_go_on_from(
    policy: RetentionPolicy, among: list[Retained], now: float
) -> None:
    decisions = decide(policy, among, now)
    assert [decision.name for decision in decisions] == [item.name for item in among]
    assert all(decision.reason for decision in decisions)
    if among:
        going_on = [item for item in among if not item.abandoned] or among
        assert max(going_on, key=lambda item: item.key).name in kept(policy, among, now)


@given(policies, policies, checkpoints, st.floats(0, 2e6))
def test_any_of_is_the_union(one: RetentionPolicy, other: RetentionPolicy, among: list[Retained], now: float) -> None:
    assert kept(AnyOf((one, other)), among, now) == kept(one, among, now) | kept(other, among, now)


@pytest.mark.parametrize(
    "policy",
    [lambda: KeepNewest(0), lambda: KeepYounger(timedelta()), lambda: KeepEvery(0), lambda: AnyOf(())],
    ids=["none", "no age", "no step", "no policy"],
)
def test_what_cannot_be_used(policy: type[RetentionPolicy]) -> None:
    with pytest.raises(InvalidConfiguration, match="The retention policy cannot be used"):
        policy()
