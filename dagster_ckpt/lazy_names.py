"""Names that a package hands out without importing their modules before somebody asks for one (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__all__ = ["lazy_names"]


def lazy_names(package: str, names: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The ``__getattr__`` and the ``__dir__`` of a package. The same imports stand below its ``if TYPE_CHECKING:``.

    Args:
        package: the ``__name__`` of the package.
        names: each name that the package hands out lazily, and the module that has the name. No submodule of the
            package may have the same name: its import would put the module in the name's place.
    """

    def find(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(import_module(names[name]), name)
        setattr(sys.modules[package], name, found)  # the next access finds the name without this function
        return found

    def known() -> list[str]:
        return sorted({*vars(sys.modules[package]), *names})

    return find, known
