"""The page of the rollback matrix tells of each release of Spark which part ran, and what came of it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from tests.jobs.matrix.cases import Case, cases, in_every_way
from tests.jobs.matrix.streams import DELTA, FILE, SINKS
from tests.jobs.matrix.topics import KAFKA
from tools.rollback_matrix import OURS, PLAIN, _key, _table


def records(spark: str, some: list[Case], system: str = OURS, word: str = "exact") -> list[dict[str, Any]]:
    return [{"system": system, "spark": spark, **asdict(case), "word": word} for case in some]


def test_a_whole_release_is_told_case_by_case_and_a_part_is_called_a_part() -> None:
    part = [case for sink in SINKS for case in in_every_way(cases([sink]))]
    page = _table([*records("4.0.5", part), *records("4.3.0", cases())])
    assert "**dagster_ckpt**: 848 cases ran, 848 as promised (848 exact)." in page
    assert "- file, Spark 4.0.5: 20 of 192 cases, of 5 stopped jobs; every way to go on occurs with every" in page
    assert "- file, Spark 4.3.0: 192 of 192 cases, of 12 stopped jobs; all of them." in page
    assert "| file | 4.0.5 | rollback by 5 | 5 exact | - |" in page
    assert page.count("## Every case, Spark ") == page.count("## Every case, Spark 4.3.0") == 1
    assert page.count("| dropDuplicates | RocksDB | file | rollback by 5 | 4 exact | - |") == 1


def test_what_is_lost_counts_and_is_shown_beside_its_release() -> None:
    back = [case for case in cases([DELTA]) if case.event == "rollback by 1" and case.query == "stateless"]
    one = [case for case in back if case.mode == "EXACTLY_ONCE"][:1]
    page = _table(
        [*records("4.1.4", one, word="lost"), *records("4.2.1", one), *records("4.2.1", one, PLAIN, "failed")]
    )
    assert "**dagster_ckpt**: 2 cases ran, 1 as promised (1 exact, 1 lost)." in page
    assert "| Delta table | 4.1.4 | rollback by 1 | 1 lost | - | - | - |" in page
    assert "| Delta table | 4.2.1 | rollback by 1 | 1 exact | 1 failed | - | - |" in page
    assert "a part: stateless from files" in page


def test_a_sink_is_told_of_each_release_and_so_is_why_nothing_ran() -> None:
    some = {sink: cases([sink], KAFKA)[:1] for sink in (FILE, DELTA)}
    page = _table([*records("4.3.0", some[FILE]), *records("4.2.1", some[DELTA])])
    assert "| file | 4.3.0 | crash, live location kept | - | - | 1 exact | - |" in page
    assert "- file, Spark 4.2.1: nothing ran." in page
    assert "- Delta table, Spark 4.3.0: there is no release of the format for it." in page


def test_a_case_of_another_release_is_another_case() -> None:
    keys = [_key(record) for spark in ("4.2.1", "4.3.0") for record in records(spark, cases()[:2])]
    assert len(set(keys)) == 4
