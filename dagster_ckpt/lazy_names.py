"""Names that a package hands out without importing their modules before somebody asks for one (PEP 562)."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

__all__ = ["lazy_names"]


def lazy_names(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The ``__getattr__`` and the ``__dir__`` of a package, for what it imports below its ``if TYPE_CHECKING:``.

    The imports are read from the package's own source, so that each name stands there once for type checkers and at run
    time. No submodule may have the name of something handed out: its import would put the module in the name's place.

    Args:
        package: the ``__name__`` of the package.
    """
    module = sys.modules[package]
    names: dict[str, str] = {}
    for statement in ast.parse(module.__loader__.get_source(package)).body:  # type: ignore[union-attr]
        if isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING":
            for imported in statement.body:
                if isinstance(imported, ast.ImportFrom) and imported.module is not None:
                    names.update(dict.fromkeys((alias.name for alias in imported.names), imported.module))

    def find(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(import_module(names[name]), name)
        setattr(module, name, found)  # the next access finds the name without this function
        return found

    def known() -> list[str]:
        return sorted({*vars(module), *names})

    return find, known
