from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dagster_ckpt.config.retention import Retained, retain_newest

keys = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 30)), unique=True, max_size=20)


def test_by_epoch_first_then_by_number_and_never_by_name() -> None:
    checkpoints = [
        Retained("chk-9", (1, 9)),
        Retained("chk-10", (1, 10)),
        Retained("chk-3", (2, 3)),
    ]
    decisions = {decision.name: decision for decision in retain_newest(checkpoints, 2)}
    assert {name for name, decision in decisions.items() if decision.keep} == {"chk-3", "chk-10"}
    assert decisions["chk-9"].reason == "older than the 2 newest"
    assert decisions["chk-10"].reason == "among the 2 newest"


@given(keys, st.integers(-3, 25))
def test_the_newest_stay_whatever_is_asked(order: list[tuple[int, int]], count: int) -> None:
    decisions = retain_newest([Retained(str(key), key) for key in order], count)
    assert [decision.name for decision in decisions] == [str(key) for key in order]
    kept = {decision.name for decision in decisions if decision.keep}
    assert kept == {str(key) for key in sorted(order)[-max(count, 1) :]}
