"""What ``docs/reference/parity.md`` is made of: the names that documents of Flink have, and a row for each."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["ANSWERS", "Malformed", "Name", "Parity", "Row", "Topic", "load"]

ANSWERS = ("effect", "warning", "error")


class Malformed(ValueError):
    """A file of the data is not what it should be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Name:
    """What a document names, as ``tools/parity/extract.py`` found it.

    Attributes:
        id: unique.
        kind: what it is, such as ``method``.
        name: as the document writes it.
        documents: the titles of those that have it.
        owner: the class or function it belongs to.
        signature: as declared.
        value: of a constant.
    """

    id: str
    kind: str
    name: str
    documents: tuple[str, ...]
    owner: str | None = None
    signature: str | None = None
    value: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What a name is here.

    Attributes:
        id: of the name.
        answer: one of ``ANSWERS``.
        here: what it does here.
        code: dotted path of what answers.
        test: node ids of the tests that prove it.
        why: of a warning or an error.
        differs: where this differs from Flink on purpose, and why.
    """

    id: str
    answer: str
    here: str
    code: str
    test: tuple[str, ...]
    why: str = ""
    differs: str = ""


@dataclass(frozen=True, slots=True)
class Topic:
    """Rows that are shown together."""

    title: str
    about: str
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Parity:
    """Both files.

    Attributes:
        documents: the titles of the documents.
        names: every name.
        left_out: what looks like a name and has no row, with the reason.
        topics: every row.
        added: what the code has and no document names, with the reason.
    """

    documents: tuple[str, ...]
    names: tuple[Name, ...]
    left_out: Mapping[str, str]
    topics: tuple[Topic, ...]
    added: Mapping[str, str]

    @property
    def rows(self) -> Iterator[Row]:
        """The rows of all topics."""
        return (row for topic in self.topics for row in topic.rows)


def load(directory: Path) -> Parity:
    """Read ``named.json`` and ``rows.toml``.

    Raises:
        Malformed: an entry lacks a field, or has one that is not known.
    """
    named = json.loads((directory / "named.json").read_text(encoding="utf-8"))
    rows = tomllib.loads((directory / "rows.toml").read_text(encoding="utf-8"))
    return Parity(
        documents=tuple(named["documents"]),
        names=tuple(_name(entry) for entry in named["named"]),
        left_out=named["left_out"],
        topics=tuple(
            Topic(topic["title"], topic["about"], tuple(_row(entry) for entry in topic["row"]))
            for topic in rows["topic"]
        ),
        added=rows["added"],
    )


def _name(entry: dict[str, Any]) -> Name:
    try:
        return Name(**{**entry, "documents": tuple(entry["documents"])})
    except (KeyError, TypeError) as error:
        raise Malformed(f"named.json, {entry.get('id')}: {error}") from error


def _row(entry: dict[str, Any]) -> Row:
    try:
        test = entry["test"]
        return Row(**{**entry, "test": (test,) if isinstance(test, str) else tuple(test)})
    except (KeyError, TypeError) as error:
        raise Malformed(f"rows.toml, {entry.get('id')}: {error}") from error
