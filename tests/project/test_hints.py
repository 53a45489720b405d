"""A command that an error, an event or an alert names can be pasted and run."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

import dagster_ckpt
from dagster_ckpt.checkpoint.catalog import CheckpointCatalog
from dagster_ckpt.cli import main
from dagster_ckpt.errors import ForeignCheckpoint
from dagster_ckpt.filesystem import open_filesystem

_PACKAGE = Path(dagster_ckpt.__file__).parent
#: A command with something that is put in when the text is made.
_COMMAND = re.compile(r"`dagster-ckpt [a-z-]+ [^`]*\{[^`]*`")
#: What puts the path in, and how ``path_option`` is called where several commands name it. What ``dispose`` is given
#: has its storage in it.
_PATH = re.compile(r"\{(?:[a-z_.]*path_option|path_option\([a-z_.]+\)|path|shlex\.quote\(.+\))\}")


def _texts(path: Path) -> Iterator[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else f"{{{ast.unparse(part.value)}}}"
                for part in node.values
                if isinstance(part, ast.Constant | ast.FormattedValue)
            )


def test_a_command_that_names_a_job_names_its_storage() -> None:
    commands = [
        (path.relative_to(_PACKAGE), found[0])
        for path in sorted(_PACKAGE.rglob("*.py"))
        for text in _texts(path)
        for found in _COMMAND.finditer(text)
    ]
    assert len(commands) > 30, "the expression finds no commands any more"
    without = [command for command in commands if not _PATH.search(command[1])]
    assert not without, without


@pytest.mark.parametrize("name", ["checkpoints", "my checkpoints", "it's $HOME"])
def test_a_command_is_pasted(name: str, tmp_path: Path) -> None:
    catalog = CheckpointCatalog(open_filesystem(str(tmp_path / name)), "delays")
    catalog.filesystem.create("delays/control/heartbeat", b"{}")
    with pytest.raises(ForeignCheckpoint) as raised:
        catalog.resolve(f"{tmp_path / name}/other/{'0' * 32}/chk-1")
    command = re.search(r"`(dagster-ckpt .*?)`", raised.value.hint)
    assert command is not None, raised.value.hint
    program, *arguments = shlex.split(command[1])
    assert program == "dagster-ckpt"
    told = CliRunner().invoke(main, arguments)
    assert told.exit_code == 0, told.output
    assert "delays" in told.output
