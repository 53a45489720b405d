"""The page of kills at random moments says how many comparisons its rows are."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from tools.kills.cases import Case
from tools.kills.through_kafka import DeltaKills
from tools.kills.under_dagster import DagsterKills
from tools.random_kills import table


def _asked(cases: int, to: str | None) -> Namespace:
    return Namespace(cases=cases, to=to, standbys=False, seed=1, table=Path("page.md"))


def test_kills_of_one_job_are_one_comparison() -> None:
    def page(*numbers: str) -> str:
        cases = [Case(number, "driver", delete_live=False, identical=True) for number in numbers]
        return table(cases, DeltaKills, _asked(len(numbers), "delta"))

    first = [f"1.{kill}" for kill in range(1, 6)]
    head = page(*first, *(f"2.{kill}" for kill in range(1, 6))).partition("| # |")[0]
    assert "**10 of 10 identical**" in head
    assert "There are 5 kills a job, compared at its end: the 10 rows are 2 comparisons.\n" in head
    assert "the 5 rows are 1 comparison.\n" in page(*first)


def test_a_job_for_each_kill_needs_no_such_word() -> None:
    cases = [Case(str(number), "JVM", delete_live=True, identical=True) for number in (1, 2)]
    assert "comparison" not in table(cases, DagsterKills, _asked(2, None))
