"""The page: valid with nothing and with much, and whatever the storage says is text."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser

import pytest

from dagster_ckpt.report.history import CheckpointRow, JobHistory, StartRow, Trouble
from dagster_ckpt.report.page import html_page

EMPTY = JobHistory("orders", "/mnt/checkpoints", 1_700_000_000.0, "NEVER RAN", "", "", [], [], [])
HOSTILE = "</td><script>alert(1)</script><img src=x onerror=alert(2)>\"'&"
_VOID = {"meta"}


class _Page(HTMLParser):
    """Reads a page: its tags, its attributes, its text, and whether every tag is closed in its turn."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in _VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1:] != ["style"]:
            self.texts.append(data)


def rows(count: int, *, lineages: int = 1) -> list[CheckpointRow]:
    return [
        CheckpointRow(
            f"{(n - 1) * lineages // count:032x}",
            f"chk-{n}",
            1,
            2 * n,
            "checkpoint",
            1_700_000_000.0 + 60 * n,
            1.25,
            1 << 20,
            1 << 10,
            {"agg (0)": 100.0 + n},
            {"orders (0)": 3.0 * n},
        )
        for n in range(1, count + 1)
    ]


@pytest.mark.parametrize("count", [0, 1, 2, 1_000])
def test_a_page_of_any_number_of_checkpoints_is_whole_and_not_large(count: int) -> None:
    html = html_page(replace(EMPTY, checkpoints=rows(count, lineages=min(count, 3) or 1)))
    page = _Page(html)
    assert page.tags.count("svg") == (4 if count else 0)
    assert page.tags.count("tr") == (min(count, 200) + 1 if count else 0)
    assert len(html) < 500_000
    told = " ".join(page.texts)
    assert (f"{count:,} checkpoint" in told) == bool(count)
    assert ("No checkpoint is in the storage." in told) == (not count)
    assert ("of 3 lineages" in told) == (count == 1_000)


def test_the_newest_checkpoint_is_the_first_row_of_its_table() -> None:
    texts = _Page(html_page(replace(EMPTY, checkpoints=rows(300)))).texts
    assert texts.index("chk-300") < texts.index("chk-299")
    assert "chk-100" not in texts


def test_starts_and_what_went_wrong_are_told_with_their_reasons() -> None:
    start = StartRow(7, "run-7", 1_700_000_000.0, True, "abc/chk-3", 12.5, False, "FAILING: the query failed")
    trouble = Trouble(1_700_000_100.0, "failure", "run-7", "the disk is full")
    page = _Page(html_page(replace(EMPTY, starts=[start], troubles=[trouble])))
    told = " ".join(page.texts)
    for text in ("The last 1. Restarts among them: 1.", "restart", "12.5 s", "abc/chk-3", start.end):
        assert text in told
    assert page.texts.index("the disk is full") > page.texts.index("2023-11-14 22:15:00")
    assert page.tags.count("svg") == 1


def test_whatever_the_storage_says_is_text() -> None:
    row = replace(rows(1)[0], lineage=HOSTILE, name=HOSTILE, state_rows={HOSTILE: 1.0}, lag={HOSTILE: 1.0})
    start = StartRow(1, HOSTILE, None, False, HOSTILE, 1.0, True, HOSTILE)
    trouble = Trouble(None, HOSTILE, HOSTILE, HOSTILE)
    page = _Page(
        html_page(
            JobHistory(HOSTILE, HOSTILE, 0.0, HOSTILE, HOSTILE, HOSTILE, [row], [start], [trouble]),
        )
    )
    assert not {"script", "img", "b"} & set(page.tags)
    assert not {name for name in page.attributes if name.startswith("on")}
    assert page.texts.count(HOSTILE) >= 6


def test_nothing_is_fetched_and_nothing_runs() -> None:
    html = html_page(replace(EMPTY, checkpoints=rows(3)))
    assert "default-src 'none'" in html
    assert not {"script", "link", "img", "iframe"} & set(_Page(html).tags)
    assert not {"src", "href"} & _Page(html).attributes
