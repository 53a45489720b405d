"""Readers of the five documents of Flink that ``docs/reference/parity.md`` answers: what each of them names.

A reader finds names by the form in which its document declares them and counts the document's own marks (``def``,
``[source]¶``, Javadoc modifiers, statements, directories) against what it found, so that a changed document is an error
and not a shorter list.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

__all__ = ["Incomplete", "Named", "Section", "javadoc", "operations", "python_source", "sphinx", "summary"]


#: Words that stand alone in a page of Sphinx and are no headings of a class.
_PAGE_WORDS = frozenset({"Logo", "Navigation", "Note", "Parameters", "Returns", "This Page"})


class Incomplete(Exception):
    """A document has something that was not extracted, or lacks what it is known by."""


@dataclass(frozen=True, slots=True)
class Named:
    """Something that a document names.

    Attributes:
        id: unique over all documents.
        kind: what it is, such as ``method``.
        name: as the document writes it.
        owner: the class or function it belongs to.
        signature: as declared, on one line.
        value: of a constant, if it is a number.
    """

    id: str
    kind: str
    name: str
    owner: str | None = None
    signature: str | None = None
    value: int | None = None


@dataclass(frozen=True, slots=True)
class Section:
    """A heading within the description of a class."""

    owner: str | None
    title: str


def python_source(text: str) -> tuple[list[Named], list[Section]]:
    """A module of Python that has lost its indentation."""
    code = re.sub(r"\A(?:#.*\n)+", "", text)
    declared = re.compile(
        r"^(?:\[docs\])?class (?P<class>\w+)\(.*\):$"
        r"|^def (?P<def>\w+)\((?P<parameters>[^)]*)\)(?: -> (?P<returns>.+))?:$"
        r"|^(?P<constant>[A-Z][A-Z_]*) = (?P<value>.+)$"
        r"|^raise (?P<error>\w+)\("
        r"|^\*\*(?P<section>.+)\*\*$"
        r"|^>>> (?P<example>.+)$"
        r"|^:param (?P<documented>\w+):",
        re.MULTILINE,
    )
    found: list[Named] = []
    sections: list[Section] = []
    owner: str | None = None
    function = ""
    parameters: list[str] = []
    for match in declared.finditer(code):
        part = match.groupdict()
        if part["class"]:
            owner = part["class"]
            found.append(Named(owner, "class", owner))
        elif part["def"]:
            function = f"{owner}()" if part["def"] == "__init__" else ".".join(filter(None, (owner, part["def"])))
            parameters = [item for item in _parameters(part["parameters"]) if item != "self"]
            found += _function(owner, part["def"], parameters, part["returns"])
        elif part["constant"]:
            found.append(_constant(owner, part["constant"], part["value"]))
        elif part["error"]:
            found.append(_error(function, part["error"]))
        elif part["section"]:
            sections.append(Section(owner, part["section"]))
        elif part["example"]:
            found.append(_example(owner, part["example"]))
        elif part["documented"] not in {item.split("=")[0] for item in parameters}:
            raise Incomplete(f"{function} documents the parameter {part['documented']}, which it does not have")
    _count("classes", len(re.findall(r"^\W*(?:docs\W+)?class\s", code, re.MULTILINE)), _of(found, "class"))
    functions = [item for item in found if item.kind in {"method", "constructor"}]
    _count("functions", len(re.findall(r"^\W*def\s", code, re.MULTILINE)), functions)
    _count("errors", len(re.findall(r"^\W*raise\s", code, re.MULTILINE)), _of(found, "error"))
    exported = re.search(r"^__all__ = (\[.*?\])", code, re.MULTILINE | re.DOTALL)
    if exported is None or not set(ast.literal_eval(exported[1])) <= {item.name for item in found}:
        raise Incomplete("__all__ is missing, or has names that were not extracted")
    return found, sections


def sphinx(text: str) -> tuple[list[Named], list[Section]]:
    """A page that Sphinx made of a module: ``[source]¶`` ends each declaration, ``¶`` each constant and heading."""
    declared = re.compile(
        r"^(?P<what>class |static )?(?P<name>[\w.]+)(?:\((?P<parameters>.*)\))?\[source\]¶$"
        r"|^(?P<constant>\w+) = (?P<value>.+)¶$"
        r"|^(?P<heading>[\w. ]+)¶$"
        r"|^>>> (?P<example>.+(?:\n\.\.\. .+)*)$"
        r"|^(?P<value_of>[A-Z]\w+):$"
        r"|^  • (?P<setting>\S*set[A-Z]\w*\(.*\))$"
        r"|^(?:  • )?(?P<documented>\w+) \u2013 "  # an en dash
        r"|(?<=\n\n)(?P<section>[A-Z][a-z]+(?: (?:and )?[A-Z][a-z]+)*)(?=\n\n)",
        re.MULTILINE,
    )
    found: list[Named] = []
    sections: list[Section] = []
    owner, function, value_of = "", "", ""
    parameters: list[str] = []
    headings = 0
    for match in declared.finditer(text):
        part = match.groupdict()
        if part["name"]:
            function, parameters = part["name"], _parameters(part["parameters"] or "")
            if part["what"] == "class ":
                owner = function.rpartition(".")[2]
                found.append(Named(owner, "class", owner))
                function = owner
                if part["parameters"] is not None:
                    found += _function(owner, "__init__", parameters, None)
            else:
                found += _function(owner, function, parameters, None, prefix=part["what"] or "")
        elif part["constant"]:
            found.append(_constant(owner, part["constant"], part["value"]))
        elif part["heading"]:
            headings += 1
        elif part["example"]:
            found.append(_example(owner, part["example"].replace("\n...", " ")))
        elif part["value_of"]:
            value_of = part["value_of"]
        elif part["setting"]:
            found.append(_setting(f"{owner}.{value_of}", part["setting"]))
        elif part["section"]:
            if part["section"] not in _PAGE_WORDS:
                sections.append(Section(owner, part["section"]))
        elif part["documented"] not in {item.split("=")[0].lstrip("*") for item in parameters}:
            raise Incomplete(f"{owner}.{function} documents the parameter {part['documented']}, which it does not have")
    sources = [item for item in found if item.kind in {"class", "method"}]
    _count("[source]¶", text.count("[source]¶"), sources)
    _count("¶", text.count("¶") - headings, [*sources, *_of(found, "constant")])
    _count("examples", len(re.findall(r"^\W*>>>", text, re.MULTILINE)), _of(found, "example"))
    _count("settings", len(re.findall(r"^\W*•.*set[A-Z]", text, re.MULTILINE)), _of(found, "setting"))
    return _enums(found), sections


def javadoc(text: str) -> tuple[list[Named], list[Section]]:
    """The page of one class, as the Javadoc tool of Java 8 makes it."""
    page = text.replace("\N{NO-BREAK SPACE}", " ")
    declaration = re.search(r"^\s*public (?:abstract )?class (\w+)$", page, re.MULTILINE)
    if declaration is None:
        raise Incomplete("the page declares no class")
    owner = declaration[1]
    found = [Named(owner, "class", owner)]
    for line in re.findall(r"(?:All Implemented Interfaces|Direct Known Subclasses):\n\s*(.+)", page):
        found += [Named(name, "class", name) for name in line.split(", ")]
    for part in re.split(r"^    • (?=\w+ Detail$)", page, flags=re.MULTILINE)[1:]:
        for item in re.split(r"^      • ", part, flags=re.MULTILINE)[1:]:
            found += _java_member(owner, item)
    members = [item for item in found if item.kind in {"constant", "constructor", "method"}]
    _count("modifiers", len(re.findall(r"^\s*(?:public|protected|private)\s", page, re.MULTILINE)) - 1, members)
    _count("Throws:", page.count("Throws:"), _of(found, "error"))
    sections = [Section(owner, title) for title in re.findall(r"^    ([A-Z]\w+ (?:Layout|File))$", page, re.MULTILINE)]
    return found, sections


def summary(text: str, methods: Mapping[str, str]) -> tuple[list[Named], list[Section]]:
    """The page that has lost the names of methods and kept the first line of what each is for.

    Args:
        text: the page.
        methods: by the name of each method of ``CheckpointConfig``, a pattern of the row that is left of it. Two
            methods whose rows became equal have the same pattern.
    """
    found: list[Named] = []
    sections: list[Section] = []
    owner, before = "", ""
    rows: list[str] = []
    for line in text.splitlines():
        if line.endswith("#"):
            owner = line.removesuffix("#")
            if owner != "Checkpoint":
                found.append(Named(owner, "class", owner))
        elif row := line.strip("| ") if line.endswith("|") or before == "|" else "":
            rows.append(row)
        elif re.fullmatch(r"[A-Z][a-z]+(?: [A-Z][a-z]+)*", line):
            sections.append(Section(owner, line))
        elif owner == "CheckpointConfig" and rows and line != "|":
            raise Incomplete(f"{line!r} stands in the table of methods and is no row of it")
        before = line
    for row in rows:
        names = [name for name, pattern in methods.items() if re.fullmatch(pattern, row)]
        if len(names) != rows.count(row):
            raise Incomplete(f"{rows.count(row)} rows are {row!r}; known of such rows: {', '.join(names) or 'nothing'}")
        for name in names:
            if name.islower():
                found.append(Named(f"CheckpointConfig.{name}", "method", name, "CheckpointConfig"))
            else:
                found.append(Named(name, "class", name))
    left = set(methods) - {item.name for item in found}
    if left:
        raise Incomplete(f"no row is left of {', '.join(sorted(left))}")
    return list(dict.fromkeys(found)), sections


def operations(text: str) -> tuple[list[Named], list[Section]]:
    """The page for who operates a job: prose with statements in Java, commands, options and a tree of directories."""
    found: list[Named] = []
    receivers = {
        "env": "StreamExecutionEnvironment",
        "config": "CheckpointConfig",
        "getCheckpointConfig()": "CheckpointConfig",
    }
    blocks = [block for block in text.split("\n\n") if block.endswith(";") and block.isascii()]
    statements = [
        re.sub(r"\(\s+", "(", statement).strip() for block in blocks for statement in block.split(";") if statement
    ]
    _count("statements", text.count(";\n"), statements)
    for statement in filter(None, statements):
        found.append(_example(None, statement))
        for receiver, method in re.findall(r"(?=\b(env|config|getCheckpointConfig\(\))\.(\w+)\()", statement):
            name = re.sub(r"(?=[A-Z])", "_", method).lower()
            found.append(Named(f"{receivers[receiver]}.{name}", "method", name, receivers[receiver]))
    found += [Named(command, "command", command) for command in re.findall(r"^\$ (.+)$", text, re.MULTILINE)]
    settings = re.findall(r"^[a-z][a-z.-]+: \S+$", text, re.MULTILINE)
    found += [_example(None, setting) for setting in settings]
    options = sorted(set(re.findall(r"\bstate(?:\.[a-z-]+)+", text)))
    if not {setting.partition(":")[0] for setting in settings} <= set(options):
        raise Incomplete(f"an option was not extracted: {settings}")
    found += [Named(option, "option", option) for option in options]
    directories = re.findall(r"^ +(?:\+ --|/)(.+?)/?$", text, re.MULTILINE)
    _count("directories", len(re.findall(r"^ {4}.*/", text, re.MULTILINE)), directories)
    found += [Named(name, "layout", name) for name in (re.sub(r"\d+$", "N", name) for name in directories)]
    sections = [Section(None, title) for title in re.findall(r"^(.+) #$", text, re.MULTILINE)]
    return list(dict.fromkeys(found)), sections


def _function(
    owner: str | None, name: str, parameters: Iterable[str], returns: str | None, *, prefix: str = ""
) -> Iterator[Named]:
    declared = ", ".join(parameters)
    result = f" -> {returns}" if returns else ""
    if name == "__init__":
        yield Named(f"{owner}()", "constructor", str(owner), owner, f"{owner}({declared})")
        for parameter in parameters:
            bare = parameter.split("=")[0]
            yield Named(f"{owner}({bare})", "parameter", bare, owner, parameter)
    else:
        qualified = f"{owner}.{name}" if owner else name
        yield Named(qualified, "method", name, owner, f"{prefix}{name}({declared}){result}")


def _java_member(owner: str, text: str) -> Iterator[Named]:
    name = text.split("\n", 1)[0].strip()
    method = re.search(
        rf"^\s*(?:public|protected|private)\b[^(;]*?\b{name}\((?P<parameters>[^)]*)\)(?P<throws>\s+throws \w+)?",
        text,
        re.MULTILINE,
    )
    if method is None:
        if not re.search(rf"^\s*(?:public|protected|private)\b.*\b{name}$", text, re.MULTILINE):
            raise Incomplete(f"{owner} lists {name}, which it does not declare")
        yield Named(f"{owner}.{name}", "constant", name, owner)
        return
    parameters = [" ".join(item.replace("@Nullable", "").split()) for item in _parameters(method["parameters"])]
    throws = " ".join((method["throws"] or "").split())
    if name == owner:
        yield from _function(owner, "__init__", [item.rpartition(" ")[2] for item in parameters], None)
    else:
        signature = f"{name}({', '.join(parameters)}) {throws}".rstrip()
        yield Named(f"{owner}.{name}", "method", name, owner, signature)
    for error in re.findall(r"Throws:\n\s*(\w+) - ", text):
        yield _error(f"{owner}.{name}", error)


def _enums(found: Iterable[Named]) -> list[Named]:
    """The constants of classes that have nothing else are the values of an enumeration."""
    entries = list(found)
    others = {item.owner for item in entries if item.kind in {"method", "constructor"}}
    return [
        Named(item.id, "enum value", item.name, item.owner, item.signature, item.value)
        if item.kind == "constant" and item.owner not in others
        else item
        for item in entries
    ]


def _constant(owner: str | None, name: str, value: str) -> Named:
    factors = [int(factor) for factor in re.findall(r"\d+", value)] if re.fullmatch(r"[\d* ]+", value) else []
    product = 1
    for factor in factors:
        product *= factor
    return Named(f"{owner}.{name}", "constant", name, owner, None, product if factors else None)


def _setting(owner: str, text: str) -> Named:
    setting = re.sub(r"Config(?=set)", "Config.", text)  # one line of the page lost its dot
    return Named(f"{owner}: {setting}", "setting", setting, owner)


def _error(owner: str, name: str) -> Named:
    return Named(f"{owner} raises {name}", "error", name, owner)


def _example(owner: str | None, code: str) -> Named:
    text = " ".join(code.split()).replace("( ", "(")
    return Named(f"example: {text}", "example", text, owner)


def _parameters(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _of(found: Iterable[Named], kind: str) -> list[Named]:
    return [item for item in found if item.kind == kind]


def _count(what: str, marks: int, found: Iterable[object]) -> None:
    extracted = len(list(found))
    if marks != extracted:
        raise Incomplete(f"the document has {marks} of {what}, and {extracted} were extracted")
