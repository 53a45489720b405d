"""``docs/reference/parity.md`` against the documents, the code and the tests: no name is forgotten, none drifts."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tools.parity import checks
from tools.parity.data import Malformed, Parity, Row, load
from tools.parity.write import DATA, PAGE, ROOT, render

ROW = Row(
    id="CheckpointConfig.set_checkpoint_timeout",
    answer="effect",
    here="An attempt that takes longer is discarded.",
    code="dagster_ckpt.config.checkpoint_config.CheckpointConfig.timeout",
    test=("tests/project/test_parity.py::test_the_page_is_what_is_rendered",),
)
NAME = {
    "id": ROW.id,
    "kind": "method",
    "name": "set_checkpoint_timeout",
    "owner": "CheckpointConfig",
    "signature": "set_checkpoint_timeout(checkpoint_timeout)",
    "documents": ["One"],
}


@pytest.fixture(scope="module")
def parity() -> Parity:
    return load(DATA)


def none(problems: Iterator[str]) -> None:
    found = list(problems)
    assert not found, f"{len(found)} problems:\n" + "\n".join(found)


# --- the real data ---------------------------------------------------------------------------------------------------


def test_every_name_has_exactly_one_row(parity: Parity) -> None:
    none(checks.unmatched(parity))


def test_every_row_explains_itself(parity: Parity) -> None:
    none(checks.unexplained(parity))


def test_what_a_row_names_is_there(parity: Parity) -> None:
    none(checks.unresolved(parity))


def test_the_tests_that_rows_name_exist(parity: Parity) -> None:
    none(checks.unproved(parity, ROOT))


def test_what_has_a_name_of_pyflink_takes_its_parameters(parity: Parity) -> None:
    none(checks.uncalled(parity))


def test_constants_are_those_of_the_documents(parity: Parity) -> None:
    none(checks.unequal(parity))


def test_nothing_is_invented(parity: Parity) -> None:
    none(checks.invented(parity, importlib.import_module("dagster_ckpt.datastream")))


def test_the_page_is_what_is_rendered(parity: Parity) -> None:
    assert PAGE.read_text(encoding="utf-8") == render(parity), "run tools/parity/write.py"


# --- the checks, on data that is broken ------------------------------------------------------------------------------


def written(directory: Path, rows: list[Row], names: list[dict[str, Any]], **added: str) -> Parity:
    """Data of these rows and names, through the files."""
    named = {"documents": ["One"], "named": names, "left_out": {}}
    (directory / "named.json").write_text(json.dumps(named))
    lines = ["[added]", *(f"{json.dumps(key)} = {json.dumps(reason)}" for key, reason in added.items())]
    lines += ["[[topic]]", 'title = "Topic"', 'about = "About."']
    for row in rows:
        lines.append("[[topic.row]]")
        fields = ("id", "answer", "here", "why", "differs", "code")
        lines += [f"{field} = {json.dumps(getattr(row, field))}" for field in fields]
        lines.append(f"test = {json.dumps(list(row.test))}")
    (directory / "rows.toml").write_text("\n".join(lines))
    return load(directory)


def test_sound_data_has_no_problem(tmp_path: Path) -> None:
    sound = written(tmp_path, [ROW], [NAME])
    assert list(sound.rows) == [ROW]
    for check in (checks.unmatched, checks.unexplained, checks.unresolved, checks.uncalled, checks.unequal):
        none(check(sound))
    none(checks.unproved(sound, ROOT))
    assert f"| `{ROW.id}(checkpoint_timeout)` | 1 | {ROW.here} |" in render(sound)


@pytest.mark.parametrize(
    ("rows", "names", "problem"),
    [
        ([replace(ROW, id="other")], [NAME], f"{ROW.id} has no row"),
        ([ROW], [], f"{ROW.id} has a row, and no document names it"),
        ([ROW, ROW], [NAME], f"rows.toml has {ROW.id} 2 times"),
        ([ROW], [NAME, NAME], f"named.json has {ROW.id} 2 times"),
    ],
)
def test_names_and_rows_that_do_not_match(
    tmp_path: Path, rows: list[Row], names: list[dict[str, Any]], problem: str
) -> None:
    assert problem in checks.unmatched(written(tmp_path, rows, names))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"answer": "perhaps"}, "answers 'perhaps'"),
        ({"answer": "error"}, "does not say why"),
        ({"answer": "warning"}, "does not say why"),
        ({"why": "Because."}, "is an effect and says why"),
        ({"here": ""}, "no sentence in 'here'"),
        ({"differs": "in the path"}, "no sentence in 'differs'"),
    ],
)
def test_a_row_that_does_not_explain_itself(tmp_path: Path, change: dict[str, Any], problem: str) -> None:
    problems = list(checks.unexplained(written(tmp_path, [replace(ROW, **change)], [NAME])))
    assert any(problem in found for found in problems), problems


@pytest.mark.parametrize(
    "code",
    [
        "nowhere",
        "dagster_ckpt.nowhere",
        "dagster_ckpt.config.checkpoint_config.Nothing",
        "dagster_ckpt.config.checkpoint_config.CheckpointConfig.nothing",
        "dagster_ckpt.config.checkpoint_config.CheckpointConfig.timeout.more",
    ],
)
def test_code_that_is_not_there(tmp_path: Path, code: str) -> None:
    (problem,) = checks.unresolved(written(tmp_path, [replace(ROW, code=code)], [NAME]))
    assert problem.endswith("does not exist")


@pytest.mark.parametrize(
    "test",
    [
        "",
        "tests/test_nothing.py::test_x",
        "tests/project/test_parity.py",
        "tests/project/test_parity.py::test_that_is_not_here",
        "tests/project/test_parity.py::TestNothing::test_the_page_is_what_is_rendered",
        "tests/project/test_parity.py::none",
        "tools/parity/checks.py::unproved",
        "tests/unit/filesystem/test_filesystem.py::TestPosix::test_that_is_not_in_the_contract",
        "tests/unit/filesystem/test_filesystem.py::TestPosix",
    ],
)
def test_a_test_that_is_not_there(tmp_path: Path, test: str) -> None:
    (problem,) = checks.unproved(written(tmp_path, [replace(ROW, test=(test,))], [NAME]), ROOT)
    assert problem.startswith(ROW.id)


@pytest.mark.parametrize(
    "test",
    [
        "tests/project/test_parity.py::test_a_test_that_is_there[case]",
        "tests/unit/config/test_restart.py::TestFixedDelay::test_it_never_resets",
        "tests/unit/filesystem/test_filesystem.py::TestPosix::test_create_is_exclusive",
    ],
)
def test_a_test_that_is_there(tmp_path: Path, test: str) -> None:
    none(checks.unproved(written(tmp_path, [replace(ROW, test=(test,))], [NAME]), ROOT))


class Storage:
    """What a class with names of PyFlink may look like."""

    MAX_STATE_SIZE = 5

    def __init__(self, path: str, size: int = 1) -> None:
        self.path, self.size = path, size

    def set_size(self, size: int) -> None:
        self.size = size

    @property
    def invention(self) -> int:
        return self.size


@pytest.fixture
def facade(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("dagster_ckpt.datastream")
    monkeypatch.setattr(Storage, "__module__", module.__name__)
    vars(module).update(__all__=["Storage"], Storage=Storage)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def _named(key: str, kind: str, **more: object) -> dict[str, Any]:
    return {"id": key, "kind": kind, "name": key.rpartition(".")[2], "documents": ["One"]} | more


@pytest.mark.parametrize(
    ("name", "part", "problem"),
    [
        (_named("Storage.set_size", "method", signature="set_size(size)"), ".set_size", None),
        (_named("Storage.set_size", "method", signature="set_size(bytes)"), ".set_size", "takes (bytes) in the doc"),
        (_named("Storage()", "constructor", name="Storage", signature="Storage(path=None, j_storage=None)"), "", None),
        (_named("Storage()", "constructor", name="Storage", signature="Storage(size)"), "", "and (path, size) here"),
        (_named("Storage(size)", "parameter", name="size", signature="size=1"), "", None),
        (_named("Storage(more)", "parameter", name="more", signature="more=1"), "", "takes no more"),
        (_named("Storage.MAX_STATE_SIZE", "constant", value=5), ".MAX_STATE_SIZE", None),
        (_named("Storage.MAX_STATE_SIZE", "constant", value=6), ".MAX_STATE_SIZE", "is 6 in the document and 5 here"),
    ],
)
@pytest.mark.usefixtures("facade")
def test_parameters_and_values(tmp_path: Path, name: dict[str, Any], part: str, problem: str | None) -> None:
    row = replace(ROW, id=name["id"], code=f"dagster_ckpt.datastream.Storage{part}")
    data = written(tmp_path, [row], [name])
    problems = [*checks.uncalled(data), *checks.unequal(data)]
    assert len(problems) == (0 if problem is None else 1), problems
    assert problem is None or problem in problems[0]


def test_a_difference_in_value_may_be_explained(tmp_path: Path, facade: ModuleType) -> None:
    name = _named("Storage.MAX_STATE_SIZE", "constant", value=6)
    row = replace(ROW, id=name["id"], code=f"{facade.__name__}.Storage.MAX_STATE_SIZE", differs="On purpose.")
    none(checks.unequal(written(tmp_path, [row], [name])))


def test_an_invention_needs_a_reason(tmp_path: Path, facade: ModuleType) -> None:
    names = [_named("Storage", "class"), _named("Storage.setSize", "method")]
    names.append(_named("Storage.MAX_STATE_SIZE", "constant"))
    assert list(checks.invented(written(tmp_path, [ROW], names), facade)) == [
        "Storage.invention is in dagster_ckpt.datastream, and no document names it"
    ]
    none(checks.invented(written(tmp_path, [ROW], names, **{"Storage.invention": "For convenience."}), facade))
    none(checks.invented(written(tmp_path, [ROW], [], Storage="A whole class of our own."), facade))
    stale = written(tmp_path, [ROW], names, **{"Storage.invention": "x.", "Storage.gone": "x.", "Storage": "x."})
    assert list(checks.invented(stale, facade)) == [
        "Storage is said to be added, and a document names it",
        "Storage.gone is said to be added, and dagster_ckpt.datastream does not have it",
    ]


@pytest.mark.parametrize("spoil", [lambda entry: entry.pop("kind"), lambda entry: entry.update(sort="method")])
def test_a_name_with_other_fields_is_malformed(tmp_path: Path, spoil: Callable[[dict[str, Any]], object]) -> None:
    name = dict(NAME)
    spoil(name)
    with pytest.raises(Malformed, match=r"named\.json, CheckpointConfig\.set_checkpoint_timeout"):
        written(tmp_path, [ROW], [name])


def test_a_row_with_other_fields_is_malformed(tmp_path: Path) -> None:
    written(tmp_path, [ROW], [NAME])
    file = tmp_path / "rows.toml"
    file.write_text(file.read_text().replace("why = ", "because = "))
    with pytest.raises(Malformed, match=r"rows\.toml, CheckpointConfig\.set_checkpoint_timeout"):
        load(tmp_path)


def test_a_page_is_not_rendered_of_a_row_without_a_name(tmp_path: Path) -> None:
    with pytest.raises(Malformed, match="no document names it"):
        render(written(tmp_path, [ROW], []))


def test_a_changed_row_changes_the_page(tmp_path: Path) -> None:
    before = render(written(tmp_path, [ROW], [NAME]))
    changed = replace(ROW, answer="error", why="It cannot be.", differs="On purpose.", test=("",))
    after = render(written(tmp_path, [changed], [NAME]))
    assert before != after
    assert "**Error.** An attempt that takes longer is discarded. It cannot be. *Differs*: On purpose." in after
    assert "none yet" in after
