"""The pages of the rollback matrix tell of each release of Spark which part ran, when, and what came of it."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import pytest

from tests.jobs.matrix.cases import Base, Case, Outcome, cases, in_every_way
from tests.jobs.matrix.streams import DELTA, FILE, SINKS, FailureFree
from tests.jobs.matrix.topics import KAFKA
from tools.rollback_matrix import OURS, PLAIN, _key, _of_base, _table

_ROOT = Path(__file__).resolve().parents[2]
_REFERENCE = _ROOT / "docs" / "reference"
#: Numbers of cases, as a page says them: ``83 doubled, 136 exact``.
_COUNT = re.compile(r"(\d+) (exact|refused|doubled|failed|lost)")


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


class _Restores:
    """A stopped job that is exact however it goes on."""

    def go_on(self, case: Case, failure_free: FailureFree) -> Outcome:
        del case, failure_free
        return Outcome()


def test_the_page_says_when_its_cases_ran(tmp_path: Path) -> None:
    results, some = tmp_path / "matrix.jsonl", cases()[:2]
    restores, nothing = cast("Base", _Restores()), cast("FailureFree", None)
    before = time.strftime("%Y-%m-%d", time.gmtime())
    assert _of_base(restores, OURS, some, nothing, results, "4.3.0") == 0
    today = [json.loads(line) for line in results.read_text().splitlines()]
    assert {record["date"] for record in today} <= {before, time.strftime("%Y-%m-%d", time.gmtime())}

    def line(*given: dict[str, Any]) -> str:
        return next(line for line in _table(list(given)).splitlines() if line.startswith("The cases ran with "))

    first, second = ({**record, "date": date} for record, date in zip(today, ("2026-11-22", "2026-11-28"), strict=True))
    old = records("4.2.1", some[:1])
    assert line(first) == "The cases ran with Spark 4.3.0, on 2026-11-22."
    assert line(second, first) == "The cases ran with Spark 4.3.0, from 2026-11-22 to 2026-11-28."
    assert line(*old) == "The cases ran with Spark 4.2.1, on days that are not on record."
    told = "The cases ran with Spark 4.2.1, 4.3.0, on 2026-11-22, and 1 of them on days that are not on record."
    assert line(first, *old) == told


def _counted(text: str) -> Counter[str]:
    found: Counter[str] = Counter()
    for count, word in _COUNT.findall(text):
        found[word] += int(count)
    return found


def _rows(page: str) -> list[dict[str, str]]:
    """The rows of the first table, by the names of its columns."""
    lines = page[page.index("\n| ") + 1 :].partition("\n\n")[0].splitlines()
    split = [[cell.strip() for cell in line.strip("|").split("|")] for line in (lines[0], *lines[2:])]
    return [dict(zip(split[0], row, strict=True)) for row in split[1:]]


@pytest.mark.parametrize("name", ["rollback-matrix.md", "rollback-matrix-tables.md"])
def test_the_head_of_a_page_has_the_sums_of_its_rows(name: str) -> None:
    page = (_REFERENCE / name).read_text(encoding="utf-8")
    rows = _rows(page)
    sums = {
        system: sum((_counted(cell) for row in rows for column, cell in row.items() if system in column), Counter())
        for system in (OURS, PLAIN)
    }
    ours = re.search(rf"\*\*{OURS}\*\*: (.*)", page)
    alone = re.search(rf"\*\*{PLAIN}\*\*[^:]*: (.*)", page)
    assert ours is not None
    assert alone is not None
    assert {OURS: _counted(ours[1].partition("(")[2]), PLAIN: _counted(alone[1])} == sums
    count = sums[OURS].total()
    assert re.search(rf"\b{count} cases ran, {count} as promised", ours[1])
    ran = re.search(r"^The cases ran with Spark ([0-9., ]+), (?:on|from) 20\d\d-\d\d-\d\d", page, re.MULTILINE)
    assert ran is not None
    assert {row["Spark"] for row in rows if "Spark" in row} <= set(ran[1].split(", "))


def test_the_figures_that_are_quoted_are_those_of_the_page() -> None:
    rows = _rows((_REFERENCE / "rollback-matrix.md").read_text(encoding="utf-8"))
    ours, alone = (sum((_counted(row[system]) for row in rows), Counter()) for system in (OURS, PLAIN))
    alone_is = rf"Of {alone.total()} (such cases )?with Spark alone"
    bad = f"{alone['doubled']} doubled rows, {alone['failed']} failed,? and {alone['lost']} lost rows"
    for page in (_ROOT / "README.md", _REFERENCE / "measured.md"):
        text = " ".join(page.read_text(encoding="utf-8").split())
        assert re.search(rf"\[{ours.total()} ways to stop and go on\]", text), page
        assert re.search(rf"{alone_is} .*?, {bad} without an error\.", text), page
