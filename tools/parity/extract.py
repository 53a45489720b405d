"""Extracts what the five documents of Flink name, as ``tools/parity/named.json``: the left column of the page.

    python tools/parity/extract.py DIRECTORY

DIRECTORY has the documents as text, one per file, under any name that ends in ``.txt``. They are told apart by their
content. The extraction fails, and writes nothing, if a document is missing, unknown or has changed its form, if the
marks of declarations in it do not add up to what was found, or if anything in it that looks like a name is neither
found nor left out with a reason (``names.py``).
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypedDict

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tools.parity import documents, names  # noqa: E402
from tools.parity.documents import Incomplete, Named, Section  # noqa: E402

Reader = Callable[[str], tuple[list[Named], list[Section]]]

NAMED = ROOT / "tools" / "parity" / "named.json"
_WORD = re.compile(r"\b[A-Za-z_]\w*(?:\(\))?", re.ASCII)
#: An inner capital, an inner underscore, capitals throughout, or a call without arguments.
_LOOKS_LIKE_A_NAME = re.compile(r"\w*[a-z0-9][A-Z]\w*|[A-Z]{2,}\w*|_*[A-Za-z]\w*_\w*|\w+\(\)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Document:
    """One of the five.

    Attributes:
        title: what it is called here.
        mark: a text that only this document has.
        read: its reader.
    """

    title: str
    mark: str
    read: Reader


DOCUMENTS = (
    Document("PyFlink: checkpoint_storage.py", "def _from_j_checkpoint_storage", documents.python_source),
    Document("PyFlink: Checkpoint, a summary", "Checkpoint#\n", partial(documents.summary, methods=names.SUMMARY)),
    Document("Javadoc: AbstractFsCheckpointStorageAccess", "Method Detail", documents.javadoc),
    Document("PyFlink 1.10: pyflink.datastream", "[source]¶", documents.sphinx),
    Document("Operations: Checkpoints", "bin/flink run -s", documents.operations),
)


class Data(TypedDict):
    """What ``named.json`` holds.

    Attributes:
        documents: their titles.
        named: every name, by id.
        left_out: what looks like a name and has no row, with the reason.
    """

    documents: list[str]
    named: list[dict[str, object]]
    left_out: dict[str, str]


def extract(texts: Mapping[str, str]) -> Data:
    """Find everything that the documents name.

    Args:
        texts: every document, by its title.

    Raises:
        Incomplete: a document has something that is neither found nor left out.
    """
    found: dict[str, Named] = {}
    titles: dict[str, set[str]] = {}
    for document in DOCUMENTS:
        for entry in _read(document, texts[document.title]):
            found[entry.id] = _merge(found.get(entry.id), entry)
            titles.setdefault(entry.id, set()).add(document.title)
    for title, text in texts.items():
        _check_words(title, text, found.values())
        for key, entry in found.items():
            if entry.kind in {"class", "constant", "enum value"} and re.search(rf"\b{re.escape(key)}\b", text):
                titles[key].add(title)
    missing = (names.MENTIONS | names.LAYOUT | names.CONCEPTS).keys() - found.keys()
    missing |= set(names.HEADINGS.values()) - found.keys()
    if missing:
        raise Incomplete(f"found in no document: {', '.join(sorted(missing))}")
    words = {word for text in texts.values() for word in re.findall(r"\w+", text)}
    if unused := {word for group in names.LEFT_OUT.values() for word in group} - words - found.keys():
        raise Incomplete(f"left out, and in no document: {', '.join(sorted(unused))}")
    left_out = {name: reason for reason, all_names in names.LEFT_OUT.items() for name in all_names}
    return {
        "documents": [document.title for document in DOCUMENTS],
        "named": [_describe(found[key], sorted(titles[key])) for key in sorted(found) if key not in left_out],
        "left_out": dict(sorted(left_out.items())),
    }


def recognize(directory: Path) -> dict[str, str]:
    """The text of each document in a directory, by title.

    Raises:
        Incomplete: one is missing, is there twice, or is none of the five.
    """
    texts: dict[str, str] = {}
    for file in sorted(directory.glob("*.txt")):
        text = file.read_text(encoding="utf-8")
        matching = [document.title for document in DOCUMENTS if document.mark in text]
        if len(matching) != 1 or matching[0] in texts:
            raise Incomplete(f"{file.name} is none of the documents that are missing: {matching or 'it has no mark'}")
        texts[matching[0]] = text
    if missing := [document.title for document in DOCUMENTS if document.title not in texts]:
        raise Incomplete(f"{directory} lacks {', '.join(missing)}")
    return texts


def render(data: Data) -> str:
    """JSON with one name per line, so that a difference reads well."""
    named = ",\n".join(f"  {json.dumps(entry, ensure_ascii=False)}" for entry in data["named"])
    left_out = json.dumps(data["left_out"], indent=2, ensure_ascii=False).replace("\n", "\n ")
    titles = json.dumps(data["documents"], ensure_ascii=False)
    return f'{{\n "documents": {titles},\n "named": [\n{named}\n ],\n "left_out": {left_out}\n}}\n'


def main() -> None:
    """Read the documents and write the data."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("directory", type=Path, help="where the five documents lie, as *.txt")
    parser.add_argument("--output", type=Path, default=NAMED)
    arguments = parser.parse_args()
    try:
        data = extract(recognize(arguments.directory))
    except Incomplete as error:
        sys.exit(f"Nothing was written: {error}.")
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(render(data), encoding="utf-8")
    kinds = [str(entry["kind"]) for entry in data["named"]]
    print(f"{arguments.output}: {len(kinds)} names")
    for kind in sorted(set(kinds)):
        print(f"  {kinds.count(kind):4} {kind}")


