"""The garbage collector is held back for a while, and then is as it was."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from dagster_ckpt.garbage_collector import without_collection


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    was_on = gc.isenabled()
    yield
    gc.unfreeze()
    (gc.enable if was_on else gc.disable)()


@pytest.mark.parametrize("was_on", [True, False])
def test_it_is_as_it_was_afterwards(was_on: bool) -> None:
    (gc.enable if was_on else gc.disable)()
    with pytest.raises(ZeroDivisionError):
        _fails_in_it()
    assert gc.isenabled() is was_on


@without_collection()
def _fails_in_it() -> float:
    with without_collection():
        assert not gc.isenabled()
    assert not gc.isenabled(), "the outer block goes on"
    return 1 / 0


def test_what_was_made_meanwhile_is_old_and_not_frozen() -> None:
    with without_collection():
        made: list[object] = []
        made.append(made)
    assert [item for item in gc.get_objects(generation=2) if item is made]
    assert gc.get_freeze_count() == 0


def test_what_others_have_frozen_stays_frozen() -> None:
    gc.freeze()
    with without_collection():
        pass
    assert gc.get_freeze_count() > 0
