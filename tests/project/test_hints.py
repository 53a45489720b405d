"""A command that an error, an event or an alert names can be pasted and run."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import dagster_ckpt

_PACKAGE = Path(dagster_ckpt.__file__).parent
#: A command with something that is put in when the text is made. What ``dispose`` is given has its storage in it.
_COMMAND = re.compile(r"`dagster-ckpt (?!dispose )[a-z-]+ [^`]*\{\}[^`]*`")


def _texts(path: Path) -> Iterator[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)


def test_a_command_that_names_a_job_names_its_storage() -> None:
    commands = [
        (path.relative_to(_PACKAGE), found[0])
        for path in sorted(_PACKAGE.rglob("*.py"))
        for text in _texts(path)
        for found in _COMMAND.finditer(text)
    ]
    assert len(commands) > 20, "the expression finds no commands any more"
    without = [command for command in commands if "--path " not in command[1]]
    assert not without, without
