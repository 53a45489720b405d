"""What must hold between the rows of ``docs/reference/parity.md``, the names of the documents, the code and the tests.

Every check returns what is wrong, a sentence for each, and nothing if all is well.
"""

from __future__ import annotations

import ast
import enum
import importlib
import inspect
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType

from tools.parity.data import ANSWERS, Name, Parity

#: Kinds of names that have a place in an interface.
_INTERFACE = frozenset({"class", "constant", "enum value", "method"})


def unmatched(parity: Parity) -> Iterator[str]:
    """Every name has exactly one row, and every row a name."""
    for what, ids in (
        ("named.json", [name.id for name in parity.names]),
        ("rows.toml", [row.id for row in parity.rows]),
    ):
        yield from (f"{what} has {key} {count} times" for key, count in Counter(ids).items() if count > 1)
    names, rows = {name.id for name in parity.names}, {row.id for row in parity.rows}
    yield from (f"{key} has no row" for key in sorted(names - rows))
    yield from (f"{key} has a row, and no document names it" for key in sorted(rows - names))


def unexplained(parity: Parity) -> Iterator[str]:
    """Every row says what the name does here, and why it is a warning or an error if it is one."""
    for row in parity.rows:
        if row.answer not in ANSWERS:
            yield f"{row.id} answers {row.answer!r}, which is none of {', '.join(ANSWERS)}"
        if (row.answer == "effect") is bool(row.why):
            yield f"{row.id} is an {row.answer} and says why" if row.why else f"{row.id} does not say why"
        for field in ("here", "why", "differs"):
            text = getattr(row, field)
            if text != text.strip() or (text and not text.endswith((".", ".)"))) or (field == "here" and not text):
                yield f"{row.id} has no sentence in {field!r}: {text!r}"
    for key, reason in parity.added.items():
        if not reason.endswith("."):
            yield f"{key} is added without a reason"


def unresolved(parity: Parity) -> Iterator[str]:
    """What answers a name can be imported."""
    for row in parity.rows:
        try:
            resolve(row.code)
        except LookupError as error:
            yield f"{row.id}: {error}"


def unproved(parity: Parity, root: Path) -> Iterator[str]:
    """Every row names tests, and they exist."""
    for row in parity.rows:
        for node in row.test or ("",):
            if not node:
                yield f"{row.id} names no test"
            elif not _is_a_test(root, node):
                yield f"{row.id} names {node}, which does not exist"


def uncalled(parity: Parity) -> Iterator[str]:
    """What has PyFlink's name takes PyFlink's parameters, in their order; what is refused need not."""
    names = {name.id: name for name in parity.names}
    for row in parity.rows:
        name = names.get(row.id)
        if name is None or name.signature is None or not row.code.startswith("dagster_ckpt.datastream."):
            continue
        if row.code.startswith("dagster_ckpt.datastream.storage_access."):
            continue  # Java's names, by Python's spelling
        try:
            answering = resolve(row.code)
        except LookupError:
            continue  # it is told by `unresolved`
        if name.kind == "parameter":
            if row.answer != "error" and name.name not in _accepted(answering):
                yield f"{row.id}: {row.code} takes no {name.name}"
        elif name.name == row.code.rpartition(".")[2] and (name.kind == "method" or row.answer == "effect"):
            yield from _difference(row.id, answering, _parameters(name.signature))


def unequal(parity: Parity) -> Iterator[str]:
    """A constant has the documented value, or the row says why it differs."""
    names = {name.id: name for name in parity.names}
    for row in parity.rows:
        name = names.get(row.id)
        if name is None or name.value is None or row.differs:
            continue
        try:
            value = resolve(row.code)
        except LookupError:
            continue  # it is told by `unresolved`
        if value != name.value:
            yield f"{row.id} is {name.value} in the document and {value!r} here, and the row does not say why"


def invented(parity: Parity, module: ModuleType) -> Iterator[str]:
    """A module for PyFlink's names has no class or method that neither a document names nor a reason admits."""
    known = {key for name in parity.names if name.kind in _INTERFACE for key in (name.id, _in_python(name))}
    there = set(module.__all__)
    for exported in module.__all__:
        if isinstance(thing := getattr(module, exported), type):
            there |= {f"{exported}.{member}" for member in _members(thing)}
    for key in sorted(there - known):
        if not {key, key.partition(".")[0]} & parity.added.keys():
            yield f"{key} is in {module.__name__}, and no document names it"
    for key in sorted(parity.added):
        if key in known:
            yield f"{key} is said to be added, and a document names it"
        elif key not in there:
            yield f"{key} is said to be added, and {module.__name__} does not have it"


