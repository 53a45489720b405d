"""What programs in PyFlink's spelling are made of in these tests, and how one is watched and interrupted."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.jobs.harness import Bench, deduplicated

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from tests.jobs.harness import Query

LOGGER = logging.getLogger("dagster_ckpt.datastream")


class Interrupted(BaseException):
    """What the main thread of a program is interrupted with, as by Ctrl-C."""


def query_of(bench: Bench, build: Query = deduplicated) -> Callable[[SparkSession], DataStreamWriter]:
    """The query of a bench as a program adds it; its name is that of the job."""

    def query(session: SparkSession) -> DataStreamWriter:
        return build(bench, session)

    query.__name__ = bench.name
    return query


@contextmanager
def watched(look: Callable[[str], bool] = lambda _: False) -> Iterator[list[str]]:
    """What a program logs; interrupts it when ``look``, on the program's main thread, finds what it waits for.

    The program must be interrupted if ``look`` is given.
    """
    lines: list[str] = []

    def keep(record: logging.LogRecord) -> bool:
        lines.append(record.getMessage())
        if look(lines[-1]):
            raise Interrupted
        return True

    before = LOGGER.level
    LOGGER.addFilter(keep)
    LOGGER.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        LOGGER.removeFilter(keep)
        LOGGER.setLevel(before)


def run_until(execute: Callable[[], object], look: Callable[[str], bool]) -> list[str]:
    """Run a program until ``look`` is true of a line it logs; what it logged."""
    with watched(look) as lines, pytest.raises(Interrupted):
        execute()
    return lines
