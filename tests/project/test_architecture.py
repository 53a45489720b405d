"""The package as a house: rooms of a size that one can look through, doors, and nothing that goes upwards or round.

A folder is a room and its ``__init__`` the door: what the door hands out is for all, the rest for the folder. A module
may import modules of its own folder and of the folders that its folder lies in. Everything else goes through the door
of the outermost folder that it does not lie in itself.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import dagster_ckpt

_ROOT = Path(dagster_ckpt.__file__).parent
#: Each may import what stands before it.
_LAYERS = (
    {"shown_text", "garbage_collector", "hosts", "lazy_names", "moved_names", "threads", "version"},
    {"errors"},
    {"clock", "paths"},
    {"config", "filesystem"},
    {"stored_json"},
    {"checkpoint", "testing"},
    {"report"},
    {"spark"},
    {"resume"},
    {"orchestration"},
    {"standalone"},
    {"cli", "datastream"},
    {""},
)
#: Whose threads a process may wait for at its end: Hadoop's client gives up by itself, the files are on a local disk,
#: and a command waits for its answer.
_WAITED_FOR = {
    ("filesystem", "hdfs", "hadoop_jvm"),
    ("checkpoint", "catalog", "fetched_ahead"),
    ("checkpoint", "job_states"),
}
_MOST_LINES = 400
_MOST_FILES = 12

Name = tuple[str, ...]


def _name(path: Path) -> Name:
    parts = path.relative_to(_ROOT).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


_MODULES = {_name(path): path for path in sorted(_ROOT.rglob("*.py"))}
_FOLDERS = {name for name, path in _MODULES.items() if path.name == "__init__.py"}


@cache
def _handed_out(door: Name) -> frozenset[str]:
    """The names of a door's ``__all__``; a module of the folder may be among them."""
    for node in ast.parse(_MODULES[door].read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return frozenset(ast.literal_eval(node.value))
    return frozenset()


def _imports(module: Name) -> Iterator[Name]:
    """What a module imports of the package: modules, and folders where it goes through their door."""
    for node in ast.walk(ast.parse(_MODULES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module}: a relative import"
            found = [(node.module or "", alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            found = [(alias.name, "") for alias in node.names]
        else:
            continue
        for origin, name in found:
            first, *rest = origin.split(".")
            if first == "dagster_ckpt":
                inside = (*rest, name)
                yield tuple(rest) if inside not in _MODULES or name in _handed_out(tuple(rest)) else inside


_IMPORTS = [(module, target) for module in _MODULES for target in _imports(module) if target != module]


def _shown(name: Name) -> str:
    return ".".join(("dagster_ckpt", *name))


def _home(module: Name) -> Name:
    """The folder that a module lies in; a ``__main__`` stands before the door."""
    if module[-1:] == ("__main__",):
        return module[:-2]
    return module if module in _FOLDERS else module[:-1]


def _shared(one: Name, other: Name) -> int:
    """In how many folders both lie."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@pytest.mark.parametrize("folder", sorted(_FOLDERS), ids=_shown)
def test_a_room_can_be_looked_through(folder: Name) -> None:
    inside = [name for name in _MODULES if name not in _FOLDERS and name[:-1] == folder]
    assert len(inside) <= _MOST_FILES
    lines = {_shown(name): len(_MODULES[name].read_text(encoding="utf-8").splitlines()) for name in (folder, *inside)}
    assert {name: count for name, count in lines.items() if count > _MOST_LINES} == {}


def test_everybody_goes_through_the_door() -> None:
    past = []
    for module, target in _IMPORTS:
        home = _home(module)
        room = _home(target)
        door = room[: _shared(home, room) + 1]
        if target in _FOLDERS and home[: len(target)] == target:
            past.append(f"{_shown(module)} imports the door of its own house")
        elif target != door and room != home[: len(room)]:
            past.append(f"{_shown(module)} imports {_shown(target)} past {_shown(door)}")
    assert past == []


def test_nothing_is_imported_upwards() -> None:
    level = {name: at for at, names in enumerate(_LAYERS) for name in names}
    assert {name[0] for name in _MODULES if name} == {name for name in level if name}
    top = {module: (module or ("",))[0] for module in _MODULES}
    up = [
        f"{_shown(module)} imports {_shown(target)}"
        for module, target in _IMPORTS
        if top[module] != top[target] and level[top[target]] >= level[top[module]]
    ]
    assert up == []


def test_a_run_ends_while_a_thread_hangs_in_a_storage() -> None:
    """A process waits for the threads of a `ThreadPoolExecutor` before it ends."""
    pools = {name for name, path in _MODULES.items() if re.search(r"\bThreadPoolExecutor\(", path.read_text("utf-8"))}
    assert {name for name in pools if name[0] in {"checkpoint", "filesystem", "spark"}} == _WAITED_FOR


@pytest.mark.parametrize("folder", sorted(_FOLDERS), ids=_shown)
def test_no_import_goes_round(folder: Name) -> None:
    """Between the modules and folders of a folder, taken as they lie in it."""
    depth = len(folder)
    graph: dict[str, set[str]] = {}
    for module, target in _IMPORTS:
        if module[:depth] == folder == target[:depth] and len(module) > depth and len(target) > depth:
            one, other = module[depth], target[depth]
            if one != other:
                graph.setdefault(one, set()).add(other)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"in {_shown(folder)}: {' imports '.join(reversed(error.args[1]))}")


def test_what_a_killed_process_leaves_in_a_temporary_directory_is_found_by_the_next() -> None:
    """A directory of `tempfile` by itself stays for good when its process is killed: elsewhere one small file may."""
    made = re.compile(r"\b(mkdtemp|mkstemp|TemporaryDirectory|NamedTemporaryFile)\(")
    found = {_shown(module) for module, path in _MODULES.items() if made.search(path.read_text(encoding="utf-8"))}
    assert found == {"dagster_ckpt.filesystem.scratch", "dagster_ckpt.spark.files.bucket_location"}


def test_one_module_takes_paths_and_urls_apart() -> None:
    """Two parsers would give one name two meanings. The others look at servers' URLs and at text to be shown."""
    found = {
        _shown(module)
        for module, path in _MODULES.items()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module == "urllib.parse" and module[0] != "testing"
        if {alias.name for alias in node.names} - {"quote"}
    }
    assert found == {"dagster_ckpt.paths", "dagster_ckpt.filesystem.buckets.s3", "dagster_ckpt.shown_text"}
