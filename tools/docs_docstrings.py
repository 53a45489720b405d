"""Lets mkdocstrings show docstrings without Sphinx' markup."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod):`~?\.?([^`]+)`")


class PlainRoles(griffe.Extension):
    """Shows Sphinx' roles in docstrings as code, and its literal blocks as indented ones."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Change the docstring of one object."""
        del kwargs
        if obj.docstring is not None:
            value = _ROLE.sub(lambda role: f"`{role[1].rpartition('.')[2]}`", obj.docstring.value)
            value = re.sub(r"^\.\. code-block:: python$", "", value, flags=re.MULTILINE)
            obj.docstring.value = re.sub(r"^::$", "", value, flags=re.MULTILINE).replace("::\n\n", ":\n\n")