def _read(document: Document, text: str) -> list[Named]:
    """What one document names, by its form and in prose."""
    try:
        entries, sections = document.read(text)
    except Incomplete as error:
        raise Incomplete(f"{document.title}: {error}") from error
    for key, (kind, pattern) in names.MENTIONS.items():
        if re.search(pattern, text):
            owner, _, name = key.rpartition(".")
            qualified = kind == "method" or owner == "CheckpointingOptions"
            entries.append(Named(key, kind, name if qualified else key, owner if qualified else None))
    for kind, table in (("layout", names.LAYOUT), ("concept", names.CONCEPTS)):
        entries += [Named(key, kind, key) for key, pattern in table.items() if re.search(pattern, text)]
    for section in sections:
        if section.owner is not None:
            entries.append(Named(f"{section.owner}: {section.title}", "concept", section.title, section.owner))
        elif section.title not in names.HEADINGS:
            raise Incomplete(f"{document.title}: nothing answers the heading {section.title!r}")
    return entries


def _check_words(title: str, text: str, entries: Iterable[Named]) -> None:
    """Everything that looks like a name is part of something that was found, or left out with a reason."""
    body = re.sub(r"\A(?:#.*\n)+", "", text)  # a licence
    known = {name for group in names.LEFT_OUT.values() for name in group}
    for entry in entries:
        known |= set(re.findall(r"\w+", f"{entry.id} {entry.signature or ''} {entry.owner or ''}"))
    unknown = {
        word
        for word in _WORD.findall(body)
        if _LOOKS_LIKE_A_NAME.fullmatch(word) and word.removesuffix("()") not in known
    }
    if unknown:
        raise Incomplete(f"{title}: neither found nor left out: {', '.join(sorted(unknown))}")


def _merge(known: Named | None, entry: Named) -> Named:
    """The same name in two documents: one of them may say more, and none may contradict."""
    if known is None:
        return entry
    for field in ("kind", "name", "owner", "signature", "value"):
        one, other = getattr(known, field), getattr(entry, field)
        if one is not None and other is not None and one != other:
            raise Incomplete(f"{entry.id} has the {field} {one!r} in one document and {other!r} in another")
    return replace(
        known,
        signature=entry.signature if known.signature is None else known.signature,
        value=entry.value if known.value is None else known.value,
    )


def _describe(entry: Named, titles: list[str]) -> dict[str, object]:
    described: dict[str, object] = {"id": entry.id, "kind": entry.kind, "name": entry.name}
    for field in ("owner", "signature", "value"):
        if (content := getattr(entry, field)) is not None:
            described[field] = content
    return {**described, "documents": titles}


if __name__ == "__main__":
    main()