def resolve(dotted: str) -> object:
    """What a dotted path means: a module, then attributes, or at the end a declared field of a class.

    Raises:
        LookupError: nothing.
    """
    parts = dotted.split(".")
    for end in range(len(parts), 0, -1):
        path = ".".join(parts[:end])
        try:
            found: object = importlib.import_module(path)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{path}.".startswith(f"{error.name}."):
                raise  # it is there and lacks something itself
            continue
        for position, part in enumerate(parts[end:], start=end):
            if not hasattr(found, part):
                if position == len(parts) - 1 and part in _fields(found):
                    return None
                raise LookupError(f"{'.'.join(parts[: position + 1])} does not exist")
            found = getattr(found, part)
        return found
    raise LookupError(f"{dotted} does not exist")


def _fields(owner: object) -> set[str]:
    """Names that a class declares without a value, as pydantic's fields are."""
    parts = owner.__mro__ if isinstance(owner, type) else ()
    return {name for part in parts for name in inspect.get_annotations(part)}


def _is_a_test(root: Path, node: str) -> bool:
    path, *steps = re.sub(r"\[.*\]$", "", node).split("::")
    if not steps or not Path(path).name.startswith("test_") or not steps[-1].startswith("test"):
        return False
    return _has(root, root / path, tuple(steps))


@cache
def _has(root: Path, file: Path, steps: tuple[str, ...]) -> bool:
    """Whether a file defines a function, perhaps inside classes or in a class that such a class inherits from."""
    if not file.is_file():
        return False
    module = ast.parse(file.read_text(encoding="utf-8")).body
    body: Sequence[ast.stmt] = module
    for depth, step in enumerate(steps):
        found = [item for item in body if isinstance(item, ast.ClassDef | ast.FunctionDef) and item.name == step]
        if found and depth == len(steps) - 1:
            return isinstance(found[0], ast.FunctionDef)
        if found and isinstance(found[0], ast.ClassDef):
            body = found[0].body
            bases = [base.id for base in found[0].bases if isinstance(base, ast.Name)]
            if any(_has(root, _origin(root, file, module, base), (base, *steps[depth + 1 :])) for base in bases):
                return True
        else:
            return False
    return False


def _origin(root: Path, file: Path, module: Sequence[ast.stmt], name: str) -> Path:
    """The file that defines what a module calls ``name``: another one if it is imported, else its own."""
    for item in module:
        if isinstance(item, ast.ImportFrom) and name in {alias.name for alias in item.names}:
            return root / f"{str(item.module).replace('.', '/')}.py"
    return file


def _parameters(signature: str) -> list[str]:
    """Names of what a caller may pass; Java objects are for PyFlink alone."""
    text = re.sub(r"^static ", "", signature)
    function = ast.parse(f"def {text}: ...").body[0]
    assert isinstance(function, ast.FunctionDef)
    names = [argument.arg for argument in function.args.args]
    return [name for name in names if not name.startswith("j_")]


def _difference(key: str, answering: object, documented: Sequence[str]) -> Iterator[str]:
    accepted = _accepted(answering)
    if accepted[: len(documented)] != list(documented):
        yield f"{key} takes ({', '.join(documented)}) in the document and ({', '.join(accepted)}) here"


def _accepted(answering: object) -> list[str]:
    """Names of what can be passed by position, without ``self``."""
    assert callable(answering)
    positional = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
    parameters = inspect.signature(answering).parameters.values()
    return [item.name for item in parameters if item.kind in positional and item.name not in {"self", "cls"}]


def _in_python(name: Name) -> str:
    """The id with the last part in the spelling of Python, for what a document has in that of Java."""
    owner, _, last = name.id.rpartition(".")
    if name.kind != "method":
        return name.id
    return f"{owner}.{re.sub(r'(?<=[a-z])(?=[A-Z])', '_', last).lower()}"


def _members(owner: type) -> set[str]:
    """The public methods, properties and constants that a class of this package declares, inherited ones too."""
    if issubclass(owner, enum.Enum):
        return set(owner.__members__)
    ours = [part for part in owner.__mro__ if part.__module__.startswith("dagster_ckpt.")]
    declared = {name: member for part in reversed(ours) for name, member in vars(part).items()}
    return {
        name
        for name, member in declared.items()
        if not name.startswith(("_", "model_"))  # the latter are pydantic's
        and (name.isupper() or isinstance(member, property) or callable(getattr(owner, name)))
    }
