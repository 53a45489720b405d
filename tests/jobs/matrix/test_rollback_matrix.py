"""A pairwise subset of the rollback matrix; all of it is run by ``tools/rollback_matrix.py``."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from dagster_ckpt.config.checkpoint_config import CheckpointingMode
from tests.jobs.matrix.cases import BY_FIVE, OTHER, Base, Case, bases, cases, pairwise
from tests.jobs.matrix.plain_spark import PlainBase
from tests.jobs.matrix.streams import FILE, FailureFree

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

_CHOSEN = pairwise(cases())
#: The cases of one stopped job follow one another, so that it is made once.
_BASES = [base for base in bases() if any((case.query, case.backend, case.sink) == base for case in _CHOSEN)]


@pytest.fixture(scope="module")
def failure_free(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> FailureFree:
    return FailureFree(spark, tmp_path_factory.mktemp("failure-free"))


def test_the_subset_has_every_pair() -> None:
    def pairs(chosen: list[Case]) -> set[tuple[tuple[int, str], ...]]:
        values = [(c.query, c.backend, c.sink, c.event, c.size, c.mode) for c in chosen]
        return {pair for value in values for pair in itertools.combinations(enumerate(value), 2)}

    assert pairs(_CHOSEN) == pairs(cases())
    assert len(_CHOSEN) < len(cases()) / 8


@pytest.mark.parametrize("base", _BASES, ids=", ".join)
def test_a_restore_is_exact_or_refused(
    base: tuple[str, str, str], spark: SparkSession, tmp_path: Path, failure_free: FailureFree
) -> None:
    stopped = Base(spark, tmp_path, *base)
    for case in _CHOSEN:
        if (case.query, case.backend, case.sink) == base:
            outcome = stopped.go_on(case, failure_free)
            doubled = outcome.doubled if case.mode == CheckpointingMode.EXACTLY_ONCE.value else 0
            assert (outcome.lost, doubled) == (0, 0), f"{case}: {outcome}"


def test_spark_alone_loses_rows(spark: SparkSession, tmp_path: Path, failure_free: FailureFree) -> None:
    """What the matrix proves: the same comparison finds losses where nobody rolls the sink back."""
    base = ("stateless", "RocksDB changelog v2", FILE)
    case = Case(*base, BY_FIVE, OTHER, CheckpointingMode.EXACTLY_ONCE.value)
    assert PlainBase(spark, tmp_path, *base).go_on(case, failure_free).lost > 0
