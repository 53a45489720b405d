"""Writes ``docs/reference/parity.md`` from ``tools/parity/named.json`` and ``tools/parity/rows.toml``: no arguments."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from textwrap import wrap

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tools.parity.data import ANSWERS, Malformed, Name, Parity, Row, load  # noqa: E402

DATA = ROOT / "tools" / "parity"
PAGE = ROOT / "docs" / "reference" / "parity.md"
_WIDTH = 120

_INTRODUCTION = """\
# Parity with Flink

Every class, method, parameter, constant, option, directory and rule that five documents of Apache Flink name, and what
it is here. A script extracts the names (`tools/parity/named.json`), so that none is forgotten; each name has one row
(`tools/parity/rows.toml`); `tools/parity/write.py` writes this page from both. A test compares the rows with the code:
what a row names is there, takes the documented parameters and is proved by a test that exists.

- **Effect** is what a row without a mark has: the name does what the sentence says.
- **Warning**: it is taken and warns, because it cannot have the effect it has in Flink.
- **Error**: it is refused. The row says with what and why.
- *Differs* is where this differs from Flink on purpose.
"""


def render(parity: Parity) -> str:
    """The page, from data in which every row has its name."""
    return "\n".join(_lines(parity)) + "\n"


def main() -> None:
    """Write the page."""
    try:
        PAGE.write_text(render(load(DATA)), encoding="utf-8")
    except Malformed as error:
        sys.exit(f"Nothing was written: {error}.")
    print(PAGE)


def _lines(parity: Parity) -> Iterator[str]:
    names = {name.id: name for name in parity.names}
    number = {title: str(position) for position, title in enumerate(parity.documents, start=1)}
    counts = Counter(row.answer for row in parity.rows)
    yield _INTRODUCTION
    yield f"{len(names)} names: {', '.join(f'{counts[answer]} {answer}' for answer in ANSWERS)}."
    yield "Paths of code are below `dagster_ckpt`. The documents, by the numbers in the second column:"
    yield ""
    yield from (f"{position}. {title}" for title, position in number.items())
    for topic in parity.topics:
        yield from ("", f"## {topic.title}", "", *wrap(topic.about, _WIDTH), "")
        yield "| name | in | here | code | test |"
        yield "|---|---|---|---|---|"
        for row in topic.rows:
            if row.id not in names:
                raise Malformed(f"rows.toml, {row.id}: no document names it")
            name = names[row.id]
            documents = " ".join(number[title] for title in parity.documents if title in name.documents)
            code = f"`{row.code.removeprefix('dagster_ckpt.')}`"
            cells = (_title(name), documents, _here(row), code, "<br>".join(map(_test, row.test)))
            yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
    yield from ("", "## Beyond the documents", "")
    yield "What `dagster_ckpt.datastream` has and none of them names:"
    yield ""
    for added, reason in parity.added.items():
        yield from wrap(f"- `{added}`: {reason}", _WIDTH, subsequent_indent="  ")
    yield from ("", "## Left out", "", "What looks like a name in the documents and has no row:", "")
    for reason in sorted(set(parity.left_out.values())):
        words = ", ".join(f"`{word}`" for word, because in parity.left_out.items() if because == reason)
        yield from wrap(f"- {reason}: {words}.", _WIDTH, subsequent_indent="  ")


def _title(name: Name) -> str:
    """The name as its document declares it, where it does."""
    if name.kind == "example":
        return f"example: `{name.name}`"
    if name.kind == "concept":
        return name.id
    if name.kind == "parameter":
        return f"`{name.owner}`, `{name.signature}`"
    if name.kind == "constructor":
        return f"`{name.signature}`"
    if name.kind == "method" and name.signature is not None:
        what = "static " if name.signature.startswith("static ") else ""
        return f"`{what}{name.owner}.{name.signature.removeprefix(what)}`"
    return f"`{name.id}`"


def _here(row: Row) -> str:
    mark = "" if row.answer == "effect" else f"**{row.answer.capitalize()}.** "
    differs = f" *Differs*: {row.differs}" if row.differs else ""
    return f"{mark}{row.here}{' ' if row.why else ''}{row.why}{differs}"


def _test(node: str) -> str:
    if not node:
        return "none yet"
    path, _, function = node.partition("::")
    return f"`{path}` {function.rpartition('::')[2]}"


if __name__ == "__main__":
    main()
