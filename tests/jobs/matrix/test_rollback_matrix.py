"""A small subset of the rollback matrix, and a pairwise one; ``tools/rollback_matrix.py`` runs all of it."""

from __future__ import annotations

import itertools
from dataclasses import asdict, astuple
from typing import TYPE_CHECKING

import pytest

from dagster_ckpt.config.checkpoint_config import CheckpointingMode
from tests.jobs.matrix.cases import (
    BY_FIVE,
    OTHER,
    Base,
    Case,
    bases,
    cases,
    has_every_pair,
    has_every_way,
    in_every_way,
    of_few_jobs,
    pairwise,
)
from tests.jobs.matrix.plain_spark import PlainBase
from tests.jobs.matrix.streams import CHANGELOG, FILE, POSTGRES, QUERIES, FailureFree
from tests.jobs.matrix.topics import FILES, SOURCES

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

_FEW = of_few_jobs(cases())
_PAIRWISE = [case for case in pairwise(cases()) if case not in _FEW]


def _by_job(chosen: list[Case]) -> list[list[Case]]:
    """The cases of one stopped job follow one another, so that it is made once."""
    of = {base: [case for case in chosen if case.base == base] for base in bases()}
    return [some for some in of.values() if some]


@pytest.fixture(scope="module")
def failure_free(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> FailureFree:
    return FailureFree(spark, tmp_path_factory.mktemp("failure-free"))


def _pairs(chosen: list[Case], *left_out: str) -> set[tuple[tuple[str, str], ...]]:
    """The values that occur together in a case, by the names of two members."""
    members = [{name: value for name, value in asdict(case).items() if name not in left_out} for case in chosen]
    return {pair for values in members for pair in itertools.combinations(values.items(), 2)}


def test_the_pairwise_subset_has_every_pair() -> None:
    assert _pairs([*_FEW, *_PAIRWISE]) == _pairs(cases())
    assert len(_PAIRWISE) < len(cases()) / 8


def test_the_small_subset_has_every_pair_of_what_can_happen() -> None:
    assert _pairs(_FEW, "query", "backend") == _pairs(cases(), "query", "backend")
    assert {case.query for case in _FEW} == {case.query for case in cases()}
    assert {case.backend for case in _FEW} == {case.backend for case in cases()}
    assert len(_by_job(_FEW)) < len(bases()) / 4


def test_a_job_for_each_query_goes_on_in_every_way() -> None:
    every = [case for source in SOURCES for case in cases([POSTGRES], source)]
    chosen = in_every_way(every)
    assert len({case.base for case in chosen}) == len(QUERIES)
    assert {(case.event, value) for case in chosen for value in astuple(case)} == {
        (case.event, value) for case in every for value in astuple(case)
    }
    assert has_every_way(chosen, every)
    assert not has_every_way([case for case in chosen if case.source == FILES], every)
    assert not has_every_pair(chosen, every)
    assert has_every_pair(pairwise(every), every)


#: What a build tries: to stop a job takes a minute, and each way to go on some seconds.
_QUICK = next(case for case in _FEW if case.query == "dropDuplicates")


@pytest.mark.parametrize(
    "chosen",
    [
        [_QUICK],
        *(pytest.param(some, marks=pytest.mark.exhaustive) for some in (*_by_job(_FEW), *_by_job(_PAIRWISE))),
    ],
    ids=lambda chosen: ", ".join(chosen[0].base),
)
def test_a_restore_is_exact_or_refused(
    chosen: list[Case], spark: SparkSession, tmp_path: Path, failure_free: FailureFree
) -> None:
    stopped = Base(spark, tmp_path, *chosen[0].base)
    for case in chosen:
        outcome = stopped.go_on(case, failure_free)
        doubled = outcome.doubled if case.mode == CheckpointingMode.EXACTLY_ONCE.value else 0
        assert (outcome.lost, doubled) == (0, 0), f"{case}: {outcome}"


def test_spark_alone_loses_rows(spark: SparkSession, tmp_path: Path, failure_free: FailureFree) -> None:
    """What the matrix proves: the same comparison finds losses where nobody rolls the sink back."""
    base = ("stateless", CHANGELOG, FILE, FILES)
    case = Case(*base, BY_FIVE, OTHER, CheckpointingMode.EXACTLY_ONCE.value)
    assert PlainBase(spark, tmp_path, *base).go_on(case, failure_free).lost > 0
