"""Old import paths that still work: such a module hands out the names of the one that has them now, with a warning."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

__all__ = ["moved_names"]


def moved_names(old: str, new: str) -> Callable[[str], Any]:
    """The ``__getattr__`` of a module whose names have moved to another one.

    Args:
        old: the ``__name__`` of the module.
        new: the module that has the names now. A name, so that ``old`` may lie in a layer below.
    """

    def find(name: str) -> Any:
        # What the import system asks for (`__path__`, `__all__`) has not moved.
        if name.startswith("__") or not hasattr(import_module(new), name):
            raise AttributeError(f"module {old!r} has no attribute {name!r}")
        warnings.warn(f"{old}.{name} has moved to {new}.{name}.", DeprecationWarning, stacklevel=2)
        return getattr(import_module(new), name)

    return find
